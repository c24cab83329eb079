/*
 * sim: runs seeds of the simulator.
 *
 *     sim [--seeds A..B | --fresh N] [--agents N] [--seconds S] [--trace | --quiet]
 *
 * Each seed is a whole history of one rendezvous and its agents. At the first violation the seed is printed
 * and run again with a trace of everything that happened, and the exit code is 1. --fresh: N seeds that begin at
 * a random number, or at the environment's CRUN_SIM_BLOCK; prints which. --seconds: stops after that time even if
 * seeds are left. --quiet: only the line about a violation.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "tests/sim/sim.h"

struct arguments {
    uint64_t first, last;
    unsigned n_agents;
    double seconds;
    bool trace, quiet;
};

struct totals {
    uint64_t n_seeds, n_events, n_generations, n_faults[FAULT_COUNT];
    double node_hours;
};

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool parse_seeds(const char *text, struct arguments *a)
{
    char *end;

    a->first = a->last = strtoull(text, &end, 10);
    if (end == text)
        return false;
    if (strncmp(end, "..", 2) == 0)
        a->last = strtoull(end + 2, &end, 10);
    return *end == 0 && a->first <= a->last;
}

/* Below 2^32, so that the number is easy to copy. */
static bool choose_block(const char *n_text, struct arguments *a)
{
    const char *block = getenv("CRUN_SIM_BLOCK");
    uint64_t n = strtoull(n_text, NULL, 10);
    uint32_t first = 0;

    if (n == 0 || ((!block || !*block) && getrandom(&first, sizeof(first), 0) != sizeof(first)))
        return false;
    a->first = block && *block ? strtoull(block, NULL, 10) : first;
    a->last = a->first + n - 1;
    printf("seeds %" PRIu64 "..%" PRIu64 " (again: CRUN_SIM_BLOCK=%" PRIu64 ")\n", a->first, a->last,
           a->first);
    (void)fflush(stdout);
    return true;
}

static bool parse_arguments(int argc, char **argv, struct arguments *a)
{
    *a = (struct arguments){.last = 299};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--trace") == 0)
            a->trace = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            a->quiet = true;
        else if (i + 1 == argc)
            return false;
        else if (strcmp(argv[i], "--seeds") == 0 && parse_seeds(argv[i + 1], a))
            i++;
        else if (strcmp(argv[i], "--fresh") == 0 && choose_block(argv[i + 1], a))
            i++;
        else if (strcmp(argv[i], "--agents") == 0 &&
                 (a->n_agents = (unsigned)strtoul(argv[i + 1], NULL, 10)) > 0)
            i++;
        else if (strcmp(argv[i], "--seconds") == 0 && (a->seconds = strtod(argv[i + 1], NULL)) > 0)
            i++;
        else
            return false;
    }
    return true;
}

static void add_totals(struct totals *t, const struct sim *sim)
{
    t->n_seeds++;
    t->n_events += sim->n_events;
    t->n_generations += sim->n_generations;
    t->node_hours += (double)sim->now_ns / 1e9 / 3600 * sim->scenario.n_agents;
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        t->n_faults[i] += sim->n_faults[i];
}

static void print_totals(const struct totals *t, double seconds)
{
    printf("%" PRIu64 " seeds, %" PRIu64 " events, %" PRIu64
           " generations, %.1f node-hours in %.1f s (%.0f events/s)\n",
           t->n_seeds, t->n_events, t->n_generations, t->node_hours, seconds, (double)t->n_events / seconds);
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        printf("%s%" PRIu64 " %s", i ? ", " : "", t->n_faults[i], sim_fault_name(i));
    putchar('\n');
}

static bool run_seed(uint64_t seed, const struct arguments *a, bool trace, struct totals *t)
{
    static struct sim sim;
    bool fine = sim_run(&sim, seed, a->n_agents, trace);

    add_totals(t, &sim);
    if (!fine)
        printf("seed %" PRIu64 ": %s\n", seed, sim.failure);
    sim_finish(&sim);
    return fine;
}

int main(int argc, char **argv)
{
    struct arguments a;
    struct totals totals = {0};
    double begin = now_s();

    if (!parse_arguments(argc, argv, &a)) {
        fputs("usage: sim [--seeds A..B | --fresh N] [--agents N] [--seconds S] [--trace | --quiet]\n",
              stderr);
        return 2;
    }
    for (uint64_t seed = a.first; seed <= a.last; seed++) {
        if (!run_seed(seed, &a, a.trace, &totals)) {
            if (!a.trace && !a.quiet)
                (void)run_seed(seed, &a, true, &(struct totals){0});
            return 1;
        }
        if (a.seconds > 0 && now_s() - begin > a.seconds)
            break;
    }
    if (!a.quiet)
        print_totals(&totals, now_s() - begin);
    return 0;
}
