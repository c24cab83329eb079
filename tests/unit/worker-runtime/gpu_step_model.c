/*
 * What a training step of the MNIST network asks of a GPU, counted without one.
 *
 *     gpu_step_model [BATCH [exact|tf32|bf16]]     prints it (default: 64 exact)
 *     gpu_step_model check                         fails where it is more than it should be
 *
 * Nodes come from the graphs that the emulated runtime captures, everything about products from the plan that the
 * launches use (gemm_plan.h). tests/gpu/sass.py adds the instructions.
 */

#include "worker-runtime/cuda/backend_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/err.h"
#include "worker-runtime/kernels/cuda/gemm_plan.h"
#include "worker-runtime/model/model.h"

#include "tests/support/c/mnist_net.h"

enum { TIMEOUT_MS = 10000, PRODUCTS_MAX = 16, NODES_MAX = 34, CHAIN_MAX = 30, PERCENT_MIN = 60 };

const struct backend *crw_backend(void);

static const char *const precisions[CRW_PRODUCTS_COUNT] = {"exact", "tf32", "bf16"};

static void must(int r, const char *what)
{
    if (r == 0)
        return;
    (void)fprintf(stderr, "gpu_step_model: %s: %s\n", what, crw_error_message());
    exit(1);
}

/* ---- what a product costs ---- */

static int64_t count_blocks(const struct gemm_plan *plan)
{
    return (int64_t)plan->tiles_down * plan->tiles_across * plan->n_splits;
}

/* Slices of k of all blocks; the last of a block may be shorter. */
static int64_t count_slices(const struct gemm_plan *plan, const struct gemm_shape *s)
{
    const int64_t last = s->k - (int64_t)(plan->n_splits - 1) * plan->k_of_split;
    const int64_t slices =
        (int64_t)(plan->n_splits - 1) * (plan->k_of_split / GEMM_SLICE) + ceil_div((int)last, GEMM_SLICE);
    return slices * plan->tiles_down * plan->tiles_across;
}

/* Multiply-adds that the blocks make: whole tiles, and as many k as the precision's multiply takes at once. */
static int64_t count_computed(const struct gemm_plan *plan, const struct gemm_shape *s)
{
    static const int k_at_once[CRW_PRODUCTS_COUNT] = {1, 8, GEMM_SLICE};
    const int at_once = k_at_once[plan->precision];
    const int last = s->k - (plan->n_splits - 1) * plan->k_of_split;
    const int64_t k =
        (int64_t)(plan->n_splits - 1) * plan->k_of_split + (int64_t)ceil_div(last, at_once) * at_once;
    return gemm_area(plan->tile, s) * k;
}

/* Bytes that the blocks load for their slices, that they store, and that adding the splits up takes. Loads of the same data
 * by several blocks come from the second-level cache. */
static int64_t count_bytes(const struct gemm_plan *plan, const struct gemm_shape *s)
{
    const struct gemm_size tile = gemm_tile_size(plan->tile);
    const int64_t loaded = count_slices(plan, s) * GEMM_SLICE * (tile.m + tile.n);
    const int64_t result = (int64_t)s->m * gemm_columns(s);
    const int64_t partial = plan->n_splits > 1 ? 2 * plan->n_splits * result : 0;
    return (loaded + partial + result) * (int64_t)sizeof(float);
}

/* ---- products ---- */

struct product {
    const char *layer, *pass, *operands; /* operands: the names of the kernel's, for sass.py */
    struct gemm_shape shape;
};

struct products {
    size_t n;
    struct product of[PRODUCTS_MAX];
};

static void add(struct products *p, const char *layer, const char *pass, const char *operands,
                struct gemm_shape shape)
{
    if (p->n < PRODUCTS_MAX)
        p->of[p->n++] = (struct product){layer, pass, operands, shape};
}

