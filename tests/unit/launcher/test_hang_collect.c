/* What agents send about their ranks becomes one report; nothing of it is believed that cannot be. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "launcher/ctl/hang_message_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/node_ranks_json.h"
#include "launcher/watch/hang_collect.h"
#include "proto/frame.h"
#include "rendezvous/session/session_json.h"

#include "tests/support/c/cmocka_fixed.h"

enum { NODES = 3, NODE_RANKS = 10, RANKS = NODES * NODE_RANKS };

static const struct agent_message to_first = {.to = 0, .generation = 4};

static void make_ranks(int node, struct hang_rank ranks[NODE_RANKS])
{
    for (int i = 0; i < NODE_RANKS; i++) {
        int rank = node * NODE_RANKS + i;
        ranks[i] = (struct hang_rank){
            .rank = rank,
            .pid = 1000 + rank,
            .state = 'S',
            .kind = STACK_COLLECTIVE,
            .n_collectives = 1,
            .collectives = {{.group = UINT64_MAX - 1,
                             .number = rank == 17 ? 4 : 5,
                             .kind = rank == 17 ? WORKER_COLLECTIVE_NONE : WORKER_COLLECTIVE_ALL_REDUCE,
                             .n_ranks = RANKS,
                             .is_world = true}}};
        (void)snprintf(ranks[i].text, sizeof(ranks[i].text), "in all-reduce"); /* fits */
        if (rank == 17) {
            ranks[i].kind = STACK_OTHER;
            (void)snprintf(ranks[i].text, sizeof(ranks[i].text), "loop at train.py:7"); /* fits */
        }
    }
}

/* The bodies of the frames in buf, one after the other. */
static bool next_body(struct buf *frames, struct hang_message *ret)
{
    static struct session_json_message at_rendezvous;
    struct frame_reader reader = {.stage = FRAME_STAGE_FRAMES};
    char error[SESSION_JSON_ERROR_SIZE];
    struct frame frame;
    size_t size;

    if (buf_size(frames) == 0)
        return false;
    assert_int_equal(frame_decode(&reader, buf_bytes(frames), buf_size(frames), &frame, &size), 0);
    assert_true(agent_message_is_body(frame.body.data, frame.body.size));
    assert_true(session_json_get_message(frame.body.data, frame.body.size, &at_rendezvous, error));
    assert_int_equal(at_rendezvous.kind, SESSION_JSON_AGENT_MESSAGE); /* which it forwards */
    assert_true(hang_message_get(frame.body.data, frame.body.size, ret));
    buf_consume(frames, size);
    return true;
}

/* What the status of a node has beside the places. */
static void put_places(struct buf *frames, int node, const struct hang_rank *places, int first_rank, size_t n)
{
    struct job_status s = {0};
    char host[16];

    (void)snprintf(host, sizeof(host), "node%d", node); /* fits */
    assert_int_equal(job_status_add_node(&s, host, node, n), 0);
    for (size_t i = 0; i < n; i++) {
        struct worker_status *w = &s.nodes[0].workers[i];

        w->rank = first_rank + (int32_t)i;
        w->pid = places[0].pid - places[0].rank + w->rank;
        w->last_step = w->started_s = INT32_MAX;
        w->hang = w->straggler = w->has_usage = true;
        (void)snprintf(w->state, sizeof(w->state), "succeeded"); /* fits */
        memset(w->last_line, '\x01', sizeof(w->last_line) - 1);
    }
    const struct node_ranks ranks = {.node = &s.nodes[0],
                                     .places = places,
                                     .n_places = n,
                                     .purpose = node == 1 ? HANG_FOR_CRUNCTL : HANG_FOR_REPORT};
    assert_int_equal(node_ranks_put(frames, &to_first, &ranks), 0);
    job_status_finish(&s);
}

/* In the order of the report, not of the ranks. */
static void put_node(struct buf *frames, int node)
{
    struct hang_rank ranks[NODE_RANKS], last;

    make_ranks(node, ranks);
    last = ranks[NODE_RANKS - 1];
    ranks[NODE_RANKS - 1] = ranks[17 % NODE_RANKS];
    ranks[17 % NODE_RANKS] = last;
    put_places(frames, node, ranks, node * NODE_RANKS, NODE_RANKS);
}

