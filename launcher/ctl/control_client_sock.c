#include "launcher/ctl/control_client_sock.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "launcher/util/control_path.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/time.h"

enum { REPLY_MAX = 64 << 20, PIECE = 64 << 10 };

static void list_folder(char *const *environment, struct strlist *ret)
{
    char folder[CONTROL_PATH_SIZE], pattern[CONTROL_PATH_SIZE + 16];
    glob_t found;

    if (!control_folder(environment, geteuid(), folder))
        return;
    (void)snprintf(pattern, sizeof(pattern), "%s/*.sock", folder); /* fits */
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            strlist_add_copy(ret, found.gl_pathv[i]);
    globfree(&found);
}

void control_client_list(char *const *environment, const char *named, struct strlist *ret)
{
    if (named)
        strlist_add_copy(ret, named);
    else
        list_folder(environment, ret);
}

int control_client_dial_address(const struct sockaddr *to, socklen_t size, int timeout_ms, int *ret)
{
    const struct timeval patience = {.tv_sec = timeout_ms / 1000};
    _cleanup_close_ int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0 || connect(fd, to, size) < 0)
        return -errno;
    *ret = steal_fd(&fd);
    return 0;
}

int control_client_dial(const char *path, int timeout_ms, int *ret)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(to.sun_path))
        return -ENAMETOOLONG;
    (void)strcpy(to.sun_path, path);
    return control_client_dial_address((const struct sockaddr *)&to, sizeof(to), timeout_ms, ret);
}

static int read_reply(int fd, int timeout_ms, struct buf *reply)
{
    uint64_t deadline_ns = now_ns() + (uint64_t)timeout_ms * 1000000u;
    char piece[PIECE];

    for (;;) {
        ssize_t n = recv(fd, piece, sizeof(piece), 0);
        if (n == 0)
            return 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        if (buf_size(reply) + (size_t)n > REPLY_MAX)
            return -EMSGSIZE;
        if (now_ns() > deadline_ns)
            return -ETIMEDOUT;
        if (buf_append(reply, piece, (size_t)n) != 0)
            return -ENOMEM;
    }
}

int control_client_ask(const char *path, const char *request, int timeout_ms, char **ret, size_t *ret_n)
{
    _cleanup_close_ int fd = -1;
    struct buf reply = {0};
    char line[64];

    int n = snprintf(line, sizeof(line), "%s\n", request);
    int r = control_client_dial(path, timeout_ms, &fd);
    if (!r && send(fd, line, (size_t)n, MSG_NOSIGNAL) != n)
        r = -EPIPE;
    if (!r)
        r = read_reply(fd, timeout_ms, &reply);
    *ret_n = buf_size(&reply);
    *ret = r ? NULL : malloc(*ret_n + 1);
    if (*ret && *ret_n > 0)
        memcpy(*ret, buf_bytes(&reply), *ret_n);
    buf_finish(&reply);
    return r ? r : *ret ? 0 : -ENOMEM;
}
