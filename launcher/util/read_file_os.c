#include "launcher/util/read_file_os.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/format.h"

bool read_file_text(char *out, size_t out_size, const char *path, ...)
{
    char whole[PATH_MAX];
    bool fits = format_arguments(whole, sizeof(whole), path) < (int)sizeof(whole);
    _cleanup_close_ int fd = fits ? open(whole, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
    ssize_t n = fd < 0 ? -1 : read(fd, out, out_size - 1);

    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}
