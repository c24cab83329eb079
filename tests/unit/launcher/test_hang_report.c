/* What tools print is reduced to one line for each rank, and the rank that the others wait for is named first. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/watch/hang_report.h"
#include "launcher/watch/stack_text.h"

#include "tests/support/c/cmocka_fixed.h"

#define TORCH "/venv/lib/python3.11/site-packages/torch/"
#define PY_SPY(frames)                                                                                       \
    "Process 7: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 9 (idle): \"other\"\n    f (/x/other.py:1)\nThread 7 (idle): \"MainThread\"\n" frames

static const struct {
    const char *output;
    enum stack_kind kind;
    const char *text;
} outputs[] = {
    {PY_SPY("    all_reduce (" TORCH "distributed/distributed_c10d.py:3120)\n    wrapper (" TORCH
            "distributed/c10d_logger.py:81)\n    <module> (/job/train.py:88)\n"),
     STACK_COLLECTIVE, "all_reduce at train.py:88"},
    {PY_SPY("    wait (/usr/lib/python3.11/multiprocessing/connection.py:930)\n    _next_data (" TORCH
            "utils/data/dataloader.py:1448)\n    __next__ (" TORCH
            "utils/data/dataloader.py:701)\n    main (/job/data.py:41)\n    <module> (/job/train.py:88)\n"),
     STACK_DATA, "data loader wait at data.py:41"},
    {PY_SPY("    _shutdown (" TORCH "distributed/x.py:3)\n    destroy_process_group (" TORCH
            "distributed/distributed_c10d.py:2100)\n    <module> (/job/train.py:99)\n"),
     STACK_DESTROY, "destroy_process_group at train.py:99"},
    {PY_SPY("    spin (/job/train.py:5)\n    <module> (/job/train.py:88)\n"), STACK_OTHER,
     "spin at train.py:5"},
    {PY_SPY("    backward (" TORCH "autograd/graph.py:5)\n    backward (" TORCH
            "_tensor.py:9)\n    step (/job/train.py:12)\n"),
     STACK_OTHER, "backward at train.py:12"},
    {PY_SPY(
         "    get_data (<frozen importlib._bootstrap_external>:1073)\n    <module> (" TORCH
         "nn/__init__.py:8)\n    exec_module (<frozen importlib._bootstrap_external>:940)\n    <module> (/job/train.py:2)\n"),
     STACK_OTHER, "import at train.py:2"},
    {PY_SPY("    <module> (/job/helper.py:3)\n    exec_module (<frozen importlib._bootstrap_external>:940)\n"
            "    <module> (/job/train.py:2)\n"),
     STACK_OTHER, "<module> at helper.py:3"},
    {"PID 7 - process\nTID 7:\n#0  0x00007f0eb5a epoll_wait\n#1  0x000055 crw_all_reduce\n#2  0x000056 main\nTID 9:\n#0 "
     " 0x01 f\n",
     STACK_COLLECTIVE, "crw_all_reduce"},
    {"Thread 2 (Thread 0x7f (LWP 9) \"x\"):\n#0  f () at f.c:1\n\nThread 1 (Thread 0x7f (LWP 7) \"y\"):\n#0  __poll "
     "(fds=0x1) at ../poll.c:29\n#1  0x0000 in serve (s=0x1 \"at \") at src/serve.c:12\n",
     STACK_OTHER, "serve at serve.c:12"},
    {"Error: Permission Denied: Try running again with elevated permissions\n", STACK_UNKNOWN, ""},
    {"", STACK_UNKNOWN, ""},
    {PY_SPY("    f\x1b[2J (/job/tr\x01"
            "ain.py:x)\n"),
     STACK_OTHER, "f?[2J at tr?ain.py"},
};

static void tool_output_becomes_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        struct stack_summary s;

        bool found = stack_summarize(outputs[i].output, strlen(outputs[i].output), 7, &s);
        if (strcmp(s.text, outputs[i].text) != 0 || s.kind != outputs[i].kind)
            fail_msg("row %zu: kind %d, '%s'", i, (int)s.kind, s.text);
        assert_int_equal(found, s.kind != STACK_UNKNOWN);
    }
}

static uint64_t digest_of_text(const char *text)
{
    struct stack_summary s;

    assert_true(stack_summarize(text, strlen(text), 7, &s));
    return s.digest;
}

static void the_digest_ignores_the_line_of_the_innermost_frame(void **state)
{
    (void)state;
    uint64_t a = digest_of_text(PY_SPY("    spin (/job/train.py:5)\n    <module> (/job/train.py:88)\n"));
    assert_int_equal(a,
                     digest_of_text(PY_SPY("    spin (/job/train.py:6)\n    <module> (/job/train.py:88)\n")));
    assert_int_not_equal(
        a, digest_of_text(PY_SPY("    spin (/job/train.py:5)\n    <module> (/job/train.py:89)\n")));
    assert_int_not_equal(
        a, digest_of_text(PY_SPY("    save (/job/train.py:5)\n    <module> (/job/train.py:88)\n")));
}

static struct hang_rank in_reduce(int rank)
{
    return (struct hang_rank){.rank = rank,
                              .pid = 100 + rank,
                              .host = "n1",
                              .state = 'S',
                              .kind = STACK_COLLECTIVE,
                              .text = "all_reduce at train.py:88"};
}

/* All in all_reduce but rank 2. */
static void expect_culprit(struct hang_rank odd, const char *line)
{
    struct hang_rank ranks[] = {in_reduce(0), in_reduce(1), odd, in_reduce(3)};

    bool stands_out = hang_sort(ranks, 4);
    char *text = hang_text(ranks, 4, stands_out);
    assert_non_null(text);
    assert_true(stands_out);
    assert_int_equal(ranks[0].rank, 2);
    char expected[512];
    (void)snprintf(expected, sizeof(expected),
                   "  rank 2 on n1%s\n  ranks 0-1, 3 on n1: all_reduce at train.py:88\n", line);
    assert_string_equal(text, expected);
    free(text);
}

