/* When ranks hang, in virtual time: a table of jobs, each a function of the second that gives the sample of a rank. */

#include "launcher/watch/progress.h"

#include "tests/support/c/cmocka_fixed.h"

enum { RANKS = 3, TIMEOUT_S = 20, RUN_S = 100 };

struct sign {
    uint64_t written, read, head, where, switches, faults;
    uint64_t main_ran_ms, main_waited_ms, others_ran_ms;
    uint64_t processes;
    enum progress_stack stack;
    bool runs, has_ended;
};

/* What rank `rank` shows in second s; the counters begin anywhere. */
typedef struct sign sign_of(int rank, int s);

static struct sign waits(int rank, int s)
{
    (void)s;
    return (struct sign){.read = 1000 + (uint64_t)rank, .where = 7};
}

static struct sign all_wait(int rank, int s)
{
    return waits(rank, s);
}

static struct sign one_writes_a_checkpoint(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.written += rank == 1 ? (uint64_t)s / 15 : 0; /* 15 s between two pieces */
    return sign;
}

static struct sign one_reads_blocks(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.read += rank == 1 ? (uint64_t)s / 15 * PROGRESS_READ_MIN : 0;
    return sign;
}

static struct sign one_reads_slowly(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.read += rank == 1 ? 2 * PROGRESS_READ_RATE * (uint64_t)s : 0;
    return sign;
}

/* Each attempt to connect reads /etc/hosts. */
static struct sign all_try_to_connect(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.read += 49 * (uint64_t)s;
    return sign;
}

static struct sign all_try_where_many_hosts_are_known(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.read += 3000 * (uint64_t)(s / 4);
    return sign;
}

/* Its process ends and takes the bytes with it. */
static struct sign a_process_ends_every_15_s(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.read += rank == 1 && s / 15 % 2 ? 100000 : 0;
    return sign;
}

static struct sign one_beats(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.head = rank == 1 ? (uint64_t)s / 12 : 0;
    return sign;
}

static struct sign one_compiles(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign = (struct sign){.runs = true,
                             .main_ran_ms = 500 * (uint64_t)s,
                             .stack = PROGRESS_STACK_KNOWN,
                             .where = (uint64_t)s / 3};
    return sign;
}

static struct sign one_loops(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2) /* CPU time, context switches and faults are no progress of a stack that is known */
        sign = (struct sign){.runs = true,
                             .main_ran_ms = 500 * (uint64_t)s,
                             .stack = PROGRESS_STACK_KNOWN,
                             .where = 5,
                             .switches = (uint64_t)s,
                             .faults = (uint64_t)s};
    return sign;
}

static struct sign one_computes_unseen(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign =
            (struct sign){.runs = true, .main_ran_ms = 500 * (uint64_t)s, .where = 5, .faults = (uint64_t)s};
    return sign;
}

/* In one function for just under half of the time-out, then in the next one. */
static struct sign one_computes_in_long_functions(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign = (struct sign){.runs = true,
                             .main_ran_ms = 500 * (uint64_t)s,
                             .stack = PROGRESS_STACK_KNOWN,
                             .where = (uint64_t)s / 9};
    return sign;
}

/* Silent from the start, and in the last function from second 13 on: not before half of the time-out behind that. */
static struct sign one_stops_late(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign = (struct sign){.runs = true,
                             .main_ran_ms = 500 * (uint64_t)s,
                             .stack = PROGRESS_STACK_KNOWN,
                             .where = s < 13 ? (uint64_t)s / 3 : 99};
    return sign;
}

static struct sign one_spins_unseen(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign = (struct sign){
            .runs = true, .main_ran_ms = 500 * (uint64_t)s, .where = 5, .switches = (uint64_t)s};
    return sign;
}

static struct sign one_polls(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.switches = (uint64_t)(rank == 0 ? 10 * s : 0);
    return sign;
}

/* The main thread is always found in backward(), where another thread computes. */
static struct sign threads_compute(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.switches = (uint64_t)s;
    sign.others_ran_ms = rank == 0 ? 1000 * (uint64_t)s : 0;
    return sign;
}

static struct sign others_spin_while_blocked(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.others_ran_ms = 1000 * (uint64_t)s; /* the main thread has not run since */
    return sign;
}

static struct sign one_has_ended(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.has_ended = rank == 0;
    return sign;
}

static struct sign hangs_after_50(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.written += (uint64_t)(s < 50 ? s : 50);
    return sign;
}

/* Threads of a library wake up a hundred times a second, for a moment; the main thread polls. */
static struct sign others_wake(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.switches = (uint64_t)s;
    sign.others_ran_ms = 2 * (uint64_t)s;
    return sign;
}

