/*
 * The agent's session core, as conversations in virtual time: what happens, and what the agent does then.
 */

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rendezvous/session/session.h"

#include "tests/support/c/cmocka_fixed.h"

#define MS UINT64_C(1000000)

struct table {
    struct session session;
    uint64_t now_ns;
    char did[64]; /* a letter for each action, see letters[] */
};

static const char letters[SESSION_ACTION_COUNT] = {
    [SESSION_DO_DIAL] = 'd',   [SESSION_DO_GREET] = 'g',    [SESSION_DO_HELLO] = 'h',
    [SESSION_DO_REPORT] = 'r', [SESSION_DO_ALIVE] = 'a',    [SESSION_DO_CLOSE] = 'c',
    [SESSION_DO_START] = 'S',  [SESSION_DO_STOP] = 'X',     [SESSION_DO_DRAIN] = 'D',
    [SESSION_DO_QUIET] = 'Q',  [SESSION_DO_PROGRESS] = 'p', [SESSION_DO_LOG] = 's',
    [SESSION_DO_END] = 'E',    [SESSION_DO_CHECK] = 'C',    [SESSION_DO_RENEW] = 'n',
    [SESSION_DO_FENCE] = 'F',  [SESSION_DO_FENCED] = 'f',
};

static int set_up(void **state)
{
    struct table *t = calloc(1, sizeof(*t));
    struct session_config config = {.hello = {.job = "job",
                                              .host = "node0",
                                              .nonce = {1, 2},
                                              .n_workers = 2,
                                              .node_rank = -1,
                                              .params = SESSION_PARAMS_DEFAULT},
                                    .endpoint = "head:29400",
                                    .cutoff_ns = SESSION_CUTOFF_MS * MS};

    if (!t)
        return -1;
    t->now_ns = 5000 * MS;
    config.hello.params.node_timeout_ms = 1000;
    session_init(&t->session, &config);
    *state = t;
    return 0;
}

static int tear_down(void **state)
{
    free(*state);
    return 0;
}

static void step(struct table *t, struct session_event event)
{
    struct session_actions actions;
    size_t n = strlen(t->did);

    event.now_ns = t->now_ns;
    session_step(&t->session, &event, &actions);
    for (size_t i = 0; i < actions.n_items && n + 1 < sizeof(t->did); i++)
        t->did[n++] = letters[actions.items[i]];
    t->did[n] = 0;
}

static void happens(struct table *t, enum session_event_kind kind)
{
    step(t, (struct session_event){.kind = kind, .port = 4000});
}

static void lost(struct table *t, const char *why)
{
    step(t, (struct session_event){.kind = SESSION_EVENT_LOST, .text = why});
}

static void sees(struct table *t, struct session_view view)
{
    step(t, (struct session_event){.kind = SESSION_EVENT_VIEW, .view = &view});
}

/* Time passes; the timer fires whenever it is wanted, and every sign of life is answered if `answered`. */
static void pass(struct table *t, unsigned ms, bool answered)
{
    uint64_t until_ns = t->now_ns + ms * MS;

    while (session_deadline(&t->session) <= until_ns) {
        size_t n = strlen(t->did);

        if (session_deadline(&t->session) > t->now_ns)
            t->now_ns = session_deadline(&t->session);
        happens(t, SESSION_EVENT_TIMER);
        if (answered && t->did[n] == 'a') {
            happens(t, SESSION_EVENT_ALIVE);
            t->did[n] = 0;
        }
    }
    t->now_ns = until_ns;
}

/* Everything done since the last time. */
static void assert_did(struct table *t, const char *expected)
{
    assert_string_equal(t->did, expected);
    t->did[0] = 0;
}

static void assert_says(const struct table *t, const char *part)
{
    if (!strstr(t->session.text, part))
        fail_msg("'%s' does not say '%s'", t->session.text, part);
}

static const struct session_view wait_view = {
    .kind = SESSION_VIEW_WAIT, .n_ready = 1, .min_nodes = 2, .max_nodes = 2};

static struct session_view start_view(int64_t generation)
{
    return (struct session_view){.kind = SESSION_VIEW_START,
                                 .instance = 77,
                                 .generation = generation,
                                 .restarts = 1,
                                 .changes = 2,
                                 .place = {.group_rank = 1, .group_world_size = 2}};
}

static void connect_and_greet(struct table *t)
{
    happens(t, SESSION_EVENT_CONNECTED);
    happens(t, SESSION_EVENT_ECHOED);
    happens(t, SESSION_EVENT_OPENED);
    assert_did(t, "gh");
}

/* Up, ready, and waiting. */
static void come_up(struct table *t)
{
    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "d");
    connect_and_greet(t);
    sees(t, wait_view);
    assert_did(t, "p");
}

static void run_generation(struct table *t, int64_t generation)
{
    sees(t, start_view(generation));
    assert_did(t, "Sr");
}

/* ---- the way through ---- */

