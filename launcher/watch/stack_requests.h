#pragma once

/*
 * For which reason stacks are taken, when there are several: a state machine of three steps (requested, taken, delivered, until the
 * files are complete). Pure.
 *
 * A request while others are being taken is served by them. But one that something follows, a hang or SIGQUIT, is not lost: before
 * the delivery it replaces a reason that nothing follows; else stacks are taken once more, behind those.
 */

#include <stdbool.h>

enum watch_reason {
    WATCH_HANG,     /* no progress */
    WATCH_SLOW_END, /* workers that have got a signal to end are still there */
    WATCH_ASKED,    /* crunctl stacks */
    WATCH_QUIT,     /* SIGQUIT: the job stops afterwards */
    WATCH_LINE,     /* a worker printed a line that --on-line has a rule for */
};

struct stack_requests {
    bool wants; /* they are to be taken, or are being taken */
    enum watch_reason reason;
    bool is_delivered; /* only the files are not complete yet */
    bool wants_again;
    enum watch_reason next;
};

enum stack_request_result {
    STACK_REQUEST_REFUSED, /* they are being taken for that already, and on_stacks is still to be called for them */
    STACK_REQUEST_TAKEN, /* nothing more is to be done */
    STACK_REQUEST_BEGIN, /* they are to be taken now */
};

enum stack_request_result stack_requests_add(struct stack_requests *r, enum watch_reason reason);

void stack_requests_deliver(struct stack_requests *r);

/* The files are complete. True: stacks are to be taken again. */
bool stack_requests_finish(struct stack_requests *r);
