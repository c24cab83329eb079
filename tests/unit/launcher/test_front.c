/* The front of a job on several hosts: events in, actions out. */

#include "launcher/front/front.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tests/support/c/cmocka_fixed.h"

enum { HOSTS = 3, STEPS = 16, LOG_SIZE = 512 };

/*
 * A step as a word: b begin; gN greeted, cN copy, lN lost, xN refused (host N); nN=S silent for S seconds; j=N number of joined agents; rN=CODE result;
 * sMS SIGINT at MS; p SIGUSR1; tMS tick at MS. An
 * action as a word: LN launch, SN=SIGNAL, CN close, say, end, fin=CODE.
 */
struct front_case {
    const char *name;
    unsigned min_nodes;
    const char *steps, *actions;
    unsigned max_nodes; /* 0: HOSTS */
};

static const struct front_case cases[] = {
    {"success", 3, "b g0 g1 g2 r0=0 r1=0 r2=0", "L0 L1 L2 fin=0"},
    {"a copy is sent", 3, "b c0 g0 g1 g2 r0=0 r1=0 r2=0", "L0 L1 L2 fin=0"},
    {"code of the first that failed", 3, "b g0 g1 g2 r1=7 r0=1 r2=1", "L0 L1 L2 end fin=7"},
    {"an agent fails, and the job goes on", 2, "b g0 g1 g2 r1=137 r0=0 r2=0", "L0 L1 L2 fin=0"},
    {"an agent fails after a signal", 1, "b g0 g1 g2 s0 r1=7 r0=0 r2=0", "L0 L1 L2 S0=2 S1=2 S2=2 fin=7"},
    {"one cannot be reached, and is needed", 3, "b g0 l1 r0=1 t999 t1000", "L0 L1 L2 say end C2 fin=1"},
    {"two cannot be reached", 3, "b g0 l1 l2 r0=1", "L0 L1 L2 say end say fin=1"},
    {"a host greets too late", 3, "b g0 l1 g2 r0=1", "L0 L1 L2 say end C2 fin=1"},
    {"one cannot be reached, and is not needed", 2, "b g0 l1 g2 r0=0 r2=0", "L0 L1 L2 say fin=0"},
    {"none can be reached", 2, "b l0 l1 l2", "L0 L1 L2 say say end say fin=1"},
    {"a running host is lost, and is needed", 3, "b g0 g1 g2 l2 r0=1 r1=1", "L0 L1 L2 say end fin=1"},
    {"a running host is lost, a spare is there", 2, "b g0 g1 g2 l2 r0=0 r1=0", "L0 L1 L2 say fin=0"},
    {"the others end well beside the lost one", 3, "b g0 g1 g2 l2 r0=0 r1=0", "L0 L1 L2 say end fin=1"},
    {"a lost host has no result", 2, "b g0 g1 g2 l2 r2=9 r0=0 r1=0", "L0 L1 L2 say fin=0"},
    {"agents do not end by themselves", 3, "b g0 g1 g2 l2 t99 t100 t199 t200",
     "L0 L1 L2 say end S0=15 S1=15 C0 C1 fin=1"},
    {"interrupt", 3, "b g0 g1 g2 s0 r0=130 r1=130 r2=130", "L0 L1 L2 S0=2 S1=2 S2=2 fin=130"},
    {"interrupt, and the workers succeed", 3, "b g0 g1 g2 s0 r0=0 r1=0 r2=0",
     "L0 L1 L2 S0=2 S1=2 S2=2 fin=0"},
    {"interrupt during the start", 3, "b g0 c1 s0 r0=1", "L0 L1 L2 C1 C2 S0=2 fin=1"},
    {"interrupt before any agent", 3, "b s0", "L0 L1 L2 say C0 C1 C2 fin=130"},
    {"interrupt twice", 3, "b g0 g1 g2 s0 s1050 r0=130 r1=130 r2=130",
     "L0 L1 L2 S0=2 S1=2 S2=2 S0=2 S1=2 S2=2 fin=130"},
    {"interrupt thrice", 3, "b g0 g1 g2 s0 r0=130 s1050 s2100",
     "L0 L1 L2 S0=2 S1=2 S2=2 S1=2 S2=2 C1 C2 fin=130"},
    {"interrupted hosts that are lost are no news", 3, "b g0 g1 g2 s0 l0 l1 l2",
     "L0 L1 L2 S0=2 S1=2 S2=2 fin=130"},
    {"signals of one request", 3, "b g0 g1 g2 s0 s1049 s1050 s2099 r0=1 r1=1 r2=1",
     "L0 L1 L2 S0=2 S1=2 S2=2 S0=2 S1=2 S2=2 fin=1"},
    {"signal for the workers", 3, "b g0 p g1", "L0 L1 L2 S0=10"},
    {"an agent cannot be started", 3, "b g0 x0 t1000", "L0 L1 L2 say end C1 C2 fin=1"},
    {"a launch command hangs", 2, "b g0 g1 t119999 t120000 r0=0 r1=0", "L0 L1 L2 say C2 say fin=0"},
    {"a copy takes longer", 2, "b g0 g1 c2 t120000 t599999 t600000", "L0 L1 L2 say say C2 say"},
    {"spares come later", 1, "b g0 g1 t4999 p t5000 g2 r0=0 r1=0 r2=0", "L0 L1 S0=10 S1=10 L2 fin=0", 2},
    {"a spare replaces a host", 2, "b g0 l1 g2 r0=0 r2=0", "L0 L1 say L2 fin=0", 2},
    {"a spare replaces an agent", 2, "b g0 g1 r0=1 t999 t1000 g2 r1=0 r2=0", "L0 L1 L2 fin=0", 2},
    {"a job ends before its spares", 1, "b g0 g1 r0=7 r1=1", "L0 L1 fin=7", 2},
    {"a job ends before a host is there", 1, "b g0 g1 r0=0 r1=0", "L0 L1 L2 C2 fin=0"},
    {"a silent host is named while the job ends", 3,
     "b g0 g1 g2 n1=2 t9 s10 n1=1 t11 n1=2 t12 n1=4 t13 r0=1 r1=1 r2=1", "L0 L1 L2 S0=2 S1=2 S2=2 say fin=1"},
    {"a silent host is named behind a lost one", 3, "b g0 g1 g2 l2 n1=2 t9 r0=1 r1=1",
     "L0 L1 L2 say end say fin=1"},
    {"nothing after the end", 3, "b g0 g1 g2 r0=0 r1=0 r2=0 s0 l0 t999999", "L0 L1 L2 fin=0"},
};

