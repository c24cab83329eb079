/* A matrix of libcrw, row by row, is its transpose to cuBLASLt, which counts column by column. */

#include "worker-runtime/cuda/cuda_blas.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/symbols_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/cuda/library_os.h"

/* ---- the library ---- */

/* Values of its interface, the same in CUDA 11 to 13. */
enum {
    LT_F32 = 0,
    LT_COMPUTE_BF16 = 75,
    LT_COMPUTE_TF32 = 77,
    LT_TRANSPOSE_A = 3,
    LT_TRANSPOSE_B = 4,
    LT_EPILOGUE = 7,
    LT_BIAS = 8,
    LT_EPILOGUE_NONE = 1,
    LT_EPILOGUE_BIAS = 4,
    LT_EPILOGUE_RELU_BIAS = 6,
    LT_WORKSPACE_BYTES = 1,
    LT_ALIGNMENT_A = 5,
    LT_ALIGNMENT_B = 6,
    LT_ALIGNMENT_C = 7,
    LT_ALIGNMENT_D = 8,
};

enum { LT_ALIGNMENT_MAX = 256, LT_BIAS_ALIGNMENT = 16 }; /* bytes */

struct lt_algorithm {
    uint64_t data[8];
};

struct lt_choice {
    struct lt_algorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

struct cuda_blas {
    void *library, *handle;
    int status;
    char name[CUDA_BLAS_NAME_SIZE];
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*new_operation)(void **operation, int compute, int scale_type);
    int (*set_operation)(void *operation, int attribute, const void *value, size_t n_bytes);
    int (*free_operation)(void *operation);
    int (*new_layout)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
    int (*free_layout)(void *layout);
    int (*new_preference)(void **preference);
    int (*set_preference)(void *preference, int attribute, const void *value, size_t n_bytes);
    int (*free_preference)(void *preference);
    int (*choose)(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                  int n_wanted, struct lt_choice *ret, int *ret_n);
    int (*multiply)(void *handle, void *operation, const void *alpha, const void *a, void *layout_a,
                    const void *b, void *layout_b, const void *beta, const void *c, void *layout_c, void *d,
                    void *layout_d, const struct lt_algorithm *algorithm, void *workspace,
                    size_t workspace_bytes, cudaStream_t stream);
};

static bool find_calls(struct cuda_blas *b)
{
    const struct library_function calls[] = {
        {"cublasLtGetVersion", &b->version},
        {"cublasLtCreate", &b->create},
        {"cublasLtDestroy", &b->destroy},
        {"cublasLtMatmulDescCreate", &b->new_operation},
        {"cublasLtMatmulDescSetAttribute", &b->set_operation},
        {"cublasLtMatmulDescDestroy", &b->free_operation},
        {"cublasLtMatrixLayoutCreate", &b->new_layout},
        {"cublasLtMatrixLayoutDestroy", &b->free_layout},
        {"cublasLtMatmulPreferenceCreate", &b->new_preference},
        {"cublasLtMatmulPreferenceSetAttribute", &b->set_preference},
        {"cublasLtMatmulPreferenceDestroy", &b->free_preference},
        {"cublasLtMatmulAlgoGetHeuristic", &b->choose},
        {"cublasLtMatmul", &b->multiply},
    };
    return library_find(b->library, calls, ARRAY_SIZE(calls));
}

static const struct library_place cublaslt_place = {
    .names = {"libcublasLt.so.13", "libcublasLt.so.12"},
    .wheels = {"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"},
};

static void name_library(struct cuda_blas *b)
{
    struct link_map *map = NULL;
    const size_t version = b->version();
    (void)dlinfo(b->library, RTLD_DI_LINKMAP, &map); /* map stays NULL */
    (void)snprintf(b->name, sizeof(b->name), "cuBLASLt %zu.%zu.%zu (%s)", version / 10000,
                   version / 100 % 100, version % 100, map ? map->l_name : "no path"); /* may be cut */
}

