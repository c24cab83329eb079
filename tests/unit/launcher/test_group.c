/*
 * Conversations with the worker group, of two workers (group_conversation.h).
 */

#include <errno.h>
#include <signal.h>

#include "base/err.h"
#include "tests/unit/launcher/group_conversation.h"

#define EXIT(code) ((code) << 8)

/* Runs the conversation with a group of two workers; lines end with an answer of NULL. */
static void converse(struct worker_group *g, int max_restarts, const struct line *lines)
{
    const struct group_config config = {.n_workers = 2, .max_restarts = max_restarts, .grace_ns = 30000 * MS};

    converse_as(g, &config, lines);
}

/* The same as one node of several. */
static void converse_with_assignment(struct worker_group *g, const struct line *lines)
{
    const struct group_config config = {.n_workers = 2, .grace_ns = 30000 * MS, .has_rank_assignment = true};

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
        {10, GROUP_SIGNAL, -1, SIGTERM,
         "hurry"}, /* other nodes, a slow console: nothing is waited for any longer */
        {2000, GROUP_SIGNAL, -1, SIGTERM, "hurry"},
        {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    assert_int_equal(g.interrupt, 0); /* it came after the end */
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
        {5, GROUP_EXITED, 1, EXIT(7), "notify-failed 1, signal 15, arm +30000"},
        {0},
    };
    struct group_event event = {
        .kind = GROUP_EXITED, .now_ns = 6 * MS, .worker = 0, .value = EXIT(8), .unasked = true};
    struct group_actions actions;
    struct worker_group g;

    converse(&g, 0, lines);
    assert_true(g.workers[0].stopped);
    g.workers[0].kill_option = "--on-line";
    group_step(&g, &event, &actions);
    assert_int_equal(actions.n_items, 0);
    assert_false(g.workers[0].stopped);
    assert_null(g.workers[0].kill_option);
    assert_int_equal(g.cause_worker, 1);
    group_finish(&g);
}

