/*
 * A job's state on disk: a rendezvous that is restarted with it goes on as if nothing had been, and a file
 * that is damaged is refused whole.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/agents/rounds_file_os.h"
#include "rendezvous/rounds/rounds_json.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/sanitized.h"

#define MS UINT64_C(1000000)

enum { N_NODES = 3 };

struct table {
    struct rounds rounds;
    struct rounds_conn sessions[N_NODES];
    struct session_view views[N_NODES];
    struct session_hello hellos[N_NODES];
    struct buf disk; /* as of the last save */
    uint64_t now_ns;
    unsigned log_kinds;
};

static void start_daemon(struct table *t, uint64_t seed)
{
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;

    config.seed = seed;
    rounds_init(&t->rounds, &config);
    for (int i = 0; i < N_NODES; i++)
        rounds_conn_init(&t->sessions[i]);
}

static int set_up(void **state)
{
    struct table *t = calloc(1, sizeof(*t));

    if (!t)
        return -1;
    t->now_ns = 1000000 * MS;
    start_daemon(t, 1);
    *state = t;
    return 0;
}

static int tear_down(void **state)
{
    struct table *t = *state;

    rounds_finish(&t->rounds);
    buf_finish(&t->disk);
    free(t);
    return 0;
}

static void step(struct table *t, struct rounds_event event)
{
    struct rounds_action action;

    event.now_ns = t->now_ns;
    rounds_step(&t->rounds, &event);
    while (rounds_next(&t->rounds, &action)) {
        if (action.kind == ROUNDS_DO_SAVE) {
            buf_reset(&t->disk);
            assert_int_equal(rounds_json_save(&t->disk, action.job), 0);
        } else if (action.kind == ROUNDS_DO_SEND) {
            t->views[action.session - t->sessions] = action.view;
        } else if (action.kind == ROUNDS_DO_REPORT) {
            t->log_kinds |= action.log_kinds;
        }
    }
}

static void hello(struct table *t, int i)
{
    t->hellos[i].attempt++;
    step(t, (struct rounds_event){.kind = ROUNDS_HELLO,
                                  .session = &t->sessions[i],
                                  .hello = &t->hellos[i],
                                  .peer = "10.0.0.1",
                                  .local = "10.0.0.100"});
}

static void report(struct table *t, int i, enum session_phase phase)
{
    struct session_report *r = &t->hellos[i].report;

    r->phase = phase;
    r->instance = t->views[i].instance;
    r->generation = t->views[i].generation;
    r->group_rank = (int32_t)t->views[i].place.group_rank;
    step(t, (struct rounds_event){.kind = ROUNDS_REPORT, .session = &t->sessions[i], .report = r});
}

/* All nodes run generation 0 of a job of 2:3. */
static void run(struct table *t)
{
    for (int i = 0; i < N_NODES; i++) {
        uint32_t lease_ms = t->hellos[i].params.lease_ms;

        t->hellos[i] = (struct session_hello){
            .job = "job \"1\"",
            .params = SESSION_PARAMS_DEFAULT,
            .nonce = {5, (uint64_t)i},
            .role = "default",
            .n_workers = 4,
            .node_rank = i,
            .report = {.phase = SESSION_READY, .generation = -1, .group_rank = -1, .port = 4000}};
        t->hellos[i].params.lease_ms = lease_ms;
        t->hellos[i].params.min_nodes = 2;
        t->hellos[i].params.max_nodes = 3;
        t->hellos[i].params.max_restarts = 2;
        (void)snprintf(t->hellos[i].host, sizeof(t->hellos[i].host), "node%d", i);
        hello(t, i);
    }
    for (int i = 0; i < N_NODES; i++)
        report(t, i, SESSION_RUNNING);
    t->log_kinds = 0;
}

static void restart(struct table *t)
{
    char error[ROUNDS_JSON_ERROR_SIZE] = "";

    rounds_finish(&t->rounds);
    t->now_ns += 12345 * MS; /* another clock */
    start_daemon(t, 2);
    if (!rounds_json_load(&t->rounds, buf_bytes(&t->disk), buf_size(&t->disk), t->now_ns, error))
        fail_msg("%s", error);
    memset(t->views, 0, sizeof(t->views));
}

