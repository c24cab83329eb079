/*
 * Which crund leads, and what it keeps in etcd: each role, each outcome of each request, leases by their own clock, jobs of
 * each size. etcd is the model of tests/support; time passes only where a test lets it.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd/etcd_leader.h"
#include "tests/support/c/etcd_model.h"
#include "tests/support/c/failing_alloc.h"

#include "tests/support/c/cmocka_fixed.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

enum { CRUNDS = 3, TEXT_MAX = 6 * ETCD_CHUNK_SIZE };

struct place {
    struct etcd_model etcd;
    struct etcd_leader crunds[CRUNDS];
    uint64_t now_ns;
};

static void boot(struct place *p, unsigned i, uint64_t id)
{
    struct etcd_leader_config config = {.id = id, .prefix = "/t"};

    (void)snprintf(config.address, sizeof(config.address), "10.0.0.%u:29400", i + 1);
    etcd_leader_init(&p->crunds[i], &config);
}

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));

    if (!p)
        return -1;
    p->now_ns = 1000 * S;
    etcd_model_init(&p->etcd);
    for (unsigned i = 0; i < CRUNDS; i++)
        boot(p, i, 0xa0 + i);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;

    for (unsigned i = 0; i < CRUNDS; i++)
        etcd_leader_finish(&p->crunds[i]);
    etcd_model_finish(&p->etcd);
    free(p);
    return 0;
}

/* For each row of a table. */
static struct place *start_again(void **state)
{
    assert_int_equal(tear_down(state), 0);
    assert_int_equal(set_up(state), 0);
    return *state;
}

static bool next_work(struct place *p, unsigned i, struct etcd_request *ret)
{
    return etcd_leader_next_work(&p->crunds[i], p->now_ns, ret);
}

/* The request is answered in this way, and not carried out unless outcome is OK. */
static void answer_work(struct place *p, unsigned i, struct etcd_request *request, enum etcd_outcome outcome,
                        int code)
{
    struct etcd_reply reply = {.outcome = outcome, .code = code, .error = "an error"};

    if (outcome == ETCD_OK)
        etcd_model_apply(&p->etcd, request, p->now_ns, &reply);
    etcd_request_finish(request);
    etcd_leader_take_work(&p->crunds[i], &reply, p->now_ns);
    etcd_reply_finish(&reply);
}

static void answer_lease(struct place *p, unsigned i, const struct etcd_request *request)
{
    struct etcd_reply reply = {0};

    etcd_model_apply(&p->etcd, request, p->now_ns, &reply);
    etcd_leader_take_lease(&p->crunds[i], &reply, p->now_ns);
    etcd_reply_finish(&reply);
}

/* Requests that are due now are answered at once, until there is none; outcome: of those that are no lease's. */
static void settle_with(struct place *p, unsigned i, enum etcd_outcome outcome)
{
    struct etcd_request request;
    bool any = true;

    etcd_leader_tick(&p->crunds[i], p->now_ns);
    for (unsigned turn = 0; any; turn++) {
        assert_true(turn < 1000);
        any = etcd_leader_next_lease(&p->crunds[i], p->now_ns, &request);
        if (any)
            answer_lease(p, i, &request);
        if (!next_work(p, i, &request))
            continue;
        any = true;
        answer_work(p, i, &request, outcome, 0);
    }
}

static void settle(struct place *p, unsigned i)
{
    settle_with(p, i, ETCD_OK);
}

/* Time passes; the crunds below n have their turns each 100 ms. */
static void pass(struct place *p, uint64_t ns, unsigned n)
{
    for (uint64_t end_ns = p->now_ns + ns; p->now_ns < end_ns;) {
        p->now_ns += 100 * MS;
        etcd_model_expire(&p->etcd, p->now_ns);
        for (unsigned i = 0; i < n; i++)
            settle(p, i);
    }
}

static void elect(struct place *p, unsigned i)
{
    settle(p, i);
    assert_int_equal(p->crunds[i].role, ETCD_LEADING);
    assert_int_equal(etcd_leader_change(&p->crunds[i]), ETCD_ELECTED);
}

static void assert_deposed(struct place *p, unsigned i, const char *why)
{
    assert_int_equal(p->crunds[i].role, ETCD_FOLLOWING);
    assert_int_equal(etcd_leader_change(&p->crunds[i]), ETCD_DEPOSED);
    assert_int_equal(etcd_leader_change(&p->crunds[i]), ETCD_NO_CHANGE);
    assert_string_equal(p->crunds[i].why, why);
    assert_int_equal(p->crunds[i].term, 0);
}

static void save(struct place *p, unsigned i, uint64_t instance, const char *head, const void *nodes,
                 size_t n)
{
    etcd_leader_save(&p->crunds[i], instance, head, strlen(head), nodes, n);
}

/* ---- which one leads ---- */

