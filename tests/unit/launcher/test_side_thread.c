/*
 * Side calls, with a loop and without, and the files that a report on failed workers reads by them: in order, none of them waited for,
 * and what is late is dropped.
 */

#include "launcher/util/side_thread_uv.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/report/disk_texts_uv.h"
#include "launcher/util/read_disk_os.h"

#include "tests/support/c/cmocka_fixed.h"

struct test_task {
    sem_t *may_end; /* NULL: it does not wait */
    sem_t *dropped;
    sem_t *returns; /* NULL: not of interest */
    int result;
};

static void run_test_task(void *data)
{
    struct test_task *t = data;

    while (t->may_end && sem_wait(t->may_end) < 0) {
    }
    t->result = 7;
    if (t->returns)
        (void)sem_post(t->returns);
}

static void drop_test_task(void *data)
{
    struct test_task *t = data;
    sem_t *dropped = t->dropped;

    free(t);
    (void)sem_post(dropped);
}

static void on_test_task(void *owner, void *data)
{
    struct test_task *t = data;

    *(int *)owner = t ? t->result : -1;
    free(t);
}

static struct side_call *submit(uv_loop_t *loop, sem_t *may_end, sem_t *dropped, int *result)
{
    struct test_task *t = calloc(1, sizeof(*t));
    struct side_call *c = NULL;

    assert_non_null(t);
    *t = (struct test_task){.may_end = may_end, .dropped = dropped};
    assert_int_equal(side_thread_submit(&c, loop,
                                        &(struct side_task){.run = run_test_task,
                                                            .drop = drop_test_task,
                                                            .done = on_test_task,
                                                            .data = t,
                                                            .owner = result,
                                                            .limit_ms = may_end ? 50 : 10000}),
                     0);
    return c;
}

static void wait_for(sem_t *s)
{
    while (sem_wait(s) < 0) {
    }
    for (int i = 0; i < 1000 && side_thread_is_hung(SIDE_LOGS); i++) /* a moment behind that */
        (void)usleep(1000);
    assert_false(side_thread_is_hung(SIDE_LOGS));
}

