/*
 * The loop of a server: life, list of services and their turns, log. Listening sockets are in listener_uv.c.
 *
 * A server ends by server_stop(): every handle is closed, and the last close callback frees the server.
 */

#include "base/address_sanitizer.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server/server_uv.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/format.h"
#include "base/random_os.h"
#include "proto/address.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/store/metrics_text.h"

enum {
    FREED_AT_ONCE_MAX = 10000, /* names: a millisecond */
    LOG_LINES_PER_S = 10,
    LOG_BURST = 20,
    LOG_LINE_MAX = 512,
    RESERVE_FDS = 32,
    EXPIRE_BATCH = 32,
    TRIM_HANDLES_MIN = 256,   /* fewer connections hold too little to be worth the system calls */
    TRIM_HANDLES_STEP = 1024, /* a call frees some megabytes, within a millisecond */
};

/* ---- log ---- */

void server_format_peer(int fd, char *text, size_t n)
{
    union address_endpoint at = {0};
    char host[INET6_ADDRSTRLEN];
    socklen_t size = sizeof(at);

    if (getpeername(fd, &at.any, &size) < 0)
        (void)snprintf(text, n, "disconnected client");
    else if (!address_format(&at.any, host, sizeof(host)))
        (void)snprintf(text, n, "client on the unix socket");
    else
        (void)snprintf(text, n, strchr(host, ':') ? "client [%s]:%u" : "client %s:%u", host,
                       address_port(&at.any));
}

uint64_t server_network_of(int fd)
{
    union address_endpoint at = {0};
    socklen_t size = sizeof(at);

    return getpeername(fd, &at.any, &size) < 0 ? 0 : address_network(&at.any);
}

void server_log(struct server *s, int fd, const char *format, ...)
{
    char line[LOG_LINE_MAX], who[INET6_ADDRSTRLEN + 32] = "";
    unsigned long long n_left_out;
    int n = 0;

    if (!s->log || !log_tokens_take(&s->log_tokens, uv_now(s->loop) * UINT64_C(1000000), LOG_LINES_PER_S,
                                    LOG_BURST, &n_left_out))
        return;
    if (n_left_out > 0) {
        (void)snprintf(line, sizeof(line), "%llu lines about clients were left out", n_left_out);
        s->log(s->log_data, line);
    }
    if (fd >= 0) {
        server_format_peer(fd, who, sizeof(who));
        n = snprintf(line, sizeof(line), "%s ", who);
    }
    (void)format_arguments(line + n, sizeof(line) - (size_t)n, format);
    s->log(s->log_data, line);
}

/* ---- handles ---- */

void server_handle_opened(struct server *s)
{
    s->n_handles++;
    if (s->n_handles > s->peak_handles)
        s->peak_handles = s->n_handles;
}

/* The leak check of a program that ends while the thread frees names would find the names left. */

/* Freeing millions of names takes seconds, and a crun must not stand still meanwhile. The thread ends by itself. */
void server_free_beside_the_loop(void (*run)(void *data), void *data, uint64_t n_names)
{
    const uv_thread_options_t options = {.flags = UV_THREAD_NO_FLAGS};
    uv_thread_t thread;

    if (IS_ADDRESS_SANITIZED || n_names <= FREED_AT_ONCE_MAX ||
        uv_thread_create_ex(&thread, &options, run, data) != 0)
        run(data);
    else
        (void)pthread_detach(thread); /* a thread never joined */
}

/* No handle is open. */
static void server_free(struct server *s)
{
    void (*stopped)(void *data) = s->stopped;
    void *data = s->stopped_data;

    server_discard(s);
    if (stopped)
        stopped(data);
}

/* glibc keeps free pages between two used pages, so the memory of a flood of connections would stay with the process for
 * life. Called when a handle's memory was freed: when three quarters of the handles are closed, or TRIM_HANDLES_STEP. */
static void give_memory_back(struct server *s)
{
    unsigned step = s->peak_handles / 4 * 3 < TRIM_HANDLES_STEP ? s->peak_handles / 4 * 3 : TRIM_HANDLES_STEP;

    if (s->peak_handles < TRIM_HANDLES_MIN || s->peak_handles - s->n_handles < step)
        return;
    s->peak_handles = s->n_handles;
#ifdef __GLIBC__
    (void)malloc_trim(0); /* returns whether there was anything */
#endif
}

void server_handle_closed(struct server *s)
{
    assert(s->n_handles > 0);
    s->n_handles--;
    give_memory_back(s);
    if (s->n_handles == 0)
        server_free(s);
}

static void on_server_handle_closed(uv_handle_t *handle)
{
    server_handle_closed(handle->data);
}

void server_open_timer(struct server *s, uv_timer_t *timer, void *data)
{
    (void)uv_timer_init(s->loop, timer); /* cannot fail: only fills in the handle */
    timer->data = data;
    server_handle_opened(s);
}

void server_close_handle(struct server *s, void *handle)
{
    ((uv_handle_t *)handle)->data = s;
    uv_close(handle, on_server_handle_closed);
}

static void on_deadline(uv_timer_t *timer);

