#include "launcher/watch/stack_requests.h"

static bool is_followed(enum watch_reason reason)
{
    return reason == WATCH_HANG || reason == WATCH_QUIT;
}

/* SIGQUIT ends the job, so it goes before a hang. */
static enum stack_request_result add_again(struct stack_requests *r, enum watch_reason reason)
{
    if (r->wants_again && (!is_followed(reason) || r->next == reason || r->next == WATCH_QUIT))
        return STACK_REQUEST_REFUSED;
    r->wants_again = true;
    r->next = reason;
    return STACK_REQUEST_TAKEN;
}

enum stack_request_result stack_requests_add(struct stack_requests *r, enum watch_reason reason)
{
    if (!r->wants) {
        *r = (struct stack_requests){.wants = true, .reason = reason};
        return STACK_REQUEST_BEGIN;
    }
    if (reason == WATCH_QUIT && r->reason == WATCH_QUIT)
        return STACK_REQUEST_REFUSED; /* the job is about to stop */
    if (r->is_delivered)
        return add_again(r, reason);
    if (!is_followed(reason) || r->reason == reason)
        return STACK_REQUEST_REFUSED;
    if (is_followed(r->reason))
        return add_again(r, reason);
    r->reason = reason;
    return STACK_REQUEST_TAKEN;
}

void stack_requests_deliver(struct stack_requests *r)
{
    r->is_delivered = true;
}

bool stack_requests_finish(struct stack_requests *r)
{
    *r = (struct stack_requests){.wants = r->wants_again, .reason = r->next};
    return r->wants;
}
