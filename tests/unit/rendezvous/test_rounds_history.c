/* What a rendezvous keeps of its jobs: bounded, and of each instance apart. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/rounds/rounds.h"
#include "rendezvous/rounds/rounds_history.h"

#include "tests/support/c/cmocka_fixed.h"

static struct rounds_job a_job(const char *id, uint64_t instance)
{
    struct rounds_job job = {.instance = instance, .n_members = 2, .world_size = 16};

    (void)snprintf(job.id, sizeof(job.id), "%s", id);
    job.cause = session_cause_empty(SESSION_CAUSE_NONE);
    return job;
}

static void set_cause(struct rounds_job *job, enum session_cause_kind kind, const char *text)
{
    job->cause = session_cause_empty(kind);
    (void)snprintf(job->cause.text, sizeof(job->cause.text), "%s", text);
}

static void generations_follow_each_other(void **state)
{
    struct rounds_job job = a_job("red", 7);
    struct rounds_history h = {0};

    (void)state;
    rounds_history_note(&h, &job, ROUNDS_LOG_PROGRESS, 9);
    assert_int_equal(h.n_runs, 0);
    rounds_history_note(&h, &job, ROUNDS_LOG_FORMED, 10);
    set_cause(&job, SESSION_CAUSE_CLOSED, "later");
    rounds_history_note(&h, &job, ROUNDS_LOG_OVER, 12);
    set_cause(&job, SESSION_CAUSE_CLOSED, "earlier");
    rounds_history_note(&h, &job, ROUNDS_LOG_SETTLED, 13);
    job.generation = 1;
    job.restarts = 1;
    rounds_history_note(&h, &job, ROUNDS_LOG_FORMED, 14);
    set_cause(&job, SESSION_CAUSE_CLOSED, "in one step");
    job.generation = 2;
    rounds_history_note(&h, &job, ROUNDS_LOG_SETTLED | ROUNDS_LOG_FORMED, 20);
    job.verdict = SESSION_VERDICT_SUCCESS;
    job.cause = session_cause_empty(SESSION_CAUSE_NONE);
    rounds_history_note(&h, &job, ROUNDS_LOG_CLOSED, 30);
    assert_int_equal(h.n_runs, 1);
    const struct rounds_past_run *run = &h.runs[0];
    assert_int_equal(run->n_generations, 3);
    assert_non_null(strstr(run->generations[0].reason, "earlier"));
    assert_int_equal(run->generations[0].ended_s, 12);
    assert_int_equal(run->generations[1].ended_s, 20);
    assert_int_equal(run->generations[1].restarts, 1);
    assert_non_null(strstr(run->generations[1].reason, "in one step"));
    assert_int_equal(run->generations[2].ended_s, 30);
    assert_string_equal(run->generations[2].reason, "");
    assert_string_equal(run->result, "succeeded");
    assert_int_equal(run->ended_s, 30);
    rounds_history_finish(&h);
}

/* Which never had enough nodes. */
static void job_without_a_generation_has_its_reason(void **state)
{
    struct rounds_job job = a_job("red", 7);
    struct rounds_history h = {0};

    (void)state;
    job.verdict = SESSION_VERDICT_FAILURE;
    set_cause(&job, SESSION_CAUSE_CLOSED, "no nodes");
    rounds_history_note(&h, &job, ROUNDS_LOG_CLOSED, 30);
    assert_int_equal(h.runs[0].n_generations, 0);
    assert_string_equal(h.runs[0].result, "failed");
    assert_non_null(strstr(h.runs[0].reason, "no nodes"));
    rounds_history_finish(&h);
}

static void last_generations_are_kept(void **state)
{
    struct rounds_job job = a_job("red", 7);
    struct rounds_history h = {0};

    (void)state;
    for (job.generation = 0; job.generation < 100; job.generation++)
        rounds_history_note(&h, &job, ROUNDS_LOG_FORMED | ROUNDS_LOG_SETTLED, 10 + job.generation);
    assert_int_equal(h.runs[0].n_generations, ROUNDS_HISTORY_GENERATIONS_MAX);
    assert_int_equal(h.runs[0].generations[0].number, 100 - ROUNDS_HISTORY_GENERATIONS_MAX);
    assert_int_equal(h.runs[0].generations[ROUNDS_HISTORY_GENERATIONS_MAX - 1].number, 99);
    rounds_history_finish(&h);
}

/* One that runs stays, though it began first. */
static void run_that_ended_first_is_dropped(void **state)
{
    struct rounds_history h = {0};

    (void)state;
    for (uint64_t i = 0; i < ROUNDS_HISTORY_RUNS_MAX + 2; i++) {
        struct rounds_job job = a_job("red", i);

        rounds_history_note(&h, &job, ROUNDS_LOG_FORMED, 10);
        job.verdict = SESSION_VERDICT_FAILURE;
        if (i > 0)
            rounds_history_note(&h, &job, ROUNDS_LOG_CLOSED, (int64_t)(20 + i));
    }
    assert_int_equal(h.n_runs, ROUNDS_HISTORY_RUNS_MAX);
    assert_int_equal(h.runs[0].instance, 0);
    assert_int_equal(h.runs[1].instance, 3);
    assert_int_equal(h.runs[h.n_runs - 1].instance, ROUNDS_HISTORY_RUNS_MAX + 1);
    rounds_history_finish(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generations_follow_each_other),
        cmocka_unit_test(job_without_a_generation_has_its_reason),
        cmocka_unit_test(last_generations_are_kept),
        cmocka_unit_test(run_that_ended_first_is_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
