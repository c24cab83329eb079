#pragma once

/*
 * What a backend plugin offers libcrw: a table of functions, found by one symbol in a shared object that is
 * opened on first use. The CPU needs none; CUDA is the only one so far. Inside the library only: programs
 * see crw.h.
 *
 * To extend: change the table, and BACKEND_ABI with it. Plugin and library are built and installed together
 * (the plugin reads struct crw_model as it is); the number only catches a stale file. The types of crw.h and crw_trainer.h in
 * the table count as well: struct crw_samples, struct crw_trained, struct crw_optimizer_options, enum crw_loss, enum crw_products.
 *
 * Functions that return int: 0, -errno or CRW_E_...; then error_message() is the sentence of this thread.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"

#define BACKEND_ABI 9u

/* The symbol: const struct backend *crw_backend(void). */
#define BACKEND_SYMBOL "crw_backend"

/* ---- training ---- */

enum backend_data { BACKEND_TRAIN, BACKEND_EVALUATE, BACKEND_DATA_COUNT };

/*
 * Sums gradients over ranks. Between enter and leave, and only there, the trainer captures and launches work that
 * contains collectives: nothing is broken off meanwhile, and after a break-off enter refuses. So no collective is
 * ever launched that nothing will release.
 */
struct backend_reducer {
    /* As comm_check, and not entered: the communicator was broken off. */
    int (*enter)(void *data);
    /* Queues a sum over the ranks, in place, and returns. As comm_check: nothing was queued, and leave breaks off. */
    int (*sum)(void *data, float *values, size_t count, void *stream);
    void (*leave)(void *data);
    void *data;
    int n_ranks;
};

struct backend_trainer_options {
    /* A chain with at least one layer that learns, whose output is a vector; its parameters, buffers and
     * batch size. It outlives the trainer; its memory is the host's copy of the state. */
    const struct crw_model *model;
    enum crw_loss loss;
    int64_t ignore_index; /* samples with this target count neither in the loss nor in the gradient */
    struct crw_optimizer_options optimizer;
    float *states[2]; /* the host's copy of the optimizer's; NULL where it has none */
    int device;
    enum crw_products precision;
    bool skip_not_finite; /* gradients with NaN or infinity stop the step instead of spreading */
    double clip_norm;     /* 0: none. Implies skip_not_finite */
    bool accumulates;     /* steps may be of several batches; costs an arena */
    const struct backend_reducer *reducer; /* NULL: alone */
    bool reduces_on_host;                  /* the caller averages the gradients; reducer is not called */
    const char *blas_library;              /* cuBLASLt; NULL: the loader finds it, if it is there */
};

struct backend_trainer;

/* ---- communication ---- */

/* The worker store, as a communicator needs it. */
struct store_conn;
struct backend_store {
    int (*set)(struct store_conn *conn, const char *key, const void *value, size_t n_bytes);
    /* Waits up to timeout_ms: CRW_E_TIMEOUT when there is no such key by then. *ret_value is malloc'ed. */
    int (*get)(struct store_conn *conn, const char *key, int timeout_ms, void **ret_value,
               size_t *ret_n_bytes);
    int (*add)(struct store_conn *conn, const char *key, int64_t amount, int64_t *ret_value);
    struct store_conn *conn;
};

struct backend_comm_options {
    const char *library; /* path of libnccl.so.2, or NULL */
    struct backend_store store;
    const char *name; /* of this generation and group: no two communicators of a job share one */
    int rank, world_size;
    int device;
    int timeout_ms; /* of one attempt to connect */
    int n_attempts;
    int failed_fd;   /* readable once the group is over (a peer died); -1: none */
    bool shared_gpu; /* some ranks share a device, which not every NCCL can; the same on all ranks */
};

struct backend_comm;

struct backend {
    uint32_t abi; /* BACKEND_ABI, first in every version */
    const char *name;
    const char *(*error_message)(void);

    /* Devices this process may use; 0: there are none; negative: there are, and they cannot be used. *ret_why is the
     * reason, "" when there are some; valid until this thread's next call, and while the plugin is open. */
    int (*count_devices)(const char **ret_why);

    /* All memory is made here. */
    int (*trainer_create)(const struct backend_trainer_options *options, struct backend_trainer **ret);
    void (*trainer_destroy)(struct backend_trainer *t);
    /* The library that computes matrix products, or why none but the plugin does. Valid as long as t. */
    const char *(*trainer_products)(const struct backend_trainer *t);

