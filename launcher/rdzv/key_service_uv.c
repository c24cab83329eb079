#include "launcher/rdzv/key_service_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/list.h"
#include "launcher/host/munge_os.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"
#include "proto/key_exchange.h"
#include "rendezvous/keys/exchange_uv.h"

enum { REFUSALS_LOGGED = 10 };

struct key_service {
    struct server_exchange exchange;
    uv_loop_t *loop;
    const struct job_keys *keys;
    struct list asking; /* calls of the connections in order of arrival; the thread has the first call */
    struct side_call
        *call; /* of the first in `asking`; NULL: no connection asks, or no thread could be had */
    unsigned n_refused;
};

struct exchange_call {
    struct list link;           /* for the loop: in key_service.asking */
    struct exchange_conn *conn; /* for the loop; NULL: cancelled in the thread */
    struct munge_secret munge;  /* a copy, for the thread */
    char job[TLS_JOB_SIZE];
    char *request, *reply;
    enum key_exchange_code code;
    char why[MUNGE_ERROR_SIZE];
};

static void exchange_call_free(void *data)
{
    struct exchange_call *x = data;

    if (!x)
        return;
    free(x->request);
    free(x->reply); /* encrypted */
    key_erase(&x->munge, sizeof(x->munge));
    free(x);
}

static void make_reply(struct exchange_call *x, const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE])
{
    _cleanup_(buf_finish) struct buf payload = {0};
    int r = key_reply_put(&payload, nonce, x->munge.secret, x->job);

    if (r == 0)
        r = munge_make(&x->reply, x->munge.socket, &payload, geteuid(), x->why);
    if (r < 0)
        x->code = KEY_EXCHANGE_UNAVAILABLE;
    if (buf_size(&payload) > 0)
        key_erase(buf_bytes(&payload), buf_size(&payload));
}

/* In the thread. */
static void run_exchange(void *data)
{
    struct exchange_call *x = data;
    struct key_exchange_payload payload;
    uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE];
    int r = munge_open(&payload, x->munge.socket, x->request, x->why);

    x->code = r == -EIO ? KEY_EXCHANGE_UNAVAILABLE : KEY_EXCHANGE_REFUSED;
    if (r < 0)
        return;
    x->code = key_request_check(&payload, geteuid(), x->job, nonce);
    free((void *)(uintptr_t)payload.bytes);
    if (x->code == KEY_EXCHANGE_CREDENTIAL)
        make_reply(x, nonce);
}

static void log_refusal(struct key_service *s, const struct exchange_call *x)
{
    if (s->n_refused++ < REFUSALS_LOGGED)
        log_line("rendezvous: an agent was refused the secret of this job: %s",
                 x->why[0]                           ? x->why
                 : x->code == KEY_EXCHANGE_OTHER_JOB ? "it is of another job"
                                                     : "it is of another user");
}

static void on_exchanged(void *owner, void *data);

static struct exchange_call *first_call(const struct key_service *s)
{
    return list_is_empty(&s->asking) ? NULL : list_entry(s->asking.next, struct exchange_call, link);
}

/* Begins the first call. A munged without answer holds a single thread. Without a thread the call waits for the next connection. */
static int begin_next(struct key_service *s)
{
    const struct side_task task = {.kind = SIDE_OTHER,
                                   .run = run_exchange,
                                   .drop = exchange_call_free,
                                   .done = on_exchanged,
                                   .data = first_call(s),
                                   .owner = s};

    return task.data && !s->call ? side_thread_submit(&s->call, s->loop, &task) : 0;
}

static void on_exchanged(void *owner, void *data)
{
    struct key_service *s = owner;
    struct exchange_call *x = data;

    s->call = NULL;
    list_unlink(&x->link);
    (void)begin_next(s);
    if (x->code != KEY_EXCHANGE_CREDENTIAL && x->conn)
        log_refusal(s, x);
    if (x->conn)
        exchange_conn_reply(x->conn, x->code, x->reply, x->reply ? strlen(x->reply) : 0);
    exchange_call_free(x);
}

static int begin_exchange(void *data, struct exchange_conn *conn, const char *credential, size_t n)
{
    struct key_service *s = data;
    struct exchange_call *x = calloc(1, sizeof(*x)); /* as many as connections (exchange_uv.h) */

    if (!x)
        return -ENOMEM; /* the agent dials again */
    list_append(&s->asking, &x->link);
    x->conn = conn;
    x->munge = s->keys->kept->munge;
    (void)strcpy(x->job, s->keys->job); /* job_keys_init() has checked the length */
    x->request = strndup(credential, n);
    int r = x->request ? begin_next(s) : -ENOMEM;
    if (r < 0) {
        list_unlink(&x->link);
        exchange_call_free(x);
    }
    return r;
}

static void cancel_exchange(void *data, struct exchange_conn *conn)
{
    struct key_service *s = data;

    list_for_each_entry(struct exchange_call, x, &s->asking, link)
    {
        if (x->conn != conn)
            continue;
        x->conn = NULL;
        if (!s->call || x != first_call(s)) { /* a waiting call would take a place from other connections */
            list_unlink(&x->link);
            exchange_call_free(x);
        }
        return;
    }
}

const struct server_exchange *key_service_exchange(const struct key_service *s)
{
    return &s->exchange;
}

struct key_service *key_service_create(uv_loop_t *loop, const struct job_keys *keys)
{
    static struct key_service service; /* a process has one job */
    struct key_service *s = &service;

    s->loop = loop;
    s->exchange = (struct server_exchange){.begin = begin_exchange, .cancel = cancel_exchange, .data = s};
    s->keys = keys;
    list_init(&s->asking);
    return s;
}

void key_service_stop(struct key_service *s)
{
    if (!s)
        return;
    if (s->call)
        list_unlink(s->asking.next);
    exchange_call_free(side_thread_cancel(s->call));
    list_for_each_entry_safe(struct exchange_call, x, &s->asking, link) exchange_call_free(x);
}