static void collect_node(struct hang_collect *c, int node)
{
    static struct hang_message message;
    struct buf frames = {0};
    int n = 0;

    put_node(&frames, node);
    while (next_body(&frames, &message)) {
        assert_true(message.has_ranks);
        assert_int_equal(message.piece.purpose, node == 1 ? HANG_FOR_CRUNCTL : HANG_FOR_REPORT);
        assert_int_equal(message.head.generation, 4);
        hang_collect_add(c, &message.piece);
        hang_collect_add(c, &message.piece); /* a repetition changes nothing */
        n++;
    }
    assert_int_equal(n, 2);
    buf_finish(&frames);
}

static void test_ranks_of_all_nodes(void **state)
{
    static char text[HANG_TEXT_SIZE];
    struct hang_collect c = {0};

    assert_int_equal(hang_collect_begin(&c, NODES, RANKS), 0);
    collect_node(&c, 2);
    collect_node(&c, 0);
    assert_int_equal(hang_collect_count_silent(&c), 1);
    assert_int_equal(hang_collect_report(&c, text), -1); /* all that are there wait */
    assert_non_null(strstr(text, "  1 node has not sent where all ranks are\n"));
    collect_node(&c, 1);
    assert_int_equal(hang_collect_count_silent(&c), 0);
    assert_int_equal(hang_collect_report(&c, text), 17);
    assert_string_equal(text,
                        "  rank 17 on node1 (pid 1017) stands out: loop at train.py:7\n"
                        "  ranks 0-16, 18-29 on 3 nodes: in all-reduce\n"
                        "  all-reduce, collective 5 of all 30 ranks: rank 17 is missing\n");
    hang_collect_finish(&c);
}

/* Two waits, ranks at more places than are shown, a line of NCCL, and a node that has sent nothing. */
static void test_the_report_has_a_bound(void **state)
{
    static char text[HANG_TEXT_SIZE];
    static struct hang_piece piece;
    struct hang_rank ranks[NODE_RANKS];
    struct hang_collect c = {0};
    size_t n_lines = 1; /* the headline */

    assert_int_equal(hang_collect_begin(&c, 4, 4 * NODE_RANKS), 0);
    (void)snprintf(c.nccl, sizeof(c.nccl), "  NCCL: rank 2 is behind\n"); /* fits */
    for (int node = 0; node < 3; node++) {
        make_ranks(node, ranks);
        piece = (struct hang_piece){.node = node, .pieces = 1, .ranks = ranks, .n_ranks = HANG_PIECE_RANKS};
        for (int i = 0; i < HANG_PIECE_RANKS; i++) {
            ranks[i].collectives[0].group += (uint64_t)i % 2;
            (void)snprintf(ranks[i].text, sizeof(ranks[i].text), "f%d at train.py:1",
                           ranks[i].rank); /* fits */
        }
        hang_collect_add(&c, &piece);
    }
    (void)hang_collect_report(&c, text);
    for (const char *at = text; *at; at++)
        n_lines += *at == '\n';
    assert_int_equal(n_lines, HANG_LINES_MAX - 1); /* a hint may follow */
    assert_non_null(strstr(text, "  1 node has not sent where all ranks are\n"));
    assert_non_null(strstr(text, "more ranks at other places\n"));
    assert_non_null(strstr(text, "  NCCL: rank 2 is behind\n"));
    hang_collect_finish(&c);
}

static void test_impossible_pieces_are_dropped(void **state)
{
    static const struct hang_rank ranks[3];
    static struct hang_piece piece;
    struct hang_collect c = {0};

    assert_int_equal(hang_collect_begin(&c, 1, 2), 0);
    piece = (struct hang_piece){.node = 1, .pieces = 1};
    hang_collect_add(&c, &piece);
    piece = (struct hang_piece){.node = 0, .pieces = 1, .ranks = ranks, .n_ranks = 3};
    hang_collect_add(&c, &piece);
    assert_int_equal(c.n_ranks, 0);
    assert_true(hang_collect_count_silent(&c) > 0);
    piece = (struct hang_piece){.node = 0, .pieces = 2, .ranks = ranks, .n_ranks = 1};
    hang_collect_add(&c, &piece);
    piece = (struct hang_piece){.node = 0, .piece = 1, .pieces = 3, .ranks = ranks, .n_ranks = 1};
    hang_collect_add(&c, &piece);
    assert_int_equal(c.n_ranks, 1);
    piece.pieces = 2;
    hang_collect_add(&c, &piece);
    assert_int_equal(c.n_ranks, 2);
    assert_int_equal(hang_collect_count_silent(&c), 0);
    hang_collect_finish(&c);
}

