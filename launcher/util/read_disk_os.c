#include "launcher/util/read_disk_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/bounded_os.h"
#include "base/cleanup.h"

enum { DISK_LIMIT_MS = 250 }; /* of an event loop that has to answer other nodes within their node timeout */

/* A part of a file that is read in a thread. */
struct file_part {
    char *path;
    size_t n_max;
    bool from_end;
    char *bytes; /* the result, or NULL */
    size_t n_bytes;
};

static void read_part(void *data)
{
    struct file_part *part = data;
    _cleanup_close_ int fd = open(part->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat info;

    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return;
    size_t size = (size_t)info.st_size < part->n_max ? (size_t)info.st_size : part->n_max;
    off_t offset = part->from_end ? info.st_size - (off_t)size : 0;
    part->bytes = malloc(size + 1);
    while (part->bytes && part->n_bytes < size) {
        ssize_t n =
            pread(fd, part->bytes + part->n_bytes, size - part->n_bytes, offset + (off_t)part->n_bytes);
        if (n <= 0)
            break;
        part->n_bytes += (size_t)n;
    }
}

static void drop_part(void *data)
{
    struct file_part *part = data;

    free(part->bytes);
    free(part->path);
    free(part);
}

static char *read_disk_part(const char *path, size_t n_max, bool from_end, size_t *ret_n_bytes)
{
    struct file_part *part = calloc(1, sizeof(*part));
    char *bytes = NULL;

    if (!part)
        return NULL;
    *part = (struct file_part){.path = strdup(path), .n_max = n_max, .from_end = from_end};
    int r = part->path ? bounded_call(read_part, drop_part, part, DISK_LIMIT_MS) : -ENOMEM;
    if (r == -ETIMEDOUT)
        return NULL; /* the thread has it */
    if (!r) {
        bytes = steal_ptr(part->bytes);
        *ret_n_bytes = part->n_bytes;
    }
    drop_part(part);
    return bytes;
}

char *read_disk_start(const char *path, size_t n_max, size_t *ret_n_bytes)
{
    return read_disk_part(path, n_max, false, ret_n_bytes);
}

char *read_disk_end(const char *path, size_t n_max, size_t *ret_n_bytes)
{
    return read_disk_part(path, n_max, true, ret_n_bytes);
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
    int r = file->path && file->text ? bounded_call(write_text, drop_text, file, limit_ms) : -ENOMEM;
    if (r == -ETIMEDOUT)
        return r; /* the thread has it */
    if (!r)
        r = -file->error;
    drop_text(file);
    return r;
}
