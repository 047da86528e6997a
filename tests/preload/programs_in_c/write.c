/* Every way to write: sizes, offsets, appending, holes, limits, descriptors of all kinds, and every way that it can fail. */
#include "say.h"
#include <sys/eventfd.h>

static char buffer[5 * MIB];

static ssize_t by_write(int fd, const void *from, size_t count, off_t at) { (void)at; return write(fd, from, count); }
static ssize_t by_syscall(int fd, const void *from, size_t count, off_t at) { (void)at; return syscall(SYS_write, fd, from, count); }
static ssize_t by_writev(int fd, const void *from, size_t count, off_t at)
{
    struct iovec parts[3] = {{(void *)from, count / 3}, {NULL, 0}, {(char *)from + count / 3, count - count / 3}};
    (void)at;
    return writev(fd, parts, 3);
}
static ssize_t by_pwritev2_moving(int fd, const void *from, size_t count, off_t at)
{
    struct iovec part = {(void *)from, count};
    (void)at;
    return pwritev2(fd, &part, 1, -1, 0);
}
static ssize_t by_pwrite(int fd, const void *from, size_t count, off_t at) { return pwrite(fd, from, count, at); }
static ssize_t by_pwrite64(int fd, const void *from, size_t count, off_t at) { return pwrite64(fd, from, count, at); }
static ssize_t by_pwrite_syscall(int fd, const void *from, size_t count, off_t at) { return syscall(SYS_pwrite64, fd, from, count, at); }
static ssize_t by_pwritev(int fd, const void *from, size_t count, off_t at)
{
    struct iovec parts[2] = {{(void *)from, count / 2}, {(char *)from + count / 2, count - count / 2}};
    return pwritev(fd, parts, 2, at);
}
static ssize_t by_pwritev64(int fd, const void *from, size_t count, off_t at)
{
    struct iovec part = {(void *)from, count};
    return pwritev64(fd, &part, 1, at);
}
static ssize_t by_pwritev2(int fd, const void *from, size_t count, off_t at)
{
    struct iovec parts[2] = {{(void *)from, count / 4}, {(char *)from + count / 4, count - count / 4}};
    return pwritev2(fd, parts, 2, at, 0);
}
static ssize_t by_pwritev64v2(int fd, const void *from, size_t count, off_t at)
{
    struct iovec part = {(void *)from, count};
    return pwritev64v2(fd, &part, 1, at, RWF_DSYNC);
}

static const struct form {
    const char *name;
    ssize_t (*write)(int, const void *, size_t, off_t);
    int moves;
} FORMS[] = {
    {"write", by_write, 1},       {"syscall", by_syscall, 1},     {"writev", by_writev, 1},
    {"pwritev2 moving", by_pwritev2_moving, 1}, {"pwrite", by_pwrite, 0}, {"pwrite64", by_pwrite64, 0},
    {"pwrite by syscall", by_pwrite_syscall, 0}, {"pwritev", by_pwritev, 0}, {"pwritev64", by_pwritev64, 0},
    {"pwritev2", by_pwritev2, 0}, {"pwritev64v2", by_pwritev64v2, 0},
};

static void attempt(const struct form *form, const char *what, int fd, const void *from, size_t count, off_t at)
{
    if (form->moves && at >= 0)
        lseek(fd, at, SEEK_SET);
    errno = UNTOUCHED;
    ssize_t put = form->write(fd, from, count, at);
    int left = errno;
    say("%s %s: %zu at %lld = %zd %s, then at %lld", form->name, what, count, (long long)at, put, errno_text(left),
        (long long)lseek(fd, 0, SEEK_CUR));
}