static void test_the_first_leads_and_others_follow(void **state)
{
    struct place *p = *state;

    elect(p, 0);
    assert_string_equal(etcd_leader_address(&p->crunds[0]), "");
    settle(p, 1);
    assert_int_equal(p->crunds[1].role, ETCD_FOLLOWING);
    assert_string_equal(etcd_leader_address(&p->crunds[1]), "10.0.0.1:29400");
    assert_int_equal(etcd_leader_change(&p->crunds[1]), ETCD_NO_CHANGE);
    pass(p, 20 * S, 2);
    assert_int_equal(p->crunds[0].role, ETCD_LEADING);
    assert_int_equal(p->crunds[1].role, ETCD_FOLLOWING);
}

static void test_the_term_grows(void **state)
{
    struct place *p = *state;
    int64_t first;

    elect(p, 0);
    first = p->crunds[0].term;
    assert_int_equal(first, etcd_model_find(&p->etcd, "/t/leader")->mod_revision);
    pass(p, 10 * S, 0);
    elect(p, 1);
    assert_true(p->crunds[1].term > first);
}

static void test_a_lost_leader_is_replaced_when_its_lease_has_ended(void **state)
{
    struct place *p = *state;
    uint64_t lost_ns;

    elect(p, 0);
    settle(p, 1);
    lost_ns = p->now_ns;
    while (p->crunds[1].role != ETCD_LEADING) {
        p->now_ns += 100 * MS;
        etcd_model_expire(&p->etcd, p->now_ns);
        settle(p, 1);
        assert_true(p->now_ns < lost_ns + 4 * S);
    }
    assert_true(p->now_ns >= lost_ns + ETCD_LEASE_S * S);
    settle(p, 0);
    assert_deposed(p, 0, "its lease in etcd has run out");
}

/* The key vanishes a moment before the follower looks: the time without a leader is the lease and one look. */
static void test_a_look_follows_the_end_of_the_lease(void **state)
{
    struct place *p = *state;

    elect(p, 0);
    pass(p, 1 * S, 2);
    for (unsigned ms = 0; ms < ETCD_LEASE_S * 1000; ms += 100) {
        p->now_ns += 100 * MS; /* no turn of crund 0 any more */
        settle(p, 1);
        assert_int_equal(p->crunds[1].role, ETCD_FOLLOWING); /* whatever else is known of the leader */
    }
    etcd_model_expire(&p->etcd, p->now_ns);
    p->now_ns += 200 * MS;
    elect(p, 1);
}

/* A save has an unknown outcome: the key is its own, and a new term fences that save. */
static void test_a_leader_takes_its_own_key_over(void **state)
{
    struct place *p = *state;
    struct etcd_request request;
    int64_t term;

    elect(p, 0);
    term = p->crunds[0].term;
    save(p, 0, 1, "head", "nodes", 5);
    assert_true(next_work(p, 0, &request));
    answer_work(p, 0, &request, ETCD_UNKNOWN, 0);
    assert_deposed(p, 0, "it is not known whether etcd has carried out a save");
    settle(p, 1);
    assert_int_equal(p->crunds[1].role, ETCD_FOLLOWING);
    elect(p, 0);
    assert_true(p->crunds[0].term > term);
}

static void test_the_next_process_at_an_address_leads_at_once(void **state)
{
    struct place *p = *state;
    int64_t term;

    elect(p, 0);
    etcd_leader_finish(&p->crunds[0]);
    boot(p, 0, 0xb0);
    elect(p, 0);
    /* Another one with the same address by mistake, which has been there before: not. */
    etcd_leader_finish(&p->crunds[1]);
    boot(p, 1, 0xb1);
    settle(p, 1);
    (void)snprintf(p->crunds[1].config.address, sizeof(p->crunds[1].config.address), "10.0.0.1:29400");
    term = p->crunds[0].term;
    pass(p, 5 * S, 2);
    assert_int_equal(p->crunds[0].role, ETCD_LEADING);
    assert_int_equal(p->crunds[0].term, term);
}

static void test_a_key_that_is_not_understood(void **state)
{
    static const char *const values[] = {"", "crund 2 00 h:1", "crund 1", "\xff\xff", "crund 1 zz h:1"};
    struct place *p = *state;

    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        struct etcd_request put = {.kind = ETCD_TXN, .key = "/other"};
        struct etcd_reply reply;

        assert_true(etcd_request_put(&put, "/t/leader", values[i], strlen(values[i]), 0));
        etcd_model_apply(&p->etcd, &put, p->now_ns, &reply);
        assert_true(reply.succeeded);
        etcd_request_finish(&put);
        etcd_reply_finish(&reply);
        pass(p, S, 1);
        assert_string_equal(etcd_leader_address(&p->crunds[0]), "");
        assert_int_equal(p->crunds[0].role, ETCD_FOLLOWING);
    }
}

/* ---- outcomes of requests ---- */

struct outcome_row {
    enum etcd_outcome outcome;
    int code;
    bool replaced; /* another one has the key by then */
    enum etcd_role role;
    const char *why;   /* NULL: not deposed */
    uint64_t again_ms; /* not before; 0: at once */
};

