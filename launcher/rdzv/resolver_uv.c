/*
 * Two parts: `lookup` belongs to the loop, `desk` is what it shares with its threads. A thread leaves its answer at
 * the desk and wakes the loop; one that comes back after resolver_stop() finds the desk deserted and only gives its
 * share up. Whoever is the last there frees it.
 */

#include "launcher/rdzv/resolver_uv.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    PACE_MS = 500,
    /* As many questions as are begun while one hangs: two attempts at each of three silent servers, 5 s each. */
    ASKING_MAX = 64,
    STACK_SIZE = 256 * 1024,
    WHY_SIZE = 128,
};

struct desk {
    pthread_mutex_t lock; /* of what follows, but for host and port */
    unsigned n_shares, n_asking;
    bool deserted;
    bool has_found, has_error;
    struct resolver_addresses found;
    int error;
    uv_async_t *bell; /* valid until it is deserted */
    uint16_t port;
    char host[];
};

struct resolver {
    struct resolver_config config;
    struct desk *desk;
    uv_async_t bell;
    uv_timer_t pace;
    unsigned n_handles;
    bool stopped;
    char why[WHY_SIZE];
};

/* ------------------------------------------------------------------ the desk */

/* Called with the lock held, which it lets go. */
static void give_up_share(struct desk *d)
{
    bool last = --d->n_shares == 0;

    (void)pthread_mutex_unlock(&d->lock); /* neither this nor its like can fail on a mutex that is sound */
    if (!last)
        return;
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

static struct desk *desk_create(const struct resolver_config *config)
{
    size_t size = strlen(config->host) + 1;
    struct desk *d = calloc(1, sizeof(*d) + size);

    if (!d)
        return NULL;
    (void)pthread_mutex_init(&d->lock, NULL); /* does not fail on Linux */
    memcpy(d->host, config->host, size);
    d->port = config->port;
    d->n_shares = 1;
    return d;
}

static void copy_addresses(const struct addrinfo *list, struct resolver_addresses *ret)
{
    ret->n = 0;
    for (const struct addrinfo *a = list; a && ret->n < RESOLVER_ADDRESSES_MAX; a = a->ai_next)
        if (a->ai_addrlen <= sizeof(ret->items[0]))
            memcpy(&ret->items[ret->n++], a->ai_addr, a->ai_addrlen);
}

/* The body of a thread, which owns a share. */
static void *ask(void *data)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct resolver_addresses found = {0};
    struct addrinfo *list = NULL;
    struct desk *d = data;
    char port[8];

    (void)snprintf(port, sizeof(port), "%u", d->port); /* fits */
    int error = getaddrinfo(d->host, port, &hints, &list);
    if (error == 0) {
        copy_addresses(list, &found);
        freeaddrinfo(list);
    }
    (void)pthread_mutex_lock(&d->lock);
    d->n_asking--;
    if (found.n > 0) {
        d->found = found;
        d->has_found = true;
    } else {
        d->error = error ? error : EAI_NONAME;
        d->has_error = true;
    }
    if (!d->deserted)
        (void)uv_async_send(d->bell); /* cannot fail on a handle that is open */
    give_up_share(d);
    return NULL;
}

/* Signals are the loop's. */
static int start_thread(void *(*body)(void *), void *data)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    int r = pthread_attr_init(&attributes);
    if (r)
        return -r;
    (void)pthread_attr_setdetachstate(&attributes,
                                      PTHREAD_CREATE_DETACHED); /* neither can fail with such values */
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&thread, &attributes, body, data);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
    return -r;
}

/* ------------------------------------------------------------------ the loop's side */

static void trouble(struct resolver *l, const char *why)
{
    (void)snprintf(l->why, sizeof(l->why), "%s", why); /* cut: still the best we have */
    if (l->config.on_trouble)
        l->config.on_trouble(l->config.data, l->why);
}

static void on_pace(uv_timer_t *timer)
{
    struct resolver *l = timer->data;
    struct desk *d = l->desk;

    (void)pthread_mutex_lock(&d->lock);
    bool may = d->n_asking < ASKING_MAX;
    if (may) {
        d->n_asking++;
        d->n_shares++;
    }
    (void)pthread_mutex_unlock(&d->lock);
    int r = may ? start_thread(ask, d) : 0;
    if (r == 0)
        return;
    (void)pthread_mutex_lock(&d->lock);
    d->n_asking--;
    give_up_share(d);
    trouble(l, strerror(-r));
}

static void on_bell(uv_async_t *bell)
{
    struct resolver *l = bell->data;
    struct desk *d = l->desk;
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
        (void)uv_timer_stop(&l->pace); /* cannot fail on a timer that exists */
        l->config.on_found(l->config.data, &found);
    } else if (has_error) {
        trouble(l, gai_strerror(error));
    }
}

static void on_closed(uv_handle_t *handle)
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
    (void)pthread_mutex_lock(&l->desk->lock);
    l->desk->deserted = true;
    give_up_share(l->desk);
    uv_close((uv_handle_t *)&l->bell, on_closed);
    uv_close((uv_handle_t *)&l->pace, on_closed);
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

int resolver_start(struct resolver **ret, const struct resolver_config *config)
{
    struct resolver *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    l->config = *config;
    l->desk = desk_create(config);
    int r = l->desk ? uv_async_init(config->loop, &l->bell, on_bell) : -ENOMEM;
    if (r) {
        free(l->desk);
        free(l);
        return r;
    }
    (void)uv_timer_init(config->loop, &l->pace); /* cannot fail */
    l->n_handles = 2;
    l->bell.data = l->pace.data = l;
    l->desk->bell = &l->bell;
    l->config.host = NULL;
    (void)snprintf(l->why, sizeof(l->why), "the resolver of this machine does not answer"); /* fits */
    (void)uv_timer_start(&l->pace, on_pace, 0, PACE_MS); /* fails only without a callback */
    *ret = l;
    return 0;
}
