/* One file, used at random in all ways, and what it should hold, in memory: every read is compared with that, and all of the file at the
 * end and after each time that it is opened again. The second argument is the seed, the third how many steps are made. What differs is
 * reported with the last steps; what a file system can't do is left out. */
#include "say.h"
#include <sys/sendfile.h>

enum { MAX = 6 * MIB, SHOWN = 24 };

static unsigned char model[MAX], buffer[MAX];
static size_t size;
static int fd = -1, other = -1;
static const char *name;
static char other_name[300];
static uint64_t state;
static char steps[SHOWN][160];
static unsigned step;

static uint64_t below(uint64_t bound)
{
    return bound ? chance(&state) % bound : 0;
}

/* Mostly small, sometimes whole pages, seldom large. */
static size_t length_below(size_t bound)
{
    static const size_t most[] = { 100, 5000, 70 * KIB, 300 * KIB, 3 * MIB };
    size_t length = below(most[below(5)]);
    if (below(3) == 0)
        length &= ~(size_t)4095;
    return length < bound ? length : bound;
}

static size_t place_below(size_t bound)
{
    size_t place = below(bound);
    return below(3) ? place : place & ~(size_t)4095;
}

/* Takes down what is done now. */
#define STEP(...) snprintf(steps[step % SHOWN], sizeof steps[0], __VA_ARGS__)

__attribute__((noreturn)) static void fail(const char *what, size_t at)
{
    say("step %u: %s at %zu of %zu, errno %s; the last steps:", step, what, at, size, errno_text(errno));
    for (unsigned nth = step < SHOWN ? 0 : step - SHOWN + 1; nth <= step; nth++)
        say("  %u %s", nth, steps[nth % SHOWN]);
    _exit(1);
}

static void compare(const void *bytes, size_t at, size_t length)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < length; i++)
        if (byte[i] != model[at + i])
            fail("another byte", at + i);
}

/* A call that must work came to this. */
static size_t fine(long long done, const char *what)
{
    if (done < 0)
        fail(what, 0);
    return done;
}
#define FINE(call) fine((long long)(call), #call)

/* The model's bytes of a range are these now; the file ends behind them at least. */
static void becomes(const void *bytes, size_t at, size_t length)
{
    memcpy(model + at, bytes, length);
    if (length && at + length > size)
        size = at + length;
}

/* What lies behind the end is zero once the file is longer. */
static void cut(size_t length)
{
    if (length < size)
        memset(model + length, 0, size - length);
    size = length;
}

static void fresh(size_t length)
{
    unsigned seed = chance(&state);
    fill(buffer, length, below(1 << 30), seed);
}

static void whole(void)
{
    struct stat status;
    FINE(fstat(fd, &status));
    if ((size_t)status.st_size != size)
        fail("another size", status.st_size);
    size_t at = 0;
    FINE(lseek(fd, 0, SEEK_SET));
    for (ssize_t got; (got = FINE(read(fd, buffer, 1 + length_below(MAX - 1)))) > 0; at += got)
        compare(buffer, at, got);
    if (at != size)
        fail("another end", at);
}

static void reads(void)
{
    size_t at = place_below(size + 1), length = length_below(MAX), got;
    size_t there = size - at < length ? size - at : length;
    switch (below(4)) {
    case 0:
        STEP("read %zu at %zu", length, at);
        FINE(lseek(fd, at, SEEK_SET));
        got = FINE(read(fd, buffer, length));
        break;
    case 1:
        STEP("pread %zu at %zu", length, at);
        got = FINE(pread(fd, buffer, length, at));
        break;
    case 2: {
        STEP("preadv %zu at %zu", length, at);
        size_t first = below(length + 1);
        struct iovec parts[] = { { buffer, first }, { buffer + first, length - first } };
        got = FINE(preadv(fd, parts, 2, at));
        break;
    }
    default: {
        STEP("sendfile %zu at %zu", length, at);
        off_t from = at;
        FINE(ftruncate(other, 0));
        FINE(lseek(other, 0, SEEK_SET));
        for (got = 0; got < there;) {
            size_t more = FINE(sendfile(other, fd, &from, there - got));
            if (!more)
                fail("a short sendfile", at + got);
            got += more;
        }
        FINE(pread(other, buffer, got, 0));
    }
    }
    if (got != there)
        fail("a short read", at + got);
    compare(buffer, at, got);
}

