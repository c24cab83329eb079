#include "launcher/crunctl/new_secret_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/random_os.h"

enum { SECRET_BYTES = 32 };

/* ~/.config and ~/.config/crun, where they are missing. Other folders have to be there. */
static void make_secret_folders(char path[CONTROL_PATH_SIZE])
{
    char *last = strrchr(path, '/');

    *last = '\0';
    char *before = strrchr(path, '/');
    *before = '\0';
    (void)mkdir(path, 0700); /* that it is there already, or cannot be, is found by open() */
    *before = '/';
    (void)mkdir(path, 0700);
    *last = '/';
}

/* Where to: the file that was named, or the one of the user, whose folders are made. */
static int choose_secret_path(char *const *environment, const char *file, char path[CONTROL_PATH_SIZE])
{
    int r = file ? 0 : control_secret_path(environment, path);

    if (file)
        (void)snprintf(path, CONTROL_PATH_SIZE, "%s", file); /* open() fails with a longer one */
    else if (r == -ENOENT)
        (void)snprintf(path, CONTROL_PATH_SIZE, "of this user (neither XDG_CONFIG_HOME nor HOME is set)");
    else if (!r)
        make_secret_folders(path);
    return r;
}

static int write_whole(int fd, const char *text, size_t n)
{
    ssize_t done = write(fd, text, n);

    if (done < 0 || fsync(fd) < 0)
        return -errno;
    return (size_t)done == n ? 0 : -ENOSPC;
}

int new_secret_write(char *const *environment, const char *file, char path[CONTROL_PATH_SIZE])
{
    char text[2 * SECRET_BYTES + 2];
    uint8_t bytes[SECRET_BYTES];

    int r = choose_secret_path(environment, file, path);
    if (!r)
        r = random_fill(bytes, sizeof(bytes));
    if (r)
        return r;
    for (size_t i = 0; i < SECRET_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    text[2 * SECRET_BYTES] = '\n';
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    r = fd < 0 ? -errno : write_whole(fd, text, sizeof(text) - 1);
    if (r && fd >= 0)
        (void)unlink(path); /* a part of it would be a secret that no other node has */
    explicit_bzero(bytes, sizeof(bytes));
    explicit_bzero(text, sizeof(text));
    return r;
}
