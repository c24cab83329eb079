#include "launcher/util/read_file_os.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"

bool read_file_text(const char *path, char *out, size_t out_size)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, out, out_size - 1);

    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}