static void the_rank_that_others_wait_for_comes_first(void **state)
{
    struct hang_rank odd = in_reduce(2);

    (void)state;
    odd.state = 'T';
    expect_culprit(odd, " (pid 102) stands out: stopped by a signal, all_reduce at train.py:88");
    odd.state = 'D';
    expect_culprit(odd, " (pid 102) stands out: blocked in the kernel (state D), all_reduce at train.py:88");
    (void)strcpy(odd.text, "is blocked in the kernel (state D) at kernel_clone");
    odd.kind = STACK_UNKNOWN;
    expect_culprit(odd, " (pid 102) stands out: blocked in the kernel (state D) at kernel_clone");
    odd = in_reduce(2);
    odd.kind = STACK_DATA;
    (void)strcpy(odd.text, "data loader wait at data.py:41");
    expect_culprit(odd, " (pid 102) stands out: data loader wait at data.py:41");
    odd.child_pid = 9;
    odd.child_state = 'D';
    (void)strcpy(odd.child_name, "pt_data_worker");
    expect_culprit(odd,
                   " (pid 102) stands out: data loader wait at data.py:41; its process 9 (pt_data_worker) is "
                   "blocked in the kernel (state D)");
    odd = in_reduce(2);
    (void)strcpy(odd.text, "broadcast at train.py:90");
    expect_culprit(odd, " (pid 102) stands out: broadcast at train.py:90");
    odd.kind = STACK_DESTROY;
    expect_culprit(odd, " (pid 102) stands out: broadcast at train.py:90");
    odd = (struct hang_rank){.rank = 2, .host = "n1", .has_ended = true};
    expect_culprit(odd, " stands out: ended with success");
}

/* In the collective of number `number` of the world; 0: in a call that is not counted, of so many collectives before. */
static struct hang_rank counting(int rank, uint64_t number, const char *text)
{
    struct hang_rank r = in_reduce(rank);

    r.collectives[0] =
        (struct hang_collective){.group = 1,
                                 .number = number ? number : 112,
                                 .kind = number ? WORKER_COLLECTIVE_ALL_REDUCE : WORKER_COLLECTIVE_NONE,
                                 .n_ranks = 4,
                                 .is_world = true};
    r.n_collectives = 1;
    (void)strcpy(r.text, text);
    return r;
}

