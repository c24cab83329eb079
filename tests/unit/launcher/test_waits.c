/* The limit of a wait follows the rank's own rhythm, and a partial stall is reported once, again after twice the pause, and as over. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/report/events.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/stall.h"
#include "launcher/watch/waits.h"

#include "tests/support/c/cmocka_fixed.h"

#define SECOND UINT64_C(1000000000)

/* One rank that waits for the first wait_s seconds of each period and moves at its end. Looks of one second. */
static void play(struct waits *w, uint64_t *now_ns, int periods, int wait_s, int work_s, bool counts)
{
    uint64_t step = w->ranks[0].step;

    for (int p = 0; p < periods; p++) {
        step++;
        for (int s = 0; s < wait_s + work_s; s++) {
            const struct wait_sample sample = {
                .is_alive = true, .waits = s < wait_s, .moved = s == 0, .step = counts ? step : 0};

            *now_ns += SECOND;
            waits_step(w, *now_ns, &sample);
        }
    }
}

static const struct {
    int periods, wait_s, work_s;
    bool counts;
    uint64_t limit_s;
} rhythms[] = {
    {0, 0, 1, true, 27},                         /* before the second step */
    {1, 1, 1, true, 27},   {60, 0, 1, true, 7},  /* no wait is seen */
    {60, 2, 1, true, 7},   {4, 0, 1, false, 27}, /* imports */
    {20, 0, 1, false, 7},  /* neither a count nor a wait is seen: short waits, or waits that poll */
    {60, 8, 4, true, 24},  /* a pipeline: the wait is the rank's rhythm (8 s less the look that moved) */
    {60, 8, 4, false, 24}, /* the same without a count */
    {60, 20, 0, true, 60},
};

static void limit_is_three_times_the_usual_wait(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rhythms) / sizeof(rhythms[0]); i++) {
        struct waits w;
        uint64_t now_ns = SECOND;

        assert_int_equal(waits_init(&w, 1), 0);
        play(&w, &now_ns, rhythms[i].periods, rhythms[i].wait_s, rhythms[i].work_s, rhythms[i].counts);
        int64_t off = (int64_t)(waits_limit_ns(&w, 0) / SECOND) - (int64_t)rhythms[i].limit_s;
        if (off < -3 || off > 3)
            fail_msg("row %zu: %llu s", i, (unsigned long long)(waits_limit_ns(&w, 0) / SECOND));
        waits_finish(&w);
    }
}

static void a_wait_counts_from_its_first_look_and_ends_with_a_move(void **state)
{
    struct wait_sample s = {.is_alive = true, .waits = true, .step = 1};
    struct waits w;

    (void)state;
    assert_int_equal(waits_init(&w, 1), 0);
    for (uint64_t t = 1; t <= 12; t++)
        waits_step(&w, t * SECOND, &s);
    assert_int_equal(waits_length_ns(&w, 0, 12 * SECOND), 11 * SECOND);
    assert_int_equal(waits_count_unusual(&w, 12 * SECOND), 0); /* WAITS_FIRST_NS before the second step */
    for (uint64_t t = 13; t <= 30; t++)
        waits_step(&w, t * SECOND, &s);
    assert_int_equal(waits_count_unusual(&w, 31 * SECOND), 1);
    s.moved = true; /* and waits again, at another place */
    waits_step(&w, 32 * SECOND, &s);
    assert_int_equal(waits_length_ns(&w, 0, 33 * SECOND), SECOND);
    s = (struct wait_sample){.is_alive = false, .waits = true};
    waits_step(&w, 34 * SECOND, &s);
    assert_int_equal(waits_length_ns(&w, 0, 40 * SECOND), 0);
    waits_begin(&w);
    assert_int_equal(waits_limit_ns(&w, 0), WAITS_FIRST_NS);
    waits_finish(&w);
}

/* Ranks and crun were stopped for an hour in the middle of a wait of 3 s. */
static void an_hour_without_looks_is_no_wait(void **state)
{
    uint64_t now_ns = SECOND;
    struct waits w;

    (void)state;
    assert_int_equal(waits_init(&w, 1), 0);
    play(&w, &now_ns, 60, 3, 1, true);
    const struct wait_sample s = {.is_alive = true, .waits = true, .step = w.ranks[0].step};
    waits_step(&w, now_ns += SECOND, &s);
    uint64_t limit_ns = waits_limit_ns(&w, 0);
    now_ns += 3600 * SECOND;
    assert_in_range(waits_length_ns(&w, 0, now_ns), 1, WAITS_GAP_NS + SECOND);
    waits_step(&w, now_ns, &s);
    assert_in_range(waits_length_ns(&w, 0, now_ns), 1, WAITS_GAP_NS + SECOND);
    play(&w, &now_ns, 1, 3, 1, true);
    assert_int_equal(waits_limit_ns(&w, 0), limit_ns);
    waits_finish(&w);
}

