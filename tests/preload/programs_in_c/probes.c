/* Reads a file once, after it has asked whether system calls can be filtered, as libraries do when they are loaded. Asked so, and by
 * these arguments, nothing is. Reports how many of the file's pages are in the page cache then. */
#include "say.h"
#include <linux/seccomp.h>
#include <sys/prctl.h>

enum { CACHESTAT = 451 };

static long long resident(const char *name)
{
    uint64_t range[2] = {0, 0}, counts[5] = {0};
    int fd = MUST(open(name, O_RDONLY));
    long done = syscall(CACHESTAT, fd, range, counts, 0);
    MUST(close(fd));
    return done < 0 ? -1 : (long long)counts[0];
}

int main(int count, char **arguments)
{
    static char buffer[64 * KIB];
    const char *name = arguments[1];
    (void)count;
    make(name, 8 * MIB, 1);
    int fd = MUST(open(name, O_RDWR));
    MUST(fsync(fd));
    MUST(syscall(SYS_fadvise64, fd, 0, 0, POSIX_FADV_DONTNEED));
    MUST(close(fd));
    TRY(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    TRY(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL));
    TRY(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0));
    TRY(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0));
    fd = MUST(open(name, O_RDONLY));
    while (MUST(read(fd, buffer, sizeof buffer)) > 0)
        ;
    MUST(close(fd));
    fprintf(stderr, "%lld\n", resident(name));
    return 0;
}
