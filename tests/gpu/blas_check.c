/*
 * Linear layers by cuBLASLt and by libcrw's own kernels, side by side on a device, in TF32 and BF16. Prints one JSON object;
 * exits 0 when all checks hold, 1 when not, 77 when there is no device or no cuBLASLt (CRW_CUBLASLT_LIBRARY, or where the
 * plugin finds it).
 *
 *   check [EDGE]   batches of EDGE samples (512) through a layer EDGE -> EDGE + 1: forward with bias and relu, gradients of
 *                  weights and of the input. 300 elements of each against sums in double.
 *   time [EDGE]    the same for EDGE -> EDGE (4096) and EDGE -> 513, and TFLOP/s of the forward pass
 *
 * An error is relative to the sum of the absolute values of what was added. The same source is built for the emulated
 * device, where its times mean nothing.
 */

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/cuda/cuda_blas.h"
#include "worker-runtime/kernels/cuda/kernels.h"
#include "worker-runtime/model/model.h"

enum { N_SAMPLES = 300, N_TIMED = 20, ODD_WIDTH = 513 };

/* What rounding the operands costs at most, and the sum: as in the tests of the kernels. */
static const struct {
    const char *name;
    enum crw_products precision;
    double error_max;
} precisions[] = {{"tf32", CRW_PRODUCTS_TF32, 1e-3}, {"bf16", CRW_PRODUCTS_BF16, 8e-3}};

static void must(cudaError_t r, const char *what)
{
    if (r == cudaSuccess)
        return;
    (void)fprintf(stderr, "kernel_blas: %s: %s\n", what, cudaGetErrorString(r));
    exit(1);
}

/* ---- a layer ---- */

struct array {
    float *host, *device;
    size_t count;
};

/* y, dw, dx: by cuBLASLt, and by libcrw. */
struct layer {
    int n, in, out;
    struct array x, w, bias, dy;
    struct array y[2], dw[2], db[2], dx[2];
    struct cuda_queue q;
    struct cuda_blas *blas;
    cudaEvent_t begin, end;
};

enum { BY_BLAS, BY_LIBCRW };

static struct array new_array(size_t count)
{
    struct array a = {.count = count, .host = calloc(count, sizeof(float))};
    if (!a.host)
        exit(1);
    must(cudaMalloc((void **)&a.device, count * sizeof(float)), "cannot allocate");
    return a;
}

static struct array random_array(struct crw_rng *rng, size_t count)
{
    struct array a = new_array(count);
    crw_rng_uniform(rng, a.host, count, -1, 1);
    must(cudaMemcpy(a.device, a.host, count * sizeof(float), cudaMemcpyHostToDevice), "cannot copy");
    return a;
}

static void free_array(struct array *a)
{
    (void)cudaFree(a->device); /* the process ends soon */
    free(a->host);
}

static void make_layer(struct layer *l, int n, int in, int out)
{
    const size_t n_x = (size_t)n * (size_t)in, n_w = (size_t)in * (size_t)out, n_y = (size_t)n * (size_t)out;
    struct crw_rng rng;
    crw_rng_seed(&rng, 1);
    l->n = n;
    l->in = in;
    l->out = out;
    l->x = random_array(&rng, n_x);
    l->w = random_array(&rng, n_w);
    l->bias = random_array(&rng, (size_t)out);
    l->dy = random_array(&rng, n_y);
    for (int by = 0; by < 2; by++) {
        l->y[by] = new_array(n_y);
        l->dw[by] = new_array(n_w);
        l->db[by] = new_array((size_t)out);
        l->dx[by] = new_array(n_x);
    }
}

static void free_layer(struct layer *l)
{
    free_array(&l->x);
    free_array(&l->w);
    free_array(&l->bias);
    free_array(&l->dy);
    for (int by = 0; by < 2; by++) {
        free_array(&l->y[by]);
        free_array(&l->dw[by]);
        free_array(&l->db[by]);
        free_array(&l->dx[by]);
    }
}

/* ---- its passes ---- */