static void pass(struct table *t, unsigned ms)
{
    for (unsigned i = 0; i < ms / 50; i++) {
        t->now_ns += 50 * MS;
        for (int j = 0; j < N_NODES; j++)
            step(t, (struct rounds_event){.kind = ROUNDS_ALIVE, .session = &t->sessions[j]});
        if (rounds_deadline(&t->rounds) <= t->now_ns)
            step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    }
}

static void agents_that_return_go_on(void **state)
{
    struct table *t = *state;

    run(t);
    restart(t);
    pass(t, 4000);
    for (int i = 0; i < N_NODES; i++) {
        hello(t, i);
        assert_int_equal(t->views[i].kind, SESSION_VIEW_CONTINUE);
        assert_int_equal(t->views[i].generation, 0);
    }
    pass(t, 10000);
    assert_false(t->log_kinds & ROUNDS_LOG_OVER);
    for (int i = 0; i < N_NODES; i++)
        report(t, i, SESSION_DONE);
    assert_int_equal(t->views[0].verdict, SESSION_VERDICT_SUCCESS);
}

static void agents_that_do_not_return_are_lost_after_the_grace(void **state)
{
    struct table *t = *state;

    run(t);
    restart(t);
    hello(t, 0);
    hello(t, 2);
    pass(t, 4950);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_CONTINUE);
    pass(t, 100);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_STOP);
    assert_string_equal(t->views[0].cause.host, "node1");
    report(t, 0, SESSION_READY);
    report(t, 2, SESSION_READY);
    assert_int_equal(t->views[2].kind, SESSION_VIEW_START);
    assert_int_equal(t->views[2].place.group_rank, 1);
    assert_int_equal(t->views[2].changes, 1);
}

/* What the rendezvous before has answered last is not known. */
static void leases_count_from_the_restart(void **state)
{
    struct table *t = *state;

    for (int i = 0; i < N_NODES; i++)
        t->hellos[i].params.lease_ms = 8000;
    run(t);
    restart(t);
    hello(t, 0);
    hello(t, 2);
    assert_int_equal(t->views[0].lease_ms, 8000);
    pass(t, 5100);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_STOP);
    report(t, 0, SESSION_READY);
    report(t, 2, SESSION_READY);
    pass(t, 500);
    restart(t); /* in the state that has node 1 as one that is lost */
    hello(t, 0);
    hello(t, 2);
    pass(t, 8000 + 400 + 900);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_WAIT);
    pass(t, 100);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_START);
}

/* We were stopped for the rest of the grace: whoever is on its way back gets another while. */
static void an_absence_during_the_grace_is_not_the_agents_fault(void **state)
{
    struct table *t = *state;

    run(t);
    restart(t);
    hello(t, 0);
    hello(t, 2);
    pass(t, 500);
    t->now_ns += 4600 * MS;
    step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    assert_int_equal(t->views[0].kind, SESSION_VIEW_CONTINUE);
    pass(t, 500);
    hello(t, 1);
    assert_int_equal(t->views[1].kind, SESSION_VIEW_CONTINUE);
    pass(t, 2000);
    assert_false(t->log_kinds & ROUNDS_LOG_OVER);
}

/* All have returned, and the deadline of each is the end of the grace: a stop that ends before it is noticed by ticks only. */
static void a_connection_lost_in_an_absence_during_the_grace_is_redialled(void **state)
{
    struct table *t = *state;

    run(t);
    restart(t);
    for (int i = 0; i < N_NODES; i++)
        hello(t, i);
    pass(t, 1000);
    t->now_ns += 3900 * MS; /* the daemon did not run */
    if (rounds_deadline(&t->rounds) <= t->now_ns)
        step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    step(t, (struct rounds_event){.kind = ROUNDS_DISCONNECTED, .session = &t->sessions[2]});
    pass(t, 500);
    rounds_conn_init(&t->sessions[2]);
    hello(t, 2);
    assert_int_equal(t->views[2].kind, SESSION_VIEW_CONTINUE);
    pass(t, 5000);
    assert_false(t->log_kinds & ROUNDS_LOG_OVER);
}

