/*
 * Conversations with the worker group, of two workers (group_conversation.h).
 */

#include <signal.h>

#include "base/err.h"
#include "tests/unit/launcher/group_conversation.h"

#define EXIT(code) ((code) << 8)

/* Holds the conversation with a group of two workers; lines end with an answer of NULL. */
static void converse(struct worker_group *g, int max_restarts, const struct line *lines)
{
    const struct group_config config = {.n_workers = 2, .max_restarts = max_restarts, .grace_ns = 30000 * MS};

    converse_as(g, &config, lines);
}

/* The same as one node of several. */
static void converse_placed(struct worker_group *g, const struct line *lines)
{
    const struct group_config config = {.n_workers = 2, .grace_ns = 30000 * MS, .placed = true};

    converse_as(g, &config, lines);
}

#define STARTED_BOTH                                                                                         \
    {0, GROUP_START, -1, 0, "spawn"}, {1, GROUP_STARTED, 0, 0, ""},                                          \
    {                                                                                                        \
        1, GROUP_STARTED, 1, 0, ""                                                                           \
    }

static void test_all_end_well(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, 0, ""},
        {9, GROUP_EXITED, 0, 0, ""},
        {9, GROUP_EMPTY, -1, 0, "finish 0"},
        {10, GROUP_TIMER, -1, 0, ""},
        {10, GROUP_SIGNAL, -1, SIGTERM, ""},
        {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    assert_int_equal(g.workers[1].order, 0);
    assert_int_equal(g.workers[0].order, 1);
    assert_int_equal(g.state, GROUP_DONE);
    group_finish(&g);
}

/* The order to stop was on its way when the other one failed, too. */
static void test_failed_by_itself_at_the_same_time(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(7), "failed 1, signal 15, arm +30000"},
        {0},
    };
    struct group_event event = {
        .kind = GROUP_EXITED, .now_ns = 6 * MS, .worker = 0, .value = EXIT(8), .unasked = true};
    struct group_actions actions;
    struct worker_group g;

    converse(&g, 0, lines);
    assert_true(g.workers[0].stopped);
    group_step(&g, &event, &actions);
    assert_int_equal(actions.n_items, 0);
    assert_false(g.workers[0].stopped);
    assert_int_equal(g.cause_worker, 1);
    group_finish(&g);
}

static void test_left_behind_after_success(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, 0, ""},
        {5, GROUP_LEFT, -1, 2, "signal 15, arm +1000"},
        {400, GROUP_TIMER, -1, 0, "arm +605"}, /* woken too early */
        {1005, GROUP_TIMER, -1, 0, "kill, arm +5000"},
        {1010, GROUP_EMPTY, -1, 0, "disarm, finish 0"},
        {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    group_finish(&g);
}

static void test_failure_without_restart(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(7), "failed 1, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_WORKER);
    assert_int_equal(g.cause_worker, 1);
    assert_false(g.workers[1].stopped);
    assert_true(g.workers[0].stopped);
    assert_int_equal(group_worker_code(&g.workers[1]), 7);
    assert_int_equal(group_worker_code(&g.workers[0]), -SIGTERM);
    group_finish(&g);
}

static void test_restarts_within_the_budget(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(7), "failed 1, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, report, again"},
        {7, GROUP_START, -1, 0, "spawn"},
        {8, GROUP_STARTED, 0, 0, ""},
        {8, GROUP_STARTED, 1, 0, ""},
        {9, GROUP_EXITED, 0, SIGSEGV, "failed 0, signal 15, arm +30000"},
        {9, GROUP_EXITED, 1, 0, ""},
        {10, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 1, lines);
    assert_int_equal(g.restarts, 1);
    assert_int_equal(g.generation, 1);
    assert_int_equal(g.cause_worker, 0);
    group_finish(&g);
}

static void test_stubborn_workers_are_killed(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(1), "failed 1, signal 15, arm +30000"},
        {30005, GROUP_TIMER, -1, 0, "kill, arm +5000"},
        {30006, GROUP_EXITED, 0, SIGKILL, ""},
        {30006, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    assert_true(g.escalated);
    group_finish(&g);
}

