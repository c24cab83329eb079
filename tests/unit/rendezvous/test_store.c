/*
 * Conversations with the store: each line says what a client says and what it hears.
 *
 * "1 SET k v" is client 1's request. Heard: "i:5" a number, "v:abc" a value ("v:" an empty one), "b:0" a
 * status byte, "p:7" a PING's nonce, "closed". A line without a request only listens. In a request "-"
 * stands for an empty word.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "tests/support/c/store_harness.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

struct line {
    unsigned client;
    const char *says;
    const char *hears;
};

/* ---- words to bytes ---- */

enum { WORDS_MAX = 16 };

struct words {
    char text[4096 + 256];
    struct wire_span at[WORDS_MAX];
    size_t n;
};

static void split(struct words *w, const char *line)
{
    char *save = NULL;

    w->n = 0;
    (void)snprintf(w->text, sizeof(w->text), "%s", line);
    for (char *p = strtok_r(w->text, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        assert_true(w->n < WORDS_MAX);
        w->at[w->n++] = wire_span(p, strcmp(p, "-") == 0 ? 0 : strlen(p));
    }
}

static int64_t number(const struct words *w, size_t i)
{
    return strtoll((const char *)w->at[i].data, NULL, 10);
}

static enum wire_op op_of(const char *name)
{
    for (unsigned op = 0; op < WIRE_OP_COUNT; op++) {
        if (strcmp(wire_op_name(op), name) == 0)
            return (enum wire_op)op;
    }
    fail_msg("%s is no operation", name);
    return WIRE_OP_COUNT;
}

static int encode(struct buf *out, const struct words *w)
{
    const struct wire_span *at = w->at;
    enum wire_op op = op_of((const char *)at[0].data);
    struct wire_span keys[WORDS_MAX], values[WORDS_MAX];

    switch (op) {
    case WIRE_OP_VALIDATE:
        return wire_put_word(out, op, WIRE_VALIDATE_MAGIC);
    case WIRE_OP_PING:
        return wire_put_word(out, op, (uint32_t)number(w, 1));
    case WIRE_OP_ADD:
    case WIRE_OP_BARRIER:
        return wire_put_key_amount(out, op, at[1], number(w, 2));
    case WIRE_OP_CHECK:
    case WIRE_OP_WAIT:
    case WIRE_OP_MULTI_GET:
        return wire_put_keys(out, op, at + 1, w->n - 1);
    case WIRE_OP_MULTI_SET:
        for (size_t i = 1; i + 1 < w->n; i += 2) {
            keys[i / 2] = at[i];
            values[i / 2] = at[i + 1];
        }
        return wire_put_multi_set(out, keys, values, (w->n - 1) / 2);
    default:
        return wire_put(out,
                        &(struct wire_request){.op = op, .key = at[1], .value = at[2], .desired = at[3]});
    }
}

static void expect(struct buf *out, const char *word)
{
    const char *rest = word + 2;

    switch (word[0]) {
    case 'i':
        assert_int_equal(buf_append_u64(out, (uint64_t)strtoll(rest, NULL, 10)), 0);
        break;
    case 'v':
        assert_int_equal(wire_put_vec(out, wire_span(rest, strlen(rest))), 0);
        break;
    case 'b':
        assert_int_equal(buf_append_u8(out, (uint8_t)atoi(rest)), 0);
        break;
    case 'p':
        assert_int_equal(buf_append_u32(out, (uint32_t)atoi(rest)), 0);
        break;
    default:
        fail_msg("%s is no reply", word);
    }
}

/* ---- playing ---- */

static void say(struct harness *h, unsigned client, const char *request)
{
    struct words w;
    struct buf bytes = {0};

    split(&w, request);
    assert_int_equal(encode(&bytes, &w), 0);
    harness_feed(h, client, buf_bytes(&bytes), buf_size(&bytes));
    buf_finish(&bytes);
}

static void hear(struct harness *h, const struct line *l, size_t i)
{
    struct words w;
    struct buf expected = {0};
    bool closed = false;
    uint8_t got[512];
    size_t n;

    split(&w, l->hears);
    for (size_t k = 0; k < w.n; k++) {
        if (strcmp((const char *)w.at[k].data, "closed") == 0)
            closed = true;
        else
            expect(&expected, (const char *)w.at[k].data);
    }
    n = harness_take(h, l->client, got, sizeof(got));
    if (n != buf_size(&expected) || (n > 0 && memcmp(got, buf_bytes(&expected), n) != 0) ||
        h->clients[l->client].closed != closed)
        fail_msg("line %zu: client %u, \"%s\": heard something else than \"%s\"", i + 1, l->client,
                 l->says ? l->says : "", l->hears);
    buf_finish(&expected);
}

static void play_limited(const struct line *lines, size_t n_lines, const struct store_limits *limits)
{
    struct harness h;

    assert_int_equal(harness_init(&h, limits), 0);
    for (unsigned c = 0; c < HARNESS_CLIENTS_MAX; c++)
        say(&h, c, "VALIDATE");
    for (size_t i = 0; i < n_lines; i++) {
        if (lines[i].says && strcmp(lines[i].says, "close") == 0)
            harness_close(&h, lines[i].client);
        else if (lines[i].says)
            say(&h, lines[i].client, lines[i].says);
        hear(&h, &lines[i], i);
    }
    for (unsigned c = 0; c < HARNESS_CLIENTS_MAX; c++) {
        if (harness_pending(&h, c) > 0)
            fail_msg("client %u heard more than the conversation says", c);
    }
    harness_finish(&h);
}

#define PLAY(...)                                                                                            \
    do {                                                                                                     \
        static const struct line lines_[] = {__VA_ARGS__};                                                   \
        play_limited(lines_, ARRAY_SIZE(lines_), NULL);                                                      \
    } while (0)

#define PLAY_LIMITED(limits, ...)                                                                            \
    do {                                                                                                     \
        static const struct line lines_[] = {__VA_ARGS__};                                                   \
        play_limited(lines_, ARRAY_SIZE(lines_), limits);                                                    \
    } while (0)

/* ---- every operation ---- */

static void test_keys(void **state)
{
    PLAY({1, "PING 77", "p:77"}, {1, "GETNUMKEYS", "i:0"}, {1, "GET a", "v:"}, {1, "SET a one", ""},
         {1, "GET a", "v:one"}, {1, "SET a a-longer-value-than-what-was-there-before", ""},
         {1, "GET a", "v:a-longer-value-than-what-was-there-before"}, {1, "SET a -", ""}, {1, "GET a", "v:"},
         {1, "CHECK a", "b:0"}, {1, "GETNUMKEYS", "i:1"}, {1, "SET - x", ""}, {1, "GET -", "v:x"},
         {1, "DELETE_KEY a", "i:1"}, {1, "DELETE_KEY a", "i:0"}, {1, "CHECK a", "b:1"},
         {1, "LIST_KEYS", "i:1 v:"}, {1, "GETNUMKEYS", "i:1"});
}

static void test_append(void **state)
{
    PLAY({1, "APPEND a one", ""}, {1, "APPEND a -two", ""}, {1, "GET a", "v:one-two"}, {1, "APPEND a -", ""},
         {1, "GET a", "v:one-two"}, {1, "APPEND b -", ""}, {1, "CHECK b", "b:0"}, {2, "WAIT c", ""},
         {1, "APPEND c x", ""}, {2, NULL, "b:0"});
}

static void test_add(void **state)
{
    PLAY({1, "ADD n 5", "i:5"}, {1, "ADD n -7", "i:-2"}, {1, "GET n", "v:-2"}, {1, "ADD n 0", "i:-2"},
         {1, "SET n 41", ""}, {1, "ADD n 1", "i:42"}, {1, "SET n 0x10", ""}, {1, "ADD n 1", "i:1"},
         {1, "SET n +12abc", ""}, {1, "ADD n 1", "i:13"}, {1, "GET n", "v:13"}, {1, "SET n 1e3", ""},
         {1, "ADD n 1", "i:2"}, {1, "SET n -9223372036854775808", ""},
         {1, "ADD n 1", "i:-9223372036854775807"}, {1, "SET n \t\v\f\r\n-5", ""}, {1, "ADD n 1", "i:-4"});
}

/* Digits that go on behind the bytes that are read are no number. */
static void test_add_to_many_digits(void **state)
{
    static char set[4096 + 8] = "SET n ";

    memset(set + strlen(set), '0', 4096);
    PLAY({1, set, ""}, {1, "ADD n 7", "i:7"}, {1, set, ""}, {1, "APPEND n 1", ""}, {1, "ADD n 1", "closed"},
         {2, set, ""}, {2, "APPEND n x", ""}, {2, "ADD n 1", "closed"});
}

static void test_add_wraps(void **state)
{
    PLAY({1, "SET n 9223372036854775807", ""}, {1, "ADD n 1", "i:-9223372036854775808"},
         {1, "GET n", "v:-9223372036854775808"}, {1, "ADD n -1", "i:9223372036854775807"});
}

static void test_add_refused(void **state)
{
    PLAY({1, "SET n hello", ""}, {1, "ADD n 1", "closed"}, {2, "GET n", "v:hello"}, {2, "SET n -", ""},
         {2, "ADD n 1", "closed"}, {3, "SET n 9223372036854775808", ""}, {3, "ADD n 1", "closed"},
         {4, "GET n", "v:9223372036854775808"}, {4, "SET n x", ""}, {4, "BARRIER n 2", "closed"},
         {5, "GET n", "v:x"}, {5, "SET n -9223372036854775809", ""}, {5, "ADD n 1", "closed"},
         {6, "SET n --1", ""}, {6, "ADD n 1", "closed"}, {7, "SET n +-1", ""}, {7, "ADD n 1", "closed"});
}

static void test_compare_set(void **state)
{
    PLAY({1, "COMPARE_SET k - first", "v:first"}, {1, "GET k", "v:first"},
         {1, "COMPARE_SET k first second", "v:second"}, {1, "COMPARE_SET k first third", "v:second"},
         {1, "COMPARE_SET k - third", "v:second"}, {1, "COMPARE_SET missing x y", "v:x"},
         {1, "CHECK missing", "b:1"}, {1, "SET k -", ""}, {1, "COMPARE_SET k - again", "v:again"},
         {1, "COMPARE_SET k again -", "v:"}, {1, "CHECK k", "b:0"}, {1, "COMPARE_SET k agai x", "v:"});
}

static void test_multi(void **state)
{
    PLAY({1, "MULTI_SET a 1 b 2 a 3", ""}, {1, "MULTI_GET b a", "v:2 v:3"},
         {1, "MULTI_GET a nowhere b", "v:3 v: v:2"}, {1, "MULTI_GET", ""}, {1, "MULTI_SET", ""},
         {1, "GETNUMKEYS", "i:2"}, {2, "WAIT x y", ""}, {1, "MULTI_SET x 1 y 2", ""}, {2, NULL, "b:0"});
}

static void test_check(void **state)
{
    PLAY({1, "CHECK", "b:0"}, {1, "CHECK a", "b:1"}, {1, "SET a 1", ""}, {1, "CHECK a", "b:0"},
         {1, "CHECK a b", "b:1"}, {1, "QUEUE_PUSH b x", ""}, {1, "CHECK a b", "b:0"},
         {1, "QUEUE_POP b", "i:1 v:x"}, {1, "CHECK a b", "b:1"});
}

static void test_queues(void **state)
{
    PLAY({1, "QUEUE_LEN q", "i:0"}, {1, "QUEUE_POP q", "i:0"}, {1, "QUEUE_PUSH q one", ""},
         {1, "QUEUE_PUSH q -", ""}, {1, "QUEUE_PUSH q three", ""}, {1, "QUEUE_LEN q", "i:3"},
         {1, "SET q key", ""}, {1, "QUEUE_LEN q", "i:3"}, {1, "GET q", "v:key"}, {1, "DELETE_KEY q", "i:1"},
         {1, "QUEUE_POP q", "i:3 v:one"}, {1, "QUEUE_POP q", "i:2 v:"}, {1, "QUEUE_POP q", "i:1 v:three"},
         {1, "QUEUE_POP q", "i:0"}, {1, "GETNUMKEYS", "i:0"}, {1, "LIST_KEYS", "i:0"});
}

/* ---- waiting ---- */

static void test_wait(void **state)
{
    PLAY({1, "WAIT", "b:0"}, {1, "SET a 1", ""}, {1, "WAIT a", "b:0"}, {1, "WAIT a a", "b:0"},
         {2, "WAIT a b c", ""}, {1, "SET b 1", ""}, {2, NULL, ""}, {1, "SET b 2", ""}, {2, NULL, ""},
         {1, "ADD c 1", "i:1"}, {2, NULL, "b:0"}, {1, "SET c 9", ""}, {2, "PING 3", "p:3"});
}

/* Each release is sent once to each, in the order in which they began to wait. */
static void test_wait_many_clients(void **state)
{
    PLAY({1, "WAIT k", ""}, {2, "WAIT k", ""}, {3, "WAIT k other", ""}, {4, "COMPARE_SET k - v", "v:v"},
         {1, NULL, "b:0"}, {2, NULL, "b:0"}, {3, NULL, ""}, {4, "SET other 1", ""}, {3, NULL, "b:0"});
}

static void test_wait_repeated_name(void **state)
{
    PLAY({1, "WAIT k k k", ""}, {2, "SET k 1", ""}, {1, NULL, "b:0"}, {2, "SET k 2", ""}, {1, NULL, ""});
}

/* What was set once counts, also when it is deleted before the rest is there. */
static void test_wait_counts_deleted(void **state)
{
    PLAY({1, "WAIT a b", ""}, {2, "SET a 1", ""}, {2, "DELETE_KEY a", "i:1"}, {2, "SET b 1", ""},
         {1, NULL, "b:0"}, {1, "GET a", "v:"});
}

static void expect_wait(const struct harness *h, unsigned client, size_t n_names, const char *name)
{
    struct wire_span got = {0};

    assert_int_equal(store_waits_for(&h->clients[client].client, &got), n_names);
    if (n_names > 0) {
        assert_int_equal(got.size, strlen(name));
        assert_memory_equal(got.data, name, got.size);
    }
}

static void test_a_wait_names_its_first_missing_key(void **state)
{
    struct harness h;
    uint8_t reply[8];

    assert_int_equal(harness_init(&h, NULL), 0);
    for (unsigned c = 0; c < 3; c++)
        say(&h, c, "VALIDATE");
    expect_wait(&h, 1, 0, NULL);
    say(&h, 0, "SET b 1");
    say(&h, 1, "WAIT a b c d");
    say(&h, 2, "WAIT d");
    expect_wait(&h, 1, 3, "a");
    expect_wait(&h, 2, 1, "d");
    say(&h, 0, "SET a 1");
    expect_wait(&h, 1, 2, "c");
    say(&h, 0, "SET d 1");
    expect_wait(&h, 1, 1, "c");
    expect_wait(&h, 2, 0, NULL);
    say(&h, 1, "CANCEL_WAIT");
    expect_wait(&h, 1, 0, NULL);
    for (unsigned c = 0; c < 3; c++)
        (void)harness_take(&h, c, reply, sizeof(reply)); /* not of interest */
    harness_finish(&h);
}

static void test_cancel(void **state)
{
    PLAY({1, "CANCEL_WAIT", "b:1"}, {1, "WAIT k", ""}, {1, "CANCEL_WAIT", "b:1"}, {2, "SET k 1", ""},
         {1, NULL, ""}, {1, "WAIT l", ""}, {2, "SET l 1", ""}, {1, "CANCEL_WAIT", "b:0 b:1"},
         {1, "WAIT l m", ""}, {1, "CANCEL_WAIT", "b:1"}, {1, "CANCEL_WAIT", "b:1"}, {2, "SET m 1", ""},
         {1, "GETNUMKEYS", "i:3"});
}

/* A client may go on talking while it waits, and release itself. */
static void test_wait_own(void **state)
{
    PLAY({1, "WAIT k", ""}, {1, "PING 5", "p:5"}, {1, "SET k 1", "b:0"}, {1, "WAIT n", ""},
         {1, "ADD n 3", "b:0 i:3"}, {1, "WAIT c", ""}, {1, "COMPARE_SET c - x", "b:0 v:x"});
}

static void test_wait_replaced(void **state)
{
    PLAY({1, "WAIT a", ""}, {1, "WAIT b", ""}, {2, "SET a 1", ""}, {1, NULL, ""}, {2, "SET b 1", ""},
         {1, NULL, "b:0"});
}

static void test_waiter_leaves(void **state)
{
    PLAY({1, "WAIT a b", ""}, {1, "close", ""}, {2, "SET a 1", ""}, {2, "SET b 1", ""},
         {2, "GETNUMKEYS", "i:2"}, {2, "LIST_KEYS", "i:2 v:a v:b"});
}

static void test_barrier(void **state)
{
    PLAY({1, "BARRIER b 3", ""}, {2, "BARRIER b 3", ""}, {3, "BARRIER b 3", "b:0"}, {1, NULL, "b:0"},
         {2, NULL, "b:0"}, {1, "GET b", "v:3"}, {1, "BARRIER b 3", "b:0"}, {1, "GET b", "v:4"},
         {1, "BARRIER zero 0", "b:0"}, {1, "BARRIER minus -1", "b:0"}, {1, "GET minus", "v:1"});
}

/* An arrival counts although it gave up; an arrival that completes nothing wakes nobody; any write does. */
static void test_barrier_odd(void **state)
{
    PLAY({1, "BARRIER b 2", ""}, {1, "CANCEL_WAIT", "b:1"}, {2, "BARRIER b 2", "b:0"}, {1, "WAIT c", ""},
         {2, "BARRIER c 3", ""}, {1, NULL, ""}, {3, "WAIT c", "b:0"}, {3, "SET c 7", ""}, {1, NULL, "b:0"},
         {2, NULL, "b:0"}, {1, "BARRIER d 5", ""}, {2, "DELETE_KEY d", "i:1"}, {2, "BARRIER d 1", "b:0"},
         {1, NULL, "b:0"});
}

static void test_queue_wakes_one(void **state)
{
    PLAY({1, "WAIT q", ""}, {2, "WAIT q", ""}, {3, "WAIT q", ""}, {4, "QUEUE_PUSH q a", ""}, {1, NULL, "b:0"},
         {2, NULL, ""}, {1, "QUEUE_POP q", "i:1 v:a"}, {2, "CANCEL_WAIT", "b:1"}, {4, "QUEUE_PUSH q b", ""},
         {2, NULL, ""}, {3, NULL, "b:0"}, {3, "QUEUE_POP q", "i:1 v:b"});
}

/* A waiter that waits for another name, too, takes no item: the next one is released, and the first has one name less to
 * wait for. As PyTorch's server does; tests/data/transcripts/15d-queue-wakes-next.txt. */
static void test_queue_wakes_the_next_one_that_can_go_on(void **state)
{
    PLAY({1, "WAIT q k", ""}, {2, "WAIT q", ""}, {3, "WAIT q", ""}, {4, "QUEUE_PUSH q a", ""}, {1, NULL, ""},
         {2, NULL, "b:0"}, {3, NULL, ""}, {2, "QUEUE_POP q", "i:1 v:a"}, {4, "SET k v", ""},
         {1, NULL, "b:0"});
}

/* Who was released for an item and does not pop it hands it on: when it gives up, dies, or waits for
 * something. */
static void test_queue_release_is_passed_on(void **state)
{
    PLAY({1, "WAIT q", ""}, {2, "WAIT q", ""}, {3, "WAIT q", ""}, {4, "WAIT q", ""},
         {5, "QUEUE_PUSH q a", ""}, {1, NULL, "b:0"}, {1, "CANCEL_WAIT", "b:1"}, {2, NULL, "b:0"},
         {2, "close", ""}, {3, NULL, "b:0"}, {3, "WAIT other", ""}, {4, NULL, "b:0"},
         {4, "QUEUE_POP q", "i:1 v:a"}, {4, "CANCEL_WAIT", "b:1"}, {5, "QUEUE_LEN q", "i:0"},
         {3, "CANCEL_WAIT", "b:1"}, {5, "LIST_KEYS", "i:0"});
}

/* But not when the item is gone, nor twice. */
static void test_queue_release_is_passed_on_once(void **state)
{
    PLAY({1, "WAIT q", ""}, {2, "WAIT q", ""}, {5, "QUEUE_PUSH q a", ""}, {1, NULL, "b:0"},
         {5, "QUEUE_POP q", "i:1 v:a"}, {1, "CANCEL_WAIT", "b:1"}, {2, NULL, ""}, {5, "QUEUE_PUSH q b", ""},
         {2, NULL, "b:0"}, {1, "WAIT q", "b:0"}, {1, "QUEUE_POP q", "i:1 v:b"}, {2, "QUEUE_POP q", "i:0"},
         {1, "WAIT q", ""}, {2, "CANCEL_WAIT", "b:1"}, {1, NULL, ""}, {5, "QUEUE_PUSH q c", ""},
         {1, NULL, "b:0"}, {1, "QUEUE_POP q", "i:1 v:c"});
}

/* A key of that name wakes all who wait for the queue: the names are shared. */
static void test_set_wakes_queue_waiters(void **state)
{
    PLAY({1, "WAIT q", ""}, {2, "WAIT q", ""}, {3, "SET q x", ""}, {1, NULL, "b:0"}, {2, NULL, "b:0"},
         {1, "QUEUE_POP q", "i:0"});
}

/* ---- defects of PyTorch's server that are not copied (proto/PROTOCOL.md) ---- */

static void test_defect_compare_set_wakes(void **state)
{
    PLAY({1, "WAIT y", ""}, {2, "COMPARE_SET y exp des", "v:exp"}, {1, NULL, ""}, {2, "SET y 1", ""},
         {1, NULL, "b:0"});
}

static void test_defect_stale_queue_waiter(void **state)
{
    PLAY({1, "WAIT q", ""}, {2, "QUEUE_PUSH q 1", ""}, {1, NULL, "b:0"}, {1, "QUEUE_POP q", "i:1 v:1"},
         {1, "WAIT X", ""}, {2, "QUEUE_PUSH q 2", ""}, {1, NULL, ""}, {2, "SET X 1", ""}, {1, NULL, "b:0"});
}

static void test_defect_full_queue_in_wait(void **state)
{
    PLAY({2, "QUEUE_PUSH q 1", ""}, {1, "WAIT q y", ""}, {2, "SET y 1", ""}, {1, NULL, "b:0"});
}

/* Every operation, so that one that is added has to be added here. */
static void test_operations_that_only_read(void **state)
{
    static const char *const readers[] = {"GET",  "CHECK",     "GETNUMKEYS", "MULTI_GET",
                                          "PING", "QUEUE_LEN", "LIST_KEYS"};
    unsigned n = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
        assert_true(store_only_reads(op_of(readers[i])));
    for (unsigned op = 0; op < WIRE_OP_COUNT; op++)
        n += store_only_reads((enum wire_op)op);
    assert_int_equal(n, ARRAY_SIZE(readers));
}

static void test_validate_twice(void **state)
{
    PLAY({1, "PING 1", "p:1"}, {1, "VALIDATE", "closed"}, {2, "PING 2", "p:2"});
}

/* ---- limits ---- */

static void test_limit_keys(void **state)
{
    static const struct store_limits limits = {.keys_max = 2, .bytes_max = 1 << 20, .waiters_max = 10};

    PLAY_LIMITED(&limits, {1, "SET a 1", ""}, {1, "ADD b 1", "i:1"}, {1, "SET a 2", ""},
                 {1, "QUEUE_PUSH c 1", ""}, {1, "SET c 1", "closed"}, {2, "COMPARE_SET d - 1", "closed"},
                 {3, "MULTI_SET a 9 e 1", "closed"}, {4, "GET a", "v:9"}, {4, "CHECK e", "b:1"},
                 {4, "BARRIER f 2", "closed"}, {5, "DELETE_KEY a", "i:1"}, {5, "APPEND g x", ""},
                 {5, "GETNUMKEYS", "i:2"});
}

static void test_limit_waiters(void **state)
{
    static const struct store_limits limits = {.keys_max = 10, .bytes_max = 1 << 20, .waiters_max = 2};

    PLAY_LIMITED(&limits, {1, "WAIT a", ""}, {2, "WAIT a", ""}, {3, "WAIT b a", "closed"}, {4, "WAIT b", ""},
                 {2, "CANCEL_WAIT", "b:1"}, {2, "BARRIER a 5", ""}, {5, "BARRIER a 5", "closed"},
                 {6, "SET a 1", ""}, {1, NULL, "b:0"}, {2, NULL, "b:0"}, {6, "SET b 1", ""},
                 {4, NULL, "b:0"});
}

/* Fills the store up to its limit with op; what was stored before stays readable. */
static void fill_up(enum wire_op op, bool same_key)
{
    static const struct store_limits limits = {.keys_max = 1000000, .bytes_max = 1 << 20, .waiters_max = 10};
    static const uint8_t value[1000];
    struct buf m = {0};
    struct harness h;
    unsigned i;

    assert_int_equal(harness_init(&h, &limits), 0);
    say(&h, 0, "VALIDATE");
    say(&h, 1, "VALIDATE");
    say(&h, 1, "SET before 1");
    for (i = 0; i < 5000 && !h.clients[0].closed; i++) {
        uint32_t key = same_key ? 0 : i;

        buf_reset(&m);
        assert_int_equal(wire_put_key_value(&m, op, wire_span(&key, sizeof(key)), wire_span(value, 1000)), 0);
        harness_feed(&h, 0, buf_bytes(&m), buf_size(&m));
        assert_true(h.store.account.bytes <= limits.bytes_max);
    }
    /* An APPEND may need the old and the new place at the same time. */
    assert_in_range(i, 400, 1050);
    assert_int_equal(h.clients[0].result, STORE_E_BYTES);
    assert_non_null(strstr(store_error(h.clients[0].result), "--max-bytes"));
    say(&h, 1, "GET before");
    assert_int_equal(harness_pending(&h, 1), 9);
    buf_finish(&m);
    harness_finish(&h);
}

static void test_limit_bytes(void **state)
{
    fill_up(WIRE_OP_SET, false);
    fill_up(WIRE_OP_APPEND, true);
    fill_up(WIRE_OP_APPEND, false);
    fill_up(WIRE_OP_QUEUE_PUSH, true);
}

static void test_limit_bytes_waits(void **state)
{
    static const struct store_limits limits = {.keys_max = 10, .bytes_max = 4096, .waiters_max = 100};
    enum { N = 1000 };
    struct wire_span keys[N];
    uint16_t names[N];
    struct buf m = {0};
    struct harness h;

    for (uint16_t i = 0; i < N; i++) {
        names[i] = i;
        keys[i] = wire_span(&names[i], sizeof(names[i]));
    }
    assert_int_equal(harness_init(&h, &limits), 0);
    say(&h, 0, "VALIDATE");
    assert_int_equal(wire_put_keys(&m, WIRE_OP_WAIT, keys, N), 0);
    harness_feed(&h, 0, buf_bytes(&m), buf_size(&m));
    assert_int_equal(h.clients[0].result, STORE_E_BYTES);
    assert_int_equal(h.store.account.bytes, 0);
    assert_int_equal(h.store.names.used, 0);
    buf_finish(&m);
    harness_finish(&h);
}

/* ---- shares of owners ---- */

enum { OWNERS = 4 };

/* Client i is of owner i % 4, of which 0 may use all. */
static void share_out(struct harness *h, const struct store_limits *limits)
{
    assert_int_equal(harness_init(h, limits), 0);
    assert_int_equal(store_share_out(&h->store, OWNERS), 0);
    for (unsigned i = 0; i < HARNESS_CLIENTS_MAX; i++) {
        say(h, i, "VALIDATE");
        h->clients[i].client.owner = (uint16_t)(i % OWNERS);
    }
}

/* Sends requests of the client, each with a key of its own, until one is refused; returns how many were executed. */
static unsigned insist(struct harness *h, unsigned client, const char *op, const char *value, int result)
{
    char request[128];
    unsigned n = 0;

    for (; n < 2000 && !h->clients[client].closed; n++) {
        (void)snprintf(request, sizeof(request), "%s k%u.%u %s", op, client, n, value);
        say(h, client, request);
    }
    assert_true(h->clients[client].closed);
    assert_int_equal(h->clients[client].result, result);
    return n - 1;
}

/* Clients of one owner share what it may hold; each further owner gets its part of what is left. */
static void test_shares_of_keys(void **state)
{
    static const struct store_limits limits = {.keys_max = 60, .bytes_max = 1 << 20, .waiters_max = 10};
    struct harness h;

    share_out(&h, &limits);
    assert_int_equal(insist(&h, 1, "SET", "v", STORE_E_KEYS), 30);
    assert_int_equal(insist(&h, 5, "ADD", "1", STORE_E_KEYS), 0);
    assert_int_equal(insist(&h, 2, "COMPARE_SET", "- v", STORE_E_KEYS), 15);
    say(&h, 9, "SET k1.0 w"); /* its key is there */
    say(&h, 9, "DELETE_KEY k1.1");
    say(&h, 9, "DELETE_KEY k1.2");
    assert_int_equal(insist(&h, 9, "APPEND", "v", STORE_E_KEYS), 0); /* 28 of 43, and 17 free */
    assert_int_equal(insist(&h, 3, "SET", "v", STORE_E_KEYS), 8);
    say(&h, 7, "DELETE_KEY k1.3"); /* another one's: given back to that one */
    assert_int_equal(h.store.account.shares[1].keys, 27);
    assert_int_equal(insist(&h, 4, "SET", "v", STORE_E_KEYS), 60 - 27 - 15 - 8);
    harness_finish(&h);
}

/* What an owner waits for is no obstacle to another one's key of that name, and costs that one the name alone. */
static void test_share_of_a_waited_key(void **state)
{
    static const struct store_limits limits = {.keys_max = 9, .bytes_max = 1 << 20, .waiters_max = 10};
    struct harness h;

    share_out(&h, &limits);
    assert_int_equal(insist(&h, 1, "SET", "v", STORE_E_KEYS), 4);
    say(&h, 5, "WAIT wanted");
    uint64_t waiting = h.store.account.shares[1].bytes;
    say(&h, 2, "SET wanted v");
    assert_false(h.clients[2].closed);
    assert_true(h.store.account.shares[1].bytes < waiting);
    assert_int_equal(h.store.account.shares[2].keys, 1);
    say(&h, 9, "DELETE_KEY wanted");
    assert_int_equal(h.store.account.shares[2].keys, 0);
    assert_int_equal(h.store.account.shares[2].bytes, 0);
    harness_finish(&h);
}

/* A name is charged to an owner of what keeps it, also when another one's request made it. */
static void test_share_of_a_kept_name(void **state)
{
    static const struct store_limits limits = {.keys_max = 9, .bytes_max = 1 << 20, .waiters_max = 10};
    static const char *const makes[][3] = {{"SET n v", "QUEUE_PUSH n item", "DELETE_KEY n"},
                                           {"QUEUE_PUSH n one", "QUEUE_PUSH n two", "QUEUE_POP n"},
                                           {"QUEUE_PUSH n one", "SET n v", "QUEUE_POP n"},
                                           {"WAIT n", "WAIT n", "CANCEL_WAIT"},
                                           {"WAIT n o", "QUEUE_PUSH n item", "CANCEL_WAIT"}};

    for (size_t i = 0; i < ARRAY_SIZE(makes); i++) {
        struct harness h;

        share_out(&h, &limits);
        say(&h, 1, makes[i][0]);
        say(&h, 2, makes[i][1]);
        say(&h, 1, makes[i][2]);
        assert_int_equal(h.store.names.used, 1);
        assert_int_equal(h.store.account.shares[1].bytes, 0);
        assert_int_equal(h.store.account.shares[2].bytes, h.store.account.bytes);
        say(&h, 1, "DELETE_KEY n");
        say(&h, 1, "QUEUE_POP n");
        harness_close(&h, 2);
        assert_int_equal(h.store.account.shares[2].bytes, 0);
        harness_finish(&h);
    }
}

/* It stays with the owner that made it where the other one's share has no room for it, until there is. */
static void test_share_without_room_for_a_kept_name(void **state)
{
    static const struct store_limits limits = {.keys_max = 100, .bytes_max = 6000, .waiters_max = 10};
    struct harness h;

    share_out(&h, &limits);
    say(&h, 1, "SET n v");
    say(&h, 2, "QUEUE_PUSH n one");
    say(&h, 2, "QUEUE_PUSH n two");
    (void)insist(&h, 4, "SET", "v", STORE_E_BYTES);
    uint64_t items = h.store.account.shares[2].bytes;
    say(&h, 1, "DELETE_KEY n");
    assert_true(h.store.account.shares[1].bytes > 0);
    assert_int_equal(h.store.account.shares[2].bytes, items);
    for (unsigned i = 0; i < 20; i++) {
        char request[32];

        (void)snprintf(request, sizeof(request), "DELETE_KEY k4.%u", i);
        say(&h, 0, request);
    }
    say(&h, 1, "QUEUE_POP n");
    assert_int_equal(h.store.account.shares[1].bytes, 0);
    harness_finish(&h);
}

static void test_shares_of_bytes(void **state)
{
    static const char *const ops[] = {"SET", "QUEUE_PUSH", "APPEND"};
    static const char value[] = "0123456789012345678901234567890123456789";
    static const struct store_limits limits = {.keys_max = 1000000, .bytes_max = 64000, .waiters_max = 1000};

    for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
        struct harness h;

        share_out(&h, &limits);
        assert_true(insist(&h, 1, ops[i], value, STORE_E_BYTES) > 50);
        assert_in_range(h.store.account.bytes, 25000, 32000);
        say(&h, 2, "SET another 1");
        say(&h, 2, "WAIT more");
        assert_false(h.clients[2].closed);
        assert_true(insist(&h, 3, ops[i], value, STORE_E_BYTES) > 25);
        assert_true(insist(&h, 4, ops[i], value, STORE_E_BYTES) > 25);
        assert_true(h.store.account.bytes > 62000);
        say(&h, 6, "SET another 2"); /* in place */
        assert_false(h.clients[6].closed);
        harness_finish(&h);
    }
}

