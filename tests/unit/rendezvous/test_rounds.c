/*
 * The rounds core, as conversations in virtual time: what agents say, and what each is told.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/utf8.h"
#include "base/err.h"
#include "rendezvous/rounds/rounds.h"

#include "tests/support/c/cmocka_fixed.h"

#define MS UINT64_C(1000000)

enum { AGENTS_MAX = 16 };

struct agent {
    struct rounds_conn session;
    struct session_hello hello;
    struct session_view view; /* the last one */
    bool is_of_job;           /* it depends on the state of a job */
    unsigned n_views, n_alive;
    uint32_t renewed; /* the last number */
    bool closed;
};

struct table {
    struct rounds rounds;
    struct agent agents[AGENTS_MAX];
    uint64_t now_ns;
    struct session_params params;
    uint64_t owner;       /* of the next hello */
    unsigned log_kinds;   /* all there were */
    bool saved;           /* since the last news */
    bool started_unsaved; /* somebody was told to start before the generation was on disk */
    bool forgotten;
};

/* ---- the table ---- */

static int set_up(void **state)
{
    struct table *t = calloc(1, sizeof(*t));
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;

    if (!t)
        return -1;
    config.seed = 42;
    t->now_ns = 1000000 * MS;
    t->params = (struct session_params)SESSION_PARAMS_DEFAULT;
    t->params.node_timeout_ms = 1000;
    rounds_init(&t->rounds, &config);
    for (unsigned i = 0; i < AGENTS_MAX; i++)
        rounds_conn_init(&t->agents[i].session);
    *state = t;
    return 0;
}

static int tear_down(void **state)
{
    struct table *t = *state;

    rounds_finish(&t->rounds);
    free(t);
    return 0;
}

static void take(struct table *t, const struct rounds_action *action)
{
    struct agent *a = action->session ? list_entry(action->session, struct agent, session) : NULL;

    switch (action->kind) {
    case ROUNDS_DO_SAVE:
        t->saved = true;
        break;
    case ROUNDS_DO_REPORT:
        t->log_kinds |= action->log_kinds;
        break;
    case ROUNDS_DO_SEND:
        a->view = action->view;
        a->is_of_job = action->job != NULL;
        a->n_views++;
        t->started_unsaved = t->started_unsaved || (action->view.kind == SESSION_VIEW_START && !t->saved);
        break;
    case ROUNDS_DO_ALIVE:
        a->n_alive++;
        break;
    case ROUNDS_DO_RENEWED:
        a->renewed = action->number;
        break;
    case ROUNDS_DO_CLOSE:
        a->closed = true;
        break;
    case ROUNDS_DO_FORGET:
        t->forgotten = true;
        break;
    case ROUNDS_ACTION_COUNT:
        break;
    }
}

static void step(struct table *t, struct rounds_event event)
{
    struct rounds_action action;

    event.now_ns = t->now_ns;
    t->saved = false;
    rounds_step(&t->rounds, &event);
    while (rounds_next(&t->rounds, &action))
        take(t, &action);
}

/* Time passes; the timer fires whenever it is wanted. */
static void pass(struct table *t, unsigned ms)
{
    uint64_t until_ns = t->now_ns + ms * MS;

    while (rounds_deadline(&t->rounds) <= until_ns) {
        if (rounds_deadline(&t->rounds) > t->now_ns)
            t->now_ns = rounds_deadline(&t->rounds);
        step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
        assert_true(rounds_deadline(&t->rounds) > t->now_ns); /* or it would never sleep */
    }
    t->now_ns = until_ns;
}

static void alive(struct table *t, unsigned i)
{
    step(t, (struct rounds_event){.kind = ROUNDS_ALIVE, .session = &t->agents[i].session});
}

/* Time passes, and these agents (a bit each) are heard four times a second. */
static void pass_alive(struct table *t, unsigned ms, unsigned agents)
{
    for (unsigned at = 0; at < ms; at += 250) {
        for (unsigned i = 0; i < AGENTS_MAX; i++)
            if (agents & 1u << i)
                alive(t, i);
        pass(t, ms - at < 250 ? ms - at : 250);
    }
}

static struct session_hello *prepare(struct table *t, unsigned i)
{
    struct session_hello *h = &t->agents[i].hello;

    *h = (struct session_hello){
        .job = "job",
        .params = t->params,
        .nonce = {7, i + 1},
        .role = "default",
        .n_workers = 2,
        .node_rank = -1,
        .report = {.phase = SESSION_READY, .generation = -1, .group_rank = -1, .port = (uint16_t)(4000 + i)}};
    (void)snprintf(h->host, sizeof(h->host), "node%u", i);
    return h;
}

static void hello(struct table *t, unsigned i)
{
    char peer[32];

    (void)snprintf(peer, sizeof(peer), "10.0.0.%u", i + 1);
    t->agents[i].hello.attempt++;
    t->agents[i].closed = false;
    rounds_conn_init(&t->agents[i].session);
    step(t, (struct rounds_event){.kind = ROUNDS_HELLO,
                                  .session = &t->agents[i].session,
                                  .hello = &t->agents[i].hello,
                                  .peer = peer,
                                  .local = "10.0.0.100",
                                  .owner = t->owner});
}

static void join(struct table *t, unsigned i)
{
    (void)prepare(t, i);
    hello(t, i);
}

/* Also remembered for the next hello. */
static void say(struct table *t, unsigned i, enum session_phase phase)
{
    struct session_report *r = &t->agents[i].hello.report;

    r->phase = phase;
    if (t->agents[i].view.kind == SESSION_VIEW_START) {
        r->instance = t->agents[i].view.instance;
        r->generation = t->agents[i].view.generation;
        r->group_rank = (int32_t)t->agents[i].view.place.group_rank;
    }
    step(t, (struct rounds_event){.kind = ROUNDS_REPORT, .session = &t->agents[i].session, .report = r});
}

static void fail_worker(struct table *t, unsigned i, unsigned ago_ms)
{
    struct session_report *r = &t->agents[i].hello.report;

    r->cause = (struct session_cause){.kind = SESSION_CAUSE_WORKER,
                                      .group_rank = -1,
                                      .local_rank = 1,
                                      .exit_code = 3,
                                      .rank = (int32_t)t->agents[i].view.place.rank_base + 1};
    r->age_ns = ago_ms * MS;
    say(t, i, SESSION_FAILED);
    r->cause = session_cause_empty(SESSION_CAUSE_NONE);
    r->age_ns = 0;
}

static void lose_connection(struct table *t, unsigned i)
{
    step(t, (struct rounds_event){.kind = ROUNDS_DISCONNECTED, .session = &t->agents[i].session});
}

/* The agent, or something on the way to it, has closed the connection in order. */
static void close_connection(struct table *t, unsigned i)
{
    step(t, (struct rounds_event){
                .kind = ROUNDS_DISCONNECTED, .session = &t->agents[i].session, .orderly = true});
}

static void assert_view(const struct table *t, unsigned i, enum session_view_kind kind)
{
    if (t->agents[i].view.kind != kind)
        fail_msg("agent %u is told '%s', not '%s'", i, session_view_names[t->agents[i].view.kind],
                 session_view_names[kind]);
}

static void assert_started(const struct table *t, unsigned i, int64_t generation, unsigned group_rank,
                           unsigned n)
{
    assert_view(t, i, SESSION_VIEW_START);
    assert_int_equal(t->agents[i].view.generation, generation);
    assert_int_equal(t->agents[i].view.place.group_rank, group_rank);
    assert_int_equal(t->agents[i].view.place.group_world_size, n);
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' does not say '%s'", text, part);
}

/* Nodes 0 to n-1 run generation 0 of a job of min to max nodes. */
static void run(struct table *t, unsigned n, unsigned min, unsigned max)
{
    t->params.min_nodes = min;
    t->params.max_nodes = max;
    for (unsigned i = 0; i < n; i++)
        join(t, i);
    if (n < max)
        pass_alive(t, t->params.last_call_ms, (1u << n) - 1);
    for (unsigned i = 0; i < n; i++) {
        assert_started(t, i, 0, i, n);
        say(t, i, SESSION_RUNNING);
    }
}

/* What agents do that are told to stop: workers stop, and they are ready. */
static void obey(struct table *t, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (t->agents[i].view.kind == SESSION_VIEW_STOP)
            say(t, i, SESSION_READY);
}

/* ---- gathering ---- */

static void a_round_of_fixed_size_forms_when_the_last_node_is_there(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 0);
    join(t, 1);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    assert_int_equal(t->agents[1].view.n_ready, 2);
    assert_int_equal(t->agents[1].view.max_nodes, 3);
    join(t, 2);
    for (unsigned i = 0; i < 3; i++) {
        assert_started(t, i, 0, i, 3);
        assert_int_equal(t->agents[i].view.place.rank_base, 2 * i);
        assert_int_equal(t->agents[i].view.place.world_size, 6);
        assert_string_equal(t->agents[i].view.place.master_addr, "10.0.0.1");
        assert_int_equal(t->agents[i].view.place.master_port, 4000);
        assert_int_equal(t->agents[i].view.cause.kind, SESSION_CAUSE_NONE);
    }
    assert_false(t->started_unsaved);
}

static void the_last_call_waits_for_more_than_min(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = 2;
    t->params.max_nodes = 4;
    join(t, 0);
    pass_alive(t, 40000, 1);
    join(t, 1);
    pass_alive(t, 29750, 3);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 250, 3);
    assert_started(t, 0, 0, 0, 2);
}

static void the_last_call_ends_when_all_expected_nodes_are_there(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = 2;
    t->params.max_nodes = 4;
    join(t, 0);
    step(t, (struct rounds_event){.kind = ROUNDS_EXPECT, .number = 9});
    join(t, 1);
    step(t, (struct rounds_event){.kind = ROUNDS_EXPECT, .number = 3});
    assert_view(t, 0, SESSION_VIEW_WAIT);
    step(t, (struct rounds_event){.kind = ROUNDS_EXPECT, .number = 2});
    assert_started(t, 0, 0, 0, 2);
}

static void the_last_call_begins_anew_when_a_node_is_lost(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = 2;
    t->params.max_nodes = 4;
    join(t, 0);
    join(t, 1);
    pass_alive(t, 29000, 1); /* the other one is dead after a second */
    join(t, 2);
    pass_alive(t, 5000, 5);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 25000, 5);
    assert_started(t, 0, 0, 0, 2);
    assert_started(t, 2, 0, 1, 2);
}

static void nobody_is_waited_for_beyond_the_join_timeout(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    t->params.join_timeout_ms = 5000;
    join(t, 0);
    pass_alive(t, 5000, 1);
    assert_view(t, 0, SESSION_VIEW_END);
    assert_int_equal(t->agents[0].view.verdict, SESSION_VERDICT_FAILURE);
    assert_contains(t->agents[0].view.cause.text, "1 of at least 2 nodes");
}

static void a_last_call_may_go_on_beyond_the_join_timeout(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = 2;
    t->params.max_nodes = 4;
    t->params.join_timeout_ms = 5000;
    join(t, 0);
    pass_alive(t, 4000, 1);
    join(t, 1);
    pass_alive(t, 29750, 3);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 250, 3);
    assert_started(t, 0, 0, 0, 2);
}

static void who_waits_is_told_once_a_second_how_many_there_are(void **state)
{
    struct table *t = *state;
    unsigned n_views;

    t->params.min_nodes = t->params.max_nodes = 4;
    for (unsigned i = 0; i < 3; i++) {
        prepare(t, i)->node_rank = i < 2 ? (int32_t)i : 3;
        hello(t, i);
    }
    n_views = t->agents[0].n_views;
    pass_alive(t, 3000, 7);
    assert_int_equal(t->agents[0].n_views, n_views + 3);
    assert_int_equal(t->agents[0].view.n_ready, 3);
    assert_int_equal(t->agents[0].view.n_missing, 1);
    assert_int_equal(t->agents[0].view.missing[0], 2);
    assert_true(t->log_kinds & ROUNDS_LOG_PROGRESS);
}

static void begin_job(struct table *t, unsigned i, const char *id, uint64_t owner)
{
    (void)prepare(t, i);
    text_copy(t->agents[i].hello.job, sizeof(t->agents[i].hello.job), id);
    t->owner = owner;
    hello(t, i);
}

/* An owner begins two jobs, another one and agents that have proved something are not concerned; the end of one of the jobs makes
 * room. Nodes that join a job are not counted. */
static void an_owner_has_so_many_jobs(void **state)
{
    struct table *t = *state;

    t->rounds.config.max_jobs_each = 2;
    t->params.min_nodes = t->params.max_nodes = 2;
    begin_job(t, 0, "a", 7);
    begin_job(t, 1, "b", 7);
    begin_job(t, 2, "c", 7);
    assert_view(t, 2, SESSION_VIEW_REFUSED);
    assert_non_null(
        strstr(t->agents[2].view.cause.text, "has 2 jobs without a secret at the rendezvous already"));
    begin_job(t, 3, "c", 8);
    assert_view(t, 3, SESSION_VIEW_WAIT);
    begin_job(t, 4, "d", 0);
    assert_view(t, 4, SESSION_VIEW_WAIT);
    begin_job(t, 5, "e", 0);
    assert_view(t, 5, SESSION_VIEW_WAIT);
    begin_job(t, 6, "d", 7);
    assert_view(t, 6, SESSION_VIEW_START);
}

static void time_outs_of_an_owner_are_bounded(void **state)
{
    static const struct {
        uint32_t node_timeout_ms, join_timeout_ms, last_call_ms;
        uint64_t owner;
        const char *refusal; /* NULL: accepted */
    } rows[] = {
        {1000, 60000, 60000, 7, NULL},
        {1001, 60000, 1, 7, "node_timeout_ms is 1001"},
        {1000, 60001, 1, 7, "takes at most 60 s"},
        {1000, 1, 60001, 7, "takes at most 60 s"},
        {5000, 90000, 90000, 0, NULL},
    };
    struct table *t = *state;

    t->rounds.config.max_node_timeout_ms = 1000;
    t->rounds.config.max_wait_ms = 60000;
    for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
        char id[] = {(char)('a' + i), 0};

        t->params.min_nodes = t->params.max_nodes = 2;
        t->params.node_timeout_ms = rows[i].node_timeout_ms;
        t->params.join_timeout_ms = rows[i].join_timeout_ms;
        t->params.last_call_ms = rows[i].last_call_ms;
        begin_job(t, i, id, rows[i].owner);
        assert_view(t, i, rows[i].refusal ? SESSION_VIEW_REFUSED : SESSION_VIEW_WAIT);
        if (rows[i].refusal)
            assert_non_null(strstr(t->agents[i].view.cause.text, rows[i].refusal));
    }
}

