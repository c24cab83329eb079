#include "rendezvous/server/rounds_etcd_uv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"
#include "base/random_os.h"
#include "base/time.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "rendezvous/etcd/etcd_client_os.h"
#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/etcd/leader_silence.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/server/rounds_state_uv.h"
#include "rendezvous/server/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

enum { TROUBLE_MS = 10000, NS_PER_MS = 1000000 };

/*
 * The connection to the crund that leads. When that ends and the kernel there refuses a new one, its process has ended. A host that is
 * lost sends nothing, and is found by leader_silence.h: its place is taken sooner than at the end of its lease, as etcd prolongs all
 * leases when a member of its own is lost with that host.
 */
struct leader_watch {
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write, ping_write;
    struct server *server;
    struct rounds_etcd *etcd; /* NULL: it is being closed */
    struct buf greeting, ping;
    char address[ETCD_ADDRESS_SIZE];
    char scratch[256];
};

struct rounds_etcd {
    struct rounds_state state;
    struct etcd_leader leader;
    struct etcd_client *client;
    struct etcd_client_config config;
    uv_async_t answered;
    uv_timer_t timer;
    struct leader_watch *watch; /* NULL: none */
    uint64_t watch_due_ms;
    struct leader_silence silence;
    uint64_t tick_ms;    /* the next one of that */
    uint64_t watched_id; /* of the crund that is watched */
    struct buf text;
    uint64_t troubled_ms;
    size_t n_disproved; /* of the leader, logged */
    bool advertised;    /* it takes part */
    bool is_stopping;
};

static void run_etcd(struct rounds_etcd *e);

static struct rounds_etcd *etcd_of(struct rounds_state *s)
{
    return (struct rounds_etcd *)s; /* its first member */
}

/* ---- the connection to the leader ---- */

static void on_watch_closed(uv_handle_t *handle)
{
    struct leader_watch *w = handle->data;
    struct server *s = w->server;

    buf_finish(&w->greeting);
    buf_finish(&w->ping);
    free(w);
    server_handle_closed(s);
}

static void close_watch(struct rounds_etcd *e)
{
    struct leader_watch *w = e->watch;

    e->watch = NULL;
    if (!w)
        return;
    w->etcd = NULL;
    uv_close((uv_handle_t *)&w->tcp, on_watch_closed);
}

/* error: 0 or -errno, as of libuv. */
static void note_watch_end(struct rounds_etcd *e, int error)
{
    if (leader_silence_ended(&e->silence, error))
        etcd_leader_suspect(&e->leader, e->watch->address, boot_ns());
}

/* It has ended, or could not be made. */
static void watch_ended(struct leader_watch *w, int error)
{
    struct rounds_etcd *e = w->etcd;

    if (!e)
        return;
    note_watch_end(e, error);
    e->watch_due_ms = uv_now(w->tcp.loop) + leader_silence_pause_ms(&e->silence, error);
    close_watch(e);
    run_etcd(e);
}

static void on_watch_room(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    struct leader_watch *w = handle->data;

    *ret = uv_buf_init(w->scratch, sizeof(w->scratch));
}

static void on_watch_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *room)
{
    struct leader_watch *w = stream->data;

    if (n < 0)
        watch_ended(w, 0);
    if (n <= 0 || !w->etcd)
        return;
    leader_silence_answered(&w->etcd->silence);
    etcd_leader_answered(&w->etcd->leader, w->address);
}

static void on_watch_written(uv_write_t *write, int status)
{
    (void)status; /* the read has the same error */
}

static void on_watch_connected(uv_connect_t *connect, int status)
{
    struct leader_watch *w = connect->data;
    uv_buf_t greeting = uv_buf_init((char *)buf_bytes(&w->greeting), (unsigned)buf_size(&w->greeting));

    if (status == UV_ECANCELED)
        return;
    if (status == 0 && w->etcd)
        etcd_leader_connected(&w->etcd->leader, w->address);
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&w->tcp, on_watch_room, on_watch_read);
    if (status == 0) /* as a client of the store, or it would be closed after a while */
        status = uv_write(&w->write, (uv_stream_t *)&w->tcp, &greeting, 1, on_watch_written);
    if (status < 0)
        watch_ended(w, status);
}

/* HOST:PORT or [IPV6]:PORT, numeric. */
static bool parse_address(const char *text, struct sockaddr_storage *ret)
{
    char host[ETCD_ADDRESS_SIZE];
    const char *colon = strrchr(text, ':');
    bool is_v6 = text[0] == '[' && colon && colon[-1] == ']';
    uint64_t port;

    if (!colon || !decimal_parse(colon + 1, 1, UINT16_MAX, &port))
        return false;
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - text) - (is_v6 ? 2 : 0), text + is_v6);
    return (is_v6 ? uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)ret)
                  : uv_ip4_addr(host, (int)port, (struct sockaddr_in *)ret)) == 0;
}