/* Ranks 0, 1 and 3 wait for a message of rank 2, which is in a collective. */
static void most_that_wait_elsewhere_are_not_blamed(void **state)
{
    struct hang_rank ranks[] = {counting(0, 0, "crw_recv"), counting(1, 0, "crw_recv"),
                                counting(2, 113, "in all-reduce"), counting(3, 0, "crw_recv")};

    (void)state;
    assert_true(hang_sort(ranks, 4));
    assert_int_equal(ranks[0].rank, 2);
    /* A rank with a further thread that writes is not blamed, and a rank that sleeps is. */
    ranks[3].kind = STACK_UNKNOWN;
    ranks[3].activity = ACTIVITY_WRITES;
    (void)strcpy(ranks[3].text, "writes /x at 0.2 MB/s");
    assert_true(hang_sort(ranks, 4));
    assert_int_equal(ranks[0].rank, 2);
    ranks[3].kind = STACK_OTHER;
    ranks[3].activity = ACTIVITY_SLEEPS;
    int sleeper = ranks[3].rank;
    assert_true(hang_sort(ranks, 4));
    assert_int_equal(ranks[0].rank, sleeper);
    struct hang_rank few[] = {counting(0, 113, "in all-reduce"), counting(1, 113, "in all-reduce"),
                              counting(2, 0, "crw_recv"), counting(3, 113, "in all-reduce")};
    assert_true(hang_sort(few, 4));
    assert_int_equal(few[0].rank, 2);
}

static void of_a_job_that_ends_the_rank_that_runs_is_awaited(void **state)
{
    struct hang_rank ranks[] = {in_reduce(0), in_reduce(1), in_reduce(2), in_reduce(3)};

    (void)state;
    for (int i = 0; i < 3; i++)
        ranks[i].has_ended = true;
    ranks[3].kind = STACK_OTHER;
    (void)strcpy(ranks[3].text, "sleeps");
    assert_true(hang_sort(ranks, 4));
    assert_int_equal(ranks[0].rank, 3);
}

static void equal_ranks_are_one_group_without_a_culprit(void **state)
{
    struct hang_rank ranks[] = {in_reduce(0), in_reduce(1), in_reduce(2)};

    (void)state;
    assert_false(hang_sort(ranks, 3));
    char *text = hang_text(ranks, 3, false);
    assert_string_equal(text, "  ranks 0-2 on n1: all_reduce at train.py:88\n");
    free(text);
}

/* Its tool was too slow. */
static void a_rank_without_a_stack_does_not_stand_out(void **state)
{
    struct hang_rank ranks[] = {in_reduce(0), in_reduce(1), in_reduce(2), in_reduce(3)};

    (void)state;
    ranks[1].kind = STACK_UNKNOWN;
    (void)strcpy(ranks[1].text, "in the kernel at futex_wait_queue");
    assert_false(hang_sort(ranks, 4));
    assert_int_equal(ranks[3].rank, 1);
    ranks[0].kind = STACK_DATA;
    (void)strcpy(ranks[0].text, "data loader wait at data.py:41");
    assert_true(hang_sort(ranks, 4));
    assert_int_equal(ranks[0].kind, STACK_DATA);
}

/* One record as a worker writes it. */
static size_t put_record(uint8_t *at, uint64_t group, uint64_t number, enum worker_collective_kind kind,
                         uint32_t n_ranks, uint32_t pid)
{
    const struct worker_collective c = {.group = group,
                                        .number = number,
                                        .kind = kind,
                                        .n_ranks = n_ranks,
                                        .is_world = n_ranks == 4,
                                        .pid = pid};

    memcpy(at, &c, sizeof(c));
    return sizeof(c);
}

/* In the world's collective `number` and in that of a group of two ranks; 0: the rank has no such group. */
struct counted {
    uint64_t world, pair;
    bool in_world, in_pair;
};

static struct hang_rank counted_rank(int rank, struct counted c)
{
    uint8_t records[WORKER_COLLECTIVES_MAX * sizeof(struct worker_collective)];
    struct hang_rank r = {.rank = rank, .pid = 100 + rank, .host = "n1", .state = 'S', .text = "elsewhere"};
    size_t n = put_record(records, 5, 99, WORKER_COLLECTIVE_BROADCAST, 4, 1); /* of an earlier process */

    n += put_record(records + n, 7, c.world,
                    c.in_world ? WORKER_COLLECTIVE_ALL_REDUCE : WORKER_COLLECTIVE_NONE, 4, (uint32_t)r.pid);
    if (c.pair)
        n += put_record(records + n, 9, c.pair,
                        c.in_pair ? WORKER_COLLECTIVE_BARRIER : WORKER_COLLECTIVE_NONE, 2, (uint32_t)r.pid);
    r.kind = STACK_OTHER;
    hang_add_collectives(&r, records, n / sizeof(struct worker_collective));
    return r;
}

