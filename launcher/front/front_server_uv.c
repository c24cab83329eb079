#include "launcher/front/front_server_uv.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/util/control_path.h"
#include "launcher/util/log_os.h"
#include "rendezvous/agents/server_rounds.h"
#include "rendezvous/daemon/compose_uv.h"

enum {
    FRONT_BACKLOG = 16,
    FRONT_DRAIN_MS = 1000,
    FRONT_HELLO_MS = 60 * 1000, /* many agents greet at once, and share the processor of the front */
};

struct front_server {
    struct server *server;
    struct job_keys keys; /* unused where the channels admit agents */
};

static void log_for_front(void *data, const char *line)
{
    log_line("rendezvous: %s", line);
}

/* The name leads crunctl to the front. Where another process has the name, the kernel chooses a free name. */
static int bind_abstract(int fd, char *const *environment)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[CONTROL_PATH_SIZE];

    control_front_name(environment, geteuid(), (int)getpid(), name);
    int n = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "%s", name); /* fits */
    socklen_t size = (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)n;
    if (bind(fd, (const struct sockaddr *)&address, size) == 0)
        return 0;
    return bind(fd, (const struct sockaddr *)&address, sizeof(address.sun_family));
}

static int listen_for_crunctl(struct front_server *s, char *const *environment)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    uint16_t no_port;

    if (fd < 0 || bind_abstract(fd, environment) < 0 || listen(fd, FRONT_BACKLOG) < 0)
        return -errno;
    int r = server_listen_fd(s->server, fd, &no_port);
    if (r == 0)
        (void)steal_fd(&fd);
    return r;
}

static void on_front_server_stopped(void *data)
{
    struct front_server *s = data;

    job_keys_finish(&s->keys);
    free(s);
}

int front_server_create(struct front_server **ret, uv_loop_t *loop, const struct secret *secret, bool admits,
                        const char *job, char *const *environment)
{
    const struct server_rounds rounds = {0};
    struct server_security security = {.is_private = admits, .own_user = admits};
    struct server_limits limits = SERVER_LIMITS_DEFAULT;
    const struct server_config config = {
        .rounds = &rounds, .limits = &limits, .security = &security, .log = log_for_front};
    char why[CERTIFICATE_ERROR_SIZE] = "";
    struct front_server *s = calloc(1, sizeof(*s));
    bool has_keys = secret->bytes && !admits;
    int r = s ? 0 : -ENOMEM;

    limits.handshake_ms = FRONT_HELLO_MS;
    if (r == 0 && has_keys)
        r = job_keys_init(&s->keys, secret, NULL, job, "127.0.0.1", why);
    if (r == 0 && has_keys)
        security = job_keys_of_rendezvous(&s->keys, NULL);
    security.own_user |= has_keys;
    if (r == 0)
        r = server_create(&s->server, loop, &config);
    if (r == 0)
        r = listen_for_crunctl(s, environment);
    if (r == 0) {
        *ret = s;
        return 0;
    }
    log_line("cannot serve the rendezvous: %.400s", *why ? why : strerror(-r));
    if (s && s->server)
        server_stop(s->server, on_front_server_stopped, s);
    else if (s)
        on_front_server_stopped(s);
    return r;
}

int front_server_dial(const struct front_server *s)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0)
        return -errno;
    server_adopt(s->server, fds[1]);
    return fds[0];
}

size_t front_server_n_nodes(const struct front_server *s)
{
    return s ? server_n_nodes(s->server) : 0;
}

void front_server_end_job(struct front_server *s, const char *why)
{
    server_close_all_jobs(s->server, why);
}

void front_server_expect(struct front_server *s, unsigned n_nodes)
{
    server_expect_nodes(s->server, n_nodes);
}

void front_server_stop(struct front_server *s)
{
    if (s)
        server_drain(s->server, FRONT_DRAIN_MS, on_front_server_stopped, s);
}
