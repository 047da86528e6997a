/* Files that change their names, lose them, or get more, while they are open and being written and read. */
#include "say.h"
#include <dirent.h>

static char buffer[MIB];

static void put(int fd, int pieces, unsigned seed)
{
    for (int i = 0; i < pieces; i++) {
        fill(buffer, sizeof buffer, i * MIB, seed);
        MUST(write(fd, buffer, sizeof buffer));
    }
}

static void renamed_while_written(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    put(fd, 5, 1);
    TRY(rename(name, "other"));
    put(fd, 5, 2);
    int second = MUST(open(name, O_RDWR | O_CREAT | O_EXCL, 0600));
    put(second, 6, 3);
    TRY(fsync(fd));
    TRY(fsync(second));
    show(name);
    show("other");
    TRY(rename("other", name));
    put(second, 2, 4);
    put(fd, 1, 5);
    where(fd);
    where(second);
    struct stat status;
    MUST(fstat(second, &status));
    say("%d links", (int)status.st_nlink);
    TRY(close(second));
    TRY(close(fd));
    show(name);
}

static void unlinked_while_written(const char *name)
{
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    put(fd, 3, 1);
    TRY(unlink(name));
    TRY(unlink(name));
    put(fd, 6, 1);
    TRY(fdatasync(fd));
    int again = MUST(open(name, O_RDWR | O_CREAT | O_EXCL, 0644));
    put(again, 4, 9);
    MUST(lseek(fd, 0, SEEK_SET));
    unsigned sum = 2166136261u;
    for (ssize_t got; (got = MUST(read(fd, buffer, 100000))) > 0;)
        sum = checksum_on(sum, buffer, got);
    say("unlinked: sum %08x", sum);
    TRY(close(fd));
    TRY(close(again));
    show(name);
}

static void linked(const char *name)
{
    TRY(link(name, "link"));
    TRY(link(name, "link"));
    TRY(link("missing", "link2"));
    TRY(linkat(AT_FDCWD, name, AT_FDCWD, "link2", 0));
    TRY(linkat(-1, name, AT_FDCWD, "link3", 0));
    TRY(symlink(name, "soft"));
    TRY(linkat(AT_FDCWD, "soft", AT_FDCWD, "link4", AT_SYMLINK_FOLLOW));
    int fds[3] = {MUST(open("link", O_WRONLY | O_APPEND)), MUST(open("soft", O_RDONLY)), MUST(open("link2", O_RDWR))};
    put(fds[0], 3, 7);
    TRY(read(fds[1], buffer, 5000));
    TRY(ftruncate(fds[2], 5 * MIB));
    put(fds[0], 1, 8);
    for (int i = 0; i < 3; i++) {
        where(fds[i]);
        TRY(close(fds[i]));
    }
    TRY(unlink("link"));
    TRY(unlinkat(AT_FDCWD, "link2", 0));
    TRY(unlinkat(AT_FDCWD, "link4", AT_REMOVEDIR));
    show("soft");
    show("link4");
}

static void every_error(const char *name)
{
    MUST(mkdir("directory", 0755));
    TRY(rename("missing", "made"));
    TRY(rename(name, "nowhere/made"));
    TRY(rename(name, "directory"));
    TRY(rename("directory", name));
    TRY(rename(name, name));
    TRY(rename(bad_pointer(), name));
    TRY(renameat(AT_FDCWD, name, -1, "made"));
    TRY(renameat2(AT_FDCWD, name, AT_FDCWD, "soft", RENAME_NOREPLACE));
    TRY(renameat2(AT_FDCWD, name, AT_FDCWD, "directory", RENAME_EXCHANGE));
    TRY(renameat2(AT_FDCWD, name, AT_FDCWD, "directory", RENAME_EXCHANGE));
    TRY(renameat2(AT_FDCWD, name, AT_FDCWD, "directory", 1 << 20));
    TRY(unlink("directory"));
    TRY(unlink("missing"));
    TRY(unlink(bad_pointer()));
    TRY(unlinkat(AT_FDCWD, "directory", 0));
    TRY(unlinkat(AT_FDCWD, "directory", AT_REMOVEDIR));
    TRY(link(name, "nowhere/made"));
    TRY(link(bad_pointer(), name));
    TRY(remove("missing"));
}

/* As logs rotate, and as a database replaces a file by a new one. */
static void rotated(const char *name)
{
    char from[64], to[64];
    for (int round = 0; round < 8; round++) {
        int fd = MUST(open(name, O_WRONLY | O_CREAT | O_APPEND, 0644));
        for (int i = 0; i < 40; i++) {
            fill(buffer, 50000, i, round);
            MUST(write(fd, buffer, 50000));
            if (i % 4 == 0)
                MUST(fdatasync(fd));
        }
        MUST(close(fd));
        for (int i = 3; i > 0; i--) {
            snprintf(from, sizeof from, i > 1 ? "%s.%d" : "%s", name, i - 1);
            snprintf(to, sizeof to, "%s.%d", name, i);
            rename(from, to);
        }
        int directory = MUST(open(".", O_RDONLY | O_DIRECTORY));
        MUST(fsync(directory));
        MUST(close(directory));
    }
    for (int i = 1; i < 4; i++) {
        snprintf(to, sizeof to, "%s.%d", name, i);
        show(to);
    }
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    renamed_while_written(name);
    unlinked_while_written(name);
    linked(name);
    every_error(name);
    MUST(unlink(name));
    rotated(name);
    return 0;
}
