/* Four threads read "file" by one descriptor, a MiB at a time: "read", each from where the last one ended; "pread", each the next part
 * that nobody has; "parts", each its own quarter, in order. Prints the sum of all bytes. */
#include "say.h"
#include <stdatomic.h>

enum { THREADS = 4 };

static int fd;
static const char *how;
static int64_t size;
static _Atomic int64_t next;
static _Atomic uint64_t sum, bytes;

static void *reads(void *which)
{
    char *buffer = malloc(MIB);
    int64_t at = (intptr_t)which * (size / THREADS), end = at + size / THREADS;
    for (;;) {
        ssize_t got;
        if (!strcmp(how, "read"))
            got = MUST(read(fd, buffer, MIB));
        else if (!strcmp(how, "pread"))
            got = MUST(pread(fd, buffer, MIB, atomic_fetch_add(&next, MIB)));
        else
            got = at < end ? MUST(pread(fd, buffer, MIB, at)) : 0;
        if (got == 0)
            break;
        at += got;
        bytes += got;
        uint64_t own = 0;
        for (ssize_t i = 0; i < got; i += 8)
            own += *(uint64_t *)(buffer + i);
        sum += own;
    }
    free(buffer);
    return NULL;
}

int main(int count, char **arguments)
{
    how = count > 1 ? arguments[1] : "read";
    fd = MUST(open("file", O_RDONLY));
    size = MUST(lseek(fd, 0, SEEK_END));
    MUST(lseek(fd, 0, SEEK_SET));
    pthread_t threads[THREADS];
    for (intptr_t thread = 0; thread < THREADS; thread++)
        MUST(-pthread_create(threads + thread, NULL, reads, (void *)thread));
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    MUST(close(fd));
    say("%s: %llu bytes, sum %llx", how, (unsigned long long)bytes, (unsigned long long)sum);
    return 0;
}
