/*
 * A training step whose products of linear layers go to cuBLASLt, here a fake one, beside the same step by libcrw's own
 * kernels, in TF32 and BF16. The widths are odd, so that no row but the first of a matrix is aligned. Argument: the fake's
 * file. Built with a smaller CUDA_BLAS_MIN.
 *
 * Inputs and weights are small multiples of powers of two: what comes to each relu is exact in both precisions, so no relu
 * decides otherwise in one of the two steps, and what is left is the rounding of gradients.
 */

#include <dlfcn.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/model/model.h"

#include "tests/fakes/fake_cublaslt.h"
#include "tests/support/c/cmocka_fixed.h"

enum { BATCH = 64, N_INPUTS = 512, ODD_WIDTH = 513, N_CLASSES = 512, PRODUCTS_OF_STEP = 8 };

const struct backend *crw_backend(void);

static const char *fake_path;
static struct fake_cublaslt *fake;

static const struct crw_layer layers[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "a", .in = N_INPUTS, .out = ODD_WIDTH},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "b", .in = ODD_WIDTH, .out = ODD_WIDTH},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "c", .in = ODD_WIDTH, .out = N_CLASSES},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

static float inputs[BATCH * N_INPUTS];
static int64_t classes[BATCH];
static uint32_t list[BATCH];

/* -unit, 0 or unit. */
static void fill_exactly(struct crw_rng *rng, float *values, size_t count, float unit)
{
    for (size_t i = 0; i < count; i++)
        values[i] = ((float)(crw_rng_u32(rng) % 3) - 1) * unit;
}

static void fill(void)
{
    struct crw_rng rng;
    crw_rng_seed(&rng, 3);
    fill_exactly(&rng, inputs, ARRAY_SIZE(inputs), 1);
    for (uint32_t i = 0; i < ARRAY_SIZE(list); i++) {
        classes[i] = crw_rng_u32(&rng) % N_CLASSES;
        list[i] = i;
    }
}

static struct crw_model *new_model(void)
{
    struct crw_model *model;
    struct crw_rng rng;
    assert_int_equal(
        crw_model_create(layers, ARRAY_SIZE(layers), (struct crw_shape){N_INPUTS, 1, 1}, BATCH, NULL, &model),
        0);
    crw_rng_seed(&rng, 4);
    fill_exactly(&rng, model->parameters, model->n_parameters, 0.125f);
    return model;
}

static double take_step(struct backend_trainer *t)
{
    const struct backend *b = crw_backend();
    struct crw_trained progress;
    assert_int_equal(b->trainer_step(t, BATCH, true), 0);
    assert_int_equal(b->trainer_wait(t, 60000, &progress), 0);
    assert_int_equal(b->trainer_end_step(t, true), 0);
    assert_int_equal(b->trainer_stage(t), 0);
    assert_int_equal(b->trainer_download(t, 60000, 1), 0);
    return progress.loss;
}

/* The model behind a step. by_blas false: the library has no algorithm for any product. */
static struct crw_model *train(enum crw_products precision, bool by_blas, double *ret_loss)
{
    const struct backend *b = crw_backend();
    const struct crw_samples samples = {.inputs = inputs, .targets = classes, .n = ARRAY_SIZE(list)};
    const int before = fake->n_products;
    struct crw_model *model = new_model();
    struct backend_trainer *trainer;
    const struct backend_trainer_options options = {.model = model,
                                                    .ignore_index = CRW_IGNORE_INDEX,
                                                    .optimizer = {.kind = CRW_SGD, .lr = 1},
                                                    .precision = precision,
                                                    .blas_library = fake_path};
    fake->n_algorithms = by_blas;
    assert_int_equal(b->trainer_create(&options, &trainer), 0);
    assert_int_equal(b->trainer_set_data(trainer, BACKEND_TRAIN, &samples), 0);
    assert_int_equal(b->trainer_start(trainer, list, ARRAY_SIZE(list), 0), 0);
    *ret_loss = take_step(trainer);
    b->trainer_destroy(trainer);
    /* Before the capture and in it. */
    assert_int_equal(fake->n_products - before, by_blas ? 2 * PRODUCTS_OF_STEP : 0);
    assert_int_equal(fake->n_open, 0);
    assert_int_equal(fake->n_misaligned, 0);
    return model;
}

/* The distance of two tensors' changes since `start`, relative to the size of the change. */
static double distance(const float *a, const float *b, const float *start, size_t count)
{
    double squares = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        const double apart = (double)a[i] - (double)b[i], change = (double)b[i] - (double)start[i];
        squares += apart * apart;
        size += change * change;
    }
    return sqrt(squares / size);
}

/* bound: what rounding the operands of a product costs at most, as in the tests of the kernels. */
static void check(enum crw_products precision, double bound)
{
    double loss_by_blas, loss;
    struct crw_model *start = new_model(), *by_blas = train(precision, true, &loss_by_blas),
                     *own = train(precision, false, &loss);
    assert_true(fabs(loss - loss_by_blas) <= bound * loss);
    for (size_t i = 0; i < own->n_tensors; i++) {
        const struct crw_tensor *t = &own->tensors[i];
        const size_t at = (size_t)((float *)t->data - own->parameters);
        const size_t count = (size_t)t->dims[0] * (t->n_dims > 1 ? (size_t)t->dims[1] : 1);
        const double apart =
            distance(by_blas->parameters + at, own->parameters + at, start->parameters + at, count);
        if (!(apart <= bound))
            fail_msg("%s: %.3g apart, allowed %.3g", t->name, apart, bound);
        print_message("%s: %.3g apart, allowed %.3g\n", t->name, apart, bound);
    }
    crw_model_destroy(start);
    crw_model_destroy(by_blas);
    crw_model_destroy(own);
}

static void a_tf32_step_is_that_of_libcrw(void **state)
{
    check(CRW_PRODUCTS_TF32, 1e-3);
}

static void a_bf16_step_is_that_of_libcrw(void **state)
{
    check(CRW_PRODUCTS_BF16, 8e-3);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tf32_step_is_that_of_libcrw),
        cmocka_unit_test(a_bf16_step_is_that_of_libcrw),
    };
    if (argc != 2)
        return 2;
    fake_path = argv[1];
    void *library = dlopen(fake_path, RTLD_NOW);
    fake = library ? dlsym(library, "fake_cublaslt") : NULL;
    if (!fake)
        return 2;
    fill();
    return cmocka_run_group_tests_name("kernel_blas_steps", tests, NULL, NULL);
}
