/* Threads that do all kinds of things with files at random, each knowing what its own file must hold; beside them threads that
 * share one file, take descriptors away and use their numbers again, fork, and start programs. Says "fine", or what was wrong.
 * Arguments: a name, a seed, steps of each thread. */
#include "say.h"
#include <spawn.h>
#include <sys/sendfile.h>

enum { THREADS = 6, SIZE = 6 * MIB, PIECE = 128 * KIB };

extern char **environ;
static const char *base;
static uint64_t seed;
static int steps;
static unsigned char *shared_expected;

static void wrong(const char *what, int thread, int step)
{
    say("wrong: %s (thread %d, step %d, errno %s)", what, thread, step, errno_text(errno));
    _exit(95);
}

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what))                                                                                                   \
            wrong(#what, own->thread, own->step);                                                                      \
    } while (0)

struct own {
    int thread, step;
    char name[64];
    unsigned char *expected;
    off_t size;
    int fd, copy;
    unsigned char *buffer;
};

static void open_own(struct own *own, uint64_t *state)
{
    static const int flags[] = {0, 0, O_CLOEXEC, O_NOATIME, O_CLOEXEC};
    own->fd = open(own->name, O_RDWR | O_CREAT | flags[chance(state) % 5], 0600);
    CHECK(own->fd >= 0);
    own->copy = -1;
}

static void close_own(struct own *own, uint64_t *state)
{
    if (own->copy >= 0)
        CHECK(close(own->copy) == 0);
    if (chance(state) % 4 == 0)
        CHECK(syscall(SYS_close, own->fd) == 0);
    else
        CHECK(close(own->fd) == 0);
}

static void put_at(struct own *own, uint64_t *state, off_t at, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        uint64_t value = chance(state);
        memcpy(own->buffer + i, &value, count - i < 8 ? count - i : 8);
    }
    int fd = own->copy >= 0 && chance(state) % 2 ? own->copy : own->fd;
    ssize_t put;
    switch (chance(state) % 4) {
    case 0:
        CHECK(lseek(fd, at, SEEK_SET) == at);
        put = write(fd, own->buffer, count);
        CHECK(lseek(fd, 0, SEEK_CUR) == at + (off_t)count);
        break;
    case 1: {
        struct iovec parts[2] = {{own->buffer, count / 3}, {own->buffer + count / 3, count - count / 3}};
        put = pwritev(fd, parts, 2, at);
        break;
    }
    default:
        put = pwrite(fd, own->buffer, count, at);
    }
    CHECK(put == (ssize_t)count);
    if (count == 0)
        return;
    if (at > own->size)
        memset(own->expected + own->size, 0, at - own->size);
    memcpy(own->expected + at, own->buffer, count);
    if (at + (off_t)count > own->size)
        own->size = at + count;
}

static void check_at(struct own *own, uint64_t *state, off_t at, size_t count)
{
    int fd = own->copy >= 0 && chance(state) % 2 ? own->copy : own->fd;
    ssize_t due = at >= own->size ? 0 : own->size - at < (off_t)count ? own->size - at : (off_t)count;
    ssize_t got;
    if (chance(state) % 2) {
        CHECK(lseek(fd, at, SEEK_SET) == at);
        got = read(fd, own->buffer, count);
        CHECK(lseek(fd, 0, SEEK_CUR) == at + due);
    } else {
        got = pread(fd, own->buffer, count, at);
    }
    CHECK(got == due);
    CHECK(memcmp(own->buffer, own->expected + at, due) == 0);
}

static void check_all(struct own *own, uint64_t *state)
{
    size_t piece = 1 + chance(state) % PIECE;
    CHECK(lseek(own->fd, 0, SEEK_SET) == 0);
    off_t at = 0;
    for (;;) {
        ssize_t got = read(own->fd, own->buffer, piece);
        CHECK(got >= 0);
        if (got == 0)
            break;
        CHECK(at + got <= own->size && memcmp(own->buffer, own->expected + at, got) == 0);
        at += got;
    }
    CHECK(at == own->size);
}

