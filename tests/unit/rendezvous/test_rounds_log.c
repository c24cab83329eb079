/*
 * What is said about jobs, and what of it on disk counts as whole.
 */

#include <string.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/agents/rounds_file_os.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/rounds/rounds_log.h"

#include "tests/support/c/cmocka_fixed.h"

static struct rounds_job example(void)
{
    struct rounds_job job = {
        .id = "train",
        .generation = 3,
        .params = {.min_nodes = 16, .max_nodes = 16, .max_restarts = 5, .max_changes = 9},
        .restarts = 2,
        .changes = 1,
        .n_members = 16,
        .world_size = 128,
        .master_addr = "10.0.0.1",
        .cause =
            {.kind = SESSION_CAUSE_WORKER, .rank = 25, .local_rank = 1, .exit_code = -9, .host = "node3"},
    };

    return job;
}

static void check(const struct rounds_job *job, unsigned log_kinds, const char *const *lines)
{
    char line[ROUNDS_LOG_SIZE];

    for (; *lines; lines++) {
        assert_true(rounds_log_next(job, &log_kinds, line));
        assert_string_equal(line, *lines);
    }
    assert_false(rounds_log_next(job, &log_kinds, line));
}

#define BUDGETS " (restarts 2 of 5, membership changes 1 of 9)"
#define CAUSE "rank 25 (local rank 1) on node3 was ended by signal 9"

static void test_each_kind(void **state)
{
    struct rounds_job job = example();

    check(&job, ROUNDS_LOG_OVER, (const char *[]){"job 'train': generation 3 is over: " CAUSE, NULL});
    check(&job, ROUNDS_LOG_SETTLED,
          (const char *[]){"job 'train': generation 3 has ended because " CAUSE BUDGETS, NULL});
    check(&job, ROUNDS_LOG_FORMED,
          (const char *[]){
              "job 'train': generation 3 runs: 16 nodes, 128 workers, MASTER_ADDR 10.0.0.1" BUDGETS, NULL});
    check(&job, ROUNDS_LOG_DRAIN,
          (const char *[]){"job 'train': generation 3 is asked to snapshot and end: a node goes away", NULL});
    job.verdict = SESSION_VERDICT_FAILURE;
    check(&job, ROUNDS_LOG_CLOSED, (const char *[]){"job 'train': failed: " CAUSE BUDGETS, NULL});
    job.stop_signal = 15;
    check(&job, ROUNDS_LOG_CLOSED, (const char *[]){"job 'train': was ended: " CAUSE BUDGETS, NULL});
    job.verdict = SESSION_VERDICT_SUCCESS;
    check(&job, ROUNDS_LOG_CLOSED, (const char *[]){"job 'train': succeeded" BUDGETS, NULL});
}

static void test_progress(void **state)
{
    struct rounds_job job = example();

    job.n_nodes[ROUNDS_NODE_READY] = 13;
    check(&job, ROUNDS_LOG_PROGRESS, (const char *[]){"job 'train': 13/16 nodes", NULL});
    job.n_missing = 2;
    job.missing[0] = 3;
    job.missing[1] = 7;
    check(&job, ROUNDS_LOG_PROGRESS,
          (const char *[]){"job 'train': 13/16 nodes; missing node ranks: 3, 7", NULL});
    job.n_missing = 0;
    job.params.min_nodes = 14;
    job.n_nodes[ROUNDS_NODE_STOPPING] = 1;
    check(&job, ROUNDS_LOG_PROGRESS,
          (const char *[]){"job 'train': 13/16 nodes, at least 14 wanted, 1 still stopping", NULL});
}

static void test_unfit(void **state)
{
    struct rounds_job job = example();

    text_copy(job.unfit, sizeof(job.unfit), "node3: exit code 3: Xid 79");
    check(&job, ROUNDS_LOG_UNFIT,
          (const char *[]){"job 'train': left out: node3: exit code 3: Xid 79", NULL});
}

/* Several things in one step: each once, in their order, and no line claims the new generation's number for
 * what ended the old one. */