static const struct {
    struct counted ranks[4];
    int culprit; /* -1: none */
    const char *lines[2];
} counts[] = {
    /* One is missing; that two collectives later. */
    {{{12, 0, true, false}, {12, 0, true, false}, {10, 0, false, false}, {12, 0, true, false}},
     2,
     {"  all-reduce, collective 12 of all 4 ranks: rank 2 is missing\n"}},
    /* Rank 1 waits in the pair for rank 3, which waits for nothing. */
    {{{12, 0, true, false}, {11, 4, false, true}, {12, 0, true, false}, {11, 3, false, false}},
     3,
     {"all-reduce, collective 12 of all 4 ranks: ranks 1, 3 are missing\n",
      "  barrier, collective 4 of a group of 2 ranks: rank 3 is missing\n"}},
    /* Order swapped: rank 1 waits in the pair for rank 3, rank 3 and the others in the world for rank 1. */
    {{{12, 0, true, false}, {11, 4, false, true}, {12, 0, true, false}, {12, 3, true, false}},
     1,
     {"all-reduce, collective 12 of all 4 ranks: rank 1 is missing\n",
      "barrier, collective 4 of a group of 2 ranks: rank 3 is missing\n"}},
    /* One has left a collective that it needs not wait in. */
    {{{12, 0, true, false}, {12, 0, false, false}, {12, 0, true, false}, {12, 0, true, false}}, -1, {NULL}},
};

static void counted_collectives_name_the_missing_rank(void **state)
{
    (void)state;
    for (size_t row = 0; row < sizeof(counts) / sizeof(counts[0]); row++) {
        struct hang_rank ranks[4];

        for (int i = 0; i < 4; i++)
            ranks[i] = counted_rank(i, counts[row].ranks[i]);
        bool stands_out = hang_sort(ranks, 4);
        char *text = hang_text(ranks, 4, stands_out);
        assert_non_null(text);
        if (counts[row].culprit >= 0 && (!stands_out || ranks[0].rank != counts[row].culprit))
            fail_msg("row %zu: rank %d first\n%s", row, ranks[0].rank, text);
        for (int i = 0; i < 2; i++)
            if (counts[row].lines[i] && !strstr(text, counts[row].lines[i]))
                fail_msg("row %zu: no '%s' in\n%s", row, counts[row].lines[i], text);
        assert_int_equal(counts[row].lines[0] != NULL, strstr(text, "missing") != NULL);
        free(text);
    }
}

static void a_rank_without_a_record_has_left_the_world(void **state)
{
    struct hang_rank ranks[] = {counted_rank(0, (struct counted){.world = 3, .in_world = true}),
                                {.rank = 1, .host = "n1", .has_ended = true}};

    (void)state;
    assert_true(hang_sort(ranks, 2));
    char *text = hang_text(ranks, 2, true);
    assert_non_null(text);
    assert_int_equal(ranks[0].rank, 1);
    assert_non_null(strstr(text, "  all-reduce, collective 3 of all 4 ranks: rank 1 is missing\n"));
    free(text);
}

static void the_report_has_a_bound(void **state)
{
    enum { N = 500 };
    static struct hang_rank ranks[N];
    size_t n_lines = 0;

    (void)state;
    for (int i = 0; i < N; i++) {
        ranks[i] = in_reduce(i);
        (void)snprintf(ranks[i].text, sizeof(ranks[i].text), "f%d at train.py:1", i % 2 ? i : 0);
    }
    char *text = hang_text(ranks, N, hang_sort(ranks, N));
    for (const char *at = text; *at; at++)
        n_lines += *at == '\n';
    assert_true(n_lines <= HANG_LINES_MAX - 3);
    assert_non_null(strstr(text, "more ranks at other places"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tool_output_becomes_one_line),
        cmocka_unit_test(the_digest_ignores_the_line_of_the_innermost_frame),
        cmocka_unit_test(the_rank_that_others_wait_for_comes_first),
        cmocka_unit_test(most_that_wait_elsewhere_are_not_blamed),
        cmocka_unit_test(of_a_job_that_ends_the_rank_that_runs_is_awaited),
        cmocka_unit_test(equal_ranks_are_one_group_without_a_culprit),
        cmocka_unit_test(a_rank_without_a_stack_does_not_stand_out),
        cmocka_unit_test(counted_collectives_name_the_missing_rank),
        cmocka_unit_test(a_rank_without_a_record_has_left_the_world),
        cmocka_unit_test(the_report_has_a_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
