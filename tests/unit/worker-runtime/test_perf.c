/*
 * Does crw-perf see a wrong element? Each collective on two ranks: nothing is wrong after a call; then one
 * byte of the result is changed, and exactly one element has to be.
 */

#include "worker-runtime/perf/perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, run.rank, c->name, #condition);  \
            _exit(99);                                                                                       \
        }                                                                                                    \
    } while (0)

enum { BYTES = 4096 };

static int damage_one(struct crw_group *group, void *data_)
{
    const struct perf_collective *c = perf_collective_find(data_);
    static uint8_t in[BYTES], out[BYTES];
    struct perf_run run = {
        .group = group,
        .rank = crw_rank(group),
        .n_ranks = crw_world_size(group),
        .bytes = BYTES,
        .in = in,
        .out = out,
    };
    bool root_only = strcmp(c->name, "gather") == 0 || strcmp(c->name, "reduce") == 0;
    bool in_place = strcmp(c->name, "allreduce") == 0 || strcmp(c->name, "reduce") == 0 ||
                    strcmp(c->name, "broadcast") == 0;
    uint8_t *result = in_place ? in : out;

    c->fill(&run, 5);
    CHECK(crw_barrier(group) == 0);
    CHECK(c->call(&run) == 0);
    CHECK(c->count_wrong(&run, 5) == 0);
    if (root_only && run.rank != 0)
        return 0;
    CHECK(c->count_wrong(&run, 6) >
          BYTES / c->unit / 4); /* of the data that was there before, nothing is right */
    result[1001] ^= 0x40;
    CHECK(c->count_wrong(&run, 5) == 1);
    result[1001] ^= 0x40;
    result[BYTES / 2 - 1] ^= 1; /* the last one where each rank has a part */
    CHECK(c->count_wrong(&run, 5) == 1);
    return 0;
}

static void wrong_elements_are_found(void **state)
{
    static char names[][16] = {"allreduce",     "broadcast", "allgather", "gather",   "reduce",
                               "reducescatter", "scatter",   "sendrecv",  "pingpong", "copy"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (crw_launch(damage_one, names[i], 2) != 0)
            fail_msg("%s: %s", names[i], crw_error_message());
}

static void names_have_separators_or_not(void **state)
{
    assert_non_null(perf_collective_find("allreduce"));
    assert_ptr_equal(perf_collective_find("all_reduce"), perf_collective_find("allreduce"));
    assert_ptr_equal(perf_collective_find("reduce-scatter"), perf_collective_find("reducescatter"));
    assert_null(perf_collective_find("allreducex"));
    assert_null(perf_collective_find("allreduc"));
    assert_null(perf_collective_find(""));
}

static void sizes_are_rounded_up(void **state)
{
    assert_int_equal(perf_round_size(perf_collective_find("allreduce"), 5, 3), 8);
    assert_int_equal(perf_round_size(perf_collective_find("allgather"), 4, 3), 6);
    assert_int_equal(perf_round_size(perf_collective_find("reducescatter"), 4, 3), 12);
    assert_int_equal(perf_round_size(perf_collective_find("broadcast"), 5, 3), 5);
    assert_int_equal(perf_round_size(perf_collective_find("barrier"), 5, 3), 0);
}

static void bus_bandwidth_is_that_of_nccl_tests(void **state)
{
    assert_true(perf_collective_find("allreduce")->bus_factor(4) == 1.5);
    assert_true(perf_collective_find("allgather")->bus_factor(4) == 0.75);
    assert_true(perf_collective_find("reducescatter")->bus_factor(2) == 0.5);
    assert_true(perf_collective_find("broadcast")->bus_factor(4) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_elements_are_found),
        cmocka_unit_test(names_have_separators_or_not),
        cmocka_unit_test(sizes_are_rounded_up),
        cmocka_unit_test(bus_bandwidth_is_that_of_nccl_tests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
