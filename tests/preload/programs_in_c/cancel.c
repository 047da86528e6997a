/* Threads that are cancelled in calls, with handlers that clean up: a call that was a point of cancellation still is one, and one
 * that wasn't isn't. */
#include "say.h"
#include <semaphore.h>
#include <time.h>

static const char *name;
static char buffer[MIB];
static int ends[2], full[2];
static sem_t ready;
static volatile int cleaned;

static void clean(void *what)
{
    (void)what;
    cleaned = 1;
}

enum call { READ, READV, WRITE, FSYNC, FDATASYNC, CLOSE, OPEN, PREAD, PWRITE, MSYNC, FALLOCATE, FADVISE, DUP, RENAME, CALLS };
static const char *const NAMES[] = {"read", "readv", "write", "fsync", "fdatasync", "close", "open", "pread", "pwrite", "msync",
                                    "fallocate", "posix_fadvise", "dup", "rename"};

static void make_call(enum call call, int fd)
{
    struct iovec part = {buffer, 10};
    switch (call) {
    case READ: read(fd, buffer, 10); break;
    case READV: readv(fd, &part, 1); break;
    case WRITE: write(fd, buffer, 10); break;
    case FSYNC: fsync(fd); break;
    case FDATASYNC: fdatasync(fd); break;
    case CLOSE: close(fd); break;
    case OPEN: open(name, O_RDWR); break;
    case PREAD: pread(fd, buffer, 10, 0); break;
    case PWRITE: pwrite(fd, buffer, 10, 0); break;
    case MSYNC: msync(buffer, 0, MS_ASYNC); break;
    case FALLOCATE: posix_fallocate(fd, 0, 10); break;
    case FADVISE: posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL); break;
    case DUP: dup(fd); break;
    case RENAME: rename("missing", "missing"); break;
    default: break;
    }
}

static enum call asked;

/* Cancelled before the call, with cancelling put off until then: what isn't a point of cancellation goes on. */
static void *pending(void *descriptor)
{
    volatile long after = 0;
    pthread_cleanup_push(clean, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    make_call(asked, (int)(intptr_t)descriptor);
    after = 1;
    pthread_cleanup_pop(0);
    return (void *)after;
}

/* Cancelled while it blocks. */
static void *blocked(void *descriptor)
{
    pthread_cleanup_push(clean, NULL);
    sem_post(&ready);
    make_call(asked, (int)(intptr_t)descriptor);
    pthread_cleanup_pop(0);
    return (void *)1;
}

static void report(const char *how, enum call call, void *(*thread)(void *), int fd, int cancel)
{
    pthread_t id;
    void *result;
    cleaned = 0;
    asked = call;
    pthread_create(&id, NULL, thread, (void *)(intptr_t)fd);
    if (cancel) {
        sem_wait(&ready);
        nanosleep(&(struct timespec){0, 30000000}, NULL);
        pthread_cancel(id);
    }
    pthread_join(id, &result);
    say("%s %s: %s, %s", NAMES[call], how, result == PTHREAD_CANCELED ? "cancelled" : "went on", cleaned ? "cleaned" : "not cleaned");
}

/* Cancelled again and again at any place of a work-load on files: the bytes of whole writes are there, and nothing hangs. */
static volatile int written;

static void *streaming(void *nothing)
{
    (void)nothing;
    written = 0;
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (;; written++) {
        char piece[4096];
        fill(piece, sizeof piece, (uint64_t)written * sizeof piece, 2);
        if (write(fd, piece, sizeof piece) != sizeof piece)
            return (void *)1;
        if (written % 500 == 499)
            fdatasync(fd);
        if (written % 100 == 99)
            pread(fd, piece, sizeof piece, 0);
    }
}

static void anywhere(void)
{
    int bad = 0;
    for (int round = 0; round < 15; round++) {
        pthread_t id;
        void *result;
        pthread_create(&id, NULL, streaming, NULL);
        nanosleep(&(struct timespec){0, 3000000 + round * 1500000}, NULL);
        pthread_cancel(id);
        pthread_join(id, &result);
        int fd = MUST(open(name, O_RDONLY));
        for (int i = 0; i < written; i++) {
            MUST(pread(fd, buffer, 4096, (off_t)i * 4096));
            bad += !holds(buffer, 4096, (uint64_t)i * 4096, 2);
        }
        bad += result != PTHREAD_CANCELED;
        MUST(close(fd));
    }
    say("anywhere: %d wrong", bad);
    MUST(unlink(name));
}

int main(int count, char **arguments)
{
    name = count > 1 ? arguments[1] : "file";
    make(name, 4 * MIB, 3);
    MUST(sem_init(&ready, 0, 0));
    MUST(pipe(ends));
    MUST(pipe2(full, O_NONBLOCK));
    while (write(full[1], buffer, sizeof buffer) > 0)
        ;
    MUST(fcntl(full[1], F_SETFL, 0));
    int fd = MUST(open(name, O_RDWR));
    for (enum call call = 0; call < CALLS; call++) {
        int own = call == CLOSE ? MUST(open(name, O_RDWR)) : fd;
        for (int i = 0; i < 40; i++)
            MUST(write(own, buffer, 64 * KIB));
        report("with a cancel pending", call, pending, own, 0);
        MUST(lseek(fd, 0, SEEK_SET));
    }
    report("on an empty pipe", READ, blocked, ends[0], 1);
    report("on an empty pipe", READV, blocked, ends[0], 1);
    report("on a full pipe", WRITE, blocked, full[1], 1);
    where(fd);
    TRY(close(fd));
    anywhere();
    return 0;
}
