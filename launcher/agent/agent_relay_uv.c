/*
 * One report on a hang over all nodes. Each agent sends what its own ranks do to node 0, which makes the report and sends it to
 * all; each prints it and writes its event. An agent that gets no report within RESULT_MS prints the one on its own node: node 0, or the
 * rendezvous, may be what hangs.
 */

#include <stdlib.h>
#include <string.h>

#include "launcher/agent/agent_impl_uv.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/watch/hang_collect.h"
#include "launcher/watch/hang_pieces_json.h"
#include "launcher/watch/watch_uv.h"
#include "base/buf.h"

enum {
    COLLECT_MS =
        3000, /* node 0: for the ranks of all nodes, whose stacks take about the same time everywhere */
    RESULT_MS = 6000, /* others: for the report */
};

struct hang_relay {
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

void agent_end_relay(struct agent *a)
{
    struct hang_relay *h = a->hang_relay;

    if (!h)
        return;
    a->hang_relay = NULL;
    (void)uv_timer_stop(&a->relay_timer); /* cannot fail on a timer that exists */
    hang_collect_finish(&h->collect);
    free(h->own_text);
    free(h->folder);
    free(h);
}

static bool is_node_0(const struct agent *a)
{
    return a->assignment.group_rank == 0;
}

/* Pieces of other nodes may come before this node's stacks are there. NULL without memory. */
static struct hang_relay *relay_of_generation(struct agent *a)
{
    struct hang_relay *h = a->hang_relay;

    if (h && h->generation == a->group.generation)
        return h;
    agent_end_relay(a);
    h = calloc(1, sizeof(*h));
    if (h && is_node_0(a) &&
        hang_collect_begin(&h->collect, a->assignment.group_world_size, a->assignment.world_size) != 0) {
        free(h);
        h = NULL;
    }
    if (h)
        h->generation = a->group.generation;
    a->hang_relay = h;
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
    struct hang_relay *h = a->hang_relay;

    h->is_printed = true;
    (void)uv_timer_stop(&a->relay_timer); /* cannot fail on a timer that exists */
    a->stands_out = is_own_rank(a, rank); /* of all nodes the one with that rank acts */
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

bool agent_relay_defers(struct agent *a, int worker)
{
    struct hang_relay *h = a->hang_relay;

    if (!h || !h->is_begun || h->is_printed || h->generation != a->group.generation)
        return false;
    h->has_files = true;
    h->files_worker = worker;
    return true;
}

static void send_result(struct agent *a, const struct hang_result *result)
{
    const struct relay all = {.to = RELAY_TO_ALL, .generation = a->group.generation};
    struct buf frame = {0};

    if (hang_result_put(&frame, &all, result) == 0) /* without memory each node prints its own */
        membership_send(a->membership, &frame);
    buf_finish(&frame);
}

static void report_all(struct agent *a)
{
    struct hang_result *result = malloc(sizeof(*result));

    if (!result) {
        print_result(a, a->hang_relay->own_text, a->hang_relay->own_rank);
        return;
    }
    hang_collect_report(&a->hang_relay->collect, result);
    send_result(a, result);
    print_result(a, result->text, result->rank);
    free(result);
}

static void on_relay_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    struct hang_relay *h = a->hang_relay;

    if (!h || h->is_printed || !h->is_begun)
        return;
    if (is_node_0(a))
        report_all(a);
    else
        print_result(a, h->own_text, h->own_rank);
}

/* ---- messages ---- */

static void take_piece(struct agent *a, const struct hang_piece *piece)
{
    struct hang_relay *h = is_node_0(a) ? relay_of_generation(a) : NULL;

    if (!h || h->is_printed)
        return;
    hang_collect_add(&h->collect, piece);
    if (h->is_begun && hang_collect_is_complete(&h->collect))
        report_all(a);
}

static void take_result(struct agent *a, const struct hang_result *result)
{
    struct hang_relay *h = a->hang_relay;

    if (!h || h->is_printed || !h->is_begun || is_node_0(a))
        return;
    print_result(a, result->text, result->rank);
}

void agent_take_relay(void *data, const uint8_t *body, size_t n)
{
    struct agent *a = data;
    struct hang_message *message = malloc(sizeof(*message));

    if (message && hang_message_get(body, n, message) &&
        message->relay.generation == (int64_t)a->group.generation && a->group.state == GROUP_RUNNING) {
        if (message->is_result)
            take_result(a, &message->result);
        else
            take_piece(a, &message->piece);
    }
    free(message);
}

/* ---- this node ---- */

/* The own ranks, by the way of the others: pieces are their form on node 0, too. */
static void collect_own(struct agent *a, const struct watch_stacks *s)
{
    struct hang_piece *piece = malloc(sizeof(*piece));

    for (size_t first = 0; piece && (first < s->n_ranks || first == 0); first += HANG_PIECE_RANKS) {
        *piece = (struct hang_piece){.piece = (int)(first / HANG_PIECE_RANKS),
                                     .pieces = (int)((s->n_ranks + HANG_PIECE_RANKS - 1) / HANG_PIECE_RANKS)};
        session_copy_text(piece->host, sizeof(piece->host), s->host);
        while (piece->n_ranks < HANG_PIECE_RANKS && first + piece->n_ranks < s->n_ranks) {
            piece->ranks[piece->n_ranks] = s->ranks[first + piece->n_ranks];
            piece->n_ranks++;
        }
        hang_collect_add(&a->hang_relay->collect, piece);
    }
    free(piece);
}

static void send_own(struct agent *a, const struct watch_stacks *s)
{
    const struct relay first_node = {.to = 0, .generation = a->group.generation};
    struct buf frames = {0};

    if (hang_pieces_put(&frames, &first_node, (int)a->assignment.group_rank, s->host, s->ranks, s->n_ranks) ==
        0)
        membership_send(a->membership, &frames);
    buf_finish(&frames);
}

void agent_begin_relay(struct agent *a, const struct watch_stacks *s)
{
    struct hang_relay *h = a->hang_relay;

    if (h && h->is_begun) /* of an earlier hang of this generation */
        agent_end_relay(a);
    h = relay_of_generation(a);
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
    (void)uv_timer_start(&a->relay_timer, on_relay_timer, is_node_0(a) ? COLLECT_MS : RESULT_MS,
                         0); /* fails only without a callback */
    if (!is_node_0(a)) {
        send_own(a, s);
        return;
    }
    collect_own(a, s);
    if (hang_collect_is_complete(&h->collect))
        report_all(a);
}
