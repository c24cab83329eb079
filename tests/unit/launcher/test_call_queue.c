/*
 * The queue of blocking calls: a call that waits can be taken back, one that has begun cannot, and later ones are made. The end of the
 * queue waits for none.
 */

#include "launcher/rdzv/call_queue_uv.h"

#include <semaphore.h>
#include <stdlib.h>

#include "launcher/util/side_thread_os.h"

#include "tests/support/c/cmocka_fixed.h"

struct test_call {
    struct blocking_call call;
    sem_t *begun, *may_end; /* NULL: it does not wait */
    unsigned *n_done;
};

static void run_test_call(struct blocking_call *c)
{
    struct test_call *t = (struct test_call *)c;

    if (!t->begun)
        return;
    (void)sem_post(t->begun);
    while (sem_wait(t->may_end) < 0) {
    }
}

static void free_test_call(struct blocking_call *c)
{
    free(c);
}

static void on_test_call_done(struct blocking_call *c)
{
    ++*((struct test_call *)c)->n_done;
    free(c);
}

static struct test_call *push_call(struct call_queue *q, sem_t *begun, sem_t *may_end, unsigned *n_done)
{
    struct test_call *t = calloc(1, sizeof(*t));

    assert_non_null(t);
    *t = (struct test_call){.call = {.run = run_test_call, .done = on_test_call_done, .drop = free_test_call},
                            .begun = begun,
                            .may_end = may_end,
                            .n_done = n_done};
    assert_int_equal(call_queue_push(q, &t->call), 0);
    return t;
}

static void a_waiting_call_can_be_taken_back(void **state)
{
    unsigned n_first = 0, n_cancelled = 0, n_last = 0;
    struct call_queue *q;
    sem_t begun, may_end;
    uv_loop_t loop;

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(call_queue_create(&q, &loop), 0);
    assert_int_equal(sem_init(&begun, 0, 0), 0);
    assert_int_equal(sem_init(&may_end, 0, 0), 0);

    struct test_call *first = push_call(q, &begun, &may_end, &n_first);
    while (sem_wait(&begun) < 0) {
    }
    struct test_call *cancelled = push_call(q, NULL, NULL, &n_cancelled);
    (void)push_call(q, NULL, NULL, &n_last);
    assert_true(call_queue_cancel(q, &cancelled->call));
    free(cancelled);
    assert_false(call_queue_cancel(q, &first->call));

    (void)sem_post(&may_end);
    while (n_last == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(n_first, 1);
    assert_int_equal(n_cancelled, 0);

    call_queue_stop(q);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    (void)sem_destroy(&begun);
    (void)sem_destroy(&may_end);
}

static _Atomic int n_dropped;

static void count_dropped(struct blocking_call *c)
{
    free(c);
    n_dropped++;
}

static void the_end_drops_what_runs_and_what_waits(void **state)
{
    unsigned n_done = 0;
    struct call_queue *q;
    sem_t begun, may_end;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(call_queue_create(&q, &loop), 0);
    assert_int_equal(sem_init(&begun, 0, 0) | sem_init(&may_end, 0, 0), 0);
    push_call(q, &begun, &may_end, &n_done)->call.drop = count_dropped;
    while (sem_wait(&begun) < 0) {
    }
    push_call(q, NULL, NULL, &n_done)->call.drop = count_dropped;
    call_queue_stop(q);
    assert_int_equal(n_dropped, 1); /* the one that waits */
    assert_true(side_thread_is_hung(SIDE_OTHER));
    (void)uv_run(&loop, UV_RUN_DEFAULT); /* ends although the other one has not returned */
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(n_dropped, 1);
    assert_int_equal(sem_post(&may_end), 0);
    assert_false(side_thread_wait(SIDE_OTHER, 10000));
    assert_int_equal(n_dropped, 2);
    assert_int_equal(n_done, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiting_call_can_be_taken_back),
        cmocka_unit_test(the_end_drops_what_runs_and_what_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
