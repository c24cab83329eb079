/*
 * Conversations (group_conversation.h) with a worker group that replaces a failed worker and keeps the others. Three
 * workers.
 */

#include <signal.h>

#include "base/err.h"
#include "tests/unit/launcher/group_conversation.h"

#define KILLED 9

enum { N = 3 };

static const struct group_config usual = {
    .n_workers = N, .max_restarts = 2, .grace_ns = 30000 * MS, .replace = true, .rejoin_ns = 10000 * MS};

static void converse(struct worker_group *g, const struct line *lines)
{
    converse_as(g, &usual, lines);
}

#define STARTED                                                                                              \
    {0, GROUP_START, -1, 0, "spawn"}, {1, GROUP_STARTED, 0, 0, ""}, {1, GROUP_STARTED, 1, 0, ""},            \
    {                                                                                                        \
        1, GROUP_STARTED, 2, 0, ""                                                                           \
    }
#define READY(generation)                                                                                    \
    {2, GROUP_WORKER_READY, 0, generation, ""}, {2, GROUP_WORKER_READY, 1, generation, ""},                  \
    {                                                                                                        \
        2, GROUP_WORKER_READY, 2, generation, ""                                                             \
    }
/* Worker 1 is killed, and a new one is ordered. */
#define REPLACED_1                                                                                           \
    {10, GROUP_EXITED, 1, KILLED, "arm +2"}, {12, GROUP_TIMER, -1, 0, "print-report, start-again"},          \
    {                                                                                                        \
        12, GROUP_START, -1, 0, "replace 1, arm +50000"                                                      \
    }

static void test_one_is_replaced(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_STARTED, 1, 0, ""},
        {14, GROUP_WORKER_READY, 0, 0, ""}, /* late, of the generation before */
        {14, GROUP_WORKER_READY, 0, 1, ""},
        {15, GROUP_WORKER_READY, 2, 1, ""},
        {16, GROUP_WORKER_READY, 1, 1, "disarm"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.state, GROUP_RUNNING);
    assert_int_equal(g.generation, 1);
    assert_int_equal(g.restarts, 1);
    assert_int_equal(g.cause, GROUP_CAUSE_NONE);
    assert_int_equal(g.workers[0].generation, 0); /* where its files are */
    assert_int_equal(g.workers[1].generation, 1);
    group_finish(&g);
}

static void test_ready_is_faster_than_the_guardian(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {14, GROUP_WORKER_READY, 0, 1, ""},
        {14, GROUP_WORKER_READY, 1, 1, ""},
        {15, GROUP_WORKER_READY, 2, 1, ""},
        {16, GROUP_STARTED, 1, 0, "disarm"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.state, GROUP_RUNNING);
    assert_int_equal(g.workers[0].started_ns - g.workers[0].ordered_ns, 1 * MS); /* it has stayed */
    assert_int_equal(g.workers[1].started_ns - g.workers[1].ordered_ns,
                     4 * MS); /* and that one has reported a step meanwhile */
    group_finish(&g);
}

static void test_two_at_once_are_one_restart(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_EXITED, 1, KILLED, "arm +2"},
        {11, GROUP_EXITED, 0, KILLED, "arm +2"},
        {12, GROUP_TIMER, -1, 0, "arm +1"}, /* of the first: too early */
        {13, GROUP_TIMER, -1, 0, "print-report, start-again"},
        {13, GROUP_START, -1, 0, "replace 0 1, arm +50000"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.restarts, 1);
    assert_int_equal(g.cause_worker, 1);
    group_finish(&g);
}

static void test_all_at_once_are_restarted(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_EXITED, 1, KILLED, "arm +2"},
        {10, GROUP_EXITED, 0, KILLED, "arm +2"},
        {10, GROUP_EXITED, 2, KILLED, "notify-failed 1, signal 15, arm +30000"},
        {11, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {11, GROUP_START, -1, 0, "spawn"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.restarts, 1);
    group_finish(&g);
}

