/*
 * A hierarchy with a controller of memory, for LD_PRELOAD: memory.max of each cgroup is the file $FAKE_MEMORY_MAX.
 */

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* With 64-bit offsets, as the programs are compiled, its name is openat64. */
int openat(int folder, const char *path, int flags, ...)
{
    int (*real)(int, const char *, int, ...) =
        (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat64");
    const char *fake = getenv("FAKE_MEMORY_MAX");
    va_list more;

    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return real(folder, fake && strcmp(path, "memory.max") == 0 ? fake : path, flags, mode);
}
