/* Every way to read: sizes, offsets, ends, holes, descriptors of all kinds, and every way that it can fail. */
#include "say.h"
#include <sys/eventfd.h>

extern ssize_t __read_chk(int, void *, size_t, size_t);
extern ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
extern ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);

static char buffer[5 * MIB];

static ssize_t by_read(int fd, void *to, size_t count, off_t at) { (void)at; return read(fd, to, count); }
static ssize_t by_read_chk(int fd, void *to, size_t count, off_t at) { (void)at; return __read_chk(fd, to, count, SIZE_MAX); }
static ssize_t by_syscall(int fd, void *to, size_t count, off_t at) { (void)at; return syscall(SYS_read, fd, to, count); }
static ssize_t by_readv(int fd, void *to, size_t count, off_t at)
{
    struct iovec parts[3] = {{to, count / 3}, {(char *)to + count / 3, 0}, {(char *)to + count / 3, count - count / 3}};
    (void)at;
    return readv(fd, parts, 3);
}
static ssize_t by_preadv2_moving(int fd, void *to, size_t count, off_t at)
{
    struct iovec part = {to, count};
    (void)at;
    return preadv2(fd, &part, 1, -1, 0);
}
static ssize_t by_pread(int fd, void *to, size_t count, off_t at) { return pread(fd, to, count, at); }
static ssize_t by_pread64(int fd, void *to, size_t count, off_t at) { return pread64(fd, to, count, at); }
static ssize_t by_pread_chk(int fd, void *to, size_t count, off_t at) { return __pread_chk(fd, to, count, at, SIZE_MAX); }
static ssize_t by_pread64_chk(int fd, void *to, size_t count, off_t at) { return __pread64_chk(fd, to, count, at, SIZE_MAX); }
static ssize_t by_preadv(int fd, void *to, size_t count, off_t at)
{
    struct iovec parts[2] = {{to, count / 2}, {(char *)to + count / 2, count - count / 2}};
    return preadv(fd, parts, 2, at);
}
static ssize_t by_preadv64(int fd, void *to, size_t count, off_t at)
{
    struct iovec part = {to, count};
    return preadv64(fd, &part, 1, at);
}
static ssize_t by_preadv2(int fd, void *to, size_t count, off_t at)
{
    struct iovec parts[2] = {{to, count / 4}, {(char *)to + count / 4, count - count / 4}};
    return preadv2(fd, parts, 2, at, 0);
}
static ssize_t by_preadv64v2(int fd, void *to, size_t count, off_t at)
{
    struct iovec part = {to, count};
    return preadv64v2(fd, &part, 1, at, RWF_HIPRI);
}

static const struct form {
    const char *name;
    ssize_t (*read)(int, void *, size_t, off_t);
    int moves;
} FORMS[] = {
    {"read", by_read, 1},         {"__read_chk", by_read_chk, 1},     {"syscall", by_syscall, 1},
    {"readv", by_readv, 1},       {"preadv2 moving", by_preadv2_moving, 1}, {"pread", by_pread, 0},
    {"pread64", by_pread64, 0},   {"__pread_chk", by_pread_chk, 0},   {"__pread64_chk", by_pread64_chk, 0},
    {"preadv", by_preadv, 0},     {"preadv64", by_preadv64, 0},       {"preadv2", by_preadv2, 0},
    {"preadv64v2", by_preadv64v2, 0},
};

static void attempt(const struct form *form, const char *what, int fd, void *to, size_t count, off_t at)
{
    memset(buffer, 0x55, 70000);
    if (form->moves && at >= 0)
        lseek(fd, at, SEEK_SET);
    errno = UNTOUCHED;
    ssize_t got = form->read(fd, to, count, at);
    int left = errno;
    /* Also what is not to be written to; but a direct read of a file's end brings whatever the disk's block has behind it. */
    int is_direct = got > 0 && strncmp(what, "direct", 6) == 0;
    say("%s %s: %zu at %lld = %zd %s, sum %08x, then at %lld", form->name, what, count, (long long)at, got, errno_text(left),
        is_direct ? checksum(to, got) : checksum(buffer, 70000), (long long)lseek(fd, 0, SEEK_CUR));
}

