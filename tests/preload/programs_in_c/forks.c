/* Processes that come out of a process with threads: by fork, vfork, posix_spawn and exec; each goes on with files. */
#include "say.h"
#include <spawn.h>

extern char **environ;
static char buffer[MIB];
static const char *name, *program;
static volatile int stop;

static void work(const char *which, int pieces)
{
    int fd = MUST(open(which, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    static __thread char piece[64 * KIB];
    for (int i = 0; i < pieces; i++) {
        fill(piece, sizeof piece, i * sizeof piece, 5);
        MUST(write(fd, piece, sizeof piece));
        if (i % 50 == 49)
            MUST(fdatasync(fd));
    }
    MUST(lseek(fd, 0, SEEK_SET));
    for (int i = 0; i < pieces; i++) {
        MUST(read(fd, piece, sizeof piece));
        if (!holds(piece, sizeof piece, i * sizeof piece, 5)) {
            say("other bytes at piece %d", i);
            _exit(94);
        }
    }
    MUST(close(fd));
}

static void *busy(void *which)
{
    char own[64];
    snprintf(own, sizeof own, "%s.%d", name, (int)(intptr_t)which);
    while (!stop) {
        work(own, 60);
        usleep(2000);
    }
    unlink(own);
    return NULL;
}

/* Fails until the first busy thread has a file. */
static int access_of_thread(void)
{
    char own[64];
    snprintf(own, sizeof own, "%s.0", name);
    return access(own, F_OK);
}

static void reported(const char *what, pid_t child)
{
    int status = -1;
    MUST(waitpid(child, &status, 0));
    say("%s: %x", what, status);
}

static void forked(int round)
{
    char own[64];
    snprintf(own, sizeof own, "%s.child", name);
    pid_t child = MUST(fork());
    if (child == 0) {
        work(own, 160);
        if (round % 3 == 0)
            _exit(round);
        if (round % 3 == 1)
            exit(round);
        /* A child of the child, after the child has worked. */
        pid_t grandchild = MUST(fork());
        if (grandchild == 0) {
            work(own, 80);
            _exit(0);
        }
        int status;
        MUST(waitpid(grandchild, &status, 0));
        _exit(status);
    }
    reported("forked", child);
    MUST(unlink(own));
}

static void vforked(int fd)
{
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        syscall(SYS_close_range, 3, 50, 0);
        dup2(1, 2);
        execl(program, program, "--child", NULL);
        _exit(97);
    }
    reported("vforked", child);
    child = vfork();
    if (child == 0) {
        close(fd);
        _exit(3);
    }
    reported("vforked without exec", child);
    child = vfork();
    if (child == 0) {
        execl("/nowhere", "nowhere", NULL);
        _exit(errno == ENOENT ? 4 : 5);
    }
    reported("vforked for nothing", child);
}

static void spawned(int fd)
{
    posix_spawn_file_actions_t actions;
    MUST(posix_spawn_file_actions_init(&actions));
    MUST(posix_spawn_file_actions_addclose(&actions, fd));
    MUST(posix_spawn_file_actions_adddup2(&actions, 1, 9));
    MUST(posix_spawn_file_actions_addopen(&actions, 10, name, O_RDONLY, 0));
    char *arguments[] = {(char *)program, "--child", NULL};
    pid_t child;
    int failed = posix_spawn(&child, program, &actions, NULL, arguments, environ);
    reported("spawned", child);
    say("failed: %d", failed);
    say("nowhere: %d", posix_spawn(&child, "/nowhere", NULL, NULL, arguments, environ) == ENOENT);
    say("system: %d", system("exit 7"));
    FILE *pipe = popen("cat", "w");
    MUST(fputs("to a shell\n", pipe));
    say("closed: %d", pclose(pipe));
}

static void *replaced(void *nothing)
{
    (void)nothing;
    char own[64];
    snprintf(own, sizeof own, "%s.0", name);
    execl(program, program, "--child", own, NULL);
    _exit(97);
}

int main(int count, char **arguments)
{
    name = count > 1 ? arguments[1] : "file";
    program = arguments[0];
    if (strcmp(name, "--child") == 0) {
        name = "started";
        int open_ones = 0;
        for (int fd = 0; fd < 64; fd++)
            open_ones += fcntl(fd, F_GETFD) >= 0;
        say("started with %d descriptors", open_ones);
        work(name, 100);
        /* Left half written by a thread that is gone. */
        if (count > 2)
            MUST(unlink(arguments[2]));
        return count > 2 ? 0 : 6;
    }
    make(name, 8 * MIB, 3);
    int fd = MUST(open(name, O_RDWR | O_CLOEXEC));
    pthread_t threads[3];
    for (intptr_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, busy, (void *)i);
    for (int round = 0; round < 9; round++)
        forked(round);
    for (int round = 0; round < 3; round++) {
        MUST(pread(fd, buffer, sizeof buffer, round * MIB));
        vforked(fd);
        /* The parent's descriptors are as they were. */
        MUST(pwrite(fd, buffer, sizeof buffer, round * MIB));
        MUST(read(fd, buffer, sizeof buffer));
        say("holds: %d", holds(buffer, sizeof buffer, round * MIB, 3));
        where(fd);
    }
    spawned(fd);
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    TRY(close(fd));
    show(name);
    /* Twice a daemon: its parents are gone, its descriptors are /dev/null. */
    int ends[2];
    MUST(pipe(ends));
    if (MUST(fork()) == 0) {
        for (int i = 0; i < 2; i++)
            MUST(daemon(1, 0));
        work("of-a-daemon", 200);
        for (int i = 0; i < 2; i++)
            MUST(daemon(1, 0));
        work("of-a-daemon", 100);
        MUST(write(ends[1], "done", 4));
        _exit(0);
    }
    MUST(wait(NULL));
    TRY(close(ends[1]));
    TRY(read(ends[0], buffer, 10));
    TRY(close(ends[0]));
    show("of-a-daemon");
    /* A thread that is not the first one starts another program in the place of this one. */
    stop = 0;
    pthread_create(&threads[0], NULL, busy, (void *)0);
    while (access_of_thread() < 0)
        usleep(1000);
    pthread_create(&threads[1], NULL, replaced, NULL);
    pause();
    return 93;
}
