/* How much of its stack a signal handler uses that opens, writes, reads and syncs a file, at the first time, when what it calls is yet to be
   bound, and later: crash handlers do, on little. */
#include "say.h"

enum { STACK = 256 * KIB, CLASSIC = 8 * KIB };

static const char *name;
static unsigned char *stack;

static void act(int signal)
{
    static char bytes[MIB];
    (void)signal;
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    for (int i = 0; i < 3; i++)
        MUST(write(fd, bytes, sizeof bytes));
    MUST(lseek(fd, 0, SEEK_SET));
    MUST(read(fd, bytes, sizeof bytes));
    MUST(fdatasync(fd));
    MUST(close(fd));
}

/* So much is left of it. */
static void on_stack_of(size_t size)
{
    stack_t given = {.ss_sp = stack + STACK - size, .ss_size = size};
    MUST(sigaltstack(&given, NULL));
    MUST(raise(SIGUSR1));
}

static size_t used_of_stack(void)
{
    size_t left = 0;
    memset(stack, 0xa5, STACK);
    on_stack_of(STACK);
    while (left < STACK && stack[left] == 0xa5)
        left++;
    return STACK - left;
}

int main(int count, char **arguments)
{
    (void)count;
    name = arguments[1];
    /* What comes after its end is a fault. */
    stack = (unsigned char *)MUST(mmap(NULL, STACK + CLASSIC, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) + CLASSIC;
    struct sigaction action = {.sa_handler = act, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL));
    size_t used[2];
    for (int nth = 0; nth < 2; nth++)
        used[nth] = used_of_stack();
    fprintf(stderr, "%zu %zu\n", used[0], used[1]);
    if (used[0] <= CLASSIC) {
        MUST(mprotect(stack - CLASSIC, STACK, PROT_NONE));
        on_stack_of(CLASSIC);
        say("it has room in 8 KiB");
    }
    show(name);
    return 0;
}
