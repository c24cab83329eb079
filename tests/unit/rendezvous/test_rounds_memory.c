/*
 * Memory that runs out in the rounds and in their JSON: whichever allocation fails, one hello is refused or
 * one message is not made, and everything else goes on.
 */

#include <stdlib.h>
#include <string.h>
#include <cjson/cJSON.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/frame.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/session/session_json.h"
#include "tests/support/c/failing_alloc.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_NODES = 70 }; /* the tables grow on the way */

struct crowd {
    struct rounds rounds;
    struct rounds_conn sessions[N_NODES];
    unsigned n_started, n_refused;
};

static void *cjson_malloc(size_t n)
{
    return malloc(n);
}

static void cjson_free(void *p)
{
    free(p);
}

/* cJSON is a shared library: its allocations pass through here, and so through failing_alloc. */
static int hook_cjson(void **state)
{
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = cjson_malloc, .free_fn = cjson_free});
    return 0;
}

static void crowd_init(struct crowd *c)
{
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;

    memset(c, 0, sizeof(*c));
    config.seed = 3;
    rounds_init(&c->rounds, &config);
}

static void crowd_step(struct crowd *c, struct rounds_event event)
{
    struct rounds_action action;

    event.now_ns = 1000000000;
    rounds_step(&c->rounds, &event);
    while (rounds_next(&c->rounds, &action)) {
        if (action.kind != ROUNDS_DO_SEND)
            continue;
        c->n_started += action.view.kind == SESSION_VIEW_START;
        if (action.view.kind == SESSION_VIEW_REFUSED) {
            assert_non_null(strstr(action.view.cause.text, "has no memory for another"));
            c->n_refused++;
        }
    }
}

static struct session_hello hello_of(uint64_t i)
{
    struct session_hello hello = {
        .job = "j",
        .params = SESSION_PARAMS_DEFAULT,
        .nonce = {1, i},
        .attempt = 1,
        .host = "n",
        .role = "r",
        .n_workers = 1,
        .node_rank = -1,
        .report = {.phase = SESSION_READY, .generation = -1, .group_rank = -1, .port = 1}};

    hello.params.min_nodes = hello.params.max_nodes = N_NODES;
    return hello;
}

static void crowd_join(struct crowd *c, unsigned i)
{
    struct session_hello hello = hello_of(i);

    rounds_conn_init(&c->sessions[i]);
    crowd_step(c, (struct rounds_event){.kind = ROUNDS_HELLO,
                                        .session = &c->sessions[i],
                                        .hello = &hello,
                                        .peer = "10.0.0.1",
                                        .local = "10.0.0.2"});
}

/* Everybody joins, whoever is refused once more. False: the armed failure did not happen. */
static bool crowd_meets(struct crowd *c, size_t k)
{
    bool fired;

    crowd_init(c);
    failing_alloc_arm(k);
    for (unsigned i = 0; i < N_NODES; i++) {
        unsigned n_refused = c->n_refused;

        crowd_join(c, i);
        if (c->n_refused > n_refused)
            crowd_join(c, i);
    }
    fired = failing_alloc_fired();
    failing_alloc_arm(0);
    return fired;
}

static void a_node_without_memory_is_refused_and_may_come_again(void **state)
{
    static struct crowd c;
    size_t live = failing_alloc_live(), k = 1;
    bool fired;

    do {
        fired = crowd_meets(&c, k++);
        assert_int_equal(c.n_refused, fired ? 1 : 0);
        assert_int_equal(c.n_started, N_NODES);
        rounds_finish(&c.rounds);
        assert_int_equal(failing_alloc_live(), live);
    } while (fired);
    assert_in_range(k, N_NODES, 2 * N_NODES);
}

static const struct session_view a_view = {.kind = SESSION_VIEW_START,
                                           .n_missing = 2,
                                           .missing = {1, 2},
                                           .place = {0, 1, 0, 1, 0, 1, "10.0.0.1", 1},
                                           .cause = {.kind = SESSION_CAUSE_LOST, .host = "n"}};

static int put(int which, struct buf *out)
{
    struct session_hello hello = hello_of(1);

    hello.report.cause = a_view.cause;
    if (which == 0)
        return session_json_put_hello(out, &hello);
    return which == 1 ? session_json_put_report(out, &hello.report) : session_json_put_view(out, &a_view);
}

static void a_message_without_memory_is_not_made(void **state)
{
    for (int which = 0; which < 3; which++) {
        size_t live = failing_alloc_live(), k = 1;
        int r;

        do {
            struct buf out = {0};

            failing_alloc_arm(k++);
            r = put(which, &out);
            assert_true(r == (failing_alloc_fired() ? -ENOMEM : 0));
            failing_alloc_arm(0);
            assert_true((buf_size(&out) > 0) == (r == 0));
            buf_finish(&out);
            assert_int_equal(failing_alloc_live(), live);
        } while (r != 0);
        assert_true(k > 5);
    }
}

static bool get(int which, const struct buf *frame)
{
    static struct session_json_message message;
    static struct session_view view;
    const uint8_t *body = buf_bytes(frame) + FRAME_HEADER_SIZE;
    size_t n = buf_size(frame) - FRAME_HEADER_SIZE;
    char error[SESSION_JSON_ERROR_SIZE];

    return which < 2 ? session_json_get_message(body, n, &message, error)
                     : session_json_get_view(body, n, &view, error);
}

static void a_message_without_memory_is_not_understood(void **state)
{
    for (int which = 0; which < 3; which++) {
        _cleanup_(buf_finish) struct buf frame = {0};
        size_t live, k = 1;
        bool understood;

        assert_int_equal(put(which, &frame), 0);
        live = failing_alloc_live();
        do {
            failing_alloc_arm(k++);
            understood = get(which, &frame);
            assert_true(understood == !failing_alloc_fired());
            failing_alloc_arm(0);
            assert_int_equal(failing_alloc_live(), live);
        } while (!understood);
    }
}

static void save(struct buf *out)
{
    static struct crowd c;

    (void)crowd_meets(&c, 0);
    assert_int_equal(rounds_json_save(out, list_entry(c.rounds.jobs.next, struct rounds_job, in_rounds)), 0);
    rounds_finish(&c.rounds);
}

static void a_state_without_memory_is_not_loaded(void **state)
{
    _cleanup_(buf_finish) struct buf disk = {0};
    static struct crowd c;
    size_t live, k = 1;
    bool loaded;

    save(&disk);
    live = failing_alloc_live();
    do {
        char error[ROUNDS_JSON_ERROR_SIZE];

        crowd_init(&c);
        failing_alloc_arm(k);
        loaded = rounds_json_load(&c.rounds, buf_bytes(&disk), buf_size(&disk), 1, error);
        assert_true(loaded == !failing_alloc_fired());
        failing_alloc_arm(0);
        assert_int_equal(c.rounds.n_nodes, loaded ? N_NODES : 0);
        assert_int_equal(c.rounds.n_jobs, loaded ? 1 : 0);
        rounds_finish(&c.rounds);
        assert_int_equal(failing_alloc_live(), live);
        k += 1 + k / 16; /* there are thousands, much alike */
    } while (!loaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_without_memory_is_refused_and_may_come_again),
        cmocka_unit_test(a_message_without_memory_is_not_made),
        cmocka_unit_test(a_message_without_memory_is_not_understood),
        cmocka_unit_test(a_state_without_memory_is_not_loaded),
    };

    return cmocka_run_group_tests(tests, hook_cjson, NULL);
}