static void a_job_from_hello_to_its_end(void **state)
{
    struct table *t = *state;
    struct session_hello hello;

    come_up(t);
    session_hello(&t->session, t->now_ns, &hello);
    assert_string_equal(hello.job, "job");
    assert_int_equal(hello.attempt, 1);
    assert_int_equal(hello.report.phase, SESSION_READY);
    assert_int_equal(hello.report.port, 4000);
    assert_int_equal(hello.report.generation, -1);
    run_generation(t, 0);
    session_hello(&t->session, t->now_ns, &hello);
    assert_int_equal(hello.report.phase, SESSION_RUNNING);
    assert_int_equal(hello.report.instance, 77);
    assert_int_equal(hello.report.group_rank, 1);
    assert_int_equal(hello.report.restarts, 1);
    assert_int_equal(hello.report.changes, 2);
    happens(t, SESSION_EVENT_GROUP_DONE);
    assert_did(t, "r");
    assert_int_equal(t->session.phase, SESSION_DONE);
    sees(t, (struct session_view){.kind = SESSION_VIEW_END, .verdict = SESSION_VERDICT_SUCCESS});
    assert_did(t, "rcE");
    session_report(&t->session, t->now_ns, &hello.report);
    assert_int_equal(hello.report.phase, SESSION_LEFT); /* the result has arrived */
    assert_int_equal(t->session.end, SESSION_END_VERDICT);
    assert_int_equal(t->session.verdict, SESSION_VERDICT_SUCCESS);
    assert_true(session_deadline(&t->session) == UINT64_MAX);
}

static void an_unfit_node_checks_again_when_it_is_asked_to(void **state)
{
    struct table *t = *state;
    struct session_report report;
    struct session_view asks = wait_view;

    happens(t, SESSION_EVENT_START);
    step(t, (struct session_event){.kind = SESSION_EVENT_GROUP_UNFIT, .text = "exit code 3"});
    assert_did(t, "d");
    connect_and_greet(t);
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_STOPPING);
    assert_string_equal(report.unfit, "exit code 3");
    sees(t, wait_view);
    assert_did(t, "");
    asks.check = true;
    sees(t, asks);
    assert_did(t, "C");
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "r");
    session_report(&t->session, t->now_ns, &report);
    assert_string_equal(report.unfit, "");
    sees(t, asks); /* crossed with the report */
    assert_did(t, "p");
}

static void an_own_failure_is_reported_with_its_age(void **state)
{
    struct table *t = *state;
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER, .rank = 3, .exit_code = -11};
    struct session_report report;

    come_up(t);
    run_generation(t, 0);
    step(t, (struct session_event){
                .kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = t->now_ns - 2 * MS});
    assert_did(t, "r");
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_FAILED);
    assert_int_equal(report.age_ns, 2 * MS);
    assert_int_equal(report.cause.exit_code, -11);
    sees(t, (struct session_view){.kind = SESSION_VIEW_STOP}); /* it is stopping already */
    assert_did(t, "");
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "r");
    run_generation(t, 1);
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.cause.kind, SESSION_CAUSE_NONE);
}

static void the_text_of_a_failure_is_reported_behind_it(void **state)
{
    struct table *t = *state;
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER, .rank = 3, .pid = 11};
    struct session_report report;

    come_up(t);
    run_generation(t, 0);
    step(t,
         (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = t->now_ns});
    assert_did(t, "r");
    text_copy(cause.text, sizeof(cause.text), "boom");
    cause.rank = 4;
    step(t,
         (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = t->now_ns});
    assert_did(t, "");
    cause.rank = 3;
    step(t,
         (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = t->now_ns});
    assert_did(t, "r");
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_FAILED);
    assert_string_equal(report.cause.text, "boom");
    step(t,
         (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = t->now_ns});
    assert_did(t, "");
}

static void a_failure_elsewhere_stops_the_workers(void **state)
{
    struct table *t = *state;

    come_up(t);
    run_generation(t, 0);
    sees(t, (struct session_view){.kind = SESSION_VIEW_STOP,
                                  .cause = {.kind = SESSION_CAUSE_LOST, .host = "node7"}});
    assert_did(t, "Xr");
    assert_string_equal(t->session.cause.host, "node7");
    sees(t, (struct session_view){.kind = SESSION_VIEW_STOP});
    sees(t, start_view(1)); /* not before it is ready */
    assert_did(t, "");
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "r");
    run_generation(t, 1);
}

static void the_barrier_may_fall(void **state)
{
    struct table *t = *state;

    come_up(t);
    run_generation(t, 0);
    happens(t, SESSION_EVENT_GROUP_DONE);
    sees(t, (struct session_view){.kind = SESSION_VIEW_STOP});
    assert_did(t, "rXr");
}

static void old_generations_are_not_listened_to(void **state)
{
    struct table *t = *state;

    come_up(t);
    run_generation(t, 4);
    sees(t, (struct session_view){.kind = SESSION_VIEW_STOP, .generation = 3});
    sees(t, start_view(4));
    assert_did(t, "");
    sees(t, (struct session_view){.kind = SESSION_VIEW_STOP, .generation = 4});
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "Xrr");
    sees(t, start_view(4));
    sees(t, start_view(3));
    assert_did(t, "");
    run_generation(t, 5);
}

static void leaving_is_said_before_the_connection_is_closed(void **state)
{
    struct table *t = *state;
    struct session_report report;

    come_up(t);
    step(t, (struct session_event){.kind = SESSION_EVENT_LEAVE, .text = "received SIGTERM"});
    assert_did(t, "rc");
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_LEFT);
    assert_int_equal(report.cause.kind, SESSION_CAUSE_LEFT); /* one of no kind is not sent */
    assert_string_equal(report.cause.text, "received SIGTERM");
    happens(t, SESSION_EVENT_TIMER);
    assert_did(t, "");
}

