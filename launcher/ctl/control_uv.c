/*
 * Ways to fail: another crun has the name of the job (the process number is added), a killed crun has left the
 * socket (removed: nothing accepts there), the folder cannot be made (-errno), a client sends nothing or reads
 * nothing (at most CLIENTS_MAX are kept, further ones are closed at once; REQUEST_MS limits each).
 */

#include "launcher/ctl/control_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "launcher/util/control_path.h"
#include "launcher/util/named_file_os.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/list.h"
#include "base/own_user_os.h"
#include "base/time.h"
#include "base/unix_socket_os.h"

enum {
    CLIENTS_MAX = 8,
    REQUEST_SIZE = 64,
    REQUEST_MS = 5000,
    STACKS_MS = 15000,
    BACKLOG = 16,
    LOCK_TRIES = 20
};

struct control_client {
    struct control *control;
    uv_pipe_t pipe;
    uv_timer_t deadline;
    uv_write_t write;
    char request[REQUEST_SIZE];
    size_t n_request;
    struct buf reply;
    bool awaits_stacks;
    int n_handles;
    struct list link;
};

struct control {
    struct control_host host;
    uv_pipe_t listener;
    struct named_file file;
    struct list clients;
    int n_clients;
    bool is_closing;
};

/* ---- clients ---- */

static void on_client_handle_closed(uv_handle_t *handle)
{
    struct control_client *client = handle->data;

    if (--client->n_handles > 0)
        return;
    list_unlink(&client->link);
    client->control->n_clients--;
    buf_finish(&client->reply);
    free(client);
}

static void close_client(struct control_client *client)
{
    if (uv_is_closing((uv_handle_t *)&client->pipe))
        return;
    uv_close((uv_handle_t *)&client->pipe, on_client_handle_closed);
    uv_close((uv_handle_t *)&client->deadline, on_client_handle_closed);
}

static void on_client_deadline(uv_timer_t *timer)
{
    close_client(timer->data);
}

static void on_replied(uv_write_t *write, int status)
{
    (void)status; /* a client without a reader is closed as well */
    close_client(write->data);
}

/* Without memory the reply stays empty. */
static void compose_reply(struct control_client *client)
{
    const struct control_host *host = &client->control->host;
    bool is_status = strcmp(client->request, "status") == 0;
    _cleanup_free_ char *status = is_status ? host->status(host->data) : NULL;
    const char *unknown = "{\"version\":1,\"error\":\"crun does not know this request\"}";
    const char *text = is_status ? status : unknown;

    if (strcmp(client->request, "nodes") != 0)
        (void)buf_append(&client->reply, text, text ? strlen(text) : 0);
    else if (host->nodes(host->data, &client->reply) != 0)
        buf_reset(&client->reply);
}

static void send_reply(struct control_client *client)
{
    uv_buf_t bytes = uv_buf_init((char *)buf_bytes(&client->reply), (unsigned)buf_size(&client->reply));

    client->write.data = client;
    if (bytes.len == 0 || uv_write(&client->write, (uv_stream_t *)&client->pipe, &bytes, 1, on_replied) != 0)
        close_client(client);
}

static void reply_to_client(struct control_client *client)
{
    const struct control_host *host = &client->control->host;

    (void)uv_read_stop((uv_stream_t *)&client->pipe); /* always 0 */
    if (strcmp(client->request, "stacks") == 0 && host->take_stacks(host->data)) {
        client->awaits_stacks = true;
        (void)uv_timer_start(&client->deadline, on_client_deadline, STACKS_MS,
                             0); /* fails only without a callback */
        return;
    }
    compose_reply(client);
    send_reply(client);
}

void control_send_stacks(struct control *c, const char *json)
{
    list_for_each_entry(struct control_client, client, &c->clients,
                        link) if (client->awaits_stacks && !uv_is_closing((uv_handle_t *)&client->pipe))
    {
        client->awaits_stacks = false;
        (void)buf_append(&client->reply, json, json ? strlen(json) : 0);
        send_reply(client);
    }
}

static void on_client_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    struct control_client *client = handle->data;

    (void)suggested;
    *ret = uv_buf_init(client->request + client->n_request, (unsigned)(REQUEST_SIZE - client->n_request));
}

static void on_client_bytes(uv_stream_t *stream, ssize_t n, const uv_buf_t *bytes)
{
    struct control_client *client = stream->data;

    (void)bytes; /* the bytes are in client->request */
    if (n == 0)
        return;
    if (n > 0)
        client->n_request += (size_t)n;
    char *end = memchr(client->request, '\n', client->n_request);
    if (end) {
        *end = '\0';
        reply_to_client(client);
    } else if (n < 0 || client->n_request == REQUEST_SIZE) {
        close_client(client);
    }
}

