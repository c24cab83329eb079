/*
 * crw-perf: measures a collective for a list of sizes and prints a line for each on rank 0.
 *
 * For each size: the collective once on known data, every element of the result compared on every rank; then
 * as often as was asked for, in batches that all ranks begin together; then once more on other data. What is
 * printed is the median of the batches on the slowest rank.
 *
 * Ways it ends: 0; 1 when a result was wrong or the group failed, with a sentence; 2 for a wrong command
 * line; 143 when it was asked to stop.
 */

#include "base/time.h"
#include "worker-runtime/perf/perf.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_STOPPED = 128 + SIGTERM };

enum {
    BATCHES_MIN = 5,
    BATCHES_MAX = 200,
    BATCH_US = 1000, /* so that the clock and the barrier do not count */
    MEASURE_US = 300000,
    PROBES = 5, /* calls from whose time the number of calls of a batch follows */
};

struct perf {
    const struct perf_options *options;
    struct perf_run run;
};

enum { MEDIAN, MEAN, TIME_COUNT };

struct result_line {
    double times_us[TIME_COUNT];
    int64_t n_wrong;
};

/* ---- measuring ---- */

/* The time of one call. */
static int run_batch(const struct perf *p, int n_calls, double *ret_us)
{
    double began_us;
    int r = crw_barrier(p->run.group);

    began_us = now_us();
    for (int i = 0; r == 0 && i < n_calls; i++)
        r = p->options->collective->call(&p->run);
    *ret_us = (now_us() - began_us) / n_calls;
    return r;
}

/* How many batches of how many calls: rank 0's choice, so that all do the same. */
struct measure_plan {
    int32_t n_batches, n_calls;
};

static struct measure_plan plan_for(const struct perf_options *options, double once_us)
{
    struct measure_plan plan = {.n_batches = options->iters < BATCHES_MIN ? options->iters : BATCHES_MIN};
    double n;

