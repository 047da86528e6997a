/* Becomes a program, by the call that the first argument names: its path or name is the second argument, and the rest, that with it,
 * are its words. */
#include "say.h"

int main(int count, char **arguments)
{
    const char *by = arguments[1], *path = arguments[2];
    char **words = arguments + 2;
    /* As many as there may be, and none behind the last. */
    char *w[12] = { NULL };
    for (int word = 0; word < 11 && word < count - 2; word++)
        w[word] = words[word];
#define WORDS w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], NULL
    if (!strcmp(by, "execl"))
        execl(path, WORDS);
    else if (!strcmp(by, "execlp"))
        execlp(path, WORDS);
    else if (!strcmp(by, "execle") && count == 7)
        execle(path, w[0], w[1], w[2], w[3], w[4], NULL, environ);
    else if (!strcmp(by, "execveat"))
        execveat(open("/bin", O_PATH | O_DIRECTORY), path, words, environ, 0);
    else if (!strcmp(by, "SYS_execve"))
        syscall(SYS_execve, path, words, environ);
    else if (!strcmp(by, "SYS_execveat"))
        syscall(SYS_execveat, open(path, O_RDONLY), "", words, environ, AT_EMPTY_PATH);
    return 97;
}
