/* Calls that sync, advise, allocate and cut files, and every way that they can fail. */
#include "say.h"

#ifndef POSIX_FADV_NOREUSE
#define POSIX_FADV_NOREUSE 5
#endif

static void on_each(const char *what, int fd)
{
    say("-- %s", what);
    TRY(fsync(fd));
    TRY(fdatasync(fd));
    TRY(syncfs(fd));
    TRY(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    TRY(sync_file_range(fd, 4096, 8192, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    TRY(sync_file_range(fd, 0, 0, 0));
    TRY(sync_file_range(fd, 0, 0, 1 << 20));
    TRY(sync_file_range(fd, -1, 0, SYNC_FILE_RANGE_WRITE));
    TRY(sync_file_range(fd, 0, -1, SYNC_FILE_RANGE_WRITE));
    for (int advice = -1; advice < 8; advice++)
        say("advice %d = %d, %d", advice, posix_fadvise(fd, 0, 0, advice), posix_fadvise64(fd, 100, 10000, advice));
    TRY(posix_fadvise(fd, 0, -1, POSIX_FADV_DONTNEED));
    TRY(posix_fadvise(fd, -1, 1, POSIX_FADV_DONTNEED));
    TRY(posix_fadvise(fd, 1ll << 50, 1ll << 20, POSIX_FADV_WILLNEED));
    TRY(readahead(fd, 0, 65536));
    TRY(readahead(fd, 1ll << 40, 65536));
    TRY(readahead(fd, -1, 65536));
    TRY(lseek(fd, 0, SEEK_CUR));
}

/* Not of directories: theirs may hang on the names in it. */
static void ends(int fd)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0 || !S_ISDIR(stat.st_mode))
        TRY(lseek(fd, 0, SEEK_END));
}

static void allocates(int fd)
{
    static const int modes[] = {
        0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE,
        FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE,
        FALLOC_FL_UNSHARE_RANGE, 1 << 20,
    };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        say("mode %x", modes[i]);
        TRY(fallocate(fd, modes[i], 4096, 8192));
        TRY(fallocate64(fd, modes[i], 100, 30000));
        TRY(fallocate(fd, modes[i], 3 * MIB, MIB));
        TRY(fallocate(fd, modes[i], 0, 0));
        TRY(fallocate(fd, modes[i], -1, 100));
        TRY(fallocate(fd, modes[i], 0, -1));
        TRY(fallocate(fd, modes[i], LLONG_MAX, 100));
        ends(fd);
    }
    TRY(posix_fallocate(fd, 0, 100));
    TRY(posix_fallocate64(fd, 6 * MIB, MIB));
    TRY(posix_fallocate(fd, 0, 0));
    TRY(posix_fallocate(fd, -1, 100));
    TRY(posix_fallocate(fd, LLONG_MAX - 10, 100));
    TRY(ftruncate(fd, 5000));
    TRY(ftruncate64(fd, 5 * MIB));
    TRY(ftruncate(fd, -1));
    TRY(ftruncate(fd, LLONG_MAX));
    /* A tmpfs takes that. */
    TRY(ftruncate(fd, 5 * MIB + 7));
    ends(fd);
}

/* What is read after each kind of cut, with bytes written around it. */
static void cuts(const char *name)
{
    static char buffer[64 * KIB];
    fill(buffer, sizeof buffer, 0, 8);
    int fd = MUST(open(name, O_RDWR | O_TRUNC));
    for (int i = 0; i < 128; i++)
        MUST(write(fd, buffer, sizeof buffer));
    TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB + 100, MIB));
    show(name);
    TRY(fallocate(fd, FALLOC_FL_ZERO_RANGE, 3 * MIB + 100, 6 * MIB));
    show(name);
    TRY(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, MIB, MIB));
    show(name);
    MUST(pwrite(fd, buffer, sizeof buffer, 2 * MIB + 5));
    TRY(fallocate(fd, FALLOC_FL_INSERT_RANGE, 0, MIB));
    show(name);
    TRY(ftruncate(fd, 3 * MIB + 1));
    MUST(pwrite(fd, buffer, sizeof buffer, 6 * MIB));
    show(name);
    TRY(lseek(fd, 4 * MIB, SEEK_DATA));
    TRY(lseek(fd, 4 * MIB, SEEK_HOLE));
    TRY(lseek(fd, 7 * MIB, SEEK_DATA));
    TRY(ftruncate(fd, 0));
    TRY(write(fd, "end", 3));
    TRY(close(fd));
    struct stat status;
    MUST(stat(name, &status));
    say("%lld bytes", (long long)status.st_size);
    TRY(truncate(name, 10));
    TRY(truncate("missing", 10));
    TRY(truncate64(name, 1));
    show(name);
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    make(name, 4 * MIB + 10, 2);
    int fd = MUST(open(name, O_RDWR));
    on_each("file", fd);
    MUST(pwrite(fd, "dirty", 5, MIB));
    on_each("dirty file", fd);
    allocates(fd);
    TRY(close(fd));
    on_each("closed", fd);
    allocates(fd);
    on_each("no descriptor", -1);
    on_each("large descriptor", 1 << 20);
    fd = MUST(open(name, O_RDONLY));
    on_each("only to read", fd);
    allocates(fd);
    TRY(close(fd));
    fd = MUST(open(name, O_WRONLY | O_APPEND));
    on_each("only to append", fd);
    allocates(fd);
    TRY(close(fd));
    fd = MUST(open(name, O_PATH));
    on_each("only a path", fd);
    allocates(fd);
    TRY(close(fd));
    int fds[2];
    MUST(pipe(fds));
    on_each("pipe", fds[0]);
    allocates(fds[1]);
    TRY(close(fds[0]));
    TRY(close(fds[1]));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    on_each("socket", fds[0]);
    allocates(fds[0]);
    TRY(close(fds[0]));
    TRY(close(fds[1]));
    static const char *const paths[] = {"/dev/null", "/dev/zero", "/proc/version", "."};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        fd = MUST(open(paths[i], O_RDONLY));
        on_each(paths[i], fd);
        allocates(fd);
        TRY(close(fd));
    }
    show(name);
    cuts(name);
    return 0;
}