static void the_stop_of_a_job_is_reported_and_ends_the_others(void **state)
{
    struct table *t = *state;
    struct session_report report;
    struct session_view view = {.kind = SESSION_VIEW_END, .stop_signal = 15};

    come_up(t);
    run_generation(t, 0);
    view.verdict = SESSION_VERDICT_FAILURE;
    sees(t, view);
    assert_did(t, "rcE");
    assert_int_equal(t->session.stop_signal, 15);
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.stop_signal, 0); /* no request of this node */
    session_init(&t->session, &(struct session_config){.hello = t->session.hello, .endpoint = "e:1"});
    step(t, (struct session_event){.kind = SESSION_EVENT_LEAVE, .text = "x", .number = 2});
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_LEFT);
    assert_int_equal(report.stop_signal, 2);
}

static void draining_is_asked_for_and_ordered_once(void **state)
{
    struct table *t = *state;
    struct session_report report;

    come_up(t);
    run_generation(t, 0);
    happens(t, SESSION_EVENT_DRAIN);
    assert_did(t, "r");
    session_report(&t->session, t->now_ns, &report);
    assert_true(report.drain);
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE, .drain = true});
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE, .drain = true});
    assert_did(t, "D");
}

static void a_quiet_node_is_reported_and_taken_back(void **state)
{
    struct table *t = *state;
    struct session_report report;

    come_up(t);
    run_generation(t, 3);
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE, .generation = 3, .quiet = true});
    assert_did(t, ""); /* it has not reported that itself */
    step(t, (struct session_event){.kind = SESSION_EVENT_QUIET, .is_quiet = true});
    step(t, (struct session_event){.kind = SESSION_EVENT_QUIET, .is_quiet = true});
    assert_did(t, "r");
    session_report(&t->session, t->now_ns, &report);
    assert_true(report.quiet);
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE, .generation = 2, .quiet = true});
    assert_did(t, ""); /* of a generation before */
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE, .generation = 3, .quiet = true});
    assert_did(t, "Q");
    step(t, (struct session_event){.kind = SESSION_EVENT_QUIET, .is_quiet = false});
    assert_did(t, "r");
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE, .generation = 3, .quiet = true});
    assert_did(t, ""); /* the two have crossed */
}

/* The rendezvous sends "start" until it has the report "running": a drain that it was asked for meanwhile comes with it. */
static void draining_is_ordered_by_a_repeated_start(void **state)
{
    struct table *t = *state;

    come_up(t);
    run_generation(t, 3);
    sees(t, (struct session_view){.kind = SESSION_VIEW_START, .generation = 3, .drain = true});
    assert_did(t, "D");
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE, .generation = 3, .drain = true});
    assert_did(t, "");
}

static void draining_is_ordered_by_the_first_start(void **state)
{
    struct table *t = *state;
    struct session_view view = start_view(0);

    come_up(t);
    view.drain = true;
    sees(t, view);
    assert_did(t, "SrD");
    sees(t, view);
    assert_did(t, "");
}

static void a_refusal_is_the_end(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    assert_did(t, "d");
    connect_and_greet(t);
    sees(t, (struct session_view){.kind = SESSION_VIEW_REFUSED, .cause = {.text = "too many nodes"}});
    assert_did(t, "cE");
    assert_int_equal(t->session.end, SESSION_END_REFUSED);
    assert_says(t, "head:29400 refuses this node: too many nodes");
}

/* ---- the link ---- */

static void signs_of_life_go_out_four_times_in_a_node_timeout(void **state)
{
    struct table *t = *state;

    come_up(t);
    pass(t, 0, false);
    assert_did(t, "a"); /* at once: the rendezvous counts our silence from the hello */
    for (int i = 0; i < 4; i++) {
        pass(t, 250, false);
        assert_did(t, i < 3 ? "a" : "csd"); /* nothing was heard for a second */
    }
}

/* The first view may be held back until the daemon has saved its state: the node must not look dead meanwhile. */
static void signs_of_life_go_out_from_the_hello_on(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "d");
    connect_and_greet(t);
    for (int i = 0; i < 3; i++) {
        pass(t, 250, false);
        assert_did(t, "a");
    }
}

static void a_rendezvous_that_answers_signs_of_life_is_there(void **state)
{
    struct table *t = *state;

    come_up(t);
    lost(t, "reset");
    pass(t, 0, false);
    assert_did(t, "sd");
    connect_and_greet(t);
    pass(t, 100000, true); /* longer than any other patience */
    assert_did(t, "");
    assert_int_equal(t->session.link, SESSION_LINK_OPENING);
    pass(t, 5000, false); /* it has stopped answering */
    assert_non_null(strchr(t->did, 'c'));
}

static void slow(struct table *t, uint64_t slack_ns)
{
    step(t, (struct session_event){.kind = SESSION_EVENT_SLOW, .slack_ns = slack_ns});
}

static void a_slow_network_is_waited_for(void **state)
{
    struct table *t = *state;

    come_up(t);
    pass(t, 999, false);
    assert_false(session_is_overdue(&t->session, t->now_ns));
    t->now_ns += MS;
    assert_true(session_is_overdue(&t->session, t->now_ns));
    slow(t, 500 * MS);
    pass(t, 499, false);
    assert_null(strchr(t->did, 'c'));
    t->now_ns += MS;
    assert_true(session_is_overdue(&t->session, t->now_ns));
    slow(t, UINT64_MAX);
    pass(t, 1499, false);
    assert_null(strchr(t->did, 'c'));
    t->now_ns += MS;
    slow(t, UINT64_MAX); /* but not for ever */
    pass(t, 0, false);
    assert_non_null(strstr(t->did, "csd"));
}

