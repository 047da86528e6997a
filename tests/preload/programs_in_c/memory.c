/* What a process has of memory, with how little it gets along. */
#include "say.h"
#include <linux/capability.h>

/* KiB of its own memory that it may write to. */
static long data(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    while (status && kib < 0 && fgets(line, sizeof line, status))
        sscanf(line, "VmData: %ld", &kib);
    if (status)
        fclose(status);
    return kib;
}

/* Memory beyond the limit is for those with a right. */
static void give_up_locking(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct rights[2];
    MUST(syscall(SYS_capget, &header, rights));
    for (int i = 0; i < 2; i++)
        rights[i].effective &= ~(i == CAP_IPC_LOCK / 32 ? 1u << CAP_IPC_LOCK % 32 : 0);
    MUST(syscall(SYS_capset, &header, rights));
}

int main(int count, char **arguments)
{
    (void)count;
    long first = data();
    make(arguments[1], 100, 1);
    int fd = MUST(open(arguments[1], O_RDONLY));
    char bytes[100];
    TRY(read(fd, bytes, sizeof bytes));
    fprintf(stderr, "%ld %ld\n", first, data());
    give_up_locking();
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit));
    if (limit.rlim_cur > 8 * MIB)
        limit.rlim_cur = 8 * MIB;
    MUST(setrlimit(RLIMIT_MEMLOCK, &limit));
    if (limit.rlim_cur == 8 * MIB)
        TRY(mlockall(MCL_CURRENT));
    TRY(close(fd));
    return 0;
}
