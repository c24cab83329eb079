#include "launcher/agent/hang_report_uv.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/ctl/hang_message_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/node_ranks_json.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/report/events_os.h"
#include "launcher/util/log_os.h"
#include "launcher/watch/hang_collect.h"
#include "launcher/watch/watch_uv.h"
#include "base/buf.h"
#include "base/cleanup.h"

enum {
    COLLECT_MS =
        3000, /* node 0: for the ranks of all nodes, whose stacks take about the same time everywhere */
    RESULT_MS = 4000, /* other nodes: for the report; an own report comes within 5 s of the time-out */
};

struct hang_report {
    struct hang_collect collect; /* node 0 */
    uint64_t generation;
    bool is_open;    /* the report is waited for, or printed */
    bool is_begun;   /* the stacks of the own node are there */
    bool is_printed; /* later pieces are dropped */
    bool has_files;  /* the action waits for the report */
    int files_worker;
    uint64_t silence_ns;
    int own_rank; /* outstanding rank of the own node; -1: none */
    char *own_text, *folder;
};

struct hang_reports {
    const struct agent_host *host;
    void (*on_report)(void *data, const struct event_hang *hang, bool acts, int worker);
    void *data;
    struct hang_report current;
    uv_timer_t timer; /* bounds the wait for the report */
};

void hang_reports_end(struct hang_reports *r)
{
    (void)uv_timer_stop(&r->timer); /* cannot fail on a timer that exists */
    hang_collect_finish(&r->current.collect);
    free(r->current.own_text);
    free(r->current.folder);
    r->current = (struct hang_report){.is_open = false};
}

static bool is_node_0(const struct agent_host *host)
{
    return host->assignment->group_rank == 0;
}

/* Pieces of other nodes may come before the stacks of the own node. False without memory. */
static bool open_report(struct hang_reports *r)
{
    const struct rank_assignment *ranks = r->host->assignment;
    struct hang_report *h = &r->current;

    if (h->is_open && h->generation == r->host->group->generation)
        return true;
    hang_reports_end(r);
    h->generation = r->host->group->generation;
    h->is_open = !is_node_0(r->host) ||
                 hang_collect_begin(&h->collect, ranks->group_world_size, ranks->world_size) == 0;
    return h->is_open;
}

/* ---- the report ---- */

static void print_result(struct hang_reports *r, const char *text, int rank)
{
    struct hang_report *h = &r->current;

    h->is_printed = true;
    (void)uv_timer_stop(&r->timer); /* cannot fail on a timer that exists */
    const struct event_hang hang = {
        .is_hang = true, .rank = rank, .silence_ns = h->silence_ns, .groups = text, .folder = h->folder};
    r->on_report(r->data, &hang, h->has_files, h->files_worker); /* the last call: the job may end */
}

bool hang_reports_defer(struct hang_reports *r, int worker)
{
    struct hang_report *h = &r->current;

    if (!h->is_begun || h->is_printed || h->generation != r->host->group->generation)
        return false;
    h->has_files = true;
    h->files_worker = worker;
    return true;
}

static void report_all(struct hang_reports *r)
{
    _cleanup_free_ struct hang_notice *notice = calloc(1, sizeof(*notice));

    if (!notice) {
        print_result(r, r->current.own_text, r->current.own_rank);
        return;
    }
    notice->kind = HANG_NOTICE_HANG;
    notice->rank = hang_collect_report(&r->current.collect, notice->text);
    (void)hang_report_notify(r->host, AGENT_MESSAGE_TO_ALL,
                             notice); /* lost: each node prints its own report */
    print_result(r, notice->text, notice->rank);
}

static void on_report_timer(uv_timer_t *timer)
{
    struct hang_reports *r = timer->data;
    struct hang_report *h = &r->current;

    if (h->is_printed || !h->is_begun)
        return;
    if (is_node_0(r->host))
        report_all(r);
    else
        print_result(r, h->own_text, h->own_rank);
}

/* ---- from other nodes ---- */

void hang_reports_add(struct hang_reports *r, const struct hang_piece *piece)
{
    if (is_node_0(r->host) && open_report(r) && !r->current.is_printed &&
        hang_collect_add(&r->current.collect, piece))
        report_all(r);
}

