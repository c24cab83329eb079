/*
 * A disk that hangs, for LD_PRELOAD: read, write, fstat and their like on files below $SLOW_DISK do not return while
 * the file $SLOW_DISK_HANGS exists. A hung network file system is like that, except that there SIGKILL ends the wait.
 */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void wait_for_disk(int fd)
{
    const char *disk = getenv("SLOW_DISK"), *hangs = getenv("SLOW_DISK_HANGS");
    char link[64], path[4096];

    if (!disk || !hangs)
        return;
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n < 0)
        return;
    path[n] = '\0';
    while (strncmp(path, disk, strlen(disk)) == 0 && access(hangs, F_OK) == 0)
        (void)usleep(10000);
}

ssize_t read(int fd, void *buf, size_t n)
{
    static ssize_t (*real)(int, void *, size_t);

    if (!real)
        real = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    wait_for_disk(fd);
    return real(fd, buf, n);
}

/* pread(), as programs with large files call it. */
ssize_t pread64(int fd, void *buf, size_t n, off64_t offset)
{
    static ssize_t (*real)(int, void *, size_t, off64_t);

    if (!real)
        real = (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    wait_for_disk(fd);
    return real(fd, buf, n, offset);
}

ssize_t write(int fd, const void *buf, size_t n)
{
    static ssize_t (*real)(int, const void *, size_t);

    if (!real)
        real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    wait_for_disk(fd);
    return real(fd, buf, n);
}

int fstat(int fd, struct stat *info)
{
    static int (*real)(int, struct stat *);

    if (!real)
        real = (int (*)(int, struct stat *))dlsym(RTLD_NEXT, "fstat");
    wait_for_disk(fd);
    return real(fd, info);
}
