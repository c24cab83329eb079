/*
 * The end of a training step: are the gradients finite, does the step go, and the optimizer over the whole
 * arena in one launch. Twin: kernels/cpu/fast_optimizer.c and optimizer.c; the arithmetic is the same
 * operation by operation, with every fmaf() where PyTorch fuses and no other (-fmad=false), so that results
 * are equal bit for bit.
 */

#include "worker-runtime/kernels/cuda/norm.cuh"

namespace
{

constexpr int CHECK_THREADS = 256, CHECK_BLOCKS_MAX = CHECK_THREADS;

/* Sum over a block, on thread 0. All threads call it. */
__device__ double block_sum(double value)
{
    __shared__ double of_warp[CHECK_THREADS / WARP];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < CHECK_THREADS / WARP; w++)
        value += of_warp[w];
    return value;
}

__global__ void __launch_bounds__(CHECK_THREADS) check_kernel(size_t count, const float *g, double *partial)
{
    double sum = 0;
    for (size_t i = first_element(); i < count; i += element_stride())
        sum += (double)g[i] * g[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

/* Squares of floats cannot overflow a double, so the sum is finite if every gradient is. */
__global__ void __launch_bounds__(CHECK_THREADS)
    check_finish_kernel(unsigned n_blocks, const double *partial, struct cuda_gradient_check *check)
{
    const double sum = block_sum(threadIdx.x < n_blocks ? partial[threadIdx.x] : 0);
    if (threadIdx.x == 0) {
        check->sum_of_squares = sum;
        check->finite = sum - sum == 0;
    }
}

__device__ void make_sgd(const struct crw_optimizer_options &o, struct cuda_commit *commit)
{
    struct sgd_step *s = &commit->scalars.sgd;
    s->minus_lr = (float)-o.lr;
    s->weight_decay = (float)o.weight_decay;
    s->momentum = (float)o.momentum;
    s->one_minus_dampening = (float)(1 - o.dampening);
    s->nesterov = o.nesterov;
    s->first = commit->step == 1;
}

__device__ void make_adamw(const struct crw_optimizer_options &o, struct cuda_commit *commit)
{
    struct adamw_step *s = &commit->scalars.adamw;
    const double correction1 = 1 - pow(o.beta1, (double)commit->step);
    const double correction2 = 1 - pow(o.beta2, (double)commit->step);
    s->decay = (float)(1 - o.lr * o.weight_decay);
    s->one_minus_beta1 = (float)(1 - o.beta1);
    s->beta2 = (float)o.beta2;
    s->one_minus_beta2 = (float)(1 - o.beta2);
    s->sqrt_correction2 = (float)sqrt(correction2);
    s->eps = (float)o.eps;
    s->minus_step_size = (float)-(o.lr / correction1);
}

__device__ void make_adadelta(const struct crw_optimizer_options &o, struct cuda_commit *commit)
{
    struct adadelta_step *s = &commit->scalars.adadelta;
    s->minus_lr = (float)-o.lr;
    s->weight_decay = (float)o.weight_decay;
    s->rho = (float)o.rho;
    s->one_minus_rho = (float)(1 - o.rho);
    s->eps = (float)o.eps;
}

/* As torch.nn.utils.clip_grad_norm_, of the mean over n_summed gradients (ranks times batches). Twin: scale_gradients() of train. */
__device__ void make_scale(const struct cuda_optimizer_options &o, const struct cuda_gradient_check *check,
                           uint64_t n_summed, struct cuda_commit *commit)
{
    double scale = 1.0 / (double)n_summed;
    if (check)
        commit->norm = sqrt(check->sum_of_squares) * scale;
    if (o.clip_norm > 0 && o.clip_norm < commit->norm + 1e-6)
        scale *= o.clip_norm / (commit->norm + 1e-6);
    commit->scale = (float)scale;
}

/* One thread. */
__device__ void begin_commit(const struct cuda_gradient_check *check,
                             const struct cuda_optimizer_options *options, const struct cuda_tally *tally,
                             int losses_per_sample, int n_ranks, struct cuda_commit *commit)
{
    const struct cuda_optimizer_options o = *options;
    make_scale(o, check, tally->n_batches * (uint64_t)n_ranks, commit);
    commit->go = !check || check->finite;
    if (!commit->go)
        return;
    commit->step++;
    commit->cursor += tally->n_losses / (uint64_t)losses_per_sample;
    if (o.of.kind == CRW_SGD)
        make_sgd(o.of, commit);
    else if (o.of.kind == CRW_ADAMW)
        make_adamw(o.of, commit);
    else
        make_adadelta(o.of, commit);
}

/* One block. */
__global__ void __launch_bounds__(ELEMENT_THREADS)
    commit_begin_kernel(const struct cuda_gradient_check *check, const struct cuda_optimizer_options *options,
                        const struct cuda_tally *tally, int losses_per_sample, int n_ranks,
                        struct cuda_tracks tracks, struct cuda_commit *commit)
{
    if (threadIdx.x == 0)
        begin_commit(check, options, tally, losses_per_sample, n_ranks, commit);
    __syncthreads();
    for (int i = 0; commit->go && i < tracks.n; i++)
        track(tracks.of[i]);
}

struct sgd {
    static constexpr int N_STATES = 1;
    struct sgd_step k;
    bool with_momentum;
    __device__ explicit sgd(const struct cuda_commit *commit)
        : k(commit->scalars.sgd), with_momentum(k.momentum != 0)
    {
    }
    __device__ void operator()(float *p, float g, float *buffer, float *) const
    {
        float d = k.weight_decay != 0 ? fmaf(*p, k.weight_decay, g) : g;
        if (with_momentum) {
            const float b = k.first ? d : fmaf(d, k.one_minus_dampening, *buffer * k.momentum);
            *buffer = b;
            d = k.nesterov ? fmaf(b, k.momentum, d) : b;
        }
        *p = fmaf(d, k.minus_lr, *p);
    }
};

/* SGD without momentum has no state to read or write. */
struct plain_sgd : sgd {
    static constexpr int N_STATES = 0;
    __device__ explicit plain_sgd(const struct cuda_commit *commit) : sgd(commit)
    {
        with_momentum = false;
    }
};

struct adamw {
    static constexpr int N_STATES = 2;
    struct adamw_step k;
    bool from_start; /* torch.lerp counts from the nearer end */
    float weight;
    __device__ explicit adamw(const struct cuda_commit *commit)
        : k(commit->scalars.adamw), from_start(k.one_minus_beta1 < 0.5f),
          weight(from_start ? k.one_minus_beta1 : k.one_minus_beta1 - 1)
    {
    }
    __device__ void operator()(float *p, float g, float *exp_avg, float *exp_avg_sq) const
    {
        const float m = fmaf(weight, g - *exp_avg, from_start ? *exp_avg : g);
        const float v = fmaf(k.one_minus_beta2 * g, g, *exp_avg_sq * k.beta2);
        const float denominator = sqrtf(v) / k.sqrt_correction2 + k.eps;
        *exp_avg = m;
        *exp_avg_sq = v;
        *p = *p * k.decay + (k.minus_step_size * m) / denominator;
    }
};

struct adadelta {
    static constexpr int N_STATES = 2;
    struct adadelta_step k;
    __device__ explicit adadelta(const struct cuda_commit *commit) : k(commit->scalars.adadelta)
    {
    }
    __device__ void operator()(float *p, float g, float *square_avg, float *acc_delta) const
    {
        const float d = k.weight_decay != 0 ? fmaf(*p, k.weight_decay, g) : g;
        const float v = fmaf(k.one_minus_rho * d, d, *square_avg * k.rho);
        const float delta = sqrtf(*acc_delta + k.eps) / sqrtf(v + k.eps) * d;
        *square_avg = v;
        *acc_delta = fmaf(k.one_minus_rho * delta, delta, *acc_delta * k.rho);
        *p = fmaf(delta, k.minus_lr, *p);
    }
};

/* Four elements a thread, 16 bytes an access; the last count % 4 by the first threads. */
template <class Optimizer>
__global__ void __launch_bounds__(ELEMENT_THREADS)
    optimizer_kernel(const struct cuda_commit *commit, size_t count, float *p, const float *g, float *state0,
                     float *state1)
{
    if (!commit->go)
        return;
    const Optimizer step(commit);
    const float scale = commit->scale; /* mostly 1, which changes no bit */
    float4 *p4 = reinterpret_cast<float4 *>(p);
    const float4 *g4 = reinterpret_cast<const float4 *>(g);
    float4 *first4 = reinterpret_cast<float4 *>(state0), *second4 = reinterpret_cast<float4 *>(state1);
    const int n_states = Optimizer::N_STATES;

    for (size_t i = first_element(); i < count / 4; i += element_stride()) {
        float4 x = p4[i], first = {0, 0, 0, 0}, second = {0, 0, 0, 0};
        const float4 d = g4[i];
        if (n_states > 0)
            first = first4[i];
        if (n_states > 1)
            second = second4[i];
        step(&x.x, d.x * scale, &first.x, &second.x);
        step(&x.y, d.y * scale, &first.y, &second.y);
        step(&x.z, d.z * scale, &first.z, &second.z);
        step(&x.w, d.w * scale, &first.w, &second.w);
        p4[i] = x;
        if (n_states > 0)
            first4[i] = first;
        if (n_states > 1)
            second4[i] = second;
    }
    const size_t last = count / 4 * 4 + first_element();
    if (last < count) {
        float none = 0;
        step(&p[last], g[last] * scale, n_states > 0 ? &state0[last] : &none,
             n_states > 1 ? &state1[last] : &none);
    }
}

__global__ void copy_kernel(const struct cuda_commit *commit, size_t count, const uint32_t *from,
                            uint32_t *to)
{
    if (!commit->go)
        return;
    for (size_t i = first_element(); i < count; i += element_stride())
        to[i] = from[i];
}

bool aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0;
}

template <class Optimizer>
cudaError_t launch_optimizer(const struct cuda_queue *q, const struct cuda_commit *commit, size_t count,
                             float *p, const float *g, float *state0, float *state1)
{
    /* A thread for each four elements: no block of the last wave waits for others to finish their strides. */
    const dim3 grid((unsigned)(count / 4 / ELEMENT_THREADS + 1));
    return launch(q->stream, grid, ELEMENT_THREADS, optimizer_kernel<Optimizer>, commit, count, p, g, state0,
                  state1);
}

} // namespace