static void a_start_that_was_not_heard_is_said_again(void **state)
{
    struct table *t = *state;
    struct session_view before;

    run(t);
    before = t->views[1];
    restart(t);
    t->hellos[1].report =
        (struct session_report){.phase = SESSION_READY, .generation = -1, .group_rank = -1, .port = 4000};
    hello(t, 1);
    assert_int_equal(t->views[1].kind, SESSION_VIEW_START);
    assert_memory_equal(&t->views[1].place, &before.place, sizeof(before.place));
}

static void charges_and_causes_survive(void **state)
{
    struct table *t = *state;
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER, .rank = 5, .local_rank = 1, .exit_code = 7};

    run(t);
    t->hellos[1].report.cause = cause;
    report(t, 1, SESSION_FAILED);
    for (int i = 0; i < N_NODES; i++)
        report(t, i, SESSION_READY);
    assert_int_equal(t->views[0].restarts, 1);
    restart(t);
    for (int i = 0; i < N_NODES; i++) {
        hello(t, i); /* ready for what they were told to start */
        assert_int_equal(t->views[i].kind, SESSION_VIEW_START);
        assert_int_equal(t->views[i].generation, 1);
        assert_int_equal(t->views[i].restarts, 1);
        assert_int_equal(t->views[i].cause.rank, 5);
    }
}

/* The node that asked repeats it in each hello, but it may be lost with the rendezvous. */
static void a_drain_outlives_the_node_that_asked_for_it(void **state)
{
    struct table *t = *state;

    run(t);
    t->hellos[0].report.drain = true;
    report(t, 0, SESSION_RUNNING);
    restart(t);
    hello(t, 1);
    hello(t, 2);
    pass(t, 6000);
    assert_int_equal(t->views[1].kind, SESSION_VIEW_STOP);
    report(t, 1, SESSION_READY);
    report(t, 2, SESSION_READY);
    assert_int_equal(t->views[1].kind, SESSION_VIEW_END); /* and no other generation */
    assert_int_equal(t->views[1].verdict, SESSION_VERDICT_FAILURE);
}

static void a_signal_to_all_outlives_the_rendezvous(void **state)
{
    struct table *t = *state;

    run(t);
    t->hellos[0].report.stop_signal = 2;
    report(t, 0, SESSION_LEFT);
    t->hellos[0].report.stop_signal = 0;
    assert_int_equal(t->views[1].stop_signal, 2);
    restart(t);
    hello(t, 2);
    assert_int_equal(t->views[2].kind, SESSION_VIEW_END);
    assert_int_equal(t->views[2].stop_signal, 2);
    assert_string_equal(t->views[2].cause.text, "the job was stopped at node0");
}

/* Agents repeat the cause that they know. That may be a later one than the one that was charged. */
static void the_charge_of_a_generation_that_has_ended_survives(void **state)
{
    struct table *t = *state;
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER, .rank = 5, .local_rank = 1, .exit_code = 7};

    run(t);
    t->now_ns += 1000 * MS;
    report(t, 2, SESSION_LEFT);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_STOP);
    t->hellos[0].report.cause = t->views[0].cause;
    report(t, 0, SESSION_STOPPING);
    t->hellos[1].report.cause = cause;
    t->hellos[1].report.age_ns = 100 * MS; /* it failed before node 2 left */
    report(t, 1, SESSION_FAILED);
    t->hellos[1].report.age_ns = 0;
    restart(t); /* before a next generation was formed and saved */
    hello(t, 0);
    t->hellos[1].report.phase = SESSION_READY;
    hello(t, 1);
    pass(t, 6000);
    report(t, 0, SESSION_READY);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_START);
    assert_int_equal(t->views[0].restarts, 1);
    assert_int_equal(t->views[0].changes, 0);
}

static void what_agents_were_told_before_the_crash_is_the_cause(void **state)
{
    struct table *t = *state;
    struct session_cause cause = {.kind = SESSION_CAUSE_LEFT, .rank = -1, .local_rank = -1, .host = "node9"};

    run(t);
    restart(t); /* it died between telling and writing */
    t->hellos[0].report.phase = SESSION_STOPPING;
    t->hellos[0].report.cause = cause;
    hello(t, 0);
    hello(t, 1);
    assert_int_equal(t->views[1].kind, SESSION_VIEW_STOP);
    assert_string_equal(t->views[1].cause.host, "node9");
    assert_int_equal(t->views[1].cause.kind, SESSION_CAUSE_LEFT);
}

