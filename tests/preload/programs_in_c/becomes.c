/* Writes files and closes them, and becomes another program: by the call that the second argument names. A call that fails before
 * leaves the process as it was. */
#include "say.h"

static char bytes[MIB];

int main(int count, char **arguments)
{
    (void)count;
    const char *by = arguments[2];
    char *words[] = { "echo", "another", NULL };
    char *none[] = { NULL };
    say("by %s", by);
    for (int round = 0; round < 2; round++)
        for (int file = 0; file < 12; file++) {
            char name[200];
            snprintf(name, sizeof name, "%s-%d-%d", arguments[1], round, file);
            int fd = MUST(open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644));
            MUST(write(fd, bytes, sizeof bytes));
            MUST(close(fd));
            if (round == 0 && file == 5) {
                TRY(execve("/does/not/exist", words, none));
                TRY(execv("/does/not/exist", words));
                TRY(execvp("does-not-exist-either", words));
                TRY(execvpe("does-not-exist-either", words, none));
                TRY(fexecve(-1, words, none));
            }
        }
    if (!strcmp(by, "execve"))
        execve("/bin/echo", words, none);
    else if (!strcmp(by, "execv"))
        execv("/bin/echo", words);
    else if (!strcmp(by, "execvp"))
        execvp("echo", words);
    else if (!strcmp(by, "execvpe"))
        execvpe("echo", words, none);
    else if (!strcmp(by, "fexecve"))
        fexecve(MUST(open("/bin/echo", O_RDONLY | O_CLOEXEC)), words, none);
    return 97;
}
