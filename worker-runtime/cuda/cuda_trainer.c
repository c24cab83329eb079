/*
 * A trainer's memory, and the ways in and out of it.
 *
 * Happy path: create makes everything; data, list and state are copied in; the gradients of a step are queued and waited
 * for, then the step's change of the state is queued; state is staged and downloaded now and then.
 *
 * Ways to fail: a device without enough memory (reported by create), an error of the device (reported by every later
 * call), and gradients that never come because a peer of the collective died. Nothing here waits without a deadline,
 * except for copies in a stream without collectives.
 */

#include "worker-runtime/cuda/cuda_trainer.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/time.h"
#include "worker-runtime/base/error.h"

enum { ALIGNMENT = 256, LANES = 8, POLL_NS = 20000, SPIN_NS = 2000000, STUCK_MS = 1000 };

/* As DistributedDataParallel: a small first bucket, so that the reduction begins early. */
static const size_t first_bucket_bytes = 1 << 20, bucket_bytes = 25 << 20;

int cuda_fail(cudaError_t error, const char *what)
{
    return crw_fail(-EIO, "%s: %s", what, cudaGetErrorString(error));
}

/* ---- waiting ---- */

/* Never cudaEventSynchronize(): behind a collective with a dead peer the call would not return. Polls without sleeping for
 * the length of a short step: the kernel's timers are late by 50 us and more, and the device idles meanwhile. Other
 * processes get the core between two polls. */
static int wait_for_event(cudaEvent_t event, int timeout_ms, const char *what)
{
    const int64_t began = (int64_t)now_ns(), deadline = began + (int64_t)timeout_ms * 1000000;
    for (;;) {
        cudaError_t r = cudaEventQuery(event);
        int64_t now = (int64_t)now_ns();
        if (r == cudaSuccess)
            return 0;
        if (r != cudaErrorNotReady)
            return cuda_fail(r, what);
        if (now >= deadline)
            return crw_fail(CRW_E_TIMEOUT, "%s: not done after %d ms", what, timeout_ms);
        if (now - began > SPIN_NS)
            (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL); /* shorter is fine, too */
        else
            (void)sched_yield(); /* cannot fail */
    }
}

/* ---- memory ---- */

/* The first failure is kept; after it nothing more is tried. */
struct maker {
    struct backend_trainer *t;
    cudaError_t error;
};

static void end_owned(const struct cuda_owned *o)
{
    /* Errors while everything ends have nowhere to go: the process is done with the device. */
    switch (o->kind) {
    case CUDA_OWNED_MEMORY:
        (void)cudaFree(o->thing);
        break;
    case CUDA_OWNED_HOST_MEMORY:
        (void)cudaFreeHost(o->thing);
        break;
    case CUDA_OWNED_STREAM:
        (void)cudaStreamDestroy(o->thing);
        break;
    case CUDA_OWNED_EVENT:
        (void)cudaEventDestroy(o->thing);
        break;
    }
}

/* Returns the thing, which the trainer ends; NULL: there is none, as after a failure. */
static void *keep(struct maker *m, enum cuda_owned_kind kind, void *thing)
{
    struct backend_trainer *t = m->t;
    const struct cuda_owned owned = {.kind = kind, .thing = thing};
    struct cuda_owned *longer = thing ? reallocarray(t->owned, t->n_owned + 1, sizeof(*longer)) : NULL;
    if (longer) {
        t->owned = longer;
        longer[t->n_owned++] = owned;
        return thing;
    }
    if (thing) {
        end_owned(&owned);
        m->error = cudaErrorMemoryAllocation;
    }
    return NULL;
}

static void *on_device(struct maker *m, size_t n_bytes)
{
    void *memory = NULL;
    if (m->error == cudaSuccess)
        m->error = cudaMalloc(&memory, n_bytes);
    return keep(m, CUDA_OWNED_MEMORY, memory);
}

static float *device_floats(struct maker *m, size_t count)
{
    return on_device(m, count * sizeof(float));
}

static void *zeros_on_device(struct maker *m, size_t n_bytes)
{
    void *memory = on_device(m, n_bytes);
    if (m->error == cudaSuccess)
        m->error = cudaMemsetAsync(memory, 0, n_bytes, m->t->q.stream);
    return memory;
}

/* Pinned, and mapped for the device. */
static void *on_host(struct maker *m, size_t n_bytes)
{
    void *memory = NULL;
    if (m->error == cudaSuccess)
        m->error = cudaHostAlloc(&memory, n_bytes, cudaHostAllocMapped);
    if (memory)
        memset(memory, 0, n_bytes);
    return keep(m, CUDA_OWNED_HOST_MEMORY, memory);
}