static void a_verdict_survives(void **state)
{
    struct table *t = *state;

    run(t);
    for (int i = 0; i < N_NODES; i++)
        report(t, i, SESSION_DONE);
    restart(t);
    hello(t, 1);
    assert_int_equal(t->views[1].kind, SESSION_VIEW_END);
    assert_int_equal(t->views[1].verdict, SESSION_VERDICT_SUCCESS);
}

static void a_node_that_was_done_and_left_stays_done(void **state)
{
    struct table *t = *state;

    run(t);
    report(t, 0, SESSION_DONE);
    report(t, 0, SESSION_LEFT);
    restart(t);
    hello(t, 1);
    hello(t, 2);
    pass(t, 10000);
    report(t, 1, SESSION_DONE);
    report(t, 2, SESSION_DONE);
    assert_int_equal(t->views[2].verdict, SESSION_VERDICT_SUCCESS);
}

static void assert_refused(struct table *t, const char *text, size_t n, const char *said)
{
    char error[ROUNDS_JSON_ERROR_SIZE] = "";

    assert_false(rounds_json_load(&t->rounds, (const uint8_t *)text, n, t->now_ns, error));
    if (!strstr(error, said))
        fail_msg("'%s' does not say '%s'", error, said);
    assert_int_equal(t->rounds.n_jobs, 0);
    assert_int_equal(t->rounds.n_nodes, 0);
}

static void a_file_that_was_cut_is_refused(void **state)
{
    struct table *t = *state;
    _cleanup_free_ char *text = NULL;
    size_t n;

    run(t);
    n = buf_size(&t->disk);
    text = malloc(n);
    assert_non_null(text);
    memcpy(text, buf_bytes(&t->disk), n);
    rounds_finish(&t->rounds);
    start_daemon(t, 2);
    for (size_t i = 0; i + 2 < n; i++) /* the last two are "}" and a newline */
        assert_refused(t, text, i, "cannot be used");
}

static void what_is_wrong_in_a_file_is_named(void **state)
{
    static const char params[] =
        "\"params\":{\"min_nodes\":2,\"max_nodes\":3,\"max_restarts\":0,\"max_changes\":0,"
        "\"join_timeout_ms\":1,\"last_call_ms\":0,\"node_timeout_ms\":1000}";
    struct table *t = *state;
    char text[1000];

    assert_refused(t, "{}", 2, "it has no version");
    assert_refused(t, "{\"crun_rounds\":0}", 17, "its version is 0, and this release reads 3");
    assert_refused(t, "{\"crun_rounds\":4}", 17, "its version is 4, and this release reads 3");
    assert_refused(t, "{\"crun_rounds\":1.5}", 19, "its version is 1.5, and this release reads 3");
    assert_refused(t, "{\"crun_rounds\":3}", 17, "'job' is missing");
    (void)snprintf(text, sizeof(text),
                   "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"0000000000000001\",\"state\":\"running\","
                   "%s,\"nodes\":[{}]}",
                   params);
    assert_refused(t, text, strlen(text), "in a node, 'nonce_high' is missing");
    (void)snprintf(text, sizeof(text),
                   "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"0000000000000001\",\"state\":\"running\","
                   "%s,\"nodes\":["
                   "{\"nonce_high\":\"0000000000000001\",\"nonce_low\":\"0000000000000001\",\"workers\":1},"
                   "{\"nonce_high\":\"0000000000000001\",\"nonce_low\":\"0000000000000001\",\"workers\":1}]}",
                   params);
    assert_refused(t, text, strlen(text), "a node is there twice");
    (void)snprintf(text, sizeof(text),
                   "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"0000000000000001\",\"state\":\"running\","
                   "\"restarts\":1,%s}",
                   params);
    assert_refused(t, text, strlen(text), "restarted more often than it may be");
}