/* A look that takes 5 s for stacks is part of the wait; of an hour in a look 20 s and the gap count. */
static void a_slow_look_is_no_gap(void **state)
{
    static const struct wait_sample s = {.is_alive = true, .waits = true};
    struct waits w;

    (void)state;
    assert_int_equal(waits_init(&w, 1), 0);
    for (uint64_t t = 1; t <= 8; t++) {
        waits_step(&w, t * SECOND, &s);
        waits_end_look(&w, t * SECOND);
    }
    waits_end_look(&w, 13 * SECOND);
    assert_int_equal(waits_length_ns(&w, 0, 14 * SECOND), 13 * SECOND);
    assert_true(waits_any_longer(&w, 13 * SECOND, 14 * SECOND));
    assert_false(waits_any_longer(&w, 13 * SECOND + 1, 14 * SECOND));
    waits_step(&w, 14 * SECOND, &s);
    waits_end_look(&w, 14 * SECOND);
    assert_int_equal(waits_length_ns(&w, 0, 15 * SECOND), 14 * SECOND);
    waits_end_look(&w, 3614 * SECOND);
    assert_int_equal(waits_length_ns(&w, 0, 3615 * SECOND), 13 * SECOND + WAITS_LOOK_MAX_NS + WAITS_GAP_NS);
    waits_finish(&w);
}

/* Steps of 1 to 20 times their usual length, in any order: the wait of the others is the difference. */
static void uneven_steps_are_usual(void **state)
{
    uint64_t now_ns = SECOND, seed = 12345;
    struct waits w;
    int unusual = 0;

    (void)state;
    assert_int_equal(waits_init(&w, 1), 0);
    for (int i = 0; i < 2000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        play(&w, &now_ns, 1, (int)(seed >> 33) % 8, 1, true);
        unusual += waits_count_unusual(&w, now_ns) > 0;
    }
    assert_int_equal(unusual, 0);
    waits_finish(&w);
}

/* ---- the share ---- */

/* Looks at two ranks of which rank 0 is tested: so many of each period find it in a wait that moves on if so. */
static int share_of(int looks, int period, int waiting, bool moves, int *ret_begun)
{
    struct waits w;

    assert_int_equal(waits_init(&w, 2), 0);
    for (int t = 0; t < looks; t++) {
        const struct wait_sample s[2] = {
            {.is_alive = true, .waits_now = t % period < waiting, .moved = moves || t % period == 0},
            {.is_alive = true}};

        waits_step(&w, (uint64_t)(t + 1) * SECOND, s);
        assert_true(waits_percent(&w, 1) <= 0);
    }
    int percent = waits_percent(&w, 0);
    *ret_begun = waits_count_begun(&w, 0);
    waits_finish(&w);
    return percent;
}

static void the_share_is_that_of_the_last_minute(void **state)
{
    static const struct {
        int looks, period, waiting;
        bool moves;
        int percent, begun;
    } rows[] = {
        {WAITS_LOOKS_LEAST - 1, 1, 1, true, -1, WAITS_LOOKS_LEAST - 1},
        {WAITS_LOOKS_LEAST, 1, 1, true, 100, WAITS_LOOKS_LEAST},
        {60, 1, 0, true, 0, 0},
        {60, 4, 1, true, 25, 15},
        {600, 4, 3, true, 75, 45},
        {600, 4, 3, false, 75, 15}, /* waits of three looks each */
        {120, 120, 60, true, 0, 0}, /* more than a minute ago */
        {90, 120, 60, true, 50, 30},
    };
    int begun;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int percent = share_of(rows[i].looks, rows[i].period, rows[i].waiting, rows[i].moves, &begun);

        if (percent != rows[i].percent || begun != rows[i].begun)
            fail_msg("row %zu: %d %%, %d waits", i, percent, begun);
    }
}