static void a_call_is_done_or_late_or_cancelled(void **state)
{
    sem_t may_end, dropped;
    int done = 0, late = 0, cancelled = 0;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(sem_init(&may_end, 0, 0) | sem_init(&dropped, 0, 0), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    (void)submit(&loop, NULL, &dropped, &done);
    (void)submit(&loop, &may_end, &dropped, &late);
    side_thread_cancel(submit(&loop, &may_end, &dropped, &cancelled));
    side_thread_cancel(NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT); /* ends although two calls have not returned */
    assert_int_equal(done, 7);
    assert_int_equal(late, -1);
    assert_int_equal(cancelled, 0);
    assert_true(side_thread_is_hung(SIDE_LOGS));
    assert_int_equal(sem_post(&may_end) | sem_post(&may_end), 0);
    while (sem_wait(&dropped) < 0) {
    }
    wait_for(&dropped);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* Threads have returned from run() when they have posted this, and from all that follows a moment later. */
static void settle(void)
{
    (void)usleep(50000);
}

static void a_cancelled_call_gives_back_what_it_has_made(void **state)
{
    sem_t dropped, returns;
    struct test_task t = {.dropped = &dropped, .returns = &returns};
    struct side_call *c;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(sem_init(&dropped, 0, 0) | sem_init(&returns, 0, 0), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    const struct side_task task = {
        .run = run_test_task, .drop = drop_test_task, .done = on_test_task, .data = &t};
    assert_int_equal(side_thread_submit(&c, &loop, &task), 0);
    while (sem_wait(&returns) < 0) {
    }
    settle();
    assert_ptr_equal(side_thread_cancel(c), &t); /* not dropped, which would free it */
    assert_int_equal(t.result, 7);
    assert_false(side_thread_is_hung(SIDE_LOGS));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void a_call_without_a_deadline_is_waited_for(void **state)
{
    sem_t may_end, dropped;
    struct test_task *t = calloc(1, sizeof(*t));
    struct side_call *c;
    uv_loop_t loop;
    int done = 0;

    (void)state;
    assert_non_null(t);
    assert_int_equal(sem_init(&may_end, 0, 0) | sem_init(&dropped, 0, 0), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    *t = (struct test_task){.may_end = &may_end, .dropped = &dropped};
    const struct side_task task = {
        .run = run_test_task, .drop = drop_test_task, .done = on_test_task, .data = t, .owner = &done};
    assert_int_equal(side_thread_submit(&c, &loop, &task), 0);
    settle();
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(done, 0);
    assert_int_equal(sem_post(&may_end), 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(done, 7);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void few_calls_hang_at_a_time(void **state)
{
    sem_t may_end, dropped;
    int done = 0, n = 0;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(sem_init(&may_end, 0, 0) | sem_init(&dropped, 0, 0), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    for (; n < 16; n++)
        assert_null(side_thread_cancel(submit(&loop, &may_end, &dropped, &done)));
    struct test_task *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    *t = (struct test_task){.dropped = &dropped};
    struct side_call *c;
    const struct side_task task = {.run = run_test_task, .drop = drop_test_task, .data = t};
    assert_int_equal(side_thread_submit(&c, &loop, &task), -EBUSY);
    free(t); /* still the caller's */
    assert_true(side_thread_wait(SIDE_LOGS, 1));
    for (int i = 0; i < n; i++)
        assert_int_equal(sem_post(&may_end), 0);
    assert_false(side_thread_wait(SIDE_LOGS, 10000));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* ---- without a loop ---- */

struct plain {
    sem_t may_end;
    bool waits;
    _Atomic pid_t thread;
    _Atomic int n_runs, n_drops;
};

static void run_plain(void *data)
{
    struct plain *p = data;

    p->thread = gettid();
    while (p->waits && sem_wait(&p->may_end) < 0) {
    }
    p->n_runs++;
}

static void drop_plain(void *data)
{
    ((struct plain *)data)->n_drops++;
}

static struct side_order plain_order(struct plain *p, enum side_kind kind, bool waits)
{
    *p = (struct plain){.waits = waits};
    assert_int_equal(sem_init(&p->may_end, 0, 0), 0);
    return (struct side_order){.kind = kind, .run = run_plain, .drop = drop_plain, .data = p};
}

static void calls_one_after_the_other_have_one_thread(void **state)
{
    struct plain p;
    const struct side_order order = plain_order(&p, SIDE_OTHER, false);
    pid_t last = 0;
    int n_again = 0;

    (void)state;
    for (int i = 0; i < 1000 && n_again < 20; i++) {
        assert_int_equal(side_work_call(&order, 10000), 0);
        assert_int_equal(p.n_runs, i + 1);
        n_again += p.thread == last; /* unless it was not back in time */
        last = p.thread;
        (void)usleep(1000);
    }
    assert_int_equal(n_again, 20);
    assert_int_not_equal(last, getpid());
    assert_int_equal(p.n_drops, 0);
}

/* As a console on a disk that hangs: the job starts, its log files are made, and the console is waited for at the end. */
static void a_call_that_hangs_bars_its_own_kind_alone(void **state)
{
    struct plain hangs, other;
    const struct side_order order = plain_order(&hangs, SIDE_CONSOLE, true);
    const struct side_order after = plain_order(&other, SIDE_LOGS, false);

    (void)state;
    assert_int_equal(side_work_call(&order, 20), -ETIMEDOUT);
    assert_true(side_thread_is_hung(SIDE_CONSOLE) && side_thread_is_any_hung());
    assert_false(side_thread_is_hung(SIDE_LOGS));
    assert_int_equal(side_work_call(&order, 20), -EBUSY);
    assert_int_equal(side_work_call(&after, 10000), 0);
    assert_int_equal(other.n_runs, 1);
    assert_true(side_thread_wait(SIDE_CONSOLE, 10));
    assert_int_equal(hangs.n_runs, 0);
    assert_int_equal(sem_post(&hangs.may_end), 0);
    assert_false(side_thread_wait(SIDE_CONSOLE, 10000));
    assert_false(side_thread_is_any_hung());
    assert_int_equal(hangs.n_runs, 1);
    assert_int_equal(hangs.n_drops, 1);
}

static void a_call_may_be_waited_for_in_parts(void **state)
{
    struct plain p;
    const struct side_order order = plain_order(&p, SIDE_OTHER, true);
    struct side_work *work;

    (void)state;
    assert_int_equal(side_work_start(&work, &order), 0);
    assert_false(side_work_wait(work, 20));
    assert_int_equal(sem_post(&p.may_end), 0);
    assert_true(side_work_wait(work, 10000));
    assert_ptr_equal(side_work_take(work), &p);
    assert_int_equal(p.n_drops, 0);
    assert_false(side_thread_is_any_hung());
}

/* ---- files of a report ---- */

struct texts {
    char seen[16];
    size_t n_seen;
};

static void on_read(void *data, size_t i)
{
    struct texts *t = data;

    t->seen[t->n_seen++] = (char)('0' + i);
}

static struct file_part *part_of(const char *path, bool from_end)
{
    return file_part_create(path ? strdup(path) : NULL, 4, from_end);
}

static void texts_are_read_in_the_order_of_the_requests(void **state)
{
    char path[] = "/tmp/test_side_thread.XXXXXX";
    struct texts seen = {.n_seen = 0};
    struct disk_texts *t;
    uv_loop_t loop;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "abcdef", 6), 6);
    assert_int_equal(close(fd), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    t = disk_texts_create(
        &(struct disk_texts_host){.loop = &loop, .n = 4, .on_read = on_read, .data = &seen});
    assert_non_null(t);
    disk_texts_want(t, 2, 5, part_of(path, false));
    disk_texts_want(t, 0, 5, part_of("/none", false));
    disk_texts_want(t, 3, 5, part_of(path, true));
    disk_texts_want(t, 1, 5, part_of(NULL, false));
    assert_true(disk_texts_await(t, 2) && disk_texts_await(t, 3) && !disk_texts_await(t, 1));
    assert_true(disk_texts_await_any(t) && !disk_texts_get(t, 2, 5));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(seen.seen, "203");
    assert_false(disk_texts_await_any(t));
    assert_string_equal(disk_texts_get(t, 2, 5)->bytes, "abcd");
    assert_string_equal(disk_texts_get(t, 3, 5)->bytes, "cdef");
    assert_null(disk_texts_get(t, 2, 4)); /* of another generation */
    assert_null(disk_texts_get(t, 0, 5));
    disk_texts_want(t, 2, 6, part_of(path, false));
    disk_texts_want(t, 0, 6, part_of(path, false));
    disk_texts_want(t, 0, 7, part_of(path, false)); /* in place of both */
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_non_null(disk_texts_get(t, 0, 7));
    disk_texts_want(t, 1, 7, part_of(path, false));
    disk_texts_give_up(t);
    assert_false(disk_texts_await_any(t) || disk_texts_get(t, 1, 7));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    disk_texts_destroy(t);
    assert_int_equal(uv_loop_close(&loop), 0);
    for (int i = 0; i < 1000 && side_thread_is_hung(SIDE_LOGS); i++)
        (void)usleep(1000);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_is_done_or_late_or_cancelled),
        cmocka_unit_test(a_cancelled_call_gives_back_what_it_has_made),
        cmocka_unit_test(a_call_without_a_deadline_is_waited_for),
        cmocka_unit_test(few_calls_hang_at_a_time),
        cmocka_unit_test(calls_one_after_the_other_have_one_thread),
        cmocka_unit_test(a_call_that_hangs_bars_its_own_kind_alone),
        cmocka_unit_test(a_call_may_be_waited_for_in_parts),
        cmocka_unit_test(texts_are_read_in_the_order_of_the_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
