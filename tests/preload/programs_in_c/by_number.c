/* Copies "file" into "copy", or reads it, by system calls that are made by their numbers: the argument names which. */
#include "say.h"

static char buffer[MIB];

/* Writes what was read. */
static void put(int to, size_t count)
{
    MUST(syscall(SYS_write, to, buffer, count));
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "";
    int from = MUST(syscall(SYS_openat, AT_FDCWD, "file", O_RDONLY));
    int to = MUST(syscall(SYS_openat, AT_FDCWD, "copy", O_RDWR | O_CREAT | O_TRUNC, 0644));
    int64_t size = MUST(lseek(from, 0, SEEK_END)), at = 0, got;
    MUST(lseek(from, 0, SEEK_SET));
    struct iovec parts[2] = { { buffer, 1000 }, { buffer + 1000, sizeof buffer - 1000 } };
    int ends[2];
    MUST(pipe(ends));
#define EACH(call) \
    for (; (got = MUST(syscall call)) > 0; at += got) \
        put(to, got)
    if (!strcmp(how, "read"))
        EACH((SYS_read, from, buffer, sizeof buffer));
    else if (!strcmp(how, "readv"))
        EACH((SYS_readv, from, parts, 2));
    else if (!strcmp(how, "pread"))
        EACH((SYS_pread64, from, buffer, sizeof buffer, at));
    else if (!strcmp(how, "preadv"))
        EACH((SYS_preadv, from, parts, 2, at, 0));
    else if (!strcmp(how, "preadv2"))
        EACH((SYS_preadv2, from, parts, 2, at, 0, 0));
    else if (!strcmp(how, "preadv2 at its own place"))
        EACH((SYS_preadv2, from, parts, 2, -1L, -1L, 0));
    else if (!strcmp(how, "copy_file_range"))
        while ((got = MUST(syscall(SYS_copy_file_range, from, NULL, to, NULL, size, 0))) > 0)
            ;
    else if (!strcmp(how, "sendfile"))
        while ((got = MUST(syscall(SYS_sendfile, to, from, NULL, (size_t)(64 * MIB)))) > 0)
            ;
    else if (!strcmp(how, "splice"))
        while ((got = MUST(syscall(SYS_splice, from, NULL, ends[1], NULL, (size_t)(64 * KIB), 0))) > 0)
            for (int64_t left = got; left > 0;)
                left -= MUST(syscall(SYS_splice, ends[0], NULL, to, NULL, (size_t)left, 0));
    else if (!strcmp(how, "fallocate")) {
        /* Longer first, in two steps, then written. */
        MUST(syscall(SYS_fallocate, to, 0, (int64_t)0, size / 2));
        MUST(syscall(SYS_fallocate, to, 0, (int64_t)0, size));
        EACH((SYS_read, from, buffer, sizeof buffer));
    } else if (!strcmp(how, "ftruncate")) {
        /* Written, cut, and written again. */
        for (int round = 0; round < 2; round++) {
            MUST(syscall(SYS_ftruncate, to, (int64_t)(round ? MIB : size)));
            MUST(lseek(to, 0, SEEK_SET));
            MUST(lseek(from, 0, SEEK_SET));
            EACH((SYS_read, from, buffer, sizeof buffer));
        }
    } else
        return 2;
    struct stat status;
    MUST(fstat(to, &status));
    say("%s: %lld of %lld bytes", how, (long long)status.st_size, (long long)size);
    return 0;
}
