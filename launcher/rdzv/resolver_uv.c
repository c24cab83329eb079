/*
 * `struct resolver` belongs to the loop; `struct resolver_shared` is shared with the threads and reference-counted. A
 * thread stores its result there and wakes the loop; after resolver_stop() it only drops its reference. The last
 * reference frees it.
 *
 * Ways it fails: the name does not exist (asked again, it may appear), the servers are silent (more threads ask, up to
 * ASKING_MAX), no thread can be started. Each is a reason for resolver_why().
 */

#include "launcher/rdzv/resolver_uv.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    INTERVAL_MS = 500,
    /* The number of queries that are begun while one hangs: two attempts at each of three silent servers, 5 s each. */
    ASKING_MAX = 64,
    WHY_SIZE = 128,
};

struct resolver_shared {
    pthread_mutex_t lock; /* protects the following members, except host and port */
    unsigned n_references, n_asking;
    bool stopped; /* by resolver_stop() */
    bool has_found, has_error;
    struct resolver_addresses found;
    int error;
    uv_async_t *async; /* valid until stopped is set */
    uint16_t port;
    char host[];
};

struct resolver {
    struct resolver_config config;
    struct resolver_shared *shared;
    uv_async_t async;
    uv_timer_t interval;
    unsigned n_handles;
    bool stopped;
    char why[WHY_SIZE];
};

/* ---- shared state ---- */

/* Drops a reference. The caller holds the lock, which is released. */
static void drop_reference(struct resolver_shared *d)
{
    bool last = --d->n_references == 0;

    (void)pthread_mutex_unlock(&d->lock); /* locking an initialised mutex cannot fail */
    if (!last)
        return;
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

static struct resolver_shared *shared_create(const struct resolver_config *config)
{
    size_t size = strlen(config->host) + 1;
    struct resolver_shared *d = calloc(1, sizeof(*d) + size);

    if (!d)
        return NULL;
    (void)pthread_mutex_init(&d->lock, NULL); /* does not fail on Linux */
    memcpy(d->host, config->host, size);
    d->port = config->port;
    d->n_references = 1;
    return d;
}

static void copy_addresses(const struct addrinfo *list, struct resolver_addresses *ret)
{
    ret->n = 0;
    for (const struct addrinfo *a = list; a && ret->n < RESOLVER_ADDRESSES_MAX; a = a->ai_next)
        if (a->ai_addrlen <= sizeof(ret->items[0]))
            memcpy(&ret->items[ret->n++], a->ai_addr, a->ai_addrlen);
}

static atomic_uint n_threads; /* in getaddrinfo(), or about to be */

bool resolver_is_asking(void)
{
    return n_threads > 0;
}

/* The main function of a thread, which owns a reference. */
static void *resolve_in_thread(void *data)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct resolver_addresses found = {0};
    struct addrinfo *list = NULL;
    struct resolver_shared *d = data;
    char port[8];

    (void)snprintf(port, sizeof(port), "%u", d->port); /* fits */
    int error = getaddrinfo(d->host, port, &hints, &list);
    if (error == 0) {
        copy_addresses(list, &found);
        freeaddrinfo(list);
    }
    n_threads--;
    (void)pthread_mutex_lock(&d->lock);
    d->n_asking--;
    if (found.n > 0) {
        d->found = found;
        d->has_found = true;
    } else {
        d->error = error ? error : EAI_NONAME;
        d->has_error = true;
    }
    if (!d->stopped)
        (void)uv_async_send(d->async); /* cannot fail on a handle that is open */
    drop_reference(d);
    return NULL;
}

/* With all signals blocked: they are for the thread of the loop. The stack has the default size, since name service
 * modules of other projects run on it. */
static int start_resolver_thread(void *(*body)(void *), void *data)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    int r = pthread_attr_init(&attributes);
    if (r)
        return -r;
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED); /* cannot fail with this value */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    n_threads++;
    r = pthread_create(&thread, &attributes, body, data);
    n_threads -= r != 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
    return -r;
}