cudaError_t cuda_gradient_check(const struct cuda_queue *q, size_t count, const float *gradients,
                                struct cuda_gradient_check *check)
{
    double *partial = reinterpret_cast<double *>(q->workspace);
    dim3 grid = element_grid(count);
    if (grid.x > CHECK_BLOCKS_MAX)
        grid.x = CHECK_BLOCKS_MAX; /* the second kernel has one thread for each block's sum */
    cudaError_t r = launch(q->stream, grid, CHECK_THREADS, check_kernel, count, gradients, partial);
    if (r != cudaSuccess)
        return r;
    return launch(q->stream, dim3(1), CHECK_THREADS, check_finish_kernel, grid.x, (const double *)partial,
                  check);
}

cudaError_t cuda_commit_begin(const struct cuda_queue *q, const struct cuda_gradient_check *check,
                              const struct cuda_optimizer_options *options, const struct cuda_tally *tally,
                              int losses_per_sample, int n_ranks, const struct cuda_tracks *tracks,
                              struct cuda_commit *commit)
{
    const struct cuda_tracks none = {};
    return launch(q->stream, dim3(1), ELEMENT_THREADS, commit_begin_kernel, check, options, tally,
                  losses_per_sample, n_ranks, tracks ? *tracks : none, commit);
}

