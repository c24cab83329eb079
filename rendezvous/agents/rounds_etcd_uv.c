#include "rendezvous/agents/rounds_etcd_uv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/random_os.h"
#include "base/time.h"
#include "rendezvous/etcd/etcd_client_os.h"
#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/agents/rounds_state_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

enum { TROUBLE_MS = 10000, NS_PER_MS = 1000000 };

struct rounds_etcd {
    struct rounds_state state;
    struct etcd_leader leader;
    struct etcd_client *client; /* while the own crund takes part; else NULL */
    struct etcd_client_config config;
    uv_async_t answered;
    uv_timer_t timer;
    struct buf text;
    uint64_t troubled_ms;
};

static struct rounds_etcd *etcd_of(struct rounds_state *s)
{
    return (struct rounds_etcd *)s; /* the first member */
}

/* ---- changes of the role ---- */

static void log_trouble(struct rounds_etcd *e)
{
    uint64_t now_ms = uv_now(e->timer.loop);

    if (e->leader.trouble[0] == '\0' || (e->troubled_ms > 0 && now_ms - e->troubled_ms < TROUBLE_MS))
        return;
    e->troubled_ms = now_ms;
    rounds_log(e->state.shell, "etcd: %s; nothing is decided until it answers, and workers go on",
               e->leader.trouble);
}

static void take_change(struct rounds_etcd *e)
{
    switch (etcd_leader_change(&e->leader)) {
    case ETCD_ELECTED:
        rounds_log(e->state.shell, "leads, with term %lld", (long long)e->leader.term);
        rounds_shell_lead(e->state.shell);
        break;
    case ETCD_DEPOSED:
        rounds_log(e->state.shell, "leads no more: %s", e->leader.why);
        rounds_shell_depose(e->state.shell);
        break;
    case ETCD_NO_CHANGE:
        break;
    }
}

/* ---- requests ---- */

static void take_replies(struct rounds_etcd *e)
{
    struct etcd_reply reply;

    if (etcd_client_take(e->client, ETCD_LANE_WORK, &reply)) {
        etcd_leader_take_work(&e->leader, &reply, boot_ns());
        etcd_reply_finish(&reply);
        log_trouble(e);
    }
    if (etcd_client_take(e->client, ETCD_LANE_LEASE, &reply)) {
        etcd_leader_take_lease(&e->leader, &reply, boot_ns());
        etcd_reply_finish(&reply);
    }
}

static void send_requests(struct rounds_etcd *e)
{
    struct etcd_request request;

    if (etcd_leader_next_work(&e->leader, boot_ns(), &request))
        etcd_client_send(e->client, ETCD_LANE_WORK, &request);
    if (etcd_leader_next_lease(&e->leader, boot_ns(), &request))
        etcd_client_send(e->client, ETCD_LANE_LEASE, &request);
}

static void on_etcd_timer(uv_timer_t *timer);

static void arm_etcd_timer(struct rounds_etcd *e)
{
    uint64_t deadline_ns = etcd_leader_deadline(&e->leader), now_ns = boot_ns();
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS : 0;

    uv_update_time(e->timer.loop);
    (void)uv_timer_start(&e->timer, on_etcd_timer, ms, 0); /* cannot fail: has a callback */
}

/* Does all due work. Not from within a step of the rounds: the work may end the rounds. */
static void run_etcd(struct rounds_etcd *e)
{
    uint64_t done = e->leader.done;

    if (!e->client)
        return;
    rounds_shell_postpone(e->state.shell);
    take_replies(e);
    etcd_leader_tick(&e->leader, boot_ns());
    take_change(e);
    if (e->leader.done != done && e->leader.role == ETCD_LEADING)
        rounds_shell_saved(e->state.shell);
    if (!e->client)
        return;
    send_requests(e);
    arm_etcd_timer(e);
}

static void on_etcd_timer(uv_timer_t *timer)
{
    run_etcd(timer->data);
}