static void regular(const struct form *form, const char *name)
{
    static const size_t counts[] = {0, 1, 511, 4095, 4096, 4097, 65537, MIB + 1};
    static const off_t places[] = {0, 1, 4095, 4096, 2 * MIB - 1, 5 * MIB + 1234, 5 * MIB + 10000, 7 * MIB};
    make(name, 5 * MIB + 1234, 3);
    int fd = MUST(open(name, O_RDWR));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t j = 0; j < sizeof places / sizeof *places; j++)
            attempt(form, "file", fd, buffer, counts[i], places[j]);
    attempt(form, "from nowhere", fd, bad_pointer(), 4096, 0);
    attempt(form, "nothing from nowhere", fd, bad_pointer(), 0, 0);
    attempt(form, "more than there can be", fd, bad_pointer(), SSIZE_MAX, 0);
    if (!form->moves) {
        attempt(form, "before the start", fd, buffer, 10, -5);
        attempt(form, "at the end of offsets", fd, buffer, 10, LLONG_MAX);
        attempt(form, "near the end of offsets", fd, buffer, 10, LLONG_MAX - 5);
    }
    TRY(close(fd));
    attempt(form, "closed", fd, buffer, 10, 0);
    attempt(form, "no descriptor", -1, buffer, 10, 0);
    attempt(form, "large descriptor", 1 << 20, buffer, 10, 0);
    attempt(form, "largest descriptor", INT_MAX, buffer, 10, 0);
    fd = MUST(open(name, O_RDONLY));
    attempt(form, "only to read", fd, buffer, 10, 0);
    TRY(close(fd));
    fd = MUST(open(name, O_PATH));
    attempt(form, "only a path", fd, buffer, 10, 0);
    TRY(close(fd));
    fd = MUST(open(name, O_RDWR | O_APPEND));
    attempt(form, "appended", fd, buffer, 4097, 5);
    attempt(form, "appended", fd, buffer, 1, 100000);
    attempt(form, "appended", fd, buffer, 300000, 0);
    TRY(close(fd));
    fd = open(name, O_RDWR | O_DIRECT);
    if (fd >= 0) {
        char *aligned = (char *)(((uintptr_t)buffer + 4095) & ~4095ul);
        attempt(form, "direct", fd, aligned, 8192, 4096);
        TRY(close(fd));
    }
    fd = MUST(open(name, O_RDWR | O_SYNC));
    attempt(form, "synced", fd, buffer, 8000, 4096);
    TRY(close(fd));
    show(name);
}

static void half_a_buffer(const struct form *form, const char *name)
{
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(pages + 2 * 4096, 4096, PROT_NONE));
    int fd = MUST(open(name, O_RDWR | O_TRUNC));
    attempt(form, "half a buffer", fd, pages, 3 * 4096, 0);
    attempt(form, "half a buffer", fd, pages + 4096 + 10, 3 * 4096, 20000);
    TRY(close(fd));
    show(name);
    MUST(munmap(pages, 3 * 4096));
}

static void others(const struct form *form)
{
    int fds[2];
    MUST(pipe2(fds, O_NONBLOCK));
    attempt(form, "pipe", fds[1], "0123456789", 10, form->moves ? -1 : 0);
    attempt(form, "pipe at its end", fds[0], "0123456789", 10, -1);
    attempt(form, "full pipe", fds[1], buffer, 200000, -1);
    MUST(close(fds[0]));
    attempt(form, "broken pipe", fds[1], buffer, 10, -1);
    TRY(close(fds[1]));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
    attempt(form, "socket", fds[0], "0123456789", 10, form->moves ? -1 : 0);
    MUST(close(fds[1]));
    attempt(form, "broken socket", fds[0], "0123456789", 10, -1);
    TRY(close(fds[0]));
    static const char *const paths[] = {"/dev/zero", "/dev/null", "/dev/full", "/proc/self/coredump_filter"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int fd = MUST(open(paths[i], O_WRONLY));
        attempt(form, paths[i], fd, "0x33", 4, 0);
        attempt(form, paths[i], fd, buffer, 3000, 3);
        TRY(close(fd));
    }
    int event = MUST(eventfd(7, EFD_NONBLOCK));
    attempt(form, "too little of an event", event, buffer, 4, form->moves ? -1 : 0);
    attempt(form, "event", event, "\1\0\0\0\0\0\0", 8, form->moves ? -1 : 0);
    TRY(close(event));
    int memory = MUST(memfd_create("memory", MFD_ALLOW_SEALING));
    attempt(form, "memory", memory, buffer, 20000, 100);
    MUST(fcntl(memory, F_ADD_SEALS, F_SEAL_GROW));
    attempt(form, "sealed memory", memory, buffer, 20000, 200);
    MUST(fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE));
    attempt(form, "sealed memory", memory, buffer, 100, 200);
    TRY(close(memory));
}

static void vectors(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_TRUNC));
    static struct iovec many[IOV_MAX + 1];
    for (int i = 0; i <= IOV_MAX; i++)
        many[i] = (struct iovec){buffer + i * 100, i % 100};
    TRY(writev(fd, many, IOV_MAX));
    TRY(writev(fd, many, IOV_MAX + 1));
    TRY(writev(fd, many, 0));
    TRY(writev(fd, bad_pointer(), 1));
    TRY(pwritev(fd, many, IOV_MAX, 5));
    TRY(pwritev(fd, many, IOV_MAX + 1, 5));
    TRY(pwritev(fd, many, 0, 5));
    TRY(pwritev(fd, bad_pointer(), 2, 5));
    TRY(pwritev2(fd, many, IOV_MAX + 1, 5, 0));
    TRY(pwritev2(fd, many, 10, 5, 1 << 30));
    TRY(pwritev2(fd, many, 10, 5, RWF_SYNC));
    TRY(pwritev2(fd, many, 10, 5, RWF_APPEND));
    TRY(pwritev2(fd, many, 10, -1, RWF_APPEND));
    TRY(pwritev2(fd, many, 10, -2, 0));
    TRY(pwritev2(-1, many, 10, 5, 0));
    struct iovec wrong[2] = {{buffer, 100}, {bad_pointer(), 100}};
    TRY(writev(fd, wrong, 2));
    struct iovec negative[2] = {{buffer, 100}, {buffer, (size_t)-1}};
    TRY(writev(fd, negative, 2));
    TRY(pwritev(fd, negative, 2, 0));
    where(fd);
    TRY(close(fd));
    show(name);
}