/* ---- in the loop ---- */

static void report_trouble(struct resolver *l, const char *why)
{
    (void)snprintf(l->why, sizeof(l->why), "%s", why); /* truncated if long */
    if (l->config.on_trouble)
        l->config.on_trouble(l->config.data, l->why);
}

static void on_interval(uv_timer_t *timer)
{
    struct resolver *l = timer->data;
    struct resolver_shared *d = l->shared;

    (void)pthread_mutex_lock(&d->lock);
    bool may = d->n_asking < ASKING_MAX;
    if (may) {
        d->n_asking++;
        d->n_references++;
    }
    (void)pthread_mutex_unlock(&d->lock);
    int r = may ? start_resolver_thread(resolve_in_thread, d) : 0;
    if (r == 0)
        return;
    (void)pthread_mutex_lock(&d->lock);
    d->n_asking--;
    drop_reference(d);
    report_trouble(l, strerror(-r));
}

static void on_answer(uv_async_t *async)
{
    struct resolver *l = async->data;
    struct resolver_shared *d = l->shared;
    struct resolver_addresses found;

    if (l->stopped)
        return;
    (void)pthread_mutex_lock(&d->lock);
    bool has_found = d->has_found, has_error = d->has_error;
    int error = d->error;
    found = d->found;
    d->has_found = d->has_error = false;
    (void)pthread_mutex_unlock(&d->lock);
    if (has_found) {
        (void)uv_timer_stop(&l->interval); /* cannot fail on a timer that exists */
        l->config.on_found(l->config.data, &found);
    } else if (has_error) {
        report_trouble(l, gai_strerror(error));
    }
}

static void on_resolver_closed(uv_handle_t *handle)
{
    struct resolver *l = handle->data;

    if (--l->n_handles == 0)
        free(l);
}

void resolver_stop(struct resolver *l)
{
    if (!l || l->stopped)
        return;
    l->stopped = true;
    (void)pthread_mutex_lock(&l->shared->lock);
    l->shared->stopped = true;
    drop_reference(l->shared);
    uv_close((uv_handle_t *)&l->async, on_resolver_closed);
    uv_close((uv_handle_t *)&l->interval, on_resolver_closed);
}

const char *resolver_why(const struct resolver *l)
{
    return l->why;
}

bool resolver_numeric(const char *host, uint16_t port, struct resolver_addresses *ret)
{
    union resolver_address a = {0};

    if (uv_ip4_addr(host, port, &a.v4) != 0 && uv_ip6_addr(host, port, &a.v6) != 0)
        return false;
    ret->n = 1;
    ret->items[0] = a;
    return true;
}

bool resolver_is_same(const union resolver_address *a, const union resolver_address *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    if (a->any.sa_family == AF_INET)
        return a->v4.sin_port == b->v4.sin_port && a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
    return a->v6.sin6_port == b->v6.sin6_port && a->v6.sin6_scope_id == b->v6.sin6_scope_id &&
           memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0;
}

int resolver_start(struct resolver **ret, const struct resolver_config *config)
{
    struct resolver *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    l->config = *config;
    l->shared = shared_create(config);
    int r = l->shared ? uv_async_init(config->loop, &l->async, on_answer) : -ENOMEM;
    if (r) {
        free(l->shared);
        free(l);
        return r;
    }
    (void)uv_timer_init(config->loop, &l->interval); /* cannot fail */
    l->n_handles = 2;
    l->async.data = l->interval.data = l;
    l->shared->async = &l->async;
    l->config.host = NULL;
    (void)snprintf(l->why, sizeof(l->why), "the resolver of this machine does not answer"); /* fits */
    (void)uv_timer_start(&l->interval, on_interval, 0, INTERVAL_MS); /* fails only without a callback */
    *ret = l;
    return 0;
}
