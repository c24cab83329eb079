/*
 * Life of the server: creation, deadlines, log, end. Clients are in peer_uv.c, listening sockets in
 * listener_uv.c.
 *
 * Deadlines: peers that have not completed VALIDATE and peers with half a message are in one list each. All
 * in a list have the same time to live, so the head is the next to expire and one timer serves all.
 *
 * It ends by server_stop(): every handle is closed, and the last close callback frees the server.
 */

#include "proto/tls_openssl.h"
#include "rendezvous/server/server_uv.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/address.h"
#include "rendezvous/server/exchange_uv.h"
#include "rendezvous/server/client_owner_os.h"
#include "rendezvous/server/fence_uv.h"
#include "rendezvous/server/job_stores_uv.h"
#include "rendezvous/server/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"
#include "base/random_os.h"

enum {
    FREED_AT_ONCE_MAX = 10000, /* names: a millisecond */
    LOG_LINES_PER_S = 10,
    LOG_BURST = 20,
    LOG_LINE_MAX = 512,
    RESERVE_FDS = 32,
    RELEASE_BATCH = 128,
    EXPIRE_BATCH = 32,
    TRIM_HANDLES_MIN = 256,   /* fewer connections hold too little to be worth the system calls */
    TRIM_HANDLES_STEP = 1024, /* so that one call frees some megabytes, within a millisecond */
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

void server_log(struct server *s, const struct peer *p, const char *format, ...)
{
    char line[LOG_LINE_MAX], who[INET6_ADDRSTRLEN + 32] = "";
    int n = 0;
    va_list args;

    if (!s->log ||
        !log_tokens_take(&s->log_tokens, uv_now(s->loop) * UINT64_C(1000000), LOG_LINES_PER_S, LOG_BURST))
        return;
    if (s->log_tokens.suppressed > 0) {
        (void)snprintf(line, sizeof(line), "%llu lines about clients were left out",
                       (unsigned long long)log_tokens_take_suppressed(&s->log_tokens));
        s->log(s->log_data, line);
    }
    if (p) {
        server_format_peer(p->fd, who, sizeof(who));
        n = snprintf(line, sizeof(line), "%s ", who);
    }
    va_start(args, format);
    (void)vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
    va_end(args);
    s->log(s->log_data, line);
}

/* ---- deadlines ---- */

static void on_client_deadline(uv_timer_t *timer);

static void arm_deadline(struct server *s, uint64_t at_ms)
{
    uint64_t now = uv_now(s->loop);

    if (uv_is_active((uv_handle_t *)&s->deadline_timer) && s->deadline_ms <= at_ms)
        return;
    s->deadline_ms = at_ms;
    /* Fails only for a closing handle or without a callback. */
    (void)uv_timer_start(&s->deadline_timer, on_client_deadline, at_ms > now ? at_ms - now : 0, 0);
}

void server_set_deadline(struct server *s, struct peer *p, struct list *list, unsigned timeout_ms)
{
    list_unlink(&p->deadline_link);
    list_append(list, &p->deadline_link);
    p->deadline_ms = uv_now(s->loop) + timeout_ms;
    arm_deadline(s, p->deadline_ms);
}

/* A bounded number of them; thousands that expire together must not hold up those that are served. */
static void expire(struct server *s, struct list *list, const char *why)
{
    uint64_t now = uv_now(s->loop);

    for (int i = 0; !list_is_empty(list); i++) {
        struct peer *p = list_entry(list->next, struct peer, deadline_link);

        if (p->deadline_ms > now || i == EXPIRE_BATCH) {
            arm_deadline(s, p->deadline_ms > now ? p->deadline_ms : now + 1);
            return;
        }
        /* If the server itself was late (stopped, or out of CPU time), the client's bytes lie unread in the
         * socket. */
        if (peer_catch_up(p))
            continue;
        server_log(s, p, "%s: closed", why);
        peer_close(p);
    }
}

static void on_client_deadline(uv_timer_t *timer)
{
    struct server *s = timer->data;

    expire(s, &s->greeting, "sent no valid TCPStore greeting in time");
    expire(s, &s->framing, "left a message incomplete for too long");
    server_work_off(s); /* requests may have arrived late */
}

/* ---- handles ---- */

void server_handle_opened(struct server *s)
{
    s->n_handles++;
    if (s->n_handles > s->peak_handles)
        s->peak_handles = s->n_handles;
}

static void free_store(void *data)
{
    struct server *s = data;

    store_finish(&s->store);
    free(s);
}

/* The leak check of a program that ends while the thread frees names would find those that are left. */
#if defined(__SANITIZE_ADDRESS__)
#define CHECKS_LEAKS true
#elif defined(__has_feature)
#define CHECKS_LEAKS __has_feature(address_sanitizer)
#else
#define CHECKS_LEAKS false
#endif

/* Millions of names take seconds, in which a crun that goes on must not stand still. The thread ends by itself. */
void server_free_beside_the_loop(void (*run)(void *data), void *data, uint64_t n_names)
{
    const uv_thread_options_t options = {.flags = UV_THREAD_NO_FLAGS};
    uv_thread_t thread;

    if (CHECKS_LEAKS || n_names <= FREED_AT_ONCE_MAX ||
        uv_thread_create_ex(&thread, &options, run, data) != 0)
        run(data);
    else
        (void)pthread_detach(thread); /* a thread that was never joined */
}

static void server_free(struct server *s)
{
    void (*stopped)(void *data) = s->stopped;
    void *data = s->stopped_data;

    rounds_shell_destroy(s->rounds);
    fence_shell_destroy(s->fence);
    job_stores_destroy(s->job_stores);
    exchange_shell_destroy(s->exchanges);
    tls_context_free(s->tls);
    if (s->diag >= 0)
        (void)close(s->diag);
    outbox_finish(&s->out);
    address_quota_finish(&s->quota);
    free(s->scratch);
    server_free_beside_the_loop(free_store, s, s->store.names.used);
    if (stopped)
        stopped(data);
}

/* glibc keeps free pages between two that are used, so the memory of a flood of connections would stay with this process for
 * its life. Called when a handle's memory was freed: when three quarters of the handles are closed, or TRIM_HANDLES_STEP. */
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

static void adopt_handle(struct server *s, uv_handle_t *handle)
{
    handle->data = s;
    server_handle_opened(s);
}

/* ---- life ---- */

/* Clients may go on because another one gave its request up, without bytes from the store. */
static bool is_relay_ready(const struct server *s)
{
    return s->relay && !list_is_empty(&s->relay->ready);
}

static void on_rest_idle(uv_idle_t *idle)
{
    struct server *s = idle->data;

    /* A bounded part of each kind of work in a turn of the loop, between other clients' requests. */
    (void)store_clean(&s->store, STORE_TURN_UNITS);
    peers_run_turn(s);
    agents_shake_hands(s->rounds);
    job_stores_run_turn(s->job_stores);
    if (is_relay_ready(s))
        peers_serve_relayed(s);
    server_work_off(s);
}

static bool is_work_left(struct server *s)
{
    return !list_is_empty(&s->store.released) || !list_is_empty(&s->busy) || store_clean(&s->store, 0) ||
           job_stores_are_busy(s->job_stores) || is_relay_ready(s) || agents_wait_for_handshakes(s->rounds);
}

void server_work_off(struct server *s)
{
    peers_release(s, RELEASE_BATCH);
    if (s->stopping)
        return;
    /* Both cannot fail: the handle has a callback. */
    if (is_work_left(s))
        (void)uv_idle_start(&s->rest_idle, on_rest_idle);
    else
        (void)uv_idle_stop(&s->rest_idle);
}

void server_want_turn(struct server *s)
{
    if (!s->stopping)
        (void)uv_idle_start(&s->rest_idle, on_rest_idle); /* as above */
}

static int reserve_of_fd_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return 0;
    return limit.rlim_cur / 8 < RESERVE_FDS ? (int)(limit.rlim_cur / 8) : RESERVE_FDS;
}