/* Parameters that are kinds are named by words on both sides. */
static void nodes_of_another_kind_are_refused_by_name(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 3;
    t->params.local_store = 1;
    join(t, 0);
    t->params.local_store = 0;
    join(t, 1);
    assert_view(t, 1, SESSION_VIEW_REFUSED);
    assert_non_null(
        strstr(t->agents[1].view.cause.text,
               "the worker store (--worker-store, --seal) is local in the job and shared on this node"));
    t->params.local_store = t->params.foreign = 1;
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_REFUSED);
    assert_non_null(
        strstr(t->agents[2].view.cause.text, "the launcher is crun in the job and torchrun with"));
}

/* An agent shows that with the numbers, so that a node that waits in vain finds the reason. */
static void waiting_nodes_are_sent_names_time_and_what_else_is_there(void **state)
{
    struct table *t = *state;
    const struct session_waiting *waiting = &t->agents[0].view.waiting;

    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 0);
    join(t, 1);
    prepare(t, 2);
    text_copy(t->agents[2].hello.job, sizeof(t->agents[2].hello.job), "none");
    hello(t, 2);
    t->params.max_restarts = 7;
    join(t, 3);
    t->params.max_restarts = 0;
    assert_view(t, 3, SESSION_VIEW_REFUSED);
    pass_alive(t, 2000, 7);
    assert_string_equal(waiting->present, "node0, node1");
    assert_string_equal(waiting->other_jobs, "'none'");
    assert_string_equal(waiting->refused, "node3: max-restarts is 0 in the job and 7 there");
    assert_in_range(waiting->left_ms, t->params.join_timeout_ms - 3000, t->params.join_timeout_ms - 1000);
    assert_string_equal(t->agents[2].view.waiting.present, "node2");
    assert_string_equal(t->agents[2].view.waiting.other_jobs, "'job'");
}

static void names_of_many_nodes_are_cut(void **state)
{
    struct table *t = *state;
    const char *present = t->agents[0].view.waiting.present;

    t->params.min_nodes = t->params.max_nodes = 8;
    for (unsigned i = 0; i < 4; i++) {
        prepare(t, i);
        memset(t->agents[i].hello.host, 'a' + (int)i, 90);
        t->agents[i].hello.host[90] = 0;
        hello(t, i);
    }
    pass_alive(t, 1000, 15);
    assert_int_equal(strlen(present), 90 + 2 + 90 + strlen(", ..."));
    assert_string_equal(present + 182, ", ...");
}

static void only_an_agent_that_is_ready_counts(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    prepare(t, 0)->report.phase = SESSION_STOPPING;
    hello(t, 0);
    join(t, 1);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    assert_int_equal(t->agents[1].view.n_ready, 1);
    say(t, 0, SESSION_READY);
    assert_view(t, 0, SESSION_VIEW_START);
    assert_view(t, 1, SESSION_VIEW_START);
}

/* ---- ranks ---- */

static void hosts_are_ordered_as_people_count(void **state)
{
    static const char *const hosts[] = {"node10", "node2", "node1", "node02b"};
    static const unsigned ranks[] = {3, 1, 0, 2};
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 4;
    for (unsigned i = 0; i < 4; i++) {
        text_copy(prepare(t, i)->host, SESSION_HOST_SIZE, hosts[i]);
        hello(t, i);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_started(t, i, 0, ranks[i], 4);
}

static void a_node_rank_is_a_wish(void **state)
{
    static const int wishes[] = {2, -1, 2, 0};
    static const unsigned ranks[] = {2, 3, 1,
                                     0}; /* the third comes too late for 2 and gets what is left first */
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 4;
    for (unsigned i = 0; i < 4; i++) {
        prepare(t, i)->node_rank = wishes[i];
        hello(t, i);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_started(t, i, 0, ranks[i], 4);
}

static void roles_and_sizes_differ_between_nodes(void **state)
{
    static const struct {
        const char *role;
        unsigned n, rank_base, role_rank_base, role_world_size;
    } nodes[] = {
        {"train", 8, 0, 0, 11}, {"read", 1, 8, 0, 3},    {"train", 1, 9, 8, 11},
        {"read", 2, 10, 1, 3},  {"train", 2, 12, 9, 11},
    };
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = ARRAY_SIZE(nodes);
    for (unsigned i = 0; i < ARRAY_SIZE(nodes); i++) {
        struct session_hello *h = prepare(t, i);

        text_copy(h->role, sizeof(h->role), nodes[i].role);
        h->n_workers = nodes[i].n;
        hello(t, i);
    }
    for (unsigned i = 0; i < ARRAY_SIZE(nodes); i++) {
        const struct rank_assignment *place = &t->agents[i].view.place;

        assert_started(t, i, 0, i, ARRAY_SIZE(nodes));
        assert_int_equal(place->rank_base, nodes[i].rank_base);
        assert_int_equal(place->world_size, 14);
        assert_int_equal(place->role_rank_base, nodes[i].role_rank_base);
        assert_int_equal(place->role_world_size, nodes[i].role_world_size);
    }
}

static void survivors_keep_their_ranks(void **state)
{
    struct table *t = *state;

    run(t, 4, 2, 4);
    pass_alive(t, 1500, 0xD); /* node 1 is lost */
    obey(t, 4);
    assert_started(t, 0, 1, 0, 3);
    assert_started(t, 2, 1, 2, 3);
    assert_started(t, 3, 1, 1, 3); /* there is no rank 3 any more */
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LOST);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
    for (unsigned i = 0; i < 4; i++)
        if (i != 1)
            say(t, i, SESSION_RUNNING);
    t->agents[1].hello.report = (struct session_report){.phase = SESSION_READY,
                                                        .instance = t->agents[0].view.instance,
                                                        .generation = 0,
                                                        .group_rank = 1,
                                                        .port = 4001};
    hello(t, 1); /* it comes back; its place is taken */
    obey(t, 4);
    assert_started(t, 1, 2, 3, 4);
    assert_started(t, 3, 2, 1, 4);
}

static void the_master_is_called_what_others_can_reach(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    (void)prepare(t, 0);
    t->agents[0].hello.attempt = 1;
    step(t, (struct rounds_event){.kind = ROUNDS_HELLO,
                                  .session = &t->agents[0].session,
                                  .hello = &t->agents[0].hello,
                                  .peer = "127.0.0.1",
                                  .local = "127.0.1.1"});
    join(t, 1);
    assert_string_equal(t->agents[1].view.place.master_addr,
                        "10.0.0.100"); /* where node 1 found the daemon */
}

/* A hello over a connection between these two addresses. */
static void join_between(struct table *t, unsigned i, const char *peer, const char *local, const char *own)
{
    struct session_hello *h = prepare(t, i);

    h->attempt = 1;
    text_copy(h->own, sizeof(h->own), own);
    rounds_conn_init(&t->agents[i].session);
    step(t, (struct rounds_event){.kind = ROUNDS_HELLO,
                                  .session = &t->agents[i].session,
                                  .hello = h,
                                  .peer = peer,
                                  .local = local});
}

/* The host of the rendezvous dials the one of its two addresses that its own name resolves to. */
static void the_master_has_the_address_at_which_others_found_its_machine(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    join_between(t, 0, "10.9.0.1", "10.9.0.1", "10.9.0.1");
    join_between(t, 1, "10.0.0.2", "10.0.0.1", "10.0.0.2");
    assert_string_equal(t->agents[1].view.place.master_addr, "10.0.0.1");
}

static void nodes_behind_one_nat_are_told_apart_and_meet_behind_it(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    join_between(t, 0, "10.0.0.7", "10.0.0.100", "192.168.1.1");
    join_between(t, 1, "10.0.0.7", "10.0.0.100", "192.168.1.2");
    assert_int_equal(t->agents[0].view.kind, SESSION_VIEW_START);
    assert_int_equal(t->agents[1].view.place.group_rank, 1);
    assert_string_equal(t->agents[1].view.place.master_addr, "192.168.1.1");
}

static void a_nat_that_is_not_everybodys_hides_no_address(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 3;
    join_between(t, 0, "10.0.0.7", "10.0.0.100", "192.168.1.1");
    join_between(t, 1, "10.0.0.7", "10.0.0.100", "192.168.1.2");
    join_between(t, 2, "10.0.0.8", "10.0.0.100", "10.0.0.8");
    assert_string_equal(t->agents[2].view.place.master_addr, "10.0.0.7");
}

static void a_local_address_is_taken_as_it_is(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    text_copy(prepare(t, 0)->addr, SESSION_ADDR_SIZE, "ib0.node0");
    hello(t, 0);
    join(t, 1);
    assert_string_equal(t->agents[1].view.place.master_addr, "ib0.node0");
}

/* ---- failures ---- */

static void a_failure_is_told_to_everybody_at_once_and_charged_once(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 1;
    run(t, 3, 3, 3);
    fail_worker(t, 1, 0);
    for (unsigned i = 0; i < 3; i++)
        assert_view(t, i, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[0].view.cause.rank, 3);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
    assert_int_equal(t->agents[0].view.cause.exit_code, 3);
    say(t, 0, SESSION_STOPPING);
    fail_worker(t, 2, 0); /* it followed from the first */
    obey(t, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_started(t, i, 1, i, 3);
        assert_int_equal(t->agents[i].view.restarts, 1);
        assert_int_equal(t->agents[i].view.changes, 0);
    }
    assert_false(t->started_unsaved);
}

static void the_last_failure_is_final_for_everybody(void **state)
{
    struct table *t = *state;

    run(t, 3, 3, 3);
    fail_worker(t, 2, 0);
    say(t, 0, SESSION_STOPPING);
    assert_view(t, 0, SESSION_VIEW_STOP); /* node 1 may still know of something earlier */
    say(t, 1, SESSION_STOPPING);
    for (unsigned i = 0; i < 3; i++) {
        assert_view(t, i, SESSION_VIEW_END);
        assert_int_equal(t->agents[i].view.verdict, SESSION_VERDICT_FAILURE);
        assert_int_equal(t->agents[i].view.cause.rank, 5);
        assert_string_equal(t->agents[i].view.cause.host, "node2");
    }
    assert_true(t->log_kinds & ROUNDS_LOG_CLOSED);
}

static void what_no_restart_helps_against_is_final(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 5;
    run(t, 1, 1, 1);
    t->agents[0].hello.report.cause.fatal = true;
    say(t, 0, SESSION_FAILED);
    assert_view(t, 0, SESSION_VIEW_END);
}

static void the_first_failure_in_time_is_the_cause(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    fail_worker(t, 0, 0);
    fail_worker(t, 1, 5); /* heard of later, and earlier */
    assert_view(t, 0, SESSION_VIEW_END);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
}

static void fail_with_text(struct table *t, unsigned i, const char *text)
{
    text_copy(t->agents[i].hello.report.cause.text, sizeof(t->agents[i].hello.report.cause.text), text);
    say(t, i, SESSION_FAILED);
}

static void the_text_of_a_failure_may_follow_it(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 1;
    run(t, 2, 2, 2);
    fail_worker(t, 0, 0);
    say(t, 1, SESSION_READY); /* which decides the end of the generation */
    t->agents[0].hello.report.cause = session_cause_empty(SESSION_CAUSE_WORKER);
    t->agents[0].hello.report.cause.rank = 0;
    fail_with_text(t, 0, "of another rank");
    t->agents[0].hello.report.cause.rank = 1;
    fail_with_text(t, 0, "boom");
    fail_with_text(t, 0, "another text");
    say(t, 0, SESSION_READY);
    assert_started(t, 1, 1, 1, 2);
    assert_string_equal(t->agents[1].view.cause.text, "boom");
    assert_int_equal(t->agents[1].view.restarts, 1);
}

static void a_failure_that_follows_from_a_lost_node_is_not_charged(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 0;
    run(t, 3, 2, 3);
    pass_alive(t, 500, 3); /* node 2 is silent */
    fail_worker(t, 0, 0);
    say(t, 1, SESSION_READY);
    say(t, 0, SESSION_READY);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 750, 3);
    assert_started(t, 0, 1, 0, 2);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LOST);
    assert_int_equal(t->agents[0].view.restarts, 0);
    assert_int_equal(t->agents[0].view.changes, 1);
}

static void a_silent_node_is_lost_after_its_timeout(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    pass_alive(t, 500, 3);
    pass_alive(t, 500, 1);
    assert_view(t, 0, SESSION_VIEW_START);
    pass_alive(t, 500, 1);
    assert_view(t, 0, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LOST);
    assert_true(t->agents[1].closed);
}

/* Asks at the moment when silent nodes are taken for dead, and says of these (a bit each) that it is the network. */
static size_t extend_slow_sessions(struct table *t, unsigned agents, uint64_t slack_ns)
{
    struct rounds_conn *overdue[AGENTS_MAX];
    size_t n = rounds_overdue(&t->rounds, t->now_ns, overdue, AGENTS_MAX);

    for (size_t i = 0; i < n; i++)
        if (agents & 1u << (list_entry(overdue[i], struct agent, session) - t->agents))
            step(t, (struct rounds_event){.kind = ROUNDS_SLOW, .session = overdue[i], .slack_ns = slack_ns});
    return n;
}

static void a_node_whose_words_are_on_the_way_is_not_lost_yet(void **state)
{
    struct table *t = *state;

    run(t, 3, 1, 3);
    pass(t, 999);
    assert_int_equal(extend_slow_sessions(t, 0, UINT64_MAX), 0);
    t->now_ns += MS;
    assert_int_equal(extend_slow_sessions(t, 4, UINT64_MAX), 3);
    alive(t, 0);
    pass_alive(t, 250, 1);
    assert_view(t, 0, SESSION_VIEW_STOP); /* node 1 is really gone */
    assert_string_equal(t->agents[0].view.cause.host, "node1");
    assert_false(t->agents[2].closed);
    alive(t, 2);
    pass_alive(t, 900, 1);
    assert_false(t->agents[2].closed); /* it has been heard, and has its whole time again */
    pass_alive(t, 100, 1);
    assert_true(t->agents[2].closed);
}

static void nobody_is_slow_for_ever(void **state)
{
    struct table *t = *state;
    unsigned ms = 0;

    run(t, 2, 1, 2);
    for (; ms < 5000 && !t->agents[1].closed; ms += 250) {
        t->now_ns += 250 * MS;
        alive(t, 0);
        (void)extend_slow_sessions(t, 2, UINT64_MAX);
        step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    }
    assert_int_equal(ms, 3000);
}

