/*
 * A whole training program on libcrw: a network learns which of three rings a point of the plane lies in. Every rank
 * trains on its share of the samples, gradients are averaged over the ranks while backward still computes, snapshots
 * let a run go on where another one ended, and SIGTERM ends it after a saved step.
 *
 *     make
 *     crun --standalone --nproc-per-node=2 ./classify              # or torchrun --no-python
 *     crun --standalone --nproc-per-node=2 ./classify snapshots    # with snapshots in that folder
 *     crun --standalone --nproc-per-node=2 ./classify snapshots 20 # as many epochs
 *     ./classify                                                   # alone: a world of one
 */

#include <crw.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_TRAINING = 6000,
    N_TEST = 1000,
    BATCH = 50,
    N_EPOCHS = 6,
    SAVE_EVERY = 50,
    SAVE_WAIT_MS = 1000,
    N_INPUTS = 2,
    N_CLASSES = 3
};

static const struct crw_layer layers[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "fc1", .in = N_INPUTS, .out = 32},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "fc2", .in = 32, .out = N_CLASSES},
};
enum { N_LAYERS = sizeof(layers) / sizeof(layers[0]) };

/* Where the training stands; what a snapshot keeps beside the tensors. */
struct position {
    uint64_t epoch, consumed;
};

struct training {
    struct crw_group *group;
    float inputs[N_TRAINING + N_TEST][N_INPUTS]; /* the last N_TEST are for the test */
    int64_t targets[N_TRAINING + N_TEST];

    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct crw_reducer *reducer;
    struct crw_sampler *sampler;
    struct crw_loader *loader;
    struct crw_snapshots *snapshots; /* NULL: none are saved, or another rank saves them */
    struct position position;
    uint64_t n_epochs;
};

/* ---- data ---- */

static void make_samples(struct training *t)
{
    struct crw_rng rng;

    crw_rng_seed(&rng, 1); /* the same points on all ranks */
    for (int i = 0; i < N_TRAINING + N_TEST; i++) {
        float *point = t->inputs[i], square;

        crw_rng_uniform(&rng, point, N_INPUTS, -1, 1);
        square = point[0] * point[0] + point[1] * point[1];
        t->targets[i] = square < 0.25f ? 0 : square < 0.8f ? 1 : 2;
    }
}

/* Called by the loader's thread: the samples of one batch. */
static int gather(void *data, const uint32_t *samples, size_t n, float *input, void *targets)
{
    const struct training *t = data;

    for (size_t i = 0; i < n; i++) {
        memcpy(input + i * N_INPUTS, t->inputs[samples[i]], sizeof(t->inputs[0]));
        ((int64_t *)targets)[i] = t->targets[samples[i]];
    }
    return 0;
}

/* ---- setting up ---- */

static int gradients_ready(void *data, size_t begin)
{
    crw_reducer_ready(data, begin);
    return 0;
}

static int create_model(struct training *t)
{
    struct crw_optimizer_options options = crw_optimizer_defaults(CRW_ADAMW);
    size_t count = crw_model_count_parameters(layers, N_LAYERS);
    void *gradients;
    int r;

    options.lr = 0.01;
    /* Memory that the ranks of a host share: an all-reduce copies nothing. */
    r = crw_shared_alloc(t->group, count * sizeof(float), &gradients);
    if (r == 0)
        r = crw_model_create(layers, N_LAYERS, (struct crw_shape){N_INPUTS, 1, 1}, BATCH, gradients,
                             &t->model);
    if (r == 0)
        r = crw_optimizer_create(&options, count, &t->optimizer);
    if (r == 0)
        r = crw_reducer_create(t->group, gradients, count, 0, &t->reducer);
    if (r == 0) {
        crw_model_init(t->model, 1); /* the same parameters on all ranks */
        crw_model_set_gradient_hook(t->model, gradients_ready, t->reducer);
    }
    return r;
}

static int create_loader(struct training *t)
{
    const struct crw_sampler_options sampler = {
        .n_samples = N_TRAINING,
        .rank = crw_rank(t->group),
        .world_size = crw_world_size(t->group),
        .seed = 1,
        .shuffle = true,
    };
    struct crw_loader_options loader = {
        .batch_size = BATCH,
        .input_size = N_INPUTS,
        .target_size = sizeof(int64_t),
        .n_ahead = 2,
        .gather = gather,
        .data = t,
    };
    int r = crw_sampler_create(&sampler, &t->sampler);

    loader.sampler = t->sampler;
    return r == 0 ? crw_loader_create(&loader, &t->loader) : r;
}

