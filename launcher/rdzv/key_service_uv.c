#include "launcher/rdzv/key_service_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "launcher/host/munge_os.h"
#include "launcher/rdzv/call_queue_uv.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/util/log_os.h"
#include "proto/key_exchange.h"
#include "rendezvous/keys/exchange_uv.h"

enum { REFUSALS_LOGGED = 10 };

struct key_service {
    struct server_exchange exchange;
    struct call_queue *queue;
    const struct job_keys *keys;
    struct list
        asking; /* calls: one for each connection, and those that the thread had when they were cancelled */
    unsigned n_refused;
};

struct exchange_call {
    struct blocking_call call;
    struct key_service *service; /* for the loop */
    struct list link;            /* in service.asking */
    struct exchange_conn *conn;  /* NULL: cancelled while the thread had it */
    struct munge_secret munge;   /* a copy, for the thread */
    char job[TLS_JOB_SIZE];
    char *request, *reply;
    enum key_exchange_code code;
    char why[MUNGE_ERROR_SIZE];
};

static void exchange_call_free(struct blocking_call *c)
{
    struct exchange_call *x = (struct exchange_call *)c;

    free(x->request);
    free(x->reply); /* encrypted */
    key_erase(&x->munge, sizeof(x->munge));
    free(x);
}

static void make_reply(struct exchange_call *x, const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE])
{
    struct buf payload = {0};
    int r = key_reply_put(&payload, nonce, x->munge.secret, x->job);

    if (r == 0)
        r = munge_make(&x->reply, x->munge.socket, &payload, geteuid(), x->why);
    if (r < 0)
        x->code = KEY_EXCHANGE_UNAVAILABLE;
    if (buf_size(&payload) > 0)
        key_erase(buf_bytes(&payload), buf_size(&payload));
    buf_finish(&payload);
}

/* In the thread. */
static void run_exchange(struct blocking_call *c)
{
    struct exchange_call *x = (struct exchange_call *)c;
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

static void on_exchanged(struct blocking_call *c)
{
    struct exchange_call *x = (struct exchange_call *)c;

    list_unlink(&x->link);
    if (x->code != KEY_EXCHANGE_CREDENTIAL && x->conn)
        log_refusal(x->service, x);
    if (x->conn)
        exchange_conn_reply(x->conn, x->code, x->reply, x->reply ? strlen(x->reply) : 0);
    exchange_call_free(c);
}

static int begin_exchange(void *data, struct exchange_conn *conn, const char *credential, size_t n)
{
    struct key_service *s = data;
    struct exchange_call *x = calloc(1, sizeof(*x)); /* their number is that of connections (exchange_uv.h) */

    if (!x)
        return -ENOMEM; /* the agent dials again */
    x->call = (struct blocking_call){.run = run_exchange, .done = on_exchanged, .drop = exchange_call_free};
    list_init(&x->call.link);
    x->service = s;
    x->conn = conn;
    x->munge = s->keys->kept->munge;
    (void)strcpy(x->job, s->keys->job); /* job_keys_init() has checked its length */
    x->request = strndup(credential, n);
    int r = x->request ? call_queue_push(s->queue, &x->call) : -ENOMEM;
    if (r < 0) {
        exchange_call_free(&x->call);
        return r;
    }
    list_append(&s->asking, &x->link);
    return 0;
}

static void cancel_exchange(void *data, struct exchange_conn *conn)
{
    struct key_service *s = data;

    list_for_each(i, &s->asking)
    {
        struct exchange_call *x = list_entry(i, struct exchange_call, link);

        if (x->conn != conn)
            continue;
        x->conn = NULL;
        if (call_queue_cancel(s->queue, &x->call)) { /* or it would take a place from those that wait */
            list_unlink(&x->link);
            exchange_call_free(&x->call);
        }
        return;
    }
}

const struct server_exchange *key_service_exchange(const struct key_service *s)
{
    return &s->exchange;
}

int key_service_create(struct key_service **ret, uv_loop_t *loop, const struct job_keys *keys)
{
    struct key_service *s = calloc(1, sizeof(*s));
    int r = s ? call_queue_create(&s->queue, loop) : -ENOMEM;

    if (r < 0) {
        free(s);
        return r;
    }
    s->exchange = (struct server_exchange){.begin = begin_exchange, .cancel = cancel_exchange, .data = s};
    s->keys = keys;
    list_init(&s->asking);
    *ret = s;
    return 0;
}

void key_service_stop(struct key_service *s)
{
    if (!s)
        return;
    call_queue_stop(s->queue);
    free(s);
}