static void who_is_slow_keeps_nobody_else_alive(void **state)
{
    struct table *t = *state;

    run(t, 4, 1, 4);
    for (unsigned i = 0; i < 4; i++) {
        alive(t, i);
        pass(t, 100);
    }
    t->now_ns += 600 * MS;
    alive(t, 3);
    assert_int_equal(extend_slow_sessions(t, 15, 500 * MS), 1); /* node 0 */
    pass(t, 499);
    assert_true(t->agents[1].closed && t->agents[2].closed);
    assert_false(t->agents[0].closed);
    pass(t, 1);
    assert_true(t->agents[0].closed);
    assert_false(t->agents[3].closed);
}

static void a_node_that_returns_in_time_goes_on(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    lose_connection(t, 1);
    pass_alive(t, 750, 1);
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_CONTINUE);
    pass_alive(t, 5000, 3);
    assert_view(t, 0, SESSION_VIEW_START);
    assert_false(t->log_kinds & ROUNDS_LOG_OVER);
}

static void a_node_that_returns_later_stops_and_joins(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    lose_connection(t, 1);
    pass_alive(t, 2000, 1);
    obey(t, 1);
    assert_started(t, 0, 1, 0, 1);
    say(t, 0, SESSION_RUNNING);
    hello(t, 1); /* running generation 0 */
    assert_view(t, 1, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[1].view.generation, 0);
    say(t, 1, SESSION_READY);
    assert_view(t, 0, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_JOINED);
    obey(t, 1);
    assert_started(t, 0, 2, 0, 2);
    assert_started(t, 1, 2, 1, 2);
}

static void below_min_survivors_wait_for_another_node(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    pass_alive(t, 1500, 1);
    assert_view(t, 0, SESSION_VIEW_STOP);
    obey(t, 1);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    assert_false(t->agents[0].view.standby);
    join(t, 5);
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 5, 1, 1, 2);
}

static void a_later_round_has_a_join_timeout_of_its_own(void **state)
{
    struct table *t = *state;

    t->params.join_timeout_ms = 5000;
    run(t, 2, 2, 2);
    pass_alive(t, 20000, 3);
    pass_alive(t, 1500, 1);
    obey(t, 1);
    pass_alive(t, 4000, 1);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 1500, 1);
    assert_view(t, 0, SESSION_VIEW_END);
}

static void members_that_stop_slowly_are_waited_for(void **state)
{
    struct table *t = *state;

    t->params.last_call_ms = 1000;
    t->params.max_restarts = 1;
    run(t, 3, 1, 3);
    fail_worker(t, 0, 0);
    say(t, 0, SESSION_READY);
    say(t, 1, SESSION_READY);
    say(t, 2, SESSION_STOPPING);
    pass_alive(t, 20000, 7);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    say(t, 2, SESSION_READY);
    assert_started(t, 0, 1, 0, 3);
}

static void a_start_that_crosses_a_stop_is_taken_back(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 1;
    t->params.min_nodes = t->params.max_nodes = 2;
    join(t, 0);
    join(t, 1);
    say(t, 0, SESSION_RUNNING);
    fail_worker(t, 0, 0);
    assert_view(t, 1, SESSION_VIEW_WAIT); /* it was ready when last heard */
    t->agents[1].view.kind = SESSION_VIEW_START;
    say(t, 1, SESSION_RUNNING); /* and starts now */
    assert_view(t, 1, SESSION_VIEW_STOP);
}

/* Two nodes were told to start generation 0, node 0 did not say a word about it, and the generation is over. */
static void end_before_node_0_starts(struct table *t)
{
    t->params.max_restarts = 1;
    t->params.min_nodes = t->params.max_nodes = 2;
    join(t, 0);
    join(t, 1);
    assert_started(t, 0, 0, 0, 2);
    assert_int_equal(t->agents[0].view.place.master_port, 4000);
    say(t, 1, SESSION_RUNNING);
    fail_worker(t, 1, 0);
    say(t, 1, SESSION_READY);
}

static void who_is_about_to_start_is_not_ready(void **state)
{
    struct table *t = *state;

    end_before_node_0_starts(t);
    pass_alive(t, 5000, 3);
    assert_true(t->log_kinds & ROUNDS_LOG_SETTLED);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    assert_int_equal(t->agents[1].view.n_ready, 1);
    say(t, 0, SESSION_READY); /* before it heard of its start */
    assert_view(t, 1, SESSION_VIEW_WAIT);
    t->agents[0].view.kind = SESSION_VIEW_START;
    say(t, 0, SESSION_RUNNING); /* now it did */
    assert_view(t, 0, SESSION_VIEW_STOP);
    t->agents[0].hello.report.port = 5000; /* the old one was used */
    say(t, 0, SESSION_READY);
    for (unsigned i = 0; i < 2; i++) {
        assert_started(t, i, 1, i, 2);
        assert_int_equal(t->agents[i].view.place.master_port, 5000);
    }
}

static void a_start_that_was_lost_with_its_connection_is_not_waited_for(void **state)
{
    struct table *t = *state;

    end_before_node_0_starts(t);
    lose_connection(t, 0);
    hello(t, 0); /* still ready, and has not heard of generation 0 */
    for (unsigned i = 0; i < 2; i++) {
        assert_started(t, i, 1, i, 2);
        assert_int_equal(t->agents[i].view.place.master_port, 4000);
    }
}

static void old_generations_change_nothing(void **state)
{
    struct table *t = *state;
    unsigned n_views;

    t->params.max_restarts = 5;
    run(t, 2, 2, 2);
    fail_worker(t, 0, 0);
    obey(t, 2);
    say(t, 0, SESSION_RUNNING);
    say(t, 1, SESSION_RUNNING);
    n_views = t->agents[0].n_views;
    t->agents[1].view.kind = SESSION_VIEW_WAIT; /* so that it names the old one */
    t->agents[1].hello.report.generation = 0;
    say(t, 1, SESSION_FAILED);
    say(t, 1, SESSION_DONE);
    assert_int_equal(t->agents[0].n_views, n_views);
    assert_view(t, 1, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[1].view.generation, 0);
}

/* ---- spares and newcomers ---- */

static void spares_stand_by_and_step_in(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    assert_true(t->agents[2].view.standby);
    assert_view(t, 0, SESSION_VIEW_START);
    pass_alive(t, 1500, 5); /* node 1 is lost */
    obey(t, 1);
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 2, 1, 1, 2);
    say(t, 0, SESSION_RUNNING);
    say(t, 2, SESSION_RUNNING);
    join(t, 3);
    say(t, 0, SESSION_DONE);
    say(t, 2, SESSION_DONE);
    for (unsigned i = 0; i < 4; i++)
        if (i != 1)
            assert_int_equal(t->agents[i].view.verdict, SESSION_VERDICT_SUCCESS);
}

static void changes_have_a_limit_of_their_own(void **state)
{
    struct table *t = *state;

    t->params.max_changes = 1;
    run(t, 2, 1, 3);
    join(t, 2);
    obey(t, 2);
    for (unsigned i = 0; i < 3; i++) {
        assert_started(t, i, 1, i, 3);
        assert_int_equal(t->agents[i].view.changes, 1);
        say(t, i, SESSION_RUNNING);
    }
    pass_alive(t, 1500, 3); /* node 2 is lost, and that was one too many */
    say(t, 0, SESSION_STOPPING);
    say(t, 1, SESSION_STOPPING);
    assert_int_equal(t->agents[0].view.verdict, SESSION_VERDICT_FAILURE);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LOST);
}

/* Node 2 joins, and is gone as soon as it has been admitted, for an hour: the workers of the others may be restarted for
 * that, but ever more rarely. */
static void a_node_that_comes_and_goes_is_admitted_ever_more_rarely(void **state)
{
    struct table *t = *state;
    uint32_t first_minute = 0;

    run(t, 2, 1, 3);
    for (unsigned s = 0; s < 3600; s++) {
        join(t, 2);
        obey(t, 3);
        for (unsigned i = 0; i < 3; i++)
            if (t->agents[i].view.kind == SESSION_VIEW_START)
                say(t, i, SESSION_RUNNING);
        say(t, 2, SESSION_LEFT);
        obey(t, 2);
        for (unsigned i = 0; i < 2; i++)
            if (t->agents[i].view.kind == SESSION_VIEW_START)
                say(t, i, SESSION_RUNNING);
        pass_alive(t, 1000, 3);
        first_minute = s == 59 ? t->agents[0].view.changes : first_minute;
    }
    assert_in_range(first_minute, 4, 2 * 7);
    assert_in_range(t->agents[0].view.changes, 20, 2 * (8 + 3600 / 256 + 1));
}

/* One that comes long after the last one does so at once, and several that come together cost one restart. */
static void a_newcomer_after_a_quiet_time_is_admitted_at_once(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 6);
    join(t, 2);
    obey(t, 2);
    assert_started(t, 2, 1, 2, 3);
    for (unsigned i = 0; i < 3; i++)
        say(t, i, SESSION_RUNNING);
    join(t, 3);
    join(t, 4);
    assert_view(t, 3, SESSION_VIEW_WAIT);
    pass_alive(t, 750, 31);
    assert_view(t, 0, SESSION_VIEW_START);
    pass_alive(t, 500, 31);
    obey(t, 3);
    assert_started(t, 4, 2, 4, 5);
    for (unsigned i = 0; i < 5; i++)
        say(t, i, SESSION_RUNNING);
    pass_alive(t, 10000, 31);
    join(t, 5);
    assert_view(t, 0, SESSION_VIEW_STOP);
}

static void without_changes_left_newcomers_stand_by(void **state)
{
    struct table *t = *state;

    t->params.max_changes = 0;
    run(t, 2, 1, 3);
    join(t, 2);
    assert_true(t->agents[2].view.standby);
    assert_view(t, 0, SESSION_VIEW_START);
}

/* ---- the end ---- */

static void the_barrier_waits_as_long_as_peers_live(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    say(t, 0, SESSION_DONE);
    pass_alive(t, 3600 * 1000, 3);
    assert_view(t, 0, SESSION_VIEW_START);
    join(t, 3); /* does not disturb a job that is about to end */
    say(t, 1, SESSION_DONE);
    for (unsigned i = 0; i < 2; i++) {
        assert_view(t, i, SESSION_VIEW_END);
        assert_int_equal(t->agents[i].view.verdict, SESSION_VERDICT_SUCCESS);
    }
}

static void a_node_that_goes_when_done_was_done(void **state)
{
    struct table *t = *state;

    run(t, 3, 3, 3);
    say(t, 0, SESSION_DONE);
    say(t, 1, SESSION_DONE);
    say(t, 1, SESSION_LEFT);
    pass_alive(t, 1500, 4); /* and node 0 is lost */
    assert_false(t->log_kinds & ROUNDS_LOG_OVER);
    say(t, 2, SESSION_DONE);
    assert_int_equal(t->agents[2].view.verdict, SESSION_VERDICT_SUCCESS);
}

static void a_failure_takes_the_barrier_down(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 1;
    run(t, 2, 2, 2);
    say(t, 0, SESSION_DONE);
    fail_worker(t, 1, 0);
    assert_view(t, 0, SESSION_VIEW_STOP);
    obey(t, 2);
    assert_started(t, 0, 1, 0, 2);
}

static void leaving_is_a_change_and_not_a_failure(void **state)
{
    struct table *t = *state;

    run(t, 3, 1, 3);
    text_copy(t->agents[2].hello.report.cause.text, SESSION_TEXT_SIZE, "received SIGTERM");
    say(t, 2, SESSION_LEFT);
    assert_true(t->agents[2].closed);
    assert_view(t, 0, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LEFT);
    assert_string_equal(t->agents[0].view.cause.text, "received SIGTERM");
    obey(t, 2);
    assert_started(t, 0, 1, 0, 2);
}

/* Agent i leaves by SIGTERM, and the whole job is to end. */
static void stop_job(struct table *t, unsigned i, enum session_phase phase)
{
    struct session_report *r = &t->agents[i].hello.report;

    text_copy(r->cause.text, sizeof(r->cause.text), "the job was stopped by SIGTERM");
    r->stop_signal = 15;
    say(t, i, phase);
}

static void assert_stopped(struct table *t, unsigned i, const char *text)
{
    const struct session_view *view = &t->agents[i].view;

    assert_view(t, i, SESSION_VIEW_END);
    assert_int_equal(view->verdict, SESSION_VERDICT_FAILURE);
    assert_int_equal(view->stop_signal, 15);
    assert_int_equal(view->cause.kind, SESSION_CAUSE_CLOSED);
    assert_string_equal(view->cause.text, text);
}

static void a_signal_to_all_ends_the_job_for_each_node(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 3;
    run(t, 3, 2, 3);
    join(t, 3); /* a spare */
    stop_job(t, 1, SESSION_LEFT);
    for (unsigned i = 0; i < 4; i++)
        if (i != 1)
            assert_stopped(t, i, "the job was stopped by SIGTERM at node1");
    assert_true(t->agents[1].closed && t->saved);
    fail_worker(t, 2, 0); /* an effect of the signal */
    stop_job(t, 3, SESSION_LEFT);
    assert_stopped(t, 0, "the job was stopped by SIGTERM at node1");
}

static void a_signal_to_all_ends_a_job_that_gathers(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 0);
    join(t, 1);
    t->agents[1].hello.report.stop_signal = 15;
    say(t, 1, SESSION_LEFT);
    assert_stopped(t, 0, "the job was stopped at node1");
}

/* With a lease the agent reports its end later. */
static void a_signal_to_all_reaches_an_agent_with_a_lease(void **state)
{
    struct table *t = *state;

    t->params.lease_ms = 5000;
    run(t, 2, 2, 2);
    stop_job(t, 0, SESSION_STOPPING);
    assert_stopped(t, 0, "the job was stopped by SIGTERM at node0");
    assert_stopped(t, 1, "the job was stopped by SIGTERM at node0");
}

static void an_effect_of_a_signal_to_all_may_arrive_first(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 3;
    run(t, 3, 3, 3);
    fail_worker(t, 2, 0);
    pass_alive(t, 750, 7);
    stop_job(t, 1, SESSION_LEFT);
    assert_stopped(t, 0, "the job was stopped by SIGTERM at node1");
}

static void a_failure_long_before_a_signal_to_all_is_the_cause(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 3;
    run(t, 3, 3, 3);
    fail_worker(t, 2, 0);
    pass_alive(t, 1000, 7);
    stop_job(t, 1, SESSION_LEFT);
    assert_view(t, 0, SESSION_VIEW_END);
    assert_int_equal(t->agents[0].view.stop_signal, 0);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_WORKER);
}

enum { GUARDIAN = AGENTS_MAX - 1 };

/* Agent i was killed; its guardian says so over a connection of its own. */
static void say_last_word(struct table *t, unsigned i)
{
    struct session_hello *h = &t->agents[GUARDIAN].hello;

    *h = t->agents[i].hello;
    h->report = (struct session_report){
        .phase = SESSION_LEFT, .generation = 0, .cause = {.kind = SESSION_CAUSE_LOST}};
    text_copy(h->report.cause.text, sizeof(h->report.cause.text), "it was killed");
    hello(t, GUARDIAN);
    assert_true(t->agents[GUARDIAN].closed);
    assert_int_equal(t->agents[GUARDIAN].n_views, 0);
}

