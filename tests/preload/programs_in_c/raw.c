/* Calls through syscall(), which a library may hook, too: numbers, arguments, errors, and those that it must not know. */
#include "say.h"
#include <linux/futex.h>
#include <sys/mman.h>
#include <time.h>

static char buffer[MIB];

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    make(name, 5 * MIB, 3);
    int fd = TRY(syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT, 0640));
    where(fd);
    TRY(syscall(SYS_openat, AT_FDCWD, "missing", O_RDWR));
    TRY(syscall(SYS_openat, AT_FDCWD, bad_pointer(), O_RDWR));
#ifdef SYS_open
    int old = TRY(syscall(SYS_open, name, O_RDONLY));
    TRY(syscall(SYS_read, old, buffer, 100));
    TRY(syscall(SYS_close, old));
    old = TRY(syscall(SYS_creat, "made", 0600));
    TRY(syscall(SYS_close, old));
#endif
    struct { uint64_t flags, mode, resolve; } how = {O_RDONLY, 0, 0};
    int second = TRY(syscall(SYS_openat2, AT_FDCWD, name, &how, sizeof how));
    while (MUST(syscall(SYS_read, second, buffer, sizeof buffer)) > 0)
        ;
    where(second);
    TRY(syscall(SYS_close, second));
    TRY(syscall(SYS_read, fd, buffer, 5000));
    TRY(syscall(SYS_read, fd, bad_pointer(), 5000));
    TRY(syscall(SYS_read, 999, buffer, 5000));
    TRY(syscall(SYS_pread64, fd, buffer, 5000, 4 * MIB));
    TRY(syscall(SYS_pread64, fd, buffer, 5000, -1));
    say("sum %08x", checksum(buffer, 5000));
    struct iovec parts[2] = {{buffer, 1000}, {buffer + 5000, 3000}};
    TRY(syscall(SYS_readv, fd, parts, 2));
    TRY(syscall(SYS_preadv, fd, parts, 2, MIB, 0));
    TRY(syscall(SYS_preadv2, fd, parts, 2, -1, -1, 0));
    TRY(syscall(SYS_preadv2, fd, parts, 2, MIB, 0, 0));
    TRY(syscall(SYS_readv, fd, bad_pointer(), 2));
    TRY(syscall(SYS_readv, fd, parts, -1));
    TRY(syscall(SYS_readv, fd, parts, 100000));
    TRY(syscall(SYS_preadv, fd, bad_pointer(), 2, MIB, 0));
    TRY(syscall(SYS_preadv, fd, parts, 2, -5, -1));
    where(fd);
    int ends[2];
    MUST(pipe(ends));
    TRY(syscall(SYS_splice, fd, NULL, ends[1], NULL, 5000, 0));
    TRY(syscall(SYS_splice, ends[0], NULL, fd, NULL, 5000, 0));
    TRY(syscall(SYS_splice, fd, NULL, fd, NULL, 5000, 0));
    where(fd);
    TRY(syscall(SYS_write, fd, buffer, 5000));
    TRY(syscall(SYS_pwrite64, fd, buffer, 5000, 6 * MIB));
    TRY(syscall(SYS_writev, fd, parts, 2));
    TRY(syscall(SYS_pwritev, fd, parts, 2, MIB, 0));
    TRY(syscall(SYS_pwritev2, fd, parts, 2, MIB, 0, 0));
    TRY(syscall(SYS_fsync, fd));
    TRY(syscall(SYS_fdatasync, 999));
    TRY(syscall(SYS_fadvise64, fd, 0, 0, POSIX_FADV_DONTNEED));
    TRY(syscall(SYS_fadvise64, fd, 0, 0, 77));
    TRY(syscall(SYS_sync_file_range, fd, 0, 0, 2));
    TRY(syscall(SYS_readahead, fd, 0, 4096));
    TRY(syscall(SYS_fallocate, fd, 0, 0, 7 * MIB));
    TRY(syscall(SYS_ftruncate, fd, 3 * MIB));
    TRY(syscall(SYS_lseek, fd, 0, SEEK_END));
    int copy = TRY(syscall(SYS_dup, fd));
    TRY(syscall(SYS_dup3, fd, 40, O_CLOEXEC));
    TRY(syscall(SYS_fcntl, fd, F_DUPFD, 50));
    for (int i = 0; i < 60; i++)
        MUST(write(50, buffer, 100000));
    TRY(syscall(SYS_close_range, 40, 60, 0));
    TRY(syscall(SYS_close, copy));
    TRY(syscall(SYS_close, copy));
    char *map = (char *)syscall(SYS_mmap, NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
    say("mapped: %08x", checksum(map, MIB));
    TRY(syscall(SYS_munmap, map, MIB));
    TRY(syscall(SYS_close, fd));
    /* Others: unknown ones, those with six arguments, those with large values. */
    TRY(syscall(-1));
    TRY(syscall(100000));
    TRY(syscall(SYS_getppid) == getppid());
    TRY(syscall(SYS_gettid) == gettid());
    int word = 1;
    struct timespec moment = {0, 1000};
    TRY(syscall(SYS_futex, &word, FUTEX_WAIT, 1, &moment, NULL, 0));
    TRY(syscall(SYS_futex, &word, FUTEX_WAIT, 2, &moment, NULL, 0));
    TRY(syscall(SYS_getrandom, buffer, 100, 0));
    TRY(syscall(SYS_memfd_create, "memory", 99999));
    off64_t in = 1000, out = 2 * MIB;
    fd = MUST(open(name, O_RDWR));
    TRY(syscall(SYS_copy_file_range, fd, &in, fd, &out, 10000, 0));
    say("at %lld %lld", (long long)in, (long long)out);
    TRY(syscall(SYS_sendfile, 1, fd, &in, 0));
    TRY(syscall(SYS_close, fd));
    show(name);
    return 0;
}
