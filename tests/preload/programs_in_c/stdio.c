/* Streams of the C library: their own calls go past the library's hooks, so what is done with their descriptors must be
 * noticed elsewhere. */
#include "say.h"
#include <stdio_ext.h>

static char buffer[MIB];

static void written_and_read(const char *name, const char *mode, size_t piece)
{
    FILE *file = fopen(name, mode);
    say("%s: descriptor %d", mode, file ? fileno(file) : -1);
    if (!file)
        return;
    fill(buffer, sizeof buffer, 0, 3);
    size_t written = 0;
    for (int i = 0; i < (int)(6 * MIB / piece); i++)
        written += fwrite(buffer, 1, piece, file);
    say("written %zu, at %ld, error %d", written, ftell(file), ferror(file) != 0);
    TRY(fflush(file));
    TRY(fsync(fileno(file)));
    where(fileno(file));
    TRY(fseek(file, 100, SEEK_SET));
    unsigned sum = 2166136261u;
    size_t read = 0;
    for (size_t got; (got = fread(buffer, 1, piece, file)) > 0; read += got)
        sum = checksum_on(sum, buffer, got);
    say("read %zu, sum %08x, end %d, error %d", read, sum, feof(file) != 0, ferror(file) != 0);
    TRY(fclose(file));
    show(name);
}

static void made_of_descriptors(const char *name)
{
    int fd = MUST(open(name, O_RDWR));
    lseek(fd, MIB, SEEK_SET);
    FILE *file = fdopen(fd, "r+");
    say("read: %zu", fread(buffer, 1, 300000, file));
    where(fd);
    say("mixed: %zd", read(fd, buffer, 1000));
    TRY(fseeko(file, 0, SEEK_CUR));
    say("written: %zu", fwrite("text", 1, 4, file));
    TRY(fflush(file));
    TRY(fclose(file));
    TRY(close(fd));
    say("fdopen of nothing: %d %s", fdopen(-1, "r") != NULL, errno_text(errno));
    fd = MUST(open(name, O_RDONLY));
    errno = UNTOUCHED;
    say("fdopen to write: %d %s", fdopen(fd, "w") != NULL, errno_text(errno));
    TRY(close(fd));
    /* Closed behind its back, and the number used again. */
    file = fopen(name, "r");
    fread(buffer, 1, 5000, file);
    fd = fileno(file);
    TRY(close(fd));
    int again = MUST(open("second", O_RDWR | O_CREAT | O_TRUNC, 0600));
    say("the same number: %d", fd == again);
    MUST(write(again, "second", 6));
    TRY(fclose(file));
    TRY(close(again));
    show("second");
}

static void opened_again(const char *name)
{
    FILE *file = fopen(name, "r");
    say("read: %zu", fread(buffer, 1, sizeof buffer, file));
    file = freopen("third", "w+", file);
    say("again: descriptor %d", file ? fileno(file) : -1);
    for (int i = 0; i < 5; i++)
        say("written: %zu", fwrite(buffer, 1, sizeof buffer, file));
    file = freopen64(name, "r", file);
    say("again: descriptor %d", file ? fileno(file) : -1);
    say("read: %zu", fread(buffer, 1, 5000, file));
    errno = UNTOUCHED;
    file = freopen("nowhere/third", "w", file);
    say("again: %d %s", file != NULL, errno_text(errno));
    show("third");
    errno = UNTOUCHED;
    say("missing: %d %s", fopen("missing", "r") != NULL, errno_text(errno));
    errno = UNTOUCHED;
    say("no mode: %d %s", fopen(name, "z") != NULL, errno_text(errno));
    errno = UNTOUCHED;
    say("a directory: %d %s", fopen(".", "w") != NULL, errno_text(errno));
    file = fopen("third", "wxe");
    say("exclusive: %d", file != NULL);
    file = fopen("fourth", "wxe");
    where(fileno(file));
    TRY(fclose(file));
}

static void lines(const char *name)
{
    FILE *file = fopen64(name, "w");
    for (int i = 0; i < 200000; i++)
        fprintf(file, "line %d of a file\n", i);
    TRY(fclose(file));
    file = fopen(name, "r");
    setvbuf(file, NULL, _IOFBF, 1 << 17);
    char line[100];
    unsigned sum = 2166136261u;
    int count = 0;
    for (; fgets(line, sizeof line, file); count++)
        sum = checksum_on(sum, line, strlen(line));
    say("%d lines, sum %08x", count, sum);
    TRY(fclose(file));
    file = fopen(name, "a+");
    setvbuf(file, NULL, _IONBF, 0);
    TRY(fputs("appended", file) >= 0);
    where(fileno(file));
    TRY(fclose(file));
    show(name);
}

static void failing(void)
{
    FILE *file = fopen("/dev/full", "w");
    say("full: %zu", fwrite(buffer, 1, 100000, file));
    say("error %d", ferror(file) != 0);
    TRY(fflush(file));
    TRY(fclose(file));
    FILE *stream = popen("cat", "w");
    TRY(fputs("to a child\n", stream) >= 0);
    TRY(pclose(stream));
    char *text;
    size_t size;
    FILE *memory = open_memstream(&text, &size);
    TRY(fputs("in memory", memory) >= 0);
    TRY(fclose(memory));
    say("%s", text);
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "file";
    static const char *const modes[] = {"w", "w+", "r", "r+", "a", "a+", "wx", "re", "w+e", "rm"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        written_and_read(name, modes[i], i % 2 ? 1000 : 100000);
    made_of_descriptors(name);
    opened_again(name);
    lines(name);
    failing();
    fflush(stdout);
    return 0;
}
