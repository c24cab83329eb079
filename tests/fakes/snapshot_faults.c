/*
 * Lets one system call on a folder of snapshots fail or hang, for LD_PRELOAD, in rank 0 alone.
 *
 *   SNAPSHOT_FAULTS=FOLDER        what has this in its path
 *   SNAPSHOT_FAULT="CALL N E [COUNT]"  the N-th CALL there (from 1), or COUNT of them: fails with the error E, or hangs
 *                                 for -E milliseconds and then does its work
 *   SNAPSHOT_FAULTS_LIST=FILE     a line "CALL N main|thread" for each call is appended to it; "fault" for the one that is due
 *
 * close() does its work and fails, as the kernel's does.
 */

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum call {
    OPEN,
    MKDIR,
    READ,
    WRITE,
    FSYNC,
    CLOSE,
    RENAME,
    UNLINK,
    FLOCK,
    FALLOCATE,
    FSTAT,
    READDIR,
    N_CALLS
};

static const char *const names[N_CALLS] = {"open",   "mkdir",  "read",  "write",     "fsync", "close",
                                           "rename", "unlink", "flock", "fallocate", "fstat", "readdir"};
static _Atomic int counts[N_CALLS];

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

static void list_call(enum call call, int n, bool is_due)
{
    const char *list = getenv("SNAPSHOT_FAULTS_LIST");
    bool is_main = syscall(SYS_gettid) == getpid();
    char line[64];
    int fd, length = snprintf(line, sizeof(line), "%s %d %s%s\n", names[call], n, is_main ? "main" : "thread",
                              is_due ? " fault" : "");

    if (!list)
        return;
    fd = (int)syscall(SYS_openat, AT_FDCWD, list, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    (void)syscall(SYS_write, fd, line, (size_t)length);
    (void)syscall(SYS_close, fd);
}

/* True: the call fails, errno is set. */
static bool fails(enum call call, const char *path)
{
    const char *folder = getenv("SNAPSHOT_FAULTS"), *fault = getenv("SNAPSHOT_FAULT"), *rank = getenv("RANK");
    char name[16] = "";
    int n, at = 0, error = 0, count = 1;
    bool is_due;

    if (!folder || !strstr(path, folder) || (rank && strcmp(rank, "0") != 0))
        return false;
    n = ++counts[call];
    (void)sscanf(fault ? fault : "", "%15s %d %d %d", name, &at, &error, &count);
    is_due = strcmp(name, names[call]) == 0 && n >= at && n < at + count;
    list_call(call, n, is_due);
    if (is_due && error < 0)
        for (int ms = -error; ms > 0; ms -= 10)
            (void)usleep(10000);
    errno = error;
    return is_due && error > 0;
}

static bool fd_fails(enum call call, int fd)
{
    char link[64], path[4096];
    int before = errno;
    ssize_t n;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    if (fails(call, path))
        return true;
    errno = before;
    return false;
}

static bool entry_fails(enum call call, int folder_fd, const char *name)
{
    char path[4200];

    if (folder_fd != AT_FDCWD && *name != '/')
        return fd_fails(call, folder_fd);
    (void)snprintf(path, sizeof(path), "%s", name);
    return fails(call, path);
}

/* The mode is there where O_CREAT is. */
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
    return entry_fails(OPEN, AT_FDCWD, path) ? -1 : REAL(open64)(path, flags, mode);
}

int openat(int folder_fd, const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return entry_fails(OPEN, folder_fd, path) ? -1 : REAL(openat64)(folder_fd, path, flags, mode);
}

int mkdir(const char *path, mode_t mode)
{
    return entry_fails(MKDIR, AT_FDCWD, path) ? -1 : REAL(mkdir)(path, mode);
}

ssize_t read(int fd, void *bytes, size_t n)
{
    return fd_fails(READ, fd) ? -1 : REAL(read)(fd, bytes, n);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t at)
{
    return fd_fails(READ, fd) ? -1 : REAL(pread64)(fd, bytes, n, at);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return fd_fails(WRITE, fd) ? -1 : REAL(write)(fd, bytes, n);
}

int fsync(int fd)
{
    return fd_fails(FSYNC, fd) ? -1 : REAL(fsync)(fd);
}

int close(int fd)
{
    bool failed = fd_fails(CLOSE, fd);
    int error = errno, r = REAL(close)(fd);

    errno = error;
    return failed ? -1 : r;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return entry_fails(RENAME, to_fd, to) ? -1 : REAL(renameat)(from_fd, from, to_fd, to);
}

int unlinkat(int folder_fd, const char *name, int flags)
{
    return entry_fails(UNLINK, folder_fd, name) ? -1 : REAL(unlinkat)(folder_fd, name, flags);
}

int flock(int fd, int operation)
{
    return fd_fails(FLOCK, fd) ? -1 : REAL(flock)(fd, operation);
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    return fd_fails(FALLOCATE, fd) ? -1 : REAL(fallocate64)(fd, mode, at, n);
}

int fstat(int fd, struct stat *info)
{
    return fd_fails(FSTAT, fd)
               ? -1
               : ((int (*)(int, struct stat *))(uintptr_t)dlsym(RTLD_NEXT, "fstat64"))(fd, info);
}

struct dirent *readdir(DIR *dir)
{
    if (fd_fails(READDIR, dirfd(dir)))
        return NULL;
    return ((struct dirent * (*)(DIR *))(uintptr_t)dlsym(RTLD_NEXT, "readdir64"))(dir);
}
