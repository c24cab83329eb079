#pragma once

/*
 * Inside of a model. The caller's layers become steps: what is worth doing in one pass is one step (batch
 * normalisation with relu and pooling), everything else is one step for one layer. model_plan.c makes the
 * steps, model_steps.c runs one of them, model.c holds the arenas and walks the chain.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/kernels/cpu/kernels.h"

enum step_kind {
    STEP_CONV,
    STEP_NORM,           /* batch normalisation, with relu or without */
    STEP_NORM_RELU_POOL, /* all three in one pass */
    STEP_RELU,
    STEP_POOL,
    STEP_FLATTEN,
    STEP_LINEAR,
    STEP_LOG_SOFTMAX,
    STEP_KIND_COUNT
};

/* What lies between two steps, for one sample. */
struct activation {
    int channels, height, width;
    bool flat;   /* a vector in PyTorch's order; else an image, pixel by pixel */
    int stored;  /* channels of a pixel in memory */
    size_t size; /* floats in memory */
};

struct conv_step {
    struct conv_shape shape;
    struct conv_shape backward_shape; /* of backward to the input: its channels are always padded */
    float *packed, *packed_backward;  /* this step's weights, rearranged */
    float *bias;                      /* [stored] */
    float *dw, *db;                   /* gradients as the kernel leaves them */
    float *frame;                     /* gradient of one sample's output, see conv_frame_stride() */
};

struct norm_step {
    bool relu;
    struct moments *moments;           /* of this batch, [stored], as samples arrive */
    float *mean, *inverse_deviation;   /* what this forward used, [stored] */
    float *scale, *shift;              /* [stored] */
    double *sum_dy, *sum_dy_x;         /* [stored] */
    float *a, *b, *c;                  /* of norm_backward_input, [stored] */
    float *running_mean, *running_var; /* [channels], the buffers */
    int64_t *n_batches_tracked;
};

/* What a multiplying step reads instead of the real thing when the model computes in bf16: the same numbers,
 * rounded. Inputs are kept for backward. */
struct rounded {
    float *x;      /* [max_batch][in.size] */
    float *weight; /* linear; a convolution rounds its packed copies where they are */
    float *dy;     /* linear, [max_batch][out.size]; a convolution rounds its frame */
};

struct model_step {
    enum step_kind kind;
    struct activation in, out;
    const float *x; /* [max_batch][in.size]: the step before's y */
    float *y;       /* [max_batch][out.size] */
    float *dy;      /* gradient of y; NULL where the step after writes into conv.frame */
    float *dx;      /* gradient of x, or NULL when no step before this one needs it */
    float
        *spare_dx;  /* dx of a step before the first trained one, while the gradient of the input is wanted */
    size_t dx_size; /* floats of dx for one sample */
    size_t dx_stride; /* for norm steps: floats from row to row of dx */
    bool dx_is_frame; /* dx is the frame of the conv step before: room for one sample */

    /* Parameters and their gradients in the arenas; NULL without. */
    const float *weight, *bias;
    float *weight_gradient, *bias_gradient;

    struct rounded rounded;
    struct conv_step conv;
    struct norm_step norm;
    struct pool_shape pool;
    uint8_t *which; /* [max_batch][out.size] of pooling steps */
    float *centred;
};

struct crw_model {
    const struct cpu_kernels *kernels;
    struct crw_layer *layers; /* copied; names belong to us */
    size_t n_layers;
    struct crw_shape input;
    int max_batch;

    float *parameters, *gradients;
    float *own_gradients; /* where the caller gives none; NULL: not used so far */
    size_t n_parameters;  /* floats */
    struct crw_tensor *tensors;
    size_t n_tensors;
    struct crw_tensor *buffers;
    size_t n_buffers;

    struct model_step *steps;
    size_t n_steps;
    size_t first_trained; /* the first step with parameters; n_steps without any */
    float *x;             /* the input, in our layout */
    struct activation x_shape;

    bool bf16;      /* crw_model_set_precision() */
    bool can_round; /* model_plan_rounding() was here */

    /* Of the last forward. */
    int n;
    bool training;
    bool can_go_back;         /* d_output holds a gradient of this forward's output */
    float *d_output;          /* gradient of the last step's y, set by the loss */
    float *log_probabilities; /* [max_batch][outputs]: scratch of cross-entropy */

    int (*gradient_hook)(void *data, size_t begin); /* NULL: none */
    void *gradient_hook_data;
    bool has_spares; /* model_plan_input_gradient() was here */

    void **owned; /* everything allocated for this model */
    size_t n_owned;
};

/* Zeroed, 64-byte aligned memory that lives as long as the model. NULL: out of memory. */
void *model_alloc(struct crw_model *model, size_t count, size_t size);

/* The model's own memory for gradients, made at the first call. NULL: out of memory. */
float *model_own_gradients(struct crw_model *model);

/* model_plan.c: checks the layers and makes the steps. The arenas and tensors exist. */
int model_check(const struct crw_layer *layers, size_t n_layers, struct crw_shape input, int max_batch);
int model_plan(struct crw_model *model);
/* Allocates what the gradient of the input needs. 0 or -ENOMEM, as below. */
int model_plan_input_gradient(struct crw_model *model);
/* Allocates what rounding to bf16 needs. 0 or -ENOMEM; what is allocated then lives as long as the model. */
int model_plan_rounding(struct crw_model *model);

/*
 * model_steps.c. Images pass one sample at a time, so that a step finds its input in the cache; vectors pass
 * as a batch. Normalisation needs to have seen the whole batch before its first sample leaves it:
 *
 *     step_observe()  for each sample, step_observed() once, step_forward() for each sample
 *
 * and the same for gradients on the way back.
 */
void step_prepare(const struct crw_model *model, struct model_step *step);
void step_prepare_backward(const struct crw_model *model, struct model_step *step);
bool step_is_norm(const struct model_step *step);
void step_observe(const struct crw_model *model, struct model_step *step, int sample);
void step_observed(const struct crw_model *model, struct model_step *step);
void step_forward(const struct crw_model *model, struct model_step *step, int first, int count);
void step_observe_backward(const struct crw_model *model, struct model_step *step, int sample);
void step_observed_backward(const struct crw_model *model, struct model_step *step);
void step_backward(const struct crw_model *model, struct model_step *step, int first, int count);
void step_finish_backward(const struct crw_model *model, struct model_step *step);

/* loss.c: y = log(softmax(x)) over rows of `features`. */
void model_log_softmax_forward(int n, int features, const float *x, float *y);
/* dx = dy - exp(y) * (sum of dy over the row). dx may be dy. */
void model_log_softmax_backward(int n, int features, const float *y, const float *dy, float *dx);
