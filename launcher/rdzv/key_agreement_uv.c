#include "launcher/rdzv/key_agreement_uv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/random_os.h"
#include "launcher/host/munge_os.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/rdzv/tcp_client_uv.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"
#include "proto/key_exchange.h"

enum {
    ATTEMPT_MS = 10000, /* munge of the other node may have many requests to open */
    RETRY_MIN_MS = 50,
    RETRY_MAX_MS = 1000,
    PATIENCE_MS = 2000, /* before the reason is printed */
    LOG_MS = 10000,
};

struct key_agreement {
    struct key_agreement_config config;
    struct side_call *call; /* of munge; NULL: none */
    struct tcp_client *client;
    uv_timer_t timer; /* the end of an attempt, or the beginning of the next one */
    uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE];
    struct buf request, in;
    unsigned n_attempts;
    uint32_t pause_ms;
    uint64_t began_ms, log_ms;
    char why[TLS_ERROR_SIZE + 64];
    bool has_sent;
};

/* One call of munge: it makes the request, or opens the reply. */
struct munge_call {
    struct munge_secret munge; /* the thread's copy; .secret: of the reply */
    char job[TLS_JOB_SIZE];
    uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE];
    char *credential;
    int result;
    char why[MUNGE_ERROR_SIZE];
};

static void begin_attempt(struct key_agreement *a);

/* ---- attempts ---- */

static void munge_call_free(void *data)
{
    struct munge_call *m = data;

    if (!m)
        return;
    free(m->credential);
    key_erase(&m->munge, sizeof(m->munge));
    free(m);
}

static void end_connection(struct key_agreement *a)
{
    tcp_client_close(steal_ptr(a->client));
    buf_reset(&a->in);
    a->has_sent = false;
}

static void on_next_attempt(uv_timer_t *timer)
{
    begin_attempt(timer->data);
}

static void end_attempt(struct key_agreement *a, const char *why)
{
    uint64_t now_ms = uv_now(a->config.loop), until_ms = a->began_ms + a->config.timeout_ms;

    (void)snprintf(a->why, sizeof(a->why), "%s", why); /* may cut */
    end_connection(a);
    munge_call_free(side_thread_cancel(steal_ptr(a->call)));
    a->n_attempts++;
    if (now_ms >= until_ms) {
        log_line(
            "the rendezvous at %s did not give this node the secret of the job for %u s (the join timeout): %s",
            a->config.endpoint, a->config.timeout_ms / 1000, a->why);
        (void)uv_timer_stop(&a->timer); /* cannot fail on a timer that exists */
        a->config.on_end(a->config.data, false);
        return;
    }
    if (now_ms >= a->log_ms) {
        a->log_ms = now_ms + LOG_MS;
        log_line(
            "the rendezvous at %s has not given this node the secret of the job yet: %s; trying again for %llu s",
            a->config.endpoint, a->why, (unsigned long long)((until_ms - now_ms + 999) / 1000));
    }
    a->pause_ms = a->pause_ms * 2 < RETRY_MAX_MS ? a->pause_ms * 2 : RETRY_MAX_MS;
    (void)uv_timer_start(&a->timer, on_next_attempt, a->pause_ms, 0); /* fails only without a callback */
}

static void on_attempt_timeout(uv_timer_t *timer)
{
    struct key_agreement *a = timer->data;

    end_attempt(a,
                !a->client
                    ? "munge does not answer on this node"
                    : "it does not answer; is it a crun of this version, and does munge answer on its node?");
}

/* ---- munge ---- */

/* NULL: out of memory. credential: n bytes, or NULL. */
static struct munge_call *munge_call_create(struct key_agreement *a, const char *credential, size_t n)
{
    _cleanup_free_ struct munge_call *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->munge = a->config.keys->kept->munge;
    (void)strcpy(m->job, a->config.keys->job); /* job_keys_init() has checked its length */
    memcpy(m->nonce, a->nonce, sizeof(m->nonce));
    if (credential && !(m->credential = strndup(credential, n)))
        return NULL;
    return steal_ptr(m);
}

static void begin_munge_call(struct key_agreement *a, struct munge_call *m, void (*run)(void *data),
                             void (*done)(void *owner, void *data))
{
    const struct side_task task = {
        .kind = SIDE_OTHER, .run = run, .drop = munge_call_free, .done = done, .data = m, .owner = a};
    int r = m ? side_thread_submit(&a->call, a->config.loop, &task) : -ENOMEM;

    if (r < 0) {
        munge_call_free(m);
        end_attempt(a, strerror(-r));
    }
}

/* In the thread. */
static void open_reply(void *data)
{
    struct munge_call *m = data;
    struct key_exchange_payload payload;
    const char *why;

    m->result = munge_open(&payload, m->munge.socket, m->credential, m->why);
    if (m->result < 0)
        return;
    why = key_reply_check(&payload, geteuid(), m->job, m->nonce, m->munge.secret);
    if (payload.n > 0)
        key_erase((void *)(uintptr_t)payload.bytes, payload.n);
    free((void *)(uintptr_t)payload.bytes);
    m->result = why ? -EPERM : 0;
    (void)snprintf(m->why, sizeof(m->why), "%s", why ? why : ""); /* fits */
}