/* Every other look finds a thread running that polls; a tool shows where, or does not. */
static struct sign one_runs_by_chance(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.runs = rank == 1 && s / 3 % 2;
    sign.where += sign.runs ? (uint64_t)s : 0;
    sign.stack = sign.runs ? PROGRESS_STACK_KNOWN : PROGRESS_STACK_NONE;
    sign.switches = (uint64_t)s;
    sign.main_ran_ms = 10 * (uint64_t)s;
    sign.main_waited_ms = 200 * (uint64_t)s;
    return sign;
}

/* Found running by chance at one look, it is elsewhere at the next one. */
static struct sign one_goes_on_at_times(int rank, int s)
{
    struct sign sign = one_runs_by_chance(rank, s);

    if (!sign.runs)
        sign.where += rank == 1 ? (uint64_t)s / 6 : 0;
    return sign;
}

/* It gets a hundredth of a CPU, and another function is found at each look. */
static struct sign one_computes_with_little_time(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign = (struct sign){.runs = true,
                             .stack = PROGRESS_STACK_KNOWN,
                             .where = (uint64_t)s / 3,
                             .main_ran_ms = 10 * (uint64_t)s,
                             .main_waited_ms = 980 * (uint64_t)s};
    return sign;
}

/* Its processes do all the work, and each takes its counters with it. */
static struct sign one_runs_others(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign = (struct sign){.runs = true, .processes = (uint64_t)s / 3, .where = 5};
    return sign;
}

/* A step of 38 s without a stack in time at any look. */
static struct sign tool_is_late(int rank, int s)
{
    struct sign sign = waits(rank, s);

    if (rank == 2)
        sign = (struct sign){.runs = true,
                             .main_ran_ms = 500 * (uint64_t)s,
                             .stack = PROGRESS_STACK_LATE,
                             .written = (uint64_t)s / 38};
    return sign;
}

static struct sign tool_never_ends(int rank, int s)
{
    struct sign sign = tool_is_late(rank, s);

    sign.written = 0;
    return sign;
}

static struct sign tool_never_ends_and_faults(int rank, int s)
{
    struct sign sign = tool_never_ends(rank, s);

    sign.faults = (uint64_t)s;
    return sign;
}

static struct sign tool_is_late_at_one_look(int rank, int s)
{
    struct sign sign = one_loops(rank, s);

    if (rank == 2 && s >= 13 && s < 16) {
        sign.stack = PROGRESS_STACK_LATE;
        sign.where = 0;
    }
    return sign;
}

/* Seconds of verdicts; -1: none. */
struct outcome {
    int hang_s, resume_s, n_hangs;
};

static struct outcome run_job(sign_of *job, uint64_t timeout_s)
{
    struct outcome o = {.hang_s = -1, .resume_s = -1};
    struct progress p;

    assert_int_equal(progress_init(&p, timeout_s * 1000000000u, RANKS), 0);
    progress_begin(&p, 1);
    for (uint64_t ns = 1; ns < (uint64_t)RUN_S * 1000000000u; ns += progress_interval_ns(&p)) {
        struct progress_sample samples[RANKS];
        bool places = progress_wants_places(&p, ns);
        int s = (int)(ns / 1000000000u);

        for (int i = 0; i < RANKS; i++) {
            struct sign sign = job(i, s);
            samples[i] = (struct progress_sample){.is_alive = !sign.has_ended,
                                                  .n_bytes = sign.read + PROGRESS_WRITTEN * sign.written,
                                                  .head = sign.head,
                                                  .has_place = places,
                                                  .place = {.where = sign.where,
                                                            .switches = sign.switches,
                                                            .faults = sign.faults,
                                                            .runs = sign.runs,
                                                            .stack = sign.stack,
                                                            .processes = sign.processes,
                                                            .main_ran_ns = sign.main_ran_ms * 1000000u,
                                                            .main_waited_ns = sign.main_waited_ms * 1000000u,
                                                            .others_ran_ns = sign.others_ran_ms * 1000000u}};
        }
        enum progress_verdict verdict = progress_step(&p, ns, samples, 0);
        if (verdict == PROGRESS_HANGS) {
            o.hang_s = s;
            o.n_hangs++;
        }
        if (verdict == PROGRESS_RESUMES)
            o.resume_s = s;
    }
    progress_finish(&p);
    return o;
}

