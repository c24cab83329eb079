/* The picture of crunctl top, its keys, and the last line of an output. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/ctl/job_status.h"
#include "launcher/crunctl/last_line.h"
#include "launcher/crunctl/top_text.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/sanitized.h"

enum { RANKS_OF_A_NODE = 8 };

static struct job_status a_job(int n_nodes, int n_ranks_each)
{
    struct job_status s = {.job = "train-7",
                           .program = "train.py",
                           .state = "running",
                           .crun_pid = 4711,
                           .generation = 2,
                           .restarts = 1,
                           .max_restarts = 3,
                           .n_nodes = n_nodes,
                           .started_s = 1000};

    for (int n = 0; n < n_nodes; n++) {
        char host[32];

        (void)snprintf(host, sizeof(host), "node%d", n);
        assert_int_equal(job_status_add_node(&s, host, n, (size_t)n_ranks_each), 0);
        for (int i = 0; i < n_ranks_each; i++) {
            struct worker_status *w = &s.nodes[n].workers[i];

            w->rank = n * n_ranks_each + i;
            w->pid = 5000 + w->rank;
            w->has_usage = true;
            w->rss_kib = 1 << 20;
            w->cpu_percent = 100;
            w->last_step = 4000;
            w->steps_per_s = 12.5;
            (void)strcpy(w->state, "running");
            (void)strcpy(w->last_line, "epoch 3");
        }
    }
    return s;
}

static void picture_of_a_job(void **state)
{
    struct job_status s = a_job(2, 2);
    const struct top_view view = {.now_s = 1061, .has_marks_first = true};

    (void)state;
    s.nodes[1].workers[1].hang = true;
    s.nodes[1].workers[0].straggler = true;
    s.nodes[1].workers[0].steps_per_s = 2;
    s.nodes[0].workers[0].waits_percent = 61;
    s.nodes[1].workers[0].waits_percent = 0;
    s.nodes[0].n_gpus = 2;
    s.nodes[0].gpus[0] = (struct gpu_status){.percent = 90, .used_mib = 40 << 10, .total_mib = 80 << 10};
    s.nodes[0].gpus[1] = (struct gpu_status){.percent = 50, .used_mib = 20 << 10, .total_mib = 80 << 10};
    char *text = top_text(&s, 1, &view);
    assert_string_equal(
        text,
        "train-7: train.py, running for 1:01, generation 2, 1/3 restarts\n"
        "2/2 nodes, ranks: 4 running, 0 failed, 1 hang, 1 slow, 4 in all\n"
        "CPU 400%, memory 4.0 GiB, GPU 70% 60/160 GiB, 2.00 to 12.5 steps/s, slowest rank 2\n"
        " NODE HOST             WORKERS RUNNING  STEPS/S       CPU    MEMORY  GPU\n"
        "    0 node0                  2       2     12.5      200%   2.0 GiB  70% 60/160 GiB\n"
        "    1 node1                  2       2     2.00      200%   2.0 GiB  -\n"
        " RANK HOST          PID STATE             STEP STEP/S WAITS   CPU   MEMORY  LAST LINE\n"
        "    2 node1        5002 running   SLOW    4000   2.00    0%  100%  1.0 GiB  epoch 3\n"
        "    3 node1        5003 running   HANG    4000   12.5     -  100%  1.0 GiB  epoch 3\n"
        "    0 node0        5000 running           4000   12.5   61%  100%  1.0 GiB  epoch 3\n"
        "    1 node0        5001 running           4000   12.5     -  100%  1.0 GiB  epoch 3\n");
    free(text);
    text = top_text(NULL, 0, &view);
    assert_string_equal(text, "no job of yours runs on this node\n");
    free(text);
    job_status_finish(&s);
}

/* Moves, "erase" and SGR only: nothing that a terminal would answer. Returns the end of the sequence. */
static const char *check_sequence(const char *at)
{
    assert_int_equal(at[1], '[');
    at += 2 + strspn(at + 2, "0123456789;");
    assert_non_null(strchr("HJKm", *at));
    return at + 1;
}

/* Lines of the picture; none is wider than the terminal. */
static int check_lines(const char *text, int width)
{
    int n_lines = 0, columns = 0;

    for (const char *c = text; *c;) {
        if (*c == '\033') {
            c = check_sequence(c);
            continue;
        }
        if (*c == '\n') {
            n_lines++;
            columns = 0;
        } else if (*c != '\r') {
            columns += ((unsigned char)*c & 0xC0) != 0x80;
        }
        assert_true(columns <= width);
        c++;
    }
    return n_lines;
}