static void arm_deadlines(struct deadlines *all)
{
    const struct deadline *first = list_first(&all->list, struct deadline, link);
    uint64_t now_ms = uv_now(all->timer.loop);

    if (!first || uv_is_active((uv_handle_t *)&all->timer))
        return;
    /* Cannot fail: has a callback, and the lists of a service that was stopped are empty. Not 0: libuv may call a timer
     * without time again in the same turn. */
    (void)uv_timer_start(&all->timer, on_deadline, first->at_ms > now_ms ? first->at_ms - now_ms : 1, 0);
}

/* Ends a bounded number of connections: thousands must not hold up the others. */
static void on_deadline(uv_timer_t *timer)
{
    struct deadlines *all = timer->data;

    for (unsigned i = 0; i < EXPIRE_BATCH && !list_is_empty(&all->list); i++) {
        struct deadline *d = list_entry(all->list.next, struct deadline, link);

        if (d->at_ms > uv_now(timer->loop))
            break;
        all->expire(d);
    }
    arm_deadlines(all);
}

void deadlines_set(struct deadlines *all, struct deadline *d, unsigned timeout_ms)
{
    list_move(&all->list, &d->link);
    d->at_ms = uv_now(all->timer.loop) + timeout_ms;
    arm_deadlines(all);
}

void *server_open_conn(struct server *s, int fd, size_t size)
{
    uv_poll_t *poll = calloc(1, size);
    int r = poll ? uv_poll_init(s->loop, poll, fd) : -ENOMEM;

    if (r < 0) {
        free(poll);
        (void)close(fd); /* nothing was sent */
        errno = -r;
        return NULL;
    }
    poll->data = poll;
    server_handle_opened(s);
    return poll;
}

static void on_conn_closed(uv_handle_t *handle)
{
    struct server *s = handle->data;

    free(handle);
    server_handle_closed(s);
}

void server_close_conn(struct server *s, uv_poll_t *poll)
{
    poll->data = s;
    uv_close((uv_handle_t *)poll, on_conn_closed);
}

/* ---- services ---- */

void server_add_service(struct server *s, const struct server_service *service)
{
    assert(s->n_services < SERVER_SERVICES_MAX);
    s->services[s->n_services++] = *service;
    for (size_t i = 0; i < ARRAY_SIZE(service->deadlines); i++)
        if (service->deadlines[i])
            list_init(&service->deadlines[i]->list);
}

void *server_find_service(const struct server *s, void (*destroy)(void *self))
{
    for (unsigned i = 0; i < s->n_services; i++)
        if (s->services[i].destroy == destroy)
            return s->services[i].self;
    return NULL;
}

const struct server_service *server_service_of(const struct server *s, enum server_opening at, uint8_t byte)
{
    for (unsigned i = 0; byte > 0 && i < s->n_services; i++)
        if (s->services[i].openings[at] == byte)
            return &s->services[i];
    return NULL;
}

int server_admit(struct server *s, const void *behind, int fd, const struct conn_owner *owner, bool for_agent)
{
    bool is_behind = !behind;

    for (unsigned i = 0; i < s->n_services; i++) {
        if (is_behind && s->services[i].admit)
            return s->services[i].admit(s->services[i].self, fd, owner, for_agent);
        is_behind = is_behind || s->services[i].self == behind;
    }
    (void)close(fd); /* nothing was sent on it */
    return -EOPNOTSUPP;
}

bool server_make_room(struct server *s, enum admission_place place)
{
    for (unsigned i = 0; i < s->n_services; i++)
        if (s->services[i].make_room && s->services[i].make_room(s->services[i].self, place))
            return true;
    return false;
}

void server_write_metrics(const struct server *s, struct metrics_text *m)
{
    metrics_one(m, "crun_connections", METRIC_GAUGE, "Open connections, those of agents included.",
                s->n_peers);
    for (unsigned i = 0; i < s->n_services; i++)
        if (s->services[i].write_metrics)
            s->services[i].write_metrics(s->services[i].self, m);
}

/* ---- turns ---- */

static bool is_work_left(const struct server *s)
{
    for (unsigned i = 0; i < s->n_services; i++)
        if (s->services[i].is_busy && s->services[i].is_busy(s->services[i].self))
            return true;
    return false;
}

static void on_rest_idle(uv_idle_t *idle)
{
    struct server *s = idle->data;

    for (unsigned i = 0; i < s->n_services; i++)
        if (s->services[i].run_turn)
            s->services[i].run_turn(s->services[i].self);
    if (!s->stopping && !is_work_left(s))
        (void)uv_idle_stop(idle); /* always succeeds */
}

void server_want_turn(struct server *s)
{
    if (!s->stopping)
        (void)uv_idle_start(&s->rest_idle, on_rest_idle); /* cannot fail: has a callback */
}

/* ---- life ---- */

static int reserve_of_fd_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return 0;
    return limit.rlim_cur / 8 < RESERVE_FDS ? (int)(limit.rlim_cur / 8) : RESERVE_FDS;
}