/* The longest texts, with each byte escaped, fit into a frame. */
static void test_the_largest_piece_fits(void **state)
{
    struct hang_rank ranks[HANG_PIECE_RANKS];
    struct buf frames = {0};

    for (int i = 0; i < HANG_PIECE_RANKS; i++) {
        ranks[i] = (struct hang_rank){.rank = INT32_MAX - HANG_PIECE_RANKS + i,
                                      .pid = INT32_MAX,
                                      .child_pid = INT32_MAX,
                                      .state = 'D',
                                      .child_state = 'D',
                                      .kind = STACK_OTHER,
                                      .n_collectives = HANG_COLLECTIVES_MAX};
        memset(ranks[i].store_clients, 0xff, sizeof(ranks[i].store_clients));
        memset(ranks[i].text, '\x01', STACK_TEXT_SIZE - 1);
        for (int k = 0; k < HANG_COLLECTIVES_MAX; k++)
            ranks[i].collectives[k] = (struct hang_collective){.group = UINT64_MAX,
                                                               .number = UINT64_MAX,
                                                               .kind = WORKER_COLLECTIVE_REDUCE,
                                                               .n_ranks = UINT32_MAX,
                                                               .is_world = true};
    }
    put_places(&frames, 16383, ranks, INT32_MAX - HANG_PIECE_RANKS, HANG_PIECE_RANKS);
    buf_finish(&frames);
}

static void test_the_report_comes_back_printable(void **state)
{
    static struct hang_message message;
    static struct hang_notice notice = {
        .kind = HANG_NOTICE_HANG, .rank = 3, .text = "  rank 3\x1b[2J\n  others\n"};
    struct buf frames = {0};

    assert_int_equal(hang_notice_put(&frames,
                                     &(struct agent_message){.to = AGENT_MESSAGE_TO_ALL, .generation = 4},
                                     &notice),
                     0);
    assert_true(next_body(&frames, &message));
    assert_false(message.has_ranks);
    assert_int_equal(message.notice.kind, HANG_NOTICE_HANG);
    assert_int_equal(message.head.to, AGENT_MESSAGE_TO_ALL);
    assert_int_equal(message.notice.rank, 3);
    assert_string_equal(message.notice.text, "  rank 3?[2J\n  others\n");
    buf_finish(&frames);
}

static void test_a_text_has_a_bounded_number_of_lines(void **state)
{
    static struct hang_notice notice = {.kind = HANG_NOTICE_HANG, .rank = -1};
    static struct hang_message message;
    const struct agent_message head = {.to = AGENT_MESSAGE_TO_ALL, .generation = 2};
    struct buf frames = {0};
    int n = 0;

    memset(notice.text, '\n', 4000);
    assert_int_equal(hang_notice_put(&frames, &head, &notice), 0);
    assert_true(next_body(&frames, &message));
    for (const char *c = message.notice.text; *c; c++)
        n += *c == '\n';
    assert_in_range(n, 1, HANG_LINES_MAX);
    buf_finish(&frames);
}

static void test_an_order_to_take_stacks(void **state)
{
    static const char body[] = "{\"relay\":3,\"generation\":1,\"hang\":{\"kind\":6,\"node\":2}}";
    static struct hang_message message;

    assert_true(hang_message_get((const uint8_t *)body, strlen(body), &message));
    assert_false(message.has_ranks);
    assert_int_equal(message.notice.kind, HANG_NOTICE_TAKE);
    assert_int_equal(message.notice.node, 2);
}

#define WORKER "\"local_rank\":0,\"state\":\"running\",\"hang\":false"
#define RANKS_BODY(head, workers)                                                                            \
    "{\"relay\":0,\"generation\":1,\"ranks\":{" head                                                         \
    ",\"node\":{\"host\":\"h\",\"group_rank\":0,\"workers\":" workers "}}}"

static void test_a_body_of_ranks(void **state)
{
    static const char body[] = RANKS_BODY(
        "\"pieces\":3,\"piece\":2,\"new\":1",
        "[{" WORKER
        ",\"rank\":1,\"pid\":2,\"new\":{},\"at\":{\"state\":83,\"child_state\":68,\"child_name\":\"l\to\",\"kind\":1,"
        "\"text\":\"a\\tb\",\"new\":1,\"collectives\":[{\"group\":\"00000000000000ff\"}]}}]");
    static struct hang_message message;

    assert_true(hang_message_get((const uint8_t *)body, strlen(body), &message));
    assert_true(message.has_ranks);
    assert_true(message.piece.piece == 2 && message.piece.pieces == 3 &&
                message.piece.purpose == HANG_FOR_REPORT);
    assert_int_equal(message.piece.n_ranks, 1);
    assert_true(message.piece.ranks[0].rank == 1 && message.piece.ranks[0].pid == 2);
    assert_true(message.piece.ranks[0].state == 'S' && message.piece.ranks[0].child_state == 'D');
    assert_string_equal(message.piece.ranks[0].text, "a b");
    assert_string_equal(message.piece.ranks[0].child_name, "l o");
    assert_int_equal(message.piece.ranks[0].collectives[0].group, 255);
}

