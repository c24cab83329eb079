/*
 * The state of a rank in memory: two slots in a file that outlives the process. What a writer leaves behind that
 * is killed at any instant, and what is no longer to be used.
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/worker_memory.h"
#include "worker-runtime/group/group_os.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_BYTES = 100000, KIND = 7, KILLS = 60 };

static struct crw_group group = {.env = {.local_world_size = 2}};
static int file;

static int lend(int fd)
{
    char number[16];

    (void)snprintf(number, sizeof(number), "%d", fd);
    return setenv(WORKER_MEMORY_STATE_ENVIRONMENT, number, 1);
}

static int make_file(void **state)
{
    file = memfd_create("state", MFD_CLOEXEC);
    return file < 0 ? -1 : lend(file);
}

static int remove_file(void **state)
{
    (void)unsetenv(WORKER_MEMORY_STATE_ENVIRONMENT);
    return close(file);
}

static struct crw_memory *open_as(size_t n_bytes, uint32_t kind)
{
    struct crw_memory *m = NULL;

    if (crw_memory_open(&group, n_bytes, kind, &m) != 0)
        fail_msg("%s", crw_error_message());
    return m;
}

/* Each number has bytes of its own. */
static uint8_t byte_of(uint64_t number)
{
    return (uint8_t)(number * 37 + 1);
}

static void commit(struct crw_memory *m, uint64_t number)
{
    memset(crw_memory_begin(m), byte_of(number), N_BYTES);
    crw_memory_commit(m, number);
}

static void check_is_whole(const struct crw_memory *m, uint64_t number)
{
    const uint8_t *bytes = crw_memory_find(m, number);

    assert_non_null(bytes);
    assert_int_equal((uintptr_t)bytes % 64, 0);
    for (size_t i = 0; i < N_BYTES; i++)
        if (bytes[i] != byte_of(number))
            fail_msg("byte %zu of state %llu is another's", i, (unsigned long long)number);
}

static void check_is_empty(struct crw_memory *m)
{
    uint64_t numbers[2];

    assert_int_equal(crw_memory_list(m, numbers), 0);
    assert_null(crw_memory_find(m, 0));
    assert_null(crw_memory_find(m, UINT64_MAX));
}

static void test_the_last_two_are_there(void **state)
{
    struct crw_memory *m = open_as(N_BYTES, KIND);
    uint64_t numbers[2];

    check_is_empty(m);
    commit(m, 0);
    assert_int_equal(crw_memory_list(m, numbers), 1);
    assert_int_equal(numbers[0], 0);
    for (uint64_t n = 1; n < 6; n++) {
        commit(m, n);
        assert_int_equal(crw_memory_list(m, numbers), 2);
        assert_int_equal(numbers[0], n);
        assert_int_equal(numbers[1], n - 1);
        check_is_whole(m, n);
        check_is_whole(m, n - 1);
        assert_true(n < 2 || !crw_memory_find(m, n - 2));
    }
    crw_memory_close(m);
    m = open_as(N_BYTES, KIND);
    check_is_whole(m, 5);
    check_is_whole(m, 4);
    crw_memory_close(m);
}

/* The one that is being written does not count, and it is never the newest. */
static void test_what_was_begun_does_not_count(void **state)
{
    struct crw_memory *m = open_as(N_BYTES, KIND);
    uint64_t numbers[2];

    commit(m, 10);
    commit(m, 11);
    memset(crw_memory_begin(m), 0, N_BYTES / 2);
    crw_memory_close(m);
    m = open_as(N_BYTES, KIND);
    assert_int_equal(crw_memory_list(m, numbers), 1);
    check_is_whole(m, 11);
    commit(m, 12);
    check_is_whole(m, 11);
    check_is_whole(m, 12);
    crw_memory_close(m);
}

static void test_another_size_or_kind_is_gone(void **state)
{
    struct crw_memory *m = open_as(N_BYTES, KIND);

    commit(m, 1);
    crw_memory_close(m);
    m = open_as(N_BYTES, KIND + 1);
    check_is_empty(m);
    commit(m, 2);
    crw_memory_close(m);
    m = open_as(N_BYTES - 1, KIND + 1); /* as many pages */
    check_is_empty(m);
    crw_memory_close(m);
}