/* A save of five minutes on another rank, in a job that waits a quarter of the time: no more than the usual length counts. */
static void an_unusually_long_wait_is_left_out(void **state)
{
    struct waits w;

    (void)state;
    assert_int_equal(waits_init(&w, 1), 0);
    for (uint64_t t = 1; t <= 400; t++) {
        const struct wait_sample s = {.is_alive = true,
                                      .waits_now = t > 100 || t % 4 == 0,
                                      .moved = t <= 101,
                                      .step = t < 100 ? t : 100};

        waits_step(&w, t * SECOND, &s);
    }
    assert_in_range(waits_percent(&w, 0), 25, 25 + 100 * 8 / WAITS_LOOKS);
    waits_finish(&w);
}

/* Three ranks with steps of 3 s, by their beats alone; the last one reports each step late_s later. */
static void by_beats(int late_s, int drift, bool rests, int ret_percent[3])
{
    struct waits w;

    assert_int_equal(waits_init(&w, 3), 0);
    for (int t = 0; t < 90; t++) {
        struct wait_sample s[3] = {{.is_alive = true, .rests = rests},
                                   {.is_alive = true, .rests = rests},
                                   {.is_alive = true, .rests = rests}};

        for (int i = 0; i < 3; i++)
            s[i].beat_end = (uint64_t)(t + 30 - (i == 2 ? late_s : 0)) / 3 + 10;
        s[2].beat_end -= (uint64_t)(drift * t / 10);
        waits_step(&w, (uint64_t)(t + 1) * SECOND, s);
    }
    for (int i = 0; i < 3; i++)
        ret_percent[i] = waits_percent(&w, i);
    waits_finish(&w);
}

static void ranks_with_beats_wait_while_they_are_ahead(void **state)
{
    int percent[3];

    (void)state;
    by_beats(2, 0, true, percent);
    assert_true(percent[0] == 66 && percent[1] == 66 && percent[2] == 0);
    by_beats(0, 0, true, percent);
    assert_true(percent[0] == 0 && percent[1] == 0 && percent[2] == 0);
    by_beats(2, 0, false, percent); /* a beat between the looks at two ranks */
    assert_true(percent[0] == 0 && percent[1] == 0 && percent[2] == 0);
    by_beats(0, 1, true, percent); /* the others go on: they do not wait */
    assert_true(percent[0] == 0 && percent[1] == 0 && percent[2] == 0);
}

/* ---- stalls ---- */

static struct hang_rank waiter(int rank, uint32_t waits_s)
{
    struct hang_rank r = {.rank = rank,
                          .pid = 100 + rank,
                          .host = "a",
                          .state = 'S',
                          .kind = STACK_COLLECTIVE,
                          .activity = ACTIVITY_WAITS,
                          .is_wait_known = true,
                          .waits_ms = 1000 * waits_s,
                          .limit_ms = 8000};

    (void)snprintf(r.text, sizeof(r.text), "in all-reduce, collective 57 of all ranks");
    return r;
}

static struct hang_rank worker(int rank, enum activity activity, uint64_t bytes_per_s)
{
    struct hang_rank r = {.rank = rank,
                          .pid = 100 + rank,
                          .host = "b",
                          .state = 'S',
                          .kind = STACK_OTHER,
                          .activity = activity,
                          .limit_ms = 8000,
                          .bytes_per_s = bytes_per_s};
    const struct activity_words words = {.activity = activity, .path = "/data/x", .bytes_per_s = bytes_per_s};

    activity_text(&words, r.text, sizeof(r.text));
    return r;
}

static int n_asked; /* for stacks */

/* Ranks 0 and 1 wait for rank 2 for the given time. */
static enum stall_verdict look(struct stall *s, uint64_t now_s, uint32_t waits_s, enum activity activity,
                               uint64_t bytes_per_s)
{
    struct hang_rank ranks[] = {worker(2, activity, bytes_per_s), waiter(0, waits_s), waiter(1, waits_s)};

    bool stands_out = hang_sort(ranks, 3);
    assert_true(!stands_out || ranks[0].rank == 2);
    enum stall_verdict verdict = stall_step(s, now_s * SECOND, ranks, 3, stands_out);
    if (verdict != STALL_ASK)
        return verdict;
    n_asked++;
    return stall_step(s, now_s * SECOND, ranks, 3, stands_out);
}

