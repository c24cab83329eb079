/*
 * How a communicator comes into being: the events of the machine, and its actions.
 */

#include "worker-runtime/cuda/cuda_comm_init.h"

#include <string.h>

#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

enum { WORLD = 4 };

struct line {
    enum comm_event_kind said;
    int64_t now, n_yes, n_no;
    enum comm_action answered;
};

struct conversation {
    const char *name;
    int rank, n_attempts;
    struct line lines[12];
    enum comm_state state; /* at the end */
    enum comm_why why;
    enum comm_state when;
};

#define BEGIN COMM_EVENT_BEGIN
#define ID COMM_EVENT_ID
#define BUSY COMM_EVENT_BUSY
#define DONE COMM_EVENT_DONE
#define ERROR COMM_EVENT_ERROR
#define OVER COMM_EVENT_OVER

static const struct conversation conversations[] = {
    {"rank 0, all well",
     0,
     2,
     {{BEGIN, 0, 0, 0, COMM_MAKE_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {BUSY, 2, 0, 0, COMM_POLL},
      {DONE, 3, 2, 0, COMM_VOTE_YES},
      {DONE, 4, 3, 0, COMM_COUNT_VOTES},
      {BUSY, 5, 4, 0, COMM_PROBE},
      {BUSY, 6, 4, 0, COMM_POLL},
      {DONE, 7, 4, 0, COMM_FINISH}},
     COMM_READY,
     COMM_WHY_NOTHING,
     COMM_IDLE},
    {"another rank, all well",
     1,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {BUSY, 5, 0, 0, COMM_FETCH_ID},
      {ID, 6, 0, 0, COMM_INIT},
      {DONE, 7, 3, 0, COMM_VOTE_YES},
      {DONE, 8, 4, 0, COMM_PROBE},
      {DONE, 9, 4, 0, COMM_FINISH}},
     COMM_READY,
     COMM_WHY_NOTHING,
     COMM_IDLE},
    {"NCCL fails here once",
     0,
     2,
     {{BEGIN, 0, 0, 0, COMM_MAKE_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {ERROR, 2, 0, 0, COMM_VOTE_NO},
      {BEGIN, 3, 0, 0, COMM_MAKE_ID},
      {ID, 4, 0, 0, COMM_INIT},
      {DONE, 5, 3, 0, COMM_VOTE_YES},
      {DONE, 6, 4, 0, COMM_PROBE},
      {DONE, 7, 4, 0, COMM_FINISH}},
     COMM_READY,
     COMM_WHY_ERROR,
     COMM_INITIALISING},
    {"NCCL fails here twice",
     0,
     2,
     {{BEGIN, 0, 0, 0, COMM_MAKE_ID},
      {ERROR, 1, 0, 0, COMM_VOTE_NO},
      {BEGIN, 2, 0, 0, COMM_MAKE_ID},
      {ERROR, 3, 0, 0, COMM_VOTE_NO},
      {BEGIN, 4, 0, 0, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_ERROR,
     COMM_NEEDS_ID},
    {"another rank fails while this one waits",
     2,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {BUSY, 2, 1, 1, COMM_RETREAT},
      {BEGIN, 3, 0, 0, COMM_FETCH_ID}},
     COMM_NEEDS_ID,
     COMM_WHY_VOTED_DOWN,
     COMM_INITIALISING},
    {"another rank fails after this one's yes",
     2,
     1,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 2, 1, 0, COMM_VOTE_YES},
      {BUSY, 3, 2, 0, COMM_COUNT_VOTES},
      {BUSY, 4, 3, 1, COMM_RETREAT},
      {BEGIN, 5, 0, 0, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_VOTED_DOWN,
     COMM_VOTING},
    {"no id in time",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {BUSY, 99, 0, 0, COMM_FETCH_ID},
      {BUSY, 100, 0, 0, COMM_VOTE_NO},
      {BEGIN, 101, 0, 0, COMM_FETCH_ID},
      {BUSY, 201, 0, 0, COMM_VOTE_NO},
      {BEGIN, 202, 0, 0, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_TIMEOUT,
     COMM_NEEDS_ID},
    {"connected at the last moment",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 100, 0, 0, COMM_VOTE_YES},
      {DONE, 101, 4, 0, COMM_PROBE},
      {DONE, 102, 4, 0, COMM_FINISH}},
     COMM_READY,
     COMM_WHY_NOTHING,
     COMM_IDLE},
    {"another rank says no at the end of its time",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 2, 3, 0, COMM_VOTE_YES},
      {BUSY, 110, 3, 1, COMM_RETREAT},
      {BEGIN, 111, 0, 0, COMM_FETCH_ID}},
     COMM_NEEDS_ID,
     COMM_WHY_VOTED_DOWN,
     COMM_VOTING},
    {"votes that never come cannot be taken back",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 2, 0, 0, COMM_VOTE_YES},
      {BUSY, 199, 3, 0, COMM_COUNT_VOTES},
      {BUSY, 200, 3, 0, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_TIMEOUT,
     COMM_VOTING},
    {"the first all-reduce hangs",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 2, 3, 0, COMM_VOTE_YES},
      {DONE, 3, 4, 0, COMM_PROBE},
      {BUSY, 102, 4, 0, COMM_POLL},
      {BUSY, 103, 4, 0, COMM_VOTE_NO},
      {BEGIN, 104, 0, 0, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_TIMEOUT,
     COMM_PROBING},
    {"another rank's first all-reduce fails before this rank knows of all votes",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 2, 3, 0, COMM_VOTE_YES},
      {DONE, 3, 4, 1, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_VOTED_DOWN,
     COMM_VOTING},
    {"another rank's first all-reduce fails",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 2, 3, 0, COMM_VOTE_YES},
      {DONE, 3, 4, 0, COMM_PROBE},
      {BUSY, 4, 4, 1, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_VOTED_DOWN,
     COMM_PROBING},
    {"the first all-reduce fails",
     3,
     2,
     {{BEGIN, 0, 0, 0, COMM_FETCH_ID},
      {ID, 1, 0, 0, COMM_INIT},
      {DONE, 2, 3, 0, COMM_VOTE_YES},
      {DONE, 3, 4, 0, COMM_PROBE},
      {ERROR, 4, 4, 0, COMM_VOTE_NO},
      {BEGIN, 5, 0, 0, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_ERROR,
     COMM_PROBING},
    {"the launcher ends it",
     0,
     5,
     {{BEGIN, 0, 0, 0, COMM_MAKE_ID}, {ID, 1, 0, 0, COMM_INIT}, {OVER, 2, 0, 0, COMM_GIVE_UP}},
     COMM_FAILED,
     COMM_WHY_OVER,
     COMM_INITIALISING},
};

static void converses(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(conversations); i++) {
        const struct conversation *c = &conversations[i];
        struct comm_init m = {
            .rank = c->rank,
            .world_size = WORLD,
            .n_attempts_max = c->n_attempts,
            .timeout_ns = 100,
        };
        for (size_t k = 0;
             k < ARRAY_SIZE(c->lines) && (k == 0 || c->lines[k].said != BEGIN || c->lines[k].now); k++) {
            const struct line *l = &c->lines[k];
            const struct comm_event e = {
                .kind = l->said, .now_ns = l->now, .n_yes = l->n_yes, .n_no = l->n_no};
            enum comm_action answered = comm_init_step(&m, &e);
            if (answered != l->answered)
                fail_msg("%s: line %zu is answered by %d, not %d", c->name, k, answered, l->answered);
        }
        if (m.state != c->state || m.why != c->why || m.when != c->when)
            fail_msg("%s: ends in state %d, why %d when %d", c->name, m.state, m.why, m.when);
    }
}

