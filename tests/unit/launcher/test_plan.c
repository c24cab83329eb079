/* From a rank to arguments and environment. */

#include <stdlib.h>
#include <string.h>

#include "launcher/util/envp.h"
#include "launcher/cli/plan.h"
#include "base/err.h"
#include "rendezvous/session/session_message.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_substitute(void **state)
{
    static const struct {
        const char *text, *answer;
    } cases[] = {
        {"--local-rank=${local_rank}", "--local-rank=3"},
        {"$local_rank", "3"},
        {"a$local_rank/b", "a3/b"},
        {"${LOCAL_RANK}", "${LOCAL_RANK}"},
        {"$local_ranks", "$local_ranks"},
        {"${local_rank", "${local_rank"},
        {"${local_ranks}", "${local_ranks}"},
        {"$$", "$"},
        {"$$local_rank", "$local_rank"},
        {"$$$local_rank", "$3"},
        {"{local_rank}", "{local_rank}"},
        {"$", "$"},
        {"$1", "$1"},
        {"a$", "a$"},
        {"$x", "$x"},
        {"", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *answer = plan_substitute(cases[i].text, 3);
        assert_string_equal(answer, cases[i].answer);
        free(answer);
    }
}

static void test_arguments(void **state)
{
    struct plan_command command = {.script = "r${local_rank}.py",
                                   .args = (char *const[]){(char[]){"$local_rank"}, (char[]){"--x"}, NULL}};
    struct strlist out = {0};

    strlist_add_copy(&command.head, "python3");
    strlist_add_copy(&command.head, "-u");
    plan_arguments(&command, 1, &out);
    assert_false(out.failed);
    assert_int_equal(out.n_items, 5);
    assert_string_equal(out.items[0], "python3");
    assert_string_equal(out.items[2], "r1.py");
    assert_string_equal(out.items[3], "1");
    assert_string_equal(out.items[4], "--x");
    assert_null(out.items[5]);
    strlist_finish(&out);
    strlist_finish(&command.head);
}

/* ------------------------------------------------------------------ environment */

#define ENVIRONMENT(...) ((char *const *)(uintptr_t)(const char *const[]){__VA_ARGS__, NULL})

static const struct rank_assignment place = {
    .group_rank = 1,
    .group_world_size = 3,
    .rank_base = 8,
    .world_size = 24,
    .role_rank_base = 6,
    .role_world_size = 20,
    .master_addr = "127.0.0.1",
    .master_port = 4711,
};

static const struct plan usual = {
    .local_world_size = 4,
    .place = &place,
    .role = "trainer",
    .run_id = "job",
    .generation = 4,
    .restart_count = 2,
    .max_restarts = 5,
    .shutdown_timeout_s = 7,
    .signals = "SIGTERM",
    .attempt_dir = "/tmp/a/attempt_2",
    .notice_fd = 3,
    .local_addr = "10.0.0.7",
    .interface = "ib0",
    .state_fd = 4,
    .key_fd = 6,
    .blocks_fd = 7,
};

static void expect_variable(const struct strlist *environment, const char *variable)
{
    char name[64] = "";
    size_t n = 0;

    memcpy(name, variable, strcspn(variable, "="));
    for (size_t i = 0; i < environment->n_items; i++)
        n += strncmp(environment->items[i], variable, strlen(name) + 1) == 0;
    const char *value = envp_get(environment->items, name);
    if (n != 1 || !value || strcmp(value, variable + strlen(name) + 1) != 0)
        fail_msg("expected %s once, found %zu, value %s", variable, n, value ? value : "(none)");
}

static void test_environment(void **state)
{
    static const char *const expected[] = {
        "LOCAL_RANK=1",
        "RANK=9",
        "WORLD_SIZE=24",
        "LOCAL_WORLD_SIZE=4",
        "GROUP_RANK=1",
        "GROUP_WORLD_SIZE=3",
        "ROLE_NAME=trainer",
        "ROLE_RANK=7",
        "ROLE_WORLD_SIZE=20",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=4711",
        "TORCHELASTIC_RESTART_COUNT=2",
        "TORCHELASTIC_MAX_RESTARTS=5",
        "TORCHELASTIC_RUN_ID=job",
        "TORCHELASTIC_USE_AGENT_STORE=True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM",
        "TORCHELASTIC_ERROR_FILE=/tmp/a/attempt_2/1/error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "OMP_NUM_THREADS=1",
        "CRUN_NOTICE_FD=3",
        "CRUN_GENERATION=4",
        "CRUN_SHUTDOWN_TIMEOUT=7",
        "CRUN_LOCAL_ADDR=10.0.0.7",
        "GLOO_SOCKET_IFNAME=ib0",
        "CRUN_STATE_FD=4",
        "CRUN_KEY_FD=6",
        "CRUN_BLOCKS_FD=7",
        "HOME=/root",
        "PET_NNODES=1",
    };
    struct plan plan = usual;
    struct strlist out = {0};

    plan.environment = ENVIRONMENT("HOME=/root", "RANK=77", "PET_NNODES=1", "RANKS", "MASTER_PORT=1");
    assert_int_equal(plan_environment(&plan, 1, &out), 0);
    assert_ptr_equal(out.items[out.n_items - 1],
                     plan.environment[3]); /* not copied for each worker: it may be large */
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
        expect_variable(&out, expected[i]);
    assert_int_equal(out.n_items, ARRAY_SIZE(expected) + 1); /* "RANKS" is passed on as it is */
    strlist_finish(&out);
}

/* What a crun around this one gave its own workers is not handed on. */
static void test_outer_variables_end_here(void **state)
{
    struct plan plan = usual;
    struct strlist environment = {0};

    plan.local_addr = NULL;
    plan.state_fd = plan.key_fd = plan.blocks_fd = 0;
    plan.environment =
        ENVIRONMENT("CRUN_LOCAL_ADDR=10.9.9.9", "CRUN_STATE_FD=7", "CRUN_CACHE_FD=8", "CRUN_KEY_FD=9",
                    "CRUN_BLOCKS_FD=10", "CRUN_SEAL=1", "CRUN_MASTER_HOST=10.9.9.8", "CRUN_SECRET_FD=3",
                    "CRUN_OUTPUT_FD=4", "GLOO_SOCKET_IFNAME=lo", "HOME=/root");
    assert_int_equal(plan_environment(&plan, 0, &environment), 0);
    expect_variable(&environment, "GLOO_SOCKET_IFNAME=lo"); /* the user's */
    assert_null(envp_get(environment.items, "CRUN_LOCAL_ADDR"));
    assert_null(envp_get(environment.items, "CRUN_STATE_FD"));
    assert_null(envp_get(environment.items, "CRUN_CACHE_FD"));
    assert_null(envp_get(environment.items, "CRUN_KEY_FD"));
    assert_null(envp_get(environment.items, "CRUN_BLOCKS_FD"));
    assert_null(envp_get(environment.items, "CRUN_SEAL"));
    assert_null(envp_get(environment.items, "CRUN_MASTER_HOST"));
    assert_null(envp_get(environment.items, "CRUN_SECRET_FD"));
    assert_null(envp_get(environment.items, "CRUN_OUTPUT_FD"));
    expect_variable(&environment, "HOME=/root");
    strlist_finish(&environment);
}

/* Of --seal: where there is a key to encrypt with. What the user has decided is passed on beside it, what an outer crun set is not. */
static void test_sealed_workers_encrypt(void **state)
{
    static const struct {
        bool seals;
        int key_fd;
        const char *inherited, *expected;
    } cases[] = {
        {true, 6, "HOME=/root", "1"},    {false, 6, "HOME=/root", NULL},  {true, 0, "HOME=/root", NULL},
        {true, 6, "CRW_ENCRYPT=0", "1"}, {false, 6, "CRUN_SEAL=1", NULL}, {true, 6, "CRUN_SEAL=0", "1"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct plan plan = usual;
        struct strlist out = {0};

        plan.seals = cases[i].seals;
        plan.key_fd = cases[i].key_fd;
        plan.environment = ENVIRONMENT(cases[i].inherited);
        assert_int_equal(plan_environment(&plan, 0, &out), 0);
        const char *value = envp_get(out.items, "CRUN_SEAL");
        assert_int_equal(value != NULL, cases[i].expected != NULL);
        if (value && cases[i].expected)
            assert_string_equal(value, cases[i].expected);
        if (strncmp(cases[i].inherited, "CRUN_", 5) != 0)
            expect_variable(&out, cases[i].inherited);
        strlist_finish(&out);
    }
}

static void test_inherited_beats_default(void **state)
{
    struct plan plan = usual;
    struct strlist out = {0};

    plan.environment = ENVIRONMENT("OMP_NUM_THREADS=7", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0");
    plan.attempt_dir = NULL;
    assert_int_equal(plan_environment(&plan, 0, &out), 0);
    assert_false(plan_limits_threads(&plan));
    expect_variable(&out, "OMP_NUM_THREADS=7");
    expect_variable(&out, "TORCH_NCCL_ASYNC_ERROR_HANDLING=0");
    expect_variable(&out, "TORCHELASTIC_ERROR_FILE=");
    strlist_finish(&out);
    plan.attempt_dir = "/tmp/a/attempt_2";
    plan.has_flat_files = true;
    assert_int_equal(plan_environment(&plan, 3, &out), 0);
    expect_variable(&out, "TORCHELASTIC_ERROR_FILE=/tmp/a/attempt_2.3.error.json");
    strlist_finish(&out);
}

static void test_one_worker_keeps_its_threads(void **state)
{
    struct plan plan = usual;
    struct strlist out = {0};

    plan.environment = ENVIRONMENT("A=1");
    plan.local_world_size = 1;
    assert_int_equal(plan_environment(&plan, 0, &out), 0);
    assert_null(envp_get(out.items, "OMP_NUM_THREADS"));
    strlist_finish(&out);
}

static void test_virtual_local_rank(void **state)
{
    static const struct {
        const char *inherited;
        int local_rank;
        const char *expected; /* NULL: refused */
    } cases[] = {
        {"A=1", 2, "CUDA_VISIBLE_DEVICES=2"},
        {"CUDA_VISIBLE_DEVICES=4,5, GPU-x ,7", 0, "CUDA_VISIBLE_DEVICES=4"},
        {"CUDA_VISIBLE_DEVICES=4,5, GPU-x ,7", 2, "CUDA_VISIBLE_DEVICES=GPU-x"},
        {"CUDA_VISIBLE_DEVICES=4,5, GPU-x ,7", 3, "CUDA_VISIBLE_DEVICES=7"},
        {"CUDA_VISIBLE_DEVICES=4,5", 2, NULL},
        {"HIP_VISIBLE_DEVICES=6, 7", 1, "CUDA_VISIBLE_DEVICES=7"},
        {"HIP_VISIBLE_DEVICES=6, 7", 1, "HIP_VISIBLE_DEVICES=7"},
        {"HIP_VISIBLE_DEVICES=6,7", 2, NULL},
        {"HIP_VISIBLE_DEVICES=", 2, "CUDA_VISIBLE_DEVICES=2"},
        {"ROCR_VISIBLE_DEVICES=6", 2, "CUDA_VISIBLE_DEVICES=2"}, /* HIP counts what ROCR leaves */
        {"ROCR_VISIBLE_DEVICES=6", 2, "ROCR_VISIBLE_DEVICES=6"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct plan plan = usual;
        struct strlist out = {0};

        plan.virtual_local_rank = true;
        plan.environment = ENVIRONMENT(cases[i].inherited);
        assert_int_equal(plan_environment(&plan, cases[i].local_rank, &out),
                         cases[i].expected ? 0 : PLAN_E_DEVICES);
        if (cases[i].expected) {
            expect_variable(&out, cases[i].expected);
            expect_variable(&out, "LOCAL_RANK=0");
        }
        strlist_finish(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_substitute),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_outer_variables_end_here),
        cmocka_unit_test(test_sealed_workers_encrypt),
        cmocka_unit_test(test_inherited_beats_default),
        cmocka_unit_test(test_one_worker_keeps_its_threads),
        cmocka_unit_test(test_virtual_local_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
