/* Handlers of signals that open, write and close a file, as they may (signal-safety(7)), while the thread that they interrupt
 * takes and gives memory. */
#include "say.h"
#include <sys/time.h>
#include <time.h>

enum { CHILDREN = 8, PIECES = 4096, SECONDS = 60 };

static const char *name;
static volatile sig_atomic_t done;

static void keep(int signal)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    done = fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0 ? 1 : 2;
}

static void *wait_for_ever(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

/* A process with a second thread, so that the allocator takes locks. */
static void interrupted(int flags, unsigned microseconds)
{
    static void *pieces[PIECES];
    uint64_t state = microseconds;
    pthread_t other;
    sigset_t all, old;
    sigfillset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, &old));
    MUST(-pthread_create(&other, NULL, wait_for_ever, NULL));
    MUST(sigprocmask(SIG_SETMASK, &old, NULL));
    struct sigaction action = {.sa_handler = keep, .sa_flags = flags};
    MUST(sigaction(SIGALRM, &action, NULL));
    struct itimerval once = {.it_value = {.tv_usec = microseconds}};
    MUST(setitimer(ITIMER_REAL, &once, NULL));
    while (!done)
        for (int i = 0; i < PIECES; i++) {
            int piece = chance(&state) % PIECES;
            free(pieces[piece]);
            pieces[piece] = malloc(1100 + chance(&state) % 9000);
        }
    _exit(done == 1 ? 0 : 1);
}

/* How many of them came to their end. */
static int ended(int flags)
{
    int count = 0;
    for (int nth = 0; nth < CHILDREN; nth++) {
        pid_t child = MUST(fork());
        if (child == 0)
            interrupted(flags, 2000 + 700 * nth);
        int status = -1;
        time_t end = time(NULL) + SECONDS;
        while (MUST(waitpid(child, &status, WNOHANG)) == 0) {
            if (time(NULL) > end) {
                kill(child, SIGKILL);
                MUST(waitpid(child, &status, 0));
                return count;
            }
            usleep(500);
        }
        count += status == 0;
    }
    return count;
}

int main(int count, char **arguments)
{
    name = arguments[count > 1];
    say("%d with a signal that is blocked", ended(SA_RESTART));
    say("%d with one that isn't", ended(SA_RESTART | SA_NODEFER));
    say("%d with one that has no handler any more", ended(SA_RESETHAND | SA_NODEFER));
    show(name);
    return 0;
}
