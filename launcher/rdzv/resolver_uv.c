/*
 * Each query is a side call without a deadline, whose data has a copy of the name: what is asked when the resolver stops is left.
 *
 * Ways it fails: the name does not exist (asked again, it may appear), the servers are silent (more threads ask, up to
 * ASKING_MAX), no thread can be started. Each is a reason for resolver_why().
 */

#include "launcher/rdzv/resolver_uv.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "launcher/util/side_thread_uv.h"
#include "base/err.h"

enum {
    INTERVAL_MS = 500,
    /* The number of queries that are begun while one hangs: two attempts at each of three silent servers, 5 s each. */
    ASKING_MAX = 64,
    WHY_SIZE = 128,
};

struct resolver_query {
    size_t slot;
    struct resolver_addresses found;
    int error;
    char port[8], host[];
};

struct resolver {
    struct resolver_config config;
    struct side_call *queries[ASKING_MAX]; /* NULL: a free slot */
    uv_timer_t interval;
    bool stopped;
    char why[WHY_SIZE];
    char host[];
};

/* ---- in a thread ---- */

static void copy_addresses(const struct addrinfo *list, struct resolver_addresses *ret)
{
    ret->n = 0;
    for (const struct addrinfo *a = list; a && ret->n < RESOLVER_ADDRESSES_MAX; a = a->ai_next)
        if (a->ai_addrlen <= sizeof(ret->items[0]))
            memcpy(&ret->items[ret->n++], a->ai_addr, a->ai_addrlen);
}

static void resolve(void *data)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct resolver_query *q = data;
    struct addrinfo *list = NULL;

    q->error = getaddrinfo(q->host, q->port, &hints, &list);
    if (q->error)
        return;
    copy_addresses(list, &q->found);
    freeaddrinfo(list);
    if (q->found.n == 0)
        q->error = EAI_NONAME;
}

/* ---- in the loop ---- */

static void report_trouble(struct resolver *l, const char *why)
{
    (void)snprintf(l->why, sizeof(l->why), "%s", why); /* truncated if long */
    if (l->config.on_trouble)
        l->config.on_trouble(l->config.data, l->why);
}

/* What is still asked is of no use any more. */
static void leave_queries(struct resolver *l)
{
    for (size_t i = 0; i < ARRAY_SIZE(l->queries); i++) {
        free(side_thread_cancel(l->queries[i]));
        l->queries[i] = NULL;
    }
}

static void on_answer(void *owner, void *data)
{
    struct resolver *l = owner;
    struct resolver_query *q = data;
    const struct resolver_addresses found = q->found;
    int error = q->error;

    l->queries[q->slot] = NULL;
    free(q);
    if (error) {
        report_trouble(l, gai_strerror(error));
        return;
    }
    (void)uv_timer_stop(&l->interval); /* cannot fail on a timer that exists */
    leave_queries(l);
    l->config.on_found(l->config.data, &found);
}

static int ask(struct resolver *l, size_t slot)
{
    size_t size = strlen(l->host) + 1;
    struct resolver_query *q = calloc(1, sizeof(*q) + size);
    const struct side_task task = {
        .kind = SIDE_OTHER, .run = resolve, .drop = free, .done = on_answer, .data = q, .owner = l};

    if (!q)
        return -ENOMEM;
    q->slot = slot;
    memcpy(q->host, l->host, size);
    (void)snprintf(q->port, sizeof(q->port), "%u", l->config.port); /* fits */
    int r = side_thread_submit(&l->queries[slot], l->config.loop, &task);
    if (r)
        free(q);
    return r;
}

static void on_interval(uv_timer_t *timer)
{
    struct resolver *l = timer->data;
    size_t slot = 0;

    while (slot < ASKING_MAX && l->queries[slot])
        slot++;
    int r = slot < ASKING_MAX ? ask(l, slot) : 0;
    if (r)
        report_trouble(l, strerror(-r));
}

static void on_resolver_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void resolver_stop(struct resolver *l)
{
    if (!l || l->stopped)
        return;
    l->stopped = true;
    leave_queries(l);
    uv_close((uv_handle_t *)&l->interval, on_resolver_closed);
}

const char *resolver_why(const struct resolver *l)
{
    return l->why;
}

bool resolver_numeric(const char *host, uint16_t port, struct resolver_addresses *ret)
{
    union address_endpoint a = {0};

    if (uv_ip4_addr(host, port, &a.v4) != 0 && uv_ip6_addr(host, port, &a.v6) != 0)
        return false;
    ret->n = 1;
    ret->items[0] = a;
    return true;
}

bool resolver_is_same(const union address_endpoint *a, const union address_endpoint *b)
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
    size_t size = strlen(config->host) + 1;
    struct resolver *l = calloc(1, sizeof(*l) + size);

    if (!l)
        return -ENOMEM;
    l->config = *config;
    l->config.host = NULL;
    memcpy(l->host, config->host, size);
    (void)uv_timer_init(config->loop, &l->interval); /* cannot fail */
    l->interval.data = l;
    (void)snprintf(l->why, sizeof(l->why), "the resolver of this machine does not answer"); /* fits */
    (void)uv_timer_start(&l->interval, on_interval, 0, INTERVAL_MS); /* fails only without a callback */
    *ret = l;
    return 0;
}
