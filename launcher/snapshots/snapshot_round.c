#include "launcher/snapshots/snapshot_round.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/minmax.h"

enum { TO_ALL = -1, NODE_0 = 0 };

/* What node 0 knows of a node. */
struct round_node {
    uint32_t n_haves; /* attempt of the last HAVE, and 1; 0: none yet */
    bool is_good;
    size_t n_runs;
    struct block_run runs[ROUND_RUNS_MAX];
};

int snapshot_round_begin(struct snapshot_round *r, int32_t node, int32_t n_nodes)
{
    snapshot_round_finish(r);
    *r = (struct snapshot_round){.node = node, .n_nodes = n_nodes};
    if (node == NODE_0)
        r->nodes = calloc((size_t)n_nodes, sizeof(*r->nodes));
    return node == NODE_0 && !r->nodes ? -ENOMEM : 0;
}

void snapshot_round_finish(struct snapshot_round *r)
{
    free(steal_ptr(r->nodes));
}

/* ---- node 0 ---- */

static bool are_all_good(const struct snapshot_round *r)
{
    for (int32_t i = 0; i < r->n_nodes; i++)
        if (!r->nodes[i].is_good)
            return false;
    return true;
}

static bool is_refused(const struct snapshot_round *r, const struct block_run *run)
{
    for (size_t i = 0; i < r->n_refused; i++)
        if (r->refused[i].step == run->step && r->refused[i].generation == run->generation &&
            r->refused[i].world_size == run->world_size)
            return true;
    return false;
}

/* Without memory nothing is chosen: the job begins anew, or at its folder. */
static struct snapshot_choice choose_of_all(const struct snapshot_round *r)
{
    size_t n = 0;

    for (int32_t i = 0; i < r->n_nodes; i++)
        n += r->nodes[i].n_runs;
    _cleanup_free_ struct block_run *all = malloc((n + 1) * sizeof(*all));
    if (!all)
        return (struct snapshot_choice){0};
    n = 0;
    for (int32_t i = 0; i < r->n_nodes; i++)
        for (size_t k = 0; k < r->nodes[i].n_runs; k++)
            if (!is_refused(r, &r->nodes[i].runs[k]))
                all[n++] = r->nodes[i].runs[k];
    block_runs_sort(all, n);
    return snapshot_choose(all, n);
}

static struct round_message answer_of(const struct snapshot_round *r)
{
    return (struct round_message){.kind = r->is_final && r->choice.exists ? ROUND_GO : ROUND_CHOICE,
                                  .attempt = r->asked - 1,
                                  .choice = r->choice};
}

/* All nodes have sent what they have: decides. */
static void decide(struct snapshot_round *r)
{
    r->is_final = r->asked > 0 && are_all_good(r);
    if (!r->is_final) {
        bool is_full = r->n_refused == ROUND_REFUSED_MAX;
        if (r->asked > 0 && !is_full)
            r->refused[r->n_refused++] = r->choice;
        r->choice = is_full ? (struct snapshot_choice){0} : choose_of_all(r);
        r->is_final = !r->choice.exists;
    }
    r->has_choice = true;
    r->asked++;
    r->n_have = 0;
    r->waits = false;
}

static bool take_have(struct snapshot_round *r, const struct round_message *m, struct round_message *ret,
                      int32_t *ret_to)
{
    if (m->node < 0 || m->node >= r->n_nodes || m->attempt > r->asked)
        return false;
    if (m->attempt < r->asked || r->is_final) { /* the answer was lost */
        *ret = answer_of(r);
        *ret_to = m->node;
        return m->attempt + 1 == r->asked;
    }
    struct round_node *node = &r->nodes[m->node];
    bool is_new = node->n_haves != m->attempt + 1;
    *node = (struct round_node){
        .n_haves = m->attempt + 1, .is_good = m->is_good, .n_runs = min_size(m->n_runs, ROUND_RUNS_MAX)};
    memcpy(node->runs, m->runs, node->n_runs * sizeof(*node->runs));
    r->n_have += is_new;
    if (r->n_have < (uint32_t)r->n_nodes)
        return false;
    decide(r);
    *ret = answer_of(r);
    *ret_to = TO_ALL;
    return true;
}

/* ---- every node ---- */

static void take_answer(struct snapshot_round *r, const struct round_message *m)
{
    if (!r->waits || m->attempt != r->attempt)
        return;
    r->waits = false;
    if (m->kind == ROUND_CHOICE)
        r->choice = m->choice;
    r->has_choice = true;
    r->is_final = m->kind == ROUND_GO || !r->choice.exists;
}

bool snapshot_round_take(struct snapshot_round *r, const struct round_message *message,
                         struct round_message *ret, int32_t *ret_to)
{
    if (message->kind == ROUND_HAVE)
        return r->nodes && take_have(r, message, ret, ret_to);
    if (!r->nodes)
        take_answer(r, message);
    return false;
}

bool snapshot_round_have(struct snapshot_round *r, bool is_good, const struct block_run *runs, size_t n_runs,
                         struct round_message *ret, int32_t *ret_to)
{
    r->attempt = r->has_choice ? r->attempt + 1 : 0;
    r->waits = true;
    r->have = (struct round_message){.kind = ROUND_HAVE,
                                     .attempt = r->attempt,
                                     .node = r->node,
                                     .is_good = is_good,
                                     .n_runs = min_size(n_runs, ROUND_RUNS_MAX)};
    memcpy(r->have.runs, runs, r->have.n_runs * sizeof(*runs));
    if (r->nodes)
        return take_have(r, &r->have, ret, ret_to) && r->n_nodes > 1;
    *ret = r->have;
    *ret_to = NODE_0;
    return true;
}

bool snapshot_round_repeat(const struct snapshot_round *r, struct round_message *ret, int32_t *ret_to)
{
    if (!r->waits || r->nodes)
        return false;
    *ret = r->have;
    *ret_to = NODE_0;
    return true;
}