static void replace_leader(struct place *p)
{
    struct etcd_request put = {.kind = ETCD_TXN,
                               .key = "/t/leader",
                               .revision = etcd_model_find(&p->etcd, "/t/leader")->mod_revision};
    static const char value[] = "crund 1 00000000000000ff 10.0.0.9:1";
    struct etcd_reply reply;

    assert_true(etcd_request_put(&put, "/t/leader", value, sizeof(value) - 1, 0));
    etcd_model_apply(&p->etcd, &put, p->now_ns, &reply);
    assert_true(reply.succeeded);
    etcd_request_finish(&put);
    etcd_reply_finish(&reply);
}

static void check_outcome(struct place *p, const struct outcome_row *row, bool is_save)
{
    struct etcd_request request;
    uint64_t mark;

    elect(p, 0);
    if (is_save)
        save(p, 0, 7, "head", "nodes", 5);
    mark = etcd_leader_want_mark(&p->crunds[0]);
    assert_true(next_work(p, 0, &request));
    assert_int_equal(request.kind, is_save ? ETCD_TXN : ETCD_RANGE);
    assert_true(p->crunds[0].done < mark);
    if (row->replaced)
        replace_leader(p);
    answer_work(p, 0, &request, row->outcome, row->code);
    assert_int_equal(p->crunds[0].role, row->role);
    assert_int_equal(p->crunds[0].done >= mark, row->outcome == ETCD_OK && !row->replaced);
    assert_int_equal(p->crunds[0].trouble[0] != '\0', row->outcome != ETCD_OK);
    if (row->why) {
        assert_deposed(p, 0, row->why);
        return;
    }
    if (row->again_ms > 0) {
        p->now_ns += (row->again_ms - 1) * MS;
        assert_false(next_work(p, 0, &request));
        p->now_ns += MS;
        assert_true(etcd_leader_deadline(&p->crunds[0]) <= p->now_ns);
        settle(p, 0);
        assert_true(p->crunds[0].done >= mark);
    }
    assert_int_equal(etcd_model_find(&p->etcd, "/t/jobs/0000000000000007/head") != NULL, is_save);
}

static void check_outcomes(void **state, const struct outcome_row *rows, size_t n, bool is_save)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(tear_down(state), 0);
        assert_int_equal(set_up(state), 0);
        check_outcome(*state, &rows[i], is_save);
    }
}

static void test_outcomes_of_a_save(void **state)
{
    static const struct outcome_row rows[] = {
        {.outcome = ETCD_OK, .role = ETCD_LEADING},
        {.outcome = ETCD_NOT_SENT, .role = ETCD_LEADING, .again_ms = 50},
        {.outcome = ETCD_REFUSED, .code = 14, .role = ETCD_LEADING, .again_ms = 500},
        {.outcome = ETCD_UNKNOWN,
         .role = ETCD_FOLLOWING,
         .why = "it is not known whether etcd has carried out a save"},
        {.outcome = ETCD_OK, .replaced = true, .role = ETCD_FOLLOWING, .why = "another crund leads"},
    };

    check_outcomes(state, rows, sizeof(rows) / sizeof(*rows), true);
}

static void test_outcomes_of_a_check(void **state)
{
    static const struct outcome_row rows[] = {
        {.outcome = ETCD_OK, .role = ETCD_LEADING},
        {.outcome = ETCD_NOT_SENT, .role = ETCD_LEADING, .again_ms = 50},
        {.outcome = ETCD_REFUSED, .code = 14, .role = ETCD_LEADING, .again_ms = 50},
        {.outcome = ETCD_UNKNOWN, .role = ETCD_LEADING, .again_ms = 50}, /* it reads alone */
        {.outcome = ETCD_OK, .replaced = true, .role = ETCD_FOLLOWING, .why = "another crund leads"},
    };

    check_outcomes(state, rows, sizeof(rows) / sizeof(*rows), false);
}

static void test_outcomes_of_a_campaign(void **state)
{
    static const struct {
        enum etcd_outcome outcome;
        int code;
        bool is_first; /* another one is */
        enum etcd_role role;
        bool keeps_lease;
        uint64_t again_ms;
    } rows[] = {
        {ETCD_OK, 0, false, ETCD_LOADING, true, 0},
        {ETCD_OK, 0, true, ETCD_FOLLOWING, true, 400},
        {ETCD_NOT_SENT, 0, false, ETCD_FOLLOWING, true, 50},
        {ETCD_UNKNOWN, 0, false, ETCD_FOLLOWING, true, 50},
        {ETCD_REFUSED, 14, false, ETCD_FOLLOWING, true, 50},
        {ETCD_REFUSED, ETCD_CODE_NOT_FOUND, false, ETCD_FOLLOWING, false, 50},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct etcd_request request;
        struct place *p = start_again(state);

        assert_true(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request));
        answer_lease(p, 0, &request);
        assert_true(next_work(p, 0, &request));
        answer_work(p, 0, &request, ETCD_OK, 0); /* the key does not exist */
        assert_true(next_work(p, 0, &request));
        assert_int_equal(request.kind, ETCD_TXN);
        assert_int_equal(p->crunds[0].role, ETCD_CAMPAIGNING);
        if (rows[i].is_first)
            elect(p, 1);
        answer_work(p, 0, &request, rows[i].outcome, rows[i].code);
        assert_int_equal(p->crunds[0].role, rows[i].role);
        assert_int_equal(p->crunds[0].lease != 0, rows[i].keeps_lease);
        assert_int_equal(etcd_leader_change(&p->crunds[0]), ETCD_NO_CHANGE);
        if (rows[i].role == ETCD_FOLLOWING) {
            p->now_ns += (rows[i].again_ms - 1) * MS;
            assert_false(next_work(p, 0, &request));
            p->now_ns += MS;
        }
        settle(p, 0);
        assert_int_equal(p->crunds[0].role, rows[i].is_first ? ETCD_FOLLOWING : ETCD_LEADING);
    }
}

