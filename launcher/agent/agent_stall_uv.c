#include "launcher/agent/agent_stall_uv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/time.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/agent/hang_report_uv.h"
#include "launcher/ctl/hang_message_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/report/events.h"
#include "launcher/util/log_os.h"
#include "launcher/watch/hang_collect.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/slow.h"
#include "launcher/watch/stall.h"
#include "launcher/watch/store_waits.h"
#include "launcher/watch/watch_uv.h"
#include "rendezvous/server/server_uv.h"

enum {
    COLLECT_MS = 2500, /* for the ranks of all nodes */
    STACKS_MS = 4500,  /* the same with stacks: a second before the look, and three for a slow tool */
    GROUPS_IN_HEADLINE = 2,
    TRIES = 2, /* of collections before a line with missing nodes */
};

struct agent_stall {
    const struct agent_host *host;
    struct stall stall;  /* of the job: on node 0, or without a rendezvous */
    struct slow slow;    /* the same */
    uint64_t generation; /* of the members below */
    bool is_asked;       /* node 0 waits for the own ranks */
    bool was_unusual;    /* node 0 knows of an own rank that waits unusually long */
    int awaited;         /* rank, in the last report of a stall that goes on; -1: none */
    /* Node 0. */
    bool *are_unusual; /* per node: a rank there waits unusually long */
    size_t n_nodes;
    int n_unusual; /* of these nodes */
    bool wants_stacks;
    int n_tries;                 /* of collections that nodes were missing in, since the last whole one */
    struct hang_collect collect; /* without nodes: nothing is collected */
    uv_timer_t timer;            /* bounds the collection */
};

/* ---- printing ---- */

static void print_notice(struct agent_stall *s, const struct hang_notice *m)
{
    bool is_stall = m->kind == HANG_NOTICE_STALL;
    const struct event_hang event = {
        .rank = m->rank, .groups = m->text, .stall = is_stall ? &m->stall : NULL};

    if (m->kind != HANG_NOTICE_SLOW)
        s->awaited = m->rank;
    if (m->kind == HANG_NOTICE_GOES_ON)
        log_each_line(m->text);
    else
        hang_report_print(s->host, is_stall ? EVENT_STALL : EVENT_SLOW, &event);
}

/* ---- messages ---- */

static bool has_other_nodes(const struct agent_stall *s)
{
    return s->host->membership && s->host->assignment->group_world_size > 1;
}

static bool is_node_0(const struct agent_stall *s)
{
    return s->host->assignment->group_rank == 0;
}

/* A lost notice to print is repeated after the pause; others at the next look. */
static void announce(struct agent_stall *s, const struct hang_notice *m)
{
    if (has_other_nodes(s))
        (void)hang_report_notify(s->host, AGENT_MESSAGE_TO_ALL, m);
    print_notice(s, m);
}

/* ---- the decision ---- */

static void report(struct agent_stall *s, const struct hang_rank *ranks, size_t n_ranks, bool stands_out)
{
    struct hang_notice m = {.kind = HANG_NOTICE_STALL, .rank = stands_out ? ranks[0].rank : -1};
    _cleanup_free_ char *headline = stall_text(ranks, n_ranks, stands_out, &m.stall),
                        *groups = hang_text(ranks, n_ranks, stands_out);
    size_t n_silent = hang_collect_count_silent(&s->collect);
    char silent[64] = "";

    if (!headline || !groups)
        return; /* without memory: again after the pause */
    if (n_silent > 0)
        (void)snprintf(silent, sizeof(silent), "; %zu node%s not answered", n_silent,
                       n_silent == 1 ? " has" : "s have"); /* fits */
    (void)snprintf(m.text, sizeof(m.text), "stall: %s%s\n%s", headline, silent,
                   hang_count_groups(ranks, n_ranks) > GROUPS_IN_HEADLINE ? groups : ""); /* may be cut */
    announce(s, &m);
}

/* ranks: of all nodes, sorted. */
static void decide(struct agent_stall *s, const struct hang_rank *ranks, size_t n_ranks, bool stands_out)
{
    enum stall_verdict verdict = stall_step(&s->stall, now_ns(), ranks, n_ranks, stands_out);

    s->wants_stacks = verdict == STALL_ASK;
    if (verdict == STALL_NOTHING && s->stall.has_asked)
        watch_ask_ranks(s->host->watch, false); /* a line is near: look again within a second */
    if (verdict == STALL_REPORT)
        report(s, ranks, n_ranks, stands_out);
    if (verdict == STALL_GOES_ON)
        announce(s, &(struct hang_notice){
                        .kind = HANG_NOTICE_GOES_ON, .rank = -1, .text = "stall: the ranks go on"});
}