static void a_last_word_ends_the_generation_at_once(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    lose_connection(t, 2);
    assert_view(t, 0, SESSION_VIEW_START); /* nobody is dead by that: an agent that was cut off dials again */
    say_last_word(t, 2);
    assert_view(t, 0, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LOST);
    assert_string_equal(t->agents[0].view.cause.text, "it was killed");
    obey(t, 2);
    assert_started(t, 0, 1, 0, 2);
}

static void a_last_word_may_come_before_the_end_of_the_old_connection(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    say_last_word(t, 2);
    assert_true(t->agents[2].closed);
    lose_connection(t, 2);
    assert_view(t, 0, SESSION_VIEW_STOP);
    obey(t, 2);
    assert_started(t, 0, 1, 0, 2);
}

static void what_followed_from_a_death_is_not_its_cause(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    pass_alive(t, 1000, 7);
    pass(t, 100);
    fail_worker(t, 0, 20); /* as its peer is gone */
    say(t, 1, SESSION_STOPPING);
    say_last_word(t, 2);
    say(t, 0, SESSION_READY);
    say(t, 1, SESSION_READY);
    assert_started(t, 0, 1, 0, 2);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LOST);
    assert_int_equal(t->agents[0].view.restarts, 0);
}

static void a_last_word_about_nobody_changes_nothing(void **state)
{
    struct table *t = *state;

    (void)prepare(t, 5);
    say_last_word(t, 5); /* of a job that nobody knows */
    assert_int_equal(t->rounds.n_jobs, 0);
    run(t, 3, 2, 3);
    say_last_word(t, 5);
    pass_alive(t, 2000, 7);
    assert_view(t, 0, SESSION_VIEW_START);
    assert_int_equal(t->rounds.n_nodes, 3);
}

static void a_job_that_everybody_left_is_forgotten(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    join(t, 0);
    say(t, 0, SESSION_LEFT);
    assert_true(t->forgotten);
    assert_int_equal(t->rounds.n_jobs, 0);
    assert_true(rounds_deadline(&t->rounds) > t->now_ns);
}

static void a_closed_job_says_why(void **state)
{
    struct table *t = *state;
    char text[300];

    run(t, 2, 1, 2);
    t->agents[0].hello.report.cause.fatal = true;
    fail_worker(t, 0, 0);
    say(t, 1, SESSION_STOPPING);
    assert_view(t, 1, SESSION_VIEW_END);
    lose_connection(t, 0);
    lose_connection(t, 1);
    hello(t, 1); /* it did not hear it */
    assert_view(t, 1, SESSION_VIEW_END);
    session_cause_describe(&t->agents[1].view.cause, text, sizeof(text));
    assert_string_equal(text, "rank 1 (local rank 1) on node0 failed with exit code 3");
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_REFUSED);
    assert_contains(t->agents[2].view.cause.text,
                    "job 'job' is over (failure: rank 1 (local rank 1) on node0");
    assert_true(t->agents[2].closed);
    lose_connection(t, 1);
    pass(t, 61000);
    assert_true(t->forgotten);
    join(t, 2); /* the name is free again */
    assert_view(t, 2, SESSION_VIEW_WAIT);
}

/* Both nodes of a job of fixed size are done and have been sent its result. */
static void run_to_success(struct table *t)
{
    run(t, 2, 2, 2);
    say(t, 0, SESSION_DONE);
    say(t, 1, SESSION_DONE);
    assert_view(t, 0, SESSION_VIEW_END);
}

static void a_closed_job_is_forgotten_when_all_agents_have_confirmed_its_end(void **state)
{
    struct table *t = *state;

    run_to_success(t);
    say(t, 0, SESSION_LEFT);
    assert_false(t->forgotten);
    say(t, 1, SESSION_LEFT);
    assert_true(t->forgotten);
}

static void an_end_that_was_lost_with_the_connection_is_sent_again(void **state)
{
    struct table *t = *state;

    run_to_success(t);
    say(t, 1, SESSION_LEFT);
    lose_connection(t, 0);
    assert_int_equal(t->rounds.n_nodes, 1); /* a rendezvous inside a crun waits for it, too */
    t->agents[0].view = (struct session_view){0};
    hello(t, 0);
    assert_view(t, 0, SESSION_VIEW_END);
    assert_int_equal(t->agents[0].view.verdict, SESSION_VERDICT_SUCCESS);
    lose_connection(t, 0);
    pass(t, 1000);
    assert_int_equal(t->rounds.n_nodes, 0); /* not for ever */
}

static void an_end_that_a_proxy_swallowed_is_sent_again(void **state)
{
    struct table *t = *state;

    run_to_success(t);
    close_connection(t, 0);
    close_connection(t, 1);
    assert_int_equal(t->rounds.n_nodes, 0);
    t->agents[0].view = (struct session_view){0};
    pass(t, 1000);
    hello(t, 0);
    assert_view(t, 0, SESSION_VIEW_END);
    assert_int_equal(t->agents[0].view.verdict, SESSION_VERDICT_SUCCESS);
}

/* The id of a job without nodes is free: another job may use it at once, with parameters of its own. */
static void assert_id_is_free(struct table *t)
{
    uint64_t instance = t->agents[0].view.instance;

    t->params.max_restarts = 7;
    t->params.min_nodes = t->params.max_nodes = 1;
    join(t, 2);
    assert_started(t, 2, 0, 0, 1);
    assert_true(t->agents[2].view.instance != instance);
    assert_int_equal(t->agents[2].view.restarts, 0);
    assert_int_equal(t->agents[2].view.changes, 0);
    assert_int_equal(t->rounds.n_jobs, 1);
}

static void the_id_of_a_job_that_has_ended_is_free(void **state)
{
    struct table *t = *state;

    run_to_success(t);
    close_connection(t, 0);
    close_connection(t, 1);
    assert_id_is_free(t);
}

/* ---- a job that has ended, beside the next one of its id ---- */

struct late_member_row {
    const char *name;
    bool fails;            /* the job ends with the failure of node 0 */
    unsigned away_ms;      /* from the end of the job until its late member returns */
    bool knows_generation; /* the late member; otherwise it is an agent of another run */
    enum session_view_kind view;
    enum session_verdict verdict;
};

/* Node 1 of a job of two has lost its connection when that ends. Node 2 begins another job of that id, and node 1 returns. */
static const struct late_member_row late_member_rows[] = {
    {"success, at once", false, 0, true, SESSION_VIEW_END, SESSION_VERDICT_SUCCESS},
    {"success, after 50 s", false, 50000, true, SESSION_VIEW_END, SESSION_VERDICT_SUCCESS},
    {"failure, after 5 s", true, 5000, true, SESSION_VIEW_END, SESSION_VERDICT_FAILURE},
    {"after the last moment at which an agent redials", false, 130000, true, SESSION_VIEW_STOP, 0},
    {"of another run", false, 5000, false, SESSION_VIEW_WAIT, 0},
};

static void end_without_node_1(struct table *t, const struct late_member_row *row)
{
    t->params.max_restarts = 0;
    run(t, 2, 2, 2);
    if (row->fails) {
        fail_worker(t, 0, 0);
        lose_connection(t, 1);
        pass_alive(t, 6000, 1);
    } else {
        say(t, 1, SESSION_DONE);
        lose_connection(t, 1);
        pass_alive(t, 2000, 1); /* lost, but it was done */
        say(t, 0, SESSION_DONE);
    }
    assert_view(t, 0, SESSION_VIEW_END);
    say(t, 0, SESSION_LEFT);
    assert_int_equal(t->rounds.n_nodes, 0);
}

static void check_late_member(struct table *t, const struct late_member_row *row)
{
    uint64_t instance;

    end_without_node_1(t, row);
    instance = t->agents[0].view.instance;
    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    assert_true(t->agents[2].view.instance != instance);
    pass_alive(t, row->away_ms, 4);
    if (!row->knows_generation)
        (void)prepare(t, 1);
    t->agents[1].hello.params = row->view == SESSION_VIEW_END ? t->agents[0].hello.params : t->params;
    t->agents[1].view = (struct session_view){0};
    hello(t, 1);
    assert_view(t, 1, row->view);
    assert_true((t->agents[1].view.instance == instance) == (row->view == SESSION_VIEW_END));
    assert_int_equal(t->agents[1].view.verdict, row->verdict);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    assert_int_equal(t->rounds.n_jobs, 1);
}

static void a_late_member_gets_the_result_of_its_own_job(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(late_member_rows); i++) {
        void *table;

        print_message("    %s\n", late_member_rows[i].name);
        assert_int_equal(set_up(&table), 0);
        check_late_member(table, &late_member_rows[i]);
        assert_int_equal(tear_down(&table), 0);
    }
    (void)state;
}

/* A job of variable size refuses late nodes for a minute; its tombstone lasts a minute from the loss of its last member. */
static void the_id_of_a_job_of_variable_size_is_free_after_a_minute(void **state)
{
    struct table *t = *state;
    uint64_t instance;

    run(t, 2, 1, 2);
    say(t, 0, SESSION_DONE);
    say(t, 1, SESSION_DONE);
    instance = t->agents[1].view.instance;
    say(t, 0, SESSION_LEFT);
    pass_alive(t, 40000, 2);
    close_connection(t, 1);
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_REFUSED);
    pass(t, 21000);
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    pass_alive(t, 20000, 4);
    t->agents[1].view = (struct session_view){0};
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_END);
    assert_int_equal(t->agents[1].view.instance, instance);
}

/* A node of fixed size that is cut off when its job ends, with that job's id used again and again. */
static void tombstones_have_bounds(void **state)
{
    struct table *t = *state;
    uint64_t first = 0;

    t->rounds.config.max_jobs = 3;
    for (unsigned i = 0; i < 10; i++) {
        run(t, 1, 1, 1);
        first = i == 0 ? t->agents[0].view.instance : first;
        say(t, 0, SESSION_DONE);
        close_connection(t, 0); /* without a confirmation */
        assert_int_equal(t->rounds.n_jobs, 1);
        assert_in_range(t->rounds.n_replaced, 0, 3);
    }
    assert_int_equal(t->rounds.n_replaced, 3);
    assert_true(t->forgotten);
    t->agents[0].hello.report.instance =
        first; /* the oldest is forgotten, and its agent is of the next job's id */
    hello(t, 0);
    assert_true(t->agents[0].view.instance != first);
    say(t, 0, SESSION_LEFT);
    pass(t, 121000);
    assert_int_equal(t->rounds.n_replaced, 0);
    assert_int_equal(t->rounds.n_jobs, 0);
}

static void a_death_notice_reaches_the_tombstone(void **state)
{
    struct table *t = *state;

    run_to_success(t);
    close_connection(t, 0);
    close_connection(t, 1);
    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 2);
    assert_true(t->saved); /* or a restarted daemon would take the id for used */
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_END);
    assert_int_equal(t->rounds.n_nodes, 2);
    say_last_word(t, 1);
    assert_int_equal(t->rounds.n_nodes, 1);
}

static void a_late_member_that_is_refused_does_not_end_the_tombstone(void **state)
{
    struct table *t = *state;

    run_to_success(t);
    close_connection(t, 0);
    close_connection(t, 1);
    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 2);
    t->rounds.config.max_nodes_all = 1;
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_REFUSED);
    t->rounds.config.max_nodes_all = 2;
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_END);
}

static void the_id_of_a_job_whose_nodes_are_all_lost_is_free(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    pass(t, 10000);
    assert_int_equal(t->rounds.n_nodes, 0);
    assert_int_equal(t->rounds.n_jobs, 1);
    assert_id_is_free(t);
}

static void an_agent_that_returns_after_all_were_lost_keeps_the_job(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    pass(t, 10000);
    hello(t, 0); /* with the generation it runs */
    assert_view(t, 0, SESSION_VIEW_STOP);
    t->params.max_restarts = 7;
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_REFUSED);
}

/* A rendezvous that has lost its state. If it finds that again, it does not blame a worker for this end. */
static void a_generation_that_is_not_known_is_stopped_for_that_reason(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    struct session_report *r = &prepare(t, 0)->report;
    r->phase = SESSION_RUNNING;
    r->instance = 77;
    r->generation = 3;
    r->group_rank = 1;
    hello(t, 0);
    assert_view(t, 0, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[0].view.generation, 3);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_CLOSED);
    assert_string_equal(t->agents[0].view.cause.text,
                        "the rendezvous has no record of generation 3 of this job");
}

static void draining_ends_a_job_between_two_steps(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    t->agents[1].hello.report.drain = true;
    say(t, 1, SESSION_RUNNING);
    assert_view(t, 0, SESSION_VIEW_CONTINUE);
    assert_true(t->agents[0].view.drain);
    say(t, 0, SESSION_DONE);
    say(t, 1, SESSION_DONE);
    assert_int_equal(t->agents[0].view.verdict, SESSION_VERDICT_DRAINED);
}

static void all_members_learn_that_all_are_quiet(void **state)
{
    struct table *t = *state;

    run(t, 3, 3, 3);
    for (unsigned i = 0; i < 2; i++) {
        t->agents[i].hello.report.quiet = true;
        say(t, i, SESSION_RUNNING);
        assert_false(t->agents[i].view.quiet);
    }
    t->agents[0].hello.report.quiet = false;
    say(t, 0, SESSION_RUNNING);
    say(t, 2, SESSION_DONE); /* its workers have ended */
    assert_false(t->agents[1].view.quiet);
    t->agents[0].hello.report.quiet = true;
    say(t, 0, SESSION_RUNNING);
    assert_view(t, 0, SESSION_VIEW_CONTINUE);
    assert_true(t->agents[0].view.quiet);
    assert_true(t->agents[1].view.quiet);
    t->agents[1].hello.report.quiet = false;
    say(t, 1, SESSION_RUNNING);
    hello(t, 0);
    assert_false(t->agents[0].view.quiet);
}

/* ---- saves that take long ---- */

/* The node waits for STOP, which is held: it cannot be ready in time. */
static void no_job_ends_while_its_decisions_wait_to_be_saved(void **state)
{
    struct table *t = *state;
    uint64_t since_ns;

    t->params.max_restarts = 3;
    t->params.join_timeout_ms = 20000;
    run(t, 1, 1, 1);
    fail_worker(t, 0, 0);
    since_ns = t->now_ns;
    for (unsigned ms = 0; ms < 10 * t->params.join_timeout_ms; ms += 250) {
        alive(t, 0);
        pass(t, 125); /* deadlines move ahead of each step */
        rounds_postpone(&t->rounds, since_ns, t->now_ns + 125 * MS);
        pass(t, 125);
    }
    assert_int_equal(t->agents[0].view.kind, SESSION_VIEW_STOP);
    pass_alive(t, t->params.join_timeout_ms - 1000, 1);
    say(t, 0, SESSION_READY);
    assert_view(t, 0, SESSION_VIEW_START);
}

