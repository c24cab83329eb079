/*
 * Which member of etcd is asked, in which order, and for how long.
 */

#include <string.h>

#include "rendezvous/etcd/etcd_members.h"

#include "tests/support/c/cmocka_fixed.h"

#define MS UINT64_C(1000000)

enum { BEGIN_MS = 1000, WAITS = -1, REFUSES = -2, AWAY = 300 /* ms until a connection is given up */ };

/* What each member does with an attempt: it is silent until the attempt ends, refuses it at once, or accepts no connection. */
struct row {
    const char *name;
    size_t n, at;
    bool is_brief;
    int members[3];
    const char *order; /* the members that are asked */
    unsigned end_ms;   /* when the request has failed */
};

static const struct row rows[] = {
    {"each is asked, and then again for longer", 3, 0, true, {WAITS, WAITS, WAITS}, "01201", 2500},
    {"beginning with the one that is known to answer", 3, 2, true, {WAITS, WAITS, WAITS}, "20120", 2500},
    {"one without a connection is asked last", 3, 0, true, {AWAY, WAITS, WAITS}, "012121", 2500},
    {"two without one", 3, 0, true, {AWAY, AWAY, WAITS}, "012222", 2500},
    {"none: in turn, until the time is over", 3, 1, true, {AWAY, AWAY, AWAY}, "120120", 1800},
    {"a refusal costs no time, and two for each are enough",
     3,
     0,
     true,
     {REFUSES, REFUSES, REFUSES},
     "012012",
     0},
    {"a single one has all the time", 1, 0, true, {WAITS}, "0", 2500},
    {"a write, or a read of many keys, has all the time", 3, 1, false, {WAITS, WAITS, WAITS}, "1", 2500},
    {"which it has with the next one, too", 3, 0, false, {AWAY, WAITS, WAITS}, "01", 2500},
};

static void try_row(const struct row *row)
{
    struct etcd_members m;
    uint64_t now_ns = BEGIN_MS * MS, until_ns = 0;
    char order[16] = "";
    size_t n = 0;

    m = (struct etcd_members){.n = row->n};
    m.at = row->at;
    etcd_members_begin(&m, row->is_brief, now_ns);
    while (n + 1 < sizeof(order) && etcd_members_next(&m, now_ns, &until_ns)) {
        int does = row->members[m.at];
        uint64_t gives_up_ns = now_ns + (does > 0 ? (uint64_t)does : 0) * MS;
        bool is_away = does != WAITS && gives_up_ns <= until_ns;

        order[n++] = (char)('0' + m.at);
        order[n] = '\0';
        assert_true(until_ns > now_ns && until_ns <= (BEGIN_MS + ETCD_ALL_MS) * MS);
        now_ns = is_away ? gives_up_ns : until_ns;
        etcd_members_fail(&m, is_away, now_ns);
    }
    if (strcmp(order, row->order) != 0 || now_ns != (BEGIN_MS + row->end_ms) * MS)
        fail_msg("%s: %s, until %u ms", row->name, order, (unsigned)(now_ns / MS) - BEGIN_MS);
}

static void test_orders(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        try_row(&rows[i]);
}

/* It may be back. */
static void test_a_member_is_avoided_for_a_while(void **state)
{
    struct etcd_members m;
    uint64_t now_ns = BEGIN_MS * MS, until_ns;

    m = (struct etcd_members){.n = 2};
    etcd_members_begin(&m, true, now_ns);
    assert_true(etcd_members_next(&m, now_ns, &until_ns));
    etcd_members_fail(&m, true, now_ns);
    m.at = 0;
    now_ns += ETCD_AVOIDED_MS * MS - 1;
    etcd_members_begin(&m, true, now_ns);
    assert_true(etcd_members_next(&m, now_ns, &until_ns));
    assert_int_equal(m.at, 1);
    m.at = 0;
    assert_true(etcd_members_next(&m, now_ns + 1, &until_ns));
    assert_int_equal(m.at, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_a_member_is_avoided_for_a_while),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
