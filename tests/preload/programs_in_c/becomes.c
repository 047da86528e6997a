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
                TRY(execl("/does/not/exist", "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL));
                TRY(execlp("does-not-exist-either", "1", NULL));
                TRY(execle("/does/not/exist", "1", "2", "3", "4", "5", NULL, none));
                TRY(execveat(-1, "does-not-exist", words, none, 0));
                TRY(syscall(SYS_execve, "/does/not/exist", words, none));
                TRY(syscall(SYS_execveat, -1, "", words, none, AT_EMPTY_PATH));
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
    else if (!strcmp(by, "execl"))
        execl("/bin/echo", "echo", "another", NULL);
    else if (!strcmp(by, "execlp"))
        execlp("echo", "echo", "1", "2", "3", "4", "5", "6", "7", "8", "9", "another", NULL);
    else if (!strcmp(by, "execle"))
        execle("/usr/bin/env", "env", "echo", "1", "2", "3", "4", "5", "another", NULL, environ);
    else if (!strcmp(by, "execveat"))
        execveat(MUST(open("/bin", O_PATH | O_DIRECTORY)), "echo", words, none, 0);
    else if (!strcmp(by, "SYS_execve"))
        syscall(SYS_execve, "/bin/echo", words, none);
    else if (!strcmp(by, "SYS_execveat"))
        syscall(SYS_execveat, MUST(open("/bin/echo", O_RDONLY | O_CLOEXEC)), "", words, none, AT_EMPTY_PATH);
    return 97;
}
