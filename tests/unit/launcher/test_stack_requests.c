/* Requests for stacks while others are being taken: a table of what is asked for before and behind the delivery. */

#include "launcher/watch/stack_requests.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

enum { NONE = -1 };

static void a_table_of_requests(void **state)
{
    static const struct {
        int before[3],
            behind[3]; /* requests until the delivery, and until the files are complete; NONE ends them */
        enum stack_request_result last;
        int reason; /* at the delivery */
        int next;   /* what is taken again for; NONE: nothing is */
    } rows[] = {
        {{WATCH_ASKED, NONE}, {NONE}, STACK_REQUEST_BEGIN, WATCH_ASKED, NONE},
        {{WATCH_ASKED, WATCH_ASKED, NONE}, {NONE}, STACK_REQUEST_REFUSED, WATCH_ASKED, NONE},
        {{WATCH_ASKED, WATCH_HANG, NONE}, {NONE}, STACK_REQUEST_TAKEN, WATCH_HANG, NONE},
        {{WATCH_LINE, WATCH_QUIT, NONE}, {NONE}, STACK_REQUEST_TAKEN, WATCH_QUIT, NONE},
        {{WATCH_HANG, WATCH_ASKED, NONE}, {NONE}, STACK_REQUEST_REFUSED, WATCH_HANG, NONE},
        {{WATCH_HANG, WATCH_QUIT, NONE}, {NONE}, STACK_REQUEST_TAKEN, WATCH_HANG, WATCH_QUIT},
        {{WATCH_HANG, WATCH_QUIT, WATCH_QUIT}, {NONE}, STACK_REQUEST_REFUSED, WATCH_HANG, WATCH_QUIT},
        {{WATCH_QUIT, WATCH_HANG, NONE}, {NONE}, STACK_REQUEST_TAKEN, WATCH_QUIT, WATCH_HANG},
        {{WATCH_QUIT, WATCH_QUIT, NONE}, {NONE}, STACK_REQUEST_REFUSED, WATCH_QUIT, NONE},
        {{WATCH_ASKED, NONE}, {WATCH_ASKED, NONE}, STACK_REQUEST_TAKEN, WATCH_ASKED, WATCH_ASKED},
        {{WATCH_ASKED, NONE},
         {WATCH_LINE, WATCH_ASKED, NONE},
         STACK_REQUEST_REFUSED,
         WATCH_ASKED,
         WATCH_LINE},
        {{WATCH_ASKED, NONE}, {WATCH_LINE, WATCH_HANG, NONE}, STACK_REQUEST_TAKEN, WATCH_ASKED, WATCH_HANG},
        {{WATCH_ASKED, NONE}, {WATCH_QUIT, WATCH_HANG, NONE}, STACK_REQUEST_REFUSED, WATCH_ASKED, WATCH_QUIT},
        {{WATCH_QUIT, NONE}, {WATCH_QUIT, NONE}, STACK_REQUEST_REFUSED, WATCH_QUIT, NONE},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct stack_requests r = {.wants = false};
        enum stack_request_result last = STACK_REQUEST_REFUSED;

        for (int k = 0; k < 3 && rows[i].before[k] != NONE; k++)
            last = stack_requests_add(&r, (enum watch_reason)rows[i].before[k]);
        int reason = (int)r.reason;
        stack_requests_deliver(&r);
        for (int k = 0; k < 3 && rows[i].behind[k] != NONE; k++)
            last = stack_requests_add(&r, (enum watch_reason)rows[i].behind[k]);
        bool again = stack_requests_finish(&r);
        if (last != rows[i].last || reason != rows[i].reason || again != (rows[i].next != NONE) ||
            (again && (int)r.reason != rows[i].next))
            fail_msg("row %zu: result %d, reason %d, again %d for %d", i, (int)last, reason, again,
                     (int)r.reason);
        assert_int_equal(r.wants, again);
        assert_false(r.is_delivered || r.wants_again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_table_of_requests)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