static void regular(const struct form *form, const char *name)
{
    static const size_t counts[] = {0, 1, 511, 4095, 4096, 4097, 65536, 65537, MIB + 1};
    int fd = MUST(open(name, O_RDONLY));
    struct stat status;
    MUST(fstat(fd, &status));
    off_t size = status.st_size;
    off_t places[] = {0, 1, 4095, 4096, 2 * MIB - 1, size - 4097, size - 1, size, size + 1, size + MIB};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t j = 0; j < sizeof places / sizeof *places; j++)
            attempt(form, "file", fd, buffer, counts[i], places[j]);
    attempt(form, "nowhere", fd, bad_pointer(), 4096, 0);
    attempt(form, "nothing to nowhere", fd, bad_pointer(), 0, 0);
    attempt(form, "more than there can be", fd, bad_pointer(), SSIZE_MAX, 0);
    if (!form->moves) {
        attempt(form, "before the start", fd, buffer, 10, -5);
        attempt(form, "at the end of offsets", fd, buffer, 10, LLONG_MAX);
    }
    TRY(close(fd));
    attempt(form, "closed", fd, buffer, 10, 0);
    attempt(form, "no descriptor", -1, buffer, 10, 0);
    attempt(form, "large descriptor", 1 << 20, buffer, 10, 0);
    attempt(form, "largest descriptor", INT_MAX, buffer, 10, 0);
    fd = MUST(open(name, O_WRONLY));
    attempt(form, "only to write", fd, buffer, 10, 0);
    TRY(close(fd));
    fd = MUST(open(name, O_PATH));
    attempt(form, "only a path", fd, buffer, 10, 0);
    TRY(close(fd));
    fd = open(name, O_RDONLY | O_DIRECT);
    if (fd >= 0) {
        char *aligned = (char *)(((uintptr_t)buffer + 4095) & ~4095ul);
        attempt(form, "direct", fd, aligned, 8192, 4096);
        attempt(form, "direct at the end", fd, aligned, 8192, size & ~4095ll);
        attempt(form, "direct past the end", fd, aligned, 8192, (size + 8191) & ~4095ll);
        TRY(close(fd));
    }
}

/* A buffer that ends before the bytes do. */
static void half_a_buffer(const struct form *form, const char *name)
{
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(pages + 2 * 4096, 4096, PROT_NONE));
    int fd = MUST(open(name, O_RDONLY));
    attempt(form, "half a buffer", fd, pages, 3 * 4096, 0);
    say("sum %08x", checksum(pages, 2 * 4096));
    MUST(mprotect(pages, 4096, PROT_READ));
    attempt(form, "a buffer to read from", fd, pages, 4096, 0);
    TRY(close(fd));
    MUST(munmap(pages, 3 * 4096));
}

static void others(const struct form *form)
{
    int fds[2];
    MUST(pipe2(fds, O_NONBLOCK));
    attempt(form, "empty pipe", fds[0], buffer, 10, -1);
    MUST(write(fds[1], "0123456789", 10));
    attempt(form, "pipe", fds[0], buffer, 4, form->moves ? -1 : 0);
    attempt(form, "pipe again", fds[0], buffer, 100, form->moves ? -1 : 0);
    MUST(close(fds[1]));
    attempt(form, "pipe at its end", fds[0], buffer, 10, -1);
    TRY(close(fds[0]));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
    MUST(write(fds[1], "0123456789", 10));
    attempt(form, "socket", fds[0], buffer, 4, form->moves ? -1 : 0);
    attempt(form, "socket at its end", fds[1], buffer, 4, form->moves ? -1 : 0);
    TRY(close(fds[0]));
    TRY(close(fds[1]));
    static const char *const paths[] = {"/dev/zero", "/dev/null", "/proc/version", "/proc/sys/kernel/ostype", "directory", "."};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int fd = MUST(open(paths[i], O_RDONLY));
        attempt(form, paths[i], fd, buffer, 3000, 0);
        attempt(form, paths[i], fd, buffer, 3000, 3);
        TRY(close(fd));
    }
    int event = MUST(eventfd(7, EFD_NONBLOCK));
    attempt(form, "too little of an event", event, buffer, 4, form->moves ? -1 : 0);
    attempt(form, "event", event, buffer, 8, form->moves ? -1 : 0);
    attempt(form, "no event", event, buffer, 8, form->moves ? -1 : 0);
    TRY(close(event));
    int memory = MUST(memfd_create("memory", 0));
    MUST(ftruncate(memory, 10000));
    attempt(form, "memory", memory, buffer, 20000, 100);
    TRY(close(memory));
}