static void put_all(struct own *own, uint64_t *state)
{
    CHECK(ftruncate(own->fd, 0) == 0);
    own->size = 0;
    off_t size = chance(state) % SIZE;
    while (own->size < size) {
        size_t count = 1 + chance(state) % PIECE;
        put_at(own, state, own->size, size - own->size < (off_t)count ? (size_t)(size - own->size) : count);
    }
}

static void in_a_child(struct own *own, uint64_t *state)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* Other threads may have held any lock: nothing but plain calls. */
        int fd = open(own->name, O_RDONLY);
        if (fd < 0)
            _exit(1);
        off_t at = 0;
        for (ssize_t got; (got = read(fd, own->buffer, PIECE)) > 0; at += got)
            if (memcmp(own->buffer, own->expected + at, got) != 0)
                _exit(2);
        if (at != own->size)
            _exit(3);
        if (pread(own->fd, own->buffer, 100, 0) < 0 || close(own->fd) < 0)
            _exit(4);
        char name[80];
        snprintf(name, sizeof name, "%s.child", own->name);
        int to = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        for (int i = 0; i < 24; i++)
            if (write(to, own->expected, PIECE) != PIECE)
                _exit(5);
        if (fdatasync(to) < 0 || close(to) < 0 || close(fd) < 0 || unlink(name) < 0)
            _exit(6);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0)
        say("a child ended with %x", status);
    CHECK(status == 0);
    (void)state;
}