static bool may_ask(const uv_pipe_t *pipe)
{
    uv_os_fd_t fd;

    return uv_fileno((const uv_handle_t *)pipe, &fd) == 0 && own_user_is_peer(fd);
}

static void on_control_connection(uv_stream_t *listener, int status)
{
    struct control *c = listener->data;
    struct control_client *client = status == 0 ? calloc(1, sizeof(*client)) : NULL;

    if (!client)
        return; /* accepted with the next client */
    client->control = c;
    list_append(&c->clients, &client->link);
    c->n_clients++;
    client->n_handles = 2;
    (void)uv_pipe_init(c->host.loop, &client->pipe, 0); /* neither can fail */
    (void)uv_timer_init(c->host.loop, &client->deadline);
    client->pipe.data = client->deadline.data = client;
    if (uv_accept(listener, (uv_stream_t *)&client->pipe) != 0 || c->n_clients > CLIENTS_MAX ||
        !may_ask(&client->pipe) ||
        uv_timer_start(&client->deadline, on_client_deadline, REQUEST_MS, 0) != 0 ||
        uv_read_start((uv_stream_t *)&client->pipe, on_client_alloc, on_client_bytes) != 0)
        close_client(client);
}

/* ---- the socket ---- */

/* 0 with a descriptor that listens; -EADDRINUSE: another process has the name. With the folder locked: a name without a
 * listener is left by a killed process, and no process is about to listen there. */
static int bind_socket(const struct sockaddr_un *address, int *ret)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    int r = bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
    if (r == -EADDRINUSE && unix_socket_is_stale(address) > 0 && unlink(address->sun_path) == 0)
        r = bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
    if (!r && listen(fd, BACKLOG) < 0)
        r = -errno;
    if (!r)
        *ret = steal_fd(&fd);
    return r;
}

/* A descriptor whose closing unlocks the folder; -errno if another crun holds the lock for too long, as a stopped crun would. */
static int lock_folder(const char *folder)
{
    _cleanup_close_ int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return -errno;
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        if (errno != EWOULDBLOCK || i == LOCK_TRIES)
            return -errno;
        sleep_ns(1000000); /* shorter after a signal */
    }
    return steal_fd(&fd);
}

static int bind_by_name(struct control *c, const char *folder, int pid, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[CONTROL_NAME_SIZE];

    control_socket_name(c->host.job, pid, name);
    int n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    int r = bind_socket(&address, ret_fd);
    if (!r)
        (void)named_file_note(&c->file, address.sun_path); /* else the socket is left behind */
    return r;
}

/* The folder belongs to the user alone, whatever the umask is. In /tmp another user may have made it before: then there is
 * no socket. */
static int open_control_socket(struct control *c, int *ret_fd)
{
    char folder[CONTROL_PATH_SIZE];
    struct stat info;

    control_folder(c->host.environment, geteuid(), folder);
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return -errno;
    if (lstat(folder, &info) < 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid())
        return -EPERM;
    _cleanup_close_ int lock = lock_folder(folder);
    int r = lock < 0 ? -EADDRINUSE : bind_by_name(c, folder, 0, ret_fd);
    return r == -EADDRINUSE ? bind_by_name(c, folder, (int)getpid(), ret_fd) : r;
}

int control_create(struct control **ret, const struct control_host *host)
{
    static struct control control; /* a process has one job */
    struct control *c = &control;
    int fd = -1;

    c->host = *host;
    list_init(&c->clients);
    TRY(open_control_socket(c, &fd));
    (void)uv_pipe_init(host->loop, &c->listener, 0); /* cannot fail */
    c->listener.data = c;
    int r = uv_pipe_open(&c->listener, fd);
    if (r)
        (void)close(fd); /* unused */
    if (!r)
        r = uv_listen((uv_stream_t *)&c->listener, BACKLOG, on_control_connection);
    if (r)
        control_destroy(c);
    else
        *ret = c;
    return r;
}

const struct named_file *control_file(const struct control *c)
{
    return c ? &c->file : NULL;
}

void control_destroy(struct control *c)
{
    if (!c || c->is_closing)
        return;
    c->is_closing = true;
    named_file_remove(&c->file);
    list_for_each_entry(struct control_client, client, &c->clients, link) close_client(client);
    uv_close((uv_handle_t *)&c->listener, NULL);
}