/* It was carried out, and the answer was lost: the next look shows the own key, which is taken over for another term. */
static void test_a_campaign_whose_answer_is_lost(void **state)
{
    struct place *p = *state;
    struct etcd_request request;
    struct etcd_reply reply, lost = {.outcome = ETCD_UNKNOWN, .error = "no answer"};
    int64_t revision;

    assert_true(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request));
    answer_lease(p, 0, &request);
    assert_true(next_work(p, 0, &request));
    answer_work(p, 0, &request, ETCD_OK, 0);
    assert_true(next_work(p, 0, &request));
    etcd_model_apply(&p->etcd, &request, p->now_ns, &reply);
    revision = reply.revision;
    etcd_request_finish(&request);
    etcd_reply_finish(&reply);
    etcd_leader_take_work(&p->crunds[0], &lost, p->now_ns);
    p->now_ns += 50 * MS;
    elect(p, 0);
    assert_true(p->crunds[0].term > revision);
}

/* The leadership has ended by a save with an unknown outcome, and the key is its own. A campaign for which memory is out is not sent:
 * without its put it would succeed, and the term would be the old one. */
static void test_a_campaign_without_memory(void **state)
{
    bool fired = true;

    for (size_t k = 1; fired; k++) {
        struct place *p = start_again(state);
        struct etcd_request request;
        int64_t term;

        elect(p, 0);
        term = p->crunds[0].term;
        save(p, 0, 1, "head", "nodes", 5);
        assert_true(next_work(p, 0, &request));
        answer_work(p, 0, &request, ETCD_UNKNOWN, 0);
        assert_deposed(p, 0, "it is not known whether etcd has carried out a save");
        assert_true(next_work(p, 0, &request)); /* a look */
        answer_work(p, 0, &request, ETCD_OK, 0);
        failing_alloc_arm(k);
        assert_true(next_work(p, 0, &request) == !failing_alloc_fired());
        fired = failing_alloc_fired();
        failing_alloc_arm(0);
        if (!fired)
            answer_work(p, 0, &request, ETCD_OK, 0);
        assert_int_equal(p->crunds[0].role, fired ? ETCD_FOLLOWING : ETCD_LOADING);
        p->now_ns += 50 * MS;
        elect(p, 0);
        assert_true(p->crunds[0].term > term);
        assert_true(fired || k > 2); /* the list of ops, and a value */
    }
}

/* ---- the lease ---- */

static void test_outcomes_of_a_renewal(void **state)
{
    static const struct {
        struct etcd_reply reply; /* lease is filled in */
        bool leads;
    } rows[] = {
        {{.outcome = ETCD_OK, .ttl_s = 2}, true},
        {{.outcome = ETCD_OK, .ttl_s = 0}, false}, /* it has expired there */
        {{.outcome = ETCD_NOT_SENT}, true},
        {{.outcome = ETCD_UNKNOWN}, true},
        {{.outcome = ETCD_REFUSED, .code = 14}, true},
        {{.outcome = ETCD_REFUSED, .code = ETCD_CODE_NOT_FOUND}, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct etcd_reply reply = rows[i].reply;
        struct etcd_request request;
        struct place *p = start_again(state);

        elect(p, 0);
        p->now_ns += 500 * MS; /* a quarter of the lease */
        assert_true(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request));
        assert_int_equal(request.kind, ETCD_KEEPALIVE);
        assert_false(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request)); /* one at a time */
        reply.lease = p->crunds[0].lease;
        etcd_leader_take_lease(&p->crunds[0], &reply, p->now_ns);
        if (!rows[i].leads) {
            assert_deposed(p, 0, "its lease in etcd has run out");
            continue;
        }
        assert_int_equal(p->crunds[0].role, ETCD_LEADING);
        p->now_ns += 50 * MS; /* a failed one is repeated */
        assert_int_equal(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request),
                         reply.outcome != ETCD_OK);
    }
}