    /* Copies a data set to the device for good. */
    int (*trainer_set_data)(struct backend_trainer *t, enum backend_data which,
                            const struct crw_samples *samples);
    /* The numbers of this rank's samples in the order of their use, and how many have been used. */
    int (*trainer_start)(struct backend_trainer *t, const uint32_t *list, size_t count, uint64_t cursor);

    /* The host's copy of the state, and the number of steps that made it, to the device. */
    int (*trainer_upload)(struct backend_trainer *t, uint64_t steps);
    int (*trainer_set_lr)(struct backend_trainer *t, double lr);
    /* (These, like everything above that copies to the device, wait for the copy. While a step's gradients are in
     * flight they return CRW_E_ARGUMENT instead: a collective in front of the copy may never end.) */

    /*
     * A step has two halves, so that ranks can agree between them.
     *
     * trainer_step queues a batch of the next n samples of the list and returns at once. last: the step's gradients
     * are complete with it, and are reduced over the ranks and checked. Nothing changes the state. CRW_E_PEER: the
     * communicator was broken off, and nothing was launched.
     * trainer_wait waits for a complete step's gradients. CRW_E_TIMEOUT: they are not there in time, or never will be.
     * trainer_end_step, behind a successful wait: take: queues the change of the state and returns; the next step may
     * be queued behind it at once. Else the step is dropped, and the next one begins with the same samples.
     */
    int (*trainer_step)(struct backend_trainer *t, int n, bool last);
    int (*trainer_wait)(struct backend_trainer *t, int timeout_ms, struct crw_trained *ret);
    int (*trainer_end_step)(struct backend_trainer *t, bool take);

    /*
     * With reduces_on_host, behind a successful wait: the step's gradients of this rank, in the host's memory. The
     * caller turns them into the mean over the ranks where they lie, and calls trainer_reduced. From then on
     * trainer_wait has their norm, and trainer_end_step copies them to the device in front of the change of the state.
     */
    float *(*trainer_gradients)(struct backend_trainer *t, size_t *ret_count);
    void (*trainer_reduced)(struct backend_trainer *t);

    /* Copies the state behind the last step taken aside, without waiting; steps may follow at once. Not held up by
     * gradients in flight, be they stuck. */
    int (*trainer_stage)(struct backend_trainer *t);
    /* Waits for what was staged and puts it into the host's copy, if it is the state behind so many steps; else
     * CRW_E_MISMATCH, and the host's copy is as it was. */
    int (*trainer_download)(struct backend_trainer *t, int timeout_ms, uint64_t steps);

    /* Samples [first, first + count) of the evaluation set, with the running statistics. */
    int (*trainer_evaluate)(struct backend_trainer *t, uint32_t first, uint32_t count, int timeout_ms,
                            struct crw_trained *ret);

    /*
     * Collective over all ranks of the name. Then a thread watches for errors, and for failed_fd: on either
     * the communicator is broken off, which ends its collectives, with wrong sums. CRW_E_TIMEOUT, CRW_E_PEER: the
     * message names the ranks that are missing and what to try. CRW_E_NOT_FOUND: no NCCL.
     */
    int (*comm_create)(const struct backend_comm_options *options, struct backend_comm **ret);
    /* Breaks off what is in flight. */
    void (*comm_destroy)(struct backend_comm *comm);
    /* trainer_options.reducer. */
    void (*comm_reducer)(struct backend_comm *comm, struct backend_reducer *ret);
    /* The trainer that reduces over it: its graphs hold collectives of the communicator, and are destroyed first. NULL,
     * before that trainer is destroyed: none any more. */
    void (*comm_guard)(struct backend_comm *comm, struct backend_trainer *trainer);
    /* 0 while all is well; CRW_E_PEER: the group is over; -EIO: NCCL failed on this rank. */
    int (*comm_check)(struct backend_comm *comm);
    /* NCCL's version and the speed that was measured when the ranks connected; "" for one rank. Valid as long as comm. */
    const char *(*comm_describe)(struct backend_comm *comm);
};

typedef const struct backend *(*backend_function)(void);

/* ---- opening ---- */

/* An open plugin. */
struct backend_plugin {
    void *library;
    const struct backend *backend;
};

/*
 * Opens lib<file>.so from CRW_PLUGIN_DIR if that is set; else from where the program lies, else from where
 * the library was installed to. CRW_E_NOT_FOUND when it is in none of them; CRW_E_MISMATCH when it was built
 * for another version of the library or cannot be loaded.
 */
int backend_open(const char *file, struct backend_plugin *ret_plugin);
/* The zeroed struct is fine. */
void backend_close(struct backend_plugin *plugin);