static int connect_watch(struct leader_watch *w, const struct sockaddr_storage *to)
{
    if (frame_put_greeting(&w->greeting, 1) < 0 || wire_put_word(&w->ping, WIRE_OP_PING, 1) < 0)
        return -ENOMEM;
    return uv_tcp_connect(&w->connect, &w->tcp, (const struct sockaddr *)to, on_watch_connected);
}

static void open_watch(struct rounds_etcd *e, const char *address)
{
    struct sockaddr_storage to = {0};
    struct leader_watch *w = parse_address(address, &to) ? calloc(1, sizeof(*w)) : NULL;
    uv_loop_t *loop = e->timer.loop;
    int r;

    e->watch_due_ms = uv_now(loop) + LEADER_TICK_MS;
    if (e->watched_id == e->leader.seen_id)
        leader_silence_reopened(&e->silence);
    else
        leader_silence_begin(&e->silence);
    e->watched_id = e->leader.seen_id;
    if (!w)
        return;
    (void)uv_tcp_init(loop, &w->tcp); /* cannot fail without a socket */
    w->tcp.data = w->connect.data = w;
    w->etcd = e;
    w->server = e->state.shell->server;
    server_handle_opened(w->server);
    e->watch = w;
    e->tick_ms = uv_now(loop) + LEADER_TICK_MS;
    (void)snprintf(w->address, sizeof(w->address), "%s", address);
    r = connect_watch(w, &to);
    if (r < 0) {
        note_watch_end(e, r);
        close_watch(e); /* another attempt follows */
    }
}

static void ping_leader(struct leader_watch *w)
{
    uv_buf_t ping = uv_buf_init((char *)buf_bytes(&w->ping), (unsigned)buf_size(&w->ping));

    /* Where it fails no answer comes. The write before has ended: it was answered. */
    (void)uv_write(&w->ping_write, (uv_stream_t *)&w->tcp, &ping, 1, on_watch_written);
}

static void reopen_watch(struct rounds_etcd *e)
{
    char address[ETCD_ADDRESS_SIZE];

    memcpy(address, e->watch->address, sizeof(address));
    close_watch(e);
    open_watch(e, address);
}

static void replace_leader(struct rounds_etcd *e)
{
    const char *address = etcd_leader_address(&e->leader);

    if (etcd_leader_presume_lost(&e->leader, address, boot_ns()))
        rounds_log(e->state.shell, "the crund at %s, which leads, answers nothing: this one takes its place",
                   address);
}

static void take_step(struct rounds_etcd *e, enum leader_step step)
{
    if (step == LEADER_STEP_PING)
        ping_leader(e->watch);
    else if (step == LEADER_STEP_REOPEN && e->watch)
        reopen_watch(e);
    else if (step == LEADER_STEP_REPLACE)
        replace_leader(e);
}

static void tick_watch(struct rounds_etcd *e)
{
    uint64_t now_ms = uv_now(e->timer.loop);

    if (!e->watch || now_ms < e->tick_ms)
        return;
    e->tick_ms = now_ms + LEADER_TICK_MS;
    take_step(e, leader_silence_tick(&e->silence));
}

static void note_etcd_answer(struct rounds_etcd *e)
{
    if (e->leader.role == ETCD_FOLLOWING && e->watched_id == e->leader.seen_id)
        take_step(e, leader_silence_etcd_answered(&e->silence));
}

static void update_watch(struct rounds_etcd *e)
{
    const char *address = e->leader.role == ETCD_FOLLOWING ? etcd_leader_address(&e->leader) : "";

    if (e->leader.role == ETCD_LEADING)
        e->watched_id = 0; /* what is followed next is watched from its beginning */
    if (e->watch && (e->is_stopping || e->leader.role != ETCD_FOLLOWING ||
                     (address[0] != '\0' && strcmp(e->watch->address, address) != 0)))
        close_watch(e);
    if (!e->watch && !e->is_stopping && address[0] != '\0' && uv_now(e->timer.loop) >= e->watch_due_ms)
        open_watch(e, address);
    tick_watch(e);
}

/* ---- what becomes of this crund ---- */

