/* A library that goes below another in LD_PRELOAD, and has calls fail by a seed (FAULTS_SEED): EIO, ENOSPC, EINTR, short counts.
 *
 * A fault depends on the seed, the kind of call, the file, the offset and the length, and on how often just that has been
 * asked for; never on the order of calls. So a program that makes the same calls meets the same faults, whatever a library
 * above does besides by raw system calls. Only files whose names begin with "faulty" have any. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Of each descriptor: the file's number by name, or 0 where it has no faults. */
static uint32_t files[4096];
/* How often a thing was asked for, by its hash. */
static uint8_t times[1 << 16];

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static uint64_t mixed(uint64_t z)
{
    z += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static uint64_t seed(void)
{
    const char *text = getenv("FAULTS_SEED");
    return text ? strtoull(text, NULL, 10) : 0;
}

static uint32_t file_of(const char *path)
{
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    if (strncmp(name, "faulty", 6) != 0)
        return 0;
    uint32_t number = 2166136261u;
    for (; *name; name++)
        number = (number ^ (unsigned char)*name) * 16777619u;
    return number | 1;
}

static uint32_t file_at(int fd) { return fd >= 0 && fd < 4096 ? files[fd] : 0; }

/* What is to happen: 0 nothing, an errno, or -1 for a shorter count. */
static int fault(char kind, uint32_t file, uint64_t offset, uint64_t length)
{
    if (!file)
        return 0;
    uint64_t asked = mixed(seed() ^ mixed(file ^ mixed((uint64_t)kind << 56 ^ offset ^ mixed(length))));
    uint64_t which = mixed(asked + __atomic_fetch_add(&times[asked & 0xffff], 1, __ATOMIC_RELAXED));
    if (which % 12 != 0)
        return 0;
    switch (which / 12 % 4) {
    case 0: return EIO;
    case 1: return EINTR;
    case 2: return kind == 'w' || kind == 's' || kind == 'a' ? ENOSPC : kind == 'o' ? EMFILE : EIO;
    default: return kind == 'r' || kind == 'w' ? -1 : EINTR;
    }
}

static off_t position(int fd) { return syscall(SYS_lseek, fd, 0, SEEK_CUR); }

/* Fails, or has the length to go on with. */
static int fails(char kind, int fd, uint64_t offset, size_t *length)
{
    int what = fault(kind, file_at(fd), offset, *length);
    if (what > 0) {
        errno = what;
        return 1;
    }
    if (what < 0 && *length > 1)
        *length = 1 + *length / 3;
    return 0;
}

#define MOVING(name, kind, pointer)                                                                                    \
    ssize_t name(int fd, pointer bytes, size_t count)                                                                  \
    {                                                                                                                  \
        if (file_at(fd) && fails(kind, fd, position(fd), &count))                                                      \
            return -1;                                                                                                 \
        return ((ssize_t(*)(int, pointer, size_t))next(#name))(fd, bytes, count);                                      \
    }
#define PLACED(name, kind, pointer)                                                                                    \
    ssize_t name(int fd, pointer bytes, size_t count, off_t at)                                                        \
    {                                                                                                                  \
        if (file_at(fd) && fails(kind, fd, at, &count))                                                                \
            return -1;                                                                                                 \
        return ((ssize_t(*)(int, pointer, size_t, off_t))next(#name))(fd, bytes, count, at);                           \
    }
MOVING(read, 'r', void *)
MOVING(write, 'w', const void *)
PLACED(pread, 'r', void *)
PLACED(pread64, 'r', void *)
PLACED(pwrite, 'w', const void *)
PLACED(pwrite64, 'w', const void *)

static size_t total(const struct iovec *parts, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    return bytes;
}

/* A shorter count of several parts is that of the first. */
#define VECTORED(name, kind, parameters, arguments, at)                                                                \
    ssize_t name parameters                                                                                            \
    {                                                                                                                  \
        size_t bytes = file_at(fd) ? total(parts, count) : 0, asked = bytes;                                           \
        if (file_at(fd) && fails(kind, fd, at, &bytes))                                                                \
            return -1;                                                                                                 \
        if (bytes != asked)                                                                                            \
            count = 1;                                                                                                 \
        return ((ssize_t(*) parameters)next(#name)) arguments;                                                         \
    }
VECTORED(readv, 'r', (int fd, const struct iovec *parts, int count), (fd, parts, count), position(fd))
VECTORED(writev, 'w', (int fd, const struct iovec *parts, int count), (fd, parts, count), position(fd))
VECTORED(preadv, 'r', (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), at)
VECTORED(preadv64, 'r', (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), at)
VECTORED(pwritev, 'w', (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), at)
VECTORED(pwritev64, 'w', (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), at)

#define SYNCING(name)                                                                                                  \
    int name(int fd)                                                                                                   \
    {                                                                                                                  \
        size_t none = 0;                                                                                               \
        if (file_at(fd) && fails('s', fd, 0, &none))                                                                   \
            return -1;                                                                                                 \
        return ((int (*)(int))next(#name))(fd);                                                                        \
    }
SYNCING(fsync)
SYNCING(fdatasync)
SYNCING(syncfs)

int ftruncate(int fd, off_t size)
{
    size_t none = 0;
    if (file_at(fd) && fails('t', fd, size, &none))
        return -1;
    return ((int (*)(int, off_t))next("ftruncate"))(fd, size);
}

int fallocate(int fd, int mode, off_t at, off_t length)
{
    size_t bytes = length;
    if (file_at(fd) && fails('a', fd, at, &bytes))
        return -1;
    return ((int (*)(int, int, off_t, off_t))next("fallocate"))(fd, mode, at, length);
}

int posix_fallocate(int fd, off_t at, off_t length)
{
    int what = fault('p', file_at(fd), at, length);
    return what > 0 ? what : ((int (*)(int, off_t, off_t))next("posix_fallocate"))(fd, at, length);
}

ssize_t sendfile(int to, int from, off_t *at, size_t count)
{
    if (file_at(from) && fails('r', from, at ? *at : position(from), &count))
        return -1;
    return ((ssize_t(*)(int, int, off_t *, size_t))next("sendfile"))(to, from, at, count);
}

ssize_t copy_file_range(int from, off_t *in, int to, off_t *out, size_t count, unsigned flags)
{
    if (file_at(from) && fails('r', from, in ? *in : position(from), &count))
        return -1;
    return ((ssize_t(*)(int, off_t *, int, off_t *, size_t, unsigned))next("copy_file_range"))(from, in, to, out, count, flags);
}

/* The descriptor is gone even where close says that it failed, as Linux has it. */
int close(int fd)
{
    uint32_t file = file_at(fd);
    int what = fault('c', file, 0, 0);
    if (file)
        files[fd] = 0;
    int result = ((int (*)(int))next("close"))(fd);
    if (result == 0 && what > 0) {
        errno = what;
        return -1;
    }
    return result;
}

static int opened(int fd, const char *path)
{
    if (fd >= 0 && fd < 4096)
        files[fd] = file_of(path);
    return fd;
}

#define OPENING(name)                                                                                                  \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;                                                      \
        va_end(more);                                                                                                  \
        int what = fault('o', file_of(path), flags, 0);                                                                \
        if (what > 0) {                                                                                                \
            errno = what;                                                                                              \
            return -1;                                                                                                 \
        }                                                                                                              \
        return opened(((int (*)(const char *, int, ...))next(#name))(path, flags, mode), path);                        \
    }
OPENING(open)
OPENING(open64)

#define COPYING(name, parameters, arguments)                                                                           \
    int name parameters                                                                                                \
    {                                                                                                                  \
        int copy = ((int (*) parameters)next(#name)) arguments;                                                        \
        if (copy >= 0 && copy < 4096)                                                                                  \
            files[copy] = file_at(fd);                                                                                 \
        return copy;                                                                                                   \
    }
COPYING(dup, (int fd), (fd))
COPYING(dup2, (int fd, int to), (fd, to))
COPYING(dup3, (int fd, int to, int flags), (fd, to, flags))
