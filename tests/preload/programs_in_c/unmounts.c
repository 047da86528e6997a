/* A file system can be unmounted as soon as its files are closed. In a mount name space of its own. */
#include "say.h"
#include <sys/mount.h>

enum { ROUNDS = 10 };

int main(int count, char **arguments)
{
    static char bytes[MIB];
    const char *name = arguments[count > 1];
    int unmounted = 0;
    MUST(mkdir("place", 0755));
    for (int round = 0; round < ROUNDS; round++) {
        char path[4096];
        MUST(mount("none", "place", "tmpfs", 0, NULL));
        snprintf(path, sizeof path, "place/%s", name);
        int fd = MUST(open(path, O_WRONLY | O_CREAT, 0644));
        MUST(write(fd, bytes, sizeof bytes));
        MUST(close(fd));
        errno = UNTOUCHED;
        int done = round % 3 == 0   ? umount("place")
                   : round % 3 == 1 ? umount2("place", 0)
                                    : (int)syscall(SYS_umount2, "place", 0);
        unmounted += done == 0 && errno == UNTOUCHED;
        umount2("place", MNT_DETACH);
    }
    say("unmounted: %d of %d", unmounted, ROUNDS);
    return 0;
}