static void log_disproved(struct rounds_etcd *e)
{
    if (e->leader.n_disproved == e->n_disproved)
        return;
    e->n_disproved = e->leader.n_disproved;
    rounds_log(e->state.shell,
               "the crund at %s leads, and its address refuses connections from here: check its --advertise; "
               "when it ends, the end of its lease is waited for",
               e->leader.seen_address);
}

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
    bool is_answer;

    if (etcd_client_take(e->client, ETCD_LANE_WORK, &reply)) {
        is_answer = reply.outcome == ETCD_OK;
        etcd_leader_take_work(&e->leader, &reply, boot_ns());
        etcd_reply_finish(&reply);
        if (is_answer)
            note_etcd_answer(e);
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

static void on_etcd_timer(uv_timer_t *timer)
{
    run_etcd(timer->data);
}

static void arm_etcd_timer(struct rounds_etcd *e)
{
    uint64_t deadline_ns = etcd_leader_deadline(&e->leader), now_ns = boot_ns();
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS : 0;
    uint64_t watch_ms = e->watch ? e->tick_ms : e->watch_due_ms, now_ms;

    uv_update_time(e->timer.loop);
    now_ms = uv_now(e->timer.loop);
    watch_ms = watch_ms > now_ms ? watch_ms - now_ms : e->watch ? 0 : LEADER_TICK_MS;
    /* cannot fail: has a callback */
    (void)uv_timer_start(&e->timer, on_etcd_timer, ms < watch_ms ? ms : watch_ms, 0);
}

/* Everything that is due. Not from within a step of the rounds, which it may end. */
static void run_etcd(struct rounds_etcd *e)
{
    uint64_t done = e->leader.done;

    if (e->is_stopping || !e->advertised)
        return;
    rounds_shell_postpone(e->state.shell);
    take_replies(e);
    log_disproved(e);
    etcd_leader_tick(&e->leader, boot_ns());
    take_change(e);
    if (e->leader.done != done && e->leader.role == ETCD_LEADING)
        rounds_shell_saved(e->state.shell);
    if (e->is_stopping)
        return;
    send_requests(e);
    update_watch(e);
    arm_etcd_timer(e);
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
    uv_loop_t *loop = s->shell->server->loop;

    (void)uv_timer_init(loop, &e->timer); /* neither can fail but for descriptors of the loop, which exist */
    (void)uv_async_init(loop, &e->answered, on_etcd_answered);
    e->timer.data = e->answered.data = e;
    server_handle_opened(s->shell->server);
    server_handle_opened(s->shell->server);
}

static int etcd_advertise(struct rounds_state *s, const char *address)
{
    struct rounds_etcd *e = etcd_of(s);
    const char *why = NULL;
    int r;

    (void)snprintf(e->leader.config.address, sizeof(e->leader.config.address), "%s", address);
    e->config.answered = wake_loop;
    e->config.data = e;
    r = etcd_client_create(&e->client, &e->config, &why);
    if (r < 0) {
        rounds_log(s->shell, "the state cannot be kept in etcd: %s", why);
        return r;
    }
    e->advertised = true;
    run_etcd(e);
    return 0;
}

static void on_etcd_handle_closed(uv_handle_t *handle)
{
    struct rounds_etcd *e = handle->data;

    server_handle_closed(e->state.shell->server);
}

static void etcd_stop(struct rounds_state *s)
{
    struct rounds_etcd *e = etcd_of(s);

    e->is_stopping = true;
    close_watch(e);
    etcd_client_destroy(e->client);
    e->client = NULL;
    uv_close((uv_handle_t *)&e->timer, on_etcd_handle_closed);
    uv_close((uv_handle_t *)&e->answered, on_etcd_handle_closed);
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

/* A damaged job begins anew with what its agents know, as one that was not saved. One of a newer release, beyond the limits or the
 * memory of this process is whole: it is left to a crund that can use it, as a start with such a directory is refused. */
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

/* Between the head and the nodes, as rounds_json_save() writes them. */
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
    size_t n_head;
    int r;

    buf_reset(&e->text);
    r = rounds_json_save(&e->text, job);
    if (r < 0) {
        rounds_log(s->shell, "the state of a job cannot be saved: %s", strerror(-r));
        etcd_leader_resign(&e->leader);
        return;
    }
    n_head = find_nodes(&e->text);
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

    if (!e->advertised || e->is_stopping)
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
    return etcd_leader_done(&((const struct rounds_etcd *)s)->leader); /* its first member */
}

static uint64_t etcd_unsaved(const struct rounds_state *s)
{
    return etcd_leader_unsaved(&((const struct rounds_etcd *)s)->leader); /* its first member */
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
    struct rounds_etcd *e = calloc(1, sizeof(*e));
    struct etcd_leader_config config = {0};
    const char *why = e ? etcd_url_parse(url, &e->config.url) : NULL;
    int r = e ? random_fill(&config.id, sizeof(config.id)) : -ENOMEM;

    if (r == 0 && why) {
        rounds_log(shell, "--state %s: %s", url, why);
        r = -EINVAL;
    }
    if (r < 0) {
        free(e);
        return r;
    }
    e->config.access = *access;
    (void)snprintf(config.prefix, sizeof(config.prefix), "%s", e->config.url.prefix);
    etcd_leader_init(&e->leader, &config);
    e->state = (struct rounds_state){.kind = &etcd_kind, .shell = shell};
    *ret = &e->state;
    return 0;
}