/* Of several crunds: another one leads then, and waits for its nodes. */
static void a_silent_leader_is_left_when_its_lease_has_ended(void **state)
{
    struct table *t = *state;
    struct session_view start = start_view(0);

    come_up(t);
    t->session.hello.params.node_timeout_ms = 2000;
    start.term = 7;
    sees(t, start);
    pass(t, 1999, false);
    t->now_ns += MS;
    slow(t, UINT64_MAX);
    pass(t, 999, false);
    assert_null(strchr(t->did, 'c'));
    t->now_ns += MS;
    slow(t, UINT64_MAX);
    pass(t, 0, false);
    assert_non_null(strstr(t->did, "csd"));
}

static void workers_live_on_while_the_rendezvous_is_away(void **state)
{
    struct table *t = *state;
    unsigned n_dials = 0;

    come_up(t);
    run_generation(t, 0);
    lost(t, "reset");
    assert_did(t, "s");
    for (unsigned ms = 0; ms < 29000; ms += 250) {
        pass(t, 250, false);
        for (const char *p = t->did; *p; p++) {
            assert_non_null(strchr("dcs", *p)); /* whatever it does, it leaves the workers alone */
            n_dials += *p == 'd';
        }
        t->did[0] = 0;
    }
    assert_true(n_dials >= 29);
    happens(t, SESSION_EVENT_CONNECTED);
    happens(t, SESSION_EVENT_ECHOED);
    sees(t, (struct session_view){.kind = SESSION_VIEW_CONTINUE});
    assert_did(t, "gh");
    assert_int_equal(t->session.phase, SESSION_RUNNING);
    pass(t, 60000, true);
    assert_did(t, "");
}

static void a_rendezvous_that_stays_away_is_given_up(void **state)
{
    struct table *t = *state;

    come_up(t);
    run_generation(t, 0);
    lost(t, "reset");
    for (unsigned ms = 0; ms < 31000; ms += 100) {
        pass(t, 100, false);
        if (t->session.link == SESSION_LINK_CLOSED)
            break;
        t->did[0] = 0;
    }
    assert_int_equal(t->session.end, SESSION_END_UNREACHABLE);
    assert_int_equal(t->did[strlen(t->did) - 1], 'E');
    assert_says(t, "was lost and could not be reached again for 30 s: ");
}

/* Whoever told it to stop kills it soon. */
static void a_node_that_has_to_go_away_waits_5_s_for_a_rendezvous(void **state)
{
    struct table *t = *state;
    uint64_t drained_ns;

    come_up(t);
    run_generation(t, 0);
    lost(t, "reset");
    pass(t, 2000, false);
    happens(t, SESSION_EVENT_DRAIN);
    drained_ns = t->now_ns;
    for (unsigned ms = 0; ms < 31000 && t->session.link != SESSION_LINK_CLOSED; ms += 100) {
        t->did[0] = 0;
        pass(t, 100, false);
    }
    assert_int_equal(t->session.end, SESSION_END_UNREACHABLE);
    assert_in_range(t->now_ns - drained_ns, 5000 * MS, 5100 * MS);
}

static void nobody_there_is_said_and_tried_until_the_join_timeout(void **state)
{
    struct table *t = *state;
    unsigned n_said = 0;

    happens(t, SESSION_EVENT_START);
    for (unsigned ms = 0; ms < 610000 && t->session.link != SESSION_LINK_CLOSED; ms += 10) {
        if (t->session.link == SESSION_LINK_DIALING)
            lost(t, "connection refused");
        pass(t, 10, false);
        for (const char *p = t->did; *p; p++)
            n_said += *p == 's';
        if (ms == 0)
            assert_says(t, "head:29400 cannot be reached (connection refused); trying again for 600 s");
        t->did[0] = 0;
    }
    assert_int_equal(t->session.end, SESSION_END_UNREACHABLE);
    assert_says(t, "could not be reached for 600 s (the join timeout): connection refused; check that ");
    assert_in_range(n_said, 50, 60);
}

static void a_tcpstore_is_named_when_it_closes_on_our_opening(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    for (int i = 0; i < 3; i++) {
        happens(t, SESSION_EVENT_CONNECTED);
        happens(t, SESSION_EVENT_ECHOED);
        t->did[0] = 0;
        lost(t, "closed");
        if (i < 2)
            pass(t, 500, false);
    }
    assert_did(t, "E");
    assert_int_equal(t->session.end, SESSION_END_FOREIGN);
    assert_says(t, "PyTorch's TCPStore");
    assert_true(t->now_ns < (5000 + 5000) * MS);
}

/* Connected, greeted, and closed on the opening, as by a crund that is deposed at that moment. */
static void rebuff(struct table *t)
{
    happens(t, SESSION_EVENT_CONNECTED);
    happens(t, SESSION_EVENT_ECHOED);
    lost(t, "closed");
    t->did[0] = 0;
}

