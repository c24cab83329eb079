/*
 * Data that the ranks of a host share: one makes it, the others find it; a rank that dies over it is succeeded;
 * what is no cache is left alone.
 */

#include "worker-runtime/data/host_cache_os.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/worker_memory.h"

#include "tests/support/c/cmocka_fixed.h"

enum { SIZE = 10000 };

static int lend_cache(void **state)
{
    static int fd;
    char number[16];

    fd = memfd_create("crun-cache", MFD_CLOEXEC);
    (void)snprintf(number, sizeof(number), "%d", fd);
    *state = &fd;
    return fd < 0 ? -1 : setenv(WORKER_MEMORY_CACHE_ENVIRONMENT, number, 1);
}

static int take_cache_away(void **state)
{
    (void)close(*(int *)*state);
    return unsetenv(WORKER_MEMORY_CACHE_ENVIRONMENT);
}

static struct stat file_number(unsigned n)
{
    struct stat st;

    memset(&st, 0, sizeof(st));
    st.st_ino = n;
    return st;
}

/* Makes or finds the item of file n; its data must be `fill` SIZE times. Returns its state before. */
static enum host_cache_state use(unsigned n, int fill)
{
    struct stat st = file_number(n);
    struct host_cache_item item;
    enum host_cache_state was;
    uint8_t expected[SIZE], *data;
    size_t n_bytes;

    host_cache_open(&st, &item);
    was = item.state;
    if (was == HOST_CACHE_CLAIMED) {
        uint8_t *to = host_cache_reserve(&item, SIZE);

        assert_non_null(to);
        memset(to, fill, SIZE);
    }
    host_cache_close(&item, true, &data, &n_bytes);
    if (was == HOST_CACHE_NONE) {
        assert_null(data);
        return was;
    }
    assert_int_equal(n_bytes, SIZE);
    memset(expected, fill, SIZE);
    assert_memory_equal(data, expected, SIZE);
    host_cache_unmap(data, n_bytes);
    return was;
}

static void one_makes_it_and_all_find_it(void **state)
{
    assert_int_equal(use(1, 7), HOST_CACHE_CLAIMED);
    assert_int_equal(use(2, 8), HOST_CACHE_CLAIMED);
    assert_int_equal(use(1, 7), HOST_CACHE_READY);
    for (int i = 0; i < 4; i++)
        if (fork() == 0)
            _exit(use(2, 8) == HOST_CACHE_READY ? 0 : 1);
    for (int i = 0, status; i < 4; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
}

static void ranks_at_once_make_it_once(void **state)
{
    int n_made = 0;

    for (int i = 0; i < 8; i++)
        if (fork() == 0)
            _exit(use(1, 9));
    for (int i = 0, status; i < 8; i++) {
        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status));
        n_made += WEXITSTATUS(status) == HOST_CACHE_CLAIMED;
    }
    assert_int_equal(n_made, 1);
}

static void who_gives_up_is_succeeded(void **state)
{
    struct stat st = file_number(1);
    struct host_cache_item item;
    uint8_t *data;
    size_t n_bytes;

    host_cache_open(&st, &item);
    assert_int_equal(item.state, HOST_CACHE_CLAIMED);
    assert_non_null(host_cache_reserve(&item, SIZE));
    host_cache_close(&item, false, &data, &n_bytes);
    assert_null(data);
    assert_int_equal(use(1, 5), HOST_CACHE_CLAIMED);
}

static void who_is_killed_over_it_is_succeeded(void **state)
{
    int ready[2], status;
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        struct stat st = file_number(1);
        struct host_cache_item item;

        host_cache_open(&st, &item);
        memset(host_cache_reserve(&item, SIZE), 1, SIZE / 2);
        (void)!write(ready[1], "", 1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(use(1, 6), HOST_CACHE_CLAIMED); /* waits for the end of the one before, if it must */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(use(1, 6), HOST_CACHE_READY);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

/* Stopped in the middle of its work: another one does not wait for it without end. */
static void one_that_hangs_is_not_waited_for(void **state)
{
    int ready[2], status;
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        struct stat st = file_number(1);
        struct host_cache_item item;

        host_cache_open(&st, &item);
        (void)!write(ready[1], "", 1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    host_cache_wait_ms = 100;
    (void)alarm(20); /* ends a test that waits */
    struct stat st = file_number(1);
    struct host_cache_item item;
    host_cache_open(&st, &item);
    (void)alarm(0);
    assert_int_equal(item.state, HOST_CACHE_NONE);
    host_cache_wait_ms = 60000;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

static void more_than_there_is_room_for(void **state)
{
    struct stat st = file_number(1);
    struct host_cache_item item;
    uint8_t *data;
    size_t n_bytes;

    host_cache_open(&st, &item);
    assert_null(host_cache_reserve(&item, SIZE_MAX / 2));
    host_cache_close(&item, true, &data, &n_bytes);
    assert_null(data);
    for (unsigned i = 2; i < 65; i++)
        assert_int_equal(use(i, (int)i), HOST_CACHE_CLAIMED);
    assert_int_equal(use(65, 1), HOST_CACHE_NONE);
    assert_int_equal(use(2, 2), HOST_CACHE_READY);
}

static void without_one_everybody_is_alone(void **state)
{
    char path[] = "/tmp/crw-test-cache-XXXXXX", number[16];
    int fd;

    assert_int_equal(unsetenv(WORKER_MEMORY_CACHE_ENVIRONMENT), 0);
    assert_int_equal(use(1, 1), HOST_CACHE_NONE);
    assert_int_equal(setenv(WORKER_MEMORY_CACHE_ENVIRONMENT, "4711", 1), 0);
    assert_int_equal(use(1, 1), HOST_CACHE_NONE);
    fd = mkstemp(path); /* a number that means somebody's file */
    assert_true(fd >= 0);
    (void)snprintf(number, sizeof(number), "%d", fd);
    assert_int_equal(setenv(WORKER_MEMORY_CACHE_ENVIRONMENT, number, 1), 0);
    assert_int_equal(use(1, 1), HOST_CACHE_NONE);
    assert_int_equal(lseek(fd, 0, SEEK_END), 0);
    (void)close(fd);
    (void)unlink(path);
}

static void bytes_of_another_kind_are_left_alone(void **state)
{
    static const char words[] = "not a cache at all";

    assert_int_equal(pwrite(*(int *)*state, words, sizeof(words), 0), sizeof(words));
    assert_int_equal(use(1, 1), HOST_CACHE_NONE);
}

#define WITH_CACHE(function) cmocka_unit_test_setup_teardown(function, lend_cache, take_cache_away)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_CACHE(one_makes_it_and_all_find_it),     WITH_CACHE(ranks_at_once_make_it_once),
        WITH_CACHE(who_gives_up_is_succeeded),        WITH_CACHE(who_is_killed_over_it_is_succeeded),
        WITH_CACHE(one_that_hangs_is_not_waited_for), WITH_CACHE(more_than_there_is_room_for),
        WITH_CACHE(without_one_everybody_is_alone),   WITH_CACHE(bytes_of_another_kind_are_left_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