/* Earlier than etcd's clock ends it, counted from the request. */
static void test_a_leader_stops_by_its_own_clock(void **state)
{
    struct place *p = *state;
    uint64_t begun_ns = p->now_ns;

    elect(p, 0);
    assert_true(etcd_leader_deadline(&p->crunds[0]) <= begun_ns + ETCD_LEASE_S * S * 7 / 8);
    etcd_leader_tick(&p->crunds[0], begun_ns + ETCD_LEASE_S * S * 7 / 8 - 1);
    assert_int_equal(p->crunds[0].role, ETCD_LEADING);
    assert_true(etcd_leader_holds(&p->crunds[0], begun_ns + ETCD_LEASE_S * S * 7 / 8 - 1));
    p->now_ns = begun_ns + ETCD_LEASE_S * S * 7 / 8;
    assert_false(etcd_leader_holds(&p->crunds[0], p->now_ns)); /* also before the tick */
    etcd_leader_tick(&p->crunds[0], p->now_ns);
    assert_deposed(p, 0, "its lease in etcd has run out");
}

/* Both requests are under way, and neither is answered. */
static void test_the_end_of_the_lease_is_a_deadline(void **state)
{
    struct place *p = *state;
    struct etcd_request request;
    uint64_t until_ns;

    elect(p, 0);
    until_ns = p->crunds[0].lease_until_ns;
    p->now_ns += 500 * MS;
    assert_true(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request));
    assert_true(next_work(p, 0, &request));
    assert_true(etcd_leader_deadline(&p->crunds[0]) == until_ns);
}

/* What is to be saved cannot be composed: no check may complete the mark of that change. */
static void test_a_save_without_memory_ends_the_leadership(void **state)
{
    struct place *p = *state;
    struct etcd_leader *l = &p->crunds[0];
    uint64_t mark;

    etcd_leader_resign(l); /* one that does not lead has nothing to give up */
    assert_int_equal(etcd_leader_change(l), ETCD_NO_CHANGE);
    elect(p, 0);
    etcd_leader_resign(l);
    mark = etcd_leader_want_mark(l);
    assert_false(etcd_leader_holds(l, p->now_ns));
    assert_deposed(p, 0, "memory is out");
    assert_true(l->done < mark);
}

/* It cannot use a job; that may be gone after a minute. */
static void test_one_that_retires_leaves_the_lead_for_a_minute(void **state)
{
    struct place *p = *state;

    elect(p, 0);
    etcd_leader_retire(&p->crunds[0], "it cannot use a job in etcd", p->now_ns);
    assert_deposed(p, 0, "it cannot use a job in etcd");
    pass(p, (ETCD_LEASE_S + 1) * S, 1);
    assert_null(etcd_model_find(&p->etcd, "/t/leader")); /* which makes room for another crund */
    settle(p, 1);
    assert_int_equal(p->crunds[1].role, ETCD_LEADING);
    pass(p, 55 * S - 200 * MS, 1); /* crund 1 is lost meanwhile */
    assert_int_equal(p->crunds[0].role, ETCD_FOLLOWING);
    assert_int_equal(p->crunds[0].lease, 0);
    assert_true(etcd_leader_deadline(&p->crunds[0]) > p->now_ns);
    pass(p, 2 * S, 1);
    elect(p, 0);
}

/* The answer to a save comes when the leadership has ended: nothing is done with it. */
static void test_a_save_of_an_earlier_leadership(void **state)
{
    struct place *p = *state;
    struct etcd_leader *l = &p->crunds[0];
    struct etcd_request request;
    uint64_t mark;

    elect(p, 0);
    save(p, 0, 1, "a", "", 0);
    mark = etcd_leader_want_mark(l);
    assert_true(next_work(p, 0, &request));
    p->now_ns = l->lease_until_ns;
    etcd_leader_tick(l, p->now_ns);
    assert_deposed(p, 0, "its lease in etcd has run out");
    answer_work(p, 0, &request, ETCD_OK, 0);
    assert_true(l->done < mark);
    elect(p, 0);
}

/* The grant is asked for, and its answer comes when it has run out. */
static void test_a_late_grant_is_no_lease(void **state)
{
    struct place *p = *state;
    struct etcd_reply reply = {.outcome = ETCD_OK, .lease = 5, .ttl_s = 2};
    struct etcd_request request;

    assert_true(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request));
    assert_int_equal(request.kind, ETCD_GRANT);
    p->now_ns += 2 * S;
    etcd_leader_take_lease(&p->crunds[0], &reply, p->now_ns);
    assert_int_equal(p->crunds[0].lease, 0);
    assert_true(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request));
    assert_int_equal(request.kind, ETCD_GRANT);
}

/* ---- marks ---- */

static void test_a_mark_waits_for_a_request_that_was_begun_later(void **state)
{
    struct place *p = *state;
    struct etcd_leader *l = &p->crunds[0];
    struct etcd_request request;
    uint64_t early, late;

    elect(p, 0);
    early = etcd_leader_want_mark(l);
    assert_true(next_work(p, 0, &request));
    late = etcd_leader_want_mark(l); /* decided while the look is under way */
    answer_work(p, 0, &request, ETCD_OK, 0);
    assert_true(l->done >= early);
    assert_true(l->done < late);
    settle(p, 0);
    assert_true(l->done >= late);
}

