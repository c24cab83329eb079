/*
 * Data-parallel training with libcrw, from beginning to end in one page: fits y = 3 x + 1 by gradient
 * descent. Every rank takes its share of the samples, the gradients are averaged over all ranks, and all
 * of them take the same step.
 *
 *     make
 *     crun --standalone --nproc-per-node=2 ./average     # or torchrun --no-python
 *     ./average                                          # alone: a world of one
 *     ./average 4                                        # starts four workers of its own
 */

#include <crw.h>

#include <stdio.h>
#include <stdlib.h>

enum { N_SAMPLES = 1000, BATCH = 25, EPOCHS = 8 };

static const double LEARNING_RATE = 0.2;

/* What the ranks share, so that it is averaged where it lies. */
struct gradient {
    double slope, offset, loss;
};

static double input_of(uint32_t sample)
{
    return (double)sample / N_SAMPLES;
}

/* Of this rank's samples, the mean. */
static void compute(const uint32_t *samples, size_t n, double slope, double offset, struct gradient *g)
{
    *g = (struct gradient){0};
    for (size_t i = 0; i < n; i++) {
        double x = input_of(samples[i]), error = slope * x + offset - (3 * x + 1);

        g->slope += 2 * error * x / (double)n;
        g->offset += 2 * error / (double)n;
        g->loss += error * error / (double)n;
    }
}

static int fit_line(struct crw_group *group, void *data)
{
    struct crw_sampler_options options = {
        .n_samples = N_SAMPLES,
        .rank = crw_rank(group),
        .world_size = crw_world_size(group),
        .shuffle = true,
    };
    double slope = 0, offset = 0;
    struct crw_sampler *sampler;
    struct gradient *g;
    void *shared;
    int r;

    r = crw_shared_alloc(group, sizeof(*g), &shared);
    if (r == 0)
        r = crw_sampler_create(&options, &sampler);
    if (r)
        goto failed;
    g = shared;
    for (uint64_t epoch = 0; r == 0 && epoch < EPOCHS; epoch++) {
        uint32_t samples[BATCH];
        size_t n;

        r = crw_sampler_start(sampler, epoch, 0);
        while (r == 0 && (n = crw_sampler_next(sampler, samples, BATCH)) > 0) {
            compute(samples, n, slope, offset, g);
            r = crw_all_reduce(group, g, sizeof(*g) / sizeof(double), CRW_F64, CRW_AVG);
            slope -= LEARNING_RATE * g->slope;
            offset -= LEARNING_RATE * g->offset;
        }
        if (r == 0 && crw_is_primary(group))
            printf("epoch %d: y = %.3f x + %.3f, loss %.6f\n", (int)epoch + 1, slope, offset, g->loss);
    }
    crw_sampler_destroy(sampler);
failed:
    if (r)
        fprintf(stderr, "average: rank %d: %s\n", crw_rank(group), crw_error_message());
    return r == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct crw_group *group;

    if (argc > 1) {
        if (crw_launch(fit_line, NULL, atoi(argv[1])) == 0)
            return 0;
        fprintf(stderr, "average: %s\n", crw_error_message());
        return 1;
    }
    if (crw_init(NULL, 0, 1, &group) != 0) {
        fprintf(stderr, "average: %s\n", crw_error_message());
        return 1;
    }
    int code = fit_line(group, NULL);
    crw_group_destroy(group);
    return code;
}