static void test_together(void **state)
{
    struct rounds_job job = example();

    check(&job, ROUNDS_LOG_OVER | ROUNDS_LOG_SETTLED,
          (const char *[]){"job 'train': generation 3 has ended because " CAUSE BUDGETS, NULL});
    check(&job, ROUNDS_LOG_OVER | ROUNDS_LOG_SETTLED | ROUNDS_LOG_FORMED,
          (const char *[]){"job 'train': after " CAUSE
                           ": generation 3 runs: 16 nodes, 128 workers, MASTER_ADDR 10.0.0.1" BUDGETS,
                           NULL});
    job.n_nodes[ROUNDS_NODE_READY] = 13;
    check(&job, ROUNDS_LOG_PROGRESS | ROUNDS_LOG_SETTLED | ROUNDS_LOG_FORMED,
          (const char *[]){"job 'train': 13/16 nodes",
                           "job 'train': after " CAUSE
                           ": generation 3 runs: 16 nodes, 128 workers, MASTER_ADDR 10.0.0.1" BUDGETS,
                           NULL});
    job.verdict = SESSION_VERDICT_FAILURE;
    check(&job, ROUNDS_LOG_OVER | ROUNDS_LOG_SETTLED | ROUNDS_LOG_CLOSED,
          (const char *[]){"job 'train': generation 3 has ended because " CAUSE BUDGETS,
                           "job 'train': failed: " CAUSE BUDGETS, NULL});
}

static void test_names_of_strangers(void **state)
{
    struct rounds_job job = example();
    char line[ROUNDS_LOG_SIZE];
    unsigned log_kinds = ROUNDS_LOG_OVER;

    memset(job.id, 'j', sizeof(job.id) - 1);
    memset(job.cause.text, '\n', sizeof(job.cause.text) - 1);
    memcpy(job.cause.host, "\x1b[2J", 5);
    assert_true(rounds_log_next(&job, &log_kinds, line));
    assert_null(strpbrk(line, "\n\x1b"));
    assert_non_null(strstr(line, "?[2J"));
}

/* ---- files ---- */

static void test_file_names(void **state)
{
    char name[ROUNDS_FILE_NAME_SIZE];

    rounds_file_name(UINT64_C(0x0123456789abcdef), name);
    assert_string_equal(name, "job-0123456789abcdef.json");
    assert_true(rounds_file_is_name(name));
    assert_false(rounds_file_is_name("job-0123456789abcde.json"));
    assert_false(rounds_file_is_name("job-0123456789abcdeg.json"));
    assert_false(rounds_file_is_name("job-0123456789abcdef.json.new"));
    assert_false(rounds_file_is_name("job-0123456789abcdef.jso"));
    assert_false(rounds_file_is_name("0123456789abcdef.json"));
    assert_false(rounds_file_is_name("."));
}

/* Every byte of a file counts: changed, or cut off there, it is not whole any more. */
static void test_damage_is_seen(void **state)
{
    struct rounds_job job = example();
    struct buf file = {0};
    const uint8_t *rest;
    size_t n;

    list_init(&job.nodes);
    assert_int_equal(rounds_file_put(&file, &job), 0);
    rest = rounds_file_check(buf_bytes(&file), buf_size(&file), &n);
    assert_non_null(rest);
    assert_ptr_equal(rest + n, buf_bytes(&file) + buf_size(&file));
    assert_int_equal(rest[0], '{');
    for (size_t i = 0; i < buf_size(&file); i++) {
        assert_null(rounds_file_check(buf_bytes(&file), i, &n));
        for (unsigned bit = 0; bit < 8; bit++) {
            buf_bytes(&file)[i] ^= (uint8_t)(1u << bit);
            assert_null(rounds_file_check(buf_bytes(&file), buf_size(&file), &n));
            buf_bytes(&file)[i] ^= (uint8_t)(1u << bit);
        }
    }
    assert_non_null(rounds_file_check(buf_bytes(&file), buf_size(&file), &n));
    buf_finish(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_unfit),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_names_of_strangers),
        cmocka_unit_test(test_file_names),
        cmocka_unit_test(test_damage_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