/* The batch with its decisions is saved; the one after that has another job, and is refused for ever. */
static void saves_of_other_jobs_move_no_deadline(void **state)
{
    struct table *t = *state;
    uint64_t saved_ns, refused_ns;

    t->params.max_restarts = 3;
    t->params.join_timeout_ms = 20000;
    run(t, 1, 1, 1);
    fail_worker(t, 0, 0);
    saved_ns = t->now_ns - 2 * MS;
    refused_ns = t->now_ns - MS;
    rounds_postpone(&t->rounds, saved_ns, t->now_ns);
    for (unsigned ms = 0; ms < t->params.join_timeout_ms + 1000; ms += 250) {
        assert_int_equal(t->agents[0].view.kind,
                         ms < t->params.join_timeout_ms ? SESSION_VIEW_STOP : SESSION_VIEW_END);
        alive(t, 0);
        rounds_postpone(&t->rounds, refused_ns, t->now_ns);
        pass(t, 250);
    }
    for (unsigned ms = 0; ms < 600000;
         ms += 250) { /* refused as well, and the job makes room for others all the same */
        rounds_postpone(&t->rounds, refused_ns, t->now_ns);
        pass(t, 250);
    }
    assert_int_equal(t->rounds.n_jobs, 0);
}

/* Of a job that no save delays, and one whose saves take less than a second. */
static void short_waits_for_saves_move_no_deadline(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 3;
    t->params.join_timeout_ms = 20000;
    run(t, 1, 1, 1);
    fail_worker(t, 0, 0);
    for (unsigned ms = 0; ms < t->params.join_timeout_ms + 1000; ms += 250) {
        assert_int_equal(t->agents[0].view.kind,
                         ms < t->params.join_timeout_ms ? SESSION_VIEW_STOP : SESSION_VIEW_END);
        alive(t, 0);
        rounds_postpone(&t->rounds, ms % 500 ? 0 : t->now_ns - 900 * MS, t->now_ns);
        pass(t, 250);
    }
    assert_view(t, 0, SESSION_VIEW_END);
}

/* ---- jobs of the largest size ---- */

enum { CROWD = SESSION_NODES_MAX };

struct crowd {
    struct rounds rounds;
    struct rounds_conn *conns;
    uint64_t now_ns;
    unsigned n_start, n_quiet; /* views */
};

static void run_crowd_actions(struct crowd *c)
{
    struct rounds_action action;

    while (rounds_next(&c->rounds, &action)) {
        c->n_start += action.kind == ROUNDS_DO_SEND && action.view.kind == SESSION_VIEW_START;
        c->n_quiet += action.kind == ROUNDS_DO_SEND && action.view.quiet;
    }
}

static void crowd_hello(struct crowd *c, unsigned i)
{
    const struct session_params params = {.min_nodes = CROWD,
                                          .max_nodes = CROWD,
                                          .max_restarts = 3,
                                          .max_changes = 3,
                                          .join_timeout_ms = 600000,
                                          .last_call_ms = 1000,
                                          .node_timeout_ms = 60000};
    static struct session_hello hello;

    hello = session_hello_of_node(&params, 8);
    (void)strcpy(hello.job, "crowd");
    (void)strcpy(hello.role, "default");
    hello.nonce = (struct session_nonce){9, i + 1};
    hello.attempt = 1;
    (void)snprintf(hello.host, sizeof(hello.host), "node%u", i);
    hello.report =
        (struct session_report){.phase = SESSION_READY, .generation = -1, .group_rank = -1, .port = 4000};
    rounds_conn_init(&c->conns[i]);
    rounds_step(&c->rounds, &(struct rounds_event){.kind = ROUNDS_HELLO,
                                                   .session = &c->conns[i],
                                                   .hello = &hello,
                                                   .peer = "10.0.0.1",
                                                   .local = "10.0.0.100",
                                                   .now_ns = c->now_ns});
}

static void crowd_report(struct crowd *c, unsigned i, struct session_report report)
{
    const struct rounds_node *n = c->conns[i].node;

    report.instance = n->job->instance;
    report.generation = 0;
    report.group_rank = n->group_rank;
    rounds_step(&c->rounds,
                &(struct rounds_event){
                    .kind = ROUNDS_REPORT, .session = &c->conns[i], .report = &report, .now_ns = c->now_ns});
}

static double cpu_s(void)
{
    struct timespec t;

    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Nothing else is served during one run of actions. All nodes in each view would be 268 million steps: some seconds. */
static void the_largest_job_costs_a_view_for_each_node(void **state)
{
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;
    struct crowd c = {.conns = calloc(CROWD, sizeof(*c.conns)), .now_ns = 1000000 * MS};
    double start_s, quiet_s, cut_s;

    assert_non_null(c.conns);
    config.seed = 42;
    rounds_init(&c.rounds, &config);
    /* One step more than nodes: else rounds_check() would walk all nodes in each step. */
    rounds_step(&c.rounds, &(struct rounds_event){.kind = ROUNDS_TIMER, .now_ns = c.now_ns});
    for (unsigned i = 0; i < CROWD; i++) {
        if (i > 0)
            run_crowd_actions(&c);
        crowd_hello(&c, i);
    }
    start_s = cpu_s();
    run_crowd_actions(&c);
    start_s = cpu_s() - start_s;
    assert_int_equal(c.n_start, CROWD);
    quiet_s = cpu_s();
    for (unsigned i = 0; i < CROWD; i++)
        crowd_report(&c, i, (struct session_report){.phase = SESSION_RUNNING, .quiet = true});
    run_crowd_actions(&c);
    quiet_s = cpu_s() - quiet_s;
    assert_int_equal(c.n_quiet, CROWD);
    cut_s = cpu_s();
    for (unsigned i = 0; i < CROWD; i++)
        crowd_report(&c, i,
                     (struct session_report){.phase = SESSION_FAILED,
                                             .cause = {.kind = SESSION_CAUSE_WORKER, .rank = -1},
                                             .cut_from = (CROWD - 1 - i) * 8 + 1});
    run_crowd_actions(&c);
    cut_s = cpu_s() - cut_s;
    print_message("%u nodes: start %.3f s, quiet %.3f s, cut %.3f s\n", CROWD, start_s, quiet_s, cut_s);
    assert_true(start_s < 1 && quiet_s < 1 && cut_s < 1);
    rounds_finish(&c.rounds);
    free(c.conns);
}

/* The workers of agent 0 fail, and both nodes are ready again; `keeps` has a bit for each that has workers which remain. */
static void run_again(struct table *t, unsigned keeps)
{
    fail_worker(t, 0, 0);
    for (unsigned i = 0; i < 2; i++)
        t->agents[i].hello.report.keeps_keys = (keeps & 1u << i) != 0;
    say(t, 1, SESSION_READY);
    say(t, 0, SESSION_READY);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(t->agents[i].view.kind, SESSION_VIEW_START);
    assert_int_equal(t->agents[0].view.place.key_space, t->agents[1].view.place.key_space);
    for (unsigned i = 0; i < 2; i++)
        say(t, i, SESSION_RUNNING);
}

static void run_with_keys(struct table *t)
{
    t->rounds.config.keeps_keys = true;
    t->params.local_store = 1;
    t->params.max_restarts = 100;
    run(t, 2, 2, 2);
    run_again(t, 0);
    assert_int_equal(t->agents[0].view.place.key_space, 2);
}

static void keys_are_kept_for_workers_that_remain(void **state)
{
    static const struct {
        unsigned keeps;
        uint32_t key_space;
    } generations[] = {
        {2, 2}, {1, 2}, {3, 2}, {0, 6}, {2, 6}, /* 0: all workers are new, and so are their keys */
    };
    struct table *t = *state;

    run_with_keys(t);
    for (size_t i = 0; i < ARRAY_SIZE(generations); i++) {
        run_again(t, generations[i].keeps);
        assert_int_equal(t->agents[0].view.place.key_space, generations[i].key_space);
    }
}

static void keys_are_kept_where_they_are_wanted(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 100;
    t->params.local_store = 1;
    run(t, 2, 2, 2);
    run_again(t, 3);
    assert_int_equal(t->agents[0].view.place.key_space, 0); /* this rendezvous keeps none */
    t->rounds.config.keeps_keys = true;
    run_again(t, 3); /* there are none to go on with */
    assert_int_equal(t->agents[0].view.place.key_space, 3);
}

static void a_job_with_a_store_at_node_0_has_no_keys_here(void **state)
{
    struct table *t = *state;

    t->rounds.config.keeps_keys = true;
    t->params.max_restarts = 100;
    run(t, 2, 2, 2);
    run_again(t, 3);
    assert_int_equal(t->agents[0].view.place.key_space, 0);
}

static void keys_of_another_process_are_not_kept(void **state)
{
    struct table *t = *state;

    run_with_keys(t);
    /* As job_resume() does. */
    list_entry(t->rounds.jobs.next, struct rounds_job, in_rounds)->keys_lost = true;
    run_again(t, 3);
    assert_int_equal(t->agents[0].view.place.key_space, 3);
    run_again(t, 3); /* and these are its own */
    assert_int_equal(t->agents[0].view.place.key_space, 3);
}

static void a_failure_while_draining_is_final(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 5;
    run(t, 2, 2, 2);
    t->agents[1].hello.report.drain = true;
    say(t, 1, SESSION_RUNNING);
    fail_worker(t, 0, 0);
    say(t, 1, SESSION_STOPPING);
    assert_int_equal(t->agents[1].view.verdict, SESSION_VERDICT_FAILURE);
}

static void the_rendezvous_may_end_it_for_a_reason(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    step(t, (struct rounds_event){.kind = ROUNDS_CLOSE,
                                  .reason = "the node that hosts the rendezvous is leaving"});
    assert_view(t, 1, SESSION_VIEW_END);
    assert_string_equal(t->agents[1].view.cause.text, "the node that hosts the rendezvous is leaving");
}

/* ---- hellos ---- */

static void the_end_of_a_job_that_is_forgotten_at_once_is_logged(void **state)
{
    struct table *t = *state;

    run(t, 1, 1, 1);
    t->log_kinds = 0;
    say(t, 0, SESSION_LEFT);
    assert_true(t->forgotten);
    assert_true(t->log_kinds & ROUNDS_LOG_SETTLED);
}

static void a_newcomer_does_not_end_a_generation_whose_members_are_done(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 3);
    say(t, 0, SESSION_DONE);
    join(t, 2);
    pass_alive(t, 2000, 7);
    assert_view(t, 1, SESSION_VIEW_START); /* nothing has been sent since */
    say(t, 1, SESSION_DONE);
    assert_int_equal(t->agents[1].view.verdict, SESSION_VERDICT_SUCCESS);
}

static void a_spare_does_not_push_out_a_member(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 1;
    run(t, 2, 1, 2);
    join(t, 2);
    assert_true(t->agents[2].view.standby);
    fail_worker(t, 0, 0);
    say(t, 0, SESSION_READY);
    say(t, 1, SESSION_READY);
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 1, 1, 1, 2);
    assert_view(t, 2, SESSION_VIEW_WAIT);
}

static void a_node_without_a_connection_is_not_ready(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 0);
    join(t, 1);
    lose_connection(t, 0);
    join(t, 2);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    hello(t, 0);
    assert_started(t, 0, 0, 0, 3);
}

/* splitmix64's output function, and its inverse. */
static uint64_t splitmix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static uint64_t splitmix_inverse(uint64_t x)
{
    x = (x ^ x >> 31 ^ x >> 62) * UINT64_C(0x319642B2D24D8EC3);
    x = (x ^ x >> 27 ^ x >> 54) * UINT64_C(0x96DE1B173F119089);
    return (x ^ x >> 30 ^ x >> 60) - UINT64_C(0x9E3779B97F4A7C15);
}

/* An agent knows the instance of its job: that must not give away the next one, nor the secret of the hash table. */
/* Two instances of crunds that differ in the key alone: the names differ, and so does how the second one follows from the first. */
static void instances_cannot_be_predicted(void **state)
{
    struct table *t = *state;
    uint64_t first[2], next[2];

    assert_true(splitmix_inverse(splitmix(42)) == 42);
    for (unsigned i = 0; i < 2; i++) {
        t->rounds.config.instance_key[3] = (uint8_t)i;
        rounds_reset(&t->rounds);
        t->rounds.n_instances = 0;
        for (unsigned k = 0; k < 2; k++) {
            unsigned agent = 2 * i + k;

            (void)snprintf(prepare(t, agent)->job, sizeof(t->agents[agent].hello.job), "job%u", k);
            hello(t, agent);
        }
        first[i] = t->agents[2 * i].view.instance;
        next[i] = t->agents[2 * i + 1].view.instance;
        assert_true(first[i] != next[i]);
        assert_true(next[i] != splitmix(splitmix_inverse(first[i]) + 1));
    }
    assert_true(first[0] != first[1] && next[0] != next[1]);
    assert_true(next[0] - first[0] != next[1] - first[1]);
    assert_true((next[0] ^ first[0]) != (next[1] ^ first[1]));
}

/* One hello, which anybody can send, must not raise the generation to where honest reports are out of bounds. */
static void a_generation_that_is_claimed_leaves_room_above(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    prepare(t, 0)->report = (struct session_report){
        .phase = SESSION_READY, .instance = 4711, .generation = INT32_MAX, .group_rank = -1, .port = 1};
    hello(t, 0);
    join(t, 1);
    assert_view(t, 1, SESSION_VIEW_START);
    assert_in_range(t->agents[1].view.generation, 1, INT32_MAX - 1000000000);
    say(t, 1, SESSION_RUNNING);
}

/* After such a claim, and when the daemon has lost its state, an honest agent is above the limit of claims. */
static void an_agent_above_the_limit_of_claims_can_go_on(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    join(t, 0);
    prepare(t, 1)->report = (struct session_report){.phase = SESSION_READY,
                                                    .instance = 4711,
                                                    .generation = SESSION_GENERATION_MAX + 6,
                                                    .group_rank = 1,
                                                    .port = 1};
    hello(t, 1);
    assert_started(t, 1, SESSION_GENERATION_MAX + 7, 1, 2);
}