static void on_reply_opened(void *owner, void *data)
{
    struct key_agreement *a = owner;
    struct munge_call *m = data;
    char why[CERTIFICATE_ERROR_SIZE + MUNGE_ERROR_SIZE];
    int r = m->result;

    a->call = NULL;
    (void)snprintf(why, sizeof(why), "%s%s",
                   r == -EPERM ? "" : "its reply cannot be opened: ", m->why); /* fits */
    if (r == 0)
        r = job_keys_renew(a->config.keys, &m->munge, why);
    munge_call_free(m);
    if (r < 0) {
        end_attempt(a, why);
        return;
    }
    (void)uv_timer_stop(&a->timer); /* as above */
    a->config.on_end(a->config.data, true);
}

/* ---- connection ---- */

static void on_agreement_bytes(void *data, const uint8_t *bytes, size_t n)
{
    struct key_agreement *a = data;
    struct key_exchange_frame frame;
    size_t size;

    int r = buf_size(&a->in) + n > KEY_EXCHANGE_FRAME_MAX ? KEY_EXCHANGE_E_BAD : buf_append(&a->in, bytes, n);
    if (r == 0)
        r = key_exchange_decode(buf_bytes(&a->in), buf_size(&a->in), &frame, &size);
    if (r == KEY_EXCHANGE_E_MORE)
        return;
    if (r != 0) {
        end_attempt(a, r == -ENOMEM ? "out of memory"
                                    : "it is another kind of server, or another version of crun");
    } else if (frame.code != KEY_EXCHANGE_CREDENTIAL) {
        end_attempt(a, key_exchange_refusal(frame.code));
    } else {
        struct munge_call *m = munge_call_create(a, frame.credential, frame.credential_size);
        end_connection(a);
        begin_munge_call(a, m, open_reply, on_reply_opened);
    }
}

static void on_agreement_connected(void *data)
{
    struct key_agreement *a = data;

    a->has_sent = true;
    tcp_client_send(a->client, buf_bytes(&a->request), buf_size(&a->request));
}

static void on_agreement_lost(void *data, const char *why)
{
    struct key_agreement *a = data;

    a->client = NULL;
    end_attempt(
        a, a->has_sent
               ? "it closed the connection: it takes part in no exchange by munge. Is munge running on "
                 "its node, and is it a crun? Else give all nodes a secret (--secret-file), or start all "
                 "with --security=open"
               : why);
}

static void on_request_made(void *owner, void *data)
{
    struct key_agreement *a = owner;
    struct munge_call *m = data;
    char why[sizeof(m->why) + 64];
    const struct tcp_client_config config = {.loop = a->config.loop,
                                             .addresses = a->config.addresses,
                                             .turn = a->n_attempts,
                                             .on_connected = on_agreement_connected,
                                             .on_bytes = on_agreement_bytes,
                                             .on_lost = on_agreement_lost,
                                             .data = a};
    int r = m->result;

    a->call = NULL;
    (void)snprintf(why, sizeof(why), "munge on this node: %s", m->why); /* fits */
    buf_reset(&a->request);
    if (r == 0) {
        r = key_exchange_put(&a->request, KEY_EXCHANGE_CREDENTIAL, m->credential, strlen(m->credential));
        if (r == 0)
            r = tcp_client_dial(&a->client, &config);
        (void)snprintf(why, sizeof(why), "%s", strerror(-r)); /* fits */
    }
    munge_call_free(m);
    if (r < 0) {
        a->client = NULL;
        end_attempt(a, why);
    }
}

/* In the thread. */
static void make_request(void *data)
{
    struct munge_call *m = data;
    _cleanup_(buf_finish) struct buf payload = {0};

    m->result = key_request_put(&payload, m->nonce, m->job);
    (void)snprintf(m->why, sizeof(m->why), "out of memory"); /* fits */
    if (m->result == 0)
        m->result = munge_make(&m->credential, m->munge.socket, &payload, geteuid(), m->why);
}

static void begin_attempt(struct key_agreement *a)
{
    (void)uv_timer_start(&a->timer, on_attempt_timeout, ATTEMPT_MS, 0); /* fails only without a callback */
    int r = random_fill(a->nonce, sizeof(a->nonce));
    if (r < 0)
        end_attempt(a, strerror(-r));
    else
        begin_munge_call(a, munge_call_create(a, NULL, 0), make_request, on_request_made);
}

/* ---- life ---- */

struct key_agreement *key_agreement_start(const struct key_agreement_config *config)
{
    static struct key_agreement agreement; /* a process has one job */
    struct key_agreement *a = &agreement;

    a->config = *config;
    a->pause_ms = RETRY_MIN_MS / 2;
    a->began_ms = uv_now(config->loop);
    a->log_ms = a->began_ms + PATIENCE_MS;
    (void)uv_timer_init(config->loop, &a->timer); /* cannot fail */
    a->timer.data = a;
    (void)uv_timer_start(&a->timer, on_next_attempt, 0, 0); /* fails only without a callback */
    return a;
}

void key_agreement_stop(struct key_agreement *a)
{
    if (!a)
        return;
    tcp_client_close(steal_ptr(a->client));
    munge_call_free(side_thread_cancel(steal_ptr(a->call)));
    uv_close((uv_handle_t *)&a->timer, NULL);
    buf_finish(&a->request);
    buf_finish(&a->in);
}
