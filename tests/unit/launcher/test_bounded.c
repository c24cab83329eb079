/* Calls in threads: one thread for several of them, no wait for one that hangs, and what stays behind by that. */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "launcher/util/bounded_os.h"
#include "launcher/util/thread_os.h"
#include "base/time.h"

#include "tests/support/c/cmocka_fixed.h"

enum { LIMIT_MS = 10000, SHORT_MS = 20 };

/* What a call does, and what became of it. */
struct seen {
    int read_from; /* waits there for a byte; -1: does not wait */
    _Atomic pid_t thread;
    _Atomic int n_runs, n_thens, n_drops;
};

/* Waits for a byte where there is a pipe. */
static bool may_go_on(const struct seen *s)
{
    char byte;

    return s->read_from < 0 || read(s->read_from, &byte, 1) == 1;
}

static void run(void *data)
{
    struct seen *s = data;

    s->thread = gettid();
    s->n_runs += may_go_on(s);
}

static void run_at_once(void *data)
{
    struct seen *s = data;

    s->n_runs++;
}

static void then_wait(void *data)
{
    struct seen *s = data;

    s->n_thens += may_go_on(s);
}

static void drop(void *data)
{
    struct seen *s = data;

    s->n_drops++;
}

static void on_silence(const void *data)
{
    fail_msg("it was not silent");
}

static void await(_Atomic int *n)
{
    for (int i = 0; i < LIMIT_MS && *n == 0; i++)
        (void)usleep(1000);
    assert_int_equal(*n, 1);
}

static void calls_one_after_the_other_have_one_thread(void **state)
{
    struct seen seen = {.read_from = -1};
    pid_t last = 0;
    int n_again = 0;

    (void)state;
    for (int i = 0; i < 1000 && n_again < 20; i++) {
        assert_int_equal(bounded_call(run, drop, &seen, LIMIT_MS), 0);
        assert_int_equal(seen.n_runs, i + 1);
        n_again += seen.thread == last; /* unless it was not back in time */
        last = seen.thread;
        (void)usleep(1000);
    }
    assert_int_equal(n_again, 20);
    assert_int_not_equal(last, getpid());
}

static void a_call_that_hangs_is_left(void **state)
{
    int pipe_fds[2];
    struct seen hangs;

    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    hangs = (struct seen){.read_from = pipe_fds[0]};
    assert_int_equal(bounded_call(run, drop, &hangs, SHORT_MS), -ETIMEDOUT);
    assert_true(bounded_is_hung());
    assert_int_equal(bounded_call(run, drop, &hangs, SHORT_MS), -EBUSY);
    assert_int_equal(write(pipe_fds[1], "x", 1), 1);
    await(&hangs.n_drops);
    for (int i = 0; i < LIMIT_MS && bounded_is_hung(); i++)
        (void)usleep(1000);
    assert_false(bounded_is_hung());
    assert_int_equal(hangs.n_runs, 1);
}

static int call_with_then(struct seen *s)
{
    const struct bounded_steps steps = {.run = run_at_once, .then = then_wait, .on_silence = on_silence};
    sigset_t none;

    (void)sigemptyset(&none);
    return bounded_call_or_signal(&steps, s, &none);
}

static void the_second_step_is_waited_for(void **state)
{
    struct seen seen = {.read_from = -1};

    (void)state;
    assert_int_equal(call_with_then(&seen), 0);
    assert_int_equal(seen.n_runs, 1);
    assert_int_equal(seen.n_thens, 1);
}

/* As a console on a disk that hangs: the job starts, and nothing else is refused. */
static void a_second_step_that_hangs_is_left(void **state)
{
    static struct seen hangs;
    int pipe_fds[2];
    struct seen other = {.read_from = -1};
    uint64_t begin_ns = now_ns();

    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    hangs.read_from = pipe_fds[0];
    assert_int_equal(call_with_then(&hangs), 0);
    assert_true(now_ns() - begin_ns >= 50 * UINT64_C(1000000));
    assert_int_equal(hangs.n_runs, 1);
    assert_int_equal(hangs.n_thens, 0);
    assert_false(bounded_is_hung());
    assert_int_equal(bounded_call(run, drop, &other, LIMIT_MS), 0);
    bounded_wait_for_then(10);
    assert_int_equal(hangs.n_thens, 0);
    assert_int_equal(write(pipe_fds[1], "x", 1), 1);
    await(&hangs.n_thens);
}

/* As that console when the disk answers again while the job ends. */
static void a_second_step_that_was_left_is_waited_for_at_the_end(void **state)
{
    static struct seen late;
    int pipe_fds[2];

    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    late.read_from = pipe_fds[0];
    assert_int_equal(call_with_then(&late), 0);
    assert_int_equal(late.n_thens, 0);
    assert_int_equal(write(pipe_fds[1], "x", 1), 1);
    bounded_wait_for_then(LIMIT_MS);
    assert_int_equal(late.n_thens, 1);
    bounded_wait_for_then(LIMIT_MS); /* there is none any more */
}

/* A signal that ends crun ends the wait for what it cannot start without. */
static void a_signal_ends_the_first_step_only(void **state)
{
    static struct seen hangs;
    const struct bounded_steps steps = {.run = run, .on_silence = on_silence};
    int pipe_fds[2];
    sigset_t signals;

    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    hangs.read_from = pipe_fds[0];
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    assert_int_equal(bounded_call_or_signal(&steps, &hangs, &signals), -EINTR);
    assert_int_equal(write(pipe_fds[1], "x", 1), 1);
    await(&hangs.n_runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_one_after_the_other_have_one_thread),
        cmocka_unit_test(a_call_that_hangs_is_left),
        cmocka_unit_test(the_second_step_is_waited_for),
        cmocka_unit_test(a_second_step_that_hangs_is_left),
        cmocka_unit_test(a_second_step_that_was_left_is_waited_for_at_the_end),
        cmocka_unit_test(a_signal_ends_the_first_step_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
