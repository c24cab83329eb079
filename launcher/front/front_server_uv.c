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
    FRONT_BACKLOG = 4096,
    FRONT_DRAIN_MS = 1000,
    FRONT_HELLO_MS = 60 * 1000, /* many agents greet at once, and share the processor of the front */
};

/* Address and length of an abstract socket. */
struct front_address {
    struct sockaddr_un name;
    socklen_t size;
};

struct front_server {
    struct server *server;
    struct front_address address;
    struct job_keys keys;
    bool is_closed; /* the job has a secret */
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

/* Returns the descriptor or -errno. */
static int open_abstract(struct front_address *ret, char *const *environment)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    ret->size = sizeof(ret->name);
    if (fd < 0 || bind_abstract(fd, environment) < 0 || listen(fd, FRONT_BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&ret->name, &ret->size) < 0)
        return -errno;
    return steal_fd(&fd);
}

static int listen_abstract(struct front_server *s, char *const *environment)
{
    uint16_t no_port;
    _cleanup_close_ int fd = open_abstract(&s->address, environment);
    int r = fd < 0 ? fd : server_listen_fd(s->server, fd, &no_port);

    if (r == 0)
        (void)steal_fd(&fd);
    return r;
}

static void on_front_server_stopped(void *data)
{
    struct front_server *s = data;

    if (s->is_closed)
        job_keys_finish(&s->keys);
    free(s);
}

/* Creates the keys, then the server that is to know them. 0 or -errno; nothing is left open then. */
static int compose_front_server(struct front_server *s, uv_loop_t *loop, const struct secret *secret,
                                const char *job, char why[CERTIFICATE_ERROR_SIZE])
{
    const struct server_rounds rounds = {0};
    struct server_security security;
    struct server_limits limits = SERVER_LIMITS_DEFAULT;
    struct server_config config = {.rounds = &rounds, .limits = &limits, .log = log_for_front};

    limits.handshake_ms = FRONT_HELLO_MS;
    if (secret->bytes) {
        int r = job_keys_init(&s->keys, secret, NULL, job, "127.0.0.1", why);
        if (r < 0)
            return r;
        s->is_closed = true;
        security = job_keys_of_rendezvous(&s->keys, NULL);
        config.security = &security;
    }
    int r = server_create(&s->server, loop, &config);
    if (r < 0 && s->is_closed)
        job_keys_finish(&s->keys);
    return r;
}

int front_server_create(struct front_server **ret, uv_loop_t *loop, const struct secret *secret,
                        const char *job, char *const *environment, char error[FRONT_SERVER_ERROR_SIZE])
{
    char why[CERTIFICATE_ERROR_SIZE] = "";
    struct front_server *s = calloc(1, sizeof(*s));
    int r = s ? compose_front_server(s, loop, secret, job, why) : -ENOMEM;

    if (r < 0) {
        free(s);
    } else {
        r = listen_abstract(s, environment);
        if (r < 0)
            server_stop(s->server, on_front_server_stopped, s);
        else
            *ret = s;
    }
    if (r < 0)
        (void)snprintf(error, FRONT_SERVER_ERROR_SIZE, "cannot serve the rendezvous: %.400s",
                       *why ? why : strerror(-r));
    return r;
}

/* A unix socket connects at once, or not at all. */
int front_server_dial(const struct front_server *s)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)&s->address.name, s->address.size) < 0)
        return -errno;
    return steal_fd(&fd);
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
