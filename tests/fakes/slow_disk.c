/*
 * A disk that hangs, for LD_PRELOAD: open, mkdir, read, write, fsync and their like on files with $SLOW_DISK in their
 * path do not return while the file $SLOW_DISK_HANGS exists; with $SLOW_DISK_READS read and pread alone. A hung network
 * file system is like that, except that there SIGKILL ends the wait. With $SLOW_DISK_OPEN_MS each open takes so long.
 */

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void wait_while_hung(const char *path)
{
    const char *disk = getenv("SLOW_DISK"), *hangs = getenv("SLOW_DISK_HANGS");

    while (disk && hangs && strstr(path, disk) && access(hangs, F_OK) == 0)
        (void)usleep(10000);
}

static void wait_to_read(int fd)
{
    char link[64], path[4096];

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n < 0)
        return;
    path[n] = '\0';
    wait_while_hung(path);
}

static bool do_reads_alone_hang(void)
{
    return getenv("SLOW_DISK_READS");
}

static void wait_for_disk(int fd)
{
    if (!do_reads_alone_hang())
        wait_to_read(fd);
}

ssize_t read(int fd, void *buf, size_t n)
{
    static ssize_t (*real)(int, void *, size_t);

    if (!real)
        real = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    wait_to_read(fd);
    return real(fd, buf, n);
}

/* pread(), as programs with large files call it. */
ssize_t pread64(int fd, void *buf, size_t n, off64_t offset)
{
    static ssize_t (*real)(int, void *, size_t, off64_t);

    if (!real)
        real = (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    wait_to_read(fd);
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

/* ---- by path ---- */

static void wait_for_path(const char *path)
{
    if (!do_reads_alone_hang())
        wait_while_hung(path);
}

static void wait_to_open(const char *path)
{
    const char *disk = getenv("SLOW_DISK"), *ms = getenv("SLOW_DISK_OPEN_MS");

    if (disk && ms && strstr(path, disk))
        (void)usleep((useconds_t)atoi(ms) * 1000);
}

/* Programs with large files call it as open64(), and so is this one compiled. */
static int open_slowly(const char *path, int flags, mode_t mode)
{
    static int (*real)(const char *, int, ...);

    if (!real)
        real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    wait_for_path(path);
    wait_to_open(path);
    return real(path, flags, mode);
}

/* The mode is there where O_CREAT is; without it the argument is not used. */
static mode_t mode_of(int flags, va_list args)
{
    return flags & O_CREAT ? va_arg(args, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_slowly(path, flags, mode);
}

int mkdir(const char *path, mode_t mode)
{
    static int (*real)(const char *, mode_t);

    if (!real)
        real = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    wait_for_path(path);
    return real(path, mode);
}

int fdatasync(int fd)
{
    static int (*real)(int);

    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk(fd);
    return real(fd);
}

int fsync(int fd)
{
    static int (*real)(int);

    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk(fd);
    return real(fd);
}
