/*
 * When a follower takes the leader for lost: conversations of ticks ('t'), answers of the leader ('L') and of etcd ('e'), connections
 * that end and are opened again ('c'), and what each demands: nothing, a ping ('p'), another connection ('r'), or the leader's place ('!').
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/etcd/leader_silence.h"

#include "tests/support/c/cmocka_fixed.h"

struct row {
    const char *name;
    const char *events; /* with what is demanded behind each; spaces are for the reader */
};

static const struct row rows[] = {
    {"a leader that answers is asked at each tick", "Ltpe Ltpe Ltp"},
    {"an answer after the fifth tick of silence is in time", "Ltpe tetetr etetL e"},
    {"so is one after the sixth, before that of etcd", "Ltpe tetetr etetet Le Ltp"},
    {"lost while etcd answers", "Ltpe tetetr etetet e!"},
    {"lost, and etcd answers between two ticks", "Ltp ttetr etetet e!"},
    {"lost, and etcd answers each other tick", "Ltp tettr ter tte!"},
    /* etcd has lost its own leader with that host. */
    {"lost, and etcd answers late", "Ltp tttr tttr tter te!"},
    {"the leader is there when etcd answers late", "Ltp tttr tttr tter LtpeLtpe"},
    /* This host was cut off: etcd answers first when it is connected again. */
    {"an answer of etcd from before the cut proves nothing", "Ltpe tettr tttr ter Ltp"},
    {"nor does one after it", "Ltpe tttr tttr ter eeLtp"},
    {"a new connection is given a tick", "Ltp tttr tttr er eee te!"},
    {"an old connection is not taken for a new one", "Ltp tttr tttr ter ttttr ter te!"},
    {"silence of a leader that never answered is counted, too", "tetetr etetet e!"},
    {"after an answer the count begins again", "Ltpe tetetr etetL tpe tetetr etetet e!"},
    {"no ping is sent on a connection that has not answered", "LtpLc tttr"},
    {"no route: each connection ends when it is opened", "Ltpe ctecte ctecte cte cte!"},
    {"it stays lost, but for the moment of another connection", "Ltp tetetr etetet e! tre te!te!te! tre te!"},
};

static char letter_of(enum leader_step step)
{
    static const char letters[] = {
        [LEADER_STEP_PING] = 'p', [LEADER_STEP_REOPEN] = 'r', [LEADER_STEP_REPLACE] = '!'};

    return letters[step];
}

static void drop_spaces(const char *from, char *to)
{
    for (; *from; from++)
        if (*from != ' ')
            *to++ = *from;
    *to = '\0';
}

/* The conversation as it was, with what was demanded. */
static void play(const char *events, char *got, size_t size)
{
    struct leader_silence s;
    size_t n = 0;

    leader_silence_begin(&s);
    for (const char *at = events; *at && n + 2 < size; at++) {
        enum leader_step step = LEADER_STEP_NONE;

        if (!strchr("tLec", *at))
            continue;
        got[n++] = *at;
        if (*at == 't')
            step = leader_silence_tick(&s);
        else if (*at == 'e')
            step = leader_silence_etcd_answered(&s);
        else if (*at == 'c')
            leader_silence_reopened(&s);
        else
            leader_silence_answered(&s);
        if (step != LEADER_STEP_NONE)
            got[n++] = letter_of(step);
        if (step == LEADER_STEP_REOPEN)
            leader_silence_reopened(&s);
    }
    got[n] = '\0';
}

static void test_conversations(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char got[200], wanted[200];

        drop_spaces(rows[i].events, wanted);
        play(rows[i].events, got, sizeof(got));
        if (strcmp(got, wanted) != 0)
            fail_msg("%s: %s, and %s was wanted", rows[i].name, got, wanted);
    }
}

/* What the end of a connection shows. */
static const struct {
    int error; /* of the connection; 0: the other end has closed it */
    bool is_refused, is_silent;
} ends[] = {
    {0, false, false},           {ECONNREFUSED, true, false}, {ENETUNREACH, false, true},
    {EHOSTUNREACH, false, true}, {ENETDOWN, false, true},     {ETIMEDOUT, false, true},
    {EACCES, false, true}, /* a route that prohibits it */
    {EINVAL, false, true}, /* a black hole among the routes */
    {ECONNRESET, false, true},   {ENOMEM, false, false},      {ENOBUFS, false, false},
    {EMFILE, false, false},      {ENFILE, false, false},      {EADDRNOTAVAIL, false, false},
    {EAGAIN, false, false},
};

static void test_ends_of_connections(void **state)
{
    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
        struct leader_silence s;

        leader_silence_begin(&s);
        if (leader_silence_ended(&s, -ends[i].error) != ends[i].is_refused ||
            s.n_silent != (ends[i].is_silent ? 1 : 0))
            fail_msg("%s: %u ticks of silence", strerror(ends[i].error), s.n_silent);
    }
}

/* However often this process lacks descriptors, the leader is not replaced for it. */
static void test_a_lack_of_descriptors_replaces_no_leader(void **state)
{
    struct leader_silence s;

    leader_silence_begin(&s);
    leader_silence_answered(&s);
    for (int i = 0; i < 100; i++) {
        leader_silence_reopened(&s);
        assert_false(leader_silence_ended(&s, -EMFILE));
        assert_int_equal(leader_silence_etcd_answered(&s), LEADER_STEP_NONE);
    }
}

/* What ends before it has answered at a tick is tried again soon, and then more seldom. */
static void test_pauses_between_connections(void **state)
{
    static const unsigned pauses[] = {0, 5, 10, 20, 40, 80, 160, LEADER_TICK_MS, LEADER_TICK_MS};
    struct leader_silence s;

    leader_silence_begin(&s);
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < sizeof(pauses) / sizeof(*pauses); i++) {
            (void)leader_silence_ended(&s, 0);
            assert_int_equal(leader_silence_pause_ms(&s, 0), pauses[i]);
            leader_silence_reopened(&s);
            leader_silence_answered(&s); /* it is closed again before the next tick */
        }
        assert_int_equal(leader_silence_pause_ms(&s, -ECONNREFUSED), LEADER_TICK_MS);
        assert_int_equal(leader_silence_tick(&s), LEADER_STEP_PING);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversations),
                                       cmocka_unit_test(test_ends_of_connections),
                                       cmocka_unit_test(test_a_lack_of_descriptors_replaces_no_leader),
                                       cmocka_unit_test(test_pauses_between_connections)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