static void add_conv(struct products *p, const char *layer, int n, const struct conv_shape *s, bool first)
{
    add(p, layer, "forward", "patches_by_pixel,weights_forward", conv_forward_shape(n, s));
    add(p, layer, "weights", "output_channels,patches_by_tap", conv_backward_weights_shape(n, s));
    if (!first)
        add(p, layer, "input", "output_patches,weights_backward", conv_backward_input_shape(n, s));
}

static void add_linear(struct products *p, const char *layer, int n, int in, int out)
{
    add(p, layer, "forward", "rows_of,rows_of", linear_forward_shape(n, in, out));
    add(p, layer, "weights", "columns_of,columns_of", linear_backward_weights_shape(n, in, out));
    add(p, layer, "input", "rows_of,columns_of", linear_backward_input_shape(n, in, out));
}

static struct products list_products(const struct crw_model *model, int n)
{
    static const char *const names[] = {"conv1", "conv2", "fc1", "fc2"}; /* in the order of their steps */
    struct products p = {0};
    size_t name = 0;
    for (size_t i = 0; i < model->n_steps; i++) {
        const struct model_step *step = &model->steps[i];
        if (step->kind == STEP_CONV)
            add_conv(&p, names[name++], n, &step->conv.shape, i == model->first_trained);
        if (step->kind == STEP_LINEAR)
            add_linear(&p, names[name++], n, step->in.channels, step->out.channels);
    }
    return p;
}

static double percent_useful(const struct product *p, const struct gemm_plan *plan)
{
    return 100.0 * (double)p->shape.useful / (double)count_computed(plan, &p->shape);
}

/* ---- nodes ---- */

struct nodes {
    size_t n, chained;
};

/* One step in which nothing is computed: what counts is what is captured. */
static struct nodes count_nodes(struct crw_model *model, int batch)
{
    static const struct crw_optimizer_options options = {
        .kind = CRW_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6};
    static const float table[256];
    const struct backend *b = crw_backend();
    const size_t n = (size_t)batch, n_pixels = 784;
    uint8_t *items = calloc(n, n_pixels);
    int64_t *labels = calloc(n, sizeof(*labels));
    uint32_t *list = calloc(n, sizeof(*list));
    const struct crw_samples samples = {
        .inputs = items, .table = table, .targets = labels, .n = (uint32_t)batch};
    struct crw_optimizer *optimizer;
    struct backend_trainer *trainer;
    struct crw_trained progress;

    must(!items || !labels || !list, "out of memory");
    must(crw_optimizer_create(&options, model->n_parameters, &optimizer), "optimizer");
    struct backend_trainer_options o = {
        .model = model, .loss = CRW_NLL, .ignore_index = CRW_IGNORE_INDEX, .optimizer = options};
    for (size_t i = 0; i < ARRAY_SIZE(o.states); i++)
        o.states[i] = crw_optimizer_state(optimizer, i, NULL);
    cuda_host_set_dry(true);
    must(b->trainer_create(&o, &trainer), "trainer");
    must(b->trainer_set_data(trainer, BACKEND_TRAIN, &samples), "data");
    must(b->trainer_start(trainer, list, n, 0), "start");
    const struct nodes before = {cuda_host_count_nodes(), cuda_host_count_chained()};
    must(b->trainer_step(trainer, batch, true), "step");
    must(b->trainer_wait(trainer, TIMEOUT_MS, &progress), "wait");
    must(b->trainer_end_step(trainer, true), "end of the step");
    const struct nodes counted = {cuda_host_count_nodes() - before.n,
                                  cuda_host_count_chained() - before.chained};
    b->trainer_destroy(trainer);
    crw_optimizer_destroy(optimizer);
    free(items);
    free(labels);
    free(list);
    return counted;
}

/* ---- printing and checking ---- */

static struct crw_model *new_model(int batch)
{
    struct crw_model *model;
    must(crw_model_create(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, batch, NULL, &model), "model");
    return model;
}

