/*
 * cuBLASLt as far as worker-runtime/cuda/cuda_blas.c calls it: products are queued on the emulated streams and computed in
 * double. What the real library refuses is refused: shapes that do not fit, an algorithm that it did not choose, too
 * little workspace, a bias that is not aligned to 16 bytes (a status). An operand that is less aligned than the preference
 * promised breaks the device, as the kernel of the real library would: the promise is 256 bytes unless set otherwise.
 * A product whose kind and shape were not computed before is refused inside a capture, where the real library would load
 * a kernel. Objects that are not freed are counted.
 */

#include "tests/fakes/fake_cublaslt.h"

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

enum { SUCCESS = 0, INVALID_VALUE = 7, TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS = 8 };
enum { ALGORITHM = 0x414c474f, WORKSPACE_NEEDED = 1 << 20, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { VERSION = 130102, N_KINDS_MAX = 256 };
enum { WORKSPACE_BYTES = 1, ALIGNMENT_A = 5, ALIGNMENT_D = 8, ALIGNMENT_DEFAULT = 256, BIAS_ALIGNMENT = 16 };

struct operation {
    int compute;
    int32_t turn_a, turn_b, epilogue;
    const float *bias;
};

/* alignment: of A, B, C and D in bytes. */
struct preference {
    uint64_t workspace_bytes;
    uint32_t alignment[4];
};

struct layout {
    uint64_t rows, columns;
    int64_t stride;
};

struct work {
    struct operation operation;
    struct layout layout_a, layout_b, layout_d;
    const float *a, *b;
    float *d;
    bool aligned; /* as the algorithm was promised */
};

struct choice {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

extern struct fake_cublaslt fake_cublaslt;
struct fake_cublaslt fake_cublaslt = {.n_algorithms = 1};

/* What makes the real library choose another kernel. */
struct kind {
    int compute;
    int32_t turn_a, turn_b, epilogue;
    uint64_t m, n, k, alignment[4];
};

static struct kind kinds[N_KINDS_MAX]; /* that were computed outside of captures */
static int n_kinds;

static int make(void **ret, size_t n_bytes)
{
    *ret = calloc(1, n_bytes);
    fake_cublaslt.n_open++;
    return *ret ? SUCCESS : INVALID_VALUE;
}

static int drop(void *object)
{
    free(object);
    fake_cublaslt.n_open--;
    return SUCCESS;
}

size_t cublasLtGetVersion(void);
int cublasLtCreate(void **handle);
int cublasLtDestroy(void *handle);
int cublasLtMatmulDescCreate(void **ret, int compute, int scale_type);
int cublasLtMatmulDescSetAttribute(void *operation, int attribute, const void *value, size_t n_bytes);
int cublasLtMatmulDescDestroy(void *operation);
int cublasLtMatrixLayoutCreate(void **ret, int type, uint64_t rows, uint64_t columns, int64_t stride);
int cublasLtMatrixLayoutDestroy(void *layout);
int cublasLtMatmulPreferenceCreate(void **ret);
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t n_bytes);
int cublasLtMatmulPreferenceDestroy(void *preference);
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                   void *preference, int n_wanted, struct choice *ret, int *ret_n);
int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, void *layout_a,
                   const void *b, void *layout_b, const void *beta, const void *c, void *layout_c, void *d,
                   void *layout_d, const uint64_t *algorithm, void *workspace, size_t workspace_bytes,
                   cudaStream_t stream);

size_t cublasLtGetVersion(void)
{
    return VERSION;
}

int cublasLtCreate(void **handle)
{
    return make(handle, 1);
}

int cublasLtDestroy(void *handle)
{
    return drop(handle);
}

int cublasLtMatmulDescCreate(void **ret, int compute, int scale_type)
{
    int r = scale_type == 0 ? make(ret, sizeof(struct operation)) : INVALID_VALUE;
    if (r == SUCCESS)
        *(struct operation *)*ret = (struct operation){.compute = compute, .epilogue = 1};
    return r;
}

