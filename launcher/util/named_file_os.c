#include "launcher/util/named_file_os.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int named_file_note(struct named_file *ret, const char *path)
{
    struct stat info;

    *ret = (struct named_file){0};
    if (strlen(path) >= sizeof(ret->path))
        return -ENAMETOOLONG;
    if (lstat(path, &info) < 0)
        return -errno;
    memcpy(ret->path, path, strlen(path) + 1);
    ret->device = info.st_dev;
    ret->inode = info.st_ino;
    return 0;
}

/* Between the two calls the name may become another file's: of a job that is started again under the same id in that microsecond, and
 * that crunctl does not find then. */
void named_file_remove(const struct named_file *f)
{
    struct stat info;

    if (f->path[0] && lstat(f->path, &info) == 0 && info.st_dev == f->device && info.st_ino == f->inode)
        (void)unlink(f->path);
}