static void test_sweep_keeps_an_earlier_deadline(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {0, GROUP_SIGNAL, -1, SIGINT, "stop 2, signal 2, arm +30000"},
        {29500, GROUP_EXITED, 0, 0, ""},
        {29500, GROUP_EXITED, 1, 0, ""},
        {29500, GROUP_LEFT, -1, 1, "signal 15, arm +500"},
        {30000, GROUP_TIMER, -1, 0, "kill, arm +5000"},
        {30001, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    group_finish(&g);
}

static void test_nothing_kills_it(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {0, GROUP_SIGNAL, -1, SIGTERM, "stop 15, signal 15, arm +30000"},
        {1, GROUP_SIGNAL, -1, SIGTERM, "kill, arm +5000"},
        {2, GROUP_SIGNAL, -1, SIGTERM, ""},
        {5001, GROUP_TIMER, -1, 0, "kill guardian, arm +5000"},
        {5002, GROUP_GUARDIAN_LOST, -1, 0, "kill, arm +5000"},
        {10002, GROUP_TIMER, -1, 0, "give up, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    group_finish(&g);
}

static void test_signal_before_the_start(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_SIGNAL, -1, SIGTERM, "report, finish 1"},
        {0, GROUP_START, -1, 0, ""},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    group_finish(&g);
}

/* A signal that arrives while a failure is being cleaned up is passed on and takes back the restart. */
static void test_signal_after_a_failure(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(1), "failed 1, signal 15, arm +30000"},
        {10, GROUP_SIGNAL, -1, SIGINT, "signal 2"},
        {11, GROUP_SIGNAL, -1, SIGINT, "kill, arm +5000"},
        {12, GROUP_EXITED, 0, SIGKILL, ""},
        {12, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    assert_int_equal(g.interrupt, SIGINT);
    assert_int_equal(g.cause, GROUP_CAUSE_WORKER);
    group_finish(&g);
}

static void test_signal_while_sweeping(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, 0, ""},
        {5, GROUP_LEFT, -1, 1, "signal 15, arm +1000"},
        {6, GROUP_SIGNAL, -1, SIGTERM, "kill, arm +5000"},
        {7, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    group_finish(&g);
}

static void test_exec_failure_is_final(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {1, GROUP_EXEC_FAILED, 1, 8, "failed 1, signal 15, arm +30000"},
        {2, GROUP_EXITED, 0, SIGTERM, ""},
        {2, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_EXEC);
    assert_int_equal(group_worker_code(&g.workers[1]), 127);
    group_finish(&g);
}

static void test_lost_guardian(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {6, GROUP_GUARDIAN_LOST, -1, 0, "kill, arm +5000"},
        {7, GROUP_EMPTY, -1, 0, "disarm, report, again"},
        {7, GROUP_START, -1, 0, "spawn"},
        {8, GROUP_GUARDIAN_LOST, -1, 0, "kill, arm +5000"},
        {9, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 1, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_GUARDIAN);
    group_finish(&g);
}

static void test_start_failed(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        {0, GROUP_START_FAILED, -1, 0, "finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 1, lines);
    group_finish(&g);
}

static void test_placed_failure_and_next_generation(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(7), "tell failed 1, failed 1, signal 15, arm +30000"},
        {6, GROUP_STOP, -1, 0, ""}, /* the others heard of it; nothing new here */
        {7, GROUP_EXITED, 0, SIGTERM, ""},
        {7, GROUP_EMPTY, -1, 0, "disarm, report, tell ready"},
        {9, GROUP_START, -1, 4, "spawn"}, /* generation 4: there were changes of membership, too */
        {9, GROUP_STARTED, 0, 0, ""},
        {9, GROUP_STARTED, 1, 0, ""},
        {10, GROUP_EXITED, 0, 0, ""},
        {10, GROUP_EXITED, 1, 0, ""},
        {10, GROUP_EMPTY, -1, 0, "tell done"},
        {11, GROUP_END, -1, 0, "finish 0"},
        {0},
    };
    struct worker_group g;

    converse_placed(&g, lines);
    assert_int_equal(g.generation, 4);
    assert_int_equal(g.restarts, 4);
    group_finish(&g);
}