static void picture_fits_into_any_terminal(void **state)
{
    static const struct {
        int n_nodes, n_each, width, height;
    } rows[] = {
        {1, 1, 80, 24},
        {1, 40, 80, 24},
        {125, RANKS_OF_A_NODE, 80, 24},
        {125, RANKS_OF_A_NODE, 200, 60},
        {125, 8, 20, 5},
        {125, 8, 1, 1},
        {125, 8, 80, 2},
        {1000, 1, 80, 24},
        {1, 1000, 132, 43},
        {2, 0, 80, 24},
        {0, 0, 80, 24},
        {IS_SANITIZED ? 512 : 4096, 16, 80, 24},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct job_status s = a_job(rows[i].n_nodes, rows[i].n_each);
        struct top_view view = {
            .width = rows[i].width, .height = rows[i].height, .now_s = 2000, .is_live = true};

        (void)strcpy(s.program, "\xc3\xa4\033[6n\xc3\xa4"); /* a query, to which the terminal would answer */
        for (int press = 0; press < 3; press++) {
            char *text = top_text(&s, 1, &view);

            assert_non_null(text);
            assert_true(check_lines(text, rows[i].width) < rows[i].height);
            assert_true(rows[i].height < 24 || rows[i].n_nodes * rows[i].n_each < 1000 || press ||
                        strstr(text, "more ranks"));
            free(text);
            assert_true(top_press(&view, press ? TOP_KEY_PAGE_DOWN : 'n', 1000));
        }
        job_status_finish(&s);
    }
}

static void ranks_scroll(void **state)
{
    struct job_status s = a_job(1, 100);
    struct top_view view = {.width = 80, .height = 24, .now_s = 2000, .is_live = true};

    (void)state;
    assert_true(top_press(&view, TOP_KEY_UP, 100));
    assert_int_equal(view.first, 0);
    for (int i = 0; i < 20; i++)
        assert_true(top_press(&view, TOP_KEY_PAGE_DOWN, 100));
    assert_int_equal(view.first, 99);
    char *text = top_text(&s, 1, &view);
    assert_non_null(strstr(text, "\n   99 node0"));
    assert_null(strstr(text, "\n   98 node0"));
    free(text);
    assert_true(top_press(&view, 'k', 100));
    assert_int_equal(view.first, 98);
    assert_false(top_press(&view, 'q', 100));
    job_status_finish(&s);
}

static void keys_are_told_apart(void **state)
{
    static const char typed[] = "j\033[A\033OB\033[5~\033[6~\033[Zq";
    static const int keys[] = {'j', TOP_KEY_UP, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN, '\033',
                               '[', 'Z',        'q'};
    size_t at = 0, size;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++, at += size)
        assert_int_equal(top_next_key(typed + at, sizeof(typed) - 1 - at, &size), keys[i]);
    assert_int_equal(at, sizeof(typed) - 1);
    assert_int_equal(top_next_key(typed, 0, &size), 0);
    assert_int_equal(size, 0);
}

static void last_line_of_an_output(void **state)
{
    static const struct {
        const char *output, *line;
    } rows[] = {
        {"", ""},
        {"\n\n", ""},
        {"one\ntwo\n", "two"},
        {"one\ntwo", "two"},
        {"epoch 1\n 10%\r 20%\r 30%", " 30%"},
        {"one\n   \n\n", "one"},
        {"\033[31mred\033[0m\n", "red"},
        {"a\033[6nb\a\n", "ab?"},
        {"0123456789abcdefgh\n", "0123456789abcde"},
        {"0123456789abcd\xc3\xa4\n", "0123456789abcd"},
        {"half \033[", "half"},
        {"\033]0;a title\aafter\n", "after"},
        {"\033]8;;http://x\033\\a link\033]8;;\033\\\n", "a link"},
        {"\033P1$r0m\033\\x\033_y\033\\z\n", "xz"},
        {"\033]0;no end", ""},
        {"\033]0;no end\033[1mbold\n", "bold"},
        {"\033(B\033[mplain\033=\n", "plain"},
        {"half \033(", "half"},
    };
    char line[16];

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        last_line_of(rows[i].output, strlen(rows[i].output), line, sizeof(line));
        assert_string_equal(line, rows[i].line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picture_of_a_job),       cmocka_unit_test(picture_fits_into_any_terminal),
        cmocka_unit_test(ranks_scroll),           cmocka_unit_test(keys_are_told_apart),
        cmocka_unit_test(last_line_of_an_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
