/*
 * Which products of linear layers go to cuBLASLt, here a fake one, and what becomes of them when it is not there, has no
 * algorithm, or fails. Arguments: the fake's file, and a library that is none.
 */

#include "tests/unit/worker-runtime/kernel_support.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/cuda/cuda_blas.h"
#include "worker-runtime/cuda/library_os.h"

#include "tests/fakes/fake_cublaslt.h"

enum { N = 512, IN = 512, OUT = 513, N_SAMPLES = 300, STATUS_INTERNAL_ERROR = 14 };

const struct backend *crw_backend(void);

static const char *fake_path, *other_path;
static struct fake_cublaslt *fake;
static int n_failed;

static void expect(bool holds, const char *what)
{
    if (!holds)
        n_failed++;
    if (!holds)
        printf("kernel_blas: not so: %s\n", what);
}

struct linear {
    float *x, *w, *bias, *dy, *y, *dw, *db, *dx;
};

static struct linear new_linear(void)
{
    return (struct linear){.x = kernel_random(N * IN),
                           .w = kernel_random(IN * OUT),
                           .bias = kernel_random(OUT),
                           .dy = kernel_random(N * OUT),
                           .y = kernel_device_floats(N * OUT),
                           .dw = kernel_device_floats(IN * OUT),
                           .db = kernel_device_floats(OUT),
                           .dx = kernel_device_floats(N * IN)};
}

/* sum over k of a[k * step_a] * b[k * step_b], plus a bias. */
static double dot(const float *a, size_t step_a, const float *b, size_t step_b, size_t n, float bias)
{
    double sum = (double)bias;
    for (size_t k = 0; k < n; k++)
        sum += (double)a[k * step_a] * (double)b[k * step_b];
    return sum;
}

static bool is_near(float actual, double expected)
{
    return fabs((double)actual - expected) < 1e-3;
}

/* A few elements of each result. */
static bool are_right(const struct linear *l)
{
    bool right = true;
    for (int i = 0; i < N_SAMPLES; i++) {
        const size_t n = kernel_random_u32() % N, in = kernel_random_u32() % IN,
                     out = kernel_random_u32() % OUT;
        const double y = dot(l->x + n * IN, 1, l->w + out * IN, 1, IN, l->bias[out]);
        static const float one = 1;
        right = right && is_near(l->y[n * OUT + out], y < 0 ? 0 : y) &&
                is_near(l->dw[out * IN + in], dot(l->dy + out, OUT, l->x + in, IN, N, 0)) &&
                is_near(l->db[out], dot(l->dy + out, OUT, &one, 0, N, 0)) &&
                is_near(l->dx[n * IN + in], dot(l->dy + n * OUT, 1, l->w + in, IN, OUT, 0));
    }
    return right;
}

static void takes_large_products(void)
{
    struct linear l = new_linear();
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_TF32);
    struct cuda_blas *b;
    cudaError_t r;
    expect(cuda_blas_open(fake_path, &b) == 0 && b, "the fake is opened");
    expect(cuda_blas_forward(b, &q, N, IN, OUT, l.x, l.w, l.bias, true, l.y, &r), "forward is taken");
    kernel_done(&q, r);
    expect(fake->compute == 77 && fake->epilogue == 6, "TF32, bias and relu in the product");
    expect(cuda_blas_backward_weights(b, &q, N, IN, OUT, l.x, l.dy, l.dw, l.db, &r), "weights are taken");
    kernel_done(&q, r);
    expect(cuda_blas_backward_input(b, &q, N, IN, OUT, l.dy, l.w, l.dx, &r), "input is taken");
    kernel_done(&q, r);
    expect(are_right(&l), "the results are those of the layer");
    cuda_blas_close(b);
    expect(fake->n_open == 0, "everything is freed");
}

static bool takes(struct cuda_blas *b, enum crw_products precision, int n, int in, int out)
{
    static float some[1];
    struct cuda_queue q = kernel_queue(precision);
    const int before = fake->n_products;
    cudaError_t r;
    fake->fails_with = STATUS_INTERNAL_ERROR; /* only the choice counts: nothing is to be computed */
    bool taken = cuda_blas_forward(b, &q, n, in, out, some, some, some, false, some, &r);
    fake->fails_with = 0;
    expect(fake->n_products == before, "nothing is computed");
    return taken;
}

