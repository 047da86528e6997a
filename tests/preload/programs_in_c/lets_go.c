/* What a process closes is closed, just after it opened its first file for writing as well. */
#include "say.h"
#include <spawn.h>
#include <sys/file.h>

enum { ROUNDS = 30 };

/* A lock goes with the file that it was taken by. */
static int locks(const char *name)
{
    int fd = MUST(open(name, O_WRONLY | O_CREAT, 0644));
    MUST(flock(fd, LOCK_EX));
    MUST(close(fd));
    fd = MUST(open(name, O_RDONLY));
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/* A pipe has an end once nobody can write to it. */
static int pipes(const char *name)
{
    int ends[2];
    char byte;
    MUST(pipe2(ends, O_NONBLOCK));
    MUST(open(name, O_WRONLY | O_CREAT, 0644));
    MUST(close(ends[1]));
    return read(ends[0], &byte, 1) == 0;
}

/* A program can be started once nobody can write to it. */
static int starts(const char *name)
{
    static char bytes[MIB];
    int fd = MUST(open("/bin/true", O_RDONLY));
    ssize_t length = MUST(read(fd, bytes, sizeof bytes));
    MUST(close(fd));
    fd = MUST(open(name, O_WRONLY | O_CREAT | O_TRUNC, 0755));
    MUST(write(fd, bytes, length));
    MUST(close(fd));
    char *words[] = {(char *)name, NULL}, *none[] = {NULL};
    pid_t child;
    char path[4096];
    snprintf(path, sizeof path, "./%s", name);
    if (posix_spawn(&child, path, NULL, NULL, words, none) != 0)
        return 0;
    MUST(waitpid(child, NULL, 0));
    return 1;
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        int (*works)(const char *);
        int open;
    } ways[] = {{"locks", locks, 0}, {"pipes", pipes, 0}, {"programs", starts, 2000}};
    const char *name = arguments[count > 1];
    /* Said at the end, so that nothing is open for writing before. */
    int worked[3] = {0};
    for (int way = 0; way < 3; way++)
        for (int round = 0; round < ROUNDS; round++) {
            pid_t child = MUST(fork());
            if (child == 0) {
                struct rlimit more = {4096, 4096};
                setrlimit(RLIMIT_NOFILE, &more);
                for (int i = 0; i < ways[way].open; i++)
                    MUST(open("/dev/null", O_RDONLY));
                _exit(ways[way].works(name));
            }
            int status;
            MUST(waitpid(child, &status, 0));
            worked[way] += WIFEXITED(status) && WEXITSTATUS(status);
            unlink(name);
        }
    for (int way = 0; way < 3; way++)
        say("%s: %d of %d", ways[way].name, worked[way], ROUNDS);
    return 0;
}