static void a_stall_is_reported_again_after_twice_the_pause_and_when_it_ends(void **state)
{
    struct stall s;

    (void)state;
    s = (struct stall){.longest_ns = 0};
    assert_int_equal(look(&s, 7, 7, ACTIVITY_READS, 1000000), STALL_NOTHING);
    assert_int_equal(look(&s, 8, 8, ACTIVITY_READS, 1000000), STALL_REPORT);
    for (uint64_t t = 9; t < 68; t++)
        assert_int_equal(look(&s, t, (uint32_t)t, ACTIVITY_READS, 1000000), STALL_NOTHING);
    assert_int_equal(look(&s, 68, 68, ACTIVITY_READS, 1000000), STALL_REPORT);
    assert_int_equal(look(&s, 187, 187, ACTIVITY_READS, 1000000), STALL_NOTHING);
    assert_int_equal(look(&s, 188, 188, ACTIVITY_READS, 1000000), STALL_REPORT);
    assert_int_equal(stall_step(&s, 188 * SECOND, NULL, 0, false), STALL_GOES_ON);
    assert_int_equal(stall_step(&s, 201 * SECOND, NULL, 0, false), STALL_NOTHING);
    /* 188 s of reading were no fault: 282 s are. Another activity has taught nothing. */
    assert_int_equal(look(&s, 500, 281, ACTIVITY_READS, 1000000), STALL_NOTHING);
    assert_int_equal(look(&s, 501, 282, ACTIVITY_READS, 1000000), STALL_REPORT);
    assert_int_equal(stall_step(&s, 600 * SECOND, NULL, 0, false), STALL_GOES_ON);
    n_asked = 0;
    assert_int_equal(look(&s, 700, 8, ACTIVITY_STOPPED, 0), STALL_REPORT);
    assert_int_equal(n_asked, 0); /* the first ranks have stacks */
    assert_int_equal(look(&s, 760, 68, ACTIVITY_STOPPED, 0), STALL_REPORT);
    assert_int_equal(n_asked, 1);
}

static void many_ranks_are_looked_at_less_often(void **state)
{
    struct stall s;

    (void)state;
    s = (struct stall){.longest_ns = 0};
    assert_true(stall_may_look(&s, 100 * SECOND, 704) && stall_may_look(&s, 101 * SECOND, 704));
    assert_false(stall_may_look(&s, 111 * SECOND, 131072));
    assert_true(stall_may_look(&s, 140 * SECOND, 131072));
    s.has_asked = true; /* for stacks */
    assert_true(stall_may_look(&s, 141 * SECOND, 131072));
    s = (struct stall){.longest_ns = 0};
    assert_true(stall_may_look(&s, 108 * SECOND, 3));
    assert_int_equal(look(&s, 108, 8, ACTIVITY_COMPUTES, 0), STALL_REPORT);
    assert_false(stall_may_look(&s, 117 * SECOND, 3));
    assert_true(stall_may_look(&s, 118 * SECOND, 3)); /* for another awaited rank */
    assert_true(stall_may_look(&s, 166 * SECOND, 3));
    assert_true(stall_may_look(&s, 168 * SECOND, 3));
}

static const struct {
    uint64_t now_s;
    int awaited;
    uint32_t waits_s; /* of the waiting ranks */
    enum stall_verdict verdict;
} second_stalls[] = {
    {108, 2, 8, STALL_REPORT},
    /* Rank 2 goes on, and the same ranks wait for rank 3 from then on. */
    {120, 3, 20, STALL_NOTHING},
    {126, 3, 26, STALL_NOTHING},
    {127, 3, 27, STALL_REPORT},
    {130, 2, 30, STALL_NOTHING}, /* has a line */
    {150, 3, 50, STALL_NOTHING},
    {168, 2, 68, STALL_REPORT},
    {186, 3, 86, STALL_NOTHING},
    {187, 3, 87, STALL_REPORT},
    {200, -1, 100, STALL_NOTHING}, /* none stands out: as before */
    /* The message about the end was lost, and a rank with another activity is awaited now. */
    {260, 4, 8, STALL_REPORT},
};