static void control_characters_are_refused(void **state)
{
    static const char *const bad[] = {"a\033[2J", "a\n", "\177", "\xC2\x9B", "\r"};
    struct table *t = *state;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        for (unsigned field = 0; field < 5; field++) {
            struct session_hello *h = prepare(t, 0);
            char *const to[] = {h->job, h->host, h->addr, h->own, h->role};

            (void)strcpy(to[field], bad[i]);
            hello(t, 0);
            assert_view(t, 0, SESSION_VIEW_REFUSED);
            assert_contains(t->agents[0].view.cause.text, "control character");
        }
    }
    assert_int_equal(t->rounds.n_jobs, 0);
}

static void every_kind_has_a_name(void **state)
{
    for (unsigned i = 0; i < ROUNDS_EVENT_COUNT; i++)
        assert_non_null(rounds_event_names[i]);
    for (unsigned i = 0; i < ROUNDS_ACTION_COUNT; i++)
        assert_non_null(rounds_action_names[i]);
    for (unsigned i = 0; i < ROUNDS_JOB_STATE_COUNT; i++)
        assert_non_null(rounds_job_state_names[i]);
}

static void other_parameters_are_refused_by_name(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 3;
    join(t, 0);
    t->params.max_restarts = 7;
    join(t, 1);
    assert_view(t, 1, SESSION_VIEW_REFUSED);
    assert_contains(t->agents[1].view.cause.text, "max-restarts is 0 in the job and 7 on this node");
    assert_true(t->agents[1].closed);
    t->params.max_restarts = 0;
    t->params.max_nodes = 2;
    join(t, 2);
    assert_contains(t->agents[2].view.cause.text, "has to be MIN:MAX");
}

/* Node timeouts of the nodes of a job, in the order in which they come. */
static const struct timeout_mix {
    const char *name;
    struct {
        uint32_t ms, origin;
        bool is_refused;
    } nodes[4];
    uint32_t ms; /* of the job in the end */
} timeout_mixes[] = {
    {"an earlier release first",
     {{1000, SESSION_TIMEOUT_UNKNOWN, false}, {3000, SESSION_TIMEOUT_DEFAULT, false}},
     3000},
    {"an earlier release later",
     {{3000, SESSION_TIMEOUT_DEFAULT, false}, {1000, SESSION_TIMEOUT_UNKNOWN, false}},
     3000},
    {"a later release",
     {{1000, SESSION_TIMEOUT_DEFAULT, false},
      {5000, SESSION_TIMEOUT_DEFAULT, false},
      {3000, SESSION_TIMEOUT_DEFAULT, false}},
     5000},
    {"given, and a default",
     {{2000, SESSION_TIMEOUT_GIVEN, false}, {3000, SESSION_TIMEOUT_DEFAULT, true}},
     2000},
    {"a default, and given",
     {{3000, SESSION_TIMEOUT_DEFAULT, false}, {1000, SESSION_TIMEOUT_GIVEN, true}},
     3000},
    {"both given", {{2000, SESSION_TIMEOUT_GIVEN, false}, {1000, SESSION_TIMEOUT_GIVEN, true}}, 2000},
    {"given the same as a default",
     {{1000, SESSION_TIMEOUT_DEFAULT, false},
      {1000, SESSION_TIMEOUT_GIVEN, false},
      {3000, SESSION_TIMEOUT_DEFAULT, true}},
     1000},
    {"given to an earlier release",
     {{2000, SESSION_TIMEOUT_UNKNOWN, false}, {3000, SESSION_TIMEOUT_DEFAULT, true}},
     2000},
};

static const struct rounds_job *the_job(const struct table *t)
{
    return list_entry(t->rounds.jobs.next, struct rounds_job, in_rounds);
}

static void defaults_of_releases_become_the_larger_one(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(timeout_mixes); i++) {
        const struct timeout_mix *mix = &timeout_mixes[i];
        struct table *t;

        assert_int_equal(tear_down(state), 0);
        assert_int_equal(set_up(state), 0);
        t = *state;
        t->params.min_nodes = t->params.max_nodes = 4;
        for (unsigned n = 0; n < ARRAY_SIZE(mix->nodes) && mix->nodes[n].ms > 0; n++) {
            t->params.node_timeout_ms = mix->nodes[n].ms;
            t->params.node_timeout_origin = mix->nodes[n].origin;
            join(t, n);
            if ((t->agents[n].view.kind == SESSION_VIEW_REFUSED) != mix->nodes[n].is_refused)
                fail_msg("%s: node %u: %s", mix->name, n, t->agents[n].view.cause.text);
        }
        if (the_job(t)->params.node_timeout_ms != mix->ms)
            fail_msg("%s: %u ms", mix->name, the_job(t)->params.node_timeout_ms);
        hello(t, 0); /* again */
        assert_int_equal(t->agents[0].view.kind, SESSION_VIEW_WAIT);
    }
}

/* From then on: both nodes are silent, and the one of the earlier release is lost after 3 s. */
static void the_larger_default_holds_for_nodes_that_are_there(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    t->params.node_timeout_origin = SESSION_TIMEOUT_DEFAULT;
    join(t, 0);
    t->params.node_timeout_ms = 3000;
    t->params.node_timeout_origin = SESSION_TIMEOUT_DEFAULT;
    join(t, 1);
    alive(t, 0);
    assert_view(t, 0, SESSION_VIEW_START);
    say(t, 0, SESSION_RUNNING);
    say(t, 1, SESSION_RUNNING);
    pass(t, 2900);
    assert_int_equal(the_job(t)->state, ROUNDS_RUNNING);
    pass(t, 200);
    assert_int_not_equal(the_job(t)->state, ROUNDS_RUNNING);
}

/* The rendezvous has a limit for jobs without a secret, which a later node does not raise. */
static void a_larger_default_is_bounded(void **state)
{
    struct table *t = *state;

    t->rounds.config.max_node_timeout_ms = 2000;
    t->owner = 7;
    t->params.min_nodes = t->params.max_nodes = 2;
    t->params.node_timeout_origin = SESSION_TIMEOUT_DEFAULT;
    join(t, 0);
    t->params.node_timeout_ms = 3000;
    t->params.node_timeout_origin = SESSION_TIMEOUT_DEFAULT;
    join(t, 1);
    assert_view(t, 1, SESSION_VIEW_REFUSED);
    assert_contains(t->agents[1].view.cause.text,
                    "node_timeout_ms is 3000, and the rendezvous takes at most 2000");
    assert_int_equal(the_job(t)->params.node_timeout_ms, 1000);
}

/* A refusal that depends on a job waits for its state to be saved, as any view of it. */
static void refusals_name_the_job_that_they_depend_on(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    t->params.max_restarts = 7;
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_REFUSED);
    assert_true(t->agents[2].is_of_job);
    t->params.max_restarts = 0;
    say(t, 0, SESSION_DONE);
    say(t, 1, SESSION_DONE);
    join(t, 3);
    assert_view(t, 3, SESSION_VIEW_REFUSED);
    assert_true(t->agents[3].is_of_job);
    t->params.min_nodes = 0;
    join(t, 4);
    assert_view(t, 4, SESSION_VIEW_REFUSED);
    assert_false(t->agents[4].is_of_job);
}

static void jobs_do_not_see_each_other(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    for (unsigned i = 0; i < 4; i++) {
        prepare(t, i)->job[0] = i % 2 ? 'A' : 'B';
        t->agents[i].hello.nonce.low = i / 2 + 1; /* even nonces may be the same */
        hello(t, i);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_started(t, i, 0, i / 2, 2);
    for (unsigned i = 0; i < 4; i++)
        say(t, i, SESSION_RUNNING);
    fail_worker(t, 1, 0);
    assert_view(t, 3, SESSION_VIEW_STOP);
    assert_view(t, 2, SESSION_VIEW_START);
}

static void limits_of_jobs_and_nodes_are_told(void **state)
{
    struct table *t = *state;

    t->rounds.config.max_jobs = 1;
    t->rounds.config.max_nodes = 1;
    t->params.min_nodes = t->params.max_nodes = 2;
    join(t, 0);
    join(t, 1);
    assert_contains(t->agents[1].view.cause.text, "has 1 nodes already");
    prepare(t, 2)->job[0] = 'x';
    hello(t, 2);
    assert_contains(t->agents[2].view.cause.text, "has 1 jobs already");
}

static void a_new_connection_replaces_the_old_one(void **state)
{
    struct table *t = *state;
    struct agent *other = &t->agents[9];

    run(t, 2, 2, 2);
    other->hello = t->agents[1].hello;
    other->hello.attempt++;
    step(t, (struct rounds_event){.kind = ROUNDS_HELLO,
                                  .session = &other->session,
                                  .hello = &other->hello,
                                  .peer = "10.0.0.2",
                                  .local = "10.0.0.100"});
    assert_view(t, 9, SESSION_VIEW_CONTINUE);
    assert_true(t->agents[1].closed);
    lose_connection(t, 1); /* its end is no news */
    pass_alive(t, 2000, 1u << 0 | 1u << 9);
    assert_false(t->log_kinds & ROUNDS_LOG_OVER);
}

static void a_hello_that_was_on_its_way_for_too_long_is_ignored(void **state)
{
    struct table *t = *state;
    struct agent *old = &t->agents[9];

    run(t, 2, 2, 2);
    old->hello = t->agents[1].hello;
    old->hello.report.phase = SESSION_READY;
    old->hello.report.generation = -1;
    step(t, (struct rounds_event){.kind = ROUNDS_HELLO,
                                  .session = &old->session,
                                  .hello = &old->hello,
                                  .peer = "10.0.0.2",
                                  .local = "10.0.0.100"});
    assert_int_equal(old->n_views, 0);
    assert_true(old->closed);
    assert_false(t->agents[1].closed);
}

static void generations_of_a_lost_instance_are_not_used_again(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    t->params.max_restarts = 3;
    join(t, 0);
    *prepare(t, 1) = (struct session_hello)t->agents[0].hello;
    t->agents[1].hello.nonce.low = 99;
    t->agents[1].hello.report = (struct session_report){.phase = SESSION_RUNNING,
                                                        .instance = 1234,
                                                        .generation = 6,
                                                        .group_rank = 1,
                                                        .restarts = 2,
                                                        .changes = 4};
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_STOP);
    say(t, 1, SESSION_READY);
    assert_started(t, 0, 7, 0, 2);
    assert_int_equal(t->agents[0].view.restarts, 2);
    assert_int_equal(t->agents[0].view.changes, 4);
}

/* The daemon lost its state, and agents form another instance. One that ran the lost one returns while that runs: it has been
 * charged more. */
static void charges_that_a_waiting_node_knows_are_not_lost(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 9;
    run(t, 2, 2, 3);
    (void)prepare(t, 2);
    t->agents[2].hello.report = (struct session_report){.phase = SESSION_READY,
                                                        .instance = 1234,
                                                        .generation = 6,
                                                        .group_rank = 1,
                                                        .port = 4002,
                                                        .restarts = 4,
                                                        .changes = 2};
    hello(t, 2);
    obey(t, 2);
    assert_started(t, 2, 7, 2, 3);
    assert_int_equal(t->agents[2].view.restarts, 4);
    assert_int_equal(t->agents[2].view.changes, 2);
}

/* The saved state was an old one, in which generation 0 runs; its members have been in generation 5 since. */
static void a_member_of_a_later_generation_shows_that_the_state_is_old(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 9;
    run(t, 2, 2, 2);
    for (unsigned i = 0; i < 2; i++) {
        struct session_report *r = &t->agents[i].hello.report;

        lose_connection(t, i);
        r->generation = 5;
        r->restarts = 3;
        r->changes = 2;
    }
    hello(t, 0);
    assert_view(t, 0, SESSION_VIEW_STOP);
    assert_int_equal(t->agents[0].view.generation, 5);
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_STOP);
    for (unsigned i = 0; i < 2; i++)
        say(t, i, SESSION_READY);
    assert_started(t, 0, 6, 0, 2);
    assert_int_equal(t->agents[0].view.restarts, 3);
    assert_int_equal(t->agents[0].view.changes, 2);
}

/* ---- time ---- */

static void every_sign_of_life_is_answered(void **state)
{
    struct table *t = *state;

    run(t, 1, 1, 1);
    alive(t, 0);
    assert_int_equal(t->agents[0].n_alive, 1);
}

static void our_own_absence_is_not_the_nodes_fault(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    t->now_ns += 20000 * MS; /* stopped, and continued */
    step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    assert_view(t, 0, SESSION_VIEW_START);
    alive(t, 0);
    pass_alive(t, 750, 1);
    assert_view(t, 0, SESSION_VIEW_START);
    pass_alive(t, 500, 1); /* but node 1 did not use its second chance */
    assert_view(t, 0, SESSION_VIEW_STOP);
}

/* A daemon that stops while a node redials cannot hear it: the whole stop counts, not only its part behind a deadline. */
static void a_stop_while_a_node_redials_is_not_its_fault(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    alive(t, 0);
    alive(t, 1);
    lose_connection(t, 1);
    t->now_ns += 1010 * MS; /* stopped, and continued */
    step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    assert_view(t, 0, SESSION_VIEW_START);
    alive(t, 0);
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_CONTINUE);
}

/* The attempt of a node that redials may end with the stop, and the next one takes round trips: on a slow line more than
 * a node timeout. */
static void a_node_that_redials_after_a_stop_has_time_for_a_new_attempt(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    lose_connection(t, 1);
    t->now_ns += 2200 * MS; /* stopped, and continued */
    step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    pass_alive(t, 1500, 1);
    assert_view(t, 0, SESSION_VIEW_START);
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_CONTINUE);
    lose_connection(t, 1);
    pass_alive(t, 1500, 1); /* and a node that does not come is lost after its timeout as ever */
    assert_view(t, 0, SESSION_VIEW_STOP);
}

/* One that is always late finds a dead node nevertheless. */
static void an_overloaded_daemon_finds_a_dead_node(void **state)
{
    struct table *t = *state;

    run(t, 2, 1, 2);
    for (int i = 0; i < 200 && t->agents[0].view.kind == SESSION_VIEW_START; i++) {
        if (rounds_deadline(&t->rounds) > t->now_ns)
            t->now_ns = rounds_deadline(&t->rounds);
        t->now_ns += 260 * MS;
        alive(t, 0);
        step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    }
    assert_view(t, 0, SESSION_VIEW_STOP);
}

/* The daemon stops while it waits for what made workers of all nodes end: what it has not read yet may be the cause. */
static void a_stop_while_a_generation_ends_leaves_time_for_the_cause(void **state)
{
    struct table *t = *state;

    run(t, 2, 2, 2);
    fail_worker(t, 0, 0);
    assert_view(t, 1, SESSION_VIEW_STOP);
    t->now_ns += 5000 * MS; /* stopped, and continued */
    step(t, (struct rounds_event){.kind = ROUNDS_TIMER});
    assert_view(t, 0, SESSION_VIEW_STOP);
    fail_worker(t, 1, 6000); /* before the stop, and before the other failure */
    assert_view(t, 0, SESSION_VIEW_END);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
}

