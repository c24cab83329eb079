#include "launcher/supervise/close_descriptors_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The record of getdents64(2); glibc's readdir() would allocate. */
struct directory_record {
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
};

/* One pass over an open /proc/self/fd. Closing changes the list that is read, so the caller repeats until a pass
 * closes nothing. Returns how many descriptors it closed, or -errno. */
static int close_listed(int dir, int first, int last)
{
    _Alignas(struct directory_record) char block[2048];
    int n_closed = 0;

    if (lseek(dir, 0, SEEK_SET) < 0)
        return -errno;
    for (;;) {
        long n = syscall(SYS_getdents64, dir, block, sizeof(block));
        if (n <= 0)
            return n < 0 ? -errno : n_closed;
        const struct directory_record *record;
        for (long at = 0; at < n; at += record->size) {
            record = (const void *)(block + at);
            if (record->name[0] < '0' || record->name[0] > '9')
                continue;
            int fd = atoi(record->name);
            if (fd == dir || fd < first || fd > last)
                continue;
            (void)close(fd); /* an error of close() leaves it closed */
            n_closed++;
        }
    }
}

static int close_by_list(int first, int last)
{
    int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int n;

    if (dir < 0)
        return -errno;
    do
        n = close_listed(dir, first, last);
    while (n > 0);
    (void)close(dir);
    return n;
}

static int close_one_by_one(int first, int last)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    if (limit.rlim_max <= (rlim_t)last) /* nothing above the hard limit is open */
        last = (int)limit.rlim_max - 1;
    for (int fd = first; fd <= last; fd++)
        (void)close(fd); /* most are not open */
    return 0;
}

int close_descriptors(int first, int last)
{
    if (first > last)
        return 0;
    if (syscall(SYS_close_range, (unsigned)first, last == INT_MAX ? ~0u : (unsigned)last, 0u) == 0)
        return 0;
    int r = close_by_list(first, last);
    return r == -ENOENT ? close_one_by_one(first, last) : r;
}
