/*
 * Which ranks are marked when the statuses of two nodes come together: each row is a job, by the steps that its ranks report. The
 * statuses go the way of the real ones: what an agent writes, the frames of the rendezvous, what crunctl reads.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/node_ranks_json.h"
#include "launcher/ctl/job_stragglers.h"
#include "launcher/crunctl/query_answer_json.h"
#include "rendezvous/session/look_json.h"

#include "tests/support/c/cmocka_fixed.h"

enum { NODES = 2, OF_A_PIECE = 24, NOW_MS = 100000 };

struct test_job {
    const char *name;
    int period_ms; /* of a step */
    int late_ms
        [4]; /* how long after the time of a step each rank reports it; of larger jobs every fourth one */
    int slower[4]; /* by so many percent each of its steps takes longer: it does not wait for the others */
    int age_ms[NODES];  /* of the report of each node */
    int look_ms[NODES]; /* when the agent of each node looks at its ranks, within its second */
    int is_one_by_one;  /* late_ms is that of a step, and not of a rank */
    int silent_node;    /* it has reported no steps; 0: none */
    int64_t generations[NODES];
    int ranks_of_a_node; /* 0: 2 */
    unsigned marks;      /* of the first four ranks */
};

static int ranks_of(const struct test_job *job)
{
    return job->ranks_of_a_node ? job->ranks_of_a_node : 2;
}

static int late_of(const struct test_job *job, int rank, int step)
{
    return job->late_ms[(job->is_one_by_one ? rank + step : rank) % 4];
}

/* The last step that the rank has reported at that time, and when. */
static int step_at(const struct test_job *job, int rank, int ms, int *ret_ms)
{
    int period = job->period_ms * (100 + job->slower[rank % 4]) / 100, step = ms / period;

    while (step * period + late_of(job, rank, step) > ms)
        step--;
    *ret_ms = step * period + late_of(job, rank, step);
    return step;
}

/* The steps that an agent has seen, in a look each second. */
static void fill_beats(const struct test_job *job, int rank, int node, struct worker_status *w)
{
    int report_ms = NOW_MS - job->age_ms[node], at_ms;

    for (int ms = report_ms; ms > 0 && w->n_beats < JOB_STATUS_BEATS_MAX;) {
        int step = step_at(job, rank, ms, &at_ms);

        if (w->n_beats == 0 || w->beats[w->n_beats - 1].step != step)
            w->beats[w->n_beats++] = (struct step_status){step, report_ms - at_ms};
        ms = ms == report_ms ? (ms - 1000) / 1000 * 1000 + job->look_ms[node] : ms - 1000;
    }
}

