/*
 * Linux before 5.14, for LD_PRELOAD: a cgroup has no file "cgroup.kill".
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>

/* With 64-bit offsets, as the programs are compiled, its name is openat64. */
int openat(int folder, const char *path, int flags, ...)
{
    int (*real)(int, const char *, int, ...) =
        (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat64");
    va_list more;

    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (strcmp(path, "cgroup.kill") != 0)
        return real(folder, path, flags, mode);
    errno = ENOENT;
    return -1;
}
