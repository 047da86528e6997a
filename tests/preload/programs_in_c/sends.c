/* Sends a file to a socket by one call. */
#include "say.h"
#include <sys/sendfile.h>

int main(int count, char **arguments)
{
    static char buffer[MIB];
    const char *name = arguments[1];
    (void)count;
    make(name, 20 * MIB, 1);
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(close(ends[1]));
        while (MUST(read(ends[0], buffer, sizeof buffer)) > 0)
            ;
        _exit(0);
    }
    MUST(close(ends[0]));
    int from = MUST(open(name, O_RDONLY));
    TRY(sendfile(ends[1], from, NULL, 30 * MIB));
    TRY(lseek(from, 0, SEEK_CUR));
    MUST(close(from));
    MUST(close(ends[1]));
    MUST(waitpid(child, NULL, 0));
    return 0;
}