static void each_awaited_rank_and_each_stall_has_its_own_pause(void **state)
{
    struct stall s;

    (void)state;
    s = (struct stall){.longest_ns = 0};
    for (size_t i = 0; i < sizeof(second_stalls) / sizeof(second_stalls[0]); i++) {
        uint64_t at_ns = second_stalls[i].now_s * SECOND;
        enum activity activity = second_stalls[i].awaited == 4 ? ACTIVITY_STOPPED : ACTIVITY_SLEEPS;
        struct hang_rank ranks[] = {worker(second_stalls[i].awaited, activity, 0),
                                    waiter(0, second_stalls[i].waits_s), waiter(1, second_stalls[i].waits_s)};

        enum stall_verdict verdict = stall_step(&s, at_ns, ranks, 3, second_stalls[i].awaited >= 0);
        if (verdict == STALL_ASK)
            verdict = stall_step(&s, at_ns, ranks, 3, second_stalls[i].awaited >= 0);
        if (verdict != second_stalls[i].verdict)
            fail_msg("row %zu: %d", i, (int)verdict);
    }
}

static void stacks_are_taken_once_in_a_pause(void **state)
{
    uint64_t stacks_ns = 0;

    (void)state;
    assert_true(stall_may_take_stacks(&stacks_ns, 100 * SECOND));
    assert_false(stall_may_take_stacks(&stacks_ns, 105 * SECOND));
    assert_true(stall_may_take_stacks(&stacks_ns, 106 * SECOND));
    assert_false(stall_may_take_stacks(&stacks_ns, 107 * SECOND));
}

/* A wait that the system call alone suggests: its line is due after 27 s, and new stacks are asked for once, early enough. */
static void stacks_are_asked_for_before_the_line(void **state)
{
    struct stall s = {.longest_ns = 0};

    (void)state;
    for (uint32_t t = 8; t <= 27; t++) {
        struct hang_rank ranks[] = {worker(2, ACTIVITY_SLEEPS, 0), waiter(0, t), waiter(1, t)};
        ranks[1].is_wait_known = ranks[2].is_wait_known = false;
        enum stall_verdict expected = t == 22 ? STALL_ASK : t == 27 ? STALL_REPORT : STALL_NOTHING;
        if (stall_step(&s, t * SECOND, ranks, 3, true) != expected)
            fail_msg("after %u s", t);
    }
}

/* Node 0 asks no node between two lines. A wait of 55 s that had its line at 8 s is tolerated the next time. */
static void the_whole_wait_is_learnt(void **state)
{
    struct stall s;

    (void)state;
    s = (struct stall){.longest_ns = 0};
    assert_int_equal(look(&s, 108, 8, ACTIVITY_COMPUTES, 0), STALL_REPORT);
    assert_int_equal(stall_step(&s, 155 * SECOND, NULL, 0, false), STALL_GOES_ON);
    assert_int_equal(look(&s, 300, 56, ACTIVITY_COMPUTES, 0), STALL_NOTHING);
    assert_int_equal(look(&s, 328, 84, ACTIVITY_COMPUTES, 0), STALL_REPORT);
    /* An hour teaches ten minutes. */
    assert_int_equal(stall_step(&s, 4000 * SECOND, NULL, 0, false), STALL_GOES_ON);
    assert_int_equal(look(&s, 5000, 599, ACTIVITY_COMPUTES, 0), STALL_NOTHING);
    assert_int_equal(look(&s, 5001, 600, ACTIVITY_COMPUTES, 0), STALL_REPORT);
}

static const struct {
    bool is_known;
    enum activity activity; /* of rank 1 */
    uint32_t reported_s;    /* 0: never */
} evidence[] = {
    {true, ACTIVITY_SLEEPS, 8},   {true, ACTIVITY_WAITS, 8},     {true, ACTIVITY_UNKNOWN, 8},
    {false, ACTIVITY_SLEEPS, 27}, {false, ACTIVITY_STOPPED, 27}, {false, ACTIVITY_COMPILES, 120},
    {false, ACTIVITY_WAITS, 0},   {false, ACTIVITY_UNKNOWN, 0},
};

/* Two ranks seem to wait for a third: servers without requests do, too. */
static void a_guessed_wait_needs_more_time_and_a_rank_without_a_wait(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(evidence) / sizeof(evidence[0]); i++) {
        enum stall_verdict verdict = STALL_NOTHING;
        struct stall s;
        uint32_t t = 0;

        s = (struct stall){.longest_ns = 0};
        while (++t < 300 && verdict != STALL_REPORT) {
            struct hang_rank ranks[] = {worker(2, evidence[i].activity, 0), waiter(0, t), waiter(1, t)};

            ranks[1].is_wait_known = ranks[2].is_wait_known = evidence[i].is_known;
            verdict = stall_step(&s, t * SECOND, ranks, 3, true);
        }
        if ((verdict == STALL_REPORT ? t - 1 : 0) != evidence[i].reported_s)
            fail_msg("row %zu: %u s", i, t - 1);
    }
}

