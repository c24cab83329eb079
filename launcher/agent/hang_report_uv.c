/*
 * What agents tell each other of their ranks: for one report on a hang over all nodes, and for crunctl stacks.
 *
 * A hang: Each agent sends what its own ranks do to node 0, which makes the report and sends it to
 * all; each prints it and writes its event. An agent that gets no report within RESULT_MS prints the one on its own node: node 0, or the
 * rendezvous, may be what hangs.
 *
 * crunctl stacks: the other agents are asked to take stacks, by the rendezvous where it is served on this node, else by a message of
 * this agent. They send them to this node. A client of the rendezvous (crunctl --endpoint) has it ask one agent, which does the same and
 * has them in its status for KEEP_MS.
 */

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/ctl/control_uv.h"
#include "launcher/ctl/job_stacks_json.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/watch/hang_collect.h"
#include "launcher/watch/hang_pieces_json.h"
#include "launcher/watch/watch_uv.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/time.h"
#include "rendezvous/session/look_json.h"

enum {
    COLLECT_MS =
        3000, /* node 0: for the ranks of all nodes, whose stacks take about the same time everywhere */
    RESULT_MS = 4000, /* others: for the report; without it their own comes within 5 s of the time-out */
    ASKED_MS = 10000, /* for the stacks that crunctl waits for */
    KEEP_MS = 3000,   /* at least two statuses have them */
};

struct hang_report {
    struct hang_collect collect; /* node 0 */
    uint64_t generation;
    bool is_begun;   /* this node's stacks are there */
    bool is_printed; /* the report has been; what comes later is dropped */
    bool has_files;  /* the action waits for the report */
    int files_worker;
    uint64_t silence_ns;
    int own_rank; /* that stands out on this node; -1: none does */
    char *own_text, *folder;
};

/* crunctl waits for them. */
struct asked_stacks {
    struct hang_collect collect;
    uint64_t generation;
    bool is_begun; /* this node's are there */
    char *folder;
};

static void end_asked(struct agent *a)
{
    struct asked_stacks *q = a->asked;

    if (!q)
        return;
    a->asked = NULL;
    (void)uv_timer_stop(&a->asked_timer); /* cannot fail on a timer that exists */
    hang_collect_finish(&q->collect);
    free(q->folder);
    free(q);
}

void agent_end_hang_report(struct agent *a)
{
    struct hang_report *h = a->hang_report;

    if (!h)
        return;
    a->hang_report = NULL;
    (void)uv_timer_stop(&a->hang_report_timer); /* cannot fail on a timer that exists */
    hang_collect_finish(&h->collect);
    free(h->own_text);
    free(h->folder);
    free(h);
}

static void drop_look_stacks(struct agent *a)
{
    free(a->look_stacks);
    a->look_stacks = NULL;
}

void agent_end_hang_reports(struct agent *a)
{
    drop_look_stacks(a);
    agent_end_hang_report(a);
    end_asked(a);
}

static bool is_node_0(const struct agent *a)
{
    return a->assignment.group_rank == 0;
}

/* Pieces of other nodes may come before this node's stacks are there. NULL without memory. */
static struct hang_report *report_of_generation(struct agent *a)
{
    struct hang_report *h = a->hang_report;

    if (h && h->generation == a->group.generation)
        return h;
    agent_end_hang_report(a);
    h = calloc(1, sizeof(*h));
    if (h && is_node_0(a) &&
        hang_collect_begin(&h->collect, a->assignment.group_world_size, a->assignment.world_size) != 0) {
        free(h);
        h = NULL;
    }
    if (h)
        h->generation = a->group.generation;
    a->hang_report = h;
    return h;
}

/* ---- the report ---- */

static bool is_own_rank(const struct agent *a, int rank)
{
    int first = (int)a->assignment.rank_base;

    return rank >= first && rank < first + a->group.config.n_workers;
}

static void print_result(struct agent *a, const char *text, int rank)
{
    struct hang_report *h = a->hang_report;

    h->is_printed = true;
    (void)uv_timer_stop(&a->hang_report_timer); /* cannot fail on a timer that exists */
    a->stands_out = is_own_rank(a, rank);       /* of all nodes the one with that rank acts */
    a->hang_elsewhere = rank >= 0 && !a->stands_out;
    if (a->stands_out)
        a->hang_worker = rank - (int)a->assignment.rank_base;
    agent_print_hang(
        a,
        &(struct hang_report_facts){
            .is_hang = true, .rank = rank, .silence_ns = h->silence_ns, .text = text, .folder = h->folder});
    if (h->has_files) /* the last: the job may end by it */
        agent_act_on_hang(a, a->stands_out ? a->hang_worker : h->files_worker);
}

bool agent_hang_report_defers(struct agent *a, int worker)
{
    struct hang_report *h = a->hang_report;

    if (!h || !h->is_begun || h->is_printed || h->generation != a->group.generation)
        return false;
    h->has_files = true;
    h->files_worker = worker;
    return true;
}