static volatile sig_atomic_t too_large;
static void on_too_large(int signal) { (void)signal; too_large++; }

static void limited(const struct form *form, const char *name)
{
    struct rlimit small = {3 * MIB + 100, 10 * MIB}, old;
    struct sigaction action = {.sa_handler = on_too_large}, before;
    MUST(getrlimit(RLIMIT_FSIZE, &old));
    MUST(sigaction(SIGXFSZ, &action, &before));
    small.rlim_max = old.rlim_max;
    MUST(setrlimit(RLIMIT_FSIZE, &small));
    int fd = MUST(open(name, O_RDWR | O_TRUNC));
    attempt(form, "within the limit", fd, buffer, 3 * MIB, 0);
    attempt(form, "over the limit", fd, buffer, 1000, 3 * MIB);
    attempt(form, "past the limit", fd, buffer, 1000, 3 * MIB + 100);
    TRY(ftruncate(fd, 4 * MIB));
    say("%d signals", (int)too_large);
    TRY(close(fd));
    MUST(setrlimit(RLIMIT_FSIZE, &old));
    MUST(sigaction(SIGXFSZ, &before, NULL));
    show(name);
}

/* As a dump or a table file is written: from start to end, in pieces of one size, synced at last. */
static void in_order(const struct form *form, const char *name, size_t size, size_t piece, int synced_every)
{
    int fd = MUST(open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    size_t at = 0;
    for (int calls = 1; at < size; calls++) {
        size_t step = size - at < piece ? size - at : piece;
        fill(buffer, step, at, 4);
        at += MUST(form->write(fd, buffer, step, at));
        if (synced_every && calls % synced_every == 0)
            MUST(fdatasync(fd));
    }
    where(fd);
    TRY(fsync(fd));
    TRY(close(fd));
    say("%s in order by %zu", form->name, piece);
    show(name);
}

/* Written in order, but for a header at last, a part twice, a hole, an end cut off. */
static void nearly_in_order(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    fill(buffer, sizeof buffer, 0, 6);
    for (int i = 0; i < 160; i++) {
        MUST(write(fd, buffer + i, 128 * KIB));
        if (i == 50)
            MUST(lseek(fd, -3 * MIB, SEEK_CUR));
        if (i == 90)
            MUST(lseek(fd, 2 * MIB + 5, SEEK_CUR));
        if (i == 120)
            MUST(ftruncate(fd, 9 * MIB + 3));
        if (i == 130)
            TRY(pread(fd, buffer + 3 * MIB, MIB, 8 * MIB));
    }
    where(fd);
    TRY(pwrite(fd, "header", 6, 0));
    TRY(fdatasync(fd));
    TRY(ftruncate(fd, 17 * MIB + 1));
    TRY(close(fd));
    show(name);
}

/* As a recycled log is written again: parts of pages, over what is there. */
static void over_again(const char *name)
{
    int fd = MUST(open(name, O_RDWR));
    unsigned sum = 2166136261u;
    for (off_t at = 0; at < 9 * MIB; at += 3000) {
        MUST(pwrite(fd, buffer + at % 1000, 3000, at));
        if (at % 33000 == 0) {
            MUST(fdatasync(fd));
            MUST(pread(fd, buffer + 4 * MIB, 6000, at));
            sum = checksum_on(sum, buffer + 4 * MIB, 6000);
        }
    }
    say("over again: sum %08x", sum);
    TRY(close(fd));
    show(name);
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    signal(SIGPIPE, SIG_IGN);
    fill(buffer, sizeof buffer, 0, 1);
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        regular(&FORMS[i], name);
        half_a_buffer(&FORMS[i], name);
        others(&FORMS[i]);
        limited(&FORMS[i], name);
    }
    vectors(name);
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        in_order(&FORMS[i], name, 12 * MIB + 77, 100 * KIB + 8 * i, 0);
    in_order(&FORMS[0], name, 80 * MIB + 1, MIB, 0);
    in_order(&FORMS[4], name, 24 * MIB, 4 * KIB, 128);
    in_order(&FORMS[0], name, 6 * MIB, 1000, 64);
    in_order(&FORMS[2], name, 24 * MIB, 4 * MIB, 1);
    nearly_in_order(name);
    over_again(name);
    return 0;
}