static const struct {
    enum activity activity;
    uint64_t bytes_per_s;
    uint32_t tolerated_s;
} tolerances[] = {
    {ACTIVITY_COMPUTES, 0, 8},    {ACTIVITY_SLEEPS, 0, 8},          {ACTIVITY_STOPPED, 0, 8},
    {ACTIVITY_BLOCKED, 0, 8},     {ACTIVITY_READS, 1000000, 8},     {ACTIVITY_READS, 500000000, 60},
    {ACTIVITY_WRITES, 300000, 8}, {ACTIVITY_WRITES, 200000000, 60}, {ACTIVITY_COMPILES, 0, 120},
    {ACTIVITY_NO_INPUT, 0, 8},    {ACTIVITY_FULL_PIPE, 0, 8},       {ACTIVITY_CHILD, 0, 8},
};

static void what_the_awaited_rank_does_decides_how_long_it_is_tolerated(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(tolerances) / sizeof(tolerances[0]); i++) {
        struct stall s;
        uint32_t t = 1;

        s = (struct stall){.longest_ns = 0};
        while (t < 300 && look(&s, t, t, tolerances[i].activity, tolerances[i].bytes_per_s) == STALL_NOTHING)
            t++;
        if (t != tolerances[i].tolerated_s)
            fail_msg("row %zu: reported after %u s", i, t);
    }
}

static void the_line_names_the_waiters_and_the_awaited_rank(void **state)
{
    struct event_stall facts;
    struct hang_rank ranks[] = {worker(2, ACTIVITY_READS, 1000000), waiter(0, 12), waiter(1, 11),
                                waiter(3, 2)};
    ranks[1].limit_ms = ranks[2].limit_ms = WAITS_LEAST_NS / 1000000;
    char *text = stall_text(ranks, 4, true, &facts);

    (void)state;
    assert_string_equal(
        text,
        "2 of 4 ranks have waited 12 s in all-reduce, collective 57 of all ranks for rank 2 on b (pid 102): "
        "reads /data/x at 1.0 MB/s");
    free(text);
    ranks[1].limit_ms = 12000;
    text = stall_text(ranks + 1, 1, false, &facts);
    assert_string_equal(
        text,
        "1 of 1 ranks has waited 12 s (usual: up to 4 s) in all-reduce, collective 57 of all ranks; "
        "no rank stands out");
    free(text);
    struct hang_rank end[] = {worker(2, ACTIVITY_SLEEPS, 0), waiter(0, 30), waiter(1, 29)};
    for (int i = 1; i < 3; i++) {
        end[i].has_ended = true;
        end[i].kind = STACK_UNKNOWN;
        end[i].limit_ms = 7000;
        end[i].text[0] = '\0';
    }
    text = stall_text(end, 3, true, &facts);
    assert_string_equal(text, "2 of 3 ranks have ended and waited 30 s for rank 2 on b (pid 102): sleeps");
    free(text);
}

/* ---- activity ---- */

