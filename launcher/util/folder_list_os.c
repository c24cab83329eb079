#include "launcher/util/folder_list_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/format.h"

/* The record of getdents64(2). */
struct folder_record {
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
};

static int begin_list(struct folder_list *l, int fd)
{
    l->error = 0;
    l->n = l->at = 0;
    l->fd = fd;
    return fd < 0 ? -errno : 0;
}

int folder_list_open_at(struct folder_list *l, int folder, const char *path)
{
    return begin_list(l, openat(folder, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

int folder_list_open(struct folder_list *l, const char *path, ...)
{
    char whole[PATH_MAX];

    l->fd = -1;
    if (format_arguments(whole, sizeof(whole), path) >= (int)sizeof(whole))
        return -ENAMETOOLONG;
    return begin_list(l, open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

const char *folder_list_next(struct folder_list *l)
{
    if (l->at >= l->n) {
        l->n = syscall(SYS_getdents64, l->fd, l->block, sizeof(l->block));
        l->at = 0;
        l->error = l->n < 0 ? -errno : 0;
    }
    if (l->n <= 0)
        return NULL;
    const struct folder_record *record = (const void *)(l->block + l->at);
    l->at += record->size;
    return record->name;
}

int folder_list_rewind(struct folder_list *l)
{
    l->n = l->at = 0;
    return lseek(l->fd, 0, SEEK_SET) < 0 ? -errno : 0;
}

void folder_list_close(struct folder_list *l)
{
    close_fd(&l->fd);
}