/* The others of a list may be crunds, and one of them leads in a moment: no proof before the join timeout. */
static void one_of_several_endpoints_that_closes_is_no_proof(void **state)
{
    struct table *t = *state;

    t->session.has_more_endpoints = true;
    happens(t, SESSION_EVENT_START);
    for (uint64_t until_ns = t->now_ns + 300000 * MS; t->now_ns < until_ns;) {
        assert_int_equal(t->session.end, SESSION_END_NONE);
        if (t->session.link == SESSION_LINK_DIALING)
            rebuff(t);
        pass(t, 100, false);
    }
    assert_true(t->session.n_rebuffs > 100);
    for (unsigned i = 0; i < 7000 && t->session.end == SESSION_END_NONE; i++) {
        if (t->session.link == SESSION_LINK_DIALING)
            rebuff(t);
        pass(t, 100, false);
    }
    assert_int_equal(t->session.end, SESSION_END_UNREACHABLE);
    assert_says(t, "(the join timeout): it closes the connection when crun opens its session");
}

/* It has answered as one before: it, or what leads in its place, is a rendezvous. */
static void a_crund_that_has_answered_stays_one(void **state)
{
    struct session_view elsewhere = {.kind = SESSION_VIEW_ELSEWHERE, .generation = -1};
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_CONNECTED);
    happens(t, SESSION_EVENT_ECHOED);
    sees(t, elsewhere);
    for (unsigned i = 0; i < 10; i++) {
        pass(t, 1000, false);
        rebuff(t);
    }
    assert_int_equal(t->session.end, SESSION_END_NONE);
    pass(t, 1000, false);
    happens(t, SESSION_EVENT_CONNECTED);
    happens(t, SESSION_EVENT_ECHOED);
    sees(t, wait_view);
    assert_int_equal(t->session.link, SESSION_LINK_UP);
}

/* The answer to the opening is proof enough, without a view. */
static void a_server_that_answers_the_opening_is_a_crund(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_CONNECTED);
    happens(t, SESSION_EVENT_ECHOED);
    happens(t, SESSION_EVENT_OPENED);
    lost(t, "closed");
    for (unsigned i = 0; i < 10; i++) {
        pass(t, 1000, false);
        rebuff(t);
    }
    assert_int_equal(t->session.end, SESSION_END_NONE);
}

static void another_kind_of_server_is_named_at_once(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_CONNECTED);
    step(t, (struct session_event){.kind = SESSION_EVENT_FOREIGN, .text = "it answered with \"HTTP/1.1\""});
    assert_did(t, "dgcE");
    assert_says(t, "head:29400 is not a rendezvous of crun: it answered with \"HTTP/1.1\"");
}

static void silence_is_said_within_five_seconds_and_tried_again(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_CONNECTED);
    pass(t, 4499, false);
    assert_did(t, "dg");
    pass(t, 1, false);
    assert_did(t, "csd");
    assert_says(t, "accepts the connection and then sends nothing");
}

static void another_version_is_the_end(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_CONNECTED);
    step(t, (struct session_event){.kind = SESSION_EVENT_VERSION, .text = "2"});
    assert_int_equal(t->session.end, SESSION_END_FOREIGN);
    assert_says(t, "version 2 of the agent session");
}

static void a_stranger_on_a_lost_endpoint_does_not_end_a_running_job(void **state)
{
    struct table *t = *state;

    come_up(t);
    run_generation(t, 0);
    lost(t, "reset");
    pass(t, 1, false);
    t->did[0] = 0;
    happens(t, SESSION_EVENT_CONNECTED);
    step(t, (struct session_event){.kind = SESSION_EVENT_FOREIGN, .text = "no"});
    assert_did(t, "gc");
    assert_int_equal(t->session.link, SESSION_LINK_DOWN);
    assert_int_equal(t->session.phase, SESSION_RUNNING);
}

static void what_happened_meanwhile_is_in_the_next_hello(void **state)
{
    struct table *t = *state;
    struct session_hello hello;

    come_up(t);
    run_generation(t, 0);
    lost(t, "reset");
    happens(t, SESSION_EVENT_GROUP_DONE);
    assert_did(t, "s");
    pass(t, 1, false);
    assert_did(t, "d");
    connect_and_greet(t);
    session_hello(&t->session, t->now_ns, &hello);
    assert_int_equal(hello.attempt, 2);
    assert_int_equal(hello.report.phase, SESSION_DONE);
}

static void our_own_absence_is_not_the_rendezvous_fault(void **state)
{
    struct table *t = *state;

    come_up(t);
    run_generation(t, 0);
    t->now_ns += 20000 * MS;
    happens(t, SESSION_EVENT_TIMER);
    assert_did(t, "a");
    happens(t, SESSION_EVENT_ALIVE);
    pass(t, 5000, true);
    assert_did(t, "");
}

/* ---- several crunds ---- */

static struct session_view elsewhere_view(const char *leader)
{
    struct session_view view = {.kind = SESSION_VIEW_ELSEWHERE, .generation = -1};

    text_copy(view.leader, sizeof(view.leader), leader);
    return view;
}

/* The leader that a follower names is dialled at once. */
static void test_a_redirection_is_followed(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    assert_did(t, "d");
    assert_string_equal(t->session.redirect, "");
    connect_and_greet(t);
    sees(t, elsewhere_view("10.0.0.2:29400"));
    assert_did(t, "c");
    assert_true(session_deadline(&t->session) <= t->now_ns);
    assert_string_equal(t->session.redirect, "10.0.0.2:29400");
    pass(t, 0, false);
    assert_did(t, "d");
    connect_and_greet(t);
    sees(t, wait_view);
    assert_int_equal(t->session.link, SESSION_LINK_UP);
    lost(t, "closed");
    assert_string_equal(t->session.redirect, ""); /* the next attempt asks at the endpoint */
}

