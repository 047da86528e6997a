// Begins to use a file as one of the ways of a stream, says so, waits for a line, and goes on: what others do to the file meanwhile
// is to be left as it is.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char buffer[1 << 20];

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static void others(void)
{
    char line;
    if (write(1, "ready\n", 6) != 6 || read(0, &line, 1) != 1)
        fail("wait");
}

static void reads(int fd, size_t length, int count)
{
    while (count-- > 0)
        if (read(fd, buffer, length) < 0)
            fail("read");
}

// Bytes that this process had read from a disk.
static long from_disk(void)
{
    char line[200];
    long bytes = -1;
    FILE *io = fopen("/proc/self/io", "r");
    while (io && fgets(line, sizeof line, io))
        if (sscanf(line, "read_bytes: %ld", &bytes) == 1)
            break;
    if (io)
        fclose(io);
    return bytes;
}

static void prefetch(int fd, off_t size)
{
    const off_t each = 1 << 20, ahead = 80 << 20;
    long before = from_disk();
    for (off_t at = 0; at < size; at += each) {
        if (at + ahead < size)
            posix_fadvise(fd, at + ahead, each, POSIX_FADV_WILLNEED);
        if (pread(fd, buffer, each, at) < 0)
            fail("pread");
    }
    printf("%ld\n", from_disk() - before);
    fflush(stdout);
}

static void at_random(int fd, off_t size)
{
    unsigned state = 1;
    for (int nth = 0; nth < 4000; nth++) {
        state = state * 1103515245 + 12345;
        if (pread(fd, buffer, 4096, (off_t)(state >> 4) % (size / 4096) * 4096) < 0)
            fail("pread");
    }
}

static void by_mapping(int fd, off_t size)
{
    volatile char *map = mmap(0, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        fail("mmap");
    for (off_t at = 0; at < size; at += 4096)
        (void)map[at];
    munmap((void *)map, size);
}

static void by_stream(const char *file, const char *mode, int all)
{
    FILE *stream = fopen(file, mode);
    if (!stream)
        fail(file);
    size_t length = all ? sizeof buffer : 4096;
    while (fread(buffer, 1, length, stream) == length && all)
        ;
    if (!all)
        others();
    fclose(stream);
}

int main(int count, char **arguments)
{
    const char *file = arguments[1], *how = count > 2 ? arguments[2] : "";
    if (!strcmp(how, "fread") || !strcmp(how, "update") || !strcmp(how, "all")) {
        by_stream(file, *how == 'u' ? "r+" : "r", *how == 'a');
        return 0;
    }
    if (!strcmp(how, "locked") && mlockall(MCL_FUTURE) != 0) {
        puts("can't lock");
        return 0;
    }
    struct stat status;
    int fd = open(file, O_RDONLY);
    if (fd < 0 || fstat(fd, &status) < 0)
        fail(file);
    if (!strcmp(how, "header")) {
        reads(fd, 65536, 1);
        others();
    } else if (!strcmp(how, "pause")) {
        reads(fd, 65536, 1);
        others();
        reads(fd, 10240, 600);
    } else if (!strcmp(how, "prefetch")) {
        prefetch(fd, status.st_size);
    } else if (!strcmp(how, "random")) {
        at_random(fd, status.st_size);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    } else if (!strcmp(how, "map")) {
        by_mapping(fd, status.st_size);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    } else {
        reads(fd, 65536, status.st_size / 65536 + 1);
    }
    close(fd);
    return 0;
}
