/* Every way to open a file, and every way that it can fail. */
#include "say.h"

extern int __open_2(const char *, int);
extern int __open64_2(const char *, int);
extern int __openat_2(int, const char *, int);
extern int __openat64_2(int, const char *, int);

static int by_open(const char *path, int flags, mode_t mode) { return open(path, flags, mode); }
static int by_open64(const char *path, int flags, mode_t mode) { return open64(path, flags, mode); }
static int by_openat(const char *path, int flags, mode_t mode) { return openat(AT_FDCWD, path, flags, mode); }
static int by_openat64(const char *path, int flags, mode_t mode) { return openat64(AT_FDCWD, path, flags, mode); }
static int by_syscall(const char *path, int flags, mode_t mode) { return syscall(SYS_openat, AT_FDCWD, path, flags, mode); }
static int by_open_2(const char *path, int flags, mode_t mode) { (void)mode; return __open_2(path, flags); }
static int by_open64_2(const char *path, int flags, mode_t mode) { (void)mode; return __open64_2(path, flags); }
static int by_openat_2(const char *path, int flags, mode_t mode) { (void)mode; return __openat_2(AT_FDCWD, path, flags); }
static int by_openat64_2(const char *path, int flags, mode_t mode) { (void)mode; return __openat64_2(AT_FDCWD, path, flags); }
/* The fortified header picks the checked form where the compiler doesn't know the flags. */
static int by_unknown(const char *path, int flags, mode_t mode) { (void)mode; return open(path, flags, 0); }

static const struct form {
    const char *name;
    int (*open)(const char *, int, mode_t);
    int creates;
} FORMS[] = {
    {"open", by_open, 1},       {"open64", by_open64, 1},         {"openat", by_openat, 1},
    {"openat64", by_openat64, 1}, {"syscall", by_syscall, 1},     {"__open_2", by_open_2, 0},
    {"__open64_2", by_open64_2, 0}, {"__openat_2", by_openat_2, 0}, {"__openat64_2", by_openat64_2, 0},
    {"unknown", by_unknown, 0},
};

static void attempt(const struct form *form, const char *what, const char *path, int flags, mode_t mode)
{
    if (!form->creates && (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE))
        return;
    errno = UNTOUCHED;
    int fd = form->open(path, flags, mode);
    say("%s %s flags %o = %d %s", form->name, what, flags, fd, errno_text(errno));
    if (fd < 0)
        return;
    where(fd);
    struct stat status;
    MUST(fstat(fd, &status));
    say("mode %o size %lld", status.st_mode, S_ISREG(status.st_mode) ? (long long)status.st_size : -1);
    TRY(close(fd));
}

static void attempts(const struct form *form, const char *name)
{
    unlink("made");
    make(name, 10000, 1);
    char overlong[5000];
    memset(overlong, 'x', sizeof overlong - 1);
    overlong[sizeof overlong - 1] = 0;
    attempt(form, "missing", "missing", O_RDONLY, 0);
    attempt(form, "missing to write", "missing", O_RDWR, 0);
    attempt(form, "in a missing directory", "nowhere/made", O_WRONLY | O_CREAT, 0644);
    attempt(form, "new", "made", O_RDWR | O_CREAT | O_EXCL, 0640);
    attempt(form, "new again", "made", O_RDWR | O_CREAT | O_EXCL, 0640);
    attempt(form, "create what is there", "made", O_RDWR | O_CREAT, 0600);
    attempt(form, "to read", name, O_RDONLY, 0);
    attempt(form, "to write", name, O_WRONLY, 0);
    attempt(form, "to append", name, O_WRONLY | O_APPEND, 0);
    attempt(form, "close on exec", name, O_RDWR | O_CLOEXEC, 0);
    attempt(form, "direct", name, O_RDWR | O_DIRECT, 0);
    attempt(form, "synced", name, O_RDWR | O_SYNC, 0);
    attempt(form, "data synced", name, O_RDWR | O_DSYNC, 0);
    attempt(form, "without access times", name, O_RDONLY | O_NOATIME, 0);
    attempt(form, "non-blocking", name, O_RDONLY | O_NONBLOCK, 0);
    attempt(form, "path only", name, O_PATH, 0);
    attempt(form, "directory wanted", name, O_RDONLY | O_DIRECTORY, 0);
    attempt(form, "no access mode", name, O_ACCMODE, 0);
    attempt(form, "truncated", name, O_WRONLY | O_TRUNC, 0);
    attempt(form, "a directory", "directory", O_RDONLY, 0);
    attempt(form, "a directory as such", "directory", O_RDONLY | O_DIRECTORY, 0);
    attempt(form, "a directory to write", "directory", O_RDWR, 0);
    attempt(form, "a directory to create", "directory", O_WRONLY | O_CREAT, 0644);
    attempt(form, "below a file", "made/below", O_RDONLY, 0);
    attempt(form, "no name", "", O_RDONLY, 0);
    attempt(form, "no pointer", bad_pointer(), O_RDONLY, 0);
    attempt(form, "overlong", overlong, O_RDONLY, 0);
    attempt(form, "link", "link", O_RDONLY, 0);
    attempt(form, "link not followed", "link", O_RDONLY | O_NOFOLLOW, 0);
    attempt(form, "link that hangs", "hanging", O_RDONLY, 0);
    attempt(form, "links in a loop", "loop", O_RDONLY, 0);
    attempt(form, "pipe without a reader", "pipe", O_WRONLY | O_NONBLOCK, 0);
    attempt(form, "pipe to read", "pipe", O_RDONLY | O_NONBLOCK, 0);
    attempt(form, "device", "/dev/null", O_RDWR, 0);
    attempt(form, "zeros", "/dev/zero", O_RDONLY, 0);
    attempt(form, "of the kernel", "/proc/version", O_RDONLY, 0);
    attempt(form, "of the kernel, to write", "/proc/version", O_WRONLY, 0);
    attempt(form, "a running program", "/proc/self/exe", O_WRONLY, 0);
    attempt(form, "nameless", ".", O_TMPFILE | O_RDWR, 0600);
    attempt(form, "nameless to read", ".", O_TMPFILE | O_RDONLY, 0600);
    attempt(form, "new without rights", "no-rights", O_RDWR | O_CREAT, 0);
    unlink("no-rights");
    show(name);
}

