/*
 * Does it pay to reduce gradients while backward computes? Two ranks or more do a fixed amount of work, layer
 * by layer, and average an array, with 1 to 16 buckets; for the MNIST network's 900,904 bytes and for 26 MB.
 *
 *     reducer_bench [RANKS [STEPS]]
 *
 * A line for each number of buckets: the lower quartile of the steps' times on rank 0, in microseconds, beside
 * the time of the work alone.
 */

#include "base/time.h"
#include "worker-runtime/crw.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 16, STEPS_MAX = 1000 };

struct bench {
    int steps;
};

static volatile float start = 1; /* what the compiler cannot know */

/* A chain of dependent additions: a fixed number of cycles, no memory. */
static void work(long n)
{
    float x = start;

    for (long i = 0; i < n; i++)
        x = x * 0.999f + 0.1f;
    start = x;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* r NULL: the work alone. */
static int run_steps(struct crw_group *group, struct crw_reducer *r, size_t count, long n_work, int steps,
                     double *ret_us)
{
    static double times[STEPS_MAX];

    for (int step = 0; step < steps; step++) {
        int result = crw_barrier(group);
        double began_us = now_us();

        for (size_t layer = LAYERS; layer > 0; layer--) {
            work(n_work / LAYERS);
            if (r)
                crw_reducer_ready(r, (layer - 1) * count / LAYERS);
        }
        if (result == 0 && r)
            result = crw_reducer_finish(r);
        if (result != 0)
            return result;
        times[step] = now_us() - began_us;
    }
    qsort(times, (size_t)steps, sizeof(*times), compare);
    *ret_us = times[steps / 4];
    return 0;
}

static int compare_buckets(struct crw_group *group, size_t n_bytes, long n_work, int steps)
{
    size_t count = n_bytes / sizeof(float);
    float *gradients;
    double alone_us, us;
    int r = crw_shared_alloc(group, n_bytes, (void **)&gradients);

    if (r == 0)
        r = run_steps(group, NULL, count, n_work, steps, &alone_us);
    for (size_t n = 1; r == 0 && n <= LAYERS; n *= 2) {
        struct crw_reducer *reducer;

        r = crw_reducer_create(group, gradients, count, (n_bytes + n - 1) / n, &reducer);
        if (r != 0)
            break;
        r = run_steps(group, reducer, count, n_work, steps, &us);
        if (r == 0 && crw_is_primary(group))
            printf("%10zu bytes, %2zu buckets: %8.0f us, work alone %8.0f us\n", n_bytes,
                   crw_reducer_n_buckets(reducer), us, alone_us);
        crw_reducer_destroy(reducer);
    }
    return r;
}

static int run(struct crw_group *group, void *data)
{
    const struct bench *bench = data;
    int r = compare_buckets(group, 900904, 1000000, bench->steps);

    if (r == 0)
        r = compare_buckets(group, 26000000, 10000000, bench->steps);
    if (r != 0)
        fprintf(stderr, "reducer_bench: %s\n", crw_error_message());
    return r;
}

int main(int argc, char **argv)
{
    int n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    struct bench bench = {.steps = argc > 2 ? atoi(argv[2]) : 40};

    if (bench.steps < 4 || bench.steps > STEPS_MAX) {
        fprintf(stderr, "usage: %s [RANKS [STEPS]]\n", argv[0]);
        return 2;
    }
    if (crw_launch(run, &bench, n_ranks) == 0)
        return 0;
    fprintf(stderr, "reducer_bench: %s\n", crw_error_message());
    return 1;
}
