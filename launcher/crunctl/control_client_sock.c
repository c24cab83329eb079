/*
 * A folder below /tmp may be another user's, and so may a socket in the folder: crunctl could be made to show anything. So folder and
 * socket have to belong to the caller or to root before a connection, and afterwards the process behind the socket, as the
 * kernel names the owner.
 */

#include "launcher/crunctl/control_client_sock.h"

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "launcher/util/control_path.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/own_user_os.h"
#include "base/time.h"

enum { REPLY_MAX = 64 << 20, PIECE = 64 << 10, FRONTS_MAX = 1024 };

enum { LISTENS = 1 << 16 }; /* __SO_ACCEPTCON of the kernel */

/* ---- which sockets ---- */

static int is_socket_name(const struct dirent *entry)
{
    static const char end[] = ".sock";
    size_t n = strlen(entry->d_name);

    return n >= sizeof(end) && strcmp(entry->d_name + n - (sizeof(end) - 1), end) == 0;
}

static void add_names(const char *folder, struct strlist *ret)
{
    struct dirent **entries = NULL;
    char path[CONTROL_PATH_SIZE + sizeof(entries[0]->d_name) + 1];
    int n = scandir(folder, &entries, is_socket_name, alphasort);

    for (int i = 0; i < n; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name); /* fits */
        strlist_add_copy(ret, path);
        free(entries[i]);
    }
    free(entries);
}

static int list_folder(char *const *environment, struct strlist *ret)
{
    char folder[CONTROL_PATH_SIZE];
    struct stat info;

    control_folder(environment, geteuid(), folder);
    if (lstat(folder, &info) < 0)
        return 0; /* no crun of this user has made a socket */
    if (!S_ISDIR(info.st_mode) || !own_user_or_root(info.st_uid)) {
        (void)fprintf(stderr, "crunctl: %s: %s\n", folder, control_client_error(-EPERM));
        return -EPERM;
    }
    add_names(folder, ret);
    return 0;
}

int control_client_list(char *const *environment, const char *named, struct strlist *ret)
{
    int r = 0;

    if (named)
        strlist_add_copy(ret, named);
    else
        r = list_folder(environment, ret);
    return ret->failed ? -ENOMEM : r;
}

/* The line of a socket that listens under such a name, in /proc/net/unix. */
static void add_front(const char *line, const char *beginning, struct strlist *ret)
{
    char name[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
    unsigned flags;

    if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s @%108s", &flags, name) == 2 && flags == LISTENS &&
        strncmp(name, beginning, strlen(beginning)) == 0 && ret->n_items < FRONTS_MAX)
        strlist_add(ret, "@%s", name);
}

int control_client_fronts(char *const *environment, struct strlist *ret)
{
    char beginning[CONTROL_PATH_SIZE], line[512];
    FILE *sockets = fopen("/proc/net/unix", "re");

    control_front_name(environment, geteuid(), 0, beginning);
    while (sockets && fgets(line, sizeof(line), sockets))
        add_front(line, beginning, ret);
    if (sockets)
        (void)fclose(sockets);
    return ret->failed ? -ENOMEM : 0;
}

/* ---- owners ---- */

/* Root may name a socket of another user. Then all three owners are the same user, or root. */
static bool is_trusted(uid_t owner, const struct control_socket *s, uid_t *other)
{
    if (own_user_or_root(owner))
        return true;
    if (!s->is_named || geteuid() != 0 || (*other != 0 && *other != owner))
        return false;
    *other = owner;
    return true;
}

static int check_path(const struct control_socket *s, uid_t *other)
{
    char folder[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
    const char *slash = strrchr(s->path, '/');
    struct stat info;

    (void)snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - s->path) + 1 : 1,
                   slash ? s->path : "."); /* fits */
    if (stat(folder, &info) < 0)
        return -errno;
    if (!is_trusted(info.st_uid, s, other))
        return -EPERM;
    if (stat(s->path, &info) < 0)
        return -errno;
    return is_trusted(info.st_uid, s, other) ? 0 : -EPERM;
}

static int check_peer(int fd, const struct control_socket *s, uid_t *other)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return -errno;
    return is_trusted(peer.uid, s, other) ? 0 : -EPERM;
}

const char *control_client_error(int r)
{
    if (r == -EPERM)
        return "it belongs to another user, or is in a folder of another user, and is not asked";
    if (r == -EBADMSG)
        return "it is not answered as this crunctl expects; use that of the same release";
    return strerror(-r);
}

/* ---- one request ---- */

int control_client_dial_address(const struct sockaddr *to, socklen_t size, int timeout_ms, int *ret)
{
    const struct timeval patience = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    _cleanup_close_ int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0)
        return -errno;
    if (connect(fd, to, size) < 0) /* EAGAIN: a unix socket, whose process accepts none */
        return errno == EINPROGRESS || errno == EAGAIN ? -ETIMEDOUT : -errno;
    *ret = steal_fd(&fd);
    return 0;
}

int control_client_dial(struct control_socket *s, int timeout_ms, int *ret)
{
    const bool is_abstract = s->path[0] == '@';
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    socklen_t size = sizeof(to);
    _cleanup_close_ int fd = -1;
    uid_t other = 0;

    if (strlen(s->path) >= sizeof(to.sun_path))
        return -ENAMETOOLONG;
    (void)strcpy(to.sun_path, s->path);
    if (is_abstract) {
        to.sun_path[0] = '\0';
        size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(s->path));
    }
    int r = is_abstract ? 0 : check_path(s, &other);
    if (!r)
        r = control_client_dial_address((const struct sockaddr *)&to, size, timeout_ms, &fd);
    if (!r)
        r = check_peer(fd, s, &other);
    s->is_foreign = other != 0;
    if (!r)
        *ret = steal_fd(&fd);
    return r;
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

int control_client_ask(struct control_socket *s, const char *request, int timeout_ms, struct buf *reply)
{
    _cleanup_close_ int fd = -1;
    char line[64];
    int n = snprintf(line, sizeof(line), "%s\n", request); /* requests are short */

    TRY(control_client_dial(s, timeout_ms, &fd));
    if (send(fd, line, (size_t)n, MSG_NOSIGNAL) != n)
        return -EPIPE;
    TRY(read_reply(fd, timeout_ms, reply));
    return buf_reserve(reply, 1) ? 0 : -ENOMEM;
}