static void by_a_program(struct own *own)
{
    char size[32];
    snprintf(size, sizeof size, "%lld", (long long)own->size);
    char *arguments[] = {"sh", "-c", "test $(wc -c <\"$0\") -eq $1", own->name, size, NULL};
    pid_t child;
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

static void copied_by_the_kernel(struct own *own, uint64_t *state)
{
    char name[80];
    snprintf(name, sizeof name, "%s.copy", own->name);
    int to = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(to >= 0);
    off_t at = 0;
    while (at < own->size) {
        ssize_t got = chance(state) % 2 ? sendfile(to, own->fd, &at, PIECE) : copy_file_range(own->fd, &at, to, NULL, PIECE, 0);
        CHECK(got > 0);
    }
    CHECK(rename(name, own->name) == 0);
    CHECK(close(own->fd) == 0);
    if (own->copy >= 0)
        CHECK(close(own->copy) == 0);
    own->copy = -1;
    own->fd = to;
}

static void mapped(struct own *own)
{
    if (own->size == 0)
        return;
    unsigned char *map = mmap(NULL, own->size, PROT_READ | PROT_WRITE, MAP_SHARED, own->fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(memcmp(map, own->expected, own->size) == 0);
    map[own->size / 2] ^= 0xff;
    own->expected[own->size / 2] ^= 0xff;
    CHECK(msync(map, own->size, MS_ASYNC) == 0);
    CHECK(munmap(map, own->size) == 0);
}

static void by_a_stream(struct own *own)
{
    FILE *file = fopen(own->name, "r+");
    CHECK(file);
    off_t at = 0;
    for (size_t got; (got = fread(own->buffer, 1, PIECE, file)) > 0; at += got)
        CHECK(memcmp(own->buffer, own->expected + at, got) == 0);
    CHECK(at == own->size);
    CHECK(fclose(file) == 0);
}

static void *work(void *argument)
{
    struct own own_ = {.thread = (int)(intptr_t)argument, .fd = -1, .copy = -1}, *own = &own_;
    uint64_t state = seed * 1000 + own->thread;
    snprintf(own->name, sizeof own->name, "%s.%d", base, own->thread);
    own->expected = calloc(1, SIZE + 2 * PIECE);
    own->buffer = malloc(PIECE + 8);
    open_own(own, &state);
    for (own->step = 0; own->step < steps; own->step++) {
        off_t at = chance(&state) % SIZE;
        size_t count = chance(&state) % PIECE;
        switch (chance(&state) % 24) {
        case 0 ... 4:
            put_at(own, &state, at, count);
            break;
        case 5 ... 9:
            check_at(own, &state, at, count);
            break;
        case 10:
            check_all(own, &state);
            break;
        case 11:
            put_all(own, &state);
            break;
        case 12:
            CHECK(fdatasync(own->fd) == 0);
            break;
        case 13:
            CHECK(ftruncate(own->fd, at) == 0);
            if (at > own->size)
                memset(own->expected + own->size, 0, at - own->size);
            own->size = at;
            break;
        case 14:
            if (own->copy >= 0)
                CHECK(close(own->copy) == 0);
            own->copy = chance(&state) % 2 ? dup(own->fd) : fcntl(own->fd, F_DUPFD_CLOEXEC, 100);
            CHECK(own->copy >= 0);
            break;
        case 15: {
            int null = open("/dev/null", O_RDWR);
            CHECK(null >= 0);
            CHECK(dup2(own->fd, null) == null);
            CHECK(close(own->fd) == 0);
            own->fd = null;
            break;
        }
        case 16 ... 17:
            close_own(own, &state);
            open_own(own, &state);
            break;
        case 18:
            CHECK(posix_fadvise(own->fd, at, count, chance(&state) % 6) == 0);
            break;
        case 19:
            copied_by_the_kernel(own, &state);
            break;
        case 20:
            mapped(own);
            break;
        case 21:
            by_a_stream(own);
            break;
        case 22:
            if (own->step % 4 == 0)
                in_a_child(own, &state);
            break;
        case 23:
            if (own->step % 8 == 0)
                by_a_program(own);
            break;
        }
    }
    check_all(own, &state);
    close_own(own, &state);
    CHECK(unlink(own->name) == 0);
    free(own->expected);
    free(own->buffer);
    return NULL;
}

/* One file that all of these read, through descriptors that come and go. */
static void *share(void *argument)
{
    struct own own_ = {.thread = 100 + (int)(intptr_t)argument}, *own = &own_;
    uint64_t state = seed * 7000 + own->thread;
    char name[64];
    snprintf(name, sizeof name, "%s.shared", base);
    unsigned char *buffer = malloc(PIECE);
    for (own->step = 0; own->step < steps; own->step++) {
        int fd = open(name, chance(&state) % 2 ? O_RDONLY : O_RDWR);
        CHECK(fd >= 0);
        off_t at = chance(&state) % 2 ? 0 : chance(&state) % SIZE;
        CHECK(lseek(fd, at, SEEK_SET) == at);
        for (int i = chance(&state) % 40; i > 0 && at < SIZE; i--) {
            ssize_t got = read(fd, buffer, PIECE);
            CHECK(got >= 0);
            CHECK(memcmp(buffer, shared_expected + at, got) == 0);
            at += got;
        }
        int copy = dup(fd);
        CHECK(copy >= 0 && close(fd) == 0);
        CHECK(pread(copy, buffer, 4096, 4096) == 4096 && memcmp(buffer, shared_expected + 4096, 4096) == 0);
        CHECK(close(copy) == 0);
    }
    free(buffer);
    return NULL;
}

/* Uses descriptors that are not there, all the time: errors only. */
static void *miss(void *argument)
{
    struct own own_ = {.thread = 200}, *own = &own_;
    char bytes[16];
    (void)argument;
    for (own->step = 0; own->step < steps * 20; own->step++) {
        int fd = 600 + own->step % 300;
        CHECK(read(fd, bytes, sizeof bytes) == -1 && errno == EBADF);
        CHECK(write(fd, bytes, sizeof bytes) == -1 && errno == EBADF);
        CHECK(fsync(fd) == -1 && errno == EBADF);
        CHECK(close(fd) == -1 && errno == EBADF);
        CHECK(dup2(fd, fd) == -1 && errno == EBADF);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    base = count > 1 ? arguments[1] : "file";
    seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    steps = count > 3 ? atoi(arguments[3]) : 200;
    char name[64];
    snprintf(name, sizeof name, "%s.shared", base);
    make(name, SIZE, 3);
    shared_expected = malloc(SIZE);
    fill(shared_expected, SIZE, 0, 3);
    pthread_t threads[THREADS + 3];
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_create(&threads[THREADS], NULL, share, (void *)0);
    pthread_create(&threads[THREADS + 1], NULL, share, (void *)1);
    pthread_create(&threads[THREADS + 2], NULL, miss, NULL);
    for (int i = 0; i < THREADS + 3; i++)
        pthread_join(threads[i], NULL);
    say("fine");
    return 0;
}