/* Whatever is said in whatever order, the machine ends, and what has ended stays so. */
static void ends_whatever_is_said(void **state)
{
    uint32_t random = 1;
    for (int run = 0; run < 20000; run++) {
        struct comm_init m = {
            .rank = run % WORLD, .world_size = WORLD, .n_attempts_max = 3, .timeout_ns = 100};
        struct comm_event e = {.kind = BEGIN};
        enum comm_action action = comm_init_step(&m, &e);
        int n = 0;
        while (action != COMM_FINISH && action != COMM_GIVE_UP) {
            assert_true(n++ < 1000);
            random = random * 1664525u + 1013904223u;
            bool begins = action == COMM_VOTE_NO || action == COMM_RETREAT;
            e.kind = begins ? BEGIN : (enum comm_event_kind)(ID + (random >> 16) % 4);
            e.now_ns += (random >> 20) % 8;
            e.n_yes = (random >> 24) % (WORLD + 1);
            e.n_no = (random >> 28) == 0;
            action = comm_init_step(&m, &e);
        }
        assert_int_equal(m.state, action == COMM_FINISH ? COMM_READY : COMM_FAILED);
        assert_true(m.attempt <= 3);
    }
}

static void has_words_for_everything(void **state)
{
    for (int i = 0; i < COMM_WHY_COUNT; i++)
        assert_non_null(comm_why_name((enum comm_why)i));
    for (int i = 0; i < COMM_STATE_COUNT; i++)
        assert_non_null(comm_state_name((enum comm_state)i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(converses),
        cmocka_unit_test(ends_whatever_is_said),
        cmocka_unit_test(has_words_for_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
