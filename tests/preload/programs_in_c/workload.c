/* The same work in the same order each time, by a seed: what its calls return, and what is in its files at last. Made to run on
 * top of calls that fail. Arguments: a name (ignored: its files have names of their own), a seed. */
#include "say.h"
#include <sys/sendfile.h>

enum { FILES = 4, SIZE = 12 * MIB };
static char buffer[MIB];

int main(int count, char **arguments)
{
    uint64_t state = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    static const char *const suffixes[FILES] = {"", ".000012.sst", ".000013.log", ".binlog.000001"};
    char names[FILES][64];
    int fds[FILES], failures = 0;
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof names[i], "faulty%s", suffixes[i]);
        fds[i] = -1;
    }
    for (int step = 0; step < 1200; step++) {
        int i = chance(&state) % FILES;
        if (fds[i] < 0) {
            fds[i] = TRY(open(names[i], O_RDWR | O_CREAT | (chance(&state) % 4 ? 0 : O_TRUNC), 0600));
            failures += fds[i] < 0;
            if (fds[i] >= 0 && chance(&state) % 3 == 0)
                lseek(fds[i], 0, SEEK_END);
            continue;
        }
        int fd = fds[i];
        off_t at = chance(&state) % SIZE;
        size_t length = chance(&state) % 4 ? chance(&state) % (256 * KIB) : 4096 * (chance(&state) % 16);
        long long result = 0;
        errno = UNTOUCHED;
        const char *call = "";
        uint64_t which = chance(&state) % 32;
        switch (which) {
        case 0 ... 9:
            call = "write";
            fill(buffer, length, step * 1000, 1);
            result = write(fd, buffer, length);
            break;
        case 10 ... 13:
            call = "pwrite";
            fill(buffer, length, step * 1000, 2);
            result = pwrite(fd, buffer, length, at);
            break;
        case 14 ... 15: {
            call = "writev";
            struct iovec parts[2] = {{buffer, length / 2}, {buffer, length / 2}};
            result = writev(fd, parts, 2);
            break;
        }
        case 16 ... 19:
            call = "read";
            memset(buffer, 0, sizeof buffer);
            result = read(fd, buffer, length);
            break;
        case 20 ... 23:
            call = "pread";
            memset(buffer, 0, sizeof buffer);
            result = pread(fd, buffer, length, at);
            break;
        case 24:
            call = "lseek";
            result = lseek(fd, at, SEEK_SET);
            break;
        case 25 ... 26:
            call = which == 25 ? "fsync" : "fdatasync";
            result = which == 25 ? fsync(fd) : fdatasync(fd);
            break;
        case 27:
            call = "ftruncate";
            result = ftruncate(fd, at);
            break;
        case 28:
            call = "posix_fallocate";
            result = posix_fallocate(fd, at, length + 1);
            break;
        case 29: {
            call = "sendfile";
            int to = MUST(open("sound", O_WRONLY | O_CREAT | O_TRUNC, 0600));
            off_t from = at;
            result = sendfile(to, fd, &from, length);
            MUST(close(to));
            break;
        }
        case 30: {
            call = "dup";
            int copy = dup(fd);
            result = close(fd);
            fds[i] = copy;
            break;
        }
        default:
            call = "close";
            result = close(fd);
            fds[i] = -1;
        }
        int left = errno;
        failures += result < 0 || (size_t)result != length;
        say("%d %s of %d: %zu at %lld = %lld %s, sum %08x", step, call, i, length, (long long)at, result, errno_text(left),
            which >= 16 && which <= 23 && result > 0 ? checksum(buffer, result < 20000 ? result : 20000) : 0);
        if (fds[i] >= 0 && step % 16 == 0)
            where(fds[i]);
    }
    say("some failed: %d", failures > 20);
    return 0;
}