static void print_product(const struct product *p, const struct gemm_plan *plan)
{
    const struct gemm_size tile = gemm_tile_size(plan->tile);
    char size[16];
    (void)snprintf(size, sizeof(size), "%dx%d", tile.m, tile.n);
    printf("%-6s %-8s %-33s %-6s %-6s %7lld %8lld %9.1f %9.1f %5.0f %% %8.1f\n", p->layer, p->pass,
           p->operands, precisions[plan->precision], size, (long long)count_blocks(plan),
           (long long)count_slices(plan, &p->shape), 2e-6 * (double)p->shape.useful,
           2e-6 * (double)count_computed(plan, &p->shape), percent_useful(p, plan),
           1e-6 * (double)count_bytes(plan, &p->shape));
}

static int print_model(int batch, enum crw_products precision)
{
    struct crw_model *model = new_model(batch);
    const struct products products = list_products(model, batch);
    const struct nodes nodes = count_nodes(model, batch);
    int64_t useful = 0, computed = 0, n_bytes = 0;
    printf("a training step of the MNIST network, batch %d, %s\n", batch, precisions[precision]);
    printf("%zu graph nodes, %zu of them one after the other\n", nodes.n, nodes.chained);
    printf("%-6s %-8s %-33s %-6s %-6s %7s %8s %9s %9s %7s %8s\n", "layer", "product", "operands", "as",
           "tile", "blocks", "slices", "useful MF", "computed", "useful", "MB");
    for (size_t i = 0; i < products.n; i++) {
        const struct gemm_plan plan = gemm_plan_of(precision, &products.of[i].shape);
        print_product(&products.of[i], &plan);
        useful += products.of[i].shape.useful;
        computed += count_computed(&plan, &products.of[i].shape);
        n_bytes += count_bytes(&plan, &products.of[i].shape);
    }
    printf("all products: %.0f MFLOP useful, %.0f computed (%.0f %%), %.0f MB read and written\n",
           2e-6 * (double)useful, 2e-6 * (double)computed, 100.0 * (double)useful / (double)computed,
           1e-6 * (double)n_bytes);
    crw_model_destroy(model);
    return 0;
}

static int check_products(int batch, enum crw_products precision)
{
    struct crw_model *model = new_model(batch);
    const struct products products = list_products(model, batch);
    int r = products.n != 11;
    for (size_t i = 0; i < products.n; i++) {
        const struct product *p = &products.of[i];
        const struct gemm_plan plan = gemm_plan_of(precision, &p->shape);
        if (percent_useful(p, &plan) >= PERCENT_MIN)
            continue;
        r = 1;
        printf("batch %d, %s: only %.0f %% of what %s %s computes is useful\n", batch, precisions[precision],
               percent_useful(p, &plan), p->layer, p->pass);
    }
    crw_model_destroy(model);
    return r;
}

static int check_nodes(int batch)
{
    struct crw_model *model = new_model(batch);
    const struct nodes nodes = count_nodes(model, batch);
    crw_model_destroy(model);
    printf("batch %d: %zu nodes, %zu one after the other\n", batch, nodes.n, nodes.chained);
    return nodes.n == 0 || nodes.n > NODES_MAX || nodes.chained > CHAIN_MAX;
}

static int check(void)
{
    static const int batches[] = {64, 128, 256};
    int r = check_nodes(64);
    for (size_t i = 0; i < ARRAY_SIZE(batches); i++)
        for (int precision = 0; precision < CRW_PRODUCTS_COUNT; precision++)
            r |= check_products(batches[i], (enum crw_products)precision);
    return r;
}

int main(int argc, char **argv)
{
    const int batch = argc > 1 ? atoi(argv[1]) : 64;
    if (argc == 2 && strcmp(argv[1], "check") == 0)
        return check();
    for (int i = 0; batch > 0 && i < CRW_PRODUCTS_COUNT; i++)
        if (argc < 3 ? i == CRW_PRODUCTS_F32 : strcmp(argv[2], precisions[i]) == 0)
            return print_model(batch, (enum crw_products)i);
    (void)fprintf(stderr, "usage: gpu_step_model [BATCH [exact|tf32|bf16]] | check\n");
    return 2;
}
