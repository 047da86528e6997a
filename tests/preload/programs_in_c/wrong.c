/* A library that does one thing wrong, chosen by WRONG_..., or nothing: the comparison must find it out. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

#ifdef WRONG_ERRNO
/* A success that leaves an error behind. */
ssize_t pread(int fd, void *to, size_t count, off_t at)
{
    ssize_t got = NEXT(pread)(fd, to, count, at);
    if (got > 0)
        errno = ENOENT;
    return got;
}
#endif

#ifdef WRONG_NUMBER
/* A descriptor of its own among those of the program. */
__attribute__((constructor)) static void take_a_number(void) { open("/dev/null", O_RDONLY | O_CLOEXEC); }
#endif

#ifdef WRONG_HOLD
/* A descriptor of the program's that lives on, but for one with a lease, which would be waited for. */
int close(int fd)
{
    if (fcntl(fd, F_GETLEASE) == F_UNLCK)
        fcntl(fd, F_DUPFD_CLOEXEC, 500);
    return NEXT(close)(fd);
}
#endif

#ifdef WRONG_BYTE
/* A byte lost on the way, once in a great while. */
ssize_t write(int fd, const void *from, size_t count)
{
    if (count == 1 << 20)
        NEXT(write)(fd, from, count - 1);
    return NEXT(write)(fd, from, count == 1 << 20 ? 1 : count) > 0 ? count : -1;
}
#endif

#ifdef WRONG_READ
/* A byte that is not the file's, behind a page. */
ssize_t pread(int fd, void *to, size_t count, off_t at)
{
    ssize_t got = NEXT(pread)(fd, to, count, at);
    if (got > 4096)
        ((char *)to)[4096] ^= 1;
    return got;
}
#endif

#ifdef WRONG_LOCK
/* A look at the file through a descriptor of its own, whose close ends the process's locks. */
int fdatasync(int fd)
{
    char path[64] = "/proc/self/fd/0";
    path[14] = '0' + fd % 10;
    NEXT(close)(NEXT(open)(path, O_RDONLY));
    return NEXT(fdatasync)(fd);
}
#endif