/* One worker more than a piece has room for. */
static void test_too_many_ranks(void **state)
{
    static const char worker[] = "{" WORKER ",\"rank\":1,\"pid\":2,\"at\":{}}";
    static struct hang_message message;
    char workers[sizeof(worker) * (HANG_PIECE_RANKS + 1) + 2] = "[", body[sizeof(workers) + 200];

    for (int i = 0; i <= HANG_PIECE_RANKS; i++) {
        (void)strcat(workers, i > 0 ? "," : "");
        (void)strcat(workers, worker);
        (void)snprintf(body, sizeof(body),
                       "{\"relay\":0,\"generation\":1,\"ranks\":{\"pieces\":1,\"node\":{\"host\":\"h\","
                       "\"group_rank\":0,\"workers\":%s]}}}",
                       workers);
        assert_int_equal(hang_message_get((const uint8_t *)body, strlen(body), &message),
                         i < HANG_PIECE_RANKS);
    }
}

static void test_other_bodies(void **state)
{
    static const char *const bodies[] = {
        "",
        "{\"relay\":0}",
        "{\"relay\":0,\"generation\":1}",
        "{\"relay\":-2,\"generation\":1,\"hang\":{}}",
        "{\"relay\":0,\"generation\":1,\"ranks\":{\"node\":1}}",
        "{\"relay\":0,\"generation\":1,\"ranks\":{\"node\":{}}}",
        "{\"relay\":0,\"generation\":1,\"hang\":{\"kind\":6,\"node\":-1}}",
        "{\"relay\":0,\"generation\":1,\"hang\":{\"kind\":7}}",
        RANKS_BODY("\"piece\":1,\"pieces\":1", "[]"),
        RANKS_BODY("\"piece\":0", "[]"),
        RANKS_BODY("\"pieces\":1", "{}"),
        RANKS_BODY("\"pieces\":1", "[{}]"),
        RANKS_BODY("\"pieces\":1", "[{" WORKER ",\"rank\":1,\"pid\":2}]"),            /* no place */
        RANKS_BODY("\"pieces\":1", "[{" WORKER ",\"rank\":-1,\"pid\":2,\"at\":{}}]"), /* no rank yet */
        RANKS_BODY("\"pieces\":1", "[{" WORKER ",\"rank\":1,\"pid\":-1,\"at\":{}}]"),
        RANKS_BODY("\"pieces\":1", "[{" WORKER ",\"rank\":1,\"pid\":2,\"at\":{\"kind\":99}}]"),
        RANKS_BODY("\"pieces\":1", "[{" WORKER ",\"rank\":1,\"pid\":2,\"at\":{\"collectives\":[{}]}}]"),
        RANKS_BODY("\"pieces\":1", "[{" WORKER ",\"rank\":1,\"pid\":2,\"at\":{\"state\":999}}]"),
        /* of an earlier release, whose agents a job should not have beside others */
        "{\"relay\":0,\"generation\":1,\"ranks\":{\"node\":1,\"piece\":0,\"pieces\":1,\"list\":[{\"rank\":1}]}}",
    };
    static struct hang_message message;

    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)
        if (hang_message_get((const uint8_t *)bodies[i], strlen(bodies[i]), &message))
            fail_msg("%s", bodies[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_all_nodes),
        cmocka_unit_test(test_the_report_has_a_bound),
        cmocka_unit_test(test_impossible_pieces_are_dropped),
        cmocka_unit_test(test_the_largest_piece_fits),
        cmocka_unit_test(test_the_report_comes_back_printable),
        cmocka_unit_test(test_a_text_has_a_bounded_number_of_lines),
        cmocka_unit_test(test_an_order_to_take_stacks),
        cmocka_unit_test(test_a_body_of_ranks),
        cmocka_unit_test(test_too_many_ranks),
        cmocka_unit_test(test_other_bodies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
