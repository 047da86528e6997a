/* A library below another that is under test: complains of a copy to something else than a file that comes in parts. */
#include "say.h"
#include <dlfcn.h>

ssize_t sendfile(int to, int from, off_t *at, size_t count)
{
    static int calls;
    struct stat status;
    if (fstat(to, &status) == 0 && !S_ISREG(status.st_mode) && ++calls > 1)
        fprintf(stderr, "parted\n");
    return ((ssize_t(*)(int, int, off_t *, size_t))dlsym(RTLD_NEXT, "sendfile"))(to, from, at, count);
}
