#pragma once

/*
 * Internal to the server: the loop, and its calls for services (server_service.h). server_uv.c has the life, turns and log,
 * listener_uv.c accepts.
 */

#include <limits.h>
#include <stdbool.h>
#include <uv.h>

#include "base/list.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server/address_quota.h"
#include "rendezvous/server/admission.h"
#include "rendezvous/server/conn_owner.h"
#include "rendezvous/server/log_tokens.h"
#include "rendezvous/server/server_security.h"
#include "rendezvous/server/server_service.h"
#include "rendezvous/server/server_uv.h"

/* Size of a read. Large enough for a pipelining client's batch, small enough to be fair to the others. */
enum { SCRATCH_SIZE = 64 * 1024 };

enum {
    SERVER_SERVICES_MAX = 16,
    /* Number of waits ended before other work has its turn. */
    SERVER_RELEASE_BATCH = 128,
};

/* The end of a connection's time. */
struct deadline {
    struct list link; /* in deadlines.list; unlinked: none */
    uint64_t at_ms;
};

/* Connections with the same time to live: the head is the next to expire, and a single timer serves all. */
struct deadlines {
    struct list list;
    uv_timer_t timer;
    /* Takes d out of the list, or sets d anew. */
    void (*expire)(struct deadline *d);
};

struct server {
    uv_loop_t *loop;
    struct server_limits limits;
    struct server_service services[SERVER_SERVICES_MAX];
    unsigned n_services;
    struct server_security security;
    struct tls_context *tls; /* NULL: agents need no secret */
    int diag;                /* see client_owner_os.h; -1: not opened */
    bool no_diag;            /* not supported by the kernel */
    void (*log)(void *data, const char *line);
    void *log_data;
    struct log_tokens log_tokens;
    struct store_stats *stats; /* NULL: nothing is counted */
    uint8_t *scratch;          /* bytes being read */

    uint64_t n_changes; /* number of requests that may have changed a key */
    unsigned n_peers;   /* connections of all services */
    uint64_t
        session_input; /* held by incomplete frames and handshakes of agents: clients of the store have the rest */
    uv_idle_t rest_idle; /* active while work was left for the next turn of the loop */

    struct list listeners;
    int reserve_fds; /* left free for the process around the server */
    struct admission admission;
    struct address_quota quota;
    bool accept_paused;
    uv_timer_t accept_timer;

    unsigned n_handles;    /* not closed yet */
    unsigned peak_handles; /* the most since memory was given back */
    bool stopping;
    bool draining;
    uv_timer_t drain_timer;
    void (*stopped)(void *data);
    void *stopped_data;
};

/* The loop without services and without a handle. 0 or -errno. */
int server_open(struct server **ret, uv_loop_t *loop, const struct server_config *config);

/* Adds a service behind the present services; at most SERVER_SERVICES_MAX. */
void server_add_service(struct server *s, const struct server_service *service);

/* Opens the handles of the loop and of the services. */
void server_start(struct server *s);

/* For a server not started: destroys the services and frees the server. */
void server_discard(struct server *s);

/* The state of the service with the given destroy(); NULL: no such service. */
void *server_find_service(const struct server *s, void (*destroy)(void *self));

/* The service with the opening `byte` at `at`; NULL: none. */
const struct server_service *server_service_of(const struct server *s, enum server_opening at, uint8_t byte);

/* Gives an accepted socket to the first service with an admit() behind service `behind` (NULL: of all). As server_service.admit. */
int server_admit(struct server *s, const void *behind, int fd, const struct conn_owner *owner,
                 bool for_agent);

/* Closes a connection of little use for a new connection with `place`; false: no such connection. */
bool server_make_room(struct server *s, enum admission_place place);

/* Keeps the last connections for agents (admission.h). */
void server_keep_places(struct server *s);

/* "client 10.0.0.1:4711" */
void server_format_peer(int fd, char *text, size_t n);

/* Key of a connection's quotas: the peer's network (proto/address.h). */
uint64_t server_network_of(int fd);

/* An option to be named in a message; "" in a store of crun, without options for the limits. */
static inline const char *server_option(const struct server *s, const char *option)
{
    return s->limits.connections_max < UINT_MAX ? option : "";
}

/* A line for the log, about the client behind fd or (-1) about the server. */
void server_log(struct server *s, int fd, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Every handle of the server is counted from its init to its close callback. */
void server_handle_opened(struct server *s);
void server_handle_closed(struct server *s);

/* For handles that live as long as the server: open, and closed for good. */
void server_open_timer(struct server *s, uv_timer_t *timer, void *data);
void server_close_handle(struct server *s, void *handle);

/* d is the last of the list from now on: timeout_ms from now, later than all others. */
void deadlines_set(struct deadlines *all, struct deadline *d, unsigned timeout_ms);

/* A connection of that size, zeroed, which begins with its handle. NULL, and errno: fd is closed then. */
void *server_open_conn(struct server *s, int fd, size_t size);

/* Closes its handle, and frees the connection when the loop has turned. */
void server_close_conn(struct server *s, uv_poll_t *poll);

/* Work was left for the next turn of the loop. */
void server_want_turn(struct server *s);

/* Calls run(data), which frees a store of n_names names: in a thread if n_names is large. */
void server_free_beside_the_loop(void (*run)(void *data), void *data, uint64_t n_names);

/* A peer or agent went away; fd was closed. */
void server_peer_gone(struct server *s, int fd);

void listeners_pause(struct server *s, const char *why);
void listeners_resume(struct server *s);
void listeners_close(struct server *s);