/* The library stays open: it has threads and handlers of its own. */
int cuda_blas_open(const char *path, struct cuda_blas **ret)
{
    struct cuda_blas b = {.library = library_open(&cublaslt_place, path)};
    *ret = NULL;
    if (!b.library && !path)
        return 0;
    if (!b.library)
        return crw_fail(CRW_E_NOT_FOUND, "CRW_CUBLASLT_LIBRARY cannot be loaded: %s", dlerror());
    if (!find_calls(&b) || b.create(&b.handle) != 0)
        return path ? crw_fail(CRW_E_MISMATCH, "%s is no cuBLASLt that this program can use", path) : 0;
    name_library(&b);
    *ret = malloc(sizeof(b));
    if (*ret) {
        **ret = b;
        return 0;
    }
    (void)b.destroy(b.handle);
    return crw_fail_errno(-ENOMEM, "cannot open cuBLASLt");
}

void cuda_blas_close(struct cuda_blas *b)
{
    if (b)
        (void)b->destroy(b->handle); /* everything ends */
    free(b);
}

int cuda_blas_status(const struct cuda_blas *b)
{
    return b ? b->status : 0;
}

const char *cuda_blas_name(const struct cuda_blas *b)
{
    return b->name;
}

/* ---- one product ---- */

/* D[m][n] = op(A) op(B), columns first. A and B: as they lie in memory. */
struct lt_matrix {
    const float *data;
    int rows, columns;
    bool transposed;
};

struct lt_product {
    struct lt_matrix a, b;
    int m, n, k;
    const float *bias; /* [m], or NULL */
    bool relu;
    float *d;
};

struct lt_descriptors {
    void *operation, *a, *b, *d, *preference;
};

/* The library has no preference for the bias, and reads 16 bytes at once. */
static bool is_for_blas(const struct cuda_blas *b, const struct cuda_queue *q, int m, int n, int k,
                        const float *bias)
{
    return b && (uintptr_t)bias % LT_BIAS_ALIGNMENT == 0 && q->precision != CRW_PRODUCTS_F32 &&
           m >= CUDA_BLAS_EDGE_MIN && n >= CUDA_BLAS_EDGE_MIN && k >= CUDA_BLAS_EDGE_MIN &&
           (int64_t)m * n * k >= CUDA_BLAS_MIN;
}

static int describe_operation(const struct cuda_blas *b, const struct cuda_queue *q,
                              const struct lt_product *p, void **ret)
{
    const int32_t turn_a = p->a.transposed, turn_b = p->b.transposed;
    const int32_t with_bias = p->relu ? LT_EPILOGUE_RELU_BIAS : LT_EPILOGUE_BIAS;
    const int32_t epilogue = p->bias ? with_bias : LT_EPILOGUE_NONE;
    int r =
        b->new_operation(ret, q->precision == CRW_PRODUCTS_BF16 ? LT_COMPUTE_BF16 : LT_COMPUTE_TF32, LT_F32);
    r = r ? r : b->set_operation(*ret, LT_TRANSPOSE_A, &turn_a, sizeof(turn_a));
    r = r ? r : b->set_operation(*ret, LT_TRANSPOSE_B, &turn_b, sizeof(turn_b));
    r = r ? r : b->set_operation(*ret, LT_EPILOGUE, &epilogue, sizeof(epilogue));
    if (r == 0 && p->bias)
        r = b->set_operation(*ret, LT_BIAS, &p->bias, sizeof(p->bias));
    return r;
}

/* The heuristic takes every matrix for aligned to 256 bytes unless it is given less. A kernel that was chosen for more
 * than a pointer has faults, and the device is lost for the process. */
static int promise_alignment(const struct cuda_blas *b, void *preference, int attribute, const void *pointer)
{
    const uint32_t lowest = (uint32_t)((uintptr_t)pointer & -(uintptr_t)pointer);
    const uint32_t alignment = lowest && lowest < LT_ALIGNMENT_MAX ? lowest : LT_ALIGNMENT_MAX;
    return b->set_preference(preference, attribute, &alignment, sizeof(alignment));
}

static int describe_preference(const struct cuda_blas *b, const struct lt_product *p, void **ret)
{
    const uint64_t workspace_bytes = CUDA_WORKSPACE_FLOATS * sizeof(float);
    int r = b->new_preference(ret);
    r = r ? r : b->set_preference(*ret, LT_WORKSPACE_BYTES, &workspace_bytes, sizeof(workspace_bytes));
    r = r ? r : promise_alignment(b, *ret, LT_ALIGNMENT_A, p->a.data);
    r = r ? r : promise_alignment(b, *ret, LT_ALIGNMENT_B, p->b.data);
    r = r ? r : promise_alignment(b, *ret, LT_ALIGNMENT_C, p->d);
    return r ? r : promise_alignment(b, *ret, LT_ALIGNMENT_D, p->d);
}

