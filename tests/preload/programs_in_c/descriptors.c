/* Descriptors copied, closed, used again for other files, also behind the back of the C library; over exec and fork. */
#include "say.h"
#include <linux/close_range.h>

static char buffer[MIB];

/* Reads on until so many bytes, and prints what they were. */
static void stream(int fd, size_t bytes)
{
    unsigned sum = 2166136261u;
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = MUST(read(fd, buffer, 64 * KIB));
        if (got == 0)
            break;
        sum = checksum_on(sum, buffer, got);
        done += got;
    }
    say("streamed %zu, sum %08x", done, sum);
    where(fd);
}

static void put(int fd, size_t bytes, unsigned seed)
{
    for (size_t done = 0; done < bytes; done += 64 * KIB) {
        fill(buffer, 64 * KIB, done, seed);
        MUST(write(fd, buffer, 64 * KIB));
    }
    where(fd);
}

static void copies(const char *name)
{
    int fd = MUST(open(name, O_RDWR));
    int copy = TRY(dup(fd));
    where(copy);
    stream(fd, 4 * MIB);
    stream(copy, 2 * MIB);
    TRY(close(fd));
    stream(copy, 2 * MIB);
    TRY(close(fd));
    TRY(read(fd, buffer, 10));
    int second = TRY(open("second", O_RDWR | O_CREAT | O_TRUNC, 0600));
    TRY(dup2(copy, 20));
    TRY(dup2(copy, copy));
    TRY(dup2(99, 99));
    TRY(dup2(copy, -1));
    TRY(dup2(-1, 5));
    TRY(dup2(copy, 1 << 20));
    TRY(dup3(copy, 21, O_CLOEXEC));
    where(21);
    TRY(dup3(copy, copy, 0));
    TRY(dup3(copy, 22, 0x1000));
    TRY(dup3(-1, 22, 0));
    /* Over one that streams. */
    stream(20, 3 * MIB);
    TRY(dup2(second, 20));
    put(20, 4 * MIB, 5);
    stream(21, MIB);
    TRY(dup3(copy, 20, 0));
    stream(20, MIB);
    TRY(close(20));
    TRY(close(21));
    where(second);
    TRY(fcntl(copy, F_DUPFD, 30));
    TRY(fcntl(copy, F_DUPFD, 30));
    TRY(fcntl(copy, F_DUPFD_CLOEXEC, 30));
    where(32);
    TRY(fcntl(copy, F_DUPFD, -1));
    TRY(fcntl(copy, F_DUPFD, 1 << 24));
    TRY(fcntl(-1, F_DUPFD, 30));
    TRY(close(30));
    stream(31, 2 * MIB);
    TRY(fcntl(second, F_DUPFD, 30));
    put(30, 2 * MIB, 6);
    TRY(close_range(30, 40, 0));
    TRY(close(31));
    TRY(close(second));
    TRY(close(copy));
    show("second");
}

static void flags(const char *name)
{
    int fd = MUST(open(name, O_RDWR));
    int copy = MUST(dup(fd));
    TRY(fcntl(fd, F_GETFL));
    TRY(fcntl(fd, F_SETFL, O_APPEND));
    where(copy);
    TRY(pwrite(fd, "appended", 8, 0));
    TRY(write(copy, "appended", 8));
    TRY(fcntl(fd, F_SETFL, O_DIRECT));
    where(copy);
    char *aligned = (char *)(((uintptr_t)buffer + 4095) & ~4095ul);
    TRY(pread(fd, aligned, 8192, 0));
    TRY(pread(copy, aligned, 65536, 4096));
    TRY(pwrite(copy, aligned, 4096, 4096));
    TRY(fcntl(fd, F_SETFL, 0));
    TRY(pread(fd, aligned + 1, 100, 3));
    TRY(fcntl(fd, F_SETFL, O_NONBLOCK | O_NOATIME));
    where(copy);
    TRY(fcntl(fd, F_SETFD, FD_CLOEXEC));
    where(fd);
    where(copy);
    TRY(fcntl(fd, F_GETFD));
    TRY(fcntl(fd, 9999));
    TRY(fcntl(-1, F_GETFL));
    TRY(fcntl(fd, F_SETOWN, getpid()));
    TRY(fcntl(fd, F_GETSIG));
    TRY(fcntl(fd, F_GETPIPE_SZ));
    TRY(fcntl64(fd, F_GETFL));
    TRY(close(copy));
    TRY(close(fd));
    show(name);
}

static void reused(const char *name)
{
    int fd = MUST(open(name, O_RDONLY));
    stream(fd, 8 * MIB);
    TRY(close(fd));
    int again = MUST(open("second", O_RDWR | O_TRUNC));
    say("the same number: %d", fd == again);
    put(again, 5 * MIB, 7);
    /* Behind everyone's back. */
    TRY(syscall(SYS_close, again));
    again = MUST(open(name, O_RDONLY));
    stream(again, 5 * MIB);
    MUST(syscall(SYS_close, again));
    again = MUST(syscall(SYS_openat, AT_FDCWD, "second", O_RDWR));
    stream(again, 9 * MIB);
    put(again, 3 * MIB, 8);
    MUST(syscall(SYS_close, again));
    int ends[2];
    MUST(pipe(ends));
    say("the same number: %d", fd == ends[0]);
    MUST(write(ends[1], "piped", 5));
    TRY(read(ends[0], buffer, 100));
    TRY(close(ends[0]));
    TRY(close(ends[1]));
    fd = MUST(open(name, O_RDONLY));
    stream(fd, 3 * MIB);
    MUST(syscall(SYS_close, fd));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    MUST(write(ends[1], "sent", 4));
    TRY(read(ends[0], buffer, 100));
    TRY(fsync(ends[0]));
    TRY(close(ends[0]));
    TRY(close(ends[1]));
    for (int i = 0; i < 200; i++) {
        fd = MUST(open(i % 2 ? name : "second", i % 2 ? O_RDONLY : O_RDWR));
        if (i % 2 == 0)
            MUST(pwrite(fd, &i, sizeof i, i * 4096));
        else
            MUST(pread(fd, buffer, 100000, i * 50000));
        if (i % 3 == 0)
            MUST(syscall(SYS_close, fd));
        else
            MUST(close(fd));
    }
    show("second");
}

