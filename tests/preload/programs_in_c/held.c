/* What others notice of a file that a process has open to write: locks, leases, a program that is written and then started,
 * watchers. All of it ends with the process's last descriptor, and not before. */
#include "say.h"
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>

static char buffer[MIB];

static int work(const char *name, size_t bytes)
{
    int fd = MUST(open(name, O_RDWR));
    for (size_t done = 0; done < bytes; done += 64 * KIB) {
        fill(buffer, 64 * KIB, done, 3);
        MUST(pwrite(fd, buffer, 64 * KIB, done));
    }
    MUST(fdatasync(fd));
    while (MUST(read(fd, buffer, 64 * KIB)) > 0)
        ;
    /* Not closed here: that would end the process's locks, by POSIX. */
    return fd;
}

/* Asks in another process, which holds nothing. */
static void ask_for_record_lock(const char *what, const char *name)
{
    pid_t holder = getpid();
    pid_t child = MUST(fork());
    if (child == 0) {
        int fd = MUST(open(name, O_RDWR));
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        MUST(fcntl(fd, F_GETLK, &asked));
        say("%s: type %d from %lld, %lld long, by %s", what, asked.l_type, (long long)asked.l_start, (long long)asked.l_len,
            asked.l_type == F_UNLCK ? "nobody" : asked.l_pid == holder ? "its holder" : asked.l_pid == -1 ? "a description" : "another");
        asked = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
        TRY(fcntl(fd, F_SETLK, &asked));
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
}

static void record_locks(const char *name)
{
    int fd = MUST(open(name, O_RDWR));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 50};
    TRY(fcntl(fd, F_SETLK, &lock));
    ask_for_record_lock("locked", name);
    int worked = work(name, 12 * MIB);
    ask_for_record_lock("after work", name);
    int other = MUST(open("second", O_RDWR | O_CREAT, 0600));
    for (int i = 0; i < 100; i++)
        MUST(write(other, buffer, 100000));
    TRY(close(other));
    ask_for_record_lock("after another file's close", name);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_END, .l_start = -10, .l_len = 10};
    TRY(fcntl(fd, F_SETLKW, &lock));
    TRY(lockf(fd, F_TLOCK, 0));
    TRY(lockf(fd, F_ULOCK, 0));
    int copy = MUST(dup(fd));
    TRY(close(copy));
    ask_for_record_lock("after a copy's close", name);
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 7, .l_len = 1};
    TRY(fcntl(fd, F_SETLK, &lock));
    TRY(fcntl(fd, F_SETLK, bad_pointer()));
    TRY(close(fd));
    ask_for_record_lock("closed", name);
    TRY(close(worked));
}

static void description_locks(const char *name)
{
    for (int kind = 0; kind < 4; kind++) {
        int fd = MUST(open(name, O_RDWR));
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (kind % 2)
            TRY(fcntl(fd, F_OFD_SETLK, &lock));
        else
            TRY(flock(fd, LOCK_EX | LOCK_NB));
        for (size_t at = 0; at < 16 * MIB; at += 64 * KIB)
            MUST(kind < 2 ? pwrite(fd, buffer, 64 * KIB, at) : pread(fd, buffer, 64 * KIB, at));
        if (kind < 2)
            TRY(fdatasync(fd));
        int another = MUST(open(name, O_RDWR));
        TRY(flock(another, LOCK_EX | LOCK_NB));
        TRY(fcntl(another, F_OFD_SETLK, &(struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET}));
        TRY(flock(another, LOCK_UN));
        TRY(close(fd));
        /* At once. */
        TRY(flock(another, LOCK_EX | LOCK_NB));
        TRY(fcntl(another, F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET}));
        TRY(close(another));
    }
}

static void leases(const char *name)
{
    signal(SIGIO, SIG_IGN);
    for (int round = 0; round < 4; round++) {
        int fd = MUST(open(name, round % 2 ? O_RDONLY : O_RDWR));
        for (size_t at = 0; at < 16 * MIB; at += 64 * KIB)
            MUST(round % 2 ? read(fd, buffer, 64 * KIB) : write(fd, buffer, 64 * KIB));
        if (round == 2)
            MUST(fdatasync(fd));
        TRY(close(fd));
        /* Nobody has it open to write; who reads it besides is not reported. */
        fd = MUST(open(name, O_RDONLY));
        TRY(fcntl(fd, F_SETLEASE, F_RDLCK));
        TRY(fcntl(fd, F_GETLEASE));
        TRY(fcntl(fd, F_SETLEASE, F_UNLCK));
        TRY(close(fd));
    }
}

/* A program can't be started while anyone has it open to write. */
static void written_and_started(const char *program)
{
    for (int round = 0; round < 20; round++) {
        char name[32];
        snprintf(name, sizeof name, "program-%d", round);
        int from = MUST(open(program, O_RDONLY));
        int to = MUST(open(name, O_WRONLY | O_CREAT | O_TRUNC, 0700));
        for (ssize_t got; (got = MUST(read(from, buffer, 7000))) > 0;)
            MUST(write(to, buffer, got));
        /* More than any window, so that something is under way at the close. */
        static char zeros[256 * KIB];
        for (int i = 0; i < 40; i++)
            MUST(write(to, zeros, sizeof zeros));
        if (round % 4 == 0)
            MUST(fdatasync(to));
        MUST(close(to));
        MUST(close(from));
        pid_t child = MUST(fork());
        if (child == 0) {
            execl(name, name, "--started", NULL);
            say("not started: %s", errno_text(errno));
            _exit(96);
        }
        int status;
        MUST(waitpid(child, &status, 0));
        say("started: %d", status);
        MUST(unlink(name));
    }
}

static void watched(const char *name)
{
    int watch = MUST(inotify_init1(IN_NONBLOCK));
    for (int round = 0; round < 3; round++) {
        int number = MUST(inotify_add_watch(watch, name, IN_CLOSE_WRITE | IN_ATTRIB));
        int fd = MUST(open(name, round == 1 ? O_RDONLY : O_RDWR));
        for (size_t at = 0; at < 8 * MIB; at += 64 * KIB)
            MUST(round == 1 ? read(fd, buffer, 64 * KIB) : write(fd, buffer, 64 * KIB));
        if (round == 2)
            MUST(fsync(fd));
        MUST(close(fd));
        char events[4096];
        ssize_t got = read(watch, events, sizeof events);
        for (ssize_t at = 0; at < got;) {
            struct inotify_event *event = (struct inotify_event *)(events + at);
            say("event %x", event->mask);
            at += sizeof *event + event->len;
        }
        say("--");
        MUST(inotify_rm_watch(watch, number));
        MUST(read(watch, events, sizeof events) > 0 ? 0 : -1);
    }
    TRY(close(watch));
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    if (strcmp(name, "--started") == 0)
        return 0;
    make(name, 16 * MIB, 3);
    record_locks(name);
    description_locks(name);
    leases(name);
    written_and_started(arguments[0]);
    watched(name);
    show(name);
    return 0;
}
