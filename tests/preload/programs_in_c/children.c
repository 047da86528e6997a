/* What children of fork have open: what the program has, whatever its other threads are at. */
#include "say.h"
#include <dirent.h>

enum { CHILDREN = 1500 };

static const char *name;
static volatile int stop;

static void *writes(void *nothing)
{
    static char bytes[64 * KIB];
    while (!stop) {
        int fd = MUST(open(name, O_WRONLY | O_CREAT, 0644));
        MUST(write(fd, bytes, sizeof bytes));
        MUST(close(fd));
    }
    return nothing;
}

/* Whether this process has a descriptor that the program never opened: one that only names a file, or a socket. */
static int is_odd(void)
{
    DIR *all = opendir("/proc/self/fd");
    struct dirent *one;
    int odd = all == NULL;
    while (all && (one = readdir(all)) != NULL) {
        struct stat stat;
        int fd = atoi(one->d_name), flags = fcntl(fd, F_GETFL);
        odd |= fd > 2 && flags != -1
               && ((flags & O_PATH) != 0 || (fstat(fd, &stat) == 0 && S_ISSOCK(stat.st_mode)));
    }
    return odd;
}

int main(int count, char **arguments)
{
    pthread_t writer;
    int odd = 0;
    name = arguments[count > 1];
    pthread_create(&writer, NULL, writes, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = MUST(fork());
        if (child == 0)
            _exit(is_odd());
        int status;
        MUST(waitpid(child, &status, 0));
        odd += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    stop = 1;
    pthread_join(writer, NULL);
    say("odd children: %d", odd);
    return 0;
}