static struct front_event read_event(const char *word)
{
    static const char kinds[] = "bcgnrlxjspt";
    struct front_event e = {.kind = (enum front_event_kind)(strchr(kinds, word[0]) - kinds), .text = "why"};
    unsigned number = 0;

    if (sscanf(word + 1, "%u=%d", &number, &e.value) < 1)
        (void)sscanf(word + 1, "=%d", &e.value);
    if (e.kind == FRONT_EVENT_TICK || e.kind == FRONT_EVENT_SIGNAL)
        e.now_ms = number;
    else
        e.host = number;
    if (e.kind == FRONT_EVENT_SIGNAL || e.kind == FRONT_EVENT_PASS)
        e.value = e.kind == FRONT_EVENT_SIGNAL ? SIGINT : SIGUSR1;
    return e;
}

static void write_actions(const struct front *f, char log[LOG_SIZE])
{
    for (size_t i = 0; i < f->n_actions; i++) {
        const struct front_action *a = &f->actions[i];
        size_t n = strlen(log);
        const char *blank = n ? " " : "";
        static const char *const names[] = {"L%u", "S%u=%d", "C%u", "say", "end"};

        n += (size_t)snprintf(log + n, LOG_SIZE - n, "%s", blank);
        if (a->kind == FRONT_DO_FINISH)
            (void)snprintf(log + n, LOG_SIZE - n, "fin=%d", a->value);
        else if (a->kind == FRONT_DO_SIGNAL)
            (void)snprintf(log + n, LOG_SIZE - n, "S%u=%d", a->host, a->value);
        else if (a->kind == FRONT_DO_LAUNCH || a->kind == FRONT_DO_CLOSE)
            (void)snprintf(log + n, LOG_SIZE - n, "%c%u", names[a->kind][0], a->host);
        else
            (void)snprintf(log + n, LOG_SIZE - n, "%s", names[a->kind]);
    }
}

static void run_case(const struct front_case *c)
{
    static const char *const names[HOSTS] = {"a", "b", "c"};
    const struct front_config config = {.n_hosts = HOSTS,
                                        .min_nodes = c->min_nodes,
                                        .max_nodes = c->max_nodes ? c->max_nodes : HOSTS,
                                        .grace_ms = 100,
                                        .exit_code_of_worker = true};
    char log[LOG_SIZE] = "", steps[LOG_SIZE], *rest = steps;
    struct front f;

    assert_int_equal(front_init(&f, &config, names), 0);
    (void)snprintf(steps, sizeof(steps), "%s", c->steps);
    for (char *word; (word = strsep(&rest, " "));) {
        front_step(&f, read_event(word));
        write_actions(&f, log);
    }
    if (strcmp(log, c->actions) != 0)
        fail_msg("%s: %s instead of %s", c->name, log, c->actions);
    front_finish(&f);
}

static void test_cases(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        run_case(&cases[i]);
}