void hang_reports_take(struct hang_reports *r, const struct hang_notice *notice)
{
    const struct hang_report *h = &r->current;

    if (!h->is_printed && h->is_begun && !is_node_0(r->host))
        print_result(r, notice->text, notice->rank);
}

/* ---- the own node ---- */

void hang_report_print(const struct agent_host *host, enum event_kind kind, const struct event_hang *hang)
{
    log_each_line(hang->groups);
    watch_log_hint(host->watch);
    events_write(host->events, host->group, (struct event){.kind = kind, .hang = hang});
}

bool hang_report_collect(const struct agent_host *host, const struct hang_rank *ranks, size_t n_ranks,
                         struct hang_collect *ret)
{
    struct hang_piece own = {
        .node = (int)host->assignment->group_rank, .pieces = 1, .ranks = ranks, .n_ranks = n_ranks};

    text_copy(own.host, sizeof(own.host), n_ranks ? ranks[0].host : "");
    return hang_collect_add(ret, &own);
}

void hang_report_send(const struct agent_host *host, const struct hang_rank *ranks, size_t n_ranks,
                      int32_t to, enum hang_purpose purpose)
{
    const struct agent_message head = {.to = to, .generation = host->group->generation};
    _cleanup_(buf_finish) struct buf frames = {0};
    struct job_status job;

    if (host->membership && host->describe(host->data, &job) == 0) {
        const struct node_ranks node = {
            .node = &job.nodes[0], .places = ranks, .n_places = n_ranks, .purpose = purpose};

        if (node_ranks_put(&frames, &head, &node) == 0)
            (void)membership_send(host->membership, &frames); /* lost: the report lacks these ranks */
        job_status_finish(&job);
    }
}

bool hang_report_notify(const struct agent_host *host, int32_t to, const struct hang_notice *notice)
{
    const struct agent_message head = {.to = to, .generation = host->group->generation};
    _cleanup_(buf_finish) struct buf frame = {0};

    return hang_notice_put(&frame, &head, notice) == 0 && membership_send(host->membership, &frame);
}

struct event_hang hang_report_own(const struct agent_host *host, const struct watch_stacks *s)
{
    return (struct event_hang){.is_hang = s->reason == WATCH_HANG,
                               .rank = s->stands_out ? (int)host->assignment->rank_base + s->worker : -1,
                               .silence_ns = s->silence_ns,
                               .groups = s->text,
                               .folder = s->folder};
}

void hang_reports_begin(struct hang_reports *r, const struct watch_stacks *s)
{
    if (r->current.is_begun) /* of an earlier hang of the generation */
        hang_reports_end(r);
    struct hang_report *h = &r->current;
    const struct event_hang own = hang_report_own(r->host, s);
    if (!open_report(r) || !r->host->membership) {
        r->on_report(r->data, &own, false, -1);
        return;
    }
    h->is_begun = true;
    h->silence_ns = s->silence_ns;
    h->own_rank = own.rank;
    h->own_text = strdup(s->text ? s->text : "");
    h->folder = s->folder ? strdup(s->folder) : NULL;
    (void)uv_timer_start(&r->timer, on_report_timer, is_node_0(r->host) ? COLLECT_MS : RESULT_MS,
                         0); /* fails only without a callback */
    if (!is_node_0(r->host)) {
        hang_report_send(r->host, s->ranks, s->n_ranks, 0, HANG_FOR_REPORT);
        return;
    }
    text_copy(h->collect.nccl, sizeof(h->collect.nccl), s->nccl);
    if (hang_report_collect(r->host, s->ranks, s->n_ranks, &h->collect))
        report_all(r);
}

/* ---- life ---- */

void hang_reports_stop(struct hang_reports *r)
{
    hang_reports_end(r);
    uv_close((uv_handle_t *)&r->timer, NULL);
}

struct hang_reports *hang_reports_create(const struct agent_host *host,
                                         void (*on_report)(void *data, const struct event_hang *hang,
                                                           bool acts, int worker),
                                         void *data)
{
    static struct hang_reports reports; /* a process has one agent */
    struct hang_reports *r = &reports;

    *r = (struct hang_reports){.host = host, .on_report = on_report, .data = data};
    (void)uv_timer_init(host->loop, &r->timer); /* cannot fail */
    r->timer.data = r;
    return r;
}