static void leaves_the_others(void)
{
    struct cuda_blas *b;
    expect(cuda_blas_open(fake_path, &b) == 0 && b, "the fake is opened");
    expect(takes(b, CRW_PRODUCTS_TF32, 512, 512, 512) && takes(b, CRW_PRODUCTS_BF16, 512, 512, 512),
           "2^27 are taken");
    expect(!takes(b, CRW_PRODUCTS_F32, 512, 512, 512), "exact products are not");
    expect(!takes(b, CRW_PRODUCTS_TF32, 511, 512, 512), "one row less is not");
    expect(!takes(b, CRW_PRODUCTS_TF32, 63, 2048, 2048), "narrow products are not");
    expect(!takes(NULL, CRW_PRODUCTS_TF32, 512, 512, 512), "without the library none is");
    fake->n_algorithms = 0;
    expect(!takes(b, CRW_PRODUCTS_TF32, 512, 512, 512), "without an algorithm none is");
    fake->n_algorithms = 1;
    cuda_blas_close(b);
}

static void reports_failures(void)
{
    struct linear l = new_linear();
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_BF16);
    struct cuda_blas *b;
    cudaError_t r = cudaSuccess;
    expect(cuda_blas_open(fake_path, &b) == 0 && b, "the fake is opened");
    fake->fails_with = STATUS_INTERNAL_ERROR;
    expect(cuda_blas_backward_weights(b, &q, N, IN, OUT, l.x, l.dy, l.dw, l.db, &r), "it is begun");
    fake->fails_with = 0;
    expect(r != cudaSuccess && cuda_blas_status(b) == STATUS_INTERNAL_ERROR, "the failure is reported");
    cuda_blas_close(b);
    expect(fake->n_open == 0, "everything is freed");
    expect(cuda_blas_open("/nonexistent/libcublasLt.so", &b) != 0 && !b, "a path that is not there");
    expect(cuda_blas_open(other_path, &b) != 0 && !b, "a library that is another");
}

/* Operands that begin at any float: the library is promised what they have. */
static void takes_any_alignment(void)
{
    struct cuda_blas *b;
    expect(cuda_blas_open(fake_path, &b) == 0 && b, "the fake is opened");
    for (size_t shift = 1; shift < 3; shift++) {
        struct cuda_queue q = kernel_queue(shift == 1 ? CRW_PRODUCTS_TF32 : CRW_PRODUCTS_BF16);
        struct linear l = new_linear();
        cudaError_t r;
        l.w = kernel_random(IN * OUT + 3) + shift;
        l.x = kernel_random(N * IN + 3) + (shift + 1) % 4;
        l.y = kernel_device_floats(N * OUT + 3) + (shift + 2) % 4;
        l.dw = kernel_device_floats(IN * OUT + 3) + (shift + 3) % 4;
        l.dx = kernel_device_floats(N * IN + 3) + shift;
        expect(cuda_blas_forward(b, &q, N, IN, OUT, l.x, l.w, l.bias, true, l.y, &r), "forward is taken");
        kernel_done(&q, r);
        expect(cuda_blas_backward_weights(b, &q, N, IN, OUT, l.x, l.dy, l.dw, l.db, &r), "weights are taken");
        kernel_done(&q, r);
        expect(cuda_blas_backward_input(b, &q, N, IN, OUT, l.dy, l.w, l.dx, &r), "input is taken");
        kernel_done(&q, r);
        expect(fake->compute == (shift == 1 ? 77 : 75), "in the precision of the queue");
        expect(fake->n_misaligned == 0, "no operand is less aligned than promised");
        expect(are_right(&l), "the results are those of the layer");
        const float *bias = kernel_random(OUT + 3) + 1;
        expect(!cuda_blas_forward(b, &q, N, IN, OUT, l.x, l.w, bias, true, l.y, &r) &&
                   cuda_blas_status(b) == 0,
               "a bias that is not aligned to 16 bytes leaves the product to libcrw");
    }
    cuda_blas_close(b);
}