static void test_placed_stopped_for_another_node(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_STOP, -1, 0, "peer, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, EXIT(1), ""}, /* its peers are gone: a consequence */
        {6, GROUP_EXITED, 1, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, tell ready"},
        {7, GROUP_START, -1, 1, "spawn"},
        {0},
    };
    struct worker_group g;

    converse_placed(&g, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_NONE);
    group_finish(&g);
}

/* Done here, but not elsewhere, and then it has to be done again. */
static void test_placed_stopped_when_done(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, 0, ""},
        {5, GROUP_LEFT, -1, 1, "signal 15, arm +1000"},
        {6, GROUP_STOP, -1, 0, ""}, /* just being swept: it must not be called done any more */
        {7, GROUP_EMPTY, -1, 0, "disarm, tell ready"},
        {8, GROUP_START, -1, 1, "spawn"},
        {8, GROUP_STARTED, 0, 0, ""},
        {8, GROUP_STARTED, 1, 0, ""},
        {9, GROUP_EXITED, 0, 0, ""},
        {9, GROUP_EXITED, 1, 0, ""},
        {9, GROUP_EMPTY, -1, 0, "tell done"},
        {10, GROUP_STOP, -1, 0, "tell ready"},
        {11, GROUP_START, -1, 2, "spawn"},
        {0},
    };
    struct worker_group g;

    converse_placed(&g, lines);
    group_finish(&g);
}

static void test_placed_end_while_running(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_END, -1, 3, "peer, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EXITED, 1, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, finish 3"},
        {0},
    };
    struct worker_group g;

    converse_placed(&g, lines);
    group_finish(&g);
}