/* Two that name each other are not dialled in a loop. */
static void test_redirections_have_a_pace(void **state)
{
    struct table *t = *state;
    unsigned n_dials = 0;

    happens(t, SESSION_EVENT_START);
    t->did[0] = 0;
    for (uint64_t until_ns = t->now_ns + 2000 * MS; t->now_ns < until_ns; n_dials++) {
        connect_and_greet(t);
        sees(t, elsewhere_view("10.0.0.2:29400"));
        t->did[0] = 0;
        if (session_deadline(&t->session) > t->now_ns)
            t->now_ns = session_deadline(&t->session);
        happens(t, SESSION_EVENT_TIMER);
        assert_did(t, "d");
    }
    assert_in_range(n_dials, 4, 60);
}

/* Crunds without a leader answer, so an agent with workers does not give up. */
static void test_leaderless_crunds_are_no_silence(void **state)
{
    struct table *t = *state;

    come_up(t);
    lost(t, "closed");
    t->did[0] = 0;
    for (uint64_t until_ns = t->now_ns + 3 * SESSION_CUTOFF_MS * MS; t->now_ns < until_ns;) {
        t->now_ns = session_deadline(&t->session) > t->now_ns ? session_deadline(&t->session) : t->now_ns;
        happens(t, SESSION_EVENT_TIMER);
        assert_did(t, "d");
        connect_and_greet(t);
        sees(t, elsewhere_view(""));
        assert_int_equal(t->session.link, SESSION_LINK_DOWN);
        t->did[0] = 0;
    }
    assert_int_equal(t->session.end, SESSION_END_NONE);
}

/* A leader that was deposed and does not know it. */
static void test_an_older_term_is_not_obeyed(void **state)
{
    struct table *t = *state;
    struct session_view start = start_view(0), stop = {.kind = SESSION_VIEW_STOP, .generation = 0, .term = 6};

    come_up(t);
    start.term = 7;
    sees(t, start);
    assert_did(t, "Sr");
    sees(t, stop);
    assert_did(t, "cs");
    assert_non_null(
        strstr(t->session.text, "its term 6 is below 7; if etcd was restored: crund(8), RESTORING ETCD"));
    assert_int_equal(t->session.phase, SESSION_RUNNING);
    assert_int_equal(t->session.link, SESSION_LINK_DOWN);
    pass(t, 200, false);
    assert_did(t, "d");
    connect_and_greet(t);
    stop.term = 8;
    sees(t, stop);
    assert_did(t, "Xr");
}

/* ---- a cut ---- */

static uint32_t reported_cut(const struct table *t)
{
    struct session_report report;

    session_report(&t->session, t->now_ns, &report);
    return report.cut_from;
}

static void a_cut_is_reported_until_the_next_generation(void **state)
{
    struct table *t = *state;
    struct session_cause cause = session_cause_empty(SESSION_CAUSE_WORKER);
    struct session_view stop = {.kind = SESSION_VIEW_STOP};

    come_up(t);
    sees(t, start_view(0));
    assert_int_equal(reported_cut(t), 0);
    step(t, (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .cut_from = 3});
    assert_int_equal(reported_cut(t), 3);
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_int_equal(reported_cut(t), 3);
    sees(t, start_view(1));
    assert_int_equal(reported_cut(t), 0);
    stop.generation = 1;
    /* The first answer may be the one that settles the generation. */
    step(t, (struct session_event){.kind = SESSION_EVENT_VIEW, .view = &stop, .cut_from = 5});
    assert_int_equal(t->session.phase, SESSION_STOPPING);
    assert_int_equal(reported_cut(t), 5);
    step(t, (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause});
    assert_int_equal(reported_cut(t), 5);
    happens(t, SESSION_EVENT_GROUP_READY);
    sees(t, start_view(2));
    stop.generation = 2;
    sees(t, stop); /* found by workers that were being stopped */
    step(t, (struct session_event){.kind = SESSION_EVENT_GROUP_READY, .port = 4000, .cut_from = 7});
    assert_int_equal(reported_cut(t), 7);
}

/* ---- the lease ---- */

enum { LEASE_MS = 8000 };

static struct session_view leased(struct session_view view)
{
    view.lease_ms = LEASE_MS;
    return view;
}

static void renewed(struct table *t, uint32_t number)
{
    step(t, (struct session_event){.kind = SESSION_EVENT_RENEWED, .number = number});
}

/* Up, with a lease from the hello, running generation 0. */
static uint64_t run_leased(struct table *t)
{
    uint64_t hello_ns;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "d");
    connect_and_greet(t);
    hello_ns = t->now_ns;
    t->now_ns += 100 * MS;
    sees(t, leased(wait_view));
    sees(t, leased(start_view(0)));
    assert_did(t, "pSr");
    return hello_ns;
}

/* Signs of life are answered, renewals are not. */
static void pass_unrenewed(struct table *t, uint64_t until_ns)
{
    while (session_deadline(&t->session) <= until_ns) {
        if (session_deadline(&t->session) > t->now_ns)
            t->now_ns = session_deadline(&t->session);
        happens(t, SESSION_EVENT_TIMER);
        happens(t, SESSION_EVENT_ALIVE);
        if (strchr(t->did, 'F'))
            return;
        t->did[0] = 0;
    }
    t->now_ns = until_ns;
}

