/*
 * Waits for keys of the worker store: the rank in the name of a key, with the keys of PyTorch 2.13 as a store has recorded them (gloo)
 * or as the source of PyTorch writes them (NCCL), and the ranks of a report.
 */

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/time.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/store_waits.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_the_rank_in_the_name_of_a_key(void **state)
{
    static const struct {
        const char *key;
        int rank; /* of 4 */
    } cases[] = {
        /* Recorded: init_process_group(), new_group([0, 1]), gets of keys that a script has set. */
        {"init/", -1},
        {"/default_pg/0//cpu//0/0", 0},
        {"/default_pg/0//cpu//0/2", 2},
        {"/default_pg/0//1//cpu//0/1", -1},
        {"/default_pg/0//ready/2", 2},
        /* PyTorch's barrier of a store, its debug server, its barriers of torchelastic. */
        {"/store_based_barrier_key:0:last_worker", -1},
        {"/default_pg/0//store_based_barrier_key:1", 1},
        {"/rank3", 3},
        {"/torchelastic/barrier2", -1},
        {"/torchelastic/barrier/last_member", -1},
        /* NCCL's unique ids: of the world, of a pair, of a group. */
        {"/default_pg/0//cuda//0", 0},
        {"/default_pg/0//cuda//7", 0},
        {"/default_pg/0//cuda//0:1", 1},
        {"/default_pg/0//2//cuda//0", -1},
        /* libcrw: of hosts. */
        {"crw/group/0/0/host/2", -1},
        {"/crw/group/0/0/memory/2", -1},
        /* Scripts. */
        {"rank_1_ready", 1},
        {"rank:2/loaded/17", 2},
        {"loaded/3", 3},
        {"loaded/4", -1},
        {"worker-0", 0},
        {"3", 3},
        {"rank", -1},
        {"rankle", -1},
        {"step17", -1},
        {"a/99999999999", -1},
        {"", -1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int rank = store_key_rank(cases[i].key, strlen(cases[i].key), 4);

        if (rank != cases[i].rank)
            fail_msg("%s: rank %d, not %d", cases[i].key, rank, cases[i].rank);
    }
    assert_int_equal(store_key_rank("rank2\0nk3", 9, 4), 2);
    assert_int_equal(store_key_rank("\0\xff/1", 4, 4), 1);
}

static void test_clients_are_ends_of_connections(void **state)
{
    assert_true(store_client_of("10.0.0.1", 4711) == store_client_of("10.0.0.1", 4711));
    assert_true(store_client_of("10.0.0.1", 4711) != store_client_of("10.0.0.1", 4712));
    assert_true(store_client_of("10.0.0.1", 4711) != store_client_of("10.0.0.2", 4711));
}

static struct hang_rank rank_with(int rank, uint64_t client, const char *text)
{
    struct hang_rank r = {
        .rank = rank, .pid = 100 + rank, .host = "h", .kind = STACK_OTHER, .store_clients = {7, client}};

    (void)strncpy(r.text, text, sizeof(r.text) - 1);
    return r;
}

static void add(struct store_waits *waits, uint64_t client, const char *key)
{
    store_waits_add(waits, client, key, strlen(key), 1);
}

static void test_ranks_get_their_keys_and_the_awaited_rank_stands_out(void **state)
{
    struct hang_rank ranks[] = {
        rank_with(0, 50, "waits for other ranks, in wait at train.py:9"),
        rank_with(1, 51, "sleeps"),
        rank_with(2, 52, "waits for other ranks"),
        rank_with(3, 53, "computes"),
    };
    static struct store_waits waits;

    waits.n = 0;
    waits.n_ranks = ARRAY_SIZE(ranks);
    add(&waits, 52, "/ready/1");
    add(&waits, 50, "/ready/1");
    add(&waits, 99, "/ready/3");
    store_waits_end(&waits, ranks);
    assert_string_equal(ranks[0].text, "at key \"ready/1\" of the worker store, in wait at train.py:9");
    assert_string_equal(ranks[1].text, "sleeps");
    assert_string_equal(ranks[2].text, "at key \"ready/1\" of the worker store");
    assert_int_equal(ranks[2].kind, STACK_COLLECTIVE);
    assert_int_equal(ranks[2].activity, ACTIVITY_WAITS);
    assert_true(ranks[1].is_awaited && !ranks[0].is_awaited && !ranks[3].is_awaited);
    assert_true(hang_sort(ranks, ARRAY_SIZE(ranks)));
    assert_int_equal(ranks[0].rank, 1);
}

/* Rank 1 waits for rank 2: rank 2 is awaited. A rank that has ended is awaited, too. */
static void test_a_chain_ends_at_a_rank_that_does_not_wait(void **state)
{
    struct hang_rank ranks[] = {rank_with(0, 50, ""), rank_with(1, 51, ""), rank_with(2, 52, "sleeps")};

    static struct store_waits waits;

    ranks[2].has_ended = true;
    waits.n = 0;
    waits.n_ranks = ARRAY_SIZE(ranks);
    add(&waits, 50, "/default_pg/0//cpu//0/1");
    add(&waits, 51, "/default_pg/0//cpu//0/2");
    store_waits_end(&waits, ranks);
    assert_true(!ranks[0].is_awaited && !ranks[1].is_awaited && ranks[2].is_awaited);
}

static void test_texts_are_bounded_and_printable(void **state)
{
    static char key[5000];
    struct hang_rank rank = rank_with(0, 50, "");
    static struct store_waits waits;

    memset(key, '\x1b', sizeof(key));
    memset(rank.text, 'x', sizeof(rank.text) - 1);
    memcpy(rank.text, "a, in ", 6);
    waits.n = 0;
    waits.n_ranks = 1;
    store_waits_add(&waits, 50, key, sizeof(key), SIZE_MAX);
    store_waits_end(&waits, &rank);
    assert_true(strlen(rank.text) < sizeof(rank.text));
    assert_null(strchr(rank.text, '\x1b'));
    assert_memory_equal(rank.text, "at key \"...??", 13);
    assert_non_null(strstr(rank.text, "more of the worker store, in xxx"));
    rank = rank_with(0, 50, "");
    waits.n = 0;
    waits.n_ranks = 1;
    add(&waits, 50, "");
    store_waits_end(&waits, &rank);
    assert_string_equal(rank.text, "at key \"\" of the worker store");
    assert_false(rank.is_awaited);
}

/* Node 0 does this on its loop every 2 s of a stall. A pass over all ranks for each wait takes seconds. */
static void test_many_ranks_are_visited_once(void **state)
{
    enum { RANKS = 131072 };
    struct hang_rank *ranks = calloc(RANKS, sizeof(*ranks));
    static struct store_waits waits;

    (void)state;
    assert_non_null(ranks);
    for (int i = 0; i < RANKS; i++)
        ranks[i] = (struct hang_rank){.rank = i, .store_clients = {(uint64_t)i + 1}};
    ranks[5].store_clients[0] = 1; /* as a hostile agent may write */
    uint64_t began_ns = now_ns();
    waits.n = 0;
    waits.n_ranks = RANKS;
    for (uint64_t i = 0; i < 2 * STORE_WAITS_MAX; i++)
        store_waits_add(&waits, i + 1, "/ready/131071", 13, 1);
    store_waits_end(&waits, ranks);
    assert_true(now_ns() - began_ns < 500000000);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].waits_for_key, i < STORE_WAITS_MAX);
    assert_true(ranks[RANKS - 1].is_awaited && !ranks[RANKS - 2].is_awaited);
    free(ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ranks_are_visited_once),
        cmocka_unit_test(test_the_rank_in_the_name_of_a_key),
        cmocka_unit_test(test_clients_are_ends_of_connections),
        cmocka_unit_test(test_ranks_get_their_keys_and_the_awaited_rank_stands_out),
        cmocka_unit_test(test_a_chain_ends_at_a_rank_that_does_not_wait),
        cmocka_unit_test(test_texts_are_bounded_and_printable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
