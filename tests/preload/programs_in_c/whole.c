/* Calls that are one thing to the kernel, and to whoever shares a file, a table of descriptors or a process with the caller. */
#include "say.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>

enum { BLOCK = 24 * MIB, TURNS = 3 };

static char block[BLOCK];

/* Two processes write to one open file, large blocks: none of them is within another. */
static void shared_writes(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    for (int child = 0; child < 2; child++)
        if (MUST(fork()) == 0) {
            memset(block, 'a' + child, sizeof block);
            for (int turn = 0; turn < TURNS; turn++)
                MUST(write(fd, block, sizeof block));
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    int mixed = 0, of_first = 0;
    for (int nth = 0; nth < 2 * TURNS; nth++) {
        MUST(pread(fd, block, sizeof block, (off_t)nth * BLOCK));
        mixed += memcmp(block, block + 1, sizeof block - 1) != 0;
        of_first += block[0] == 'a';
    }
    say("shared writes: %d of %d mixed, %d of the first", mixed, 2 * TURNS, of_first);
    MUST(ftruncate(fd, 0));
    MUST(close(fd));
}

/* ... and read from it: none reads what another did. */
static void shared_reads(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    for (int nth = 0; nth < 2 * TURNS; nth++) {
        memset(block, 'a' + nth, sizeof block);
        MUST(write(fd, block, sizeof block));
    }
    MUST(lseek(fd, 0, SEEK_SET));
    for (int child = 0; child < 2; child++)
        if (MUST(fork()) == 0) {
            int mixed = 0;
            for (int turn = 0; turn < TURNS; turn++) {
                MUST(read(fd, block, sizeof block));
                mixed += memcmp(block, block + 1, sizeof block - 1) != 0;
            }
            _exit(mixed);
        }
    int status, mixed = 0;
    while (wait(&status) > 0)
        mixed += WEXITSTATUS(status);
    say("shared reads: %d of %d mixed", mixed, 2 * TURNS);
    MUST(ftruncate(fd, 0));
    MUST(close(fd));
}

/* The number that a helper's socket has, in children that have a table of their own and know nothing of it. */
enum { HIGH = 1000 };

static char said[4][64];

static void replaced_and_closed(int nth)
{
    int null = open("/dev/null", O_RDONLY);
    int made = dup2(null, HIGH);
    int ended = close(HIGH);
    snprintf(said[nth], sizeof said[nth], "dup2 %d close %d open %d", made, ended, fcntl(HIGH, F_GETFD) >= 0);
    close(null);
}

static void high_numbers(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    for (int i = 0; i < 4; i++)
        MUST(write(fd, block, MIB));
    MUST(close(fd));
    /* A child of vfork shares the memory: it says what it saw in there. */
    pid_t child = vfork();
    if (child == 0) {
        replaced_and_closed(0);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    replaced_and_closed(1);
    /* Behind the back of all who look at dup2. */
    int null = MUST(open("/dev/null", O_RDONLY));
    MUST(syscall(SYS_dup3, null, HIGH, 0));
    int ended = close(HIGH);
    snprintf(said[2], sizeof said[2], "close %d open %d", ended, fcntl(HIGH, F_GETFD) >= 0);
    MUST(syscall(SYS_dup3, null, HIGH, 0));
    replaced_and_closed(3);
    close(null);
    for (int nth = 0; nth < 4; nth++)
        say("high numbers, %d: %s", nth, said[nth]);
}

/* Without room for another thread: before there was one, whose stack could be had again. */
static void no_room(const char *name)
{
    pid_t child = MUST(fork());
    if (child == 0) {
        unsigned long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        if (!file || fscanf(file, "%lu", &pages) != 1)
            _exit(97);
        fclose(file);
        struct rlimit room = {pages * 4096 + 65536, RLIM_INFINITY};
        MUST(setrlimit(RLIMIT_AS, &room));
        int fd = TRY(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
        for (int i = 0; i < 4; i++)
            TRY(write(fd, block, MIB));
        TRY(close(fd));
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
}

static void use(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    for (int i = 0; i < 4; i++)
        MUST(write(fd, block, MIB));
    MUST(close(fd));
}

static int threads(void)
{
    char line[128];
    int count = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "Threads: %d", &count);
    fclose(file);
    return count;
}

static long plain_filter(int by_number)
{
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    return by_number ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
                     : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Calls that fail beside another thread, or that hold for the one thread that makes them. */
static void alone(const char *name)
{
    for (int way = 0; way < 5; way++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            use(name);
            switch (way) {
            case 0: TRY(unshare(CLONE_NEWUSER)); break;
            case 1: TRY(syscall(SYS_unshare, CLONE_NEWUSER)); break;
            case 2: TRY(plain_filter(0)); break;
            case 3: TRY(plain_filter(1)); break;
            case 4: {
                int mine = MUST(open("/proc/self/ns/mnt", O_RDONLY));
                TRY(setns(mine, CLONE_NEWNS));
            }
            }
            say("way %d: %d threads", way, threads());
            use(name);
            _exit(0);
        }
        MUST(waitpid(child, NULL, 0));
    }
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    no_room(name);
    shared_writes(name);
    shared_reads(name);
    high_numbers(name);
    alone(name);
    return 0;
}