static void test_saves_while_one_is_under_way_are_the_next_batch(void **state)
{
    struct place *p = *state;
    struct etcd_leader *l = &p->crunds[0];
    struct etcd_request request;
    uint64_t early, late;

    elect(p, 0);
    save(p, 0, 1, "a", "", 0);
    early = etcd_leader_want_mark(l);
    assert_true(next_work(p, 0, &request));
    save(p, 0, 1, "b", "", 0);
    save(p, 0, 2, "c", "", 0);
    late = etcd_leader_want_mark(l);
    assert_true(late > early);
    assert_false(next_work(p, 0, &(struct etcd_request){0}));
    answer_work(p, 0, &request, ETCD_OK, 0);
    assert_true(l->done >= early && l->done < late);
    assert_null(etcd_model_find(&p->etcd, "/t/jobs/0000000000000002/head"));
    settle(p, 0);
    assert_true(l->done >= late);
    assert_non_null(etcd_model_find(&p->etcd, "/t/jobs/0000000000000002/head"));
    assert_int_equal(l->n_saves, 2); /* both jobs in one */
}

/* ---- jobs ---- */

struct loaded {
    unsigned n, n_damaged;
    uint64_t instance;
    struct buf text;
};

static void take_job(void *data, uint64_t instance, const uint8_t *text, size_t n)
{
    struct loaded *l = data;

    l->n++;
    l->n_damaged += !text;
    l->instance = instance;
    buf_reset(&l->text);
    if (text)
        assert_int_equal(buf_append(&l->text, text, n), 0);
}

static struct loaded load(struct place *p, unsigned i)
{
    struct loaded l = {0};

    pass(p, 5 * S, 0);
    elect(p, i);
    etcd_leader_loaded(&p->crunds[i], take_job, &l);
    return l;
}

static void test_jobs_of_each_size(void **state)
{
    static const size_t sizes[] = {0,
                                   1,
                                   ETCD_CHUNK_SIZE - 1,
                                   ETCD_CHUNK_SIZE,
                                   ETCD_CHUNK_SIZE + 1,
                                   3 * ETCD_CHUNK_SIZE, /* two transactions */
                                   TEXT_MAX};
    char *nodes = malloc(TEXT_MAX);

    assert_non_null(nodes);
    for (size_t i = 0; i < TEXT_MAX; i++)
        nodes[i] = (char)('a' + (i * i + i / 1000) % 26);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct place *p;
        struct loaded l;

        assert_int_equal(tear_down(state), 0);
        assert_int_equal(set_up(state), 0);
        p = *state;
        elect(p, 0);
        save(p, 0, UINT64_MAX - i, "the head\nof it", nodes, sizes[i]);
        settle(p, 0);
        l = load(p, 1);
        assert_int_equal(l.n, 1);
        assert_int_equal(l.n_damaged, 0);
        assert_true(l.instance == UINT64_MAX - i);
        assert_int_equal(buf_size(&l.text), 14 + sizes[i]);
        assert_memory_equal(buf_bytes(&l.text), "the head\nof it", 14);
        assert_memory_equal(buf_bytes(&l.text) + 14, nodes, sizes[i]);
        buf_finish(&l.text);
    }
    free(nodes);
}

/* Each part fails once, and is sent again as it was. */
static void test_parts_that_were_not_sent(void **state)
{
    struct place *p = *state;
    char *nodes = malloc(TEXT_MAX);
    struct etcd_request request;
    struct loaded l;

    assert_non_null(nodes);
    for (size_t i = 0; i < TEXT_MAX; i++)
        nodes[i] = (char)('a' + i / 10007 % 26);
    elect(p, 0);
    save(p, 0, 1, "head", nodes, TEXT_MAX);
    while (next_work(p, 0, &request)) {
        answer_work(p, 0, &request, ETCD_NOT_SENT, 0);
        p->now_ns += 50 * MS;
        assert_true(next_work(p, 0, &request));
        answer_work(p, 0, &request, ETCD_OK, 0);
    }
    l = load(p, 1);
    assert_int_equal(l.n_damaged, 0);
    assert_int_equal(buf_size(&l.text), 4 + TEXT_MAX);
    assert_memory_equal(buf_bytes(&l.text) + 4, nodes, TEXT_MAX);
    buf_finish(&l.text);
    free(nodes);
}

static void test_more_jobs_than_one_read_has(void **state)
{
    struct place *p = *state;
    struct loaded l;

    elect(p, 0);
    for (uint64_t i = 1; i <= 200; i++)
        save(p, 0, i, "h", "n", 1);
    settle(p, 0);
    l = load(p, 1);
    assert_int_equal(l.n, 200);
    assert_int_equal(l.n_damaged, 0);
    assert_int_equal(l.instance, 200);
    buf_finish(&l.text);
}