/* ---- health checks ---- */

static void fail_check(struct table *t, unsigned i, const char *why)
{
    text_copy(t->agents[i].hello.report.unfit, SESSION_UNFIT_SIZE, why);
    say(t, i, SESSION_STOPPING);
}

static void join_unfit(struct table *t, unsigned i)
{
    (void)prepare(t, i);
    t->agents[i].hello.report.phase = SESSION_STOPPING;
    text_copy(t->agents[i].hello.report.unfit, SESSION_UNFIT_SIZE, "exit code 3");
    hello(t, i);
}

static void an_unfit_node_is_left_out_without_a_wait(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = 2;
    t->params.max_nodes = 3;
    join(t, 0);
    join_unfit(t, 1);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    join(t, 2);
    assert_started(t, 0, 0, 0, 2);
    assert_started(t, 2, 0, 1, 2);
    assert_string_equal(t->agents[0].view.unfit, "node1: exit code 3");
    assert_true(t->log_kinds & ROUNDS_LOG_UNFIT);
    assert_false(t->agents[1].view.check);
    say(t, 0, SESSION_RUNNING);
    say(t, 2, SESSION_RUNNING);
    pass_alive(t, 5000, 7);
    assert_false(t->agents[1].view.check); /* the job goes on without it */
    say(t, 0, SESSION_DONE);
    say(t, 2, SESSION_DONE);
    assert_view(t, 1, SESSION_VIEW_END);
    assert_int_equal(t->agents[1].view.verdict, SESSION_VERDICT_SUCCESS);
}

static void a_member_whose_check_fails_does_not_hold_up_the_next_round(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 1;
    run(t, 3, 2, 3);
    fail_worker(t, 0, 0);
    say(t, 1, SESSION_STOPPING);
    say(t, 2, SESSION_STOPPING);
    say(t, 0, SESSION_READY);
    say(t, 1, SESSION_READY);
    assert_view(t, 0, SESSION_VIEW_WAIT); /* node 2 may come back */
    fail_check(t, 2, "Xid 79");
    assert_started(t, 0, 1, 0, 2);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    assert_true(t->agents[2].view.standby);
    assert_contains(t->agents[1].view.unfit, "node2: Xid 79");
}

static void an_unfit_node_is_asked_again_when_it_is_needed(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    join(t, 0);
    join_unfit(t, 1);
    assert_true(t->agents[1].view.check);
    pass_alive(t, 1250, 3);
    assert_contains(t->agents[0].view.unfit, "node1");
    t->agents[1].hello.report.unfit[0] = 0;
    say(t, 1, SESSION_READY);
    assert_started(t, 0, 0, 0, 2);
    assert_string_equal(t->agents[0].view.unfit, "");
}

static void the_join_timeout_names_unfit_nodes(void **state)
{
    struct table *t = *state;

    t->params.min_nodes = t->params.max_nodes = 2;
    t->params.join_timeout_ms = 2000;
    join(t, 0);
    join_unfit(t, 1);
    pass_alive(t, 2500, 3);
    assert_view(t, 0, SESSION_VIEW_END);
    assert_contains(t->agents[0].view.cause.text, "left out: node1: exit code 3");
}

static void many_unfit_nodes_fit_into_the_text(void **state)
{
    struct table *t = *state;
    char why[SESSION_UNFIT_SIZE];

    memset(why, 'x', sizeof(why) - 1);
    why[sizeof(why) - 1] = 0;
    t->params.max_nodes = AGENTS_MAX;
    for (unsigned i = 0; i < 8; i++) {
        join_unfit(t, i);
        fail_check(t, i, why);
    }
    assert_contains(t->agents[7].view.unfit, "; ...");
    lose_connection(t, 0);
    pass_alive(t, 2500, 0xfe);
    assert_null(strstr(t->agents[7].view.unfit, "node0: ")); /* it is lost */
}

/* ---- leases ---- */

enum { LEASE_MS = 4000, WAIT_MS = 4000 + 4000 / 20 + 1000 };

static void renew(struct table *t, unsigned i, uint32_t number)
{
    step(t, (struct rounds_event){.kind = ROUNDS_RENEW, .session = &t->agents[i].session, .number = number});
}

static void run_leased(struct table *t, unsigned n, unsigned min)
{
    t->params.lease_ms = LEASE_MS;
    run(t, n, min, n);
}

/* Node 1 of two is silent from now on; node 0 stops its workers when it gets to know that. */
static void lose_node_1(struct table *t)
{
    pass_alive(t, 1250, 1);
    assert_view(t, 0, SESSION_VIEW_STOP);
    obey(t, 1);
}

static void renewals_are_answered_with_their_number(void **state)
{
    struct table *t = *state;

    run_leased(t, 2, 1);
    assert_int_equal(t->agents[0].view.lease_ms, LEASE_MS);
    renew(t, 0, 7);
    assert_int_equal(t->agents[0].renewed, 7);
    assert_int_equal(t->agents[0].n_alive, 0);
    pass(t, 900);
    renew(t, 0, 8); /* a sign of life, too */
    alive(t, 1);
    pass(t, 900);
    assert_view(t, 0, SESSION_VIEW_START);
}

static void the_lease_of_a_lost_node_holds_the_round(void **state)
{
    struct table *t = *state;
    uint64_t renewed_ns;

    run_leased(t, 2, 1);
    pass_alive(t, 1000, 3);
    renew(t, 1, 1);
    renewed_ns = t->now_ns;
    lose_node_1(t);
    pass_alive(t, WAIT_MS - 1 - (unsigned)((t->now_ns - renewed_ns) / MS), 1);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass(t, 1);
    assert_started(t, 0, 1, 0, 1);
}

static void a_lost_node_that_returns_without_workers_ends_the_wait(void **state)
{
    struct table *t = *state;

    run_leased(t, 2, 1);
    lose_node_1(t);
    pass_alive(t, 1000, 1);
    t->agents[1].hello.report.phase = SESSION_RUNNING;
    hello(t, 1);
    assert_view(t, 1, SESSION_VIEW_STOP);
    pass_alive(t, WAIT_MS, 3);
    assert_view(t, 0, SESSION_VIEW_WAIT); /* it is there, and has workers */
    say(t, 1, SESSION_READY);
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 1, 1, 1, 2);
}

static void a_lost_node_that_is_lost_again_holds_the_round_again(void **state)
{
    struct table *t = *state;

    run_leased(t, 2, 1);
    lose_node_1(t);
    pass_alive(t, 2000, 1);
    t->agents[1].hello.report.phase = SESSION_RUNNING;
    hello(t, 1);
    lose_connection(t, 1);
    pass_alive(t, WAIT_MS - 1, 1);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass(t, 1);
    assert_started(t, 0, 1, 0, 1);
}

static void nodes_without_workers_hold_nothing(void **state)
{
    struct table *t = *state;

    run_leased(t, 3, 1);
    say_last_word(t, 2);
    obey(t, 2);
    assert_started(t, 0, 1, 0, 2);
    say(t, 0, SESSION_RUNNING);
    say(t, 1, SESSION_RUNNING);
    say(t, 1, SESSION_LEFT);
    obey(t, 1);
    assert_started(t, 0, 2, 0, 1);
}

static void a_spare_that_is_lost_holds_nothing(void **state)
{
    struct table *t = *state;

    t->params.lease_ms = LEASE_MS;
    t->params.max_restarts = 1;
    run(t, 2, 1, 2);
    join(t, 2);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    pass_alive(t, 1250, 3);
    fail_worker(t, 0, 0);
    obey(t, 2);
    assert_started(t, 0, 1, 0, 2);
}

static void members_that_stop_are_waited_for_beyond_the_join_timeout(void **state)
{
    struct table *t = *state;

    t->params.join_timeout_ms = 3000;
    run_leased(t, 2, 1);
    t->agents[0].hello.report.cause.kind = SESSION_CAUSE_LEFT;
    say(t, 0, SESSION_STOPPING);
    assert_view(t, 1, SESSION_VIEW_STOP);
    say(t, 1, SESSION_READY);
    pass_alive(t, 10000, 3);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    say(t, 0, SESSION_LEFT);
    assert_started(t, 1, 1, 0, 1);
}

static void who_returns_to_a_rendezvous_without_state_waits_for_those_it_may_have_known(void **state)
{
    struct table *t = *state;
    struct session_hello *h;

    t->params.lease_ms = LEASE_MS;
    t->params.max_nodes = 3;
    t->params.last_call_ms = 0;
    h = prepare(t, 0);
    h->report.instance = 99;
    h->report.generation = 5;
    hello(t, 0);
    pass_alive(t, WAIT_MS - 1, 1);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass(t, 1);
    assert_started(t, 0, 6, 0, 1);
}

static void the_next_run_of_an_id_waits_for_the_last_ones_leases(void **state)
{
    struct table *t = *state;
    uint64_t began_ns;

    t->params.lease_ms = LEASE_MS;
    t->params.last_call_ms = 0;
    run(t, 1, 1, 1);
    began_ns = t->now_ns;
    pass(t, 1500);
    join(t, 1);
    pass_alive(t, WAIT_MS - 1 - (unsigned)((t->now_ns - began_ns) / MS), 2);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    pass(t, 1);
    assert_started(t, 1, 0, 0, 1);
    assert_int_equal(t->agents[1].view.changes, 0);
}

static void the_rendezvous_may_choose_the_lease(void **state)
{
    struct table *t = *state;

    t->rounds.config.lease_ms = 9000;
    join(t, 0);
    assert_int_equal(t->agents[0].view.lease_ms, 0);
    t->params.lease_auto = 1;
    (void)prepare(t, 1);
    strcpy(t->agents[1].hello.job, "other");
    hello(t, 1);
    assert_int_equal(t->agents[1].view.lease_ms, 9000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* ---- a cut between two hosts ---- */

/* What a node reports of the rank that its workers do not reach. */
static void blame(struct table *t, unsigned i, uint32_t rank)
{
    t->agents[i].hello.report.cut_from = rank + 1;
}

/* Nodes 0 and 1 of three fail for a cut between them; all stop. */
static void cut_two(struct table *t)
{
    blame(t, 0, 2); /* ranks 2 and 3 are those of node 1 */
    blame(t, 1, 1);
    fail_worker(t, 0, 0);
    obey(t, 3);
}

static void a_cut_leaves_one_of_two_nodes_out(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    cut_two(t);
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 2, 1, 1, 2);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    assert_true(t->agents[1].view.standby);
    assert_int_equal(t->agents[0].view.restarts, 0); /* charged as a lost node */
    assert_int_equal(t->agents[0].view.changes, 1);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_LOST);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
    assert_contains(t->agents[0].view.cause.text, "the network between it and node0 is cut");
    assert_string_equal(t->agents[2].view.unfit, "node1: its network is cut off from node0");
}

/* Its connection is lost as well before the others are ready. */
static void a_node_that_is_cut_off_is_not_waited_for(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    blame(t, 0, 2);
    fail_worker(t, 0, 0);
    say(t, 1, SESSION_STOPPING);
    say(t, 2, SESSION_STOPPING); /* the last answer */
    say(t, 1, SESSION_READY);
    lose_connection(t, 1);
    say(t, 0, SESSION_READY);
    say(t, 2, SESSION_READY);
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 2, 1, 1, 2);
}

static void a_cut_that_one_side_reports_is_enough(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    blame(t, 2, 0); /* node 2 was quicker, and the others were stopped */
    fail_worker(t, 2, 0);
    obey(t, 3);
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 1, 1, 1, 2);
    assert_view(t, 2, SESSION_VIEW_WAIT);
    assert_string_equal(t->agents[0].view.cause.host, "node2");
}

static void the_node_with_most_cuts_is_left_out(void **state)
{
    struct table *t = *state;

    run(t, 4, 3, 4);
    blame(t, 1, 2); /* node 1, itself: no cut */
    blame(t, 2, 0);
    blame(t, 3, 1); /* both: node 0 */
    fail_worker(t, 3, 0);
    obey(t, 4);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    assert_string_equal(t->agents[1].view.cause.host, "node0");
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(t->agents[i].view.place.group_world_size, 3);
}

static void a_cut_is_named_where_no_node_can_be_left_out(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 1;
    run(t, 3, 3, 3);
    cut_two(t);
    for (unsigned i = 0; i < 3; i++)
        assert_started(t, i, 1, i, 3);
    assert_int_equal(t->agents[0].view.restarts, 1);
    assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_WORKER);
    assert_contains(t->agents[0].view.cause.text, "hosts node1 and node0 cannot reach each other");
}

static void what_is_no_cut(void **state)
{
    static const struct {
        uint32_t rank;
        bool is_lost; /* the node with that rank */
    } rows[] = {{1, false}, {6, false}, {1000000, false}, {2, true}};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct table *t;

        assert_int_equal(tear_down(state), 0);
        assert_int_equal(set_up(state), 0);
        t = *state;
        t->params.max_restarts = 3;
        run(t, 3, 2, 3);
        blame(t, 0, rows[i].rank);
        fail_worker(t, 0, 0);
        if (rows[i].is_lost)
            pass_alive(t, 4000, 5);
        obey(t, 3);
        pass_alive(t, 31000, rows[i].is_lost ? 5 : 7);
        assert_view(t, 0, SESSION_VIEW_START);
        assert_int_equal(t->agents[0].view.place.group_world_size, rows[i].is_lost ? 2 : 3);
        assert_string_equal(t->agents[0].view.unfit, "");
        assert_null(strstr(t->agents[0].view.cause.text, "cut"));
    }
}

static void a_node_that_was_cut_off_returns_after_a_pause(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    cut_two(t);
    for (unsigned turn = 0; turn < 2; turn++) {
        say(t, 0, SESSION_RUNNING);
        say(t, 2, SESSION_RUNNING);
        t->agents[0].hello.report.cut_from = t->agents[1].hello.report.cut_from = 0;
        pass_alive(t, turn == 0 ? 59500 : 119500, 7);
        assert_view(t, 0, SESSION_VIEW_START);
        pass_alive(t, 1000, 7);
        assert_view(t, 0, SESSION_VIEW_STOP);
        assert_int_equal(t->agents[0].view.cause.kind, SESSION_CAUSE_JOINED);
        obey(t, 3);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(t->agents[i].view.place.group_world_size, 3);
            say(t, i, SESSION_RUNNING);
        }
        /* It is cut off still: the pause is twice as long. Node 1 has the last ranks now, or those that it had. */
        blame(t, 0, t->agents[1].view.place.rank_base);
        fail_worker(t, 0, 0);
        obey(t, 3);
        assert_view(t, 0, SESSION_VIEW_START);
        assert_int_equal(t->agents[0].view.place.group_world_size, 2);
    }
}

