/* Signal handlers that never return, but jump out of whatever they interrupted (siglongjmp): files, descriptors and forks go on as
 * before. */
#include "say.h"
#include <dirent.h>
#include <setjmp.h>
#include <sys/time.h>
#include <time.h>

static char buffer[MIB];
static sigjmp_buf back;

static void jump(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

static int descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **arguments)
{
    (void)count;
    struct sigaction action = {.sa_handler = jump, .sa_flags = SA_NODEFER};
    MUST(sigaction(SIGALRM, &action, NULL));
    volatile int jumps = 0;
    volatile int fd = -1;
    /* What was open as it was interrupted is closed. */
    for (volatile int i = 0; i < 400; i++) {
        if (sigsetjmp(back, 1)) {
            jumps++;
            for (int other = 3; other < 200; other++)
                close(other);
            continue;
        }
        struct itimerval soon = {.it_value = {.tv_usec = 100 + 37 * (i % 100)}};
        MUST(setitimer(ITIMER_REAL, &soon, NULL));
        for (;;) {
            int opened = MUST(open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600));
            fd = dup2(opened, 10);
            close(opened);
            for (int j = 0; j < 3; j++)
                MUST(write(fd, buffer, MIB));
            close(fd);
        }
    }
    struct itimerval none = {0};
    MUST(setitimer(ITIMER_REAL, &none, NULL));
    for (int other = 3; other < 200; other++)
        close(other);
    fd = MUST(open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST(write(fd, buffer, MIB));
    MUST(close(fd));
    say("%s", jumps > 300 ? "many jumps" : "few jumps");
    say("%s", descriptors() < 12 ? "few descriptors" : "descriptors are left");
    double start = now();
    for (int i = 0; i < 100; i++) {
        pid_t child = MUST(fork());
        if (child == 0)
            _exit(0);
        MUST(waitpid(child, NULL, 0));
    }
    say("forks %s", now() - start < 4 ? "are quick" : "are slow");
    return 0;
}