static void send_result(struct agent *a, const struct hang_result *result)
{
    const struct agent_message all = {.to = AGENT_MESSAGE_TO_ALL, .generation = a->group.generation};
    struct buf frame = {0};

    if (hang_result_put(&frame, &all, result) == 0) /* without memory each node prints its own */
        membership_send(a->membership, &frame);
    buf_finish(&frame);
}

static void report_all(struct agent *a)
{
    struct hang_result *result = malloc(sizeof(*result));

    if (!result) {
        print_result(a, a->hang_report->own_text, a->hang_report->own_rank);
        return;
    }
    hang_collect_report(&a->hang_report->collect, result);
    send_result(a, result);
    print_result(a, result->text, result->rank);
    free(result);
}

static void on_hang_report_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    struct hang_report *h = a->hang_report;

    if (!h || h->is_printed || !h->is_begun)
        return;
    if (is_node_0(a))
        report_all(a);
    else
        print_result(a, h->own_text, h->own_rank);
}

/* ---- for a client of the rendezvous ---- */

/* The lines that fit into a piece of the status. NULL: without memory, or none does. */
static char *bounded_stacks_json(const struct agent *a, const char *folder, const char *text)
{
    _cleanup_free_ char *lines = strdup(text ? text : "");

    while (lines) {
        char *json = job_stacks_to_json(a->config->job->run_id_text, folder, lines);
        char *end = strrchr(lines, '\n');

        if (!json || strlen(json) <= LOOK_STACKS_JSON_MAX)
            return json;
        free(json);
        if (!end)
            return NULL;
        *end = '\0';
    }
    return NULL;
}

static void keep_for_look(struct agent *a, const char *folder, const char *text)
{
    if (!a->wants_stacks)
        return;
    a->wants_stacks = false;
    drop_look_stacks(a);
    a->look_stacks = bounded_stacks_json(a, folder, text);
    a->look_stacks_ns = now_ns();
}

const char *agent_stacks_for_look(const struct agent *a)
{
    return a->look_stacks && now_ns() - a->look_stacks_ns < KEEP_MS * UINT64_C(1000000) ? a->look_stacks
                                                                                        : NULL;
}

void agent_take_stacks_for_look(void *data)
{
    struct agent *a = data;

    if (!a->watch || a->asked || agent_stacks_for_look(a))
        return;
    a->wants_stacks = true;
    (void)watch_take_stacks(a->watch, WATCH_ASKED); /* when they are being taken already, these are sent */
    agent_ask_nodes(a);
}

/* ---- messages ---- */

static void answer_crunctl(struct agent *a)
{
    struct asked_stacks *q = a->asked;
    struct hang_result *result = malloc(sizeof(*result));

    if (result) {
        hang_collect_report(&q->collect, result);
        keep_for_look(a, q->folder, result->text);
    }
    _cleanup_free_ char *json =
        result ? job_stacks_to_json(a->config->job->run_id_text, q->folder, result->text) : NULL;
    free(result);
    control_send_stacks(a->control, json);
    end_asked(a);
}

static void on_asked_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    if (a->asked)
        answer_crunctl(a);
}

static void answer_if_complete(struct agent *a)
{
    if (a->asked->is_begun && hang_collect_is_complete(&a->asked->collect))
        answer_crunctl(a);
}

static void take_asked_piece(struct agent *a, const struct hang_piece *piece)
{
    if (!a->asked || a->asked->generation != a->group.generation)
        return;
    hang_collect_add(&a->asked->collect, piece);
    answer_if_complete(a);
}

static void take_hang_piece(struct agent *a, const struct hang_piece *piece)
{
    struct hang_report *h = is_node_0(a) ? report_of_generation(a) : NULL;

    if (!h || h->is_printed)
        return;
    hang_collect_add(&h->collect, piece);
    if (h->is_begun && hang_collect_is_complete(&h->collect))
        report_all(a);
}

static void take_result(struct agent *a, const struct hang_result *result)
{
    struct hang_report *h = a->hang_report;

    if (!h || h->is_printed || !h->is_begun || is_node_0(a))
        return;
    print_result(a, result->text, result->rank);
}

/* When stacks are being taken already, those are sent. */
static void take_order(struct agent *a, int32_t to)
{
    bool is_noted = false;

    for (size_t i = 0; i < a->n_stacks_to; i++)
        is_noted |= a->stacks_to[i] == to;
    if (!is_noted && a->n_stacks_to < AGENT_ASKERS_MAX)
        a->stacks_to[a->n_stacks_to++] = to;
    (void)watch_take_stacks(a->watch, WATCH_ASKED);
}