void server_start(struct server *s)
{
    server_open_timer(s, &s->accept_timer, s);
    server_open_timer(s, &s->drain_timer, s);
    (void)uv_idle_init(s->loop, &s->rest_idle); /* cannot fail: only fills in the handle */
    s->rest_idle.data = s;
    server_handle_opened(s);
    for (unsigned i = 0; i < s->n_services; i++) {
        const struct server_service *service = &s->services[i];

        for (size_t k = 0; k < ARRAY_SIZE(service->deadlines); k++)
            if (service->deadlines[k])
                server_open_timer(s, &service->deadlines[k]->timer, service->deadlines[k]);
        if (service->start)
            service->start(service->self);
    }
}

void server_use_certificates(struct server *s, struct tls_context *certified)
{
    tls_context_free(s->tls);
    s->tls = tls_context_ref(certified);
    s->security.certified = certified;
}

static int init_security(struct server *s, const struct server_security *security)
{
    char why[TLS_ERROR_SIZE];

    if (!security)
        return 0;
    s->security = *security;
    if (security->certified)
        s->tls = tls_context_ref(security->certified);
    if (security->certified || !security->find_key)
        return 0;
    int r = tls_context_server(&s->tls, security->find_key, security->data, why);
    if (r < 0)
        server_log(s, -1, "%s", why);
    return r;
}

void server_keep_places(struct server *s)
{
    admission_init(&s->admission, s->limits.connections_max, true);
}

int server_open(struct server **ret, uv_loop_t *loop, const struct server_config *config)
{
    static const struct server_limits defaults = SERVER_LIMITS_DEFAULT;
    struct server *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->loop = loop;
    s->limits = config->limits ? *config->limits : defaults;
    if (!config->limits)
        s->limits.connections_max = UINT_MAX; /* of a single job: bounded by descriptors */
    s->log = config->log;
    s->log_data = config->log_data;
    s->stats = config->stats;
    s->reserve_fds = reserve_of_fd_limit();
    s->quota.max = s->limits.connections_each_max;
    admission_init(&s->admission, s->limits.connections_max, false);
    s->diag = -1;
    list_init(&s->listeners);
    s->scratch = malloc(SCRATCH_SIZE);
    int r = s->scratch ? random_fill(s->quota.seed, sizeof(s->quota.seed)) : -ENOMEM;
    if (r == 0)
        r = init_security(s, config->security);
    if (r < 0)
        server_discard(s);
    else
        *ret = s;
    return r;
}

void server_discard(struct server *s)
{
    for (unsigned i = s->n_services; i-- > 0;)
        s->services[i].destroy(s->services[i].self);
    tls_context_free(s->tls);
    cleanup_close(&s->diag);
    address_quota_finish(&s->quota);
    free(s->scratch);
    free(s);
}

static void close_all(struct server *s)
{
    s->stopping = true;
    listeners_close(s);
    for (unsigned i = s->n_services; i-- > 0;) {
        const struct server_service *service = &s->services[i];

        if (service->stop)
            service->stop(service->self);
        for (size_t k = 0; k < ARRAY_SIZE(service->deadlines); k++)
            if (service->deadlines[k])
                server_close_handle(s, &service->deadlines[k]->timer);
    }
    server_close_handle(s, &s->accept_timer);
    server_close_handle(s, &s->drain_timer);
    server_close_handle(s, &s->rest_idle);
}

void server_stop(struct server *s, void (*stopped)(void *data), void *data)
{
    if (!s)
        return;
    s->stopped = stopped;
    s->stopped_data = data;
    if (!s->stopping)
        close_all(s);
}

static void on_drain_timeout(uv_timer_t *timer)
{
    struct server *s = timer->data;

    server_log(s, -1, "stopped with %u clients that had not read their replies", s->n_peers);
    close_all(s);
}

void server_drain(struct server *s, unsigned timeout_ms, void (*stopped)(void *data), void *data)
{
    s->stopped = stopped;
    s->stopped_data = data;
    s->draining = true;
    listeners_close(s);
    for (unsigned i = s->n_services; i-- > 0;)
        if (s->services[i].drain)
            s->services[i].drain(s->services[i].self);
    if (s->n_peers == 0)
        close_all(s);
    else
        (void)uv_timer_start(&s->drain_timer, on_drain_timeout, timeout_ms,
                             0); /* cannot fail: has a callback */
}

unsigned server_n_clients(const struct server *s)
{
    return s->n_peers;
}

uint64_t server_n_changes(const struct server *s)
{
    return s->n_changes;
}

/* From the loop: the connection that went away last may still be in use. */
static void on_drained(uv_timer_t *timer)
{
    close_all(timer->data);
}

void server_peer_gone(struct server *s, int fd)
{
    address_quota_release(&s->quota, fd);
    s->n_peers--;
    if (s->stopping)
        return;
    if (s->draining && s->n_peers == 0 && uv_is_active((uv_handle_t *)&s->drain_timer))
        (void)uv_timer_start(&s->drain_timer, on_drained, 0, 0); /* cannot fail: has a callback */
    else if (s->accept_paused)
        listeners_resume(s);
    if (!s->stopping && is_work_left(s))
        server_want_turn(s); /* leftovers are taken apart in turns */
}