static cudaStream_t make_device_stream(struct maker *m, bool urgent)
{
    int least = 0, greatest = 0;
    cudaStream_t stream = NULL;
    if (m->error == cudaSuccess)
        m->error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (m->error == cudaSuccess)
        m->error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least);
    return keep(m, CUDA_OWNED_STREAM, stream);
}

static cudaEvent_t make_event(struct maker *m)
{
    cudaEvent_t event = NULL;
    if (m->error == cudaSuccess)
        m->error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    return keep(m, CUDA_OWNED_EVENT, event);
}

/* ---- state ---- */

static size_t tensor_bytes(const struct crw_tensor *b)
{
    size_t n_bytes = b->dtype == CRW_I64 ? sizeof(int64_t) : sizeof(float);
    for (int d = 0; d < b->n_dims; d++)
        n_bytes *= (size_t)b->dims[d];
    return n_bytes;
}

static void add_part(struct backend_trainer *t, void *host, size_t n_bytes)
{
    t->parts[t->n_parts++] = (struct cuda_part){.offset = t->n_state_bytes, .n_bytes = n_bytes, .host = host};
    t->n_state_bytes += (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* arena: the host's parameters, or a state of the optimizer with a float for each parameter. */
static void add_arena(struct backend_trainer *t, float *arena)
{
    const struct crw_model *model = t->model;
    for (size_t i = 0; i < model->n_tensors; i++)
        add_part(t, arena + ((float *)model->tensors[i].data - model->parameters),
                 tensor_bytes(&model->tensors[i]));
}

/* Counters first, then parameters, the optimizer's states, the model's buffers. */
static void make_state(struct maker *m)
{
    struct backend_trainer *t = m->t;
    const struct crw_model *model = t->model;

    t->parts = calloc((1 + CUDA_STATES_MAX) * model->n_tensors + model->n_buffers, sizeof(*t->parts));
    if (!t->parts) {
        m->error = cudaErrorMemoryAllocation;
        return;
    }
    t->n_state_bytes = (sizeof(*t->commit) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t counters_bytes = t->n_state_bytes;
    add_arena(t, model->parameters);
    const size_t arena_bytes = t->n_state_bytes - counters_bytes;
    t->n_floats = arena_bytes / sizeof(float);
    for (int i = 0; i < CUDA_STATES_MAX; i++)
        if (t->options.states[i])
            add_arena(t, t->options.states[i]);
    t->statistics_offset = t->n_state_bytes;
    for (size_t i = 0; i < model->n_buffers; i++)
        add_part(t, model->buffers[i].data, tensor_bytes(&model->buffers[i]));

    t->state = on_device(m, t->n_state_bytes);
    t->commit = (struct cuda_commit *)(void *)t->state;
    t->snapshot = on_device(m, t->n_state_bytes);
    if (t->options.accumulates && model->n_buffers > 0)
        t->statistics = on_device(m, t->n_state_bytes - t->statistics_offset);
    t->host_state = on_host(m, t->n_state_bytes);
    t->gradients = zeros_on_device(m, arena_bytes);
    t->sums = t->options.accumulates ? on_device(m, arena_bytes) : t->gradients;
    if (t->options.reduces_on_host)
        t->host_sums = on_host(m, arena_bytes);
}

/* Where a piece of the host's state lies on the device. */
static void *device_copy(const struct backend_trainer *t, const void *host)
{
    for (size_t i = 0; host && t->state && i < t->n_parts; i++)
        if (t->parts[i].host == host)
            return t->state + t->parts[i].offset;
    return NULL;
}

/* The same for a buffer, as steps see it. */
static void *statistics_copy(const struct backend_trainer *t, const void *host)
{
    uint8_t *in_state = device_copy(t, host);
    if (!in_state || !t->statistics)
        return in_state;
    return t->statistics + (in_state - t->state - t->statistics_offset);
}

/* ---- layers ---- */

static void make_norm(struct maker *m, struct cuda_layer *l)
{
    const struct norm_step *plan = &l->plan->norm;
    float **of_channels[] = {&l->norm.mean,
                             &l->norm.inverse_deviation,
                             &l->norm.unbiased_variance,
                             &l->norm.scale,
                             &l->norm.shift,
                             &l->norm.a,
                             &l->norm.b,
                             &l->norm.c};
    for (size_t i = 0; i < sizeof(of_channels) / sizeof(of_channels[0]); i++)
        *of_channels[i] = device_floats(m, (size_t)l->plan->in.stored);
    l->running_mean = statistics_copy(m->t, plan->running_mean);
    l->running_var = statistics_copy(m->t, plan->running_var);
    l->n_batches_tracked = statistics_copy(m->t, plan->n_batches_tracked);
}

static void make_layer(struct maker *m, size_t i)
{
    struct backend_trainer *t = m->t;
    const struct crw_model *model = t->model;
    struct cuda_layer *l = &t->layers[i];
    const struct model_step *plan = &model->steps[i];
    const size_t n = (size_t)model->max_batch;

    l->plan = plan;
    l->blas = t->blas;
    l->x = i ? t->layers[i - 1].y : t->x;
    l->y = device_floats(m, n * plan->out.size);
    if (i >= model->first_trained)
        l->dy = device_floats(m, n * plan->out.size);
    l->dx = i > model->first_trained ? t->layers[i - 1].dy : NULL;
    if (plan->weight && m->error == cudaSuccess) {
        l->weight = device_copy(t, plan->weight);
        l->bias = device_copy(t, plan->bias);
        l->d_weight = t->gradients + (l->weight - t->parameters);
        l->d_bias = t->gradients + (l->bias - t->parameters);
    }
    if (plan->kind == STEP_NORM || plan->kind == STEP_NORM_RELU_POOL)
        make_norm(m, l);
    if (plan->kind == STEP_POOL || plan->kind == STEP_NORM_RELU_POOL)
        l->which = on_device(m, n * plan->out.size);
    if (plan->kind == STEP_NORM_RELU_POOL)
        l->centred = device_floats(m, n * plan->out.size);
}

/* The batch in two layouts: of the data set (raw) and of the first layer (x). */
static void make_input(struct maker *m)
{
    struct backend_trainer *t = m->t;
    const struct activation *a = &t->model->x_shape;
    const size_t n = (size_t)t->model->max_batch;
    t->x = device_floats(m, n * a->size);
    if (!a->flat && a->stored > 1)
        t->raw = device_floats(m, n * (size_t)(a->channels * a->height * a->width));
    t->targets = on_device(m, n * t->target_bytes);
    t->correct = on_device(m, n);
    t->losses = device_floats(m, n * (size_t)t->n_losses_of_sample);
    t->table = device_floats(m, 256);
}

/*
 * Buckets from the end of the arena: the last layers' gradients come first. A bucket closes when large enough, as a
 * bucket of DDP, and is ready when the first layer within the bucket is done.
 */
static void make_buckets(struct maker *m)
{
    struct backend_trainer *t = m->t;
    const struct crw_model *model = t->model;
    size_t end = t->n_floats;
    for (size_t i = model->n_steps; t->options.reducer && i-- > model->first_trained;) {
        if (!model->steps[i].weight)
            continue;
        size_t begin = (size_t)(t->layers[i].weight - t->parameters);
        size_t enough = t->n_buckets ? bucket_bytes : first_bucket_bytes;
        bool last = begin == 0 || t->n_buckets + 1 == CUDA_BUCKETS_MAX;
        if (last) { /* takes all there is */
            begin = 0;
            i = model->first_trained;
        }
        if (!last && (end - begin) * sizeof(float) < enough)
            continue;
        struct cuda_bucket *b = &t->buckets[t->n_buckets++];
        *b = (struct cuda_bucket){.begin = begin, .count = end - begin, .layer = i};
        b->ready = make_event(m);
        b->reduced = make_event(m);
        end = begin;
    }
}

/* ---- making and ending ---- */

static void make_control(struct maker *m)
{
    struct backend_trainer *t = m->t;
    t->device_options = on_device(m, sizeof(*t->device_options));
    t->host_options = on_host(m, sizeof(*t->host_options));
    t->progress = on_host(m, sizeof(*t->progress));
    t->evaluation = on_device(m, sizeof(*t->evaluation));
    t->host_evaluation = on_host(m, sizeof(*t->host_evaluation));
    t->q.workspace = device_floats(m, CUDA_WORKSPACE_FLOATS);
    t->side.workspace = device_floats(m, CUDA_WORKSPACE_FLOATS);
    t->q.stream = make_device_stream(m, false);
    t->side.stream = make_device_stream(m, false);
    t->comm = make_device_stream(m, true);
    t->copy = make_device_stream(m, false);
    t->forked = make_event(m);
    t->side_done = make_event(m);
    t->reduced = make_event(m);
    t->committed = make_event(m);
    t->snapped = make_event(m);
    t->staged = make_event(m);
    t->evaluated = make_event(m);
}

static cudaError_t make_trainer_memory(struct backend_trainer *t)
{
    struct maker m = {.t = t, .error = cudaSetDevice(t->options.device)};

    t->q.precision = t->side.precision = t->options.precision;
    make_control(&m);
    make_state(&m);
    make_input(&m);
    if (m.error != cudaSuccess)
        return m.error;
    t->parameters = device_copy(t, t->model->parameters);
    for (int i = 0; i < CUDA_STATES_MAX; i++)
        t->states[i] = device_copy(t, t->options.states[i]);
    t->layers = calloc(t->model->n_steps, sizeof(*t->layers));
    if (!t->layers)
        return cudaErrorMemoryAllocation;
    for (size_t i = 0; i < t->model->n_steps; i++)
        make_layer(&m, i);
    make_buckets(&m);
    *t->host_options =
        (struct cuda_optimizer_options){.of = t->options.optimizer, .clip_norm = t->options.clip_norm};
    return m.error;
}

static int check_model_and_loss(const struct backend_trainer_options *o)
{
    const struct crw_model *model = o->model;
    const struct model_step *last = &model->steps[model->n_steps - 1];
    if (model->first_trained == model->n_steps)
        return crw_fail(CRW_E_ARGUMENT,
                        "a network to be trained on a device has parameters; this one has none");
    if (!last->in.flat || !last->out.flat)
        return crw_fail(CRW_E_ARGUMENT,
                        "a network to be trained on a device ends in a vector; flatten the image first");
    if ((o->loss == CRW_NLL) != (last->kind == STEP_LOG_SOFTMAX))
        return crw_fail(CRW_E_ARGUMENT,
                        "on a device the network ends in log_softmax for the negative log-likelihood, "
                        "and in nothing of that kind for other losses");
    return 0;
}

static int check_optimizer(enum crw_optimizer_kind kind)
{
    if (kind == CRW_SGD || kind == CRW_ADAMW || kind == CRW_ADADELTA)
        return 0;
    return crw_fail(CRW_E_ARGUMENT, "the device has no optimizer of kind %d; train on the CPU", (int)kind);
}

static bool has_large_products(const struct crw_model *model)
{
    for (size_t i = 0; i < model->n_steps; i++)
        if (model->steps[i].kind == STEP_LINEAR &&
            (int64_t)model->max_batch * model->steps[i].in.channels * model->steps[i].out.channels >=
                CUDA_BLAS_MIN)
            return true;
    return false;
}

/* Loading cuBLASLt takes longer than a small training. The handle belongs to the device current at its creation. */
static int open_blas(struct backend_trainer *t)
{
    if (t->options.precision == CRW_PRODUCTS_F32 || !has_large_products(t->model))
        return 0;
    cudaError_t r = cudaSetDevice(t->options.device);
    return r == cudaSuccess ? cuda_blas_open(t->options.blas_library, &t->blas)
                            : cuda_fail(r, "cannot use the device");
}

static void describe_products(struct backend_trainer *t)
{
    const char *why = t->options.precision == CRW_PRODUCTS_F32 ? "fp32 is computed by no other library"
                      : !has_large_products(t->model) ? "no linear layer is large enough for cuBLASLt"
                                                      : "no cuBLASLt can be loaded";
    if (t->blas)
        (void)snprintf(t->products, sizeof(t->products),
                       "matrix products by %s for large linear layers, else by libcrw",
                       cuda_blas_name(t->blas)); /* may be cut; the same below */
    else
        (void)snprintf(t->products, sizeof(t->products), "matrix products by libcrw: %s", why);
}

const char *cuda_trainer_products(const struct backend_trainer *t)
{
    return t->products;
}

int cuda_trainer_create(const struct backend_trainer_options *options, struct backend_trainer **ret)
{
    TRY(check_model_and_loss(options));
    TRY(check_optimizer(options->optimizer.kind));
    struct backend_trainer *t = calloc(1, sizeof(*t));
    if (!t)
        return crw_fail_errno(-ENOMEM, "cannot make a trainer");
    t->model = options->model;
    t->options = *options;
    t->checked = options->skip_not_finite || options->clip_norm > 0;
    const int n_outputs = t->model->steps[t->model->n_steps - 1].out.channels;
    t->n_losses_of_sample = options->loss == CRW_MSE ? n_outputs : 1;
    t->target_bytes = options->loss == CRW_MSE ? (size_t)n_outputs * sizeof(float) : sizeof(int32_t);
    int r = open_blas(t);
    if (r) {
        free(t);
        return r;
    }
    describe_products(t);
    cudaError_t made = make_trainer_memory(t);
    if (made != cudaSuccess) {
        cuda_trainer_destroy(t);
        return cuda_fail(made, "cannot make a trainer on the device");
    }
    r = cuda_trainer_upload(t, 0);
    if (r) {
        cuda_trainer_destroy(t);
        return r;
    }
    *ret = t;
    return 0;
}

/* ---- ending ---- */

bool cuda_trainer_is_reducing(struct backend_trainer *t)
{
    return cudaEventQuery(t->reduced) == cudaErrorNotReady;
}

bool cuda_trainer_forget_graphs(struct backend_trainer *t)
{
    const bool any = t->n_graphs > 0;
    for (size_t i = 0; i < t->n_graphs; i++)
        (void)cudaGraphExecDestroy(t->graphs[i].exec); /* legal while the graph runs */
    t->n_graphs = 0;
    return any;
}

/* True: a collective does not end, although the communicator was broken off. */
static bool is_collective_stuck(struct backend_trainer *t)
{
    return t->options.reducer && t->reduced &&
           wait_for_event(t->reduced, STUCK_MS, "a collective") == CRW_E_TIMEOUT;
}

void cuda_trainer_destroy(struct backend_trainer *t)
{
    if (!t)
        return;
    (void)cuda_trainer_forget_graphs(t); /* whether there were any */
    if (is_collective_stuck(t)) /* freeing memory would wait for the collective; the driver frees at exit */
        return;
    if (t->commit_graph)
        (void)cudaGraphExecDestroy(t->commit_graph);
    while (t->n_owned > 0)
        end_owned(&t->owned[--t->n_owned]);
    cuda_blas_close(t->blas);
    free(t->owned);
    free(t->layers);
    free(t->parts);
    free(t);
}

/* ---- in ---- */

/* Copying waits for the compute stream, where a collective in flight may hang. */
static int check_not_reducing(const struct backend_trainer *t, const char *what)
{
    if (t->phase != CUDA_REDUCING)
        return 0;
    return crw_fail(CRW_E_ARGUMENT, "%s while a step's gradients are in flight; wait for them first", what);
}

/* Copies and waits: `from` may belong to the caller, free to change at return. */
static cudaError_t copy_to_device(struct backend_trainer *t, void *to, const void *from, size_t n_bytes)
{
    TRY(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, t->q.stream));
    return cudaStreamSynchronize(t->q.stream);
}

static int copy_numbers(struct backend_trainer *t, struct cuda_data *data)
{
    _cleanup_free_ uint32_t *numbers = malloc(data->n_items * sizeof(*numbers));
    if (!numbers)
        return crw_fail_errno(-ENOMEM, "cannot number %u samples", data->n_items);
    for (uint32_t i = 0; i < data->n_items; i++)
        numbers[i] = i;
    cudaError_t r = copy_to_device(t, data->numbers, numbers, data->n_items * sizeof(*numbers));
    return r == cudaSuccess ? 0 : cuda_fail(r, "cannot number samples on the device");
}

/* The targets as the device reads them, malloc'ed: a class, or -1 where the sample does not count. */
static int narrow_classes(const struct backend_trainer *t, const struct crw_samples *samples, int32_t **ret)
{
    const int n_classes = t->model->steps[t->model->n_steps - 1].out.channels;
    const int64_t *from = samples->targets;
    _cleanup_free_ int32_t *to = malloc(samples->n * sizeof(*to));
    if (!to)
        return crw_fail_errno(-ENOMEM, "cannot copy %u targets", samples->n);
    for (uint32_t i = 0; i < samples->n; i++) {
        const bool ignored = from[i] == t->options.ignore_index;
        if (!ignored && (from[i] < 0 || from[i] >= n_classes))
            return crw_fail(CRW_E_ARGUMENT, "target %lld of sample %u is not one of %d classes",
                            (long long)from[i], i, n_classes);
        to[i] = ignored ? -1 : (int32_t)from[i];
    }
    *ret = steal_ptr(to);
    return 0;
}

static int copy_data(struct backend_trainer *t, struct cuda_data *data, const struct crw_samples *samples,
                     const void *targets)
{
    const struct activation *a = &t->model->x_shape;
    const size_t n = samples->n, n_features = (size_t)(a->channels * a->height * a->width);
    const size_t input_bytes = n * n_features * (samples->table ? 1 : sizeof(float));
    struct maker m = {.t = t, .error = cudaSuccess};

    data->bytes = samples->table != NULL;
    data->inputs = on_device(&m, input_bytes);
    data->targets = on_device(&m, n * t->target_bytes);
    data->numbers = on_device(&m, n * sizeof(*data->numbers));
    if (m.error == cudaSuccess)
        m.error = copy_to_device(t, data->inputs, samples->inputs, input_bytes);
    if (m.error == cudaSuccess)
        m.error = copy_to_device(t, data->targets, targets, n * t->target_bytes);
    if (m.error == cudaSuccess && samples->table)
        m.error = copy_to_device(t, t->table, samples->table, 256 * sizeof(*samples->table));
    if (m.error != cudaSuccess)
        return cuda_fail(m.error, "cannot copy the data set to the device");
    data->n_items = samples->n;
    return copy_numbers(t, data);
}

int cuda_trainer_set_data(struct backend_trainer *t, enum backend_data which,
                          const struct crw_samples *samples)
{
    struct cuda_data *data = &t->data[which];
    _cleanup_free_ int32_t *classes = NULL;

    if (samples->n == 0 || data->inputs)
        return crw_fail(CRW_E_ARGUMENT, "a trainer takes each data set once, and none that is empty");
    TRY(check_not_reducing(t, "a data set cannot be copied"));
    if (t->options.loss != CRW_MSE)
        TRY(narrow_classes(t, samples, &classes));
    return copy_data(t, data, samples, classes ? (const void *)classes : samples->targets);
}

int cuda_trainer_start(struct backend_trainer *t, const uint32_t *list, size_t count, uint64_t cursor)
{
    struct maker m = {.t = t, .error = cudaSuccess};
    TRY(check_not_reducing(t, "an epoch cannot begin"));
    for (size_t i = 0; i < count; i++)
        if (list[i] >= t->data[BACKEND_TRAIN].n_items)
            return crw_fail(CRW_E_ARGUMENT, "sample %u is not one of %u", list[i],
                            t->data[BACKEND_TRAIN].n_items);
    if (cursor > count)
        return crw_fail(CRW_E_ARGUMENT, "an epoch of %zu samples cannot begin at number %llu", count,
                        (unsigned long long)cursor);
    /* A captured step has the address of the list: the list can grow only before the first capture. */
    if (count > t->list_capacity) {
        if (t->n_graphs)
            return crw_fail(CRW_E_ARGUMENT,
                            "a list of %zu samples; after the first step none may be longer than %zu", count,
                            t->list_capacity);
        const size_t n_items = t->data[BACKEND_TRAIN].n_items;
        t->list_capacity = count > n_items ? count : n_items;
        t->list = on_device(&m, t->list_capacity * sizeof(*list));
    }
    if (m.error == cudaSuccess && count)
        m.error = copy_to_device(t, t->list, list, count * sizeof(*list));
    if (m.error == cudaSuccess)
        m.error = copy_to_device(t, &t->commit->cursor, &cursor, sizeof(cursor));
    if (m.error != cudaSuccess)
        return cuda_fail(m.error, "cannot begin an epoch on the device");
    t->n_listed = count - (size_t)cursor;
    t->n_pending_samples = t->n_pending_batches = 0;
    t->n_step_samples = 0;
    t->phase = CUDA_IDLE;
    return 0;
}

int cuda_trainer_upload(struct backend_trainer *t, uint64_t steps)
{
    const struct cuda_commit start = {.step = steps};
    int checked = check_not_reducing(t, "the state cannot be copied to the device");
    if (checked == 0 && t->staging) /* the copy to the host still writes host_state */
        checked = wait_for_event(t->staged, STUCK_MS, "the copy of the state to the host");
    if (checked)
        return checked;
    memcpy(t->host_state, &start, sizeof(start));
    for (size_t i = 0; i < t->n_parts; i++)
        memcpy(t->host_state + t->parts[i].offset, t->parts[i].host, t->parts[i].n_bytes);
    cudaError_t r = copy_to_device(t, t->state, t->host_state, t->n_state_bytes);
    if (r == cudaSuccess)
        r = copy_to_device(t, t->device_options, t->host_options, sizeof(*t->host_options));
    t->staging = false;
    t->n_listed = t->n_step_samples = 0;
    t->n_pending_samples = t->n_pending_batches = 0;
    t->phase = CUDA_IDLE;
    return r == cudaSuccess ? 0 : cuda_fail(r, "cannot copy the state to the device");
}

int cuda_trainer_set_lr(struct backend_trainer *t, double lr)
{
    int checked = check_not_reducing(t, "the learning rate cannot change");
    if (checked)
        return checked;
    t->host_options->of.lr = lr;
    cudaError_t r = copy_to_device(t, t->device_options, t->host_options, sizeof(*t->host_options));
    return r == cudaSuccess ? 0 : cuda_fail(r, "cannot change the learning rate on the device");
}

/* ---- steps ---- */

static int check_queued_batch(const struct backend_trainer *t, int n, bool last)
{
    if (!last && !t->options.accumulates)
        return crw_fail(CRW_E_ARGUMENT, "a step of several batches, by a trainer that was not made for them");
    if (t->phase != CUDA_IDLE)
        return crw_fail(CRW_E_ARGUMENT, "a step before the one before it was taken or dropped");
    if (n < 1 || n > t->model->max_batch || (size_t)n > t->n_listed)
        return crw_fail(CRW_E_ARGUMENT, "a step over %d samples: the model takes up to %d, and %zu are left",
                        n, t->model->max_batch, t->n_listed);
    return 0;
}

/* Collectives are launched only between enter and leave: behind a break-off nothing would release them. */
static int queue_batch(struct backend_trainer *t, int n, bool last)
{
    const struct backend_reducer *reducer = last && !t->host_sums ? t->options.reducer : NULL;
    int entered = reducer ? reducer->enter(reducer->data) : 0;
    if (entered)
        return entered;
    cudaError_t r = cuda_step_queue(t, n, last);
    if (r == cudaSuccess && last)
        r = cudaEventRecord(t->reduced, t->q.stream);
    if (reducer)
        reducer->leave(reducer->data);
    if (t->reducer_failed)
        return t->reducer_failed; /* with the reducer's sentence */
    if (cuda_blas_status(t->blas))
        return crw_fail(-EIO, "cuBLASLt cannot queue a product: status %d", cuda_blas_status(t->blas));
    return r == cudaSuccess ? 0 : cuda_fail(r, "cannot queue a training step");
}

int cuda_trainer_step(struct backend_trainer *t, int n, bool last)
{
    TRY(check_queued_batch(t, n, last));
    TRY(queue_batch(t, n, last));
    t->n_listed -= (size_t)n;
    t->n_step_samples += (size_t)n;
    if (last)
        t->phase = CUDA_REDUCING;
    return 0;
}

static void report_tally(const struct backend_trainer *t, const struct cuda_tally *tally,
                         struct crw_trained *ret)
{
    ret->n_samples = tally->n_losses / (uint64_t)t->n_losses_of_sample;
    ret->n_correct = tally->n_correct;
}

int cuda_trainer_wait(struct backend_trainer *t, int timeout_ms, struct crw_trained *ret)
{
    if (t->phase == CUDA_IDLE)
        return crw_fail(CRW_E_ARGUMENT, "there is no complete step to wait for");
    TRY(wait_for_event(t->reduced, timeout_ms, "training on the device"));
    const struct cuda_tally *tally = &t->progress->tally;
    const struct cuda_gradient_check *check = &t->progress->check;
    const int n_ranks = t->options.reducer ? t->options.reducer->n_ranks : 1;
    const double loss = tally->n_batches ? tally->mean_sum / (double)tally->n_batches : 0;
    *ret = (struct crw_trained){.finite = !t->checked || (check->finite && isfinite(loss)), .loss = loss};
    if (t->checked && tally->n_batches)
        ret->norm = sqrt(check->sum_of_squares) / ((double)tally->n_batches * n_ranks);
    report_tally(t, tally, ret);
    t->phase = CUDA_REDUCED;
    return 0;
}

static cudaError_t queue_commit_of_step(struct backend_trainer *t)
{
    if (t->staging) /* the state is still copied aside */
        TRY(cudaStreamWaitEvent(t->q.stream, t->snapped, 0));
    TRY(cuda_step_commit(t));
    return cudaEventRecord(t->committed, t->q.stream);
}

float *cuda_trainer_gradients(struct backend_trainer *t, size_t *ret_count)
{
    *ret_count = t->n_floats;
    return t->host_sums;
}

/* Twin of cuda_gradient_check(). LANES independent sums; the size of an arena is a multiple of LANES. */
void cuda_trainer_reduced(struct backend_trainer *t)
{
    double sums[LANES] = {0}, sum = 0;
    for (size_t i = 0; i < t->n_floats; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += (double)t->host_sums[i + lane] * t->host_sums[i + lane];
    for (size_t lane = 0; lane < LANES; lane++)
        sum += sums[lane];
    t->progress->check = (struct cuda_gradient_check){.sum_of_squares = sum, .finite = isfinite(sum)};
}

int cuda_trainer_end_step(struct backend_trainer *t, bool take)
{
    if (t->phase != CUDA_REDUCED)
        return crw_fail(CRW_E_ARGUMENT, "a step can be taken or dropped when its gradients were waited for");
    cudaError_t r = take ? queue_commit_of_step(t) : cudaSuccess;
    if (!take)
        t->n_listed += t->n_step_samples;
    t->n_step_samples = 0;
    t->phase = CUDA_IDLE;
    return r == cudaSuccess ? 0 : cuda_fail(r, "cannot take a training step");
}

/* ---- out ---- */

/* On the copy stream, behind the last change of the state and in front of the next change: gradients do not touch the state. */
int cuda_trainer_stage(struct backend_trainer *t)
{
    cudaError_t r = cudaStreamWaitEvent(t->copy, t->committed, 0);
    if (r == cudaSuccess)
        r = cudaMemcpyAsync(t->snapshot, t->state, t->n_state_bytes, cudaMemcpyDeviceToDevice, t->copy);
    if (r == cudaSuccess)
        r = cudaEventRecord(t->snapped, t->copy);
    if (r == cudaSuccess)
        r = cudaMemcpyAsync(t->host_state, t->snapshot, t->n_state_bytes, cudaMemcpyDeviceToHost, t->copy);
    if (r == cudaSuccess)
        r = cudaEventRecord(t->staged, t->copy);
    if (r != cudaSuccess)
        return cuda_fail(r, "cannot stage the state");
    t->staging = true;
    return 0;
}

int cuda_trainer_download(struct backend_trainer *t, int timeout_ms, uint64_t steps)
{
    struct cuda_commit commit;
    if (!t->staging)
        return crw_fail(CRW_E_ARGUMENT, "no state was staged");
    TRY(wait_for_event(t->staged, timeout_ms, "staging the state"));
    t->staging = false;
    memcpy(&commit, t->host_state, sizeof(commit));
    if (commit.step != steps)
        return crw_fail(CRW_E_MISMATCH, "the device has the state of step %llu, not of step %llu",
                        (unsigned long long)commit.step, (unsigned long long)steps);
    for (size_t i = 0; i < t->n_parts; i++)
        memcpy(t->parts[i].host, t->host_state + t->parts[i].offset, t->parts[i].n_bytes);
    return 0;
}

static cudaError_t queue_evaluation(struct backend_trainer *t, uint32_t first, uint32_t count)
{
    const uint32_t batch = (uint32_t)t->model->max_batch;
    TRY(cudaMemsetAsync(t->evaluation, 0, sizeof(*t->evaluation), t->q.stream));
    for (uint32_t at = 0; at < count; at += batch)
        TRY(cuda_step_evaluate(t, first + at, (int)(count - at < batch ? count - at : batch)));
    TRY(cudaMemcpyAsync(t->host_evaluation, t->evaluation, sizeof(*t->evaluation), cudaMemcpyDeviceToHost,
                        t->q.stream));
    return cudaEventRecord(t->evaluated, t->q.stream);
}

int cuda_trainer_evaluate(struct backend_trainer *t, uint32_t first, uint32_t count, int timeout_ms,
                          struct crw_trained *ret)
{
    const uint32_t n_items = t->data[BACKEND_EVALUATE].n_items;
    if (first > n_items || count > n_items - first)
        return crw_fail(CRW_E_ARGUMENT,
                        "samples %u and the %u behind it are not all of the evaluation set's %u", first,
                        count, n_items);
    TRY(check_not_reducing(t, "the test samples cannot be passed"));
    cudaError_t queued = queue_evaluation(t, first, count);
    if (queued != cudaSuccess)
        return cuda_fail(queued, "cannot queue an evaluation");
    TRY(wait_for_event(t->evaluated, timeout_ms, "evaluation on the device"));
    const struct cuda_tally *tally = t->host_evaluation;
    *ret = (struct crw_trained){0};
    report_tally(t, tally, ret);
    ret->loss = tally->n_losses ? tally->loss_sum / (double)tally->n_counted : 0;
    return 0;
}
