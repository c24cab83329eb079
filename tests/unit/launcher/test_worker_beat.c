/* What is read from the head of a worker's memory file, and the rate that follows from it. */

#include <endian.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launcher/host/worker_beat_os.h"
#include "proto/worker_memory.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

#define S UINT64_C(1000000000)

static int a_file(const char *magic, const uint64_t *words, size_t n)
{
    int fd = memfd_create("beat", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, magic, strlen(magic)), strlen(magic));
    for (size_t i = 0; i < n; i++) {
        uint64_t word = htole64(words[i]);
        assert_int_equal(write(fd, &word, sizeof(word)), sizeof(word));
    }
    return fd;
}

static void reports_are_read(void **state)
{
    static const uint64_t words[] = {7, 9 * S, 5, 8 * S};
    struct worker_beat beat;

    (void)state;
    int fd = a_file(WORKER_BEAT_MAGIC, words, 4);
    assert_true(worker_beat_read(fd, &beat));
    assert_int_equal(beat.step, 7);
    assert_int_equal(beat.at_ns, 9 * S);
    assert_int_equal(beat.earlier_step, 5);
    assert_int_equal(beat.earlier_ns, 8 * S);
    (void)close(fd);
    fd = a_file(WORKER_BEAT_MAGIC, words, 2); /* of a program that writes no earlier one */
    assert_true(worker_beat_read(fd, &beat));
    assert_int_equal(beat.step, 7);
    assert_int_equal(beat.earlier_ns, 0);
    (void)close(fd);
}

static void other_heads_are_none(void **state)
{
    static const struct {
        const char *magic;
        uint64_t words[2];
        size_t n;
    } rows[] = {
        {"", {0}, 0},
        {WORKER_BEAT_MAGIC, {7, 1}, 1},
        {"CRUNBEAR", {7, 1}, 2},
        {WORKER_BEAT_MAGIC, {7, 0}, 2},
        {WORKER_BEAT_MAGIC, {UINT64_MAX, 1}, 2},
    };
    struct worker_beat beat;

    (void)state;
    assert_false(worker_beat_read(-1, &beat));
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int fd = a_file(rows[i].magic, rows[i].words, rows[i].n);
        assert_false(worker_beat_read(fd, &beat));
        (void)close(fd);
    }
}

static void rate_follows_from_two_reports(void **state)
{
    static const struct {
        struct worker_beat beat;
        uint64_t started_ns, now_ns;
        double rate;
    } rows[] = {
        {{.step = 20, .at_ns = 12 * S, .earlier_step = 10, .earlier_ns = 10 * S}, S, 12 * S, 5},
        /* half a second for a step of a fifth, and then ten */
        {{.step = 20, .at_ns = 12 * S, .earlier_step = 10, .earlier_ns = 10 * S}, S, 12 * S + S / 2, 2},
        {{.step = 20, .at_ns = 12 * S, .earlier_step = 10, .earlier_ns = 10 * S}, S, 22 * S, 0.1},
        /* ten seconds each, and nine since the last one */
        {{.step = 2, .at_ns = 20 * S, .earlier_step = 1, .earlier_ns = 10 * S}, S, 29 * S, 0.1},
        /* one report alone; of the process before; a state that was taken back; a torn one */
        {{.step = 20, .at_ns = 12 * S}, S, 12 * S, -1},
        {{.step = 20, .at_ns = 12 * S, .earlier_step = 20, .earlier_ns = 12 * S}, S, 13 * S, -1},
        {{.step = 20, .at_ns = 12 * S, .earlier_step = 10, .earlier_ns = 10 * S}, 11 * S, 12 * S, -1},
        {{.step = 9, .at_ns = 12 * S, .earlier_step = 10, .earlier_ns = 10 * S}, S, 12 * S, -1},
        {{.step = 20, .at_ns = 9 * S, .earlier_step = 10, .earlier_ns = 10 * S}, S, 12 * S, -1},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        double rate = worker_beat_rate(&rows[i].beat, rows[i].started_ns, rows[i].now_ns);
        if (rate < rows[i].rate - 1e-9 || rate > rows[i].rate + 1e-9)
            fail_msg("row %zu: %f", i, rate);
    }
}

static void a_cut_of_this_process_is_read(void **state)
{
    const struct worker_cut cut = {.from = 4, .pid = 77};

    (void)state;
    int fd = a_file(WORKER_BEAT_MAGIC, NULL, 0);
    assert_int_equal(worker_cut_read(fd, 77), 0);
    assert_int_equal(pwrite(fd, &cut, sizeof(cut), WORKER_CUT_AT), sizeof(cut));
    assert_int_equal(worker_cut_read(fd, 77), 4);
    assert_int_equal(worker_cut_read(fd, 78), 0); /* an earlier process left it */
    assert_int_equal(worker_cut_read(-1, 77), 0);
    worker_cut_clear(fd); /* another generation begins */
    assert_int_equal(worker_cut_read(fd, 77), 0);
    assert_int_equal(close(fd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_are_read),
        cmocka_unit_test(other_heads_are_none),
        cmocka_unit_test(rate_follows_from_two_reports),
        cmocka_unit_test(a_cut_of_this_process_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