/* A daemon that is started again with lower limits names the one that is too low. */
static void more_nodes_than_all_jobs_may_have_are_refused(void **state)
{
    static const char text[] =
        "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"0000000000000001\",\"state\":\"running\","
        "\"params\":{\"min_nodes\":2,\"max_nodes\":3,\"max_restarts\":0,\"max_changes\":0,"
        "\"join_timeout_ms\":1,\"last_call_ms\":0,\"node_timeout_ms\":1000},\"nodes\":["
        "{\"nonce_high\":\"0000000000000001\",\"nonce_low\":\"0000000000000001\",\"workers\":1},"
        "{\"nonce_high\":\"0000000000000001\",\"nonce_low\":\"0000000000000002\",\"workers\":1}]}";
    struct table *t = *state;

    t->rounds.config.max_nodes_all = 1;
    assert_refused(t, text, strlen(text), "more nodes in all jobs than the limit allows");
}

/* Of a running world with one node of two workers, rank 0 of 1, each number changed by itself. */
static void a_place_outside_its_world_is_refused(void **state)
{
    static const char *const good[] = {"1", "2", "0", "0", "0", "2"};
    static const struct {
        int which;
        const char *value;
    } bad[] = {{0, "0"}, {1, "1"}, {1, "0"}, {2, "1"}, {2, "-1"}, {3, "1"}, {4, "1"}, {5, "1"}, {5, "3"}};
    struct table *t = *state;
    char text[1000], error[ROUNDS_JSON_ERROR_SIZE] = "";

    for (int i = -1; i < (int)(sizeof(bad) / sizeof(bad[0])); i++) {
        const char *v[6];

        memcpy(v, good, sizeof(v));
        if (i >= 0)
            v[bad[i].which] = bad[i].value;
        (void)snprintf(
            text, sizeof(text),
            "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"0000000000000001\",\"state\":\"running\","
            "\"generation\":0,\"members\":%s,\"world_size\":%s,"
            "\"params\":{\"min_nodes\":1,\"max_nodes\":3,\"max_restarts\":0,\"max_changes\":0,"
            "\"join_timeout_ms\":1,\"last_call_ms\":0,\"node_timeout_ms\":1000},\"nodes\":["
            "{\"nonce_high\":\"0000000000000001\",\"nonce_low\":\"0000000000000001\",\"workers\":2,"
            "\"member\":true,\"group_rank\":%s,\"rank_base\":%s,\"role_rank_base\":%s,"
            "\"role_world_size\":%s}]}",
            v[0], v[1], v[2], v[3], v[4], v[5]);
        if (i >= 0)
            assert_refused(t, text, strlen(text), "no place in the world");
        else if (!rounds_json_load(&t->rounds, (const uint8_t *)text, strlen(text), t->now_ns, error))
            fail_msg("%s", error);
        else {
            rounds_finish(&t->rounds);
            start_daemon(t, 2);
        }
    }
}

static bool load_instance(struct table *t, unsigned instance, unsigned sequence, unsigned restarts)
{
    char text[1000], error[ROUNDS_JSON_ERROR_SIZE] = "";

    (void)snprintf(text, sizeof(text),
                   "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"%016x\",\"state\":\"gathering\","
                   "\"sequence\":%u,\"restarts\":%u,"
                   "\"params\":{\"min_nodes\":1,\"max_nodes\":3,\"max_restarts\":9,\"max_changes\":0,"
                   "\"join_timeout_ms\":1000,\"last_call_ms\":0,\"node_timeout_ms\":1000}}",
                   instance, sequence, restarts);
    return rounds_json_load(&t->rounds, (const uint8_t *)text, strlen(text), t->now_ns, error);
}

/* A crash may leave the file of the instance before: the one that was saved last counts. */
static void of_two_instances_of_a_job_the_later_one_counts(void **state)
{
    struct table *t = *state;
    const struct rounds_job *job;

    assert_true(load_instance(t, 7, 20, 1));
    assert_int_equal(t->rounds.superseded, 0);
    assert_true(load_instance(t, 8, 30, 2));
    assert_int_equal(t->rounds.superseded, 7);
    assert_true(load_instance(t, 9, 10, 3));
    assert_int_equal(t->rounds.superseded, 9);
    assert_int_equal(t->rounds.n_jobs, 1);
    job = list_entry(t->rounds.jobs.next, struct rounds_job, in_rounds);
    assert_int_equal(job->instance, 8);
    assert_int_equal(job->restarts, 2);
    assert_int_equal(t->rounds.n_saves, 30); /* what is saved next is later than all of them */
}

