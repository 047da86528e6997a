/* Bytes moved by the kernel from one descriptor to another. */
#include "say.h"
#include <sys/sendfile.h>

static char buffer[MIB];

static void drain(int fd, const char *what)
{
    unsigned sum = 2166136261u;
    long long bytes = 0;
    for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0; bytes += got)
        sum = checksum_on(sum, buffer, got);
    say("%s: %lld bytes, sum %08x", what, bytes, sum);
}

static void sent_to_file(const char *name, size_t step)
{
    int from = MUST(open(name, O_RDONLY));
    int to = MUST(open("copy", O_WRONLY | O_CREAT | O_TRUNC, 0600));
    int calls = 0;
    while (MUST(sendfile(to, from, NULL, step)) > 0)
        calls++;
    say("%d calls", calls);
    where(from);
    where(to);
    off_t at = 5000;
    TRY(sendfile(to, from, &at, 3 * MIB));
    say("at %lld", (long long)at);
    off64_t at64 = 1 << 20;
    TRY(sendfile64(to, from, &at64, 100));
    say("at %lld", (long long)at64);
    at = 100 * MIB;
    TRY(sendfile(to, from, &at, 10));
    at = -1;
    TRY(sendfile(to, from, &at, 10));
    TRY(sendfile(to, from, bad_pointer(), 10));
    TRY(sendfile(to, from, NULL, 0));
    TRY(sendfile(from, to, NULL, 10));
    TRY(sendfile(-1, from, NULL, 10));
    TRY(sendfile(to, -1, NULL, 10));
    TRY(sendfile(to, 1 << 20, NULL, 10));
    where(from);
    where(to);
    TRY(close(to));
    TRY(close(from));
    show("copy");
}

static void sent_to_socket(const char *name)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t child = MUST(fork());
    if (child == 0) {
        close(ends[1]);
        drain(ends[0], "socket");
        _exit(0);
    }
    MUST(close(ends[0]));
    int from = MUST(open(name, O_RDONLY));
    while (MUST(sendfile(ends[1], from, NULL, 300000)) > 0)
        ;
    where(from);
    TRY(close(from));
    /* Not reported: the child prints what it got as soon as this is done. */
    MUST(close(ends[1]));
    MUST(waitpid(child, NULL, 0));
}

static void copied(const char *name)
{
    int from = MUST(open(name, O_RDWR));
    int to = MUST(open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600));
    long long bytes = 0;
    for (ssize_t got; (got = MUST(copy_file_range(from, NULL, to, NULL, 3 * MIB + 1, 0))) > 0;)
        bytes += got;
    say("%lld copied", bytes);
    where(from);
    where(to);
    off64_t in = 100, out = 5 * MIB;
    TRY(copy_file_range(from, &in, to, &out, 4 * MIB, 0));
    say("at %lld, %lld", (long long)in, (long long)out);
    in = 1ll << 40;
    TRY(copy_file_range(from, &in, to, &out, 10, 0));
    in = 0, out = 10;
    TRY(copy_file_range(from, &in, from, &out, 100, 0));
    in = 0, out = 2 * MIB;
    TRY(copy_file_range(from, &in, from, &out, 100, 0));
    TRY(copy_file_range(from, &in, to, &out, 10, 7));
    TRY(copy_file_range(-1, &in, to, &out, 10, 0));
    TRY(copy_file_range(from, &in, 1 << 20, &out, 10, 0));
    TRY(copy_file_range(from, bad_pointer(), to, &out, 10, 0));
    in = -1;
    TRY(copy_file_range(from, &in, to, &out, 10, 0));
    int directory = MUST(open(".", O_RDONLY));
    TRY(copy_file_range(from, NULL, directory, NULL, 10, 0));
    TRY(copy_file_range(directory, NULL, to, NULL, 10, 0));
    TRY(close(directory));
    int append = MUST(open("copy", O_WRONLY | O_APPEND));
    TRY(copy_file_range(from, NULL, append, NULL, 10, 0));
    TRY(sendfile(append, from, NULL, 10));
    TRY(close(append));
    TRY(close(to));
    TRY(close(from));
    show("copy");
    show(name);
}

static void spliced(const char *name)
{
    int ends[2];
    MUST(pipe(ends));
    int from = MUST(open(name, O_RDONLY));
    int to = MUST(open("copy", O_WRONLY | O_CREAT | O_TRUNC, 0600));
    long long bytes = 0;
    for (ssize_t got; (got = MUST(splice(from, NULL, ends[1], NULL, 64 * KIB, SPLICE_F_MOVE))) > 0; bytes += got)
        for (ssize_t left = got; left > 0;)
            left -= MUST(splice(ends[0], NULL, to, NULL, left, SPLICE_F_MOVE | SPLICE_F_MORE));
    say("%lld spliced", bytes);
    where(from);
    where(to);
    off64_t in = 4 * MIB + 3, out = 1000;
    TRY(splice(from, &in, ends[1], NULL, 5000, 0));
    TRY(splice(ends[0], NULL, to, &out, 5000, 0));
    say("at %lld, %lld", (long long)in, (long long)out);
    TRY(splice(from, NULL, to, NULL, 10, 0));
    TRY(splice(-1, NULL, ends[1], NULL, 10, 0));
    TRY(splice(from, NULL, ends[1], NULL, 10, 1 << 20));
    TRY(splice(from, bad_pointer(), ends[1], NULL, 10, 0));
    TRY(splice(ends[0], &in, to, NULL, 10, 0));
    fill(buffer, 10000, 0, 1);
    TRY(vmsplice(ends[1], &(struct iovec){buffer, 10000}, 1, 0));
    TRY(splice(ends[0], NULL, to, NULL, 10000, SPLICE_F_NONBLOCK));
    TRY(splice(ends[0], NULL, to, NULL, 10000, SPLICE_F_NONBLOCK));
    MUST(write(ends[1], "tee", 3));
    int more[2];
    MUST(pipe(more));
    TRY(tee(ends[0], more[1], 10, 0));
    TRY(splice(more[0], NULL, to, NULL, 3, 0));
    TRY(close(more[0]));
    TRY(close(more[1]));
    TRY(close(ends[0]));
    TRY(close(ends[1]));
    TRY(close(from));
    TRY(close(to));
    show("copy");
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    make(name, 12 * MIB + 345, 3);
    sent_to_file(name, 100000);
    sent_to_file(name, 64 * MIB);
    sent_to_socket(name);
    copied(name);
    spliced(name);
    return 0;
}