static void on_etcd_answered(uv_async_t *answered)
{
    run_etcd(answered->data);
}

/* In a thread of the client. */
static void wake_loop(void *data)
{
    struct rounds_etcd *e = data;

    (void)uv_async_send(&e->answered); /* cannot fail */
}

/* ---- the state's functions ---- */

static void etcd_start(struct rounds_state *s)
{
    struct rounds_etcd *e = etcd_of(s);

    server_open_timer(s->shell->server, &e->timer, e);
    /* Fails only without the descriptors of the loop. */
    (void)uv_async_init(s->shell->server->loop, &e->answered, on_etcd_answered);
    e->answered.data = e;
    server_handle_opened(s->shell->server);
}

static int etcd_advertise(struct rounds_state *s, const char *address)
{
    struct rounds_etcd *e = etcd_of(s);
    const char *why = NULL;

    (void)snprintf(e->leader.config.address, sizeof(e->leader.config.address), "%s", address);
    e->config.answered = wake_loop;
    e->config.data = e;
    int r = etcd_client_create(&e->client, &e->config, &why);
    if (r < 0) {
        rounds_log(s->shell, "the state cannot be kept in etcd: %s", why);
        return r;
    }
    run_etcd(e);
    return 0;
}

static void etcd_stop(struct rounds_state *s)
{
    struct rounds_etcd *e = etcd_of(s);

    etcd_client_destroy(e->client);
    e->client = NULL;
    server_close_handle(s->shell->server, &e->timer);
    server_close_handle(s->shell->server, &e->answered);
}

static void etcd_close(struct rounds_state *s)
{
    struct rounds_etcd *e = etcd_of(s);

    etcd_client_destroy(e->client);
    etcd_leader_finish(&e->leader);
    buf_finish(&e->text);
    free(e);
}

struct loading {
    struct rounds_etcd *etcd;
    struct rounds *rounds;
    uint64_t now_ns;
    bool is_refused; /* a job cannot be used */
};

/* A damaged job begins anew from the reports of the agents, like an unsaved job. A job of another version, beyond the limits or the
 * memory of the process is whole: another crund may be able to use the job, so a start with such a directory is refused, too. */
static void load_job(void *data, uint64_t instance, const uint8_t *text, size_t n)
{
    struct loading *l = data;
    char error[ROUNDS_JSON_ERROR_SIZE];

    if (!text) {
        rounds_log(l->etcd->state.shell, "the state of job instance %016" PRIx64 " in etcd is damaged",
                   instance);
    } else if (!rounds_json_load(l->rounds, text, n, l->now_ns, error)) {
        rounds_log(l->etcd->state.shell,
                   "%s (instance %016" PRIx64
                   " in etcd); this crund leaves the lead to another one, and tries again in a minute",
                   error, instance);
        l->is_refused = true;
    } else if (l->rounds->superseded) {
        etcd_leader_forget(&l->etcd->leader, l->rounds->superseded);
    }
}

static int etcd_load(struct rounds_state *s, struct rounds *rounds, uint64_t now_ns)
{
    struct rounds_etcd *e = etcd_of(s);
    struct loading loading = {.etcd = e, .rounds = rounds, .now_ns = now_ns};

    if (e->leader.role == ETCD_LEADING)
        etcd_leader_loaded(&e->leader, load_job, &loading);
    if (loading.is_refused) {
        rounds_reset(rounds);
        etcd_leader_retire(&e->leader, "it cannot use a job in etcd", boot_ns());
        return -EPROTO;
    }
    if (rounds->n_jobs > 0)
        rounds_log(s->shell, "%zu jobs with %zu nodes were read from etcd; nodes have %g s to return",
                   rounds->n_jobs, rounds->n_nodes, (double)rounds->config.grace_ns / 1e9);
    return 0;
}