/* Node 1 of three is left out, and does not come to the end of its workers. */
static void cut_two_and_stop_slowly(struct table *t)
{
    blame(t, 0, 2);
    fail_worker(t, 0, 0);
    say(t, 1, SESSION_STOPPING);
    say(t, 2, SESSION_STOPPING);
    say(t, 0, SESSION_READY);
    say(t, 2, SESSION_READY);
    assert_view(t, 0, SESSION_VIEW_WAIT);
}

static void assert_started_without_node_1(const struct table *t)
{
    assert_started(t, 0, 1, 0, 2);
    assert_started(t, 2, 1, 1, 2);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
    assert_int_equal(t->agents[0].view.changes, 1);
}

static void a_node_that_is_cut_off_is_waited_for_until_the_join_timeout(void **state)
{
    struct table *t = *state;

    t->params.join_timeout_ms = 20000;
    run(t, 3, 2, 3);
    cut_two_and_stop_slowly(t);
    pass_alive(t, 19999, 7);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 1, 7);
    assert_started_without_node_1(t);
}

static void a_node_that_is_cut_off_and_silent_is_waited_for_until_the_node_timeout(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    cut_two_and_stop_slowly(t);
    pass_alive(t, t->params.node_timeout_ms - 250, 5);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 500, 5);
    assert_started_without_node_1(t);
}

/* Its lease counts from its last message that was answered; while it sends some there is no bound. */
static void a_node_that_is_cut_off_and_has_a_lease_is_waited_for(void **state)
{
    struct table *t = *state;

    t->params.join_timeout_ms = 20000;
    run_leased(t, 3, 2);
    cut_two_and_stop_slowly(t);
    pass_alive(t, 40000, 7);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    renew(t, 1, 1);
    pass_alive(t, WAIT_MS - 1, 5);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    pass_alive(t, 1, 5);
    assert_started_without_node_1(t);
}

static void a_node_that_is_cut_off_is_taken_when_it_is_needed(void **state)
{
    struct table *t = *state;

    run(t, 3, 2, 3);
    cut_two(t);
    say(t, 0, SESSION_RUNNING);
    say(t, 2, SESSION_RUNNING);
    pass_alive(t, 4000, 3); /* node 2 is lost */
    obey(t, 2);
    pass_alive(t, 31000, 3);
    assert_view(t, 0, SESSION_VIEW_START);
    assert_view(t, 1, SESSION_VIEW_START);
    assert_string_equal(t->agents[0].view.unfit, "");
}

/* Node 0 connects to no other one, but takes connections, so that each generation has one report of a cut. */
static void a_node_with_cuts_in_two_generations_is_the_one(void **state)
{
    struct table *t = *state;

    run(t, 4, 2, 4);
    blame(t, 0, 2);
    fail_worker(t, 0, 0);
    obey(t, 4);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
    for (unsigned i = 0; i < 4; i++)
        if (i != 1)
            say(t, i, SESSION_RUNNING);
    blame(t, 0, t->agents[2].view.place.rank_base);
    fail_worker(t, 0, 0);
    obey(t, 4);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    assert_string_equal(t->agents[2].view.cause.host, "node0");
    assert_string_equal(t->agents[2].view.unfit, "node0: its network is cut off from node2");
    for (unsigned i = 1; i < 4; i++) /* node 1 was left out for its cut from node 0 alone */
        assert_int_equal(t->agents[i].view.place.group_world_size, 3);
}

/* With MIN of three nodes the one that was left out counts, as it has no cut from those that remain. */
static void a_node_that_is_left_out_makes_room_for_the_other_side(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 0;
    run(t, 3, 2, 3);
    blame(t, 0, 2);
    fail_worker(t, 0, 0);
    obey(t, 3);
    assert_string_equal(t->agents[0].view.cause.host, "node1");
    say(t, 0, SESSION_RUNNING);
    say(t, 2, SESSION_RUNNING);
    blame(t, 0, t->agents[2].view.place.rank_base);
    fail_worker(t, 0, 0);
    obey(t, 3);
    assert_view(t, 0, SESSION_VIEW_WAIT);
    assert_view(t, 1, SESSION_VIEW_START);
    assert_view(t, 2, SESSION_VIEW_START);
    assert_int_equal(t->agents[1].view.place.group_world_size, 2);
}

static void a_node_returns_when_the_other_side_has_left(void **state)
{
    struct table *t = *state;

    run(t, 4, 2, 4);
    blame(t, 0, 2);
    fail_worker(t, 0, 0);
    obey(t, 4);
    assert_view(t, 1, SESSION_VIEW_WAIT);
    say(t, 2, SESSION_RUNNING);
    say(t, 3, SESSION_RUNNING);
    t->agents[0].hello.report.generation = 1;
    say(t, 0, SESSION_LEFT);
    obey(t, 4);
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(t->agents[i].view.place.group_world_size, 3);
    assert_string_equal(t->agents[2].view.unfit, "");
}

static void the_result_of_a_job_names_the_cut(void **state)
{
    struct table *t = *state;

    t->params.max_restarts = 0;
    run(t, 2, 2, 2);
    blame(t, 1, 0);
    fail_worker(t, 1, 0);
    obey(t, 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_view(t, i, SESSION_VIEW_END);
        assert_int_equal(t->agents[i].view.verdict, SESSION_VERDICT_FAILURE);
        assert_contains(t->agents[i].view.cause.text, "hosts node1 and node0 cannot reach each other");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(renewals_are_answered_with_their_number),
        TEST(the_lease_of_a_lost_node_holds_the_round),
        TEST(a_lost_node_that_returns_without_workers_ends_the_wait),
        TEST(a_lost_node_that_is_lost_again_holds_the_round_again),
        TEST(nodes_without_workers_hold_nothing),
        TEST(a_spare_that_is_lost_holds_nothing),
        TEST(members_that_stop_are_waited_for_beyond_the_join_timeout),
        TEST(who_returns_to_a_rendezvous_without_state_waits_for_those_it_may_have_known),
        TEST(the_next_run_of_an_id_waits_for_the_last_ones_leases),
        TEST(the_rendezvous_may_choose_the_lease),
        TEST(a_cut_leaves_one_of_two_nodes_out),
        TEST(a_node_that_is_cut_off_is_not_waited_for),
        TEST(a_cut_that_one_side_reports_is_enough),
        TEST(the_node_with_most_cuts_is_left_out),
        TEST(a_cut_is_named_where_no_node_can_be_left_out),
        TEST(what_is_no_cut),
        TEST(a_node_that_was_cut_off_returns_after_a_pause),
        TEST(a_node_that_is_cut_off_is_waited_for_until_the_join_timeout),
        TEST(a_node_that_is_cut_off_and_silent_is_waited_for_until_the_node_timeout),
        TEST(a_node_that_is_cut_off_and_has_a_lease_is_waited_for),
        TEST(a_node_that_is_cut_off_is_taken_when_it_is_needed),
        TEST(a_node_with_cuts_in_two_generations_is_the_one),
        TEST(a_node_that_is_left_out_makes_room_for_the_other_side),
        TEST(a_node_returns_when_the_other_side_has_left),
        TEST(the_result_of_a_job_names_the_cut),
        TEST(an_unfit_node_is_left_out_without_a_wait),
        TEST(a_member_whose_check_fails_does_not_hold_up_the_next_round),
        TEST(an_unfit_node_is_asked_again_when_it_is_needed),
        TEST(the_join_timeout_names_unfit_nodes),
        TEST(many_unfit_nodes_fit_into_the_text),
        TEST(a_round_of_fixed_size_forms_when_the_last_node_is_there),
        TEST(the_last_call_waits_for_more_than_min),
        TEST(the_last_call_ends_when_all_expected_nodes_are_there),
        TEST(the_last_call_begins_anew_when_a_node_is_lost),
        TEST(nobody_is_waited_for_beyond_the_join_timeout),
        TEST(a_last_call_may_go_on_beyond_the_join_timeout),
        TEST(who_waits_is_told_once_a_second_how_many_there_are),
        TEST(time_outs_of_an_owner_are_bounded),
        TEST(an_owner_has_so_many_jobs),
        TEST(nodes_of_another_kind_are_refused_by_name),
        TEST(waiting_nodes_are_sent_names_time_and_what_else_is_there),
        TEST(names_of_many_nodes_are_cut),
        TEST(only_an_agent_that_is_ready_counts),
        TEST(hosts_are_ordered_as_people_count),
        TEST(a_node_rank_is_a_wish),
        TEST(roles_and_sizes_differ_between_nodes),
        TEST(survivors_keep_their_ranks),
        TEST(the_master_is_called_what_others_can_reach),
        TEST(the_master_has_the_address_at_which_others_found_its_machine),
        TEST(nodes_behind_one_nat_are_told_apart_and_meet_behind_it),
        TEST(a_nat_that_is_not_everybodys_hides_no_address),
        TEST(a_local_address_is_taken_as_it_is),
        TEST(a_failure_is_told_to_everybody_at_once_and_charged_once),
        TEST(the_last_failure_is_final_for_everybody),
        TEST(what_no_restart_helps_against_is_final),
        TEST(the_first_failure_in_time_is_the_cause),
        TEST(the_text_of_a_failure_may_follow_it),
        TEST(a_failure_that_follows_from_a_lost_node_is_not_charged),
        TEST(a_silent_node_is_lost_after_its_timeout),
        TEST(a_node_whose_words_are_on_the_way_is_not_lost_yet),
        TEST(nobody_is_slow_for_ever),
        TEST(who_is_slow_keeps_nobody_else_alive),
        TEST(a_node_that_returns_in_time_goes_on),
        TEST(a_node_that_returns_later_stops_and_joins),
        TEST(below_min_survivors_wait_for_another_node),
        TEST(a_later_round_has_a_join_timeout_of_its_own),
        TEST(members_that_stop_slowly_are_waited_for),
        TEST(a_start_that_crosses_a_stop_is_taken_back),
        TEST(who_is_about_to_start_is_not_ready),
        TEST(a_start_that_was_lost_with_its_connection_is_not_waited_for),
        TEST(old_generations_change_nothing),
        TEST(spares_stand_by_and_step_in),
        TEST(changes_have_a_limit_of_their_own),
        TEST(a_node_that_comes_and_goes_is_admitted_ever_more_rarely),
        TEST(a_newcomer_after_a_quiet_time_is_admitted_at_once),
        TEST(without_changes_left_newcomers_stand_by),
        TEST(the_barrier_waits_as_long_as_peers_live),
        TEST(a_node_that_goes_when_done_was_done),
        TEST(a_failure_takes_the_barrier_down),
        TEST(leaving_is_a_change_and_not_a_failure),
        TEST(a_last_word_ends_the_generation_at_once),
        TEST(a_last_word_may_come_before_the_end_of_the_old_connection),
        TEST(what_followed_from_a_death_is_not_its_cause),
        TEST(a_last_word_about_nobody_changes_nothing),
        TEST(a_job_that_everybody_left_is_forgotten),
        TEST(a_closed_job_says_why),
        TEST(a_closed_job_is_forgotten_when_all_agents_have_confirmed_its_end),
        TEST(an_end_that_was_lost_with_the_connection_is_sent_again),
        TEST(an_end_that_a_proxy_swallowed_is_sent_again),
        TEST(the_id_of_a_job_that_has_ended_is_free),
        TEST(a_late_member_gets_the_result_of_its_own_job),
        TEST(the_id_of_a_job_of_variable_size_is_free_after_a_minute),
        TEST(tombstones_have_bounds),
        TEST(a_death_notice_reaches_the_tombstone),
        TEST(a_late_member_that_is_refused_does_not_end_the_tombstone),
        TEST(the_id_of_a_job_whose_nodes_are_all_lost_is_free),
        TEST(an_agent_that_returns_after_all_were_lost_keeps_the_job),
        TEST(a_generation_that_is_not_known_is_stopped_for_that_reason),
        TEST(draining_ends_a_job_between_two_steps),
        TEST(a_signal_to_all_ends_the_job_for_each_node),
        TEST(a_signal_to_all_ends_a_job_that_gathers),
        TEST(a_signal_to_all_reaches_an_agent_with_a_lease),
        TEST(an_effect_of_a_signal_to_all_may_arrive_first),
        TEST(a_failure_long_before_a_signal_to_all_is_the_cause),
        TEST(all_members_learn_that_all_are_quiet),
        TEST(the_largest_job_costs_a_view_for_each_node),
        TEST(no_job_ends_while_its_decisions_wait_to_be_saved),
        TEST(saves_of_other_jobs_move_no_deadline),
        TEST(short_waits_for_saves_move_no_deadline),
        TEST(keys_are_kept_for_workers_that_remain),
        TEST(keys_are_kept_where_they_are_wanted),
        TEST(a_job_with_a_store_at_node_0_has_no_keys_here),
        TEST(keys_of_another_process_are_not_kept),
        TEST(a_failure_while_draining_is_final),
        TEST(the_rendezvous_may_end_it_for_a_reason),
        TEST(the_end_of_a_job_that_is_forgotten_at_once_is_logged),
        TEST(a_newcomer_does_not_end_a_generation_whose_members_are_done),
        TEST(a_spare_does_not_push_out_a_member),
        TEST(a_node_without_a_connection_is_not_ready),
        TEST(instances_cannot_be_predicted),
        TEST(a_generation_that_is_claimed_leaves_room_above),
        TEST(an_agent_above_the_limit_of_claims_can_go_on),
        TEST(control_characters_are_refused),
        TEST(every_kind_has_a_name),
        TEST(other_parameters_are_refused_by_name),
        TEST(defaults_of_releases_become_the_larger_one),
        TEST(the_larger_default_holds_for_nodes_that_are_there),
        TEST(a_larger_default_is_bounded),
        TEST(refusals_name_the_job_that_they_depend_on),
        TEST(jobs_do_not_see_each_other),
        TEST(limits_of_jobs_and_nodes_are_told),
        TEST(a_new_connection_replaces_the_old_one),
        TEST(a_hello_that_was_on_its_way_for_too_long_is_ignored),
        TEST(generations_of_a_lost_instance_are_not_used_again),
        TEST(charges_that_a_waiting_node_knows_are_not_lost),
        TEST(a_member_of_a_later_generation_shows_that_the_state_is_old),
        TEST(every_sign_of_life_is_answered),
        TEST(our_own_absence_is_not_the_nodes_fault),
        TEST(a_stop_while_a_node_redials_is_not_its_fault),
        TEST(a_node_that_redials_after_a_stop_has_time_for_a_new_attempt),
        TEST(an_overloaded_daemon_finds_a_dead_node),
        TEST(a_stop_while_a_generation_ends_leaves_time_for_the_cause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
