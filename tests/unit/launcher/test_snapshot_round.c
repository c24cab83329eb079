/* Agreement on a step: all nodes of random jobs over a network that loses, repeats and delays messages, with random damage. */

#include "launcher/snapshots/snapshot_round.h"

#include <stdlib.h>
#include <string.h>

#include "base/random_os.h"

#include "tests/support/c/cmocka_fixed.h"

enum { NODES_MAX = 5, STEPS = 4, QUEUE_MAX = 4000, TO_ALL = -1 };

struct node {
    struct snapshot_round round;
    bool has[STEPS]; /* the block of its only rank for a step */
    bool is_damaged[STEPS];
    bool waits_for_reading;
    bool keeps_damaged; /* the node goes on offering what it could not read */
};

struct network {
    struct round_message queue[QUEUE_MAX];
    int32_t to[QUEUE_MAX];
    int n;
    unsigned seed;
    bool is_lossy;
};

static bool is_drawn(struct network *net, int one_in)
{
    return net->is_lossy && rand_r(&net->seed) % one_in == 0;
}

static void post(struct network *net, const struct round_message *m, int32_t to, int32_t from,
                 int32_t n_nodes)
{
    for (int32_t i = 0; i < n_nodes; i++) {
        int copies = is_drawn(net, 4) ? 0 : is_drawn(net, 8) ? 2 : 1;
        if (i == from || (to != TO_ALL && to != i))
            continue;
        while (copies-- > 0 && net->n < QUEUE_MAX) {
            net->queue[net->n] = *m;
            net->to[net->n++] = i;
        }
    }
}

static size_t list_runs(const struct node *node, int32_t self, int32_t n_nodes,
                        struct block_run runs[ROUND_RUNS_MAX])
{
    size_t n = 0;

    for (uint32_t step = 0; step < STEPS; step++)
        if (node->has[step])
            runs[n++] = (struct block_run){.step = step,
                                           .world_size = (uint32_t)n_nodes,
                                           .first = (uint32_t)self,
                                           .n = 1,
                                           .tier = 1,
                                           .node = self};
    return n;
}

static void have(struct network *net, struct node *nodes, int32_t i, int32_t n_nodes, bool is_good)
{
    struct block_run runs[ROUND_RUNS_MAX];
    struct round_message m;
    int32_t to;
    size_t n = list_runs(&nodes[i], i, n_nodes, runs);

    if (snapshot_round_have(&nodes[i].round, is_good, runs, n, &m, &to))
        post(net, &m, to, i, n_nodes);
    nodes[i].waits_for_reading = true;
}

/* A node that got a choice reads its block, and finds the damage. */
static void read_block(struct network *net, struct node *nodes, int32_t i, int32_t n_nodes)
{
    struct node *node = &nodes[i];
    const struct snapshot_round *r = &node->round;

    if (r->waits || r->is_final || !r->has_choice || !node->waits_for_reading)
        return;
    uint64_t step = r->choice.step;
    bool is_good = node->has[step] && !node->is_damaged[step];
    if (!is_good && !node->keeps_damaged)
        node->has[step] = false;
    have(net, nodes, i, n_nodes, is_good);
}

/* The newest step that all have undamaged; -1: none. */
static int expected_step(const struct node *nodes, int32_t n_nodes)
{
    for (int step = STEPS; step-- > 0;) {
        int32_t i = 0;
        while (i < n_nodes && nodes[i].has[step] && !nodes[i].is_damaged[step])
            i++;
        if (i == n_nodes)
            return step;
    }
    return -1;
}

static bool all_are_final(const struct node *nodes, int32_t n_nodes)
{
    for (int32_t i = 0; i < n_nodes; i++)
        if (!nodes[i].round.is_final)
            return false;
    return true;
}

