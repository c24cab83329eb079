#include "launcher/util/read_file_os.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

static int open_for_reading(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

bool read_file_text(const char *path, char *out, size_t out_size)
{
    _cleanup_close_ int fd = open_for_reading(path);
    ssize_t n = fd < 0 ? -1 : read(fd, out, out_size - 1);

    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

static char *read_file_part(const char *path, size_t n_max, bool from_end, size_t *ret_n_bytes)
{
    _cleanup_close_ int fd = open_for_reading(path);
    struct stat info;
    size_t n_bytes = 0;

    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return NULL;
    size_t size = (size_t)info.st_size < n_max ? (size_t)info.st_size : n_max;
    off_t offset = from_end ? info.st_size - (off_t)size : 0;
    char *bytes = malloc(size + 1);
    while (bytes && n_bytes < size) {
        ssize_t n = pread(fd, bytes + n_bytes, size - n_bytes, offset + (off_t)n_bytes);
        if (n <= 0)
            break;
        n_bytes += (size_t)n;
    }
    *ret_n_bytes = n_bytes;
    return bytes;
}

char *read_file_start(const char *path, size_t n_max, size_t *ret_n_bytes)
{
    return read_file_part(path, n_max, false, ret_n_bytes);
}

char *read_file_end(const char *path, size_t n_max, size_t *ret_n_bytes)
{
    return read_file_part(path, n_max, true, ret_n_bytes);
}