static void a_lease_counts_from_the_sending_of_what_was_answered(void **state)
{
    struct table *t = *state;
    uint64_t hello_ns = run_leased(t), renewal_ns;

    assert_true(session_lease_end(&t->session) == hello_ns + LEASE_MS * MS);
    pass(t, 100, false);
    assert_did(t, "n");
    renewal_ns = t->session.renewal_ns;
    t->now_ns += 200 * MS;
    happens(t, SESSION_EVENT_ALIVE);
    sees(t, leased((struct session_view){.kind = SESSION_VIEW_CONTINUE}));
    renewed(t, t->session.renewal + 1);
    assert_true(session_lease_end(&t->session) == hello_ns + LEASE_MS * MS); /* none of these answers it */
    renewed(t, t->session.renewal);
    assert_true(session_lease_end(&t->session) == renewal_ns + LEASE_MS * MS);
    renewed(t, t->session.renewal);
    pass_unrenewed(t, t->now_ns + 3000 * MS);
    assert_true(session_lease_end(&t->session) == renewal_ns + LEASE_MS * MS);
}

static void workers_are_stopped_before_the_lease_ends(void **state)
{
    struct table *t = *state;
    uint64_t hello_ns = run_leased(t);
    struct session_report report;

    pass_unrenewed(t, hello_ns + LEASE_MS * MS * 4 / 5 - MS);
    assert_did(t, "");
    assert_int_equal(t->session.phase, SESSION_RUNNING);
    pass_unrenewed(t, hello_ns + LEASE_MS * MS);
    assert_true(t->now_ns == hello_ns + LEASE_MS * MS * 4 / 5);
    assert_non_null(strstr(t->did, "Fr"));
    t->did[0] = 0;
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_STOPPING);
    assert_int_equal(report.cause.kind, SESSION_CAUSE_LOST);
    assert_string_equal(report.cause.host, "node0");
    assert_int_equal(report.cause.group_rank, 1);
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "r");
}

static void without_a_connection_the_lease_ends_as_well(void **state)
{
    struct table *t = *state;
    uint64_t hello_ns = run_leased(t);

    lost(t, "reset");
    while (session_deadline(&t->session) < hello_ns + LEASE_MS * MS * 4 / 5) {
        t->now_ns = session_deadline(&t->session);
        happens(t, SESSION_EVENT_TIMER);
        assert_null(strchr(t->did, 'F'));
        t->did[0] = 0;
    }
    assert_true(session_deadline(&t->session) == hello_ns + LEASE_MS * MS * 4 / 5);
    t->now_ns = session_deadline(&t->session);
    happens(t, SESSION_EVENT_TIMER);
    assert_int_equal(t->did[0], 'F');
}

static void a_view_of_the_last_connection_renews_nothing(void **state)
{
    struct table *t = *state;
    uint64_t hello_ns = run_leased(t);

    pass(t, 100, false);
    assert_did(t, "n");
    lost(t, "reset");
    t->now_ns += 50 * MS;
    happens(t, SESSION_EVENT_TIMER);
    t->did[0] = 0;
    connect_and_greet(t);
    renewed(t, t->session.renewal);
    assert_true(session_lease_end(&t->session) == hello_ns + LEASE_MS * MS);
    hello_ns = t->now_ns;
    t->now_ns += 70 * MS;
    sees(t, leased((struct session_view){.kind = SESSION_VIEW_CONTINUE}));
    assert_true(session_lease_end(&t->session) == hello_ns + LEASE_MS * MS);
}

static void a_start_after_the_lease_is_not_obeyed(void **state)
{
    struct table *t = *state;

    happens(t, SESSION_EVENT_START);
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "d");
    connect_and_greet(t);
    sees(t, leased(wait_view));
    assert_did(t, "p");
    pass_unrenewed(t, t->now_ns + LEASE_MS * MS);
    t->did[0] = 0;
    sees(t, leased(start_view(0)));
    assert_did(t, "cs");
    assert_int_equal(t->session.phase, SESSION_READY);
    happens(t, SESSION_EVENT_TIMER);
    assert_did(t, "d");
    connect_and_greet(t);
    sees(t, leased(start_view(0)));
    assert_did(t, "Sr");
}

static void workers_that_were_killed_for_the_lease_have_not_failed(void **state)
{
    struct table *t = *state;
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER, .rank = 3, .exit_code = -9};
    struct session_report report;

    (void)run_leased(t);
    t->now_ns += LEASE_MS * MS;
    step(t, (struct session_event){
                .kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = t->now_ns - 2 * MS});
    assert_did(t, "fr");
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_STOPPING);
    assert_int_equal(report.cause.kind, SESSION_CAUSE_LOST);
}

/* The reason was printed when it began to stop them. */
static void workers_that_were_killed_while_they_were_stopped_are_reported_once(void **state)
{
    struct table *t = *state;
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER, .rank = 3, .exit_code = -9};
    struct session_report report;

    pass_unrenewed(t, run_leased(t) + LEASE_MS * MS);
    assert_non_null(strstr(t->did, "Fr"));
    t->did[0] = 0;
    step(t, (struct session_event){
                .kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = t->now_ns - 2 * MS});
    assert_did(t, "r");
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_STOPPING);
    assert_int_equal(report.cause.kind, SESSION_CAUSE_LOST);
}