void agent_take_message(void *data, const uint8_t *body, size_t n)
{
    struct agent *a = data;
    struct hang_message *message = malloc(sizeof(*message));

    if (message && hang_message_get(body, n, message) &&
        message->head.generation == (int64_t)a->group.generation && a->group.state == GROUP_RUNNING) {
        if (message->kind == HANG_MESSAGE_RESULT)
            take_result(a, &message->result);
        else if (message->kind == HANG_MESSAGE_TAKE)
            take_order(a, message->take_to);
        else if (message->piece.asked)
            take_asked_piece(a, &message->piece);
        else
            take_hang_piece(a, &message->piece);
    }
    free(message);
}

/* ---- this node ---- */

/* The own ranks, by the way of the others: pieces are their form on node 0, too. */
static void collect_own(const struct agent *a, struct hang_collect *collect, const struct watch_stacks *s)
{
    struct hang_piece *piece = malloc(sizeof(*piece));

    for (size_t first = 0; piece && (first < s->n_ranks || first == 0); first += HANG_PIECE_RANKS) {
        *piece = (struct hang_piece){.node = (int)a->assignment.group_rank,
                                     .piece = (int)(first / HANG_PIECE_RANKS),
                                     .pieces = (int)((s->n_ranks + HANG_PIECE_RANKS - 1) / HANG_PIECE_RANKS)};
        text_copy(piece->host, sizeof(piece->host), s->host);
        while (piece->n_ranks < HANG_PIECE_RANKS && first + piece->n_ranks < s->n_ranks) {
            piece->ranks[piece->n_ranks] = s->ranks[first + piece->n_ranks];
            piece->n_ranks++;
        }
        hang_collect_add(collect, piece);
    }
    free(piece);
}

static void send_own(struct agent *a, const struct watch_stacks *s, int32_t to, bool asked)
{
    const struct agent_message head = {.to = to, .generation = a->group.generation};
    const struct hang_sender sender = {
        .node = (int)a->assignment.group_rank, .asked = asked, .host = s->host};
    struct buf frames = {0};

    if (a->membership && hang_pieces_put(&frames, &head, &sender, s->ranks, s->n_ranks) == 0)
        membership_send(a->membership, &frames);
    buf_finish(&frames);
}

void agent_begin_hang_report(struct agent *a, const struct watch_stacks *s)
{
    struct hang_report *h = a->hang_report;

    if (h && h->is_begun) /* of an earlier hang of this generation */
        agent_end_hang_report(a);
    h = report_of_generation(a);
    int rank = s->stands_out ? (int)a->assignment.rank_base + s->worker : -1;
    if (!h || !a->membership) {
        agent_print_hang(a, &(struct hang_report_facts){.is_hang = true,
                                                        .rank = rank,
                                                        .silence_ns = s->silence_ns,
                                                        .text = s->text,
                                                        .folder = s->folder});
        return;
    }
    h->is_begun = true;
    h->silence_ns = s->silence_ns;
    h->own_rank = rank;
    h->own_text = strdup(s->text ? s->text : "");
    h->folder = s->folder ? strdup(s->folder) : NULL;
    (void)uv_timer_start(&a->hang_report_timer, on_hang_report_timer, is_node_0(a) ? COLLECT_MS : RESULT_MS,
                         0); /* fails only without a callback */
    if (!is_node_0(a)) {
        send_own(a, s, 0, false);
        return;
    }
    collect_own(a, &h->collect, s);
    if (hang_collect_is_complete(&h->collect))
        report_all(a);
}

/* ---- crunctl stacks ---- */

void agent_ask_nodes(struct agent *a)
{
    struct asked_stacks *q;

    if (a->asked || !a->membership || a->assignment.group_world_size < 2 || a->group.state != GROUP_RUNNING)
        return;
    q = calloc(1, sizeof(*q));
    if (!q ||
        hang_collect_begin(&q->collect, a->assignment.group_world_size, a->assignment.world_size) != 0 ||
        !membership_ask_for_stacks(a->membership, a->assignment.group_rank, a->group.generation)) {
        if (q)
            hang_collect_finish(&q->collect);
        free(q); /* crunctl gets the stacks of this node */
        return;
    }
    q->generation = a->group.generation;
    a->asked = q;
    (void)uv_timer_start(&a->asked_timer, on_asked_timer, ASKED_MS, 0); /* fails only without a callback */
}

bool agent_pass_stacks(struct agent *a, const struct watch_stacks *s)
{
    for (size_t i = 0; i < a->n_stacks_to; i++)
        send_own(a, s, a->stacks_to[i], true);
    a->n_stacks_to = 0;
    if (!a->asked)
        keep_for_look(a, s->folder, s->text);
    if (!a->asked || a->asked->is_begun)
        return a->asked != NULL;
    a->asked->is_begun = true;
    a->asked->folder = s->folder ? strdup(s->folder) : NULL;
    collect_own(a, &a->asked->collect, s);
    answer_if_complete(a);
    return true;
}