/* CUDA has no word for a failure of cuBLASLt, whose status is a number. */
static cudaError_t by_blas(const struct layer *l, bool taken, cudaError_t r, const char *pass)
{
    if (!taken || r != cudaSuccess)
        (void)fprintf(stderr, "kernel_blas: cuBLASLt %s the %s: status %d\n",
                      taken ? "fails in" : "does not take", pass, cuda_blas_status(l->blas));
    return taken ? r : cudaErrorInvalidValue;
}

static cudaError_t forward(struct layer *l, int by)
{
    cudaError_t r = cudaSuccess;
    if (by == BY_LIBCRW)
        return cuda_linear_relu_forward(&l->q, l->n, l->in, l->out, l->x.device, l->w.device, l->bias.device,
                                        l->y[by].device);
    const bool taken = cuda_blas_forward(l->blas, &l->q, l->n, l->in, l->out, l->x.device, l->w.device,
                                         l->bias.device, true, l->y[by].device, &r);
    return by_blas(l, taken, r, "forward pass");
}

static cudaError_t backward_weights(struct layer *l, int by)
{
    cudaError_t r = cudaSuccess;
    if (by == BY_LIBCRW)
        return cuda_linear_backward_weights(&l->q, l->n, l->in, l->out, l->x.device, l->dy.device,
                                            l->dw[by].device, l->db[by].device);
    const bool taken = cuda_blas_backward_weights(l->blas, &l->q, l->n, l->in, l->out, l->x.device,
                                                  l->dy.device, l->dw[by].device, l->db[by].device, &r);
    return by_blas(l, taken, r, "weights' gradients");
}

static cudaError_t backward_input(struct layer *l, int by)
{
    cudaError_t r = cudaSuccess;
    if (by == BY_LIBCRW)
        return cuda_linear_backward_input(&l->q, l->n, l->in, l->out, l->dy.device, l->w.device,
                                          l->dx[by].device);
    const bool taken = cuda_blas_backward_input(l->blas, &l->q, l->n, l->in, l->out, l->dy.device,
                                                l->w.device, l->dx[by].device, &r);
    return by_blas(l, taken, r, "input's gradients");
}

static void fetch(struct array *a)
{
    must(cudaMemcpy(a->host, a->device, a->count * sizeof(float), cudaMemcpyDeviceToHost), "cannot fetch");
}

static void compute(struct layer *l, int by)
{
    must(forward(l, by), "cannot pass forward");
    must(backward_weights(l, by), "cannot make the weights' gradients");
    must(backward_input(l, by), "cannot make the input's gradients");
    must(cudaStreamSynchronize(l->q.stream), "the passes fail");
    fetch(&l->y[by]);
    fetch(&l->dw[by]);
    fetch(&l->dx[by]);
}

/* TFLOP/s of the forward pass. */
static double speed(struct layer *l, int by)
{
    float ms;
    for (int i = -2; i < N_TIMED; i++) {
        if (i == 0)
            must(cudaEventRecord(l->begin, l->q.stream), "cannot record");
        must(forward(l, by), "cannot pass forward");
    }
    must(cudaEventRecord(l->end, l->q.stream), "cannot record");
    must(cudaEventSynchronize(l->end), "cannot wait");
    must(cudaEventElapsedTime(&ms, l->begin, l->end), "cannot measure");
    return 1e-12 * 2.0 * N_TIMED * l->n * l->in * l->out / (1e-3 * ms);
}

/* ---- errors ---- */

/* The distance of actual from the sum of a[i * step_a] * b[i * step_b] and bias, relative to the sum of the absolute
 * values; NaN for NaN. relu: negative sums count as 0. */
static double error_of(float actual, const float *a, size_t step_a, const float *b, size_t step_b,
                       size_t count, double bias, bool relu)
{
    double sum = bias, scale = fabs(bias);
    for (size_t i = 0; i < count; i++) {
        const double product = (double)a[i * step_a] * (double)b[i * step_b];
        sum += product;
        scale += fabs(product);
    }
    return fabs((double)actual - (relu && sum < 0 ? 0 : sum)) / scale;
}

static double worse(double largest, double error)
{
    return error <= largest ? largest : error;
}