static void in_directories(const char *name)
{
    int directory = MUST(open("directory", O_RDONLY | O_DIRECTORY));
    int file = MUST(open(name, O_RDONLY));
    int (*const forms[])(int, const char *, int, ...) = {openat, openat64};
    for (int i = 0; i < 2; i++) {
        int fd = TRY(forms[i](directory, "inside", O_CREAT | O_RDWR, 0600));
        where(fd);
        TRY(close(fd));
        TRY(forms[i](directory, "missing", O_RDONLY));
        TRY(forms[i](file, "inside", O_RDONLY));
        TRY(forms[i](-1, "inside", O_RDONLY));
        TRY(forms[i](999, "inside", O_RDONLY));
        fd = TRY(forms[i](-1, "/dev/null", O_RDONLY));
        TRY(close(fd));
    }
    int fd = TRY(__openat_2(directory, "inside", O_RDWR));
    TRY(close(fd));
    TRY(__openat_2(999, "inside", O_RDWR));
    fd = TRY(creat("made", 0612));
    where(fd);
    TRY(write(fd, "made", 4));
    TRY(close(fd));
    fd = TRY(creat64("made", 0666));
    where(fd);
    TRY(close(fd));
    TRY(creat("directory", 0666));
    TRY(creat("nowhere/made", 0666));
    TRY(creat(bad_pointer(), 0666));
    show("made");
    TRY(close(directory));
    TRY(close(file));
}

static void nameless(void)
{
    int fd = TRY(open(".", O_TMPFILE | O_RDWR, 0600));
    if (fd < 0)
        return;
    static char buffer[300 * KIB];
    fill(buffer, sizeof buffer, 0, 9);
    TRY(write(fd, buffer, sizeof buffer));
    TRY(fsync(fd));
    TRY(pread(fd, buffer, sizeof buffer, 0));
    say("holds: %d", holds(buffer, sizeof buffer, 0, 9));
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    TRY(linkat(AT_FDCWD, path, AT_FDCWD, "was-nameless", AT_SYMLINK_FOLLOW));
    int again = TRY(open(path, O_RDONLY));
    TRY(read(again, buffer, sizeof buffer));
    TRY(close(again));
    TRY(close(fd));
    show("was-nameless");
}

static void temporary(void)
{
    char name[4][32] = {"temporary-XXXXXX", "temporary-XXXXXX", "temporary-XXXXXX.end", "no-template"};
    int fds[4] = {mkstemp(name[0]), mkostemp(name[1], O_CLOEXEC | O_APPEND), mkstemps(name[2], 4), mkstemp64(name[3])};
    for (int i = 0; i < 4; i++) {
        say("temporary %d: %d", i, fds[i]);
        if (fds[i] < 0)
            continue;
        where(fds[i]);
        TRY(write(fds[i], "some", 4));
        TRY(fsync(fds[i]));
        TRY(close(fds[i]));
        TRY(unlink(name[i]));
    }
    FILE *file = tmpfile();
    say("tmpfile %d", file ? fileno(file) : -1);
    TRY(fputs("text", file) >= 0);
    TRY(fflush(file));
    TRY(fclose(file));
    file = tmpfile64();
    TRY(fclose(file));
}

static void with_few_descriptors(const char *name)
{
    struct rlimit few = {6, 6};
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    for (int i = 0; i < 4; i++)
        TRY(open(name, O_RDONLY));
    TRY(creat("made", 0600));
    FILE *file = fopen(name, "r");
    say("fopen: %d", file != NULL);
    char template[] = "temporary-XXXXXX";
    TRY(mkstemp(template));
    TRY(dup(1));
    TRY(close(5));
    TRY(open(name, O_RDONLY));
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    umask(022);
    MUST(mkdir("directory", 0755));
    MUST(symlink(name, "link"));
    MUST(symlink("nothing", "hanging"));
    MUST(symlink("loop", "loop"));
    MUST(mkfifo("pipe", 0600));
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        attempts(&FORMS[i], name);
    in_directories(name);
    nameless();
    temporary();
    /* glibc ends a program that asks a checked form to create. */
    IN_CHILD(__open_2("unchecked", O_CREAT | O_RDWR));
    IN_CHILD(__open64_2("unchecked", O_CREAT | O_RDWR));
    IN_CHILD(__openat_2(AT_FDCWD, "unchecked", O_CREAT | O_RDWR));
    IN_CHILD(__openat64_2(AT_FDCWD, ".", O_TMPFILE | O_RDWR));
    IN_CHILD(with_few_descriptors(name));
    show("unchecked");
    return 0;
}