static void judge_slowness(struct agent_stall *s, const struct hang_rank *ranks, size_t n_ranks)
{
    const struct hang_rank *rank = slow_step(&s->slow, now_ns(), ranks, n_ranks);

    if (!rank)
        return;
    struct hang_notice m = {.kind = HANG_NOTICE_SLOW, .rank = rank->rank};
    slow_text(&s->slow, rank, m.text, sizeof(m.text));
    announce(s, &m);
}

/* ---- keys of the worker store ---- */

static void add_store_wait(void *data, const char *host, uint16_t port, struct wire_span key, size_t n_keys)
{
    store_waits_add(data, store_client_of(host, port), (const char *)key.data, key.size, n_keys);
}

/* Sorts the ranks of all nodes, with the keys that they wait for where the store is served here. */
static bool sort_ranks(const struct agent_stall *s, struct hang_rank *ranks, size_t n_ranks)
{
    const struct server *store = s->host->generation ? s->host->generation->server : NULL;
    _cleanup_free_ struct store_waits *waits = store ? calloc(1, sizeof(*waits)) : NULL;

    if (waits) {
        waits->n_ranks = n_ranks;
        server_visit_waits(store, STORE_WAITS_MAX, add_store_wait, waits);
        store_waits_end(waits, ranks);
    }
    return hang_sort(ranks, n_ranks);
}

/* ---- node 0: the ranks of all nodes ---- */

static void end_collection(struct agent_stall *s)
{
    hang_collect_finish(&s->collect);
    (void)uv_timer_stop(&s->timer); /* cannot fail on a timer that exists */
}

/* Asks for the ranks of the own node: behind the end of the own workers there are none. */
static void ask_own(struct agent_stall *s, bool with_stacks)
{
    static const struct hang_rank none;

    s->is_asked = s->host->group->state == GROUP_RUNNING;
    if (s->is_asked)
        watch_ask_ranks(s->host->watch, with_stacks);
    else if (is_node_0(s))
        hang_collect_add(&s->collect, &(struct hang_piece){.node = 0, .pieces = 1});
    else
        hang_report_send(s->host, &none, 0, 0, HANG_FOR_STALL);
}

/* Bounded in time, see on_collected(). */
static void on_collected(uv_timer_t *timer);

static void begin_collection(struct agent_stall *s)
{
    const struct rank_assignment *ranks = s->host->assignment;

    if (s->collect.n_nodes > 0 || !stall_may_look(&s->stall, now_ns(), ranks->world_size) ||
        hang_collect_begin(&s->collect, ranks->group_world_size, ranks->world_size) != 0)
        return;
    bool is_first = s->n_unusual > 0 && s->stall.longest_ns == 0;
    const struct hang_notice ask = {
        .kind = HANG_NOTICE_ASK, .rank = -1, .with_stacks = s->wants_stacks || is_first};

    ask_own(s, ask.with_stacks);
    (void)hang_report_notify(s->host, AGENT_MESSAGE_TO_ALL, &ask);
    (void)uv_timer_start(&s->timer, on_collected, ask.with_stacks ? STACKS_MS : COLLECT_MS,
                         0); /* fails only without a callback */
}

static void decide_for_all(struct agent_stall *s)
{
    bool stands_out = sort_ranks(s, s->collect.ranks, s->collect.n_ranks);

    s->n_tries = 0;
    decide(s, s->collect.ranks, s->collect.n_ranks, stands_out);
    judge_slowness(s, s->collect.ranks, s->collect.n_ranks);
    end_collection(s);
    if (s->wants_stacks)
        begin_collection(s);
}

/*
 * The missing ranks may be the ranks that wait: without them a stall does not end. The awaited rank may be missing, too: on a busy
 * machine a node answers late, so all nodes are asked again before a line names another rank.
 */
static void on_collected(uv_timer_t *timer)
{
    struct agent_stall *s = timer->data;
    bool is_stall = stall_is_any_unusual(s->collect.ranks, s->collect.n_ranks);

    if (is_stall && s->n_tries < TRIES) {
        s->n_tries++;
        end_collection(s);
        begin_collection(s);
    } else if (is_stall) {
        decide_for_all(s);
    } else {
        judge_slowness(s, s->collect.ranks, s->collect.n_ranks);
        end_collection(s);
    }
}

static void take_note(struct agent_stall *s, const struct hang_notice *note)
{
    if (!s->are_unusual || note->node < 0 || (size_t)note->node >= s->n_nodes)
        return;
    s->n_unusual += (note->n_unusual > 0) - s->are_unusual[note->node];
    s->are_unusual[note->node] = note->n_unusual > 0;
    if (s->n_unusual == 0)
        decide(s, NULL, 0, false);
    if (s->n_unusual > 0 || (note->waits_mostly && slow_is_due(&s->slow, now_ns())))
        begin_collection(s);
}

