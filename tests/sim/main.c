/*
 * sim: runs seeds of the simulator.
 *
 *     sim [--etcd] [--seeds A..B | --fresh N] [--agents N] [--seconds S] [--jobs N] [--trace | --quiet]
 *
 * Each seed is a whole history of a rendezvous and its agents; --etcd: the rendezvous is several crunds in front of one etcd, else
 * one with a directory. At the first violation the seed is printed
 * and run again with a trace of everything that happened, and the exit code is 1. --fresh: N seeds that begin at
 * a random number, or at the environment's CRUN_SIM_BLOCK; prints which. --seconds: stops after that time even if
 * seeds are left. --jobs: in so many processes, each of which stops at its first violation. --quiet: only the line about a
 * violation.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/sim.h"

struct arguments {
    uint64_t first, last;
    unsigned n_agents, n_processes;
    double seconds;
    bool has_etcd, trace, quiet;
};

struct totals {
    uint64_t n_seeds, n_events, n_generations, n_terms, n_faults[FAULT_COUNT];
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
    *a = (struct arguments){.last = 299, .n_processes = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--trace") == 0)
            a->trace = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            a->quiet = true;
        else if (strcmp(argv[i], "--etcd") == 0)
            a->has_etcd = true;
        else if (i + 1 == argc)
            return false;
        else if (strcmp(argv[i], "--seeds") == 0 && parse_seeds(argv[i + 1], a))
            i++;
        else if (strcmp(argv[i], "--fresh") == 0 && choose_block(argv[i + 1], a))
            i++;
        else if (strcmp(argv[i], "--agents") == 0 &&
                 (a->n_agents = (unsigned)strtoul(argv[i + 1], NULL, 10)) > 0)
            i++;
        else if (strcmp(argv[i], "--jobs") == 0 &&
                 (a->n_processes = (unsigned)strtoul(argv[i + 1], NULL, 10)) > 0)
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
    t->n_terms += sim->n_terms;
    t->node_hours += (double)sim->now_ns / 1e9 / 3600 * sim->scenario.n_agents;
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        t->n_faults[i] += sim->n_faults[i];
}

static void print_totals(const struct totals *t, double seconds)
{
    printf("%" PRIu64 " seeds, %" PRIu64 " events, %" PRIu64
           " generations, %.1f node-hours in %.1f s (%.0f events/s)\n",
           t->n_seeds, t->n_events, t->n_generations, t->node_hours, seconds, (double)t->n_events / seconds);
    if (t->n_terms > 0)
        printf("%" PRIu64 " terms\n", t->n_terms);
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        if (t->n_terms > 0 || i < FAULT_COUNT_SINGLE || i >= FAULT_COUNT_DRAWN)
            printf("%s%" PRIu64 " %s", i ? ", " : "", t->n_faults[i], sim_fault_name(i));
    putchar('\n');
}

static bool run_seed(uint64_t seed, const struct arguments *a, bool trace, struct totals *t)
{
    static struct sim sim;
    bool fine = sim_run(&sim, seed, a->n_agents, a->has_etcd, trace);

    add_totals(t, &sim);
    if (!fine)
        printf("seed %" PRIu64 ": %s\n", seed, sim.failure);
    sim_finish(&sim);
    return fine;
}

/* Every n-th seed from the given one on; false: one of them failed. */
static bool run_seeds(const struct arguments *a, uint64_t first, struct totals *t)
{
    double begin = now_s();

    for (uint64_t seed = first; seed <= a->last; seed += a->n_processes) {
        if (!run_seed(seed, a, a->trace, t)) {
            if (!a->trace && !a->quiet)
                (void)run_seed(seed, a, true, &(struct totals){0});
            return false;
        }
        if (a->seconds > 0 && now_s() - begin > a->seconds)
            break;
    }
    return true;
}

static void sum_totals(struct totals *t, const struct totals *more)
{
    t->n_seeds += more->n_seeds;
    t->n_events += more->n_events;
    t->n_generations += more->n_generations;
    t->n_terms += more->n_terms;
    t->node_hours += more->node_hours;
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        t->n_faults[i] += more->n_faults[i];
}

/* Does not return. Its totals fit into a pipe, so the parent may read them late. */
static void run_child(const struct arguments *a, uint64_t first, int out)
{
    struct totals t = {0};
    bool fine = run_seeds(a, first, &t);

    fine = write(out, &t, sizeof(t)) == sizeof(t) && fine;
    exit(fine ? 0 : 1);
}

static bool run_processes(const struct arguments *a, struct totals *t)
{
    struct totals more;
    int ends[2], status;
    bool fine = true;

    if (a->n_processes == 1)
        return run_seeds(a, a->first, t);
    if (pipe(ends) < 0)
        return false;
    (void)fflush(stdout);
    for (unsigned i = 0; i < a->n_processes; i++) {
        pid_t pid = fork();

        if (pid == 0)
            run_child(a, a->first + i, ends[1]);
        fine = fine && pid > 0;
    }
    (void)close(ends[1]);
    while (read(ends[0], &more, sizeof(more)) == sizeof(more))
        sum_totals(t, &more);
    while (wait(&status) > 0)
        fine = fine && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    (void)close(ends[0]);
    return fine;
}

int main(int argc, char **argv)
{
    struct arguments a;
    struct totals totals = {0};
    double begin = now_s();
    bool fine;

    if (!parse_arguments(argc, argv, &a)) {
        fputs(
            "usage: sim [--etcd] [--seeds A..B | --fresh N] [--agents N] [--seconds S] [--jobs N] "
            "[--trace | --quiet]\n",
            stderr);
        return 2;
    }
    fine = run_processes(&a, &totals);
    if (fine && !a.quiet)
        print_totals(&totals, now_s() - begin);
    return fine ? 0 : 1;
}