/* A job as text, of this id, instance and state; more: further members. */
static bool load_text(struct table *t, unsigned instance, const char *more)
{
    char text[2000], error[ROUNDS_JSON_ERROR_SIZE] = "";
    bool loaded;

    (void)snprintf(text, sizeof(text),
                   "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"%016x\",%s,"
                   "\"params\":{\"min_nodes\":2,\"max_nodes\":2,\"max_restarts\":9,\"max_changes\":9,"
                   "\"join_timeout_ms\":1000,\"last_call_ms\":0,\"node_timeout_ms\":1000}}",
                   instance, more);
    loaded = rounds_json_load(&t->rounds, (const uint8_t *)text, strlen(text), t->now_ns, error);
    if (!loaded)
        print_message("%s\n", error);
    return loaded;
}

#define ENDED "\"state\":\"closed\",\"verdict\":\"success\",\"generation\":3,\"sequence\":"

/* An agent of instance 7 returns, with generation 3. */
static void assert_gets_the_result_of_7(struct table *t)
{
    t->hellos[0] = (struct session_hello){
        .job = "a",
        .params = {.min_nodes = 2,
                   .max_nodes = 2,
                   .max_restarts = 9,
                   .max_changes = 9,
                   .join_timeout_ms = 1000,
                   .node_timeout_ms = 1000},
        .nonce = {5, 9},
        .role = "default",
        .n_workers = 1,
        .node_rank = -1,
        .report = {.phase = SESSION_DONE, .instance = 7, .generation = 3, .group_rank = 0}};
    (void)snprintf(t->hellos[0].host, sizeof(t->hellos[0].host), "node0");
    hello(t, 0);
    assert_int_equal(t->views[0].kind, SESSION_VIEW_END);
    assert_int_equal(t->views[0].verdict, SESSION_VERDICT_SUCCESS);
    assert_int_equal(t->views[0].instance, 7);
}

/* In both orders of the directory, and when the crash came before "replaced" was written. */
static void a_tombstone_and_the_job_with_its_id_survive(void **state)
{
    static const char *const tombstones[] = {ENDED "5,\"replaced\":true", ENDED "90,\"replaced\":true",
                                             ENDED "5"};
    struct table *t = *state;

    for (unsigned i = 0; i < 6; i++) {
        if (i % 2 == 0)
            assert_true(load_text(t, 7, tombstones[i / 2]));
        assert_true(load_text(t, 8, "\"state\":\"gathering\",\"sequence\":30"));
        if (i % 2)
            assert_true(load_text(t, 7, tombstones[i / 2]));
        assert_int_equal(t->rounds.superseded, 0);
        assert_int_equal(t->rounds.n_jobs, 1);
        assert_int_equal(t->rounds.n_replaced, 1);
        assert_gets_the_result_of_7(t);
        rounds_finish(&t->rounds);
        start_daemon(t, 2);
    }
}

/* What replaces it is not saved before its first generation, so the tombstone has to be known as one by itself. */
static void a_tombstone_without_a_successor_keeps_its_id_free(void **state)
{
    struct table *t = *state;

    assert_true(load_text(t, 7, ENDED "5,\"replaced\":true"));
    assert_int_equal(t->rounds.n_jobs, 0);
    assert_gets_the_result_of_7(t);
    t->hellos[1] = t->hellos[0];
    t->hellos[1].nonce.low++;
    t->hellos[1].report =
        (struct session_report){.phase = SESSION_READY, .generation = -1, .group_rank = -1, .port = 4000};
    hello(t, 1);
    assert_int_equal(t->views[1].kind, SESSION_VIEW_WAIT);
}