static void vectors(const char *name)
{
    int fd = MUST(open(name, O_RDONLY));
    static struct iovec many[IOV_MAX + 1];
    for (int i = 0; i <= IOV_MAX; i++)
        many[i] = (struct iovec){buffer + i * 100, i % 100};
    TRY(readv(fd, many, IOV_MAX));
    TRY(readv(fd, many, IOV_MAX + 1));
    TRY(readv(fd, many, 0));
    TRY(readv(fd, many, -1));
    TRY(readv(fd, bad_pointer(), 1));
    TRY(preadv(fd, many, IOV_MAX, 5));
    TRY(preadv(fd, many, IOV_MAX + 1, 5));
    TRY(preadv(fd, many, 0, 5));
    TRY(preadv(fd, bad_pointer(), 2, 5));
    TRY(preadv2(fd, many, IOV_MAX + 1, 5, 0));
    TRY(preadv2(fd, many, 10, 5, 1 << 30));
    TRY(preadv2(fd, many, 10, 5, RWF_DSYNC));
    TRY(preadv2(fd, many, 10, -2, 0));
    TRY(preadv2(-1, many, 10, 5, 0));
    struct iovec wrong[2] = {{buffer, 100}, {bad_pointer(), 100}};
    TRY(readv(fd, wrong, 2));
    struct iovec negative[2] = {{buffer, 100}, {buffer, (size_t)-1}};
    TRY(readv(fd, negative, 2));
    TRY(preadv(fd, negative, 2, 0));
    where(fd);
    TRY(close(fd));
}

/* As a backup reads: from start to end, in pieces of one size; several times; also what others write meanwhile. */
static void in_order(const struct form *form, const char *name, size_t piece)
{
    int fd = MUST(open(name, O_RDONLY));
    unsigned sum = 2166136261u;
    off_t at = 0;
    int calls = 0;
    for (ssize_t got; (got = MUST(form->read(fd, buffer, piece, at))) > 0; at += got, calls++)
        sum = checksum_on(sum, buffer, got);
    say("%s in order by %zu: %lld bytes in %d calls, sum %08x, then at %lld", form->name, piece, (long long)at, calls, sum,
        (long long)lseek(fd, 0, SEEK_CUR));
    TRY(close(fd));
}

static void at_random(const char *name, off_t size)
{
    int fd = MUST(open(name, O_RDWR));
    uint64_t state = 5;
    unsigned sum = 2166136261u;
    for (int i = 0; i < 400; i++) {
        off_t at = chance(&state) % size;
        size_t count = chance(&state) % 200000;
        ssize_t got = MUST(pread(fd, buffer, count, at));
        sum = checksum_on(sum, buffer, got < 3000 ? got : 3000);
        if (i % 10 == 0)
            MUST(pwrite(fd, "changed", 7, at));
        if (i % 7 == 0) {
            lseek(fd, at, SEEK_SET);
            got = MUST(read(fd, buffer, count));
            sum = checksum_on(sum, buffer, got < 3000 ? got : 3000);
        }
    }
    say("at random: sum %08x", sum);
    where(fd);
    TRY(close(fd));
}

static void growing(void)
{
    int to = MUST(open("growing", O_WRONLY | O_CREAT | O_TRUNC, 0600));
    int from = MUST(open("growing", O_RDONLY));
    static char piece[100000];
    unsigned sum = 2166136261u;
    for (int i = 0; i < 60; i++) {
        fill(piece, sizeof piece, i, i);
        MUST(write(to, piece, sizeof piece));
        ssize_t got = MUST(read(from, buffer, 150000));
        sum = checksum_on(sum, buffer, got);
        if (i % 5 == 0)
            say("followed: %lld", MUST(read(from, buffer, 10)));
    }
    MUST(ftruncate(to, 1000));
    TRY(read(from, buffer, 10));
    lseek(from, 0, SEEK_SET);
    TRY(read(from, buffer, 5000));
    say("followed sum %08x", sum);
    TRY(close(to));
    TRY(close(from));
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    size_t size = 5 * MIB + 1234;
    MUST(mkdir("directory", 0755));
    make(name, size, 3);
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        regular(&FORMS[i], name);
        half_a_buffer(&FORMS[i], name);
        others(&FORMS[i]);
    }
    IN_CHILD(__read_chk(0, buffer, 100, 99));
    IN_CHILD(__pread_chk(0, buffer, 100, 0, 99));
    vectors(name);
    make(name, 24 * MIB + 777, 3);
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        in_order(&FORMS[i], name, 128 * KIB + 8 * i);
    in_order(&FORMS[0], name, 4 * KIB);
    in_order(&FORMS[0], name, 5 * MIB);
    in_order(&FORMS[0], name, 1000);
    at_random(name, 24 * MIB);
    int fd = MUST(open("holes", O_RDWR | O_CREAT, 0600));
    MUST(ftruncate(fd, 20 * MIB + 3));
    MUST(pwrite(fd, "data", 4, 3 * MIB + 5));
    MUST(pwrite(fd, "data", 4, 12 * MIB));
    TRY(close(fd));
    in_order(&FORMS[0], "holes", 256 * KIB);
    in_order(&FORMS[5], "holes", 100 * KIB);
    growing();
    return 0;
}