static const struct {
    struct activity_facts facts;
    enum activity activity;
} facts[] = {
    {{.has_ended = true, .state = 'S'}, ACTIVITY_ENDED},
    {{.state = 'T', .call = ACTIVITY_CALL_OTHER}, ACTIVITY_STOPPED},
    {{.state = 't', .call = ACTIVITY_CALL_OTHER}, ACTIVITY_STOPPED},
    {{.state = 'D', .call = ACTIVITY_CALL_OTHER}, ACTIVITY_BLOCKED},
    {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .elapsed_ns = SECOND}, ACTIVITY_WAITS},
    {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .elapsed_ns = SECOND, .read = 49},
     ACTIVITY_WAITS}, /* /etc/hosts */
    {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .elapsed_ns = SECOND, .ran_ns = SECOND / 2},
     ACTIVITY_COMPUTES}, /* in another thread */
    {{.state = 'R', .call = ACTIVITY_CALL_RUNS, .elapsed_ns = SECOND, .ran_ns = SECOND / 2},
     ACTIVITY_COMPUTES},
    {{.state = 'R', .call = ACTIVITY_CALL_RUNS, .elapsed_ns = SECOND}, ACTIVITY_COMPUTES},
    {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .elapsed_ns = SECOND, .child_ran_ns = SECOND / 3},
     ACTIVITY_CHILD},
    {{.state = 'S', .call = ACTIVITY_CALL_REAPS, .elapsed_ns = SECOND}, ACTIVITY_CHILD},
    {{.state = 'S',
      .call = ACTIVITY_CALL_REAPS,
      .elapsed_ns = SECOND,
      .child_ran_ns = SECOND,
      .child_compiles = true},
     ACTIVITY_COMPILES},
    {{.state = 'S',
      .call = ACTIVITY_CALL_REAPS,
      .elapsed_ns = SECOND,
      .child_compiles = true,
      .read = 1 << 20},
     ACTIVITY_COMPILES}, /* reads headers */
    {{.state = 'S', .call = ACTIVITY_CALL_SLEEPS, .elapsed_ns = SECOND}, ACTIVITY_SLEEPS},
    {{.state = 'S', .call = ACTIVITY_CALL_READS, .target = ACTIVITY_TARGET_PIPE, .elapsed_ns = SECOND},
     ACTIVITY_NO_INPUT},
    {{.state = 'S',
      .call = ACTIVITY_CALL_READS,
      .target = ACTIVITY_TARGET_PIPE,
      .elapsed_ns = SECOND,
      .child_ran_ns = SECOND},
     ACTIVITY_CHILD},
    {{.state = 'S', .call = ACTIVITY_CALL_READS, .target = ACTIVITY_TARGET_SOCKET, .elapsed_ns = SECOND},
     ACTIVITY_WAITS},
    {{.state = 'S', .call = ACTIVITY_CALL_READS, .target = ACTIVITY_TARGET_FILE, .elapsed_ns = SECOND},
     ACTIVITY_READS},
    {{.state = 'S', .call = ACTIVITY_CALL_WRITES, .target = ACTIVITY_TARGET_PIPE, .elapsed_ns = SECOND},
     ACTIVITY_FULL_PIPE},
    {{.state = 'S', .call = ACTIVITY_CALL_SLEEPS, .elapsed_ns = SECOND, .read = 1000000},
     ACTIVITY_READS}, /* between two reads */
    {{.state = 'S', .call = ACTIVITY_CALL_SLEEPS, .elapsed_ns = 4 * SECOND, .read = 200000}, ACTIVITY_SLEEPS},
    {{.state = 'R', .call = ACTIVITY_CALL_RUNS, .elapsed_ns = SECOND, .ran_ns = SECOND, .written = 1 << 20},
     ACTIVITY_WRITES},
    {{.state = 'S', .call = ACTIVITY_CALL_OTHER, .elapsed_ns = SECOND}, ACTIVITY_UNKNOWN},
};

static void numbers_of_proc_are_an_activity(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
        if (activity_judge(&facts[i].facts) != facts[i].activity)
            fail_msg("row %zu: %d", i, (int)activity_judge(&facts[i].facts));
}

/* Half a second of work between two waits is no reason against a wait at the moment; work of other threads or processes is. */
static void a_wait_at_the_moment(void **state)
{
    static const struct {
        struct activity_facts facts;
        bool waits;
    } rows[] = {
        {{.state = 'S', .call = ACTIVITY_CALL_WAITS}, true},
        {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .ran_ns = SECOND / 2, .main_ran_ns = SECOND / 2}, true},
        {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .ran_ns = SECOND / 2}, false},
        {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .ran_ns = SECOND / 5}, true}, /* gloo's own threads */
        {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .child_runs = true}, false},
        {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .child_ran_ns = SECOND},
         true}, /* a loader that is ahead */
        {{.state = 'S', .call = ACTIVITY_CALL_READS, .target = ACTIVITY_TARGET_SOCKET}, true},
        {{.state = 'S', .call = ACTIVITY_CALL_WRITES, .target = ACTIVITY_TARGET_SOCKET}, true},
        {{.state = 'S', .call = ACTIVITY_CALL_READS, .target = ACTIVITY_TARGET_PIPE}, false},
        {{.state = 'S', .call = ACTIVITY_CALL_SLEEPS}, false},
        {{.state = 'R', .call = ACTIVITY_CALL_WAITS}, false},
        {{.state = 'D', .call = ACTIVITY_CALL_WAITS}, false},
        {{.state = 'S', .call = ACTIVITY_CALL_WAITS, .has_ended = true}, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct activity_facts f = rows[i].facts;

        f.elapsed_ns = SECOND;
        if (activity_waits_now(&f) != rows[i].waits)
            fail_msg("row %zu", i);
    }
}

