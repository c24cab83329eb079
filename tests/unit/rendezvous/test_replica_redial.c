/*
 * When a follower connects to the leader again: conversations of attempts, and the pause behind each.
 */

#include <stdio.h>
#include <string.h>

#include "rendezvous/relay/replica_redial.h"

#include "tests/support/c/cmocka_fixed.h"

/* Letters of attempts. */
static const struct {
    char letter;
    struct replica_attempt attempt;
} kinds[] = {
    {'n', {.is_connected = false, .lasted_ms = 0}},                         /* not reached */
    {'r', {.is_connected = true, .lasted_ms = 3}},                          /* refused */
    {'h', {.is_connected = true, .lasted_ms = 5000}},                       /* no TLS handshake in time */
    {'b', {.is_connected = true, .has_served = true, .is_broken = true}},   /* a message is not decoded */
    {'B', {.is_connected = true, .is_broken = true, .lasted_ms = 3600000}}, /* the same, later */
    {'s', {.is_connected = true, .has_served = true, .lasted_ms = 3}},
    {'i', {.is_connected = true, .lasted_ms = 3600000}}, /* there was nothing to be served */
};

static const struct {
    const char *name;
    const char *attempts; /* '*': another leader */
    const char *pauses;   /* behind each, in ms; '!': it is logged */
} rows[] = {
    {"a leader that is not reached", "nnnnnnnn", "200 200 200 200 200 200 200 200 "},
    {"a leader that refuses", "rrrrrrrrr", "200 400 800! 1600 3200 6400 10000 10000 10000 "},
    {"one of another key", "hhhh", "200 400 800! 1600 "},
    {"one whose messages are not decoded", "bbBb", "200 400 800! 1600 "},
    {"a leader that has served", "ssrs", "200 200 200 200 "},
    {"one that serves again", "rrrrsrrr", "200 400 800! 1600 200 200 400 800! "},
    {"a connection without messages", "rriiii", "200 400 200 200 200 200 "},
    {"one that is not reached between two refusals", "rrnrr", "200 400 200 800! 1600 "},
    {"another leader", "rrrr*rrr", "200 400 800! 1600 200 400 800! "},
};

static const struct replica_attempt *find_kind(char letter)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (kinds[i].letter == letter)
            return &kinds[i].attempt;
    fail_msg("no attempt has the letter %c", letter);
    return NULL;
}

static void test_pauses(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct replica_redial redial = {0};
        char got[200] = "";
        size_t n = 0;
        uint64_t now_ms = 1000;

        for (const char *at = rows[i].attempts; *at; at++) {
            bool is_logged;

            if (*at == '*') {
                replica_redial_reset(&redial);
                assert_int_equal(redial.due_ms, 0);
                continue;
            }
            is_logged = replica_redial_ended(&redial, find_kind(*at), now_ms);
            n += (size_t)snprintf(got + n, sizeof(got) - n, "%d%s ", (int)(redial.due_ms - now_ms),
                                  is_logged ? "!" : "");
            now_ms = redial.due_ms;
        }
        if (strcmp(got, rows[i].pauses) != 0)
            fail_msg("%s: %s", rows[i].name, got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pauses)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