static void test_unchanged_nodes_are_not_written_again(void **state)
{
    struct place *p = *state;
    struct loaded l;
    uint64_t n_puts;

    elect(p, 0);
    save(p, 0, 1, "a", "nodes", 5);
    settle(p, 0);
    n_puts = p->etcd.n_puts;
    save(p, 0, 1, "b", "nodes", 5);
    settle(p, 0);
    assert_int_equal(p->etcd.n_puts - n_puts, 1);
    l = load(p, 1); /* the next leader knows them, too */
    buf_finish(&l.text);
    n_puts = p->etcd.n_puts;
    save(p, 1, 1, "c", "nodes", 5);
    settle(p, 1);
    assert_int_equal(p->etcd.n_puts - n_puts, 1);
    save(p, 1, 1, "c", "others", 6);
    settle(p, 1);
    assert_int_equal(p->etcd.n_puts - n_puts, 3);
    l = load(p, 2);
    assert_memory_equal(buf_bytes(&l.text), "cothers", 7);
    assert_int_equal(p->etcd.n_keys, 3); /* the leader's, the head, one chunk: the old one is removed */
    buf_finish(&l.text);
}

static void test_a_forgotten_job_leaves_no_key(void **state)
{
    struct place *p = *state;
    struct loaded l;

    elect(p, 0);
    save(p, 0, 1, "a", "nodes", 5);
    save(p, 0, 2, "b", "nodes", 5);
    settle(p, 0);
    etcd_leader_forget(&p->crunds[0], 1);
    settle(p, 0);
    assert_int_equal(p->etcd.n_keys, 3);
    l = load(p, 1);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.instance, 2);
    buf_finish(&l.text);
}

static void put_key(struct place *p, const char *key, const char *value)
{
    struct etcd_request put = {.kind = ETCD_TXN, .key = "/other"};
    struct etcd_reply reply;

    assert_true(etcd_request_put(&put, key, value, strlen(value), 0));
    etcd_model_apply(&p->etcd, &put, p->now_ns, &reply);
    assert_true(reply.succeeded);
    etcd_request_finish(&put);
    etcd_reply_finish(&reply);
}

/* A read that got no answer in its time is repeated with fewer keys, as its size may be the cause. */
static void test_a_load_that_takes_too_long_is_made_smaller(void **state)
{
    static const struct {
        enum etcd_outcome outcome;
        uint32_t limit; /* of the request with that outcome */
    } rows[] = {
        {ETCD_NOT_SENT, 64}, {ETCD_REFUSED, 64}, {ETCD_UNKNOWN, 64}, {ETCD_UNKNOWN, 32}, {ETCD_UNKNOWN, 16},
        {ETCD_UNKNOWN, 8},   {ETCD_UNKNOWN, 4},  {ETCD_UNKNOWN, 2},  {ETCD_UNKNOWN, 1},  {ETCD_OK, 1},
    };
    struct place *p = *state;
    struct etcd_request request;

    assert_true(etcd_leader_next_lease(&p->crunds[0], p->now_ns, &request));
    answer_lease(p, 0, &request);
    for (unsigned i = 0; i < 2; i++) { /* a look, and the campaign */
        assert_true(next_work(p, 0, &request));
        answer_work(p, 0, &request, ETCD_OK, 0);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        assert_int_equal(p->crunds[0].role, ETCD_LOADING);
        assert_true(next_work(p, 0, &request));
        assert_int_equal(request.limit, rows[i].limit);
        answer_work(p, 0, &request, rows[i].outcome, 14);
        p->now_ns += 50 * MS;
    }
    assert_int_equal(p->crunds[0].role, ETCD_LEADING);
    pass(p, 10 * S, 0);
    elect(p, 0);
    assert_int_equal(p->crunds[0].load_keys, 64);
}

static void test_a_damaged_job_is_reported(void **state)
{
    static const char *const heads[] = {
        "",
        "\n",
        "crun-job 1\n",
        "crun-job 2 0000000000000001 00000 0000000000000000\nhead",
        "crun-job 1 0000000000000001 00001 0000000000000000\nhead", /* the chunk is missing */
        "crun-job 1 0000000000000001 00000 0000000000000000\nhead", /* the sum is another */
        "no line"};
    struct place *p;

    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
        struct loaded l;

        assert_int_equal(tear_down(state), 0);
        assert_int_equal(set_up(state), 0);
        p = *state;
        put_key(p, "/t/jobs/0000000000000001/head", heads[i]);
        put_key(p, "/t/jobs/strange", "");
        l = load(p, 0);
        assert_int_equal(l.n, 1);
        assert_int_equal(l.n_damaged, 1);
        save(p, 0, 1, "anew", "n", 1); /* it begins anew */
        settle(p, 0);
        buf_finish(&l.text);
        l = load(p, 1);
        assert_int_equal(l.n_damaged, 0);
        assert_memory_equal(buf_bytes(&l.text), "anewn", 5);
        buf_finish(&l.text);
    }
}