int cublasLtMatmulDescSetAttribute(void *operation, int attribute, const void *value, size_t n_bytes)
{
    struct operation *o = operation;
    void *to = attribute == TRANSPOSE_A   ? (void *)&o->turn_a
               : attribute == TRANSPOSE_B ? (void *)&o->turn_b
               : attribute == EPILOGUE    ? (void *)&o->epilogue
               : attribute == BIAS        ? (void *)&o->bias
                                          : NULL;
    if (!to || n_bytes != (attribute == BIAS ? sizeof(o->bias) : sizeof(o->turn_a)))
        return INVALID_VALUE;
    memcpy(to, value, n_bytes);
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(void *operation)
{
    return drop(operation);
}

int cublasLtMatrixLayoutCreate(void **ret, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    int r = type == 0 && stride >= (int64_t)rows ? make(ret, sizeof(struct layout)) : INVALID_VALUE;
    if (r == SUCCESS)
        *(struct layout *)*ret = (struct layout){rows, columns, stride};
    return r;
}

int cublasLtMatrixLayoutDestroy(void *layout)
{
    return drop(layout);
}

int cublasLtMatmulPreferenceCreate(void **ret)
{
    int r = make(ret, sizeof(struct preference));
    for (int i = 0; r == SUCCESS && i < 4; i++)
        ((struct preference *)*ret)->alignment[i] = ALIGNMENT_DEFAULT;
    return r;
}

int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t n_bytes)
{
    struct preference *p = preference;
    const bool aligns = attribute >= ALIGNMENT_A && attribute <= ALIGNMENT_D;
    if (attribute == WORKSPACE_BYTES && n_bytes == sizeof(p->workspace_bytes))
        memcpy(&p->workspace_bytes, value, n_bytes);
    else if (aligns && n_bytes == sizeof(p->alignment[0]))
        memcpy(&p->alignment[attribute - ALIGNMENT_A], value, n_bytes);
    else
        return INVALID_VALUE;
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(void *preference)
{
    return drop(preference);
}

static bool do_shapes_fit(const struct operation *o, const struct layout *a, const struct layout *b,
                          const struct layout *d)
{
    const uint64_t m = o->turn_a ? a->columns : a->rows, k = o->turn_a ? a->rows : a->columns;
    const uint64_t n = o->turn_b ? b->rows : b->columns, k_of_b = o->turn_b ? b->columns : b->rows;
    return k == k_of_b && m == d->rows && n == d->columns;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                   void *preference, int n_wanted, struct choice *ret, int *ret_n)
{
    (void)handle;
    if (c != d || n_wanted != 1 || !do_shapes_fit(operation, a, b, d))
        return INVALID_VALUE;
    const struct preference *p = preference;
    if (p->workspace_bytes < WORKSPACE_NEEDED)
        return INVALID_VALUE;
    *ret = (struct choice){.algorithm = {ALGORITHM}, .workspace_bytes = WORKSPACE_NEEDED};
    for (int i = 0; i < 4; i++)
        ret->algorithm[1 + i] = p->alignment[i];
    *ret_n = fake_cublaslt.n_algorithms;
    return SUCCESS;
}

static bool is_aligned(const void *pointer, uint64_t alignment)
{
    return alignment && (uintptr_t)pointer % alignment == 0;
}

static bool compute(void *data)
{
    const struct work *w = data;
    if (!w->aligned) {
        fake_cublaslt.n_misaligned++;
        cuda_host_break(cudaErrorMisalignedAddress);
        return true;
    }
    if (fake_cublaslt.dry)
        return true;
    const struct operation *o = &w->operation;
    const uint64_t n_k = o->turn_a ? w->layout_a.rows : w->layout_a.columns;
    const uint64_t stride_a = (uint64_t)w->layout_a.stride, stride_b = (uint64_t)w->layout_b.stride;
    const uint64_t rows_a = o->turn_a ? stride_a : 1, columns_a = o->turn_a ? 1 : stride_a;
    const uint64_t rows_b = o->turn_b ? stride_b : 1, columns_b = o->turn_b ? 1 : stride_b;
    for (uint64_t n = 0; n < w->layout_d.columns; n++)
        for (uint64_t m = 0; m < w->layout_d.rows; m++) {
            double sum = o->epilogue & 4 ? (double)o->bias[m] : 0;
            for (uint64_t k = 0; k < n_k; k++)
                sum += (double)w->a[m * rows_a + k * columns_a] * (double)w->b[k * rows_b + n * columns_b];
            w->d[n * (uint64_t)w->layout_d.stride + m] = o->epilogue & 2 && sum < 0 ? 0 : (float)sum;
        }
    return true;
}

/* False: a capture is no place for the first product of a kind. */
static bool is_loaded(const struct kind *kind, cudaStream_t stream)
{
    for (int i = 0; i < n_kinds; i++)
        if (memcmp(&kinds[i], kind, sizeof(*kind)) == 0)
            return true;
    if (cuda_host_is_capturing(stream) || n_kinds == N_KINDS_MAX)
        return false;
    kinds[n_kinds++] = *kind;
    return true;
}

static struct kind kind_of(const struct operation *o, const struct layout *a, const struct layout *d,
                           const uint64_t *algorithm)
{
    struct kind kind;
    memset(&kind, 0, sizeof(kind));
    kind.compute = o->compute;
    kind.turn_a = o->turn_a;
    kind.turn_b = o->turn_b;
    kind.epilogue = o->epilogue;
    kind.m = d->rows;
    kind.n = d->columns;
    kind.k = o->turn_a ? a->rows : a->columns;
    memcpy(kind.alignment, algorithm + 1, sizeof(kind.alignment));
    return kind;
}

int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, void *layout_a,
                   const void *b, void *layout_b, const void *beta, const void *c, void *layout_c, void *d,
                   void *layout_d, const uint64_t *algorithm, void *workspace, size_t workspace_bytes,
                   cudaStream_t stream)
{
    const struct operation *o = operation;
    (void)handle;
    if (*(const float *)alpha != 1 || *(const float *)beta != 0 || c != d || layout_c != layout_d ||
        algorithm[0] != ALGORITHM || !workspace || workspace_bytes < WORKSPACE_NEEDED ||
        !do_shapes_fit(operation, layout_a, layout_b, layout_d))
        return INVALID_VALUE;
    if (fake_cublaslt.fails_with)
        return fake_cublaslt.fails_with;
    if (o->epilogue & 4 && !is_aligned(o->bias, BIAS_ALIGNMENT))
        return NOT_SUPPORTED;
    const struct kind kind = kind_of(o, layout_a, layout_d, algorithm);
    if (!is_loaded(&kind, stream))
        return EXECUTION_FAILED;
    struct work *w = malloc(sizeof(*w));
    if (!w)
        return INVALID_VALUE;
    *w = (struct work){*o,
                       *(struct layout *)layout_a,
                       *(struct layout *)layout_b,
                       *(struct layout *)layout_d,
                       a,
                       b,
                       d,
                       is_aligned(a, algorithm[1]) && is_aligned(b, algorithm[2]) &&
                           is_aligned(c, algorithm[3]) && is_aligned(d, algorithm[4])};
    fake_cublaslt.n_products++;
    fake_cublaslt.compute = o->compute;
    fake_cublaslt.epilogue = o->epilogue;
    return cuda_host_enqueue_owned(stream, compute, free, w) == cudaSuccess ? SUCCESS : INVALID_VALUE;
}