static void test_orphans_after_success(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, 0, ""},
        {5, GROUP_ORPHANS, -1, 2, "signal 15, arm +1000"},
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
        {5, GROUP_EXITED, 1, EXIT(7), "notify-failed 1, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
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
        {5, GROUP_EXITED, 1, EXIT(7), "notify-failed 1, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {7, GROUP_START, -1, 0, "spawn"},
        {8, GROUP_STARTED, 0, 0, ""},
        {8, GROUP_STARTED, 1, 0, ""},
        {9, GROUP_EXITED, 0, SIGSEGV, "notify-failed 0, signal 15, arm +30000"},
        {9, GROUP_EXITED, 1, 0, ""},
        {10, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 1, lines);
    assert_int_equal(g.restarts, 1);
    assert_int_equal(g.generation, 1);
    assert_int_equal(g.cause_worker, 0);
    group_finish(&g);
}

static void test_no_restart_against_a_final_failure(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_FINAL, -1, 0, ""},
        {6, GROUP_EXITED, 1, SIGKILL, "notify-failed 1, signal 15, arm +30000"},
        {7, GROUP_FINAL, -1, 0, ""},
        {8, GROUP_EXITED, 0, SIGTERM, ""},
        {9, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    static const struct line late[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(7), "notify-failed 1, signal 15, arm +30000"},
        {6, GROUP_FINAL, -1, 0, ""}, /* what was printed while the workers were being stopped */
        {7, GROUP_EXITED, 0, SIGTERM, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {9, GROUP_START, -1, 0, "spawn"},
        {0},
    };
    static const struct line own[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(7), "notify-failed 1, signal 15, arm +30000"},
        {6, GROUP_FINAL, 0, 0, ""}, /* not the one that failed */
        {6, GROUP_FINAL, 1, 0, ""},
        {7, GROUP_EXITED, 0, SIGTERM, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {9, GROUP_FINAL, 1, 0, ""},
        {0},
    };
    struct worker_group g;

    converse(&g, 9, own);
    group_finish(&g);
    converse(&g, 9, lines);
    assert_true(g.is_final);
    group_finish(&g);
    converse(&g, 9, late);
    assert_false(g.is_final);
    group_finish(&g);
}

static void test_stubborn_workers_are_killed(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(1), "notify-failed 1, signal 15, arm +30000"},
        {30005, GROUP_TIMER, -1, 0, "kill, arm +5000"},
        {30006, GROUP_EXITED, 0, SIGKILL, ""},
        {30006, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    assert_true(g.escalated);
    assert_false(g.hurried);
    group_finish(&g);
}

static void test_sweep_keeps_an_earlier_deadline(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {0, GROUP_SIGNAL, -1, SIGINT, "notify-stop 2, signal 2, arm +30000"},
        {29500, GROUP_EXITED, 0, 0, ""},
        {29500, GROUP_EXITED, 1, 0, ""},
        {29500, GROUP_ORPHANS, -1, 1, "signal 15, arm +500"},
        {30000, GROUP_TIMER, -1, 0, "kill, arm +5000"},
        {30001, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
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
        {0, GROUP_SIGNAL, -1, SIGTERM, "notify-stop 15, signal 15, arm +30000"},
        {1001, GROUP_SIGNAL, -1, SIGTERM, "kill, arm +5000"},
        {1002, GROUP_SIGNAL, -1, SIGTERM, ""},
        {6001, GROUP_TIMER, -1, 0, "kill-guardian, arm +5000"},
        {6002, GROUP_GUARDIAN_LOST, -1, 0, "kill, arm +5000"},
        {11002, GROUP_TIMER, -1, 0, "give-up, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    group_finish(&g);
}

static void test_signal_before_the_start(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_SIGNAL, -1, SIGTERM, "print-report, finish 1"},
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
        {5, GROUP_EXITED, 1, EXIT(1), "notify-failed 1, signal 15, arm +30000"},
        {10, GROUP_SIGNAL, -1, SIGINT, "signal 2"},
        {1011, GROUP_SIGNAL, -1, SIGINT, "kill, arm +5000"},
        {1012, GROUP_EXITED, 0, SIGKILL, ""},
        {1012, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    assert_int_equal(g.interrupt, SIGINT);
    assert_true(g.hurried);
    assert_int_equal(g.cause, GROUP_CAUSE_WORKER);
    group_finish(&g);
}

static void test_signal_while_sweeping(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, 0, ""},
        {5, GROUP_ORPHANS, -1, 1, "signal 15, arm +1000"},
        {6, GROUP_SIGNAL, -1, SIGTERM, "kill, arm +5000"},
        {7, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
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
        {1, GROUP_EXEC_FAILED, 1, 8, "notify-failed 1, signal 15, arm +30000"},
        {2, GROUP_EXITED, 0, SIGTERM, ""},
        {2, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, 3, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_EXEC);
    assert_int_equal(group_worker_code(&g.workers[1]), 126);
    group_finish(&g);
}

static void test_lost_guardian(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {6, GROUP_GUARDIAN_LOST, -1, 0, "kill, arm +5000"},
        {7, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {7, GROUP_START, -1, 0, "spawn"},
        {8, GROUP_GUARDIAN_LOST, -1, 0, "kill, arm +5000"},
        {9, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
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

/* Charged as a restart, and always after a pause. */
static void test_start_failed_for_lack_of_something(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        {10, GROUP_START_FAILED, -1, EAGAIN, "print-report, print-pause 1000, arm +1000"},
        {1010, GROUP_TIMER, -1, 0, "start-again"},
        {1010, GROUP_START, -1, 0, "spawn"},
        {1020, GROUP_START_FAILED, -1, EMFILE, "print-report, print-pause 2000, arm +2000"},
        {3020, GROUP_TIMER, -1, 0, "start-again"},
        {3020, GROUP_START, -1, 0, "spawn"},
        {3030, GROUP_START_FAILED, -1, ENOMEM, "print-report, finish 1"},
        {0},
    };
    static const struct line stopped[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        {10, GROUP_START_FAILED, -1, EAGAIN, "print-report, print-pause 1000, arm +1000"},
        {500, GROUP_SIGNAL, -1, SIGTERM, "disarm, print-report, finish 1"},
        {0},
    };
    const struct group_config config = {
        .n_workers = 2, .max_restarts = 2, .grace_ns = 30000 * MS, .pause_max_ns = 10000 * MS};
    struct worker_group g;

    converse_as(&g, &config, lines);
    assert_int_equal(g.restarts, 2);
    group_finish(&g);
    converse_as(&g, &config, stopped);
    group_finish(&g);
}

static void test_placed_failure_and_next_generation(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 1, EXIT(7), "report-failed 1, notify-failed 1, signal 15, arm +30000"},
        {6, GROUP_PEER_FAILED, -1, 0, ""}, /* the rendezvous reports it back; nothing follows here */
        {7, GROUP_EXITED, 0, SIGTERM, ""},
        {7, GROUP_EMPTY, -1, 0, "disarm, print-report, report-ready"},
        {9, GROUP_START, -1, 4, "spawn"}, /* generation 4: there were changes of membership, too */
        {9, GROUP_STARTED, 0, 0, ""},
        {9, GROUP_STARTED, 1, 0, ""},
        {10, GROUP_EXITED, 0, 0, ""},
        {10, GROUP_EXITED, 1, 0, ""},
        {10, GROUP_EMPTY, -1, 0, "report-done"},
        {11, GROUP_END, -1, 0, "finish 0"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
    assert_int_equal(g.generation, 4);
    assert_int_equal(g.restarts, 4);
    group_finish(&g);
}

static void test_placed_stopped_for_another_node(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_PEER_FAILED, -1, 0, "notify-peer, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, EXIT(1), ""}, /* its peers have ended: a consequence */
        {6, GROUP_EXITED, 1, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, report-ready"},
        {7, GROUP_START, -1, 1, "spawn"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
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
        {5, GROUP_ORPHANS, -1, 1, "signal 15, arm +1000"},
        {6, GROUP_PEER_FAILED, -1, 0, ""}, /* while sweeping: it must not be reported done any more */
        {7, GROUP_EMPTY, -1, 0, "disarm, report-ready"},
        {8, GROUP_START, -1, 1, "spawn"},
        {8, GROUP_STARTED, 0, 0, ""},
        {8, GROUP_STARTED, 1, 0, ""},
        {9, GROUP_EXITED, 0, 0, ""},
        {9, GROUP_EXITED, 1, 0, ""},
        {9, GROUP_EMPTY, -1, 0, "report-done"},
        {10, GROUP_PEER_FAILED, -1, 0, "report-ready"},
        {11, GROUP_START, -1, 2, "spawn"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
    group_finish(&g);
}

static void test_placed_end_while_running(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_END, -1, 3, "notify-peer, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EXITED, 1, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, finish 3"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
    group_finish(&g);
}

static void test_placed_signal(void **state)
{
    static const struct line lines[] = {
        STARTED_BOTH,
        {5, GROUP_SIGNAL, -1, SIGTERM, "leave 15, notify-stop 15, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {6, GROUP_EXITED, 1, SIGTERM, ""},
        {6, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    static const struct line waiting[] = {
        {5, GROUP_SIGNAL, -1, SIGTERM, "leave 15, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
    group_finish(&g);
    converse_with_assignment(&g, waiting);
    group_finish(&g);
}

/* A node has to go away, and all stop: workers that end with success are done, others have failed, and a second signal
 * kills. */
static void test_placed_drain(void **state)
{
    static const struct line well[] = {
        STARTED_BOTH,
        {5, GROUP_DRAIN, -1, 0, "notify-stop 15, signal 15, arm +30000"},
        {6, GROUP_DRAIN, -1, 0, ""},
        {7, GROUP_EXITED, 0, 0, ""},
        {8, GROUP_EXITED, 1, 0, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, report-done"},
        {9, GROUP_END, -1, 1, "finish 1"},
        {0},
    };
    static const struct line badly[] = {
        STARTED_BOTH,
        {5, GROUP_DRAIN, -1, 0, "notify-stop 15, signal 15, arm +30000"},
        {7, GROUP_EXITED, 0, 0, ""},
        {30005, GROUP_TIMER, -1, 0, "kill, arm +5000"},
        {30006, GROUP_EXITED, 1, SIGKILL, ""},
        {30006, GROUP_EMPTY, -1, 0, "disarm, report-failed 1, print-report, report-ready"},
        {30007, GROUP_END, -1, 1, "finish 1"},
        {0},
    };
    static const struct line hurried[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {1, GROUP_STARTED, 1, 0, ""},
        {5, GROUP_SIGNAL, -1, SIGTERM, "request-drain, notify-stop 15, signal 15, arm +30000"},
        {6, GROUP_DRAIN, -1, 0, ""}, /* the rendezvous confirms it */
        {7, GROUP_SIGNAL, -1, SIGHUP, ""},
        {1006, GROUP_SIGNAL, -1, SIGTERM, "leave 15, kill, arm +5000"},
        {1007, GROUP_EXITED, 0, SIGKILL, ""},
        {1007, GROUP_EXITED, 1, SIGKILL, ""},
        {1007, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, well);
    group_finish(&g);
    converse_with_assignment(&g, badly);
    group_finish(&g);
    converse_with_assignment(&g, hurried);
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

    converse_with_assignment(&g, lines);
    group_finish(&g);
}

/* The node stays: the others learn of it, and the rendezvous keeps the budget. */
static void test_placed_lack_at_the_start(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        {10, GROUP_START_FAILED, -1, EAGAIN, "report-failed -1, print-report, print-pause 1000, arm +1000"},
        {20, GROUP_PEER_FAILED, -1, 0, ""},
        {1010, GROUP_TIMER, -1, 0, "report-ready"},
        {1020, GROUP_START_FAILED, -1, EMFILE, "report-failed -1, print-report, print-pause 2000, arm +2000"},
        {3020, GROUP_TIMER, -1, 0, "report-ready"},
        {3030, GROUP_START, -1, 2, "spawn"},
        {0},
    };
    const struct group_config config = {
        .n_workers = 2, .grace_ns = 30000 * MS, .pause_max_ns = 10000 * MS, .has_rank_assignment = true};
    struct worker_group g;

    converse_as(&g, &config, lines);
    assert_int_equal(g.generation, 2);
    group_finish(&g);
}

/* SIGTERM and SIGHUP of systemd, SIGINT and SIGTERM of a wrapper: what comes within a second is one request. */
static void test_signals_within_a_second_are_one_request(void **state)
{
    static const int second[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    static const struct {
        int at_ms;
        const char *answer;
    } rows[] = {{100, ""}, {1099, ""}, {1100, "kill, arm +5000"}, {9000, "kill, arm +5000"}};

    for (size_t i = 0; i < ARRAY_SIZE(second); i++)
        for (size_t j = 0; j < ARRAY_SIZE(rows); j++) {
            const struct line lines[] = {
                STARTED_BOTH,
                {100, GROUP_SIGNAL, -1, SIGTERM, "notify-stop 15, signal 15, arm +30000"},
                {rows[j].at_ms, GROUP_SIGNAL, -1, second[i], rows[j].answer},
                {0},
            };
            struct worker_group g;

            converse(&g, 3, lines);
            assert_int_equal(g.interrupt, SIGTERM);
            group_finish(&g);
        }
}

/* The request was lost with the rendezvous, and another generation began: the next signal is the first that the other nodes
 * learn of. */
static void test_signal_after_a_drain_in_vain(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {1, GROUP_STARTED, 1, 0, ""},
        {5, GROUP_SIGNAL, -1, SIGTERM, "request-drain, notify-stop 15, signal 15, arm +30000"},
        {7, GROUP_EXITED, 0, 0, ""},
        {8, GROUP_EXITED, 1, 1 << 8, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, report-failed 1, print-report, report-ready"},
        {9, GROUP_START, NEEDED, 1, "spawn"},
        {2000, GROUP_SIGNAL, -1, SIGTERM, "leave 15, notify-stop 15, signal 15, arm +30000"},
        {4000, GROUP_SIGNAL, -1, SIGTERM, "kill, arm +5000"},
        {0},
    };
    static const struct line peer[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {5, GROUP_SIGNAL, -1, SIGTERM, "request-drain, notify-stop 15, signal 15, arm +30000"},
        {7, GROUP_EXITED, 0, 1 << 8, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, report-failed 0, print-report, report-ready"},
        {9, GROUP_START, NEEDED, 1, "spawn"},
        {2000, GROUP_PEER_FAILED, -1, 0, "notify-peer, signal 15, arm +30000"},
        {2001, GROUP_EMPTY, -1, 0, "disarm, print-report, leave 15, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
    group_finish(&g);
    converse_with_assignment(&g, peer);
    group_finish(&g);
}

static void test_stop_of_the_job(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {1, GROUP_STARTED, 1, 0, ""},
        {5, GROUP_SIGNAL, ALL_NODES, SIGTERM, "leave 15, notify-stop 15, signal 15, arm +30000"},
        {6, GROUP_EXITED, 0, SIGTERM, ""},
        {7, GROUP_EXITED, 1, SIGTERM, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    static const struct line effect[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {1, GROUP_STARTED, 1, 0, ""},
        {5, GROUP_EXITED, 1, EXIT(1), "report-failed 1, notify-failed 1, signal 15, arm +30000"},
        {900, GROUP_SIGNAL, ALL_NODES, SIGINT, "leave 2, signal 2"},
        {0},
    };
    static const struct line late[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {1, GROUP_STARTED, 1, 0, ""},
        {5, GROUP_EXITED, 1, EXIT(1), "report-failed 1, notify-failed 1, signal 15, arm +30000"},
        {1006, GROUP_SIGNAL, ALL_NODES, SIGINT, "leave 2, signal 2"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_SIGNAL);
    assert_true(g.stops_job);
    group_finish(&g);
    converse_with_assignment(&g, effect);
    assert_int_equal(g.cause, GROUP_CAUSE_SIGNAL);
    group_finish(&g);
    converse_with_assignment(&g, late);
    assert_int_equal(g.cause, GROUP_CAUSE_WORKER);
    group_finish(&g);
}

/* Only the first SIGTERM, only of a running node that the job needs. */
static void test_request_of_a_drain(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {1, GROUP_STARTED, 1, 0, ""},
        {5, GROUP_SIGNAL, -1, SIGTERM, "request-drain, notify-stop 15, signal 15, arm +30000"},
        {7, GROUP_EXITED, 0, 0, ""},
        {8, GROUP_EXITED, 1, 0, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, print-report, report-done"},
        {9, GROUP_END, -1, 1, "finish 1"},
        {0},
    };
    static const struct line by_sigint[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {5, GROUP_SIGNAL, -1, SIGINT, "leave 2, notify-stop 2, signal 2, arm +30000"},
        {0},
    };
    static const struct line while_stopping[] = {
        {0, GROUP_START, NEEDED, 0, "spawn"},
        {1, GROUP_STARTED, 0, 0, ""},
        {4, GROUP_PEER_FAILED, -1, 0, "notify-peer, signal 15, arm +30000"},
        {5, GROUP_SIGNAL, -1, SIGTERM, "leave 15, signal 15"},
        {0},
    };
    struct worker_group g;

    converse_with_assignment(&g, lines);
    group_finish(&g);
    converse_with_assignment(&g, by_sigint);
    group_finish(&g);
    converse_with_assignment(&g, while_stopping);
    group_finish(&g);
}

static void test_signal_that_is_passed_on(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_PASS_SIGNAL, -1, SIGUSR1, ""}, /* there are no workers yet */
        STARTED_BOTH,
        {5, GROUP_PASS_SIGNAL, -1, SIGUSR1, "pass-signal 10"},
        {6, GROUP_SIGNAL, -1, SIGTERM, "notify-stop 15, signal 15, arm +30000"},
        {7, GROUP_PASS_SIGNAL, -1, SIGUSR2, "pass-signal 12"},
        {8, GROUP_EXITED, 0, 0, ""},
        {8, GROUP_EXITED, 1, 0, ""},
        {8, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {9, GROUP_PASS_SIGNAL, -1, SIGUSR1, ""},
        {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    assert_int_equal(g.interrupt, SIGTERM);
    group_finish(&g);
}

/* Ctrl-Z: the workers first, and only what was stopped here is continued. */
static void test_suspended(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_SUSPEND, -1, 0, "stop-self"}, /* before there are workers */
        {0, GROUP_RESUME, -1, 0, ""},           STARTED_BOTH,
        {2, GROUP_RESUME, -1, 0, ""},           {3, GROUP_SUSPEND, -1, 0, "freeze, stop-self"},
        {9, GROUP_RESUME, -1, 0, "thaw"},       {9, GROUP_RESUME, -1, 0, ""},
        {10, GROUP_EXITED, 0, 0, ""},           {10, GROUP_EXITED, 1, 0, ""},
        {10, GROUP_EMPTY, -1, 0, "finish 0"},   {11, GROUP_SUSPEND, -1, 0, "stop-self"},
        {12, GROUP_RESUME, -1, 0, ""},          {0},
    };
    struct worker_group g;

    converse(&g, 0, lines);
    group_finish(&g);
}

#define FAILS_AT(ms)                                                                                         \
    {ms, GROUP_STARTED, 0, 0, ""}, {ms, GROUP_STARTED, 1, 0, ""}, {ms, GROUP_EXITED, 0, 0, ""},              \
    {                                                                                                        \
        ms, GROUP_EXITED, 1, EXIT(1), "notify-failed 1, signal 15, arm +30000"                               \
    }

static const struct group_config paused = {
    .n_workers = 2, .max_restarts = 9, .grace_ns = 30000 * MS, .pause_max_ns = 3000 * MS};

/* At once, after 1 s, 2 s, then the longest pause; a generation that lived long ends the series. */
static void test_pause_between_restarts(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(100),
        {100, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {100, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(200),
        {200, GROUP_EMPTY, -1, 0, "disarm, print-report, print-pause 1000, arm +1000"},
        {700, GROUP_TIMER, -1, 0, "arm +500"},
        {1200, GROUP_TIMER, -1, 0, "start-again"},
        {1200, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(1300),
        {1300, GROUP_EMPTY, -1, 0, "disarm, print-report, print-pause 2000, arm +2000"},
        {3300, GROUP_TIMER, -1, 0, "start-again"},
        {3300, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(3400),
        {3400, GROUP_EMPTY, -1, 0, "disarm, print-report, print-pause 3000, arm +3000"},
        {6400, GROUP_TIMER, -1, 0, "start-again"},
        {6400, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(17000),
        {17000, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {17000, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(17100),
        {17100, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &paused, lines);
    assert_int_equal(g.restarts, 5);
    group_finish(&g);
}

static void test_signal_during_a_pause(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(100),
        {100, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {100, GROUP_START, -1, 0, "spawn"},
        FAILS_AT(200),
        {200, GROUP_EMPTY, -1, 0, "disarm, print-report, print-pause 1000, arm +1000"},
        {300, GROUP_SIGNAL, -1, SIGTERM, "disarm, print-report, finish 1"},
        {1200, GROUP_TIMER, -1, 0, ""},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &paused, lines);
    group_finish(&g);
}

/* The node is ready only after its pause, so the job as a whole waits for it. */
static void test_placed_pause(void **state)
{
    static const struct line lines[] = {
        {0, GROUP_START, -1, 0, "spawn"},
        {100, GROUP_GUARDIAN_LOST, -1, 0, "report-failed -1, kill, arm +5000"},
        {100, GROUP_EMPTY, -1, 0, "disarm, print-report, report-ready"},
        {100, GROUP_START, -1, 1, "spawn"},
        {200, GROUP_GUARDIAN_LOST, -1, 0, "report-failed -1, kill, arm +5000"},
        {200, GROUP_EMPTY, -1, 0, "disarm, print-report, print-pause 1000, arm +1000"},
        {300, GROUP_PEER_FAILED, -1, 0, ""},
        {1200, GROUP_TIMER, -1, 0, "report-ready"},
        {1300, GROUP_START, -1, 2, "spawn"},
        {1400, GROUP_GUARDIAN_LOST, -1, 0, "report-failed -1, kill, arm +5000"},
        {1400, GROUP_EMPTY, -1, 0, "disarm, print-report, print-pause 2000, arm +2000"},
        {1500, GROUP_END, -1, 1, "disarm, finish 1"},
        {0},
    };
    struct group_config config = paused;
    struct worker_group g;

    config.has_rank_assignment = true;
    converse_as(&g, &config, lines);
    group_finish(&g);
}

static void test_exec_failures_that_may_pass(void **state)
{
    static const struct {
        int error;
        bool is_final;
    } rows[] = {
        {ENOENT, true},  {EACCES, true},       {ENOEXEC, true}, {EISDIR, true},  {ELOOP, true},
        {EINVAL, true},  {ENAMETOOLONG, true}, {E2BIG, true},   {EAGAIN, false}, {ENOMEM, false},
        {ENFILE, false}, {EMFILE, false},      {EIO, false},    {ESTALE, false}, {ETXTBSY, false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct line lines[] = {
            {0, GROUP_START, -1, 0, "spawn"},
            {1, GROUP_EXEC_FAILED, 0, rows[i].error, "notify-failed 0, signal 15, arm +30000"},
            {2, GROUP_EMPTY, -1, 0,
             rows[i].is_final ? "disarm, print-report, finish 1" : "disarm, print-report, start-again"},
            {0},
        };
        struct worker_group g;

        assert_int_equal(group_exec_is_final(rows[i].error), rows[i].is_final);
        converse(&g, 1, lines);
        assert_int_equal(g.cause, GROUP_CAUSE_EXEC);
        group_finish(&g);
    }
}

/* Static rendezvous: after success the other nodes are waited for, and a signal ends that. */
static void test_leaving_together(void **state)
{
    static const struct group_config config = {
        .n_workers = 2, .grace_ns = 30000 * MS, .leaves_together = true};
    static const struct line waits[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, 0, ""},
        {5, GROUP_EMPTY, -1, 0, "await-others"},
        {6, GROUP_GUARDIAN_LOST, -1, 0, ""},
        {9, GROUP_OTHERS_DONE, -1, 0, "finish 0"},
        {9, GROUP_OTHERS_DONE, -1, 0, ""},
        {0},
    };
    static const struct line interrupted[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, 0, ""},
        {5, GROUP_EMPTY, -1, 0, "await-others"},
        {6, GROUP_SIGNAL, -1, SIGTERM, "print-report, finish 1"},
        {7, GROUP_OTHERS_DONE, -1, 0, ""},
        {0},
    };
    static const struct line failed[] = {
        STARTED_BOTH,
        {5, GROUP_EXITED, 0, 0, ""},
        {5, GROUP_EXITED, 1, EXIT(1), "notify-failed 1, signal 15, arm +30000"},
        {5, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &config, waits);
    group_finish(&g);
    converse_as(&g, &config, interrupted);
    group_finish(&g);
    converse_as(&g, &config, failed);
    group_finish(&g);
}

static void test_exit_codes(void **state)
{
    static struct group_worker missing = {.state = GROUP_WORKER_EXEC_FAILED, .status = ENOENT},
                               refused = {.state = GROUP_WORKER_EXEC_FAILED, .status = EACCES};
    static const struct {
        struct worker_group g;
        int code, root_code, expected;
    } rows[] = {
        {{.cause = GROUP_CAUSE_NONE}, 0, 7, 0},
        {{.cause = GROUP_CAUSE_WORKER}, 1, 7, 1}, /* as torchrun */
        {{.config.exit_code_of_worker = true, .cause = GROUP_CAUSE_WORKER}, 1, 7, 7},
        {{.config.exit_code_of_worker = true, .cause = GROUP_CAUSE_WORKER}, 1, -11, 139},
        {{.config.exit_code_of_worker = true, .cause = GROUP_CAUSE_GUARDIAN}, 1, 0, 1},
        {{.config.exit_code_of_worker = true, .cause = GROUP_CAUSE_SIGNAL, .interrupt = SIGTERM},
         1,
         -15,
         143},
        {{.config.exit_code_of_worker = true, .cause = GROUP_CAUSE_EXEC, .workers = &missing}, 1, 0, 127},
        {{.config.exit_code_of_worker = true, .cause = GROUP_CAUSE_EXEC, .workers = &refused}, 1, 0, 126},
        /* The rendezvous decides for all nodes. */
        {{.config.exit_code_of_worker = true, .is_ending = true, .cause = GROUP_CAUSE_WORKER}, 3, 7, 3},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(group_exit_code(&rows[i].g, rows[i].code, rows[i].root_code), rows[i].expected);
}

static void test_everything_has_a_name(void **state)
{
    for (unsigned i = 0; i < GROUP_STATE_COUNT; i++)
        assert_non_null(group_state_name(i));
    for (unsigned i = 0; i < GROUP_EVENT_COUNT; i++)
        assert_non_null(group_event_name(i));
    for (unsigned i = 0; i < GROUP_ACTION_COUNT; i++)
        assert_non_null(group_action_name(i));
    assert_null(group_state_name(GROUP_STATE_COUNT));
    assert_null(group_event_name(GROUP_EVENT_COUNT));
    assert_null(group_action_name(GROUP_ACTION_COUNT));
}

static bool has(const struct group_actions *actions, enum group_action_kind kind)
{
    for (size_t i = 0; i < actions->n_items; i++)
        if (actions->items[i].kind == kind)
            return true;
    return false;
}

/* Whatever happens in whatever order: never two starts without an end between, never more restarts than
 * allowed, never an action after the end, and an armed deadline whenever something has been asked to end. With a rank
 * assignment, every generation that ends is reported, or the job is over. */
static void check_random_events(unsigned seed, bool has_assignment)
{
    const struct group_config config = {.n_workers = 3,
                                        .max_restarts = 2,
                                        .grace_ns = 1000 * MS,
                                        .pause_max_ns = seed % 3 * 500 * MS,
                                        .has_rank_assignment = has_assignment};
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
        bool is_order =
            event.kind == GROUP_PEER_FAILED || event.kind == GROUP_END || event.kind == GROUP_DRAIN;
        enum group_state before = g.state;
        /* Worker events come from a generation that exists; orders, from elsewhere. */
        if ((before == GROUP_IDLE && event.kind != GROUP_START && event.kind != GROUP_SIGNAL &&
             event.kind != GROUP_TIMER && event.kind != GROUP_SUSPEND && event.kind != GROUP_RESUME &&
             !is_order) ||
            (is_order && !has_assignment))
            continue;
        group_step(&g, &event, &actions);
        if (has(&actions, GROUP_DO_SPAWN)) {
            n_spawned++;
            assert_int_equal(before, GROUP_IDLE);
        }
        if (before == GROUP_DONE)
            assert_int_equal(actions.n_items,
                             has(&actions, GROUP_DO_HURRY) + has(&actions, GROUP_DO_STOP_SELF));
        if (g.state == GROUP_STOPPING || g.state == GROUP_SWEEPING || g.state == GROUP_KILLING)
            assert_int_not_equal(g.deadline_ns, 0);
        if (has_assignment && event.kind == GROUP_EMPTY && before != GROUP_DONE)
            assert_int_equal(has(&actions, GROUP_DO_REPORT_DONE) + has(&actions, GROUP_DO_REPORT_READY) +
                                 has(&actions, GROUP_DO_PRINT_PAUSE) + has(&actions, GROUP_DO_FINISH),
                             1);
    }
    if (!has_assignment) {
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
        cmocka_unit_test(test_orphans_after_success),
        cmocka_unit_test(test_failure_without_restart),
        cmocka_unit_test(test_restarts_within_the_budget),
        cmocka_unit_test(test_no_restart_against_a_final_failure),
        cmocka_unit_test(test_stubborn_workers_are_killed),
        cmocka_unit_test(test_sweep_keeps_an_earlier_deadline),
        cmocka_unit_test(test_nothing_kills_it),
        cmocka_unit_test(test_signal_before_the_start),
        cmocka_unit_test(test_signal_after_a_failure),
        cmocka_unit_test(test_signal_while_sweeping),
        cmocka_unit_test(test_exec_failure_is_final),
        cmocka_unit_test(test_lost_guardian),
        cmocka_unit_test(test_start_failed),
        cmocka_unit_test(test_start_failed_for_lack_of_something),
        cmocka_unit_test(test_placed_failure_and_next_generation),
        cmocka_unit_test(test_placed_stopped_for_another_node),
        cmocka_unit_test(test_placed_stopped_when_done),
        cmocka_unit_test(test_placed_end_while_running),
        cmocka_unit_test(test_placed_signal),
        cmocka_unit_test(test_placed_drain),
        cmocka_unit_test(test_placed_cannot_start),
        cmocka_unit_test(test_placed_lack_at_the_start),
        cmocka_unit_test(test_signals_within_a_second_are_one_request),
        cmocka_unit_test(test_signal_after_a_drain_in_vain),
        cmocka_unit_test(test_request_of_a_drain),
        cmocka_unit_test(test_stop_of_the_job),
        cmocka_unit_test(test_signal_that_is_passed_on),
        cmocka_unit_test(test_suspended),
        cmocka_unit_test(test_pause_between_restarts),
        cmocka_unit_test(test_signal_during_a_pause),
        cmocka_unit_test(test_placed_pause),
        cmocka_unit_test(test_exec_failures_that_may_pass),
        cmocka_unit_test(test_leaving_together),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_everything_has_a_name),
        cmocka_unit_test(test_random_events),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