/* Bytes that nobody of us wrote, with the size of ours and with another. */
static void test_foreign_bytes_are_gone(void **state)
{
    struct crw_memory *m = open_as(N_BYTES, KIND);
    off_t size = lseek(file, 0, SEEK_END);
    static uint8_t noise[4096];

    crw_memory_close(m);
    memset(noise, 0xa5, sizeof(noise));
    for (off_t at = 0; at < size; at += (off_t)sizeof(noise))
        assert_int_equal(pwrite(file, noise, sizeof(noise), at), sizeof(noise));
    m = open_as(N_BYTES, KIND);
    check_is_empty(m);
    commit(m, 3);
    crw_memory_close(m);
    assert_int_equal(ftruncate(file, size / 2), 0);
    m = open_as(N_BYTES, KIND);
    check_is_empty(m);
    crw_memory_close(m);
}

static void check_there_is_none(size_t n_bytes, const char *sentence)
{
    struct crw_memory *m = NULL;

    assert_int_equal(crw_memory_open(&group, n_bytes, KIND, &m), CRW_E_NOT_FOUND);
    assert_non_null(strstr(crw_error_message(), sentence));
    assert_null(m);
}

/* Not every descriptor with that number is crun's file. */
static void test_nobody_lends_any(void **state)
{
    char path[] = "/tmp/test_memory_state.XXXXXX";
    int named = mkstemp(path), ends[2];

    assert_true(named >= 0);
    assert_int_equal(lend(named), 0);
    check_there_is_none(N_BYTES, "no launcher holds");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(close(named), 0);
    check_there_is_none(N_BYTES, "no launcher holds"); /* closed */
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(lend(ends[0]), 0);
    check_there_is_none(N_BYTES, "no launcher holds");
    (void)close(ends[0]);
    (void)close(ends[1]);
    assert_int_equal(setenv(WORKER_MEMORY_STATE_ENVIRONMENT, "three", 1), 0);
    check_there_is_none(N_BYTES, "no launcher holds");
    assert_int_equal(unsetenv(WORKER_MEMORY_STATE_ENVIRONMENT), 0);
    check_there_is_none(N_BYTES, "no launcher holds");
}

static void test_too_much_is_refused(void **state)
{
    check_there_is_none(SIZE_MAX / 4, "too much");
}

static void write_for_ever(void)
{
    struct crw_memory *m = open_as(N_BYTES, KIND);
    uint64_t numbers[2] = {0}, number;

    for (number = crw_memory_list(m, numbers) ? numbers[0] + 1 : 0;; number++)
        commit(m, number);
}

/* From one killed writer to the next: what is listed is whole, and never older than what was listed before. */
static void test_writer_is_killed_at_any_instant(void **state)
{
    uint64_t newest = 0, numbers[2] = {0};
    struct crw_memory *m = open_as(N_BYTES, KIND);

    for (int i = 0; i < KILLS; i++) {
        pid_t pid = fork();
        size_t n;

        assert_true(pid >= 0);
        if (pid == 0)
            write_for_ever();
        /* It has written something new; then any moment is as good as another. */
        for (time_t end = time(NULL) + 60;
             (crw_memory_list(m, numbers) == 0 || numbers[0] <= newest) && time(NULL) < end;)
            (void)usleep(100);
        (void)usleep((useconds_t)(i * 53 % 700));
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        n = crw_memory_list(m, numbers);
        assert_in_range(n, 1, 2);
        assert_true(numbers[0] > newest);
        for (size_t k = 0; k < n; k++)
            check_is_whole(m, numbers[k]);
        newest = numbers[0];
    }
    crw_memory_close(m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_file, remove_file)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_last_two_are_there),
        TEST(test_what_was_begun_does_not_count),
        TEST(test_another_size_or_kind_is_gone),
        TEST(test_foreign_bytes_are_gone),
        TEST(test_nobody_lends_any),
        TEST(test_too_much_is_refused),
        TEST(test_writer_is_killed_at_any_instant),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
