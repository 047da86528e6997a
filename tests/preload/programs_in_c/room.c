/* What a deleted file took is free at once: files are written, closed, and lose their last name in each way. */
#include "say.h"
#include <sys/statvfs.h>

enum { ROUNDS = 6, SIZE = 24 * MIB };

static long long taken(void)
{
    struct statvfs disk;
    MUST(statvfs(".", &disk));
    return (long long)(disk.f_blocks - disk.f_bfree) * disk.f_frsize;
}

/* Whether less than half of a file's room is taken, at the latest after so many milliseconds. */
static int is_free(long long before, int milliseconds)
{
    while (taken() - before > SIZE / 2) {
        if (milliseconds-- <= 0)
            return 0;
        usleep(1000);
    }
    return 1;
}

static void writes(const char *name)
{
    static char bytes[MIB];
    int fd = MUST(open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    for (int i = 0; i < SIZE / MIB; i++)
        MUST(write(fd, bytes, sizeof bytes));
    MUST(close(fd));
}

static void is_replaced(const char *name)
{
    MUST(close(MUST(open("other", O_WRONLY | O_CREAT, 0644))));
    MUST(rename("other", name));
}

static void is_replaced_by_number(const char *name)
{
    MUST(close(MUST(open("other", O_WRONLY | O_CREAT, 0644))));
    MUST(syscall(SYS_renameat2, AT_FDCWD, "other", AT_FDCWD, name, 0));
}

static void is_unlinked(const char *name)
{
    MUST(unlink(name));
}

static void is_unlinked_at(const char *name)
{
    MUST(unlinkat(AT_FDCWD, name, 0));
}

static void is_unlinked_by_number(const char *name)
{
    MUST(syscall(SYS_unlinkat, AT_FDCWD, name, 0));
}

static void is_removed(const char *name)
{
    MUST(remove(name));
}

int main(int count, char **arguments)
{
    static void (*const ways[])(const char *) = {is_unlinked, is_unlinked_at, is_removed,
                                                 is_replaced, is_unlinked_by_number, is_replaced_by_number};
    const char *name = arguments[count > 1];
    int milliseconds = count > 2 ? atoi(arguments[2]) : 0;
    for (int way = 0; way < 6; way++) {
        int kept = 0;
        for (int round = 0; round < ROUNDS; round++) {
            long long before = taken();
            writes(name);
            errno = UNTOUCHED;
            ways[way](name);
            kept += errno != UNTOUCHED || !is_free(before, milliseconds);
            unlink(name);
        }
        say("way %d: %d of %d kept", way, kept, ROUNDS);
    }
    say("errors: %d %d", unlink("nobody") == -1 && errno == ENOENT, rename("nobody", name) == -1 && errno == ENOENT);
    say("bad address: %d", unlink((char *)8) == -1 && errno == EFAULT);
    return 0;
}
