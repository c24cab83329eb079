#include "launcher/supervise/close_descriptors_os.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/util/folder_list_os.h"

/* One pass over an open /proc/self/fd. Closing changes the list that is read, so the caller repeats until a pass
 * closes nothing. Returns how many descriptors it closed, or -errno. */
static int close_listed(struct folder_list *list, int first, int last)
{
    const char *name;
    int n_closed = 0;

    int r = folder_list_rewind(list);
    while (!r && (name = folder_list_next(list))) {
        int fd = name[0] >= '0' && name[0] <= '9' ? atoi(name) : -1;
        if (fd == list->fd || fd < first || fd > last)
            continue;
        (void)close(fd); /* an error of close() leaves it closed */
        n_closed++;
    }
    r = r ? r : list->error;
    return r ? r : n_closed;
}

static int close_by_list(int first, int last)
{
    _cleanup_(folder_list_close) struct folder_list list;
    int n = folder_list_open(&list, "/proc/self/fd");

    if (n)
        return n;
    do
        n = close_listed(&list, first, last);
    while (n > 0);
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

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int close_descriptors_except(int first, int *keep, size_t n_keep)
{
    int r = 0;

    qsort(keep, n_keep, sizeof(*keep), compare_ints);
    for (size_t i = 0; !r && i < n_keep; i++) {
        r = close_descriptors(first, keep[i] - 1);
        first = keep[i] + 1;
    }
    return r ? r : close_descriptors(first, INT_MAX);
}
