#include "rendezvous/agents/rounds_look_uv.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/utf8.h"
#include "base/own_user_os.h"
#include "base/time.h"
#include "proto/tls_openssl.h"
#include "rendezvous/session/look_json.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

enum {
    STATUS_ALL_MAX = 64 << 20, /* bytes that the reports of all agents may take */
    WATCH_AGAIN_MS = LOOK_WATCH_MS / 2,
    NS_PER_MS = 1000000,
};

/* ---- permission ---- */

const char *rounds_look_fault(struct agent_conn *a, const struct look_request *request)
{
    /* A certificate is good for every job, but not for the list of all. */
    if (a->tls && tls_link_is_certified(a->tls))
        return tls_link_purpose(a->tls) == KEY_AGENT && request->job[0]
                   ? NULL
                   : "with a certificate one job is shown, by its id; all jobs are shown over a unix socket";
    if (a->tls && tls_link_purpose(a->tls) == KEY_ADMIN)
        return NULL;
    if (a->tls && tls_link_purpose(a->tls) == KEY_AGENT && strcmp(tls_link_job(a->tls), request->job) == 0)
        return NULL;
    if (!a->tls && own_user_is_peer(a->fd))
        return NULL;
    return "jobs are shown to clients that have proved the key of the job or of the administrator, and to root and the "
           "user of this rendezvous over a unix socket";
}

/* ---- what agents report ---- */

void rounds_look_forget(struct agent_conn *a)
{
    struct rounds_shell *r = a->shell;

    r->status_bytes -= buf_size(&a->status) + buf_size(&a->status_begun);
    buf_finish(&a->status);
    buf_finish(&a->status_begun);
}

/* The pieces of one status follow each other. The last one makes it that of the node. */
static void take_piece(struct agent_conn *a, const struct look_piece *piece, const uint8_t *body, size_t n)
{
    struct rounds_shell *r = a->shell;

    if (r->status_bytes + n > STATUS_ALL_MAX || frame_put_body(&a->status_begun, body, n) != 0)
        return;
    r->status_bytes += n + FRAME_HEADER_SIZE;
    if (++a->n_pieces < piece->pieces)
        return;
    r->status_bytes -= buf_size(&a->status);
    buf_finish(&a->status);
    a->status = a->status_begun;
    a->status_begun = (struct buf){0};
    a->status_ms = uv_now(a->server->loop);
}

void rounds_look_status(struct agent_conn *a, const struct look_piece *piece, const uint8_t *body, size_t n)
{
    struct rounds_shell *r = a->shell;

    if (uv_now(a->server->loop) > a->watched_until_ms + LOOK_WATCH_MS)
        return; /* it was not asked for */
    if (piece->piece == 0) {
        r->status_bytes -= buf_size(&a->status_begun);
        buf_finish(&a->status_begun);
        a->n_pieces = 0;
    }
    if (piece->piece == a->n_pieces)
        take_piece(a, piece, body, n);
}

static void send_watch(struct agent_conn *a, bool wants_stacks)
{
    const struct look_watch watch = {.ms = LOOK_WATCH_MS, .stacks = wants_stacks};
    _cleanup_(buf_finish) struct buf frame = {0};

    a->watched_until_ms = uv_now(a->server->loop) + LOOK_WATCH_MS;
    if (look_put_watch(&frame, &watch) == 0)
        agent_conn_send(a, &frame, 0);
}

static void watch_agent(struct agent_conn *a)
{
    if (a->can_report && a->watched_until_ms <= uv_now(a->server->loop) + WATCH_AGAIN_MS)
        send_watch(a, false);
}

/* One agent collects those of all nodes. */
static void ask_for_stacks(struct server *s, const struct rounds_job *job)
{
    job_each_node(n, job)
    {
        struct agent_conn *a = n->session ? list_entry(n->session, struct agent_conn, session) : NULL;

        if (!a || !n->member || !a->can_report || job->state != ROUNDS_RUNNING)
            continue;
        if (uv_now(s->loop) >= a->stacks_again_ms) {
            a->stacks_again_ms = uv_now(s->loop) + LOOK_STACKS_AGAIN_MS;
            send_watch(a, true);
        }
        return;
    }
}

/* ---- the answer ---- */

/* Whether the status of the agent is not of an earlier look. */
static bool has_status(const struct server *s, const struct agent_conn *a)
{
    return a->status_ms > 0 && uv_now(s->loop) <= a->status_ms + LOOK_WATCH_MS;
}

static int put_node_facts(const struct rounds_node *n, struct buf *out)
{
    uint64_t now_ns = boot_ns();
    struct look_node node = {.group_rank = n->group_rank, .n_workers = n->n_workers};

    text_copy(node.host, sizeof(node.host), n->host);
    text_copy(node.state, sizeof(node.state), rounds_node_state_names[n->state]);
    if (n->heard_ns < now_ns && (now_ns - n->heard_ns) / NS_PER_MS < INT32_MAX)
        node.silent_ms = (uint32_t)((now_ns - n->heard_ns) / NS_PER_MS);
    return look_put_node(out, &node);
}

static int put_whole_node(struct server *s, const struct rounds_node *n, struct buf *out)
{
    struct agent_conn *a = n->session ? list_entry(n->session, struct agent_conn, session) : NULL;
    int r = put_node_facts(n, out);

    if (!a || r)
        return r;
    watch_agent(a);
    return has_status(s, a) ? buf_append(out, buf_bytes(&a->status), buf_size(&a->status)) : 0;
}

static int put_job_facts(const struct rounds_job *job, struct buf *out)
{
    struct look_job facts = {.generation = job->generation,
                             .restarts = job->restarts,
                             .max_restarts = job->params.max_restarts,
                             .n_nodes = rounds_job_n_nodes(job)};

    text_copy(facts.job, sizeof(facts.job), job->id);
    text_copy(facts.state, sizeof(facts.state), rounds_job_state_names[job->state]);
    return look_put_job(out, &facts);
}

/* *at: nodes of all jobs so far. 1: there is no room for more. */
static int put_whole_job(struct server *s, const struct rounds_job *job, uint32_t from, size_t max,
                         uint32_t *at, struct buf *out)
{
    bool has_facts = false;

    if (list_is_empty(&job->nodes) && *at >= from)
        return put_job_facts(job, out);
    job_each_node(n, job)
    {
        if (++*at <= from)
            continue;
        if (buf_size(out) >= max) {
            --*at;
            return 1;
        }
        TRY(has_facts ? 0 : put_job_facts(job, out));
        has_facts = true;
        TRY(put_whole_node(s, n, out));
    }
    return 0;
}

int rounds_look(struct rounds_shell *shell, const struct look_request *request, size_t max, struct buf *out)
{
    uint32_t at = 0;
    int r = 0;

    rounds_each_job(job, &shell->core)
    {
        if (r || job->replaced || (request->job[0] && strcmp(job->id, request->job) != 0))
            continue;
        if (request->stacks && request->job[0] && request->from == 0)
            ask_for_stacks(shell->server, job);
        r = put_whole_job(shell->server, job, request->from, max, &at, out);
    }
    return r < 0 ? r : look_put_end(out, r ? at : 0);
}