/* Waits are charged to the client that waits: here one with many names. */
static void test_share_of_waits(void **state)
{
    static const struct store_limits limits = {.keys_max = 1000, .bytes_max = 3000, .waiters_max = 1000};
    struct harness h;

    share_out(&h, &limits);
    say(&h, 1, "WAIT a b c d");
    assert_false(h.clients[1].closed);
    assert_true(h.store.account.shares[1].bytes > 500);
    say(&h, 5, "WAIT e f g h i j");
    assert_int_equal(h.clients[5].result, STORE_E_BYTES);
    say(&h, 2, "WAIT a b c d");
    assert_false(h.clients[2].closed);
    harness_close(&h, 1);
    harness_close(&h, 2);
    assert_int_equal(h.store.account.shares[1].bytes + h.store.account.shares[2].bytes, 0);
    harness_finish(&h);
}

/* A value that is replaced while it is being sent is still charged, so nobody can pile such values up. */
static void test_sent_values_are_charged(void **state)
{
    static const struct store_limits limits = {.keys_max = 10, .bytes_max = 1 << 20, .waiters_max = 10};
    uint8_t *value = calloc(1, 300000);
    struct buf set = {0};
    struct harness h;

    assert_non_null(value);
    assert_int_equal(harness_init(&h, &limits), 0);
    assert_int_equal(wire_put_key_value(&set, WIRE_OP_SET, wire_span("k", 1), wire_span(value, 300000)), 0);
    say(&h, 0, "VALIDATE");
    for (int i = 0; i < 3; i++) {
        harness_feed(&h, 0, buf_bytes(&set), buf_size(&set));
        say(&h, 0, "GET k");
    }
    assert_false(h.clients[0].closed);
    assert_true(h.store.account.bytes > 900000);
    harness_feed(&h, 0, buf_bytes(&set), buf_size(&set));
    assert_int_equal(h.clients[0].result, STORE_E_BYTES);
    harness_close(&h, 0);
    assert_true(h.store.account.bytes < 400000);
    buf_finish(&set);
    free(value);
    harness_finish(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_add_wraps),
        cmocka_unit_test(test_add_to_many_digits),
        cmocka_unit_test(test_add_refused),
        cmocka_unit_test(test_compare_set),
        cmocka_unit_test(test_multi),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_queues),
        cmocka_unit_test(test_wait),
        cmocka_unit_test(test_wait_many_clients),
        cmocka_unit_test(test_wait_repeated_name),
        cmocka_unit_test(test_wait_counts_deleted),
        cmocka_unit_test(test_a_wait_names_its_first_missing_key),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_wait_own),
        cmocka_unit_test(test_wait_replaced),
        cmocka_unit_test(test_waiter_leaves),
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_barrier_odd),
        cmocka_unit_test(test_queue_wakes_one),
        cmocka_unit_test(test_queue_wakes_the_next_one_that_can_go_on),
        cmocka_unit_test(test_queue_release_is_passed_on),
        cmocka_unit_test(test_queue_release_is_passed_on_once),
        cmocka_unit_test(test_set_wakes_queue_waiters),
        cmocka_unit_test(test_defect_compare_set_wakes),
        cmocka_unit_test(test_defect_stale_queue_waiter),
        cmocka_unit_test(test_defect_full_queue_in_wait),
        cmocka_unit_test(test_operations_that_only_read),
        cmocka_unit_test(test_validate_twice),
        cmocka_unit_test(test_limit_keys),
        cmocka_unit_test(test_limit_waiters),
        cmocka_unit_test(test_limit_bytes),
        cmocka_unit_test(test_limit_bytes_waits),
        cmocka_unit_test(test_shares_of_keys),
        cmocka_unit_test(test_share_of_a_waited_key),
        cmocka_unit_test(test_share_of_a_kept_name),
        cmocka_unit_test(test_share_without_room_for_a_kept_name),
        cmocka_unit_test(test_shares_of_bytes),
        cmocka_unit_test(test_share_of_waits),
        cmocka_unit_test(test_sent_values_are_charged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
