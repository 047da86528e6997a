/* Reads a file through the cache, then opens it for direct I/O. Reports how many of its pages are in the cache then. */
#include "say.h"

int main(int count, char **arguments)
{
    static char buffer[64 * KIB];
    static unsigned char pages[1024];
    const char *name = arguments[1];
    (void)count;
    make(name, sizeof pages * 4096, 1);
    int fd = MUST(open(name, O_RDWR));
    MUST(fsync(fd));
    while (MUST(read(fd, buffer, sizeof buffer)) > 0)
        ;
    MUST(close(fd));
    int direct = TRY(open(name, O_RDONLY | O_DIRECT));
    fd = MUST(open(name, O_RDONLY));
    void *mapped = mmap(NULL, sizeof pages * 4096, PROT_READ, MAP_SHARED, fd, 0);
    MUST(mincore(mapped, sizeof pages * 4096, pages));
    int resident = 0;
    for (size_t i = 0; i < sizeof pages; i++)
        resident += pages[i] & 1;
    fprintf(stderr, "%d\n", resident);
    MUST(close(fd));
    MUST(close(direct));
    return 0;
}