/* A generation that has lost a member, and a drain that has it saved while it ends. */
static void an_ending_generation_is_saved_as_one(void **state)
{
    struct table *t = *state;
    char error[ROUNDS_JSON_ERROR_SIZE] = "";

    run(t);
    report(t, 2, SESSION_LEFT);
    t->hellos[0].report.drain = true;
    report(t, 0, SESSION_STOPPING);
    assert_int_equal(buf_append(&t->disk, "", 1), 0);
    assert_non_null(strstr((const char *)buf_bytes(&t->disk), "\"state\":\"ending\""));
    rounds_finish(&t->rounds);
    start_daemon(t, 2);
    if (!rounds_json_load(&t->rounds, buf_bytes(&t->disk), buf_size(&t->disk) - 1, t->now_ns, error))
        fail_msg("%s", error);
    for (int i = 0; i < 2; i++) { /* one of them has not received the STOP */
        t->views[i] = (struct session_view){0};
        hello(t, i);
        assert_int_equal(t->views[i].kind, SESSION_VIEW_STOP);
        assert_int_equal(t->views[i].cause.kind, SESSION_CAUSE_LEFT);
        assert_string_equal(t->views[i].cause.host, "node2");
    }
    report(t, 0, SESSION_READY);
    report(t, 1, SESSION_READY);
    assert_int_equal(t->views[1].verdict, SESSION_VERDICT_DRAINED);
}

/* Every number that a decision depends on comes through. */
static void what_decides_the_next_generation_is_saved(void **state)
{
    struct table *t = *state;
    const char *text =
        "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"0000000000000007\",\"state\":\"gathering\","
        "\"generation\":3,\"floor\":11,\"restarts\":2,\"changes\":1,\"drain\":true,\"params\":"
        "{\"min_nodes\":1,\"max_nodes\":3,\"max_restarts\":9,\"max_changes\":9,"
        "\"join_timeout_ms\":1000,\"last_call_ms\":0,\"node_timeout_ms\":1000},\"nodes\":["
        "{\"nonce_high\":\"0000000000000001\",\"nonce_low\":\"0000000000000001\",\"workers\":2,"
        "\"previous_member\":true,\"group_rank\":1}]}";
    char error[ROUNDS_JSON_ERROR_SIZE] = "";
    const struct rounds_job *job;
    const struct rounds_node *n;
    struct buf again = {0};

    for (int pass = 0; pass < 2; pass++) {
        if (!rounds_json_load(&t->rounds, (const uint8_t *)text, strlen(text), t->now_ns, error))
            fail_msg("%s", error);
        job = list_entry(t->rounds.jobs.next, struct rounds_job, in_rounds);
        n = list_entry(job->nodes.next, struct rounds_node, in_job);
        assert_int_equal(job->generation, 3);
        assert_int_equal(job->floor, 11);
        assert_int_equal(job->restarts, 2);
        assert_int_equal(job->changes, 1);
        assert_true(job->drain);
        assert_true(n->previous_member);
        assert_int_equal(n->group_rank, 1);
        assert_int_equal(n->n_workers, 2);
        if (pass == 0) { /* and what is written of it says the same */
            assert_int_equal(rounds_json_save(&again, job), 0);
            assert_int_equal(buf_append(&again, "", 1), 0);
            text = (const char *)buf_bytes(&again);
            rounds_finish(&t->rounds);
            start_daemon(t, 2);
        }
    }
    buf_finish(&again);
}

#define LOST "\"cause\":{\"kind\":\"lost\",\"host\":\"node2\"}"

static void a_state_that_contradicts_itself_is_refused(void **state)
{
    static const struct {
        const char *head, *error;
    } bad[] = {
        {"\"state\":\"running\",\"generation\":0,\"members\":2", "other members"},
        {"\"state\":\"running\",\"generation\":0,\"members\":0,\"done_left\":1", "other members"},
        {"\"state\":\"ending\",\"generation\":0,\"members\":0,\"done_left\":1," LOST, "more members"},
        {"\"state\":\"ending\",\"generation\":0,\"members\":1", "without a cause"},
        {"\"state\":\"ending\",\"members\":1," LOST, "no generation"},
        {"\"state\":\"gathering\",\"replaced\":true", "has not ended"},
        {"\"state\":\"running\"", "no generation"},
        {"\"state\":\"closed\"", "without a result"},
        {"\"state\":\"gathering\",\"verdict\":\"success\"", "without a result"},
    };
    struct table *t = *state;
    char text[1000];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"crun_rounds\":3,\"job\":\"a\",\"instance\":\"0000000000000001\",%s,"
                       "\"params\":{\"min_nodes\":1,\"max_nodes\":3,\"max_restarts\":0,\"max_changes\":0,"
                       "\"join_timeout_ms\":1,\"last_call_ms\":0,\"node_timeout_ms\":1000}}",
                       bad[i].head);
        assert_refused(t, text, strlen(text), bad[i].error);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* ---- size ---- */

