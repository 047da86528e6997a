/* Processes that are short of something: descriptors, memory, stack, rights, a root directory; and those that take stock. */
#include "say.h"
#include <dirent.h>
#include <grp.h>
#include <semaphore.h>

static char buffer[MIB];
static const char *name;

static void work(const char *which)
{
    int fd = MUST(open(which, O_RDWR | O_CREAT | O_TRUNC, 0644));
    for (int i = 0; i < 12; i++) {
        fill(buffer, sizeof buffer, i * MIB, 3);
        MUST(write(fd, buffer, sizeof buffer));
    }
    MUST(fdatasync(fd));
    MUST(lseek(fd, 0, SEEK_SET));
    int good = 0;
    for (int i = 0; i < 12; i++) {
        MUST(read(fd, buffer, sizeof buffer));
        good += holds(buffer, sizeof buffer, i * MIB, 3);
    }
    MUST(close(fd));
    say("descriptor %d, %d good", fd, good);
}

static void with_few_descriptors(void)
{
    struct rlimit few = {4, 4};
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    work(name);
    TRY(open(name, O_RDONLY));
    TRY(open(name, O_RDONLY));
    TRY(dup(0));
    TRY(close(3));
    few.rlim_cur = few.rlim_max = 0;
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    TRY(open(name, O_RDONLY));
    TRY(write(1, "", 0));
}

static void with_little_memory(void)
{
    struct rlimit none = {0, 0};
    MUST(setrlimit(RLIMIT_AS, &none));
    work(name);
    TRY(mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    work(name);
}

static void with_few_processes(void)
{
    struct rlimit none = {0, 0};
    MUST(setrlimit(RLIMIT_NPROC, &none));
    work(name);
}

static void with_everything_closed(int how)
{
    int fd = MUST(open(name, O_RDWR));
    for (int i = 0; i < 6; i++)
        MUST(read(fd, buffer, sizeof buffer));
    if (how == 0)
        for (int i = 3; i < 1024; i++)
            close(i);
    if (how == 1)
        TRY(close_range(3, ~0u, 0));
    if (how == 2)
        TRY(syscall(SYS_close_range, 3, ~0u, 0));
    if (how == 3)
        closefrom(3);
    work(name);
    /* A program that is sure of its numbers. */
    say("first free: %lld", MUST(open("/dev/null", O_RDONLY)));
}

static sem_t go, done;
static void *later(void *nothing)
{
    (void)nothing;
    sem_wait(&go);
    say("in a thread: %d %d", (int)geteuid(), (int)getegid());
    work("of-a-thread");
    sem_post(&done);
    return NULL;
}

/* As a server does that is started by root and gives that up when its threads run already. */
static void as_another_user(void)
{
    pthread_t thread;
    MUST(chmod(".", 0777));
    MUST(sem_init(&go, 0, 0));
    MUST(sem_init(&done, 0, 0));
    pthread_create(&thread, NULL, later, NULL);
    work(name);
    TRY(setgroups(0, NULL));
    TRY(setresgid(65534, 65534, 65534));
    TRY(setresuid(65534, 65534, 65534));
    sem_post(&go);
    sem_wait(&done);
    pthread_join(thread, NULL);
    TRY(unlink(name));
    work(name);
    TRY(seteuid(0));
}

static void in_another_root(void)
{
    MUST(mkdir("root", 0755));
    work(name);
    if (chroot("root") < 0) {
        say("chroot: %s", errno_text(errno));
        return;
    }
    MUST(chdir("/"));
    work("/inside");
    TRY(open("/proc/self/fd", O_RDONLY));
    work("/inside");
    pid_t child = MUST(fork());
    if (child == 0) {
        work("/inside");
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    say("child: %d", status);
}

static void *with_a_small_stack(void *nothing)
{
    (void)nothing;
    char byte;
    int fd = open(name, O_RDWR);
    for (int i = 0; i < 300; i++) {
        if (read(fd, buffer, 64 * KIB) < 0 || pwrite(fd, &byte, 1, 20 * MIB + i) != 1)
            return (void *)1;
        if (i % 64 == 0)
            fdatasync(fd);
    }
    close(fd);
    return NULL;
}

static volatile int handled;
static void on_a_small_stack(int signal)
{
    (void)signal;
    with_a_small_stack(NULL);
    handled++;
}

static void with_small_stacks(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    say("smallest: %d", pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
    for (int i = 0; i < 4; i++) {
        pthread_t thread;
        void *result = (void *)2;
        pthread_create(&thread, &attributes, with_a_small_stack, NULL);
        pthread_join(thread, &result);
        say("thread: %d", (int)(intptr_t)result);
    }
    /* What is left of 16 KiB when the kernel has put its frame there. */
    stack_t stack = {.ss_sp = malloc(16 * KIB), .ss_size = 16 * KIB};
    TRY(sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_handler = on_a_small_stack, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL));
    for (int i = 0; i < 4; i++)
        raise(SIGUSR1);
    say("handled: %d", handled);
    show(name);
}

static int entries(const char *directory, int from)
{
    DIR *open_directory = opendir(directory);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(open_directory));)
        count += entry->d_name[0] != '.' && atoi(entry->d_name) >= from;
    closedir(open_directory);
    return count;
}

/* Descriptors of low numbers are all the program's own. */
enum { HIGH = 200 };
static int own_descriptors(void) { return entries("/proc/self/fd", 0) - entries("/proc/self/fd", HIGH); }

static void take_stock(void)
{
    work(name);
    say("descriptors: %d", own_descriptors());
    fprintf(stderr, "%d thread, %d high descriptor\n", entries("/proc/self/task", 0), entries("/proc/self/fd", HIGH));
    IN_CHILD(work(name); say("descriptors: %d", own_descriptors()));
    int fd = MUST(open(name, O_RDONLY));
    while (MUST(read(fd, buffer, sizeof buffer)) > 0)
        ;
    say("descriptors: %d", own_descriptors());
    MUST(close(fd));
    say("a child to wait for: %d", (int)waitpid(-1, NULL, WNOHANG));
}

int main(int count, char **arguments)
{
    name = count > 1 ? arguments[1] : "file";
    if (count > 2 && strcmp(arguments[2], "stock") == 0) {
        take_stock();
        return 0;
    }
    work(name);
    IN_CHILD(with_few_descriptors());
    IN_CHILD(with_little_memory());
    IN_CHILD(with_few_processes());
    for (int how = 0; how < 4; how++)
        IN_CHILD(with_everything_closed(how));
    IN_CHILD(in_another_root());
    if (geteuid() == 0)
        IN_CHILD(as_another_user());
    with_small_stacks();
    work(name);
    return 0;
}
