#include "launcher/front/host_files_os.h"

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

#include "launcher/util/read_disk_os.h"

int host_file_read(void *data, const char *path, char **ret_text)
{
    size_t n;

    if (access(path, R_OK) < 0)
        return -errno;
    *ret_text = read_disk_start(path, HOST_FILE_MAX, &n);
    return *ret_text ? 0 : -EIO;
}