static void init_handles(struct server *s)
{
    /* These cannot fail: they only fill in the handle. */
    (void)uv_timer_init(s->loop, &s->deadline_timer);
    adopt_handle(s, (uv_handle_t *)&s->deadline_timer);
    (void)uv_timer_init(s->loop, &s->accept_timer);
    adopt_handle(s, (uv_handle_t *)&s->accept_timer);
    (void)uv_timer_init(s->loop, &s->drain_timer);
    adopt_handle(s, (uv_handle_t *)&s->drain_timer);
    (void)uv_idle_init(s->loop, &s->rest_idle);
    adopt_handle(s, (uv_handle_t *)&s->rest_idle);
}

static int init_store(struct server *s)
{
    uint8_t seeds[3][SIPHASH_SEED_SIZE];

    int r = random_fill(seeds, sizeof(seeds));
    if (r)
        return r;
    memcpy(s->quota.seed, seeds[2], sizeof(s->quota.seed));
    input_shares_init(&s->input, seeds[0]);
    r = store_init(&s->store, &s->limits.store, seeds[1]);
    if (r == 0 && s->quota.max > 0)
        r = store_share_out(&s->store, ADDRESS_QUOTA_COUNTERS);
    if (r < 0)
        store_finish(&s->store);
    return r;
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
    int r;

    if (!security)
        return 0;
    s->security = *security;
    if (security->certified)
        s->tls = tls_context_ref(security->certified);
    if (security->certified || !security->find_key)
        return 0;
    r = tls_context_server(&s->tls, security->find_key, security->data, why);
    if (r < 0)
        server_log(s, NULL, "%s", why);
    return r;
}