static void put_node(const struct test_job *job, int node, struct buf *out)
{
    struct look_node facts = {
        .state = "running", .host = "h", .group_rank = node, .status_ms = job->age_ms[node]};
    struct look_piece piece = {0, (uint32_t)(ranks_of(job) + OF_A_PIECE - 1) / OF_A_PIECE};
    struct job_status s = {0};

    assert_int_equal(job_status_add_node(&s, "h", node, (size_t)ranks_of(job)), 0);
    s.nodes[0].generation = job->generations[node];
    for (int i = 0; i < ranks_of(job); i++) {
        struct worker_status *w = &s.nodes[0].workers[i];

        w->rank = node * ranks_of(job) + i;
        (void)strcpy(w->state, "running");
        if (job->silent_node != node || node == 0)
            fill_beats(job, w->rank, node, w);
    }
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

static unsigned run_job(const struct test_job *job)
{
    const struct look_job facts = {.job = "two", .state = "running", .n_nodes = NODES};
    struct query_answer looked = {0};
    struct buf out = {0};
    unsigned marks = 0;

    assert_int_equal(look_put_job(&out, &facts), 0);
    for (int node = 0; node < NODES; node++)
        put_node(job, node, &out);
    assert_int_equal(look_put_end(&out, 0), 0);
    assert_int_equal(query_answer_take_frames(&looked, buf_bytes(&out), buf_size(&out)), 0);
    job_stragglers_mark(&looked.jobs[0]);
    for (int node = 0; node < NODES; node++)
        for (int i = 0; i < ranks_of(job); i++) {
            const struct worker_status *w = &looked.jobs[0].nodes[node].workers[i];

            assert_int_equal(w->n_beats, 0);
            if (w->rank < 4)
                marks |= (unsigned)w->straggler << w->rank;
        }
    query_answer_finish(&looked);
    buf_finish(&out);
    return marks;
}

static void a_table_of_jobs(void **state)
{
    static const struct test_job jobs[] = {
        {.name = "even", .period_ms = 3000, .late_ms = {1, 5, 3, 2}},
        {.name = "all of node 1 are late",
         .period_ms = 3000,
         .late_ms = {1, 5, 1200, 1210},
         .marks = 1 << 2 | 1 << 3},
        {.name = "all of node 0 are late",
         .period_ms = 3000,
         .late_ms = {1200, 1210, 5, 1},
         .marks = 1 << 0 | 1 << 1},
        {.name = "in reports of other ages",
         .period_ms = 3000,
         .late_ms = {1, 5, 1200, 1210},
         .age_ms = {20, 980},
         .look_ms = {400, 900},
         .marks = 1 << 2 | 1 << 3},
        {.name = "an old report is no late rank",
         .period_ms = 3000,
         .late_ms = {1, 5, 3, 2},
         .age_ms = {20, 2800}},
        {.name = "one rank is late", .period_ms = 3000, .late_ms = {1, 5, 3, 700}, .marks = 1 << 3},
        {.name = "by less than an eighth", .period_ms = 3000, .late_ms = {1, 5, 3, 300}},
        {.name = "by less than the slack", .period_ms = 1500, .late_ms = {1, 2, 196, 197}},
        {.name = "another one each time", .period_ms = 3000, .late_ms = {1, 1, 1, 1200}, .is_one_by_one = 1},
        {.name = "long steps", .period_ms = 12000, .late_ms = {1, 5, 3000, 3000}, .marks = 1 << 2 | 1 << 3},
        {.name = "short steps",
         .period_ms = 70,
         .late_ms = {1, 2, 3, 4},
         .look_ms = {100, 850},
         .age_ms = {10, 700}},
        {.name = "short steps, half of one late",
         .period_ms = 70,
         .late_ms = {1, 2, 35, 35},
         .look_ms = {100, 850}},
        {.name = "short steps that are interpolated", .period_ms = 500, .late_ms = {1, 2, 300, 300}},
        {.name = "ten times as slow",
         .period_ms = 2000,
         .slower = {0, 0, 900, 900},
         .marks = 1 << 2 | 1 << 3},
        {.name = "one node, which its agent compares",
         .period_ms = 3000,
         .late_ms = {1, 1200},
         .age_ms = {0, -1}},
        {.name = "node 1 does half of the steps",
         .period_ms = 70,
         .slower = {0, 0, 100, 100},
         .marks = 1 << 2 | 1 << 3},
        {.name = "and long ones", .period_ms = 2000, .slower = {0, 0, 100, 100}, .marks = 1 << 2 | 1 << 3},
        {.name = "one rank a node",
         .period_ms = 3000,
         .late_ms = {1, 1200},
         .ranks_of_a_node = 1,
         .marks = 1 << 1},
        {.name = "many ranks",
         .period_ms = 3000,
         .late_ms = {1, 1, 1, 1200},
         .ranks_of_a_node = 120,
         .marks = 1 << 3},
        {.name = "no steps", .period_ms = 3000, .late_ms = {1, 5, 1200, 1210}, .silent_node = 1},
        {.name = "an earlier generation",
         .period_ms = 3000,
         .late_ms = {1, 5, 1200, 1210},
         .generations = {3, 2}},
        {.name = "an unknown generation",
         .period_ms = 3000,
         .late_ms = {1, 5, 1200, 1210},
         .generations = {-1, -1}},
        {.name = "an unknown age", .period_ms = 3000, .late_ms = {1, 5, 1200, 1210}, .age_ms = {0, -1}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(jobs); i++) {
        unsigned marks = run_job(&jobs[i]);

        if (marks != jobs[i].marks)
            fail_msg("%s: %x instead of %x", jobs[i].name, marks, jobs[i].marks);
    }
}

/* Of another origin: none of them is used beyond the first fault. */
static void steps_that_are_none(void **state)
{
    static const struct {
        const char *beats;
        size_t n_beats;
    } rows[] = {{"[9,10,1,3000,1,3000]", 3},
                {"7", 0},
                {"[]", 0},
                {"[9]", 0},
                {"[9,-1]", 0},
                {"[9,1,10,1]", 1},
                {"[9,1,\"a\",1]", 1},
                {"[1e300,1]", 0},
                {"[9,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", JOB_STATUS_BEATS_MAX}};
    struct job_status read;
    char text[512];

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        (void)snprintf(
            text, sizeof(text),
            "{\"version\":1,\"job\":\"j\",\"state\":\"running\",\"crun_pid\":1,\"generation\":0,\"restarts\":0,\"max_restarts\":0,"
            "\"n_nodes\":1,\"started\":1,\"nodes\":[{\"host\":\"h\",\"group_rank\":0,\"generation\":4,\"workers\":[{\"rank\":0,"
            "\"local_rank\":0,\"pid\":7,\"state\":\"running\",\"hang\":false,\"beats\":%s}]}]}",
            rows[i].beats);
        assert_int_equal(job_status_from_json(text, strlen(text), &read), 0);
        assert_int_equal(read.nodes[0].generation, 4);
        assert_int_equal(read.nodes[0].workers[0].n_beats, rows[i].n_beats);
        job_status_finish(&read);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_table_of_jobs),
                                       cmocka_unit_test(steps_that_are_none)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
