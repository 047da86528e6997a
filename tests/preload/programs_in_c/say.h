/* What the programs here share: each prints every call that it makes, what it returned and what it left in errno, so that
 * two runs can be compared line by line. They work in the current directory, and on the file that their first argument
 * names. Nothing that may differ from run to run is reported: no address, no time, no process id. */
#ifndef SAY_H
#define SAY_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* What errno holds before a call: a success must leave it. */
enum { UNTOUCHED = 1234 };

__attribute__((format(printf, 1, 2), unused)) static void say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    for (int reported = 0; reported < length;) {
        ssize_t more = write(1, line + reported, length - reported);
        if (more < 0 && errno != EINTR && errno != EAGAIN)
            _exit(99);
        reported += more > 0 ? more : 0;
    }
}

__attribute__((unused)) static const char *errno_text(int number)
{
    const char *name = number == UNTOUCHED ? "untouched" : strerrorname_np(number);
    return name ? name : "unknown";
}

/* Makes a call, prints it, and has its value. */
#define TRY(call)                                                                                                      \
    ({                                                                                                                 \
        errno = UNTOUCHED;                                                                                             \
        long long tried_ = (long long)(call);                                                                          \
        int left_ = errno;                                                                                             \
        say("%d %s = %lld %s", __LINE__, #call, tried_, errno_text(left_));                                            \
        tried_;                                                                                                        \
    })

/* The same for what must work for the rest to make sense. */
#define MUST(call)                                                                                                     \
    ({                                                                                                                 \
        long long must_ = (long long)(call);                                                                           \
        if (must_ < 0) {                                                                                               \
            say("%d %s failed: %s", __LINE__, #call, errno_text(errno));                                               \
            _exit(98);                                                                                                 \
        }                                                                                                              \
        must_;                                                                                                         \
    })

/* A pointer that no call can use, out of the compiler's sight. */
__attribute__((unused)) static void *bad_pointer(void)
{
    void *volatile bad = (void *)16;
    return bad;
}

/* Of bytes that come in any pieces. */
__attribute__((unused)) static unsigned checksum_on(unsigned sum, const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < count; i++)
        sum = (sum ^ byte[i]) * 16777619u;
    return sum;
}

__attribute__((unused)) static unsigned checksum(const void *bytes, size_t count)
{
    return checksum_on(2166136261u, bytes, count);
}

/* The byte that belongs there. */
__attribute__((unused)) static unsigned char byte_at(uint64_t where, unsigned seed)
{
    return where * 31 + (where >> 12) * 7 + (where >> 20) * 13 + seed;
}

/* Bytes that show where they belong. Those of 4 KiB follow from the first. */
__attribute__((unused)) static void fill(void *bytes, size_t count, uint64_t at, unsigned seed)
{
    unsigned char *byte = bytes;
    while (count > 0) {
        size_t step = 4 * KIB - at % (4 * KIB);
        step = step < count ? step : count;
        unsigned char next = byte_at(at, seed);
        for (size_t i = 0; i < step; i++, next += 31)
            byte[i] = next;
        byte += step, at += step, count -= step;
    }
}

__attribute__((unused)) static int holds(const void *bytes, size_t count, uint64_t at, unsigned seed)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < count; i++) {
        if (byte[i] != byte_at(at + i, seed))
            return 0;
    }
    return 1;
}

/* Numbers by chance: splitmix64. */
__attribute__((unused)) static uint64_t chance(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* Makes a file of so many bytes. */
__attribute__((unused)) static void make(const char *name, size_t bytes, unsigned seed)
{
    static char buffer[256 * KIB];
    int fd = MUST(open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    for (size_t at = 0; at < bytes;) {
        size_t step = bytes - at < sizeof buffer ? bytes - at : sizeof buffer;
        fill(buffer, step, at, seed);
        at += MUST(write(fd, buffer, step));
    }
    MUST(close(fd));
}

/* Tells a file's size and what is in it. */
__attribute__((unused)) static void show(const char *name)
{
    static char buffer[256 * KIB];
    int fd = open(name, O_RDONLY);
    if (fd < 0) {
        say("%s: %s", name, errno_text(errno));
        return;
    }
    struct stat status;
    MUST(fstat(fd, &status));
    /* Eight bytes at a time, as these are tens of MiB: of whole buffers, filled up with nulls. */
    uint64_t sum = 2166136261u;
    for (ssize_t got = 1; got > 0;) {
        size_t length = 0;
        while (length < sizeof buffer && (got = MUST(read(fd, buffer + length, sizeof buffer - length))) > 0)
            length += got;
        memset(buffer + length, 0, sizeof buffer - length);
        for (size_t i = 0, word; i < length; i += sizeof word) {
            memcpy(&word, buffer + i, sizeof word);
            sum = (sum ^ word) * 1099511628211u;
            sum ^= sum >> 32;
        }
    }
    say("%s: %lld bytes, mode %o, %d links, checksum %08x", name, (long long)status.st_size, status.st_mode,
        (int)status.st_nlink, (unsigned)sum);
    MUST(close(fd));
}

/* Tells where a descriptor is and how it was opened. */
__attribute__((unused)) static void where(int fd)
{
    errno = UNTOUCHED;
    long long at = lseek(fd, 0, SEEK_CUR);
    int at_errno = errno;
    errno = UNTOUCHED;
    int flags = fcntl(fd, F_GETFL);
    int own = fcntl(fd, F_GETFD);
    say("descriptor %d: at %lld %s, flags %o, own flags %d", fd, at, errno_text(at_errno), flags, own);
}

/* Does something in a child, and prints how it ended. */
#define IN_CHILD(what)                                                                                                 \
    do {                                                                                                               \
        pid_t child_ = MUST(fork());                                                                                   \
        if (child_ == 0) {                                                                                             \
            what;                                                                                                      \
            _exit(0);                                                                                                  \
        }                                                                                                              \
        int status_ = 0;                                                                                               \
        MUST(waitpid(child_, &status_, 0));                                                                            \
        say("%d child: exit %d signal %d", __LINE__, WIFEXITED(status_) ? WEXITSTATUS(status_) : -1,                  \
            WIFSIGNALED(status_) ? WTERMSIG(status_) : 0);                                                             \
    } while (0)

#endif