static void large_numbers(const char *name)
{
    struct rlimit many;
    MUST(getrlimit(RLIMIT_NOFILE, &many));
    rlim_t most = many.rlim_max;
    many.rlim_cur = many.rlim_max = most < 100000 ? 100000 : most;
    if (setrlimit(RLIMIT_NOFILE, &many) < 0) {
        many.rlim_cur = many.rlim_max = most;
        MUST(setrlimit(RLIMIT_NOFILE, &many));
    }
    int fd = MUST(open(name, O_RDWR));
    static const int numbers[] = {1023, 1024, 4095, 4096, 5000, 16384, 65535, 65536, 70000};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        TRY(dup2(fd, numbers[i]));
        lseek(fd, 0, SEEK_SET);
        if (fcntl(numbers[i], F_GETFD) < 0)
            continue;
        stream(numbers[i], 5 * MIB);
        put(numbers[i], 3 * MIB, i);
        TRY(fdatasync(numbers[i]));
    }
    TRY(close(fd));
    TRY(close_range(60000, ~0u, 0));
    TRY(close(65536));
    TRY(read(70000, buffer, 5));
    TRY(close(5000));
    TRY(close(5000));
    closefrom(100);
    TRY(close(1023));
    show(name);
}

static void ranges(const char *name)
{
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = MUST(open(name, O_RDONLY));
        stream(fds[i], (i + 1) * MIB);
    }
    TRY(close_range(fds[1], fds[2], 0));
    TRY(close_range(fds[1], fds[2], 0));
    TRY(close_range(5, 4, 0));
    TRY(close_range(fds[3], fds[3], CLOSE_RANGE_CLOEXEC));
    TRY(close_range(fds[0], fds[0], 1 << 10));
    for (int i = 0; i < 6; i++)
        where(fds[i]);
    stream(fds[3], 4 * MIB);
    int again = TRY(open("second", O_RDWR));
    put(again, MIB, 3);
    closefrom(fds[4]);
    where(fds[4]);
    TRY(close_range(3, ~0u, CLOSE_RANGE_UNSHARE));
    where(fds[0]);
    TRY(open(name, O_RDONLY));
    stream(3, 4 * MIB);
    TRY(close(3));
}

/* The program again, which prints what it was given. */
static void reported(void)
{
    for (int fd = 3; fd < 12; fd++) {
        struct stat status;
        if (fstat(fd, &status) == 0)
            say("given %d: %lld bytes", fd, (long long)status.st_size);
    }
    if (fcntl(4, F_GETFD) >= 0) {
        stream(4, 3 * MIB);
        where(4);
    }
}

static void over_exec(const char *name, const char *program)
{
    int fd = MUST(open(name, O_RDWR | O_CLOEXEC));
    int kept = MUST(dup(fd));
    say("closed at exec: %d, kept: %d", fd, kept);
    stream(kept, 4 * MIB);
    put(fd, 4 * MIB, 9);
    IN_CHILD(execl(program, program, "--reported", NULL); _exit(97));
    where(kept);
    IN_CHILD(stream(fd, MIB); put(kept, MIB, 1); close(fd); close(kept); exit(5));
    where(fd);
    stream(fd, MIB);
    pid_t child = vfork();
    if (child == 0) {
        close(kept);
        execl(program, program, "--reported", NULL);
        _exit(97);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    say("vfork: %d", status);
    stream(kept, MIB);
    put(kept, 3 * MIB, 2);
    TRY(fsync(fd));
    TRY(close(kept));
    TRY(close(fd));
    show(name);
}

/* A descriptor that another process sends. */
static void sent(const char *name)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t child = MUST(fork());
    char control[CMSG_SPACE(sizeof(int))] = {0};
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (child == 0) {
        int fd = MUST(open(name, O_RDWR));
        MUST(lseek(fd, MIB, SEEK_SET));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
        MUST(sendmsg(ends[1], &message, 0));
        _exit(0);
    }
    MUST(recvmsg(ends[0], &message, 0));
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    MUST(waitpid(child, NULL, 0));
    stream(fd, 3 * MIB);
    put(fd, 3 * MIB, 4);
    TRY(close(fd));
    TRY(close(ends[0]));
    TRY(close(ends[1]));
}


int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "--reported") == 0) {
        reported();
        return 0;
    }
    const char *name = count > 1 ? arguments[1] : "file";
    for (int fd = 3; fd < 20; fd++)
        close(fd);
    make(name, 12 * MIB + 1, 3);
    copies(name);
    flags(name);
    reused(name);
    over_exec(name, arguments[0]);
    sent(name);
    IN_CHILD(large_numbers(name));
    IN_CHILD(ranges(name));
    IN_CHILD(closefrom(0); _exit(open(name, O_RDONLY)));
    TRY(close(0));
    TRY(open(name, O_RDONLY));
    stream(0, 3 * MIB);
    where(0);
    show(name);
    return 0;
}
