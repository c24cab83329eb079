/* Which ranks are stragglers, in virtual time: a table of jobs, each a function of the millisecond that gives the sample of a rank. */

#include "launcher/ctl/stragglers.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

enum { RANKS = 4, LOOK_MS = 1000, RUN_MS = 60000, PERIOD_MS = 700 };

typedef struct straggler_sample sample_of(int rank, int ms);

/* The last step that a rank has reported, when each comes late_ms behind its time. */
static struct straggler_sample beats(int ms, int late_ms)
{
    int step = (ms - late_ms) / PERIOD_MS;

    return (struct straggler_sample){
        .is_running = true, .step = step, .step_ns = (uint64_t)(step * PERIOD_MS + late_ms) * 1000000u};
}

static struct straggler_sample all_are_even(int rank, int ms)
{
    return beats(ms, 1 + rank);
}

/* Another one is the last each time. */
static struct straggler_sample one_by_one_is_late(int rank, int ms)
{
    return beats(ms, rank == ms / PERIOD_MS % RANKS ? 100 : 1);
}

static struct straggler_sample rank_2_is_late(int rank, int ms)
{
    return beats(ms, rank == 2 ? 150 : 1);
}

static struct straggler_sample rank_2_is_slower(int rank, int ms)
{
    return beats(rank == 2 ? ms * 9 / 10 : ms, 1);
}

/* The others have always just reported a step. */
static struct straggler_sample rank_2_is_far_behind(int rank, int ms)
{
    return (struct straggler_sample){
        .is_running = true, .step = ms / (rank == 2 ? 2000 : 1000), .step_ns = (uint64_t)(ms - 1) * 1000000u};
}

/* Each of them is late for both others, which is more than half of three. */
static struct straggler_sample two_are_late(int rank, int ms)
{
    return beats(ms, rank >= 2 ? 150 : 1);
}

/* Each of the others is late for that one alone. */
static struct straggler_sample rank_3_is_early(int rank, int ms)
{
    return beats(ms, rank == 3 ? 1 : 150);
}

static struct straggler_sample rank_2_is_late_at_first(int rank, int ms)
{
    return beats(ms, rank == 2 && ms < 20000 ? 150 : 1);
}

/* Rank 0 stands still for 30 s, the others wait in the next step; then all go on. */
static struct straggler_sample rank_0_writes_once(int rank, int ms)
{
    if (ms > 10000 && ms < 40000)
        return beats(9100 + (rank == 0 ? 0 : PERIOD_MS), 1);
    return beats(ms, 1);
}

static struct straggler_sample rank_2_has_ended(int rank, int ms)
{
    struct straggler_sample sample = beats(ms, 1);

    if (rank == 2)
        sample = (struct straggler_sample){.step = 3};
    return sample;
}

static struct straggler_sample rank_2_reports_none(int rank, int ms)
{
    return rank == 2 ? (struct straggler_sample){.is_running = true, .step = -1} : beats(ms, 1);
}

static struct straggler_sample counts(int number)
{
    return (struct straggler_sample){
        .is_running = true, .step = -1, .counts = {{.group = 7, .number = (uint64_t)number}}, .n_counts = 1};
}

/* It begins each collective 300 ms behind the others, which wait for it there. */
static struct straggler_sample rank_1_begins_late(int rank, int ms)
{
    return counts((ms - (rank == 1 ? 300 : 0)) / PERIOD_MS);
}

static struct straggler_sample all_begin_alike(int rank, int ms)
{
    (void)rank;
    return counts(ms / PERIOD_MS);
}

static struct straggler_sample ranks_in_different_groups(int rank, int ms)
{
    struct straggler_sample sample = counts(ms / PERIOD_MS / (rank + 1));

    sample.counts[0].group = (uint64_t)rank + 1;
    return sample;
}

/* The marks at the end of the time, as a mask. */
static unsigned run_job(sample_of *job, int n_ranks)
{
    struct straggler_sample samples[RANKS];
    struct stragglers s;
    unsigned marks = 0;

    assert_int_equal(stragglers_init(&s, n_ranks), 0);
    for (int ms = 2 * PERIOD_MS; ms < RUN_MS; ms += LOOK_MS) {
        for (int i = 0; i < n_ranks; i++)
            samples[i] = job(i, ms);
        stragglers_step(&s, (uint64_t)ms * 1000000u, samples);
    }
    for (int i = 0; i < n_ranks; i++)
        marks |= (unsigned)stragglers_has(&s, i) << i;
    stragglers_begin(&s);
    for (int i = 0; i < n_ranks; i++)
        assert_false(stragglers_has(&s, i));
    stragglers_finish(&s);
    return marks;
}

static void a_table_of_jobs(void **state)
{
    static const struct {
        sample_of *job;
        int n_ranks;
        unsigned marks;
    } rows[] = {
        {all_are_even, RANKS, 0},
        {one_by_one_is_late, RANKS, 0},
        {one_by_one_is_late, 2, 0},
        {rank_2_is_late, RANKS, 1 << 2},
        {rank_2_is_late, 3, 1 << 2},
        {rank_2_is_slower, RANKS, 1 << 2},
        {rank_2_is_far_behind, RANKS, 1 << 2},
        {two_are_late, RANKS, 1 << 2 | 1 << 3},
        {rank_3_is_early, RANKS, 0},
        {rank_2_is_late_at_first, RANKS, 0},
        {rank_0_writes_once, RANKS, 0},
        {rank_2_has_ended, RANKS, 0},
        {rank_2_reports_none, RANKS, 0},
        {rank_1_begins_late, RANKS, 1 << 1},
        {rank_1_begins_late, 2, 1 << 1},
        {all_begin_alike, RANKS, 0},
        {ranks_in_different_groups, RANKS, 0},
        {rank_2_is_late, 1, 0},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        unsigned marks = run_job(rows[i].job, rows[i].n_ranks);
        if (marks != rows[i].marks)
            fail_msg("row %zu: %x instead of %x", i, marks, rows[i].marks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_table_of_jobs)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
