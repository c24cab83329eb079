#include "launcher/util/read_disk_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/side_thread_os.h"
#include "base/cleanup.h"

enum { DISK_LIMIT_MS = 250 }; /* of an event loop that has to answer other nodes within their node timeout */

void file_part_read(void *data)
{
    struct file_part *part = data;
    _cleanup_close_ int fd = open(part->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat info;

    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return;
    size_t size = (size_t)info.st_size < part->n_max ? (size_t)info.st_size : part->n_max;
    off_t offset = part->from_end ? info.st_size - (off_t)size : 0;
    part->is_executable = info.st_mode & 0111;
    part->bytes = calloc(1, size + 1);
    while (part->bytes && part->n_bytes < size) {
        ssize_t n =
            pread(fd, part->bytes + part->n_bytes, size - part->n_bytes, offset + (off_t)part->n_bytes);
        if (n <= 0)
            break;
        part->n_bytes += (size_t)n;
    }
}

void file_part_drop(void *data)
{
    struct file_part *part = data;

    if (!part)
        return;
    free(part->bytes);
    free(part->path);
    free(part);
}

struct file_part *file_part_create(char *path, size_t n_max, bool from_end)
{
    struct file_part *part = path ? calloc(1, sizeof(*part)) : NULL;

    if (part)
        *part = (struct file_part){.path = path, .n_max = n_max, .from_end = from_end};
    else
        free(path);
    return part;
}

char *read_disk_start(const char *path, size_t n_max, size_t *ret_n_bytes)
{
    struct file_part *part = file_part_create(strdup(path), n_max, false);
    const struct side_order order = {
        .kind = SIDE_OTHER, .run = file_part_read, .drop = file_part_drop, .data = part};
    char *bytes = NULL;

    int r = part ? side_work_call(&order, DISK_LIMIT_MS) : -ENOMEM;
    if (r == -ETIMEDOUT)
        return NULL; /* the thread has it */
    if (!r) {
        bytes = steal_ptr(part->bytes);
        *ret_n_bytes = part->n_bytes;
    }
    file_part_drop(part);
    return bytes;
}

/* ---- writing ---- */

struct file_text {
    char *path, *text;
    int error;
};

static void write_text(void *data)
{
    struct file_text *file = data;
    size_t n = strlen(file->text);
    _cleanup_close_ int fd = open(file->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
    ssize_t written = fd < 0 ? -1 : write(fd, file->text, n);

    file->error = written < 0 ? errno : (size_t)written < n ? ENOSPC : 0;
}

static void drop_text(void *data)
{
    struct file_text *file = data;

    free(file->path);
    free(file->text);
    free(file);
}

int write_disk_file(const char *path, const char *text, unsigned limit_ms)
{
    struct file_text *file = calloc(1, sizeof(*file));

    if (!file)
        return -ENOMEM;
    *file = (struct file_text){.path = strdup(path), .text = strdup(text)};
    const struct side_order order = {.kind = SIDE_OTHER, .run = write_text, .drop = drop_text, .data = file};
    int r = file->path && file->text ? side_work_call(&order, limit_ms) : -ENOMEM;
    if (r == -ETIMEDOUT)
        return r; /* the thread has it */
    if (!r)
        r = -file->error;
    drop_text(file);
    return r;
}
