// Formatted output to standard output by one function alone, whose arguments fill all registers and lie on the stack: `formatted
// FUNCTION LINES`.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int v(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int done = vprintf(format, list);
    va_end(list);
    return done;
}

static int vf(FILE *stream, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int done = vfprintf(stream, format, list);
    va_end(list);
    return done;
}

#define FORMAT "%d %s %.3f %ld %g %c %u %.1Lf %x %.2f %.3f %.4f %.5f %.6f %.7f %.8f %.9f %s|%%\n"
#define VALUES i, "text", i / 7.0, -7L * i, i * 1e9, 'a' + i % 26, 4000000000u, (long double)i / 3, i, i + 0.25, i + 0.125, i / 9.0, \
               i / 11.0, i / 13.0, i / 17.0, i / 19.0, i / 23.0, "end"

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    for (int i = 0, lines = atoi(words[2]); i < lines; i++) {
        int done = -1;
        if (!strcmp(words[1], "printf"))
            done = printf(FORMAT, VALUES);
        else if (!strcmp(words[1], "fprintf"))
            done = fprintf(stdout, FORMAT, VALUES);
        else if (!strcmp(words[1], "vprintf"))
            done = v(FORMAT, VALUES);
        else if (!strcmp(words[1], "vfprintf"))
            done = vf(stdout, FORMAT, VALUES);
        if (done < 0)
            return 1;
    }
    return 0;
}