/* Offset between the head and the nodes of rounds_json_save(). */
static size_t find_nodes(const struct buf *text)
{
    static const char begin[] = ",\"nodes\":[\n";
    const uint8_t *at =
        buf_size(text) > 0 ? memmem(buf_bytes(text), buf_size(text), begin, sizeof(begin) - 1) : NULL;

    return at ? (size_t)(at - buf_bytes(text)) : buf_size(text);
}

static void etcd_save(struct rounds_state *s, const struct rounds_job *job)
{
    struct rounds_etcd *e = etcd_of(s);

    buf_reset(&e->text);
    int r = rounds_json_save(&e->text, job);
    if (r < 0) {
        rounds_log(s->shell, "the state of a job cannot be saved: %s", strerror(-r));
        etcd_leader_resign(&e->leader);
        return;
    }
    size_t n_head = find_nodes(&e->text);
    etcd_leader_save(&e->leader, job->instance, buf_bytes(&e->text), n_head, buf_bytes(&e->text) + n_head,
                     buf_size(&e->text) - n_head);
    buf_reset(&e->text);
}

static void etcd_forget(struct rounds_state *s, const struct rounds_job *job)
{
    etcd_leader_forget(&etcd_of(s)->leader, job->instance);
}

static void etcd_write(struct rounds_state *s)
{
    struct rounds_etcd *e = etcd_of(s);

    if (!e->client)
        return;
    if (e->leader.change == ETCD_NO_CHANGE)
        send_requests(e);
    arm_etcd_timer(e);
}

static uint64_t etcd_mark(struct rounds_state *s, const struct rounds_job *job)
{
    return etcd_leader_want_mark(&etcd_of(s)->leader);
}

static uint64_t etcd_done(const struct rounds_state *s)
{
    return ((const struct rounds_etcd *)s)->leader.done; /* the first member */
}

static uint64_t etcd_unsaved(const struct rounds_state *s)
{
    return etcd_leader_unsaved(&((const struct rounds_etcd *)s)->leader); /* the first member */
}

static uint64_t etcd_term(const struct rounds_state *s)
{
    return (uint64_t)((const struct rounds_etcd *)s)->leader.term;
}

static const char *etcd_leader_at(const struct rounds_state *s)
{
    return etcd_leader_address(&((const struct rounds_etcd *)s)->leader);
}

static bool etcd_holds(const struct rounds_state *s, uint64_t now_ns)
{
    return etcd_leader_holds(&((const struct rounds_etcd *)s)->leader, now_ns);
}

static const struct rounds_state_kind etcd_kind = {
    .start = etcd_start,
    .stop = etcd_stop,
    .close = etcd_close,
    .load = etcd_load,
    .save = etcd_save,
    .forget = etcd_forget,
    .write = etcd_write,
    .mark = etcd_mark,
    .done = etcd_done,
    .unsaved = etcd_unsaved,
    .advertise = etcd_advertise,
    .term = etcd_term,
    .leader = etcd_leader_at,
    .holds = etcd_holds,
};

int rounds_etcd_open(struct rounds_state **ret, struct rounds_shell *shell, const char *url,
                     const struct etcd_access *access)
{
    _cleanup_free_ struct rounds_etcd *e = calloc(1, sizeof(*e));
    struct etcd_leader_config config = {0};
    const char *why = e ? etcd_url_parse(url, &e->config.url) : NULL;

    TRY(e ? random_fill(&config.id, sizeof(config.id)) : -ENOMEM);
    if (why) {
        rounds_log(shell, "--state %s: %s", url, why);
        return -EINVAL;
    }
    e->config.access = *access;
    (void)snprintf(config.prefix, sizeof(config.prefix), "%s", e->config.url.prefix);
    etcd_leader_init(&e->leader, &config);
    e->state = (struct rounds_state){.kind = &etcd_kind, .shell = shell};
    *ret = &steal_ptr(e)->state;
    return 0;
}