static void a_node_with_a_lease_has_left_when_its_workers_have_ended(void **state)
{
    struct table *t = *state;
    struct session_report report;

    (void)run_leased(t);
    step(t, (struct session_event){.kind = SESSION_EVENT_LEAVE, .text = "received SIGTERM"});
    assert_did(t, "r");
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_STOPPING);
    assert_int_equal(report.cause.kind, SESSION_CAUSE_LEFT);
    assert_string_equal(report.cause.text, "received SIGTERM");
    happens(t, SESSION_EVENT_GROUP_READY);
    assert_did(t, "");
    happens(t, SESSION_EVENT_GROUP_GONE);
    assert_did(t, "rc");
    session_report(&t->session, t->now_ns, &report);
    assert_int_equal(report.phase, SESSION_LEFT);
    assert_string_equal(report.cause.text, "received SIGTERM");
}

static void a_result_does_not_end_a_node_that_leaves_twice(void **state)
{
    struct table *t = *state;

    (void)run_leased(t);
    step(t, (struct session_event){.kind = SESSION_EVENT_LEAVE, .text = "received SIGTERM"});
    assert_did(t, "r");
    sees(t, leased((struct session_view){.kind = SESSION_VIEW_END, .verdict = SESSION_VERDICT_FAILURE}));
    assert_did(t, "rc");
    assert_int_equal(t->session.end, SESSION_END_NONE);
    happens(t, SESSION_EVENT_GROUP_GONE);
    assert_did(t, "");
}

static void with_a_lease_the_rendezvous_is_redialled_for_the_join_timeout(void **state)
{
    struct table *t = *state;
    uint64_t from_ns;

    t->session.cutoff_ns = 0;
    t->session.hello.params.join_timeout_ms = 100000;
    (void)run_leased(t);
    lost(t, "reset");
    from_ns = t->now_ns;
    while (t->session.end == SESSION_END_NONE) {
        t->now_ns = session_deadline(&t->session);
        happens(t, SESSION_EVENT_TIMER);
        t->did[0] = 0;
    }
    assert_int_equal(t->session.end, SESSION_END_UNREACHABLE);
    assert_true(t->now_ns == from_ns + 100000 * MS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_redirection_is_followed),
        TEST(test_redirections_have_a_pace),
        TEST(test_leaderless_crunds_are_no_silence),
        TEST(test_an_older_term_is_not_obeyed),
        TEST(a_cut_is_reported_until_the_next_generation),
        TEST(a_lease_counts_from_the_sending_of_what_was_answered),
        TEST(workers_are_stopped_before_the_lease_ends),
        TEST(without_a_connection_the_lease_ends_as_well),
        TEST(a_view_of_the_last_connection_renews_nothing),
        TEST(a_start_after_the_lease_is_not_obeyed),
        TEST(workers_that_were_killed_for_the_lease_have_not_failed),
        TEST(workers_that_were_killed_while_they_were_stopped_are_reported_once),
        TEST(a_node_with_a_lease_has_left_when_its_workers_have_ended),
        TEST(a_result_does_not_end_a_node_that_leaves_twice),
        TEST(with_a_lease_the_rendezvous_is_redialled_for_the_join_timeout),
        TEST(an_unfit_node_checks_again_when_it_is_asked_to),
        TEST(a_job_from_hello_to_its_end),
        TEST(an_own_failure_is_reported_with_its_age),
        TEST(the_text_of_a_failure_is_reported_behind_it),
        TEST(a_failure_elsewhere_stops_the_workers),
        TEST(the_barrier_may_fall),
        TEST(old_generations_are_not_listened_to),
        TEST(leaving_is_said_before_the_connection_is_closed),
        TEST(draining_is_asked_for_and_ordered_once),
        TEST(the_stop_of_a_job_is_reported_and_ends_the_others),
        TEST(a_quiet_node_is_reported_and_taken_back),
        TEST(draining_is_ordered_by_a_repeated_start),
        TEST(draining_is_ordered_by_the_first_start),
        TEST(a_refusal_is_the_end),
        TEST(signs_of_life_go_out_four_times_in_a_node_timeout),
        TEST(workers_live_on_while_the_rendezvous_is_away),
        TEST(a_rendezvous_that_stays_away_is_given_up),
        TEST(a_node_that_has_to_go_away_waits_5_s_for_a_rendezvous),
        TEST(nobody_there_is_said_and_tried_until_the_join_timeout),
        TEST(a_tcpstore_is_named_when_it_closes_on_our_opening),
        TEST(one_of_several_endpoints_that_closes_is_no_proof),
        TEST(a_crund_that_has_answered_stays_one),
        TEST(a_server_that_answers_the_opening_is_a_crund),
        TEST(another_kind_of_server_is_named_at_once),
        TEST(silence_is_said_within_five_seconds_and_tried_again),
        TEST(another_version_is_the_end),
        TEST(a_stranger_on_a_lost_endpoint_does_not_end_a_running_job),
        TEST(what_happened_meanwhile_is_in_the_next_hello),
        TEST(our_own_absence_is_not_the_rendezvous_fault),
        TEST(signs_of_life_go_out_from_the_hello_on),
        TEST(a_rendezvous_that_answers_signs_of_life_is_there),
        TEST(a_slow_network_is_waited_for),
        TEST(a_silent_leader_is_left_when_its_lease_has_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