/* Characters that JSON makes two bytes of; it makes six of some, which are refused in names. */
static void fill_with_quotes(char *text, size_t size)
{
    memset(text, '"', size - 1);
    text[size - 1] = '\0';
}

/* A file that the rendezvous has written has to be one that it reads. */
static void the_largest_job_can_be_read_again(void **state)
{
    struct table *t = *state;
    struct session_hello h = {
        .params = SESSION_PARAMS_DEFAULT, .n_workers = SESSION_WORKERS_MAX, .attempt = 1};
    struct rounds_conn *conns;
    struct rounds_action action;
    struct buf file = {0};
    const uint8_t *body;
    char error[ROUNDS_JSON_ERROR_SIZE];
    size_t n;

    if (IS_SANITIZED) /* half a minute there, for what smaller states do, too */
        skip();
    conns = calloc(SESSION_NODES_MAX, sizeof(*conns));
    assert_non_null(conns);
    fill_with_quotes(h.job, sizeof(h.job));
    fill_with_quotes(h.host, sizeof(h.host));
    fill_with_quotes(h.addr, sizeof(h.addr));
    fill_with_quotes(h.own, sizeof(h.own));
    fill_with_quotes(h.role, sizeof(h.role));
    h.params.min_nodes = h.params.max_nodes = SESSION_NODES_MAX;
    for (uint32_t i = 0; i < SESSION_NODES_MAX; i++) {
        h.nonce = (struct session_nonce){UINT64_MAX, UINT64_MAX - i};
        h.report = (struct session_report){
            .phase = SESSION_READY, .generation = -1, .group_rank = -1, .port = UINT16_MAX};
        rounds_conn_init(&conns[i]);
        rounds_step(&t->rounds, &(struct rounds_event){.kind = ROUNDS_HELLO,
                                                       .now_ns = t->now_ns,
                                                       .session = &conns[i],
                                                       .hello = &h,
                                                       .peer = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff",
                                                       .local = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:fffe"});
        while (rounds_next(&t->rounds, &action))
            ;
        assert_non_null(conns[i].node);
    }
    assert_int_equal(rounds_file_put(&file, list_entry(t->rounds.jobs.next, struct rounds_job, in_rounds)),
                     0);
    assert_true(buf_size(&file) > ROUNDS_FILE_MAX / 4);
    rounds_finish(&t->rounds);
    free(conns);
    start_daemon(t, 2);
    body = rounds_file_check(buf_bytes(&file), buf_size(&file), &n);
    assert_non_null(body);
    if (!rounds_json_load(&t->rounds, body, n, t->now_ns, error))
        fail_msg("%s", error);
    buf_finish(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(agents_that_return_go_on),
        TEST(agents_that_do_not_return_are_lost_after_the_grace),
        TEST(leases_count_from_the_restart),
        TEST(an_absence_during_the_grace_is_not_the_agents_fault),
        TEST(a_connection_lost_in_an_absence_during_the_grace_is_redialled),
        TEST(a_start_that_was_not_heard_is_said_again),
        TEST(charges_and_causes_survive),
        TEST(a_drain_outlives_the_node_that_asked_for_it),
        TEST(a_signal_to_all_outlives_the_rendezvous),
        TEST(the_charge_of_a_generation_that_has_ended_survives),
        TEST(what_agents_were_told_before_the_crash_is_the_cause),
        TEST(a_verdict_survives),
        TEST(a_node_that_was_done_and_left_stays_done),
        TEST(a_file_that_was_cut_is_refused),
        TEST(what_is_wrong_in_a_file_is_named),
        TEST(more_nodes_than_all_jobs_may_have_are_refused),
        TEST(a_place_outside_its_world_is_refused),
        TEST(what_decides_the_next_generation_is_saved),
        TEST(a_state_that_contradicts_itself_is_refused),
        TEST(of_two_instances_of_a_job_the_later_one_counts),
        TEST(a_tombstone_and_the_job_with_its_id_survive),
        TEST(a_tombstone_without_a_successor_keeps_its_id_free),
        TEST(an_ending_generation_is_saved_as_one),
        TEST(the_largest_job_can_be_read_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
