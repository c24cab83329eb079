#pragma once

/*
 * Calls that may hang, made in a thread without signals. The caller waits for a call as long as the caller likes. The caller
 * then takes the data back, or leaves the call to the thread, which drops the data late. side_thread_uv.h is the same beside
 * an event loop. Not for processes forked meanwhile.
 */

#include <stdbool.h>

/* The cause of hanging. Too many left calls bar further calls of the same kind alone. */
enum side_kind {
    SIDE_LOGS,    /* the disk of the log files */
    SIDE_CONSOLE, /* standard error */
    SIDE_OTHER,   /* other disks, name servers, munge, GPU drivers, tools: bar no other call */
    SIDE_KINDS
};

struct side_work;

struct side_order {
    enum side_kind kind;
    void (*run)(void *data);  /* in the thread */
    void (*drop)(void *data); /* frees data, in the thread or by the caller; NULL: data outlives the thread */
    void (*wake)(void *waker); /* in the thread, when run() has returned, unless the call was left; or NULL */
    void *data;                /* not NULL */
    void *waker;
};

/* 0: side_work_take() has to follow. -errno: the caller keeps data. -EBUSY: too many calls of the kind were left and hang. */
int side_work_start(struct side_work **ret, const struct side_order *order);

/* Whether run() has returned, after so long at most. */
bool side_work_wait(struct side_work *w, unsigned timeout_ms);

/* Ends the call. Returns data for the caller if run() has returned. NULL: the thread drops data later. */
void *side_work_take(struct side_work *w);

/* Start, wait and take, without waker. 0: run() has returned. -ETIMEDOUT: drop() follows. -EBUSY. Without a thread run() is called here. */
int side_work_call(const struct side_order *order, unsigned timeout_ms);

/* Whether a call of the kind was left and still runs. */
bool side_thread_is_hung(enum side_kind kind);

/* Of any kind. True: the process has to end by _exit(). */
bool side_thread_is_any_hung(void);

/* side_thread_is_hung() after waiting for threads of the kind, at most timeout_ms. */
bool side_thread_wait(enum side_kind kind, unsigned timeout_ms);