/* ---- snapshots ---- */

/* The parameters and AdamW's two arrays: views, which saving reads and loading writes. */
static size_t list_tensors(const struct training *t, struct crw_tensor tensors[3])
{
    size_t count, n = 1;
    float *parameters = crw_model_parameters(t->model, &count);

    tensors[0] = (struct crw_tensor){"parameters", CRW_F32, 1, {(int64_t)count}, parameters};
    for (size_t i = 0; i < crw_optimizer_n_states(t->optimizer); i++, n++) {
        tensors[n] = (struct crw_tensor){.dtype = CRW_F32, .n_dims = 1, .dims = {(int64_t)count}};
        tensors[n].data = crw_optimizer_state(t->optimizer, i, &tensors[n].name);
    }
    return n;
}

static int save(struct training *t)
{
    struct crw_tensor tensors[3];
    size_t n = list_tensors(t, tensors);
    char epoch[24], consumed[24];
    const struct crw_pair meta[] = {{"epoch", epoch}, {"consumed", consumed}};

    /* A disk that hangs must not stop this rank, for which the others wait: such a save is left out. */
    if (!t->snapshots || crw_snapshots_busy(t->snapshots, SAVE_WAIT_MS))
        return 0;
    if (crw_snapshots_wait_for(t->snapshots, 0) == -ESTALE)
        return -ESTALE; /* another run saves there by now */
    (void)snprintf(epoch, sizeof(epoch), "%" PRIu64, t->position.epoch);
    (void)snprintf(consumed, sizeof(consumed), "%" PRIu64, t->position.consumed);
    return crw_snapshots_save(t->snapshots, crw_optimizer_steps(t->optimizer), tensors, n, meta, 2);
}

static void warn_of_damage(void *data, const char *sentence)
{
    const struct training *t = data;

    if (crw_is_primary(t->group))
        fprintf(stderr, "classify: %s\n", sentence);
}

/* At the end, and when asked to stop: 0 only when the last step is on disk. */
static int save_last(struct training *t)
{
    int r;

    if (!t->snapshots)
        return 0;
    crw_snapshots_wait(t->snapshots);
    r = save(t);
    return r == 0 ? crw_snapshots_wait_for(t->snapshots, INT_MAX) : r;
}

/* All ranks read the folder before one of them writes to it. Damaged files alone are an error, and no new run. */
static int load(struct training *t, const char *folder)
{
    struct crw_snapshot *snapshot;
    struct crw_tensor tensors[3];
    size_t n = list_tensors(t, tensors);
    const char *epoch, *consumed;
    int r = crw_snapshot_open_newest(folder, NULL, NULL, warn_of_damage, t, &snapshot);

    if (r)
        return r == CRW_E_NOT_FOUND ? 0 : r; /* a new run */
    for (size_t i = 0; r == 0 && i < n; i++)
        r = crw_snapshot_read(snapshot, &tensors[i]);
    epoch = crw_snapshot_meta(snapshot, "epoch");
    consumed = crw_snapshot_meta(snapshot, "consumed");
    if (r == 0 && epoch && consumed) {
        t->position = (struct position){strtoull(epoch, NULL, 10), strtoull(consumed, NULL, 10)};
        crw_optimizer_set_steps(t->optimizer, crw_snapshot_step(snapshot));
        if (crw_is_primary(t->group))
            printf("resumed at step %" PRIu64 "\n", crw_snapshot_step(snapshot));
    }
    crw_snapshot_close(snapshot);
    return r;
}

static int open_snapshots(struct training *t, const char *folder)
{
    int r = load(t, folder);

    if (r == 0)
        r = crw_barrier(t->group);
    if (r == 0 && crw_is_primary(t->group))
        r = crw_snapshots_create(folder, 2, &t->snapshots);
    return r;
}

/* ---- training ---- */

