#pragma once

/*
 * Calls that may wait for a disk for ever, made in a thread for a bounded time. For the event loop's thread alone, and
 * for small things: reading an error file, removing folders. While one call hangs, no other is begun: all files of a job
 * are mostly on the same disk.
 */

#include <signal.h>
#include <stdbool.h>

/*
 * Calls run(data) in a thread and waits until it has returned, at most timeout_ms. 0: it has. -ETIMEDOUT: it has not; data
 * belongs to the thread from now on, which gives it to drop() when run() returns. -EBUSY: an earlier call still
 * hangs; run() is not called. Where no thread can be had it is called directly.
 */
int bounded_call(void (*run)(void *data), void (*drop)(void *data), void *data, unsigned timeout_ms);

struct bounded_steps {
    void (*run)(void *data);
    void (*then)(void *data); /* NULL: nothing */
    void (*on_silence)(const void *data);
};

/*
 * For what crun cannot start without: calls run(data) in a thread and waits until it has returned, however long, or one of
 * these signals, which are blocked and stay so, has been pending for a second: on a busy machine it returns meanwhile.
 * on_silence(data) is called once, after five seconds. 0, or -EINTR: the thread still uses data, and the process has to end
 * by _exit().
 * The thread calls then(data) behind run(data): for what crun starts without as well, which is waited for for a twentieth of a
 * second, and at the end of crun by bounded_wait_for_then(). What it uses has to stay until the process ends.
 */
int bounded_call_or_signal(const struct bounded_steps *steps, void *data, const sigset_t *signals);

/* Waits at most timeout_ms until the then() of the last bounded_call_or_signal() has returned. Else bounded_is_hung(). */
void bounded_wait_for_then(unsigned timeout_ms);

/* Whether a thread was left behind that still hangs. The process has to end by _exit() then. */
bool bounded_is_hung(void);