static const struct {
    struct activity_words words;
    const char *text;
} words[] = {
    {{.activity = ACTIVITY_COMPUTES}, "computes (no tool for its stack)"},
    {{.activity = ACTIVITY_READS, .path = "/x", .bytes_per_s = 1040000}, "reads /x at 1.0 MB/s"},
    {{.activity = ACTIVITY_WRITES, .bytes_per_s = 250000000}, "writes a file at 250.0 MB/s"},
    {{.activity = ACTIVITY_BLOCKED, .place = "0"}, "is blocked in the kernel (state D)"},
    {{.activity = ACTIVITY_BLOCKED, .place = "nfs_wait"}, "is blocked in the kernel (state D) at nfs_wait"},
    {{.activity = ACTIVITY_CHILD, .child = 77, .name = "python"}, "waits for its process 77 (python)"},
    {{.activity = ACTIVITY_COMPILES}, "compiles in a process of its own"},
    {{.activity = ACTIVITY_NO_INPUT, .path = "/tmp/f"}, "waits for input of /tmp/f"},
    {{.activity = ACTIVITY_FULL_PIPE}, "cannot write to a pipe, which is full"},
    {{.activity = ACTIVITY_UNKNOWN}, "is in a system call"},
    {{.activity = ACTIVITY_NO_INPUT, .path = "/x\ncrun: rank 3 failed\x1b[2J"},
     "waits for input of /x crun: rank 3 failed?[2J"},
    {{.activity = ACTIVITY_CHILD, .child = 77, .name = "a\nb\r"}, "waits for its process 77 (a b )"},
};

static void an_activity_has_words(void **state)
{
    char text[STACK_TEXT_SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        activity_text(&words[i].words, text, sizeof(text));
        assert_string_equal(text, words[i].text);
    }
    assert_true(activity_is_compiler("cc1plus") && activity_is_compiler("ptxas") &&
                !activity_is_compiler("python3"));
}

static void a_text_has_one_place(void **state)
{
    char text[40] = "sleeps";

    (void)state;
    activity_add_place(text, sizeof(text), "f at x.py:9");
    activity_add_place(text, sizeof(text), "f at x.py:9");
    assert_string_equal(text, "sleeps, in f at x.py:9");
    activity_add_place(text, sizeof(text), "a_function_with_a_long_name at x.py:9");
    assert_int_equal(strlen(text), sizeof(text) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limit_is_three_times_the_usual_wait),
        cmocka_unit_test(a_wait_counts_from_its_first_look_and_ends_with_a_move),
        cmocka_unit_test(an_hour_without_looks_is_no_wait),
        cmocka_unit_test(a_slow_look_is_no_gap),
        cmocka_unit_test(uneven_steps_are_usual),
        cmocka_unit_test(the_share_is_that_of_the_last_minute),
        cmocka_unit_test(an_unusually_long_wait_is_left_out),
        cmocka_unit_test(ranks_with_beats_wait_while_they_are_ahead),
        cmocka_unit_test(a_stall_is_reported_again_after_twice_the_pause_and_when_it_ends),
        cmocka_unit_test(each_awaited_rank_and_each_stall_has_its_own_pause),
        cmocka_unit_test(stacks_are_taken_once_in_a_pause),
        cmocka_unit_test(stacks_are_asked_for_before_the_line),
        cmocka_unit_test(many_ranks_are_looked_at_less_often),
        cmocka_unit_test(the_whole_wait_is_learnt),
        cmocka_unit_test(a_guessed_wait_needs_more_time_and_a_rank_without_a_wait),
        cmocka_unit_test(what_the_awaited_rank_does_decides_how_long_it_is_tolerated),
        cmocka_unit_test(the_line_names_the_waiters_and_the_awaited_rank),
        cmocka_unit_test(numbers_of_proc_are_an_activity),
        cmocka_unit_test(a_wait_at_the_moment),
        cmocka_unit_test(an_activity_has_words),
        cmocka_unit_test(a_text_has_one_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
