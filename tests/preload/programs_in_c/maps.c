/* Files read and written through mappings, before, while and after they are read and written by calls. */
#include "say.h"
#include <setjmp.h>

static char buffer[MIB];
static sigjmp_buf out;
static void on_bus_error(int signal) { siglongjmp(out, signal); }

/* Tells if a byte can be read, or by which signal not. */
static void touch(const char *what, volatile char *at)
{
    int signal = sigsetjmp(out, 1);
    if (signal == 0)
        say("%s: %d", what, (int)*at);
    else
        say("%s: signal %d", what, signal);
}

static void read_through(const char *name)
{
    size_t size = 12 * MIB + 100;
    make(name, size, 3);
    int fd = MUST(open(name, O_RDWR));
    char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    say("mapped: %d", map != MAP_FAILED);
    say("sum %08x", checksum(map, size));
    MUST(madvise(map, size, MADV_SEQUENTIAL));
    MUST(pwrite(fd, "changed", 7, 5 * MIB));
    say("changed: %.7s", map + 5 * MIB);
    while (MUST(read(fd, buffer, sizeof buffer)) > 0)
        ;
    TRY(close(fd));
    say("sum after the close %08x", checksum(map, size));
    touch("the last byte", map + size - 1);
    touch("past the last byte", map + size);
    MUST(truncate(name, 4 * MIB));
    touch("cut off", map + 5 * MIB);
    touch("kept", map + 4 * MIB - 1);
    TRY(munmap(map, size));
    show(name);
}

static void written_through(const char *name)
{
    size_t size = 12 * MIB;
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST(ftruncate(fd, size));
    char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fill(map, size, 0, 5);
    TRY(msync(map, size, MS_SYNC));
    MUST(pread(fd, buffer, sizeof buffer, 3 * MIB));
    say("holds: %d", holds(buffer, sizeof buffer, 3 * MIB, 5));
    for (size_t at = 0; at < size; at += 64 * KIB) {
        fill(map + at, 4096, at, 6);
        MUST(pwrite(fd, "call", 4, at + 8192));
    }
    TRY(msync(map + 4096, 8192, MS_ASYNC));
    TRY(fdatasync(fd));
    /* The last descriptor goes, the mapping stays and goes on being written. */
    TRY(close(fd));
    fill(map + 7 * MIB, MIB, 7 * MIB, 7);
    TRY(msync(map, size, MS_SYNC));
    TRY(munmap(map, size));
    show(name);
}

static void private_and_shared(const char *name)
{
    int fd = MUST(open(name, O_RDWR));
    char *own = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, MIB);
    char *shared = mmap64(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, MIB);
    memset(own, 'p', 100000);
    memset(shared + 200000, 's', 100000);
    say("%c %c", own[5], own[200005]);
    for (int i = 0; i < 12; i++)
        MUST(pread(fd, buffer, sizeof buffer, i * MIB));
    say("sums %08x %08x", checksum(own, 2 * MIB), checksum(shared, 2 * MIB));
    TRY(munmap(own, 2 * MIB));
    char *moved = mremap(shared, 2 * MIB, 4 * MIB, MREMAP_MAYMOVE);
    say("moved: %d, sum %08x", moved != MAP_FAILED, checksum(moved, 4 * MIB));
    TRY(munmap(moved, 4 * MIB));
    TRY(close(fd));
    show(name);
}

static void every_error(const char *name)
{
    int fd = MUST(open(name, O_RDONLY));
    int writable = MUST(open(name, O_WRONLY));
    TRY(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0));
    TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 1));
    TRY(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0));
    TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, writable, 0));
    TRY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, -1, 0));
    TRY(mmap(NULL, 4096, PROT_READ, 0, fd, 0));
    TRY(munmap((void *)1, 4096));
    TRY(msync((void *)1, 4096, MS_SYNC));
    TRY(msync(NULL, 4096, 99));
    TRY(close(fd));
    TRY(close(writable));
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    struct sigaction action = {.sa_handler = on_bus_error};
    MUST(sigaction(SIGBUS, &action, NULL));
    MUST(sigaction(SIGSEGV, &action, NULL));
    read_through(name);
    written_through(name);
    private_and_shared(name);
    every_error(name);
    return 0;
}
