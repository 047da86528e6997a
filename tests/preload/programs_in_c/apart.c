/* What a second opener of a file would show or break: a write lease, times of files that are read without changing them, files of
 * the kernel's own file systems, whose directories can't be removed while they are open. */
#include "say.h"

static char buffer[MIB];

static void leases(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));
    TRY(fcntl(fd, F_SETLEASE, F_WRLCK));
    for (int i = 0; i < 12; i++)
        MUST(write(fd, buffer, MIB));
    TRY(fsync(fd));
    MUST(write(fd, buffer, MIB));
    TRY(fcntl(fd, F_GETLEASE));
    TRY(close(fd));
    /* Taken while what was written before may be worked on. */
    for (int i = 0; i < 10; i++) {
        fd = MUST(open(name, O_RDWR | O_TRUNC));
        for (int j = 0; j < 8; j++)
            MUST(write(fd, buffer, MIB));
        TRY(close(fd));
        fd = MUST(open(name, O_RDWR));
        TRY(fcntl(fd, F_SETLEASE, F_WRLCK));
        TRY(close(fd));
    }
}

static void times(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));
    for (int i = 0; i < 20; i++)
        MUST(write(fd, buffer, MIB));
    TRY(fsync(fd));
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    /* Resident in part: that is seen by a mapping. */
    for (int i = 0; i < 20; i++)
        MUST(pread(fd, buffer, 1, i * MIB + 12345));
    TRY(close(fd));
    struct timespec past[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    MUST(utimensat(AT_FDCWD, name, past, 0));
    fd = MUST(open(name, O_RDONLY | O_NOATIME));
    FILE *stream = fdopen(fd, "r");
    long sum = 0;
    for (size_t more; (more = fread(buffer, 1, sizeof buffer, stream)) > 0;) {
        sum += more;
        usleep(20000);
    }
    TRY(fclose(stream));
    struct stat stat;
    MUST(lstat(name, &stat));
    say("read %ld, accessed at %ld", sum, (long)stat.st_atime);
}

static void kernel_files(void)
{
    static const char *const places[] = {"/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"};
    for (int i = 0; i < 2; i++) {
        char directory[128], file[192];
        snprintf(directory, sizeof directory, "%s/pagekeeper-test-%d", places[i], (int)getpid());
        if (mkdir(directory, 0700) < 0)
            continue;
        snprintf(file, sizeof file, "%s/trace_marker", directory);
        for (int j = 0; j < 20; j++) {
            int fd = MUST(open(file, O_WRONLY));
            MUST(write(fd, "marked\n", 7));
            MUST(close(fd));
        }
        int failed = rmdir(directory) < 0 ? errno : 0;
        for (int j = 0; failed && j < 100 && rmdir(directory) < 0; j++)
            usleep(20000);
        /* Where there is none, nothing is said, either. */
        if (failed)
            say("rmdir: %s", errno_text(failed));
    }
}

int main(int count, char **arguments)
{
    (void)count;
    leases(arguments[1]);
    times(arguments[1]);
    kernel_files();
    return 0;
}