/* A wheel's file, which the loader does not know, below the prefix of a Python. */
static void finds_the_library_of_a_wheel(void)
{
    static const struct library_place place = {
        .names = {"libcrw-test-of-no-wheel.so.9"},
        .wheels = {"nvidia/none/lib/none.so.9", "nvidia/some/lib/some.so.9"}};
    char prefix[] = "/tmp/kernel-blas-XXXXXX", command[1024];
    expect(mkdtemp(prefix), "there is a folder");
    (void)snprintf(
        command, sizeof(command),
        "d=%s/lib/python3.11/site-packages/nvidia/some/lib && mkdir -p $d %s/bin && cp %s $d/some.so.9 && "
        "ln -s /bin/true %s/bin/python3",
        prefix, prefix, fake_path, prefix);
    expect(system(command) == 0, "it has a wheel");
    expect(!library_open(&place, NULL), "a Python that is not in use is not looked at");
    (void)setenv("CONDA_PREFIX", prefix, 1);
    void *library = library_open(&place, NULL);
    expect(library && dlsym(library, "fake_cublaslt"), "the environment in use is");
    (void)unsetenv("CONDA_PREFIX");
    (void)snprintf(command, sizeof(command), "%s/bin", prefix);
    (void)setenv("PATH", command, 1);
    expect(library_open(&place, NULL) == library, "so is the first Python on PATH");
    (void)snprintf(command, sizeof(command), "PATH=/usr/bin:/bin; mkdir %s/local && mv %s/lib %s/local",
                   prefix, prefix, prefix);
    expect(system(command) == 0 && library_open(&place, NULL), "and what Debian's pip installs for it");
    (void)setenv("PATH", "/usr/bin:/bin", 1);
    expect(!library_open(&place, "/nonexistent.so"), "a path is not replaced by another");
    (void)snprintf(command, sizeof(command), "rm -r %s", prefix);
    expect(system(command) == 0, "the folder is removed");
}

/* ---- training steps ---- */

/* hidden: the width between the two linear layers. One that is no multiple of 64 moves the tensors behind it. */
static struct crw_model *new_model(int hidden)
{
    const struct crw_layer layers[] = {
        {.kind = CRW_LAYER_FLATTEN},     {.kind = CRW_LAYER_LINEAR, .name = "fc1", .in = IN, .out = hidden},
        {.kind = CRW_LAYER_RELU},        {.kind = CRW_LAYER_LINEAR, .name = "fc2", .in = hidden, .out = IN},
        {.kind = CRW_LAYER_LOG_SOFTMAX},
    };
    struct crw_model *model = NULL;
    expect(crw_model_create(layers, ARRAY_SIZE(layers), (struct crw_shape){1, 16, IN / 16}, N, NULL,
                            &model) == 0,
           "there is a model");
    return model;
}

static char products[1024]; /* as the trainer of the last step described them */

/* What a step returns. libcrw's kernels do nothing in it, so only what the fake has seen counts. */
static int step_in(enum crw_products precision, const char *library, int hidden)
{
    static const float table[256];
    static uint8_t items[N * IN];
    static int64_t targets[N];
    static uint32_t list[N];
    const struct backend *b = crw_backend();
    const struct crw_samples samples = {.inputs = items, .table = table, .targets = targets, .n = N};
    struct crw_model *model = new_model(hidden);
    const struct backend_trainer_options options = {.model = model,
                                                    .loss = CRW_NLL,
                                                    .optimizer = {.kind = CRW_SGD, .lr = 1},
                                                    .precision = precision,
                                                    .blas_library = library};
    struct backend_trainer *trainer;
    struct crw_trained progress;
    cuda_host_set_dry(true);
    fake->dry = true;
    int r = b->trainer_create(&options, &trainer);
    if (r == 0) {
        expect(b->trainer_set_data(trainer, BACKEND_TRAIN, &samples) == 0, "there are samples");
        expect(b->trainer_start(trainer, list, N, 0) == 0, "they are listed");
        r = b->trainer_step(trainer, N, true);
        if (r == 0)
            r = b->trainer_wait(trainer, 60000, &progress);
        (void)snprintf(products, sizeof(products), "%s", b->trainer_products(trainer));
        b->trainer_destroy(trainer);
    }
    cuda_host_set_dry(false);
    fake->dry = false;
    crw_model_destroy(model);
    return r;
}

