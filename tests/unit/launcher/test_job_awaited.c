/*
 * Ranks that are marked when the statuses of two nodes come together: each row is a job, by the waits of its ranks. The statuses go
 * the way of the real ones: written by an agent, framed by the rendezvous, read by crunctl.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "launcher/crunctl/query_answer_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/node_ranks_json.h"
#include "rendezvous/session/look_json.h"

#include "tests/support/c/cmocka_fixed.h"

enum { NODES = 2, OF_A_PIECE = 24 };

struct test_job {
    const char *name;
    int32_t waits[4]; /* percent, of the ranks; of larger jobs of each fourth rank */
    const char *state;
    int64_t generations[NODES];
    int ranks_of_a_node; /* 0: 2 */
    int32_t awaited[4];  /* expected, of the first ranks */
    unsigned marks;      /* the same */
};

static int ranks_of(const struct test_job *job)
{
    return job->ranks_of_a_node ? job->ranks_of_a_node : 2;
}

static void put_node(const struct test_job *job, int node, struct buf *out)
{
    struct look_node facts = {.state = "running", .host = "h", .group_rank = node};
    struct look_piece piece = {0, (uint32_t)(ranks_of(job) + OF_A_PIECE - 1) / OF_A_PIECE};
    struct job_status s = {0};

    assert_int_equal(job_status_add_node(&s, "h", node, (size_t)ranks_of(job)), 0);
    s.nodes[0].generation = job->generations[node];
    for (int i = 0; i < ranks_of(job); i++) {
        struct worker_status *w = &s.nodes[0].workers[i];

        w->rank = node * ranks_of(job) + i;
        w->waits_percent = job->waits[w->rank % 4];
        (void)strcpy(w->state, node == 1 && job->state ? job->state : "running");
    }
    job_status_mark_slow(&s); /* as an agent does */
    assert_int_equal(look_put_node(out, &facts), 0);
    for (; piece.piece < piece.pieces; piece.piece++) {
        int first = (int)piece.piece * OF_A_PIECE, left = ranks_of(job) - first;
        char *json = node_ranks_to_json(&(struct node_ranks){.node = &s.nodes[0]}, (size_t)first,
                                        (size_t)(left < OF_A_PIECE ? left : OF_A_PIECE));

        assert_non_null(json);
        assert_int_equal(look_put_status(out, &piece, json), 0);
        free(json);
    }
    job_status_finish(&s);
}

static void check_worker(const struct test_job *job, const struct worker_status *w)
{
    if (w->rank >= 4)
        return;
    if (w->waits_percent != job->waits[w->rank] || w->awaited_percent != job->awaited[w->rank])
        fail_msg("%s: rank %d: waits %d, awaited %d", job->name, (int)w->rank, (int)w->waits_percent,
                 (int)w->awaited_percent);
    if (w->straggler != (job->marks >> w->rank & 1))
        fail_msg("%s: rank %d: mark %d", job->name, (int)w->rank, w->straggler);
}

static void run_job(const struct test_job *job)
{
    const struct look_job facts = {.job = "two", .state = "running", .n_nodes = NODES};
    struct query_answer looked = {0};
    struct buf out = {0};

    assert_int_equal(look_put_job(&out, &facts), 0);
    for (int node = 0; node < NODES; node++)
        put_node(job, node, &out);
    assert_int_equal(look_put_end(&out, 0), 0);
    assert_int_equal(query_answer_take_frames(&looked, buf_bytes(&out), buf_size(&out)), 0);
    job_status_mark_slow(&looked.jobs[0]);
    for (int node = 0; node < NODES; node++)
        for (int i = 0; i < ranks_of(job); i++)
            check_worker(job, &looked.jobs[0].nodes[node].workers[i]);
    query_answer_finish(&looked);
    buf_finish(&out);
}

static void a_table_of_jobs(void **state)
{
    static const struct test_job jobs[] = {
        {.name = "even", .waits = {20, 25, 22, 18}, .awaited = {2, 0, 0, 4}},
        {.name = "all of node 1 are slow", .waits = {80, 82, 1, 3}, .awaited = {0, 0, 79, 77}, .marks = 0xc},
        {.name = "all of node 0 are slow", .waits = {1, 3, 80, 82}, .awaited = {79, 77, 0, 0}, .marks = 0x3},
        {.name = "one rank is slow", .waits = {40, 45, 42, 5}, .awaited = {2, 0, 0, 37}, .marks = 0x8},
        {.name = "by less than the bound", .waits = {40, 45, 42, 13}, .awaited = {2, 0, 0, 29}},
        {.name = "slow on its node, and not in the job", .waits = {90, 0, 20, 10}, .awaited = {0, 20, 0, 10}},
        {.name = "one rank a node", .waits = {70, 4}, .ranks_of_a_node = 1, .awaited = {0, 66}, .marks = 0x2},
        {.name = "many ranks",
         .waits = {50, 51, 52, 2},
         .ranks_of_a_node = 120,
         .awaited = {1, 0, 0, 49},
         .marks = 0x8},
        {.name = "not known on node 1", .waits = {60, 5, -1, -1}, .awaited = {0, 55, -1, -1}, .marks = 0x2},
        {.name = "ended on node 1", .waits = {50, 50, 0, 0}, .state = "succeeded", .awaited = {0, 0, -1, -1}},
        {.name = "an earlier generation on node 1",
         .waits = {50, 50, 0, 0},
         .generations = {3, 2},
         .awaited = {0, 0, 0, 0}},
        {.name = "an unknown generation",
         .waits = {50, 50, 0, 0},
         .generations = {-1, -1},
         .awaited = {-1, -1, -1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(jobs); i++)
        run_job(&jobs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_table_of_jobs)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
