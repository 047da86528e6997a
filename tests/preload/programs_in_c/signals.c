/* Signals that interrupt calls, with and without SA_RESTART, and handlers that make calls themselves. */
#include "say.h"
#include <sys/time.h>
#include <time.h>

static char buffer[MIB];
static const char *name;
static volatile sig_atomic_t caught;
static int ends[2];

static void count_it(int signal)
{
    (void)signal;
    caught++;
}

/* A handler that works on files itself, in the middle of anything. */
static int own_file = -1;
static void work(int signal)
{
    (void)signal;
    int left = errno;
    char piece[512];
    caught++;
    if (pwrite(own_file, piece, sizeof piece, (caught % 1000) * 512) != sizeof piece)
        _exit(92);
    int fd = open(name, O_RDONLY);
    if (fd < 0 || read(fd, piece, sizeof piece) < 0 || close(fd) < 0)
        _exit(91);
    errno = left;
}

static void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    MUST(sigaction(signal, &action, NULL));
}

/* Again and again: on a busy machine the first may come before the call that it is for. */
static void every(int milliseconds)
{
    struct itimerval timer = {{0, milliseconds * 1000}, {0, milliseconds * 1000}};
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
}

/* Not before some came, whenever that is on a busy machine. */
static void *feed(void *nothing)
{
    (void)nothing;
    while (caught < 3)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    MUST(write(ends[1], "fed", 3));
    return NULL;
}

static void interrupted(int flags)
{
    say("flags %x", flags);
    handle(SIGALRM, count_it, flags);
    struct iovec part = {buffer, 10};
    for (int call = 0; call < 3; call++) {
        caught = 0;
        pthread_t feeder;
        sigset_t alarm, old;
        sigemptyset(&alarm);
        sigaddset(&alarm, SIGALRM);
        /* The feeder must not take the signal. */
        pthread_sigmask(SIG_BLOCK, &alarm, &old);
        if (flags & SA_RESTART)
            pthread_create(&feeder, NULL, feed, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        every(50);
        switch (call) {
        case 0: TRY(read(ends[0], buffer, 10)); break;
        case 1: TRY(readv(ends[0], &part, 1)); break;
        case 2: TRY(syscall(SYS_read, ends[0], buffer, 10)); break;
        }
        every(0);
        say("caught some: %d", caught > 0);
        if (flags & SA_RESTART)
            pthread_join(feeder, NULL);
    }
    if (flags & SA_RESTART)
        return;
    int full[2];
    MUST(pipe2(full, O_NONBLOCK));
    while (write(full[1], buffer, sizeof buffer) > 0)
        ;
    MUST(fcntl(full[1], F_SETFL, 0));
    every(50);
    TRY(write(full[1], buffer, 10));
    every(0);
    every(50);
    int lock = MUST(open(name, O_RDWR));
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    pid_t holder = MUST(fork());
    if (holder == 0) {
        MUST(fcntl(lock, F_SETLK, &whole));
        MUST(write(ends[1], "!", 1));
        pause();
        _exit(0);
    }
    while (read(ends[0], buffer, 1) != 1)
        ;
    every(50);
    TRY(fcntl(lock, F_SETLKW, &whole));
    every(0);
    MUST(kill(holder, SIGKILL));
    MUST(waitpid(holder, NULL, 0));
    TRY(mkfifo("fifo", 0600));
    every(50);
    TRY(open("fifo", O_RDONLY));
    every(0);
    TRY(unlink("fifo"));
    TRY(close(lock));
    TRY(close(full[0]));
    TRY(close(full[1]));
}

/* Calls on files are never cut short by a signal. */
static void under_fire(void (*handler)(int), int flags)
{
    caught = 0;
    handle(SIGALRM, handler, flags);
    struct itimerval fire = {{0, 300}, {0, 300}}, none = {{0, 0}, {0, 0}};
    MUST(setitimer(ITIMER_REAL, &fire, NULL));
    int shorter = 0, other = 0;
    int fd = open(name, O_RDWR | O_TRUNC);
    for (int i = 0; i < 40; i++) {
        fill(buffer, sizeof buffer, i * MIB, 7);
        shorter += write(fd, buffer, sizeof buffer) != sizeof buffer;
        if (i % 8 == 7)
            other += fdatasync(fd) != 0;
    }
    lseek(fd, 0, SEEK_SET);
    for (int i = 0; i < 40; i++) {
        shorter += read(fd, buffer, sizeof buffer) != sizeof buffer;
        other += !holds(buffer, sizeof buffer, i * MIB, 7);
    }
    other += close(fd) != 0;
    MUST(setitimer(ITIMER_REAL, &none, NULL));
    say("under fire: %d shorter, %d wrong, caught some: %d", shorter, other, caught > 10);
    show(name);
}

int main(int count, char **arguments)
{
    name = count > 1 ? arguments[1] : "file";
    make(name, 4 * MIB, 3);
    own_file = MUST(open("of-the-handler", O_RDWR | O_CREAT, 0600));
    MUST(ftruncate(own_file, 1000 * 512));
    MUST(pipe(ends));
    interrupted(0);
    interrupted(SA_RESTART);
    under_fire(count_it, 0);
    under_fire(count_it, SA_RESTART);
    under_fire(work, 0);
    under_fire(work, SA_RESTART | SA_NODEFER);
    TRY(unlink("of-the-handler"));
    /* The mask and the handlers are as the program set them. */
    sigset_t mask;
    MUST(sigprocmask(SIG_BLOCK, NULL, &mask));
    for (int signal = 1; signal < 65; signal++) {
        struct sigaction action;
        if (sigismember(&mask, signal) > 0)
            say("%d is blocked", signal);
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            say("%d is handled: %d", signal, action.sa_handler == SIG_IGN ? 0 : 1);
    }
    return 0;
}