static void a_table_of_jobs(void **state)
{
    static const struct {
        sign_of *job;
        int from_s, to_s; /* when the hang is reported; -1: never */
    } rows[] = {
        {all_wait, 20, 25},
        {one_writes_a_checkpoint, -1, -1},
        {one_reads_blocks, -1, -1},
        {one_reads_slowly, -1, -1},
        {all_try_to_connect, 20, 25},
        {all_try_where_many_hosts_are_known, 20, 25},
        {a_process_ends_every_15_s, -1, -1},
        {one_beats, -1, -1},
        {one_compiles, -1, -1},
        {one_loops, 20, 25},
        {one_computes_unseen, -1, -1},
        {one_spins_unseen, 20, 25},
        {one_polls, 20, 25},
        {threads_compute, -1, -1},
        {one_has_ended, 20, 25},
        {one_computes_in_long_functions, -1, -1},
        {one_stops_late, 23, 27},
        {hangs_after_50, 70, 75},
        {others_spin_while_blocked, 20, 25},
        {others_wake, 20, 25},
        {one_runs_by_chance, 20, 25},
        {one_goes_on_at_times, -1, -1},
        {one_computes_with_little_time, -1, -1},
        {one_runs_others, -1, -1},
        {tool_is_late, -1, -1},
        {tool_never_ends, 40, 55},
        {tool_never_ends_and_faults, -1, -1},
        {tool_is_late_at_one_look, 20, 27},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct outcome o = run_job(rows[i].job, TIMEOUT_S);
        if (o.hang_s < rows[i].from_s || o.hang_s > rows[i].to_s || o.n_hangs != (rows[i].from_s >= 0))
            fail_msg("row %zu: reported %d times, after %d s", i, o.n_hangs, o.hang_s);
        assert_int_equal(run_job(rows[i].job, 0).n_hangs, 0);
    }
}

/* The time between two looks follows the time-out, 0.5 s to 2 s; the rate at which reads count does not. */
static void small_reads_are_no_progress_for_any_timeout(void **state)
{
    static const int timeouts_s[] = {6, 15, 60};

    (void)state;
    for (size_t i = 0; i < sizeof(timeouts_s) / sizeof(timeouts_s[0]); i++) {
        struct outcome o = run_job(all_try_to_connect, (uint64_t)timeouts_s[i]);
        assert_in_range(o.hang_s, timeouts_s[i], timeouts_s[i] + 2);
        assert_int_equal(o.n_hangs, 1);
        assert_int_equal(o.resume_s, -1);
        assert_int_equal(run_job(one_reads_slowly, (uint64_t)timeouts_s[i]).n_hangs, 0);
    }
}

static struct sign waits_60_then_moves(int rank, int s)
{
    struct sign sign = waits(rank, s);

    sign.written += (uint64_t)(s > 60 ? s : 0);
    return sign;
}

static void progress_after_a_report_is_reported_once(void **state)
{
    struct outcome o = run_job(waits_60_then_moves, TIMEOUT_S);

    (void)state;
    assert_int_equal(o.n_hangs, 1);
    assert_in_range(o.resume_s, 61, 64);
}

static void places_are_looked_at_four_times(void **state)
{
    static const uint64_t twelfths[] = {6, 8, 10, 12};
    struct progress_sample sample = {.is_alive = true};
    struct progress p;
    size_t n = 0;

    (void)state;
    assert_int_equal(progress_init(&p, 12000, 1), 0);
    progress_begin(&p, 0);
    assert_int_equal(progress_step(&p, 0, &sample, 0), PROGRESS_MOVES);
    for (uint64_t i = 1; i <= 12; i++) {
        sample.has_place = progress_wants_places(&p, i * progress_interval_ns(&p));
        if (sample.has_place)
            assert_int_equal(i, twelfths[n++]);
        assert_int_equal(progress_step(&p, i * progress_interval_ns(&p), &sample, 0),
                         i < 12 ? PROGRESS_MOVES : PROGRESS_HANGS);
    }
    assert_int_equal(n, 4);
    progress_finish(&p);
}

static void changes_of_the_store_are_progress(void **state)
{
    struct progress_sample sample = {.is_alive = true, .has_place = true};
    struct progress p;

    (void)state;
    assert_int_equal(progress_init(&p, 10, 1), 0);
    progress_begin(&p, 0);
    for (uint64_t ns = 0; ns < 100; ns++)
        assert_int_equal(progress_step(&p, ns, &sample, ns / 9), PROGRESS_MOVES);
    for (uint64_t ns = 100; ns < 108; ns++)
        assert_int_equal(progress_step(&p, ns, &sample, 99 / 9), PROGRESS_MOVES);
    assert_int_equal(progress_step(&p, 109, &sample, 99 / 9), PROGRESS_HANGS);
    assert_true(progress_is_quiet(&p, 109));
    progress_begin(&p, 110);
    assert_false(progress_is_quiet(&p, 1000));
    progress_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_of_jobs),
        cmocka_unit_test(small_reads_are_no_progress_for_any_timeout),
        cmocka_unit_test(progress_after_a_report_is_reported_once),
        cmocka_unit_test(places_are_looked_at_four_times),
        cmocka_unit_test(changes_of_the_store_are_progress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