static void count_job(void *data, uint64_t instance, const uint8_t *text, size_t n)
{
    struct loaded *l = data;

    l->n++;
    l->n_damaged += !text;
}

/* A job that cannot be read for want of memory is not damaged: it would begin anew, and its charges would be forgotten. */
static void test_a_load_without_memory_ends_the_leadership(void **state)
{
    bool fired = true;

    for (size_t k = 1; fired; k++) {
        struct place *p = start_again(state);
        struct loaded l = {0};

        elect(p, 0);
        save(p, 0, 1, "head", "nodes", 5);
        settle(p, 0);
        pass(p, 5 * S, 0);
        elect(p, 1);
        failing_alloc_arm(k);
        etcd_leader_loaded(&p->crunds[1], count_job, &l);
        fired = failing_alloc_fired();
        failing_alloc_arm(0);
        assert_int_equal(l.n_damaged, 0);
        assert_int_equal(l.n, fired ? 0 : 1);
        assert_int_equal(p->crunds[1].role, fired ? ETCD_FOLLOWING : ETCD_LEADING);
        if (fired)
            assert_deposed(p, 1, "memory is out");
        else
            assert_true(k > 2); /* a job, and its text */
    }
}

static void test_chunks_without_a_head_are_removed(void **state)
{
    struct place *p = *state;
    struct loaded l;

    put_key(p, "/t/jobs/0000000000000001/nodes-0000000000000001-00000", "a");
    l = load(p, 0);
    assert_int_equal(l.n, 0);
    settle(p, 0);
    assert_int_equal(p->etcd.n_keys, 1); /* the leader's */
}

/* Of whatever version, as from an etcd that was restored from a backup. */
static void test_chunks_of_other_versions_are_removed(void **state)
{
    struct place *p = *state;

    elect(p, 0);
    put_key(p, "/t/jobs/0000000000000001/nodes-0000000000000000-00000", "a");
    put_key(p, "/t/jobs/0000000000000001/nodes-ffffffffffffffff-00000", "a");
    put_key(p, "/t/jobs/0000000000000002/nodes-ffffffffffffffff-00000", "of another job");
    save(p, 0, 1, "head", "n", 1);
    settle(p, 0);
    assert_int_equal(p->etcd.n_keys, 4); /* the leader's, the head, its chunk, the other job's */
}

/* What a deposed leader still wanted to save is not saved by it later, when it leads again. */
static void test_a_deposed_leader_drops_its_saves(void **state)
{
    struct place *p = *state;

    elect(p, 0);
    save(p, 0, 1, "old", "", 0);
    p->now_ns += 5 * S;
    etcd_leader_tick(&p->crunds[0], p->now_ns);
    assert_deposed(p, 0, "its lease in etcd has run out");
    save(p, 0, 2, "later", "", 0);
    etcd_model_expire(&p->etcd, p->now_ns);
    elect(p, 0);
    pass(p, S, 1);
    assert_int_equal(p->etcd.n_keys, 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(test_the_first_leads_and_others_follow),
        TEST(test_the_term_grows),
        TEST(test_a_lost_leader_is_replaced_when_its_lease_has_ended),
        TEST(test_a_look_follows_the_end_of_the_lease),
        TEST(test_a_leader_takes_its_own_key_over),
        TEST(test_the_next_process_at_an_address_leads_at_once),
        TEST(test_a_key_that_is_not_understood),
        TEST(test_outcomes_of_a_save),
        TEST(test_outcomes_of_a_check),
        TEST(test_outcomes_of_a_campaign),
        TEST(test_a_campaign_whose_answer_is_lost),
        TEST(test_a_campaign_without_memory),
        TEST(test_outcomes_of_a_renewal),
        TEST(test_a_leader_stops_by_its_own_clock),
        TEST(test_the_end_of_the_lease_is_a_deadline),
        TEST(test_a_save_without_memory_ends_the_leadership),
        TEST(test_one_that_retires_leaves_the_lead_for_a_minute),
        TEST(test_a_save_of_an_earlier_leadership),
        TEST(test_a_late_grant_is_no_lease),
        TEST(test_a_mark_waits_for_a_request_that_was_begun_later),
        TEST(test_saves_while_one_is_under_way_are_the_next_batch),
        TEST(test_jobs_of_each_size),
        TEST(test_parts_that_were_not_sent),
        TEST(test_more_jobs_than_one_read_has),
        TEST(test_unchanged_nodes_are_not_written_again),
        TEST(test_a_forgotten_job_leaves_no_key),
        TEST(test_a_load_that_takes_too_long_is_made_smaller),
        TEST(test_a_damaged_job_is_reported),
        TEST(test_a_load_without_memory_ends_the_leadership),
        TEST(test_chunks_without_a_head_are_removed),
        TEST(test_chunks_of_other_versions_are_removed),
        TEST(test_a_deposed_leader_drops_its_saves),
#undef TEST
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