static void test_sentences(void **state)
{
    static const char *const names[HOSTS] = {"a", "b", "c"};
    const struct front_config config = {
        .n_hosts = HOSTS, .min_nodes = 2, .max_nodes = HOSTS, .grace_ms = 100};
    struct front f;

    assert_int_equal(front_init(&f, &config, names), 0);
    front_step(&f, read_event("b"));
    front_step(&f, read_event("t9999"));
    assert_int_equal(f.n_actions, 0);
    front_step(&f, read_event("t10000"));
    assert_int_equal(f.n_actions, 1);
    assert_string_equal(front_why(&f), "waiting for 3 of 3 hosts: a, b, c");
    front_step(&f, read_event("t19999"));
    assert_int_equal(f.n_actions, 0);
    front_step(&f, read_event("l1"));
    assert_string_equal(front_why(&f), "host b could not be started: why; the job goes on without it");
    front_step(&f, read_event("g0"));
    front_step(&f, read_event("g2"));
    front_step(&f, read_event("l2"));
    assert_string_equal(front_why(&f), "host c was lost: why; the job cannot run without it");
    front_step(&f, read_event("r0=1"));
    assert_string_equal(f.cause, "host c was lost: why; the job cannot run without it");
    front_finish(&f);
    assert_int_equal(front_init(&f, &config, names), 0);
    front_step(&f, read_event("b"));
    front_step(&f, read_event("g0"));
    front_step(&f, read_event("x0"));
    assert_string_equal(front_why(&f), "host a could not be started: why; the job goes on without it");
    char words[2 * FRONT_REASON_SIZE];
    for (size_t i = 0; i < sizeof(words); i++)
        words[i] = "word "[i % 5];
    words[sizeof(words) - 1] = 0;
    front_step(&f, (struct front_event){.kind = FRONT_EVENT_LOST, .host = 1, .text = words});
    assert_non_null(strstr(front_why(&f), " word ...; the job cannot run without it"));
    front_finish(&f);
}

/* The next host starts when another one is through. */
static void test_starts_are_bounded(void **state)
{
    enum { MANY = 300 };
    static const char *names[MANY];
    const struct front_config config = {.n_hosts = MANY, .min_nodes = 1, .max_nodes = MANY};
    struct front f;

    for (size_t i = 0; i < MANY; i++)
        names[i] = "host";
    assert_int_equal(front_init(&f, &config, names), 0);
    front_step(&f, read_event("b"));
    assert_int_equal(f.n_actions, FRONT_STARTING_MAX);
    front_step(&f, read_event("c5"));
    assert_int_equal(f.n_actions, 0);
    front_step(&f, read_event("g5"));
    assert_int_equal(f.n_actions, 1);
    assert_int_equal(f.actions[0].host, FRONT_STARTING_MAX);
    front_step(&f, read_event("l6"));
    assert_int_equal(f.n_actions, 2);
    assert_int_equal(f.actions[1].host, FRONT_STARTING_MAX + 1);
    front_finish(&f);
}

static void test_agents_hold_starts_until_they_join(void **state)
{
    enum { MANY = FRONT_STARTING_MAX + 3 };
    static const char *names[MANY];
    const struct front_config config = {
        .n_hosts = MANY, .min_nodes = 1, .max_nodes = MANY, .hosts_rendezvous = true};
    static const struct {
        const char *step;
        size_t n_actions;
    } steps[] = {{"g5", 0},     {"g6", 0},     {"j=1", 1},    {"j=1", 0},
                 {"t10000", 1}, {"t20000", 1}, {"t29999", 0}, {"t30000", 1}};
    struct front f;

    for (size_t i = 0; i < MANY; i++)
        names[i] = "host";
    assert_int_equal(front_init(&f, &config, names), 0);
    front_step(&f, read_event("b"));
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        front_step(&f, read_event(steps[i].step));
        if (f.n_actions != steps[i].n_actions)
            fail_msg("%s: %zu actions", steps[i].step, f.n_actions);
    }
    front_finish(&f);
}

static void test_silent_hosts_are_named(void **state)
{
    static const char *const names[HOSTS] = {"a", "b", "c"};
    const struct front_config config = {.n_hosts = HOSTS, .min_nodes = 1, .max_nodes = HOSTS};
    static const char *const steps[] = {"b", "g0", "g1", "g2", "n0=4", "s0", "t1"};
    struct front f;

    assert_int_equal(front_init(&f, &config, names), 0);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        front_step(&f, read_event(steps[i]));
    assert_string_equal(front_why(&f), "waiting for host a, which has not answered for 4 s");
    front_step(&f, read_event("n1=2"));
    front_step(&f, read_event("n2=2"));
    front_step(&f, read_event("t2"));
    assert_string_equal(front_why(&f), "waiting for hosts b, c, which have not answered for 2 s");
    front_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_starts_are_bounded),
        cmocka_unit_test(test_agents_hold_starts_until_they_join),
        cmocka_unit_test(test_silent_hosts_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