static double largest_error(const struct layer *l, int by)
{
    const size_t n = (size_t)l->n, in = (size_t)l->in, out = (size_t)l->out;
    double largest = 0;
    struct crw_rng rng;
    crw_rng_seed(&rng, 2);
    for (int i = 0; i < N_SAMPLES; i++) {
        const size_t s = crw_rng_u32(&rng) % n, k = crw_rng_u32(&rng) % in, o = crw_rng_u32(&rng) % out;
        largest = worse(largest, error_of(l->y[by].host[s * out + o], l->x.host + s * in, 1,
                                          l->w.host + o * in, 1, in, (double)l->bias.host[o], true));
        largest = worse(largest, error_of(l->dw[by].host[o * in + k], l->dy.host + o, out, l->x.host + k, in,
                                          n, 0, false));
        largest = worse(largest, error_of(l->dx[by].host[s * in + k], l->dy.host + s * out, 1, l->w.host + k,
                                          in, out, 0, false));
    }
    return largest;
}

/* ---- printing ---- */

/* name: in front of the figures. False: an error is larger than it may be. */
static bool print_layer(struct layer *l, const char *name, bool timed)
{
    static const char *const sides[] = {[BY_BLAS] = "cublaslt", [BY_LIBCRW] = "ours"};
    bool hold = true;
    for (size_t p = 0; p < ARRAY_SIZE(precisions); p++)
        for (int by = 0; by < 2; by++) {
            l->q.precision = precisions[p].precision;
            compute(l, by);
            const double error = largest_error(l, by);
            hold = hold && error <= precisions[p].error_max;
            (void)printf(", \"%s_%s_%s_error\": %.3g", name, precisions[p].name, sides[by], error);
            if (timed)
                (void)printf(", \"%s_%s_%s_tflops\": %.4g", name, precisions[p].name, sides[by],
                             speed(l, by));
        }
    return hold;
}

static bool check_shape(struct layer *l, int n, int in, int out, bool timed)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "n%d", out);
    make_layer(l, n, in, out);
    const bool hold = print_layer(l, name, timed);
    free_layer(l);
    return hold;
}

static void prepare(struct layer *l)
{
    must(cudaStreamCreate(&l->q.stream), "cannot make a stream");
    must(cudaMalloc((void **)&l->q.workspace, CUDA_WORKSPACE_FLOATS * sizeof(float)), "cannot allocate");
    must(cudaEventCreate(&l->begin), "cannot make an event");
    must(cudaEventCreate(&l->end), "cannot make an event");
}

static void release(struct layer *l)
{
    must(cudaEventDestroy(l->begin), "cannot destroy an event");
    must(cudaEventDestroy(l->end), "cannot destroy an event");
    must(cudaFree(l->q.workspace), "cannot free memory");
    must(cudaStreamDestroy(l->q.stream), "cannot destroy a stream");
}

static int run(struct layer *l, int edge, bool timed)
{
    prepare(l);
    (void)printf("{\"library\": \"%s\"", cuda_blas_name(l->blas));
    bool hold = check_shape(l, edge, edge, timed ? edge : edge + 1, timed);
    if (timed)
        hold = check_shape(l, edge, edge, ODD_WIDTH, timed) && hold;
    (void)printf("}\n");
    release(l);
    return hold ? 0 : 1;
}

int main(int argc, char **argv)
{
    const bool timed = argc > 1 && strcmp(argv[1], "time") == 0;
    const int edge = argc > 2 ? atoi(argv[2]) : timed ? 4096 : 512;
    struct layer l = {.n = 0};
    int n_devices = 0;

    if (argc < 2 || (!timed && strcmp(argv[1], "check") != 0) || edge < 512 || edge > 16384) {
        (void)fprintf(stderr, "usage: kernel_blas check [EDGE] | time [EDGE]\n");
        return 2;
    }
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        (void)fprintf(stderr, "kernel_blas: no device\n");
        return 77;
    }
    if (cuda_blas_open(getenv("CRW_CUBLASLT_LIBRARY"), &l.blas) != 0) {
        (void)fprintf(stderr, "kernel_blas: %s\n", crw_error_message());
        return 1;
    }
    if (!l.blas) {
        (void)fprintf(stderr, "kernel_blas: no cuBLASLt can be loaded\n");
        return 77;
    }
    const int code = run(&l, edge, timed);
    cuda_blas_close(l.blas);
    return code;
}