    if (options->iters > 0) {
        plan.n_calls = options->iters / plan.n_batches; /* the rest of up to 4 calls is left out */
        return plan;
    }
    plan.n_calls = once_us < BATCH_US ? (int32_t)(BATCH_US / (once_us + 0.01)) + 1 : 1;
    n = MEASURE_US / (once_us * plan.n_calls + 0.01);
    plan.n_batches = n < BATCHES_MIN ? BATCHES_MIN : n > BATCHES_MAX ? BATCHES_MAX : (int32_t)n;
    return plan;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double mean_of(const double *values, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum / n;
}

/* On the slowest rank. */
static int measure(const struct perf *p, double ret_us[TIME_COUNT])
{
    double batches[BATCHES_MAX], once_us;
    struct measure_plan plan;
    int r = 0;

    for (int i = 0; r == 0 && i < p->options->warmup; i++)
        r = p->options->collective->call(&p->run);
    if (r == 0)
        r = run_batch(p, PROBES, &once_us);
    if (r)
        return r;
    plan = plan_for(p->options, once_us);
    r = crw_broadcast(p->run.group, &plan, sizeof(plan), 0);
    for (int i = 0; r == 0 && i < plan.n_batches; i++)
        r = run_batch(p, plan.n_calls, &batches[i]);
    if (r)
        return r;
    qsort(batches, (size_t)plan.n_batches, sizeof(*batches), compare);
    ret_us[MEDIAN] = batches[plan.n_batches / 2];
    ret_us[MEAN] = mean_of(batches, plan.n_batches);
    return crw_all_reduce(p->run.group, ret_us, TIME_COUNT, CRW_F64, CRW_MAX);
}

/* Adds to *n_wrong. All ranks come even if one found something. */
static int check_result(const struct perf *p, unsigned seed, int64_t *n_wrong)
{
    const struct perf_collective *c = p->options->collective;
    int64_t here;
    int r;

    c->fill(&p->run, seed);
    r = crw_barrier(p->run.group); /* a rank that fills late must not spoil what another one brought */
    if (r == 0)
        r = c->call(&p->run);
    if (r)
        return r;
    here = (int64_t)c->count_wrong(&p->run, seed);
    r = crw_all_reduce(p->run.group, &here, 1, CRW_I64, CRW_SUM);
    *n_wrong += here;
    return r;
}

/* Zeros in between: sums of sums would end as infinity. */
static int run_size(const struct perf *p, struct result_line *ret)
{
    struct result_line line = {0};
    int r = check_result(p, 1, &line.n_wrong);

    memset(p->run.in, 0, p->run.bytes);
    memset(p->run.out, 0, p->run.bytes);
    if (r == 0)
        r = measure(p, line.times_us);
    if (r == 0)
        r = check_result(p, 2, &line.n_wrong);
    *ret = line;
    return r;
}

/* ---- printing ---- */

static void print_head(const struct perf *p)
{
    if (p->run.rank != 0 || p->options->json)
        return;
    printf("# %s, %d rank%s, %s memory\n", p->options->collective->name, p->run.n_ranks,
           p->run.n_ranks == 1 ? "" : "s", p->options->private_memory ? "private" : "shared");
    printf("#%13s %12s %12s %12s %12s\n", "bytes", "time_us", "algbw", "busbw", "checked");
    printf("#%13s %12s %12s %12s %12s\n", "", "(us)", "(GB/s)", "(GB/s)", "(wrong)");
}

static void print_line(const struct perf *p, const struct result_line *line)
{
    double algbw = (double)p->run.bytes / line->times_us[MEDIAN] / 1e3;
    double busbw = algbw * p->options->collective->bus_factor(p->run.n_ranks);

    if (p->run.rank != 0)
        return;
    if (p->options->json)
        printf(
            "{\"collective\": \"%s\", \"ranks\": %d, \"memory\": \"%s\", \"bytes\": %zu, \"time_us\": %.3f, "
            "\"mean_us\": %.3f, \"algbw\": %.6g, \"busbw\": %.6g, \"checked\": %lld}\n",
            p->options->collective->name, p->run.n_ranks, p->options->private_memory ? "private" : "shared",
            p->run.bytes, line->times_us[MEDIAN], line->times_us[MEAN], algbw, busbw,
            (long long)line->n_wrong);
    else
        printf("%14zu %12.2f %12.2f %12.2f %12lld\n", p->run.bytes, line->times_us[MEDIAN], algbw, busbw,
               (long long)line->n_wrong);
    (void)fflush(stdout); /* each line appears at once; run_sizes() looks for errors */
}

/* ---- a rank ---- */

static int allocate_buffers(struct perf *p)
{
    size_t largest = 0;
    int r;

    for (int i = 0; i < p->options->n_sizes; i++) {
        size_t bytes = perf_round_size(p->options->collective, p->options->bytes[i], p->run.n_ranks);

        largest = bytes > largest ? bytes : largest;
    }
    if (p->options->private_memory) {
        p->run.in = calloc(1, largest + 1);
        p->run.out = calloc(1, largest + 1);
        return p->run.in && p->run.out ? 0 : -ENOMEM;
    }
    r = crw_shared_alloc(p->run.group, largest, &p->run.in);
    return r == 0 ? crw_shared_alloc(p->run.group, largest, &p->run.out) : r;
}

/* Collective: ranks may receive the request at different times, and all have to end together. */
static int is_stop_requested(struct crw_group *group, bool *ret_stopped)
{
    int32_t stop = crw_stop_requested(group);
    int r = crw_all_reduce(group, &stop, 1, CRW_I32, CRW_MAX);

    *ret_stopped = stop != 0;
    return r;
}

/* The exit code; -1: a sentence is there to be printed. */
static int run_sizes(struct perf *p)
{
    int64_t n_wrong = 0;

    print_head(p);
    for (int i = 0; i < p->options->n_sizes; i++) {
        struct result_line line;
        bool stopped;

        p->run.bytes = perf_round_size(p->options->collective, p->options->bytes[i], p->run.n_ranks);
        if (is_stop_requested(p->run.group, &stopped) != 0)
            return -1;
        if (stopped)
            return EXIT_STOPPED;
        if (run_size(p, &line) != 0)
            return -1;
        print_line(p, &line);
        n_wrong += line.n_wrong;
    }
    return n_wrong > 0 || ferror(stdout) ? 1 : 0;
}

static int run_rank(struct crw_group *group, void *data)
{
    struct perf p = {
        .options = data,
        .run = {.group = group, .rank = crw_rank(group), .n_ranks = crw_world_size(group)},
    };
    int code;

    if (p.run.n_ranks < p.options->collective->min_ranks) {
        fprintf(stderr,
                "crw-perf: %s needs at least %d ranks; start it under crun --nproc-per-node=2, or with "
                "--ranks 2\n",
                p.options->collective->name, p.options->collective->min_ranks);
        return 2;
    }
    if (crw_stop_enable()) {
        fprintf(stderr, "crw-perf: rank %d: %s\n", p.run.rank, crw_error_message());
        return 1;
    }
    if (allocate_buffers(&p) != 0) {
        fprintf(stderr, "crw-perf: rank %d: no memory for the buffers%s%s\n", p.run.rank,
                p.options->private_memory ? "" : ": ", p.options->private_memory ? "" : crw_error_message());
        return 1;
    }
    code = run_sizes(&p);
    if (code == -1)
        fprintf(stderr, "crw-perf: rank %d: %s\n", p.run.rank, crw_error_message());
    if (p.options->private_memory) {
        free(p.run.in);
        free(p.run.out);
    }
    return code == -1 ? 1 : code;
}

/* --ranks: no launcher started this process, so it starts the ranks itself. */
static int run_launched(struct perf_options *options)
{
    if (crw_launch(run_rank, options, options->n_ranks) == 0)
        return 0;
    fprintf(stderr, "crw-perf: %s\n", crw_error_message());
    return 1;
}

static int run_here(struct perf_options *options)
{
    struct crw_group *group;
    int code;

    if (crw_init(NULL, 0, 1, &group) != 0) {
        fprintf(stderr, "crw-perf: %s\n", crw_error_message());
        return 1;
    }
    code = run_rank(group, options);
    if (code == 0 && crw_finish(group) != 0) {
        fprintf(stderr, "crw-perf: %s\n", crw_error_message());
        return 1;
    }
    if (code != 0)
        crw_group_destroy(group);
    return code;
}

int main(int argc, char **argv)
{
    struct perf_options options;
    struct crw_env env;

    int code = perf_options_parse(argv, &options);
    if (code >= 0)
        return code;
    if (options.n_ranks > 0 && crw_env_read(&env) == 0 && env.launched) {
        fprintf(stderr,
                "crw-perf: --ranks starts ranks, but RANK is set and this is one already; leave out one of "
                "both\n");
        return 2;
    }
    return options.n_ranks > 0 ? run_launched(&options) : run_here(&options);
}