/* With a worker that never reported that it can stay, all are restarted. */
static void test_worker_that_cannot_stay(void **state)
{
    static const struct line lines[] = {
        STARTED,
        {2, GROUP_WORKER_READY, 0, 0, ""},
        {10, GROUP_EXITED, 1, KILLED, "notify-failed 1, signal 15, arm +30000"},
        {11, GROUP_EXITED, 0, KILLED, ""},
        {11, GROUP_EXITED, 2, KILLED, ""},
        {12, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {12, GROUP_START, -1, 0, "spawn"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

static void test_worker_that_has_ended_cannot_stay(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {9, GROUP_EXITED, 0, 0, ""},
        {10, GROUP_EXITED, 1, KILLED, "notify-failed 1, signal 15, arm +30000"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

static void test_success_meanwhile_stops_all(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_EXITED, 1, KILLED, "arm +2"},
        {11, GROUP_EXITED, 2, 0, "notify-failed 1, signal 15, arm +30000"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

/* The new worker is not ready: it does not wait for the notice of another generation. */
static void test_second_failure_while_forming(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_STARTED, 1, 0, ""},
        {14, GROUP_EXITED, 0, KILLED, "kill-newcomers 1, arm +2"},
        {16, GROUP_TIMER, -1, 0, "arm +2"}, /* it is still there */
        {17, GROUP_EXITED, 1, KILLED, ""},
        {18, GROUP_TIMER, -1, 0, "print-report, start-again"},
        {18, GROUP_START, -1, 0, "replace 0 1, arm +50000"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.generation, 2);
    assert_int_equal(g.restarts, 2);
    assert_int_equal(g.cause_worker, 0);
    group_finish(&g);
}

static void test_the_new_one_fails_again(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_STARTED, 1, 0, ""},
        {14, GROUP_EXITED, 1, 1 << 8, "arm +2"},
        {16, GROUP_TIMER, -1, 0, "print-report, start-again"},
        {16, GROUP_START, -1, 0, "replace 1, arm +50000"},
        {17, GROUP_STARTED, 1, 0, ""},
        /* The budget is used up. */
        {18, GROUP_EXITED, 1, 1 << 8, "notify-failed 1, signal 15, arm +30000"},
        {19, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

static void test_newcomer_that_does_not_die(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_STARTED, 1, 0, ""},
        {14, GROUP_EXITED, 0, KILLED, "kill-newcomers 1, arm +2"},
        {5015, GROUP_TIMER, -1, 0, "notify-failed 0, signal 15, arm +30000"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

static void test_worker_that_is_not_ready_in_time(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_STARTED, 1, 0, ""},
        {14, GROUP_WORKER_READY, 0, 1, ""},
        {14, GROUP_WORKER_JOINING, 1, 1, "arm +10000"},
        {14, GROUP_WORKER_READY, 1, 1, ""},
        {10014, GROUP_TIMER, -1, 0, "notify-failed 2, signal 15, arm +30000"},
        {10015, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {10015, GROUP_START, -1, 0, "spawn"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.restarts, 2);
    group_finish(&g);
}

/* The imports of the new one do not count, however long the others wait. */
static void test_new_one_that_imports_slowly(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_STARTED, 1, 0, ""},
        {14, GROUP_WORKER_JOINING, 0, 1, "arm +49998"},
        {14, GROUP_WORKER_JOINING, 0, 1, ""},
        {15, GROUP_WORKER_JOINING, 1, 0, ""}, /* late, of the generation before */
        {15, GROUP_WORKER_JOINING, 2, 1, "arm +49997"},
        {30000, GROUP_TIMER, -1, 0, "arm +20012"}, /* too early */
        {35000, GROUP_WORKER_JOINING, 1, 1, "arm +10000"},
        {36000, GROUP_WORKER_READY, 0, 1, ""},
        {36000, GROUP_WORKER_READY, 1, 1, ""},
        {36000, GROUP_WORKER_READY, 2, 1, "disarm"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.restarts, 1);
    group_finish(&g);
}

static void test_imports_are_bounded(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_STARTED, 1, 0, ""},
        {45012, GROUP_WORKER_JOINING, 1, 1, "arm +5000"},
        {50012, GROUP_TIMER, -1, 0, "notify-failed 0, signal 15, arm +30000"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_REJOIN);
    group_finish(&g);
}

static void test_replacement_that_cannot_be_done(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {12, GROUP_REPLACE_FAILED, -1, 0, "disarm, notify-failed 1, signal 15, arm +30000"},
        {13, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

static void test_signal_meanwhile(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_SIGNAL, -1, SIGTERM, "notify-stop 15, signal 15, arm +30000"},
        {14, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

static void test_guardian_lost_meanwhile(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_EXITED, 1, KILLED, "arm +2"},
        {11, GROUP_GUARDIAN_LOST, -1, 0, "kill, arm +5000"},
        {12, GROUP_EMPTY, -1, 0, "disarm, print-report, start-again"},
        {12, GROUP_START, -1, 0, "spawn"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    assert_int_equal(g.restarts, 1);
    group_finish(&g);
}

static void test_new_one_cannot_be_executed(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        REPLACED_1,
        {13, GROUP_EXEC_FAILED, 1, 2, "notify-failed 1, signal 15, arm +30000"},
        {14, GROUP_EMPTY, -1, 0, "disarm, print-report, finish 1"},
        {0},
    };
    struct worker_group g;

    converse(&g, lines);
    group_finish(&g);
}

/* ---- one of several nodes ---- */

static const struct group_config one_node = {.n_workers = N,
                                             .grace_ns = 30000 * MS,
                                             .replace = true,
                                             .rejoin_ns = 10000 * MS,
                                             .has_rank_assignment = true};

/* The own failure is published at once; the ranks of the next generation come when all nodes are ready. */
static void test_node_replaces_its_worker(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_EXITED, 1, KILLED, "report-failed 1, notify-failed 1, arm +2"},
        {12, GROUP_TIMER, -1, 0, "print-report, report-ready"},
        {13, GROUP_EXITED, 2, KILLED, ""}, /* one more: started again with the first */
        {14, GROUP_START, -1, 4, "replace 1 2, arm +50000"},
        {15, GROUP_STARTED, 1, 0, ""},
        {15, GROUP_STARTED, 2, 0, ""},
        {16, GROUP_WORKER_READY, 0, 4, ""},
        {16, GROUP_WORKER_READY, 1, 4, ""},
        {17, GROUP_WORKER_READY, 2, 4, "disarm"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    assert_int_equal(g.state, GROUP_RUNNING);
    assert_int_equal(g.generation, 4);
    assert_int_equal(g.cause, GROUP_CAUSE_NONE);
    group_finish(&g);
}

static void test_node_remains_when_another_fails(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {14, GROUP_START, -1, 1, "replace, arm +10000"},
        {16, GROUP_WORKER_READY, 0, 1, ""},
        {16, GROUP_WORKER_READY, 1, 1, ""},
        {16, GROUP_WORKER_READY, 2, 1, "disarm"},
        {20, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    assert_int_equal(g.state, GROUP_REPLACING);
    group_finish(&g);
}

static void test_node_that_cannot_remain_stops(void **state)
{
    static const struct line lines[] = {
        STARTED,
        {2, GROUP_WORKER_READY, 0, 0, ""},
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, signal 15, arm +30000"},
        {11, GROUP_EMPTY, -1, 0, "disarm, report-ready"},
        {12, GROUP_START, -1, 1, "spawn"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    group_finish(&g);
}

/* Others start in the place of this node. */
static void test_no_worker_remains_after_the_lease(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_LEASE_ENDED, -1, 0, "notify-peer, signal 15, arm +30000"},
        {10, GROUP_LEASE_ENDED, -1, 0, ""},
        {11, GROUP_EMPTY, -1, 0, "disarm, report-ready"},
        {11, GROUP_LEASE_ENDED, -1, 0, ""},
        {12, GROUP_START, -1, 1, "spawn"},
        {0},
    };
    static const struct line while_they_wait[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {12, GROUP_LEASE_ENDED, -1, 0, "notify-peer, signal 15, arm +30000"},
        {13, GROUP_EMPTY, -1, 0, "disarm, report-ready"},
        {0},
    };
    static const struct line behind_orphans[] = {
        STARTED,
        READY(0),
        {9, GROUP_EXITED, 0, 0, ""},
        {9, GROUP_EXITED, 1, 0, ""},
        {9, GROUP_EXITED, 2, 0, ""},
        {10, GROUP_ORPHANS, 0, 1, "signal 15, arm +1000"},
        {11, GROUP_LEASE_ENDED, -1, 0, ""},
        {12, GROUP_EMPTY, -1, 0, "disarm, report-ready"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, behind_orphans);
    group_finish(&g);
    converse_as(&g, &one_node, lines);
    group_finish(&g);
    converse_as(&g, &one_node, while_they_wait);
    group_finish(&g);
}

/* The rendezvous takes this node for running: without a report it would wait for it, and with it all other nodes. */
static void test_node_whose_worker_ends_while_forming(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {14, GROUP_START, -1, 1, "replace, arm +10000"},
        {15, GROUP_EXITED, 1, 0, "report-failed -1, notify-peer, signal 15, arm +30000"},
        {16, GROUP_EXITED, 0, 15, ""},
        {16, GROUP_EXITED, 2, 15, ""},
        {16, GROUP_EMPTY, -1, 0, "disarm, print-report, report-ready"},
        {20, GROUP_START, -1, 2, "spawn"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    group_finish(&g);
}

/* The cause of the generation before is no failure of this one. */
static void test_node_that_is_drained_while_forming(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {14, GROUP_START, -1, 1, "replace, arm +10000"},
        {15, GROUP_DRAIN, -1, 0, "notify-stop 15, signal 15, arm +30000"},
        {16, GROUP_EXITED, 0, 0, ""},
        {16, GROUP_EXITED, 1, 0, ""},
        {16, GROUP_EXITED, 2, 0, ""},
        {17, GROUP_EMPTY, -1, 0, "disarm, report-done"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    group_finish(&g);
}

/* Another node fails while a worker of this one is being replaced: the new one is ended, and both start again. */
static void test_node_loses_a_peer_while_forming(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_EXITED, 1, KILLED, "report-failed 1, notify-failed 1, arm +2"},
        {12, GROUP_TIMER, -1, 0, "print-report, report-ready"},
        {14, GROUP_START, -1, 1, "replace 1, arm +50000"},
        {15, GROUP_STARTED, 1, 0, ""},
        {20, GROUP_PEER_FAILED, -1, 0, "kill-newcomers 1, notify-peer, arm +2"},
        {21, GROUP_EXITED, 1, KILLED, ""},
        {22, GROUP_TIMER, -1, 0, "report-ready"},
        {23, GROUP_START, -1, 2, "replace 1, arm +50000"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    group_finish(&g);
}

/* The rendezvous has counted on workers that have ended since: that generation fails, the next one is a new start. */
static void test_node_whose_last_worker_fails_while_waiting(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {11, GROUP_EXITED, 0, KILLED, ""},
        {11, GROUP_EXITED, 1, KILLED, ""},
        {11, GROUP_EXITED, 2, KILLED, "notify-failed 2, signal 15, arm +30000"},
        {12, GROUP_START, -1, 1, "report-failed 2"},
        {13, GROUP_EMPTY, -1, 0, "disarm, print-report, report-ready"},
        {14, GROUP_START, -1, 2, "spawn"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    group_finish(&g);
}

static void test_node_whose_workers_are_not_ready_in_time(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {14, GROUP_START, -1, 1, "replace, arm +10000"},
        {16, GROUP_WORKER_READY, 0, 1, ""},
        {10014, GROUP_TIMER, -1, 0, "report-failed 1, notify-failed 1, signal 15, arm +30000"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    assert_int_equal(g.cause, GROUP_CAUSE_REJOIN);
    group_finish(&g);
}

/* All of this node have joined: new ones of another node may still import. */
static void test_node_that_waits_for_imports_of_another(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {14, GROUP_START, -1, 1, "replace, arm +10000"},
        {16, GROUP_WORKER_JOINING, 0, 1, "arm +10000"},
        {16, GROUP_WORKER_JOINING, 1, 1, "arm +10000"},
        {17, GROUP_WORKER_JOINING, 2, 1, "arm +49997"},
        {40000, GROUP_WORKER_READY, 0, 1, ""},
        {40000, GROUP_WORKER_READY, 1, 1, ""},
        {40000, GROUP_WORKER_READY, 2, 1, "disarm"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    group_finish(&g);
}

static void test_node_whose_job_ends_while_waiting(void **state)
{
    static const struct line lines[] = {
        STARTED,
        READY(0),
        {10, GROUP_PEER_FAILED, -1, 0, "notify-peer, report-ready"},
        {14, GROUP_END, -1, 1, "notify-peer, signal 15, arm +30000"},
        {15, GROUP_EMPTY, -1, 0, "disarm, finish 1"},
        {0},
    };
    struct worker_group g;

    converse_as(&g, &one_node, lines);
    group_finish(&g);
}

/* ---- random ---- */

/* Any events in any order: never more restarts than allowed, no running worker is started, a deadline while workers are
 * waited for, an end that stays. The machine asserts its invariants after each step. */
static void test_random_events(void **state)
{
    int n_replaced = 0;

    for (unsigned seed = 1; seed <= 20000; seed++) {
        unsigned long long random = seed * 6364136223846793005ull + 1442695040888963407ull;
        bool again = false;
        struct worker_group g;

        assert_int_equal(group_init(&g, &usual), 0);
        for (int step = 0; step < 60; step++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            unsigned bits = (unsigned)(random >> 33);
            struct group_event event = {.kind = (enum group_event_kind)(bits % GROUP_EVENT_COUNT),
                                        .now_ns = (uint64_t)step * 3 * MS,
                                        .worker = (int)((bits >> 8) % N),
                                        .pid = 100,
                                        .value = (bits >> 16) % 3 ? KILLED : 0};
            struct group_actions actions;
            enum group_state before = g.state;

            if (event.kind == GROUP_SIGNAL || event.kind == GROUP_START_FAILED ||
                event.kind == GROUP_GUARDIAN_LOST)
                event.kind = (bits >> 20) % 8 ? GROUP_TIMER : event.kind; /* rarely: they end it */
            if (event.kind == GROUP_WORKER_READY || event.kind == GROUP_WORKER_JOINING)
                event.value = (int)g.generation;
            if (step < 7) /* all there and ready */
                event = (struct group_event){.kind = step == 0  ? GROUP_START
                                                     : step < 4 ? GROUP_STARTED
                                                                : GROUP_WORKER_READY,
                                             .worker = (step - 1) % N,
                                             .pid = 100};
            if (again) /* which is answered at once */
                event.kind = GROUP_START;
            if (before == GROUP_IDLE && event.kind != GROUP_START && event.kind != GROUP_SIGNAL)
                continue;
            group_step(&g, &event, &actions);
            again = false;
            for (size_t i = 0; i < actions.n_items; i++)
                again = again || actions.items[i].kind == GROUP_DO_START_AGAIN;
            for (size_t i = 0; i < actions.n_items; i++)
                if (actions.items[i].kind == GROUP_DO_REPLACE) {
                    n_replaced++;
                    assert_int_equal(before, GROUP_REPLACING);
                    assert_true(g.forming);
                }
            if (before == GROUP_DONE && event.kind != GROUP_SIGNAL && event.kind != GROUP_SUSPEND)
                assert_int_equal(actions.n_items, 0);
            if (g.state == GROUP_REPLACING || g.state == GROUP_STOPPING)
                assert_true(g.deadline_ns != 0 || again);
            assert_in_range(g.restarts, 0, usual.max_restarts);
            assert_int_equal(g.restarts, g.generation);
        }
        group_finish(&g);
    }
    assert_true(n_replaced > 300);
}

/* The same for one of several nodes, where the rendezvous sends its events at any time. */
static void test_random_events_of_a_node(void **state)
{
    int n_replaced = 0;

    for (unsigned seed = 1; seed <= 20000; seed++) {
        unsigned long long random = seed * 6364136223846793005ull + 1442695040888963407ull;
        struct worker_group g;

        assert_int_equal(group_init(&g, &one_node), 0);
        for (int step = 0; step < 60; step++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            unsigned bits = (unsigned)(random >> 33);
            struct group_event event = {.kind = (enum group_event_kind)(bits % GROUP_EVENT_COUNT),
                                        .now_ns = (uint64_t)step * 3 * MS,
                                        .worker = (int)((bits >> 8) % N),
                                        .pid = 100,
                                        .generation = (uint32_t)step,
                                        .value = (bits >> 16) % 3 ? KILLED : 0};
            struct group_actions actions;

            if (event.kind == GROUP_SIGNAL || event.kind == GROUP_START_FAILED || event.kind == GROUP_END ||
                event.kind == GROUP_GUARDIAN_LOST)
                event.kind = (bits >> 20) % 8 ? GROUP_TIMER : event.kind; /* rarely: they end it */
            if (event.kind == GROUP_WORKER_READY || event.kind == GROUP_WORKER_JOINING)
                event.value = (int)g.generation;
            if (step < 7) /* all there and ready */
                event = (struct group_event){.kind = step == 0  ? GROUP_START
                                                     : step < 4 ? GROUP_STARTED
                                                                : GROUP_WORKER_READY,
                                             .worker = (step - 1) % N,
                                             .pid = 100};
            group_step(&g, &event, &actions);
            for (size_t i = 0; i < actions.n_items; i++)
                n_replaced += actions.items[i].kind == GROUP_DO_REPLACE;
            if (g.state == GROUP_REPLACING) /* it waits for time, or for the rendezvous */
                assert_true(g.deadline_ns != 0 || g.will_replace);
        }
        group_finish(&g);
    }
    assert_true(n_replaced > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_is_replaced),
        cmocka_unit_test(test_ready_is_faster_than_the_guardian),
        cmocka_unit_test(test_two_at_once_are_one_restart),
        cmocka_unit_test(test_all_at_once_are_restarted),
        cmocka_unit_test(test_worker_that_cannot_stay),
        cmocka_unit_test(test_worker_that_has_ended_cannot_stay),
        cmocka_unit_test(test_success_meanwhile_stops_all),
        cmocka_unit_test(test_second_failure_while_forming),
        cmocka_unit_test(test_the_new_one_fails_again),
        cmocka_unit_test(test_newcomer_that_does_not_die),
        cmocka_unit_test(test_worker_that_is_not_ready_in_time),
        cmocka_unit_test(test_new_one_that_imports_slowly),
        cmocka_unit_test(test_imports_are_bounded),
        cmocka_unit_test(test_replacement_that_cannot_be_done),
        cmocka_unit_test(test_signal_meanwhile),
        cmocka_unit_test(test_guardian_lost_meanwhile),
        cmocka_unit_test(test_new_one_cannot_be_executed),
        cmocka_unit_test(test_node_replaces_its_worker),
        cmocka_unit_test(test_node_remains_when_another_fails),
        cmocka_unit_test(test_node_that_cannot_remain_stops),
        cmocka_unit_test(test_no_worker_remains_after_the_lease),
        cmocka_unit_test(test_node_whose_worker_ends_while_forming),
        cmocka_unit_test(test_node_that_is_drained_while_forming),
        cmocka_unit_test(test_node_loses_a_peer_while_forming),
        cmocka_unit_test(test_node_whose_last_worker_fails_while_waiting),
        cmocka_unit_test(test_node_whose_workers_are_not_ready_in_time),
        cmocka_unit_test(test_node_that_waits_for_imports_of_another),
        cmocka_unit_test(test_node_whose_job_ends_while_waiting),
        cmocka_unit_test(test_random_events),
        cmocka_unit_test(test_random_events_of_a_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