static void writes(void)
{
    size_t at = place_below(size + 1 < MAX ? size + 1 + below(64 * KIB) : MAX);
    at = at < MAX ? at : MAX - 1;
    size_t length = length_below(MAX - at), done;
    fresh(length);
    switch (below(4)) {
    case 0:
        STEP("write %zu at %zu", length, at);
        FINE(lseek(fd, at, SEEK_SET));
        done = FINE(write(fd, buffer, length));
        break;
    case 1:
        STEP("pwrite %zu at %zu", length, at);
        done = FINE(pwrite(fd, buffer, length, at));
        break;
    case 2: {
        STEP("pwritev %zu at %zu", length, at);
        size_t first = below(length + 1);
        struct iovec parts[] = { { buffer, first }, { buffer + first, length - first } };
        done = FINE(pwritev(fd, parts, 2, at));
        break;
    }
    default: {
        at = size < MAX ? size : at;
        length = length < MAX - at ? length : MAX - at;
        STEP("append %zu at %zu", length, at);
        if (at != size)
            return;
        int end = FINE(open(name, O_WRONLY | O_APPEND));
        done = FINE(write(end, buffer, length));
        FINE(close(end));
    }
    }
    if (done != length)
        fail("a short write", at + done);
    becomes(buffer, at, done);
}

static void maps(void)
{
    size_t from = place_below(size) & ~(size_t)4095, length = length_below(size - from);
    if (!length)
        return;
    int written = below(2);
    STEP("map %zu at %zu, %s", length, from, written ? "written" : "read");
    unsigned char *there = mmap(NULL, length, PROT_READ | (written ? PROT_WRITE : 0), MAP_SHARED, fd, from);
    if (there == MAP_FAILED)
        fail("mmap", from);
    if (written) {
        fresh(length);
        memcpy(there, buffer, length);
        becomes(buffer, from, length);
        if (below(2))
            FINE(msync(there, length, below(2) ? MS_SYNC : MS_ASYNC));
    } else {
        compare(there, from, length);
    }
    FINE(munmap(there, length));
}

static void sizes(void)
{
    size_t length = below(3) ? place_below(size + 1) : place_below(MAX);
    STEP("truncate to %zu", length);
    if (below(2))
        FINE(ftruncate(fd, length));
    else
        FINE(truncate(name, length));
    cut(length);
}

static void allocates(void)
{
    static const int modes[] = { 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
                                 FALLOC_FL_KEEP_SIZE | FALLOC_FL_ZERO_RANGE };
    int mode = modes[below(4)];
    size_t at = place_below(MAX - 1), length = 1 + length_below(MAX - at - 1);
    STEP("fallocate %zu at %zu, mode %d", length, at, mode);
    if (fallocate(fd, mode, at, length)) {
        if (errno != EOPNOTSUPP)
            fail("fallocate", at);
        return;
    }
    if (!mode && at + length > size)
        size = at + length;
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) && at < size)
        memset(model + at, 0, at + length < size ? length : size - at);
}

static void copies(void)
{
    size_t from = place_below(size), to = place_below(MAX - 1);
    size_t length = length_below(size - from);
    length = length < MAX - to ? length : MAX - to;
    if (!length || (from < to + length && to < from + length))
        return;
    STEP("copy_file_range %zu from %zu to %zu", length, from, to);
    memcpy(buffer, model + from, length);
    for (size_t done = 0; done < length;) {
        off_t in = from + done, out = to + done;
        ssize_t more = copy_file_range(fd, &in, fd, &out, length - done, 0);
        if (more < 0 && (errno == EOPNOTSUPP || errno == EXDEV))
            return;
        if (more <= 0)
            fail("copy_file_range", from + done);
        becomes(buffer + done, to + done, more);
        done += more;
    }
}

static void syncs(void)
{
    static const int advice[] = { POSIX_FADV_DONTNEED, POSIX_FADV_WILLNEED, POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM };
    switch (below(5)) {
    case 0:
        STEP("fsync");
        FINE(fsync(fd));
        break;
    case 1:
        STEP("fdatasync");
        FINE(fdatasync(fd));
        break;
    case 2: {
        size_t at = place_below(size + 1);
        STEP("advice at %zu", at);
        FINE(posix_fadvise(fd, at, length_below(MAX), advice[below(4)]));
        break;
    }
    case 3: {
        STEP("another descriptor");
        int copy = FINE(dup(fd));
        FINE(close(fd));
        fd = copy;
        break;
    }
    default:
        STEP("open again");
        FINE(close(fd));
        fd = FINE(open(name, O_RDWR));
        whole();
    }
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    name = arguments[1];
    state = strtoull(arguments[2], NULL, 10);
    unsigned last = atoi(arguments[3]);
    say("seed %s, %u steps", arguments[2], last);
    snprintf(other_name, sizeof other_name, "%s-other", name);
    fd = FINE(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    other = FINE(open(other_name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    static void (*const ways[])(void) = { reads, reads, reads, writes, writes, writes, maps, sizes, allocates, copies, syncs };
    for (step = 0; step < last; step++) {
        steps[step % SHOWN][0] = 0;
        ways[below(sizeof ways / sizeof *ways)]();
    }
    step--;
    whole();
    say("fine: %zu bytes, checksum %08x", size, checksum(model, size));
    return 0;
}