static int describe(const struct cuda_blas *b, const struct cuda_queue *q, const struct lt_product *p,
                    struct lt_descriptors *ret)
{
    int r = describe_operation(b, q, p, &ret->operation);
    r = r ? r : b->new_layout(&ret->a, LT_F32, (uint64_t)p->a.rows, (uint64_t)p->a.columns, p->a.rows);
    r = r ? r : b->new_layout(&ret->b, LT_F32, (uint64_t)p->b.rows, (uint64_t)p->b.columns, p->b.rows);
    r = r ? r : b->new_layout(&ret->d, LT_F32, (uint64_t)p->m, (uint64_t)p->n, p->m);
    return r ? r : describe_preference(b, p, &ret->preference);
}

/* What was described before the failure, or all of it. */
static void forget(const struct cuda_blas *b, const struct lt_descriptors *t)
{
    if (t->operation)
        (void)b->free_operation(t->operation); /* nothing depends on it any more; the same below */
    if (t->a)
        (void)b->free_layout(t->a);
    if (t->b)
        (void)b->free_layout(t->b);
    if (t->d)
        (void)b->free_layout(t->d);
    if (t->preference)
        (void)b->free_preference(t->preference);
}

/* False: it has no algorithm. */
static bool multiply(struct cuda_blas *b, const struct cuda_queue *q, const struct lt_product *p,
                     cudaError_t *ret)
{
    static const float one = 1, zero = 0;
    struct lt_descriptors t = {0};
    struct lt_choice choice = {.state = 0};
    int n_choices = 0;
    int r = describe(b, q, p, &t);
    r = r ? r : b->choose(b->handle, t.operation, t.a, t.b, t.d, t.d, t.preference, 1, &choice, &n_choices);
    const bool found = r == 0 && n_choices == 1 && choice.state == 0;
    if (found)
        r = b->multiply(b->handle, t.operation, &one, p->a.data, t.a, p->b.data, t.b, &zero, p->d, t.d, p->d,
                        t.d, &choice.algorithm, q->workspace, CUDA_WORKSPACE_FLOATS * sizeof(float),
                        q->stream);
    forget(b, &t);
    if (found && r && !b->status)
        b->status = r;
    *ret = r ? cudaErrorUnknown : cudaSuccess;
    return found;
}

/* ---- linear layers ---- */

bool cuda_blas_forward(struct cuda_blas *b, const struct cuda_queue *q, int n, int in, int out,
                       const float *x, const float *w, const float *bias, bool relu, float *y,
                       cudaError_t *ret)
{
    const struct lt_product p = {.a = {w, in, out, true},
                                 .b = {x, in, n, false},
                                 .m = out,
                                 .n = n,
                                 .k = in,
                                 .bias = bias,
                                 .relu = relu,
                                 .d = y};
    return is_for_blas(b, q, p.m, p.n, p.k, bias) && multiply(b, q, &p, ret);
}

bool cuda_blas_backward_weights(struct cuda_blas *b, const struct cuda_queue *q, int n, int in, int out,
                                const float *x, const float *dy, float *dw, float *db, cudaError_t *ret)
{
    const struct lt_product p = {
        .a = {x, in, n, false}, .b = {dy, out, n, true}, .m = in, .n = out, .k = n, .d = dw};
    if (!is_for_blas(b, q, p.m, p.n, p.k, NULL) || !multiply(b, q, &p, ret))
        return false;
    if (*ret == cudaSuccess)
        *ret = cuda_column_sums(q, n, out, dy, db);
    return true;
}

bool cuda_blas_backward_input(struct cuda_blas *b, const struct cuda_queue *q, int n, int in, int out,
                              const float *dy, const float *w, float *dx, cudaError_t *ret)
{
    const struct lt_product p = {
        .a = {w, in, out, false}, .b = {dy, out, n, false}, .m = in, .n = n, .k = out, .d = dx};
    return is_for_blas(b, q, p.m, p.n, p.k, NULL) && multiply(b, q, &p, ret);
}