/* What the making of a trainer returns. */
static int create_trainer_with(enum crw_optimizer_kind kind)
{
    struct crw_model *model = new_model(IN);
    const struct backend_trainer_options options = {
        .model = model, .loss = CRW_NLL, .optimizer = {.kind = kind, .lr = 1}};
    struct backend_trainer *trainer = NULL;
    int r = crw_backend()->trainer_create(&options, &trainer);
    if (r == 0)
        crw_backend()->trainer_destroy(trainer);
    crw_model_destroy(model);
    return r;
}

static void trains_with_it(void)
{
    const int before = fake->n_products;
    expect(step_in(CRW_PRODUCTS_F32, fake_path, IN) == 0 && fake->n_products == before,
           "an exact step has none");
    expect(strstr(products, "by libcrw: fp32"), "and names the reason");
    expect(step_in(CRW_PRODUCTS_TF32, fake_path, IN) == 0,
           "a step is trained, with a first product before its capture");
    expect(fake->n_products == before + 10,
           "five products, before and in the capture: all but for the gradient of the batch itself");
    expect(strstr(products, "cuBLASLt 13.1.2 (") && strstr(products, fake_path),
           "version and path are named");
    expect(step_in(CRW_PRODUCTS_TF32, fake_path, OUT) == 0 && step_in(CRW_PRODUCTS_BF16, fake_path, OUT) == 0,
           "steps with an odd width are trained");
    expect(fake->n_products == before + 30 && fake->n_misaligned == 0, "their products are taken, too");
    expect(step_in(CRW_PRODUCTS_TF32, NULL, IN / 2) == 0 && strstr(products, "by libcrw: no linear layer"),
           "a small network needs none");
    (void)unsetenv("VIRTUAL_ENV");
    (void)setenv("PATH", "/nonexistent", 1);
    const bool has_one = dlopen("libcublasLt.so.13", RTLD_LAZY) || dlopen("libcublasLt.so.12", RTLD_LAZY);
    expect(has_one ||
               (step_in(CRW_PRODUCTS_TF32, NULL, IN) == 0 && strstr(products, "by libcrw: no cuBLASLt")),
           "a machine without the library does without");
    fake->fails_with = STATUS_INTERNAL_ERROR;
    expect(step_in(CRW_PRODUCTS_BF16, fake_path, IN) != 0 &&
               strstr(crw_backend()->error_message(), "status 14"),
           "a step that fails names the status");
    fake->fails_with = 0;
    expect(create_trainer_with((enum crw_optimizer_kind)CRW_OPTIMIZER_KIND_COUNT) == CRW_E_ARGUMENT &&
               strstr(crw_backend()->error_message(), "no optimizer of kind"),
           "an optimizer that the device does not know is refused");
    expect(step_in(CRW_PRODUCTS_TF32, "/nonexistent/libcublasLt.so", IN) == CRW_E_NOT_FOUND,
           "no such library");
    expect(fake->n_open == 0, "everything is freed");
}

int main(int argc, char **argv)
{
    static const struct kernel_case cases[] = {
        {"takes_large_products", takes_large_products},
        {"leaves_the_others", leaves_the_others},
        {"reports_failures", reports_failures},
        {"takes_any_alignment", takes_any_alignment},
        {"finds_the_library_of_a_wheel", finds_the_library_of_a_wheel},
        {"trains_with_it", trains_with_it},
    };
    if (argc != 3)
        return 2;
    fake_path = argv[1];
    other_path = argv[2];
    void *library = dlopen(fake_path, RTLD_NOW);
    fake = library ? dlsym(library, "fake_cublaslt") : NULL;
    if (!fake)
        return 2;
    const int r = kernel_run("kernel_blas", cases, ARRAY_SIZE(cases));
    return r ? r : n_failed > 0;
}