cudaError_t cuda_copy_committed(const struct cuda_queue *q, const struct cuda_commit *commit, size_t n_bytes,
                                const void *from, void *to)
{
    const size_t count = n_bytes / sizeof(uint32_t);
    return launch(q->stream, element_grid(count), ELEMENT_THREADS, copy_kernel, commit, count,
                  static_cast<const uint32_t *>(from), static_cast<uint32_t *>(to));
}

cudaError_t cuda_optimizer_step(const struct cuda_queue *q, enum crw_optimizer_kind kind,
                                const struct cuda_commit *commit, size_t count, float *p, const float *g,
                                float *state0, float *state1)
{
    if (!aligned(p) || !aligned(g) || !aligned(state0) || !aligned(state1))
        return cudaErrorInvalidValue;
    switch (kind) {
    case CRW_SGD:
        return state0 ? launch_optimizer<sgd>(q, commit, count, p, g, state0, state1)
                      : launch_optimizer<plain_sgd>(q, commit, count, p, g, state0, state1);
    case CRW_ADAMW:
        return launch_optimizer<adamw>(q, commit, count, p, g, state0, state1);
    case CRW_ADADELTA:
        return launch_optimizer<adadelta>(q, commit, count, p, g, state0, state1);
    case CRW_OPTIMIZER_KIND_COUNT:
        break;
    }
    return cudaErrorInvalidValue;
}