/* ---- generations ---- */

static void forget_generation(struct agent_stall *s)
{
    size_t n_nodes = is_node_0(s) ? s->host->assignment->group_world_size : 0;

    end_collection(s);
    s->stall = (struct stall){.longest_ns = 0};
    s->slow = (struct slow){.checked_ns = 0};
    s->generation = s->host->group->generation;
    s->is_asked = s->was_unusual = false;
    s->n_tries = 0;
    s->awaited = -1;
    free(s->are_unusual);
    s->are_unusual = n_nodes ? calloc(n_nodes, sizeof(*s->are_unusual)) : NULL;
    s->n_nodes = s->are_unusual ? n_nodes : 0; /* without memory no node is noted */
    s->n_unusual = 0;
}

static void meet_generation(struct agent_stall *s)
{
    if (s->generation != s->host->group->generation || (is_node_0(s) && !s->are_unusual))
        forget_generation(s);
}

/* ---- from the watch and other nodes ---- */

static void pass_ranks(struct agent_stall *s, const struct hang_rank *ranks, size_t n_ranks)
{
    s->is_asked = false;
    if (!is_node_0(s))
        hang_report_send(s->host, ranks, n_ranks, 0, HANG_FOR_STALL);
    else if (hang_report_collect(s->host, ranks, n_ranks, &s->collect))
        decide_for_all(s);
}

/* While a rank waits most of the time, node 0 has a note for each description of the watch. */
static void note_ranks(struct agent_stall *s, const struct hang_rank *ranks, size_t n_ranks, int n_unusual)
{
    struct hang_notice note = {.kind = HANG_NOTICE_WAITS,
                               .node = (int)s->host->assignment->group_rank,
                               .n_unusual = (uint32_t)n_unusual,
                               .rank = -1};

    for (size_t i = 0; i < n_ranks; i++)
        note.waits_mostly |= ranks[i].waits_percent >= SLOW_LINE_PERCENT;
    if (n_unusual == 0 && !s->was_unusual && !note.waits_mostly)
        return;
    s->was_unusual = n_unusual > 0;
    if (is_node_0(s))
        take_note(s, &note);
    else
        (void)hang_report_notify(s->host, 0, &note);
}

void agent_stall_take_ranks(struct agent_stall *s, struct hang_rank *ranks, size_t n_ranks, int n_unusual)
{
    if (!s)
        return;
    meet_generation(s);
    if (!has_other_nodes(s)) {
        bool stands_out = sort_ranks(s, ranks, n_ranks);

        decide(s, ranks, n_unusual ? n_ranks : 0, stands_out);
        judge_slowness(s, ranks, n_ranks);
        if (s->wants_stacks)
            watch_ask_ranks(s->host->watch, true);
        return;
    }
    if (s->is_asked)
        pass_ranks(s, ranks, n_ranks);
    note_ranks(s, ranks, n_ranks, n_unusual);
}

void agent_stall_take_message(struct agent_stall *s, const struct hang_message *message)
{
    if (!s)
        return;
    meet_generation(s);
    if (message->has_ranks) {
        if (hang_collect_add(&s->collect, &message->piece))
            decide_for_all(s);
    } else if (message->notice.kind == HANG_NOTICE_WAITS) {
        take_note(s, &message->notice);
    } else if (message->notice.kind == HANG_NOTICE_ASK) {
        ask_own(s, message->notice.with_stacks);
    } else if (!is_node_0(s)) {
        print_notice(s, &message->notice);
    }
}

void agent_stall_describe(const struct agent_stall *s, struct node_status *ret)
{
    for (size_t i = 0; s && s->generation == s->host->group->generation && i < ret->n_workers; i++)
        ret->workers[i].awaited = ret->workers[i].rank >= 0 && ret->workers[i].rank == s->awaited;
}

/* ---- life ---- */

struct agent_stall *agent_stall_create(const struct agent_host *host)
{
    static struct agent_stall stall; /* a process has one agent */
    struct agent_stall *s = &stall;

    *s = (struct agent_stall){.host = host, .awaited = -1};
    (void)uv_timer_init(host->loop, &s->timer); /* cannot fail */
    s->timer.data = s;
    return s;
}

void agent_stall_stop(struct agent_stall *s)
{
    if (!s)
        return;
    end_collection(s);
    uv_close((uv_handle_t *)&s->timer, NULL);
}

void agent_stall_destroy(struct agent_stall *s)
{
    if (!s)
        return;
    free(s->are_unusual);
    hang_collect_finish(&s->collect);
}