static void test_placed_told_to_stop(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_SIGNAL, -1, SIGTERM, "leave 15, stop 15, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EXITED, 1, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    static const struct line waiting[] = {
        {5, GROUP_SIGNAL, -1, SIGTERM, "leave 15, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_placed(&g, lines);
    group_finish(&g);
    converse_placed(&g, waiting);
    group_finish(&g);
}

/* A node has to go, and all stop: who ends well is done, who does not has failed, and a second signal hurries. */
static void test_placed_drain(void **state)
{
    static const struct line well[] = {
        STARTED_BOTH,
        {5, GROUP_DRAIN, -1, 0, "stop 15, signal 15, arm +30000"},
        {6, GROUP_DRAIN, -1, 0, ""},
        {7, GROUP_EXITED, 0, 0, ""},
        {8, GROUP_EXITED, 1, 0, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, tell done"},
        {9, GROUP_END, -1, 1, "finish 1"},
        {0},
    };
    static const struct line badly[] = {
        STARTED_BOTH,
        {5, GROUP_DRAIN, -1, SIGTERM, "stop 15, signal 15, arm +30000"},
        {7, GROUP_EXITED, 0, 0, ""},
        {30005, GROUP_TIMER, -1, 0, "kill, arm +5000"},
        {30006, GROUP_EXITED, 1, SIGKILL, ""},
        {30006, GROUP_EMPTY, -1, 0, "disarm, tell failed 1, report, tell ready"},
        {30007, GROUP_END, -1, 1, "finish 1"},
        {0},
    };
    static const struct line hurried[] = {
        STARTED_BOTH,
        {5, GROUP_DRAIN, -1, SIGTERM, "stop 15, signal 15, arm +30000"},
        {6, GROUP_SIGNAL, -1, SIGTERM, "leave 15, kill, arm +5000"},
        {7, GROUP_EXITED, 0, SIGKILL, ""},
        {7, GROUP_EXITED, 1, SIGKILL, ""},
        {7, GROUP_EMPTY, -1, 0, "disarm, report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_placed(&g, well);
    group_finish(&g);
    converse_placed(&g, badly);
    group_finish(&g);
    converse_placed(&g, hurried);
    group_finish(&g);
}

static void test_placed_cannot_start(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        {0, GROUP_START_FAILED, -1, 0, "leave 0, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_placed(&g, lines);
    group_finish(&g);
}

static bool has(const struct group_actions *actions, enum group_action_kind kind)
{
    for (size_t i = 0; i < actions->n_items; i++)
        if (actions->items[i].kind == kind)
            return true;
    return false;
}

/* Whatever happens in whatever order: never two starts without an end between, never more restarts than
 * allowed, never an action after the end, and an armed deadline whenever something has been asked to end. Placed:
 * every generation that ends is told of, or the job is over. */
static void check_random_events(unsigned seed, bool placed)
{
    const struct group_config config = {
        .n_workers = 3, .max_restarts = 2, .grace_ns = 1000 * MS, .placed = placed};
    unsigned long long random = seed * 6364136223846793005ull + 1442695040888963407ull;
    int n_spawned = 0;
    struct worker_group g;

    assert_int_equal(group_init(&g, &config), 0);
    for (int step = 0; step < 40; step++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        unsigned bits = (unsigned)(random >> 33);
        struct group_event event = {.kind = (enum group_event_kind)(bits % GROUP_EVENT_COUNT),
                                    .now_ns = (uint64_t)step * 400 * MS,
                                    .worker = (int)((bits >> 8) % 3),
                                    .pid = 100,
                                    .value = (bits >> 16) % 2 ? SIGTERM : 0};
        struct group_actions actions;

        if (event.kind == GROUP_SIGNAL)
            event.value = SIGTERM;
        if (step == 0)
            event.kind = GROUP_START;
        bool is_order = event.kind == GROUP_STOP || event.kind == GROUP_END || event.kind == GROUP_DRAIN;
        enum group_state before = g.state;
        /* Worker events come from a generation that exists; orders, from elsewhere. */
        if ((before == GROUP_IDLE && event.kind != GROUP_START && event.kind != GROUP_SIGNAL && !is_order) ||
            (is_order && !placed))
            continue;
        group_step(&g, &event, &actions);
        if (has(&actions, GROUP_DO_SPAWN)) {
            n_spawned++;
            assert_int_equal(before, GROUP_IDLE);
        }
        if (before == GROUP_DONE && event.kind != GROUP_START_FAILED)
            assert_int_equal(actions.n_items, 0);
        if (g.state == GROUP_STOPPING || g.state == GROUP_SWEEPING || g.state == GROUP_KILLING)
            assert_int_not_equal(g.deadline_ns, 0);
        if (placed && event.kind == GROUP_EMPTY && before != GROUP_DONE)
            assert_int_equal(has(&actions, GROUP_DO_DONE) + has(&actions, GROUP_DO_READY) +
                                 has(&actions, GROUP_DO_FINISH),
                             1);
    }
    if (!placed) {
        assert_in_range(n_spawned, 1, 1 + config.max_restarts);
        assert_in_range(g.restarts, 0, config.max_restarts);
    }
    group_finish(&g);
}

static void test_random_events(void **state)
{
    for (unsigned seed = 1; seed <= 20000; seed++) {
        check_random_events(seed, false);
        check_random_events(seed, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_end_well),
        cmocka_unit_test(test_failed_by_itself_at_the_same_time),
        cmocka_unit_test(test_left_behind_after_success),
        cmocka_unit_test(test_failure_without_restart),
        cmocka_unit_test(test_restarts_within_the_budget),
        cmocka_unit_test(test_stubborn_workers_are_killed),
        cmocka_unit_test(test_sweep_keeps_an_earlier_deadline),
        cmocka_unit_test(test_nothing_kills_it),
        cmocka_unit_test(test_signal_before_the_start),
        cmocka_unit_test(test_signal_after_a_failure),
        cmocka_unit_test(test_signal_while_sweeping),
        cmocka_unit_test(test_exec_failure_is_final),
        cmocka_unit_test(test_lost_guardian),
        cmocka_unit_test(test_start_failed),
        cmocka_unit_test(test_placed_failure_and_next_generation),
        cmocka_unit_test(test_placed_stopped_for_another_node),
        cmocka_unit_test(test_placed_stopped_when_done),
        cmocka_unit_test(test_placed_end_while_running),
        cmocka_unit_test(test_placed_told_to_stop),
        cmocka_unit_test(test_placed_drain),
        cmocka_unit_test(test_placed_cannot_start),
        cmocka_unit_test(test_random_events),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
