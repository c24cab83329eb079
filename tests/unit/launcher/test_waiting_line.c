/* The line of a node that waits: when it is printed, what is in it, and the hints beside it. */

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/rdzv/waiting_line.h"

#include "tests/support/c/cmocka_fixed.h"

static struct session_waiting some_more(void)
{
    return (struct session_waiting){.left_ms = 597400, .present = "n1, n2"};
}

static void the_line_has_names_job_endpoint_and_time(void **state)
{
    const struct session_waiting more = some_more();
    struct waiting_facts facts = {.job = "train-7",
                                  .endpoint = "10.0.0.1:29400",
                                  .n_ready = 2,
                                  .min_nodes = 4,
                                  .max_nodes = 4,
                                  .missing = {1, 3},
                                  .n_missing = 2,
                                  .more = &more};
    struct waiting_line w = {0};
    char line[WAITING_TEXT_SIZE];

    (void)state;
    assert_true(waiting_next(&w, &facts, 1000, false, line));
    assert_string_equal(
        line, "2/4 nodes of job 'train-7' at 10.0.0.1:29400: n1, n2; missing: node rank 1, 3; 598 s left");
    facts.min_nodes = 2;
    facts.n_missing = 0;
    assert_true(waiting_next(&w, &facts, 1001, false, line));
    assert_string_equal(
        line,
        "2/4 nodes (at least 2) of job 'train-7' at 10.0.0.1:29400: n1, n2; begins in 598 s unless "
        "more come");
    facts.standby = true;
    assert_true(waiting_next(&w, &facts, 1002, false, line));
    assert_string_equal(
        line, "job 'train-7' at 10.0.0.1:29400 has all the nodes it can use; this one waits for a place");
}

/* Ten minutes in a log file. */
static void an_unchanged_line_is_printed_ever_more_rarely(void **state)
{
    struct session_waiting more = some_more();
    const struct waiting_facts facts = {
        .job = "j", .endpoint = "e", .n_ready = 1, .min_nodes = 2, .max_nodes = 2, .more = &more};
    struct waiting_line w = {0};
    char line[WAITING_TEXT_SIZE];
    unsigned n = 0, n_terminal = 0;

    (void)state;
    for (uint64_t ms = 1000; ms <= 600000; ms += 1000) {
        more.left_ms = (uint32_t)(600000 - ms);
        n += waiting_next(&w, &facts, ms, false, line);
    }
    assert_in_range(n, 12, 16);
    waiting_begin(&w);
    for (uint64_t ms = 1000; ms <= 60000; ms += 1000)
        n_terminal += waiting_next(&w, &facts, ms, true, line);
    assert_int_equal(n_terminal, 60);
}

static void a_change_is_printed_at_once(void **state)
{
    struct session_waiting more = some_more();
    struct waiting_facts facts = {
        .job = "j", .endpoint = "e", .n_ready = 1, .min_nodes = 3, .max_nodes = 3, .more = &more};
    struct waiting_line w = {0};
    char line[WAITING_TEXT_SIZE];

    (void)state;
    for (uint64_t ms = 1000; ms <= 100000; ms += 1000)
        (void)waiting_next(&w, &facts, ms, false, line);
    assert_false(waiting_next(&w, &facts, 100500, false, line));
    facts.n_ready = 2;
    assert_true(waiting_next(&w, &facts, 100600, false, line));
    assert_false(waiting_next(&w, &facts, 101600, false, line));
    assert_true(waiting_next(&w, &facts, 102600, false, line));
}

static void each_hint_is_given_once(void **state)
{
    struct session_waiting more = some_more();
    struct waiting_facts facts = {
        .job = "j", .endpoint = "127.0.0.1:29400", .more = &more, .is_loopback = true};
    struct waiting_line w = {0};
    char line[WAITING_TEXT_SIZE];

    (void)state;
    assert_true(waiting_hint(&w, &facts, line));
    assert_string_equal(
        line,
        "127.0.0.1:29400 leads each machine to itself; nodes on other machines need an address of this "
        "one in its place");
    assert_false(waiting_hint(&w, &facts, line));
    text_copy(more.other_jobs, sizeof(more.other_jobs), "'none'");
    text_copy(more.refused, sizeof(more.refused), "n3: max-restarts is 0 in the job and 7 there");
    assert_true(waiting_hint(&w, &facts, line));
    assert_string_equal(
        line,
        "a node was refused: n3: max-restarts is 0 in the job and 7 there; use the same command line on "
        "all nodes");
    assert_true(waiting_hint(&w, &facts, line));
    assert_string_equal(
        line,
        "nodes of other jobs wait at the same rendezvous: 'none'; this one waits for nodes with "
        "--rdzv-id=j");
    assert_false(waiting_hint(&w, &facts, line));
    waiting_begin(&w);
    assert_false(waiting_hint(&w, &facts, line));
    text_copy(more.other_jobs, sizeof(more.other_jobs), "'none', 'k'");
    assert_true(waiting_hint(&w, &facts, line));
}

/* Bounded, whatever the names are. */
static void long_texts_are_cut(void **state)
{
    struct session_waiting more = {.left_ms = UINT32_MAX};
    char job[2000];
    const struct waiting_facts facts = {
        .job = job, .endpoint = job, .n_missing = 8, .more = &more, .is_loopback = true};
    struct waiting_line w = {0};
    char line[WAITING_TEXT_SIZE];

    (void)state;
    memset(job, 'x', sizeof(job) - 1);
    job[sizeof(job) - 1] = '\0';
    memset(more.present, 'y', sizeof(more.present) - 1);
    memset(more.other_jobs, 'z', sizeof(more.other_jobs) - 1);
    memset(more.refused, 'r', sizeof(more.refused) - 1);
    assert_true(waiting_next(&w, &facts, 0, false, line));
    assert_true(strlen(line) < WAITING_TEXT_SIZE);
    for (int i = 0; i < 3; i++)
        assert_true(waiting_hint(&w, &facts, line));
    assert_false(waiting_hint(&w, &facts, line));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_has_names_job_endpoint_and_time),
        cmocka_unit_test(an_unchanged_line_is_printed_ever_more_rarely),
        cmocka_unit_test(a_change_is_printed_at_once),
        cmocka_unit_test(each_hint_is_given_once),
        cmocka_unit_test(long_texts_are_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
