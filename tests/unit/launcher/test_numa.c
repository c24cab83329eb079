/* CPU lists and the arithmetic of --numa-binding; whole machines are in tests/integration/test_crun_numa.py. */

#include <stdlib.h>
#include <string.h>

#include "launcher/cli/numa.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/cpu_list.h"

static void test_lists(void **state)
{
    static const struct {
        const char *list, *answer; /* NULL: malformed */
    } cases[] = {
        {"0-2,4,6-7\n", "0-2,4,6-7"},
        {"", ""},
        {"\n", ""},
        {"5", "5"},
        {"3,1,2", "1-3"},
        {"0 , 2-3", "0,2-3"},
        {"8191", "8191"},
        {"8192", NULL},
        {"1-", NULL},
        {"-1", NULL},
        {"1-9999", NULL},
        {"a", NULL},
        {"1;2", NULL},
        {"1,,2", NULL},
        {"99999999999", NULL},
        {"4-2", ""},
        {"62-65", "62-65"},
        {"0-8191", "0-8191"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct numa_cpus cpus;
        char text[64];

        bool is_list = numa_cpus_parse(cases[i].list, &cpus);
        assert_int_equal(is_list, cases[i].answer != NULL);
        if (!is_list)
            continue;
        cpu_list_format(&cpus, text, sizeof(text));
        assert_string_equal(text, cases[i].answer);
    }
}

static void test_count(void **state)
{
    struct numa_cpus cpus;

    assert_true(numa_cpus_parse("1,3,5,7,9", &cpus));
    assert_int_equal(numa_cpus_count(&cpus), 5);
}

/* Five cores without threads on one node, two caches of 3 and 2 cores, and n_places places. */
static struct numa_topology five_cores(int n_places)
{
    struct numa_topology t = {.n_nodes = 1, .n_cpus = 5};

    t.node_cpus = calloc(1, sizeof(*t.node_cpus));
    t.cpus = calloc(5, sizeof(*t.cpus));
    assert_non_null(t.node_cpus);
    assert_non_null(t.cpus);
    for (int cpu = 0; cpu < 5; cpu++) {
        numa_cpus_add(&t.allowed, cpu);
        numa_cpus_add(t.node_cpus, cpu);
        t.cpus[cpu] = (struct numa_cpu){.core = cpu, .cache = cpu < 2 ? 0 : 2};
    }
    assert_int_equal(numa_spread(&t, n_places), 0);
    return t;
}

static void assert_binds(const struct numa_topology *t, enum numa_mode mode, int local_rank,
                         const char *answer)
{
    char error[NUMA_ERROR_SIZE] = "", text[64];
    struct numa_cpus cpus;

    assert_int_equal(numa_bind(t, mode, local_rank, &cpus, error), 0);
    cpu_list_format(&cpus, text, sizeof(text));
    assert_string_equal(text, answer);
}

static void test_what_is_left_over_goes_to_the_first(void **state)
{
    struct numa_topology t = five_cores(3);

    assert_binds(&t, NUMA_EXCLUSIVE, 0, "0-1");
    assert_binds(&t, NUMA_EXCLUSIVE, 1, "2-3");
    assert_binds(&t, NUMA_EXCLUSIVE, 2, "4");
    numa_finish(&t);
}

static void test_the_largest_cache_comes_first_and_all_in_turn(void **state)
{
    struct numa_topology t = five_cores(3);

    assert_binds(&t, NUMA_CORE_COMPLEX, 0, "2-4");
    assert_binds(&t, NUMA_CORE_COMPLEX, 1, "0-1");
    assert_binds(&t, NUMA_CORE_COMPLEX, 2, "2-4");
    numa_finish(&t);
}

static void test_sentences(void **state)
{
    struct numa_topology t = five_cores(6);
    char error[NUMA_ERROR_SIZE];
    struct numa_cpus cpus;

    assert_int_equal(numa_bind(&t, NUMA_EXCLUSIVE, 0, &cpus, error), NUMA_E_IMPOSSIBLE);
    assert_non_null(strstr(error, "5 physical cores that crun may use, and 6 workers"));
    assert_int_equal(numa_bind(&t, NUMA_NODE, 6, &cpus, error), NUMA_E_IMPOSSIBLE);
    assert_non_null(strstr(error, "no GPU for local rank 6"));
    t.places[0] = 7; /* a node that /sys does not list */
    assert_int_equal(numa_bind(&t, NUMA_SOCKET, 0, &cpus, error), NUMA_E_IMPOSSIBLE);
    assert_non_null(strstr(error, "no CPU of NUMA node 7"));
    numa_finish(&t);
    numa_finish(&t); /* once more is fine */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_what_is_left_over_goes_to_the_first),
        cmocka_unit_test(test_the_largest_cache_comes_first_and_all_in_turn),
        cmocka_unit_test(test_sentences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