static int step(struct training *t, const struct crw_batch *batch)
{
    float loss;
    int r = crw_model_forward(t->model, batch->input, (int)batch->n, true, NULL);

    if (r == 0)
        r = crw_model_cross_entropy_loss(t->model, batch->targets, CRW_IGNORE_INDEX, &loss);
    if (r == 0)
        r = crw_model_backward(t->model); /* starts reducing */
    if (r == 0)
        r = crw_reducer_finish(t->reducer);
    if (r)
        return r; /* nothing has changed: the last step's state can be saved */
    crw_optimizer_step(t->optimizer, crw_model_parameters(t->model, NULL), crw_model_gradients(t->model));
    t->position.consumed = batch->consumed;
    return crw_optimizer_steps(t->optimizer) % SAVE_EVERY == 0 ? save(t) : 0;
}

/* Ranks may see the request at different steps, and have to end at the same one. */
static int agree_to_stop(struct training *t, bool *ret_stop)
{
    int64_t stop = crw_stop_requested(t->group);
    int r = crw_all_reduce(t->group, &stop, 1, CRW_I64, CRW_MAX);

    *ret_stop = stop != 0;
    return r;
}

static int run_epoch(struct training *t, bool *ret_stop)
{
    struct crw_batch batch;
    int r = crw_loader_start(t->loader, t->position.epoch, t->position.consumed);

    while (r == 0 && !*ret_stop && (r = crw_loader_next(t->loader, &batch)) == 0 && batch.n > 0) {
        r = step(t, &batch);
        if (r == 0)
            r = agree_to_stop(t, ret_stop);
    }
    if (r == 0 && *ret_stop)
        return 0;
    t->position = (struct position){.epoch = t->position.epoch + (r == 0)};
    return r;
}

/* Each rank tests every world_size-th sample. */
static int test(struct training *t)
{
    int64_t n_correct = 0;
    int r = 0;

    for (int i = N_TRAINING + crw_rank(t->group); r == 0 && i < N_TRAINING + N_TEST;
         i += crw_world_size(t->group)) {
        r = crw_model_forward(t->model, t->inputs[i], 1, false, NULL);
        n_correct += (int64_t)crw_model_correct(t->model, &t->targets[i], NULL);
    }
    if (r == 0)
        r = crw_all_reduce(t->group, &n_correct, 1, CRW_I64, CRW_SUM);
    if (r == 0 && crw_is_primary(t->group))
        printf("epoch %" PRIu64 ": %" PRId64 " of %d correct, parameters %08" PRIx32 "\n", t->position.epoch,
               n_correct, N_TEST, crw_model_crc32c(t->model));
    return r;
}

static int train(struct training *t, const char *folder)
{
    bool stop = false;
    int r = create_model(t);

    make_samples(t);
    if (r == 0)
        r = create_loader(t);
    if (r == 0 && folder)
        r = open_snapshots(t, folder);
    while (r == 0 && !stop && t->position.epoch < t->n_epochs) {
        r = run_epoch(t, &stop);
        if (r == 0 && !stop)
            r = test(t);
    }
    return r == 0 ? save_last(t) : r;
}

static void finish(struct training *t)
{
    const char *failure;

    while (t->snapshots && ((void)crw_snapshots_status(t->snapshots, &failure), failure))
        fprintf(stderr, "classify: %s\n", failure); /* of any save */
    crw_snapshots_destroy(t->snapshots);
    crw_loader_destroy(t->loader); /* before the sampler, which it uses */
    crw_sampler_destroy(t->sampler);
    crw_reducer_destroy(t->reducer);
    crw_optimizer_destroy(t->optimizer);
    crw_model_destroy(t->model);
}

int main(int argc, char **argv)
{
    static struct training t;
    int r;

    t.n_epochs = argc > 2 ? strtoull(argv[2], NULL, 10) : N_EPOCHS;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a line at once, also through a pipe */
    r = crw_init(NULL, 0, 1, &t.group);

    if (r == 0)
        r = crw_stop_enable(); /* SIGTERM: finish the step, save, end */
    if (r == 0)
        r = train(&t, argc > 1 ? argv[1] : NULL);
    if (r) {
        fprintf(stderr, "classify: %s\n", crw_error_message());
        if (r != CRW_E_PEER)
            (void)crw_error_record(NULL); /* for the launcher's report: this rank is the cause */
    }
    finish(&t);
    crw_group_destroy(t.group);
    return r ? 1 : 0;
}