int server_create(struct server **ret, uv_loop_t *loop, const struct server_config *config)
{
    static const struct server_limits defaults = SERVER_LIMITS_DEFAULT;
    struct server *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return -ENOMEM;
    s->loop = loop;
    s->limits = config->limits ? *config->limits : defaults;
    if (!config->limits)
        s->limits.connections_max = UINT_MAX; /* of one job: as many as there are descriptors */
    s->log = config->log;
    s->log_data = config->log_data;
    s->stats = config->stats;
    s->relay = config->relay;
    s->relay_wake = config->relay_wake;
    s->relay_data = config->relay_data;
    s->reserve_fds = reserve_of_fd_limit();
    s->quota.max = s->limits.connections_each_max;
    admission_init(&s->admission, s->limits.connections_max, config->rounds != NULL);
    s->diag = -1;
    list_init(&s->peers);
    list_init(&s->greeting);
    list_init(&s->framing);
    list_init(&s->unused);
    list_init(&s->busy);
    list_init(&s->listeners);
    s->scratch = malloc(SCRATCH_SIZE);
    r = s->scratch ? init_security(s, config->security) : -ENOMEM;
    if (r == 0)
        r = init_store(s);
    if (r == 0 && config->rounds && config->rounds->max_jobs_each > 0)
        s->diag = client_owner_open(); /* without it the quota is one of all users of this machine */
    if (r == 0 && config->rounds) {
        r = rounds_shell_create(s, config->rounds);
        if (r < 0)
            store_finish(&s->store);
    }
    if (r < 0) {
        if (s->diag >= 0)
            (void)close(s->diag);
        tls_context_free(s->tls);
        free(s->scratch);
        free(s);
        return r;
    }
    if (config->security && config->security->fence && fence_shell_create(&s->fence, s) < 0) {
        tls_context_free(s->tls);
        store_finish(&s->store);
        free(s->scratch);
        free(s);
        return -ENOMEM;
    }
    init_handles(s);
    if (s->rounds && s->security.exchange && exchange_shell_create(&s->exchanges, s) < 0)
        server_log(s, NULL, "cannot give agents the secret of their job: out of memory");
    rounds_shell_start(s->rounds);
    if (s->rounds && s->tls && job_stores_create(&s->job_stores, s) < 0)
        server_log(s, NULL, "cannot keep keys of jobs: out of memory");
    rounds_shell_keep_keys(s->rounds, s->job_stores != NULL);
    *ret = s;
    return 0;
}

static void close_all(struct server *s)
{
    s->stopping = true;
    listeners_close(s);
    while (!list_is_empty(&s->peers))
        peer_close(list_entry(s->peers.next, struct peer, link));
    rounds_shell_stop(s->rounds);
    if (s->fence)
        fence_shell_stop(s->fence);
    job_stores_stop(s->job_stores);
    exchange_shell_stop(s->exchanges);
    uv_close((uv_handle_t *)&s->deadline_timer, on_server_handle_closed);
    uv_close((uv_handle_t *)&s->accept_timer, on_server_handle_closed);
    uv_close((uv_handle_t *)&s->drain_timer, on_server_handle_closed);
    uv_close((uv_handle_t *)&s->rest_idle, on_server_handle_closed);
}

void server_stop(struct server *s, void (*stopped)(void *data), void *data)
{
    s->stopped = stopped;
    s->stopped_data = data;
    if (!s->stopping)
        close_all(s);
}

static void on_drain_timeout(uv_timer_t *timer)
{
    struct server *s = timer->data;

    server_log(s, NULL, "stopped with %u clients that had not read their replies", s->n_peers);
    close_all(s);
}

void server_drain(struct server *s, unsigned timeout_ms, void (*stopped)(void *data), void *data)
{
    s->stopped = stopped;
    s->stopped_data = data;
    s->draining = true;
    listeners_close(s);
    peers_release(s, UINT32_MAX);
    if (s->fence)
        fence_close_visitors(s->fence);
    exchange_shell_drain(s->exchanges);
    list_for_each_safe(pos, &s->peers) peer_drain(list_entry(pos, struct peer, link));
    rounds_shell_drain(s->rounds);
    if (s->n_peers == 0)
        close_all(s);
    else
        (void)uv_timer_start(&s->drain_timer, on_drain_timeout, timeout_ms,
                             0); /* cannot fail: has a callback */
}

void server_serve_relayed(struct server *s)
{
    peers_serve_relayed(s);
}

unsigned server_n_clients(const struct server *s)
{
    return s->n_peers;
}

uint64_t server_n_changes(const struct server *s)
{
    return s->n_changes;
}

void server_peer_gone(struct server *s, int fd)
{
    address_quota_release(&s->quota, fd);
    s->n_peers--;
    if (s->stopping)
        return;
    if (s->draining && s->n_peers == 0 && uv_is_active((uv_handle_t *)&s->drain_timer))
        close_all(s);
    else if (s->accept_paused)
        listeners_resume(s);
    if (!s->stopping && is_work_left(s))
        (void)uv_idle_start(&s->rest_idle, on_rest_idle); /* what it leaves behind is taken apart */
}