static void deliver_one(struct network *net, struct node *nodes, int32_t n_nodes)
{
    int k = net->is_lossy ? rand_r(&net->seed) % net->n : 0;
    struct round_message m = net->queue[k], answer;
    int32_t to = net->to[k], answer_to;

    net->n--;
    memmove(&net->queue[k], &net->queue[k + 1], (size_t)(net->n - k) * sizeof(m));
    memmove(&net->to[k], &net->to[k + 1], (size_t)(net->n - k) * sizeof(to));
    if (snapshot_round_take(&nodes[to].round, &m, &answer, &answer_to))
        post(net, &answer, answer_to, to, n_nodes);
}

static void repeat_all(struct network *net, struct node *nodes, int32_t n_nodes)
{
    struct round_message m;
    int32_t to;

    for (int32_t i = 0; i < n_nodes; i++)
        if (snapshot_round_repeat(&nodes[i].round, &m, &to))
            post(net, &m, to, i, n_nodes);
}

/* False: no end after many turns. */
static bool run(struct network *net, struct node *nodes, int32_t n_nodes)
{
    for (int32_t i = 0; i < n_nodes; i++)
        have(net, nodes, i, n_nodes, true);
    for (int turn = 0; turn < 5000 && !all_are_final(nodes, n_nodes); turn++) {
        if (net->n > 0)
            deliver_one(net, nodes, n_nodes);
        else
            repeat_all(net, nodes, n_nodes);
        for (int32_t i = 0; i < n_nodes; i++)
            read_block(net, nodes, i, n_nodes);
    }
    return all_are_final(nodes, n_nodes);
}

static void run_random_job(struct network *net, unsigned first_seed, int number)
{
    struct node nodes[NODES_MAX] = {0};
    int32_t n_nodes = 1 + rand_r(&net->seed) % NODES_MAX;

    net->n = 0;
    net->is_lossy = rand_r(&net->seed) % 2;
    for (int32_t i = 0; i < n_nodes; i++) {
        for (int step = 0; step < STEPS; step++) {
            nodes[i].has[step] = rand_r(&net->seed) % 4 > 0;
            nodes[i].is_damaged[step] = rand_r(&net->seed) % 8 == 0;
        }
        nodes[i].keeps_damaged = rand_r(&net->seed) % 2;
        assert_int_equal(snapshot_round_begin(&nodes[i].round, i, n_nodes), 0);
    }
    int want = expected_step(nodes, n_nodes);
    if (!run(net, nodes, n_nodes))
        fail_msg("seed %u, job %d: no end", first_seed, number);
    for (int32_t i = 0; i < n_nodes; i++) {
        const struct snapshot_choice *c = &nodes[i].round.choice;
        if (c->exists != (want >= 0) || (c->exists && (int)c->step != want))
            fail_msg("seed %u, job %d: node %d has step %d, not %d", first_seed, number, (int)i,
                     c->exists ? (int)c->step : -1, want);
        snapshot_round_finish(&nodes[i].round);
    }
}

static void test_random_jobs(void **state)
{
    (void)state;
    static struct network net;

    assert_int_equal(random_fill(&net.seed, sizeof(net.seed)), 0);
    unsigned first_seed = net.seed;
    for (int i = 0; i < 3000; i++)
        run_random_job(&net, first_seed, i);
}

static void test_foreign_numbers(void **state)
{
    (void)state;
    static const int32_t nodes[] = {-1, 2, INT32_MAX};
    struct snapshot_round r = {0};
    struct round_message m, answer;
    int32_t to;

    assert_int_equal(snapshot_round_begin(&r, 0, 2), 0);
    for (size_t i = 0; i < 3; i++) {
        m = (struct round_message){.kind = ROUND_HAVE, .node = nodes[i], .n_runs = SIZE_MAX};
        assert_false(snapshot_round_take(&r, &m, &answer, &to));
    }
    m = (struct round_message){.kind = ROUND_HAVE, .node = 1, .attempt = UINT32_MAX};
    assert_false(snapshot_round_take(&r, &m, &answer, &to));
    m = (struct round_message){.kind = ROUND_GO, .node = 1};
    assert_false(snapshot_round_take(&r, &m, &answer, &to));
    assert_false(r.is_final);
    snapshot_round_finish(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_jobs),
        cmocka_unit_test(test_foreign_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
