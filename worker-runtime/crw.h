#pragma once

/*
 * crw: the worker runtime of crun. Everything a training program in C needs from its launcher and from
 * its peers: the launch environment, a process group, data sharding, layers and optimizers that count as
 * PyTorch counts, and snapshots that survive a crash.
 *
 * Conventions
 *   - Functions return 0, or a negative errno for what the system refused, or a positive CRW_E_...
 *     After a failure crw_error_message() is one sentence: what failed, where, why and the remedy.
 *   - Tensors are fp32, row-major, NCHW; counts are elements unless the name ends in _bytes.
 *   - Objects are opaque: *_create makes one, *_destroy (NULL is fine) ends it. One thread per object.
 *   - ret_ parameters are written only on success.
 *   - No argument ends the process: NULL for an object or an array, numbers out of range and sizes that no array can
 *     have are CRW_E_ARGUMENT; functions without a result do nothing then, or return NULL, 0 or NaN. More memory than
 *     the machine and the cgroup have left is -ENOMEM at once.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CRW_EXPORT __attribute__((visibility("default")))

enum crw_result {
    CRW_E_ENVIRONMENT = 1, /* a launch variable is missing or malformed */
    CRW_E_PEER,            /* a peer failed or the group is over: leave, the launcher starts a new one */
    CRW_E_TIMEOUT,         /* a deadline passed */
    CRW_E_STORE,           /* the worker store closed or answered nonsense */
    CRW_E_DATA,            /* for data of the program, as a result of its own: no function here makes it */
    CRW_E_NOT_FOUND,       /* no snapshot there, no key there */
    CRW_E_MISMATCH,        /* a snapshot of another network or format */
    CRW_E_DAMAGED,         /* checksum or structure wrong */
    CRW_E_ARGUMENT,        /* the caller's mistake */
};

/* The sentence of this thread's last failure; "" before the first. Valid until the next call fails. */
CRW_EXPORT const char *crw_error_message(void);

/*
 * Before a worker exits for a reason of its own (not for CRW_E_PEER): leaves that reason where the
 * launcher looks for it, in the file TORCHELASTIC_ERROR_FILE, in the form of PyTorch's @record. message
 * NULL: crw_error_message(). The first reason stays. 0 also without that variable; else -errno.
 */
CRW_EXPORT int crw_error_record(const char *message);

/* "0.1.0" */
CRW_EXPORT const char *crw_version(void);

/* ---- launch environment ---- */

struct crw_env {
    bool launched; /* RANK was set: a launcher started this process; else a world of one */
    int rank, world_size;
    int local_rank, local_world_size;
    int group_rank, group_world_size;
    int restart_count, max_restarts;
    char master_addr[256];
    uint16_t master_port;
    char run_id[128];
    int notice_fd;  /* CRUN_NOTICE_FD or -1 */
    int generation; /* CRUN_GENERATION, else restart_count: counts changes of membership, too */
};

/* Reads the variables that crun (and torchrun) set. Without RANK: rank 0 of 1. CRW_E_ENVIRONMENT. */
CRW_EXPORT int crw_env_read(struct crw_env *ret_env);

/* ---- process group ---- */

struct crw_group;

enum crw_dtype {
    CRW_F32,
    CRW_F64,
    CRW_F16,
    CRW_BF16,
    CRW_I64,
    CRW_I32,
    CRW_I16,
    CRW_I8,
    CRW_U8,
    CRW_BOOL,
    CRW_DTYPE_COUNT
};
enum crw_op { CRW_SUM, CRW_AVG, CRW_MAX, CRW_OP_COUNT };

/*
 * Joins the group that env describes: meets the peers through the worker store at MASTER_ADDR:MASTER_PORT
 * and maps the shared memory of the ranks of this host. Collective: all ranks call it. Once for each process
 * is enough: further groups come from crw_group_new().
 * Errors: CRW_E_STORE, CRW_E_TIMEOUT, CRW_E_PEER, -errno.
 */
CRW_EXPORT int crw_group_create(const struct crw_env *env, struct crw_group **ret_group);
/* Wait for all started calls before. A peer that still waits for this rank gets CRW_E_PEER. */
CRW_EXPORT void crw_group_destroy(struct crw_group *group);

/*
 * The short way in and out. address NULL: crw_env_read() and crw_group_create(); rank and world_size are
 * not looked at. "tcp://HOST:PORT": the worker store at that address, for example crund's, with all ranks
 * on this host; without a launcher, none is restarted. The store has to be there: CRW_E_TIMEOUT after five seconds.
 * CRW_E_ARGUMENT for anything else.
 */
CRW_EXPORT int crw_init(const char *address, int rank, int world_size, struct crw_group **ret_group);
/* Waits for all ranks, so that none is missed, and destroys the group in any case. The barrier's result. */
CRW_EXPORT int crw_finish(struct crw_group *group);

/*
 * Runs function(group, data) in n forked processes, the ranks 0..n-1 of a group that needs no launcher and no
 * store (crw_store_*() fail), and waits for them. 0 when all returned 0; else CRW_E_PEER and a sentence with
 * that of the first that did not: its crw_error_message() when it returned. The others get SIGTERM, and SIGKILL
 * five seconds later. The workers die with the calling thread. Call it before the program has threads; what they
 * write to memory stays with them.
 */
CRW_EXPORT int crw_launch(int (*function)(struct crw_group *group, void *data), void *data, int n);

/*
 * A group of some ranks of another group: members are their numbers there, in the order that gives them
 * their numbers in the new one. Collective over all of `from`, all with the same members; ranks that are
 * not members get *ret_group = NULL and the call returns 0. Calls of different groups do not disturb each
 * other, but the end of a member's process ends every group that it was in. It may outlive `from`, and
 * uses its notices and store.
 */
CRW_EXPORT int crw_group_new(struct crw_group *from, const int *members, int n_members,
                             struct crw_group **ret_group);

CRW_EXPORT int crw_rank(const struct crw_group *group);
CRW_EXPORT int crw_world_size(const struct crw_group *group);
/* Rank 0: the one that prints, writes and decides for all. */
CRW_EXPORT bool crw_is_primary(const struct crw_group *group);

/*
 * Memory that all ranks of this host map, n_bytes for each rank, zeroed, 64-byte aligned; *ret_data is this
 * rank's part. Collectives on a range inside it copy no more than they must, crw_all_reduce() nothing.
 * Collective, same n_bytes everywhere. Freed with the group; other groups see ordinary memory. -ENOMEM: all ranks of
 * the host together want more than it has. ret_data is the address of a void *, without a cast:
 *
 *     void *shared;
 *     if (crw_shared_alloc(group, n * sizeof(float), &shared) == 0)
 *         gradients = shared;
 */
CRW_EXPORT int crw_shared_alloc(struct crw_group *group, size_t n_bytes, void **ret_data);

/* ---- collectives ---- */

/*
 * All ranks of the group make the same calls in the same order; a call that differs (another function,
 * count, type, operation or root) is CRW_E_ARGUMENT on all of them and the group stays usable.
 * CRW_E_PEER: a rank ended or left, CRW_E_TIMEOUT: one did not come; the group is over. After an error
 * the content of what would have been written is undefined: do not step an optimizer with it.
 *
 * Reductions know CRW_F32, CRW_F64, CRW_I64, CRW_I32 and CRW_BF16, which is added up in fp32 and rounded
 * once. The result is the same bits on every rank and in every run with the same placement of ranks. Elements are
 * combined in rank order 0..W-1; only where the ranks of a host do not follow each other, long data is combined
 * host by host, in rank order in each. Arrays must not overlap, except that a rank's own part may already
 * be where it belongs.
 */
/* In place: data[0..count) becomes the sum (average, maximum) over ranks. */
CRW_EXPORT int crw_all_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                              enum crw_op op);
/* The same on root; the others' data stays as it is. */
CRW_EXPORT int crw_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                          enum crw_op op, int root);
/* result[0..count) becomes the sum (average, maximum) over ranks of data[r * count ..], r being this rank. */
CRW_EXPORT int crw_reduce_scatter(struct crw_group *group, const void *data, void *result, size_t count,
                                  enum crw_dtype dtype, enum crw_op op);
/* data[0..n_bytes) of all ranks becomes root's. */
CRW_EXPORT int crw_broadcast(struct crw_group *group, void *data, size_t n_bytes, int root);
/* all[r * n_bytes ..] becomes rank r's data, on every rank. */
CRW_EXPORT int crw_all_gather(struct crw_group *group, const void *data, size_t n_bytes, void *all);
/* The same on root; the others' all may be NULL. */
CRW_EXPORT int crw_gather(struct crw_group *group, const void *data, size_t n_bytes, void *all, int root);
/* data becomes root's all[r * n_bytes ..], r being this rank; the others' all may be NULL. */
CRW_EXPORT int crw_scatter(struct crw_group *group, const void *all, size_t n_bytes, void *data, int root);
CRW_EXPORT int crw_barrier(struct crw_group *group);

/*
 * A message to another rank; messages between two ranks arrive in the order in which they were sent. Up to
 * 500 KiB are on their way when crw_send() returns, a longer one waits for its receiver. The receiver names
 * the sender and the size: a message of another size is dropped, CRW_E_ARGUMENT.
 */
CRW_EXPORT int crw_send(struct crw_group *group, const void *data, size_t n_bytes, int to);
CRW_EXPORT int crw_recv(struct crw_group *group, void *data, size_t n_bytes, int from);

/*
 * The same calls, started: they go on beside the program, and arrays belong to them until they are waited
 * for. Threads of the group do the work, one for all collectives, in the order of the calls, and one for each
 * peer that messages are sent to or received from; each is started by the first call that needs it. A call
 * that is not started waits for those started before it, so the order of collectives is the program's.
 */
struct crw_work;

CRW_EXPORT int crw_all_reduce_start(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                                    enum crw_op op, struct crw_work **ret_work);
CRW_EXPORT int crw_reduce_start(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                                enum crw_op op, int root, struct crw_work **ret_work);
CRW_EXPORT int crw_reduce_scatter_start(struct crw_group *group, const void *data, void *result, size_t count,
                                        enum crw_dtype dtype, enum crw_op op, struct crw_work **ret_work);
CRW_EXPORT int crw_broadcast_start(struct crw_group *group, void *data, size_t n_bytes, int root,
                                   struct crw_work **ret_work);
CRW_EXPORT int crw_all_gather_start(struct crw_group *group, const void *data, size_t n_bytes, void *all,
                                    struct crw_work **ret_work);
CRW_EXPORT int crw_gather_start(struct crw_group *group, const void *data, size_t n_bytes, void *all,
                                int root, struct crw_work **ret_work);
CRW_EXPORT int crw_scatter_start(struct crw_group *group, const void *all, size_t n_bytes, void *data,
                                 int root, struct crw_work **ret_work);
CRW_EXPORT int crw_barrier_start(struct crw_group *group, struct crw_work **ret_work);
CRW_EXPORT int crw_send_start(struct crw_group *group, const void *data, size_t n_bytes, int to,
                              struct crw_work **ret_work);
CRW_EXPORT int crw_recv_start(struct crw_group *group, void *data, size_t n_bytes, int from,
                              struct crw_work **ret_work);

/* Is it done, well or not? Does not wait. */
CRW_EXPORT bool crw_work_test(struct crw_work *work);
/* Waits, frees the work and returns the call's result; its sentence becomes this thread's. */
CRW_EXPORT int crw_work_wait(struct crw_work *work);

/* ---- worker store and stopping ---- */

/* Worker store: the TCPStore at MASTER_ADDR:MASTER_PORT, keys as PyTorch's client writes them. */
CRW_EXPORT int crw_store_set(struct crw_group *group, const char *key, const void *value, size_t n_bytes);
/* Waits until the key exists. *ret_value is malloc'ed, *ret_n_bytes long plus a NUL. */
CRW_EXPORT int crw_store_get(struct crw_group *group, const char *key, int timeout_ms, void **ret_value,
                             size_t *ret_n_bytes);
CRW_EXPORT int crw_store_add(struct crw_group *group, const char *key, int64_t amount, int64_t *ret_value);

/*
 * Makes SIGTERM a request to stop: installs a handler, for the process, where the signal has its default
 * action. Without this call the library installs no signal handler, and crw_stop_requested() knows the
 * launcher's requests alone. The handler stays until the last group is destroyed, and stays after it
 * where a stop was requested. -errno.
 */
CRW_EXPORT int crw_stop_enable(void);
/* True once SIGTERM arrived, after crw_stop_enable(), or the launcher asked for a stop. Ranks may see it
 * at different times: reduce it before acting. */
CRW_EXPORT bool crw_stop_requested(const struct crw_group *group);

/* ---- going on after a failure ---- */

/*
 * Under crun --restart-policy=replace a rank that died is started again while the others go on. For that
 * a program
 *
 *   1. calls crw_group_ready() once it is set up: from here on its process is worth keeping;
 *   2. keeps its state when a collective returns CRW_E_PEER, and calls crw_group_rejoin() with no call of the
 *      group under way;
 *   3. does after it together with the new rank what that one does after crw_group_create(): allocates shared
 *      memory, agrees on which rank has the newest state, broadcasts it; and calls crw_group_ready() again.
 *
 * With any other policy or launcher crw_group_rejoin() returns CRW_E_PEER at once, or as soon as the
 * launcher has decided so: then leave, as after any CRW_E_PEER.
 */
CRW_EXPORT int crw_group_ready(struct crw_group *group);

/*
 * Waits until the launcher has opened the next generation, leaves the old one and meets all ranks again;
 * ranks and sizes are as before. Memory of crw_shared_alloc() is unmapped, and groups of some ranks stay
 * failed. CRW_E_PEER: the launcher starts no further generation. Others as crw_group_create().
 */
CRW_EXPORT int crw_group_rejoin(struct crw_group *group);

/* TORCHELASTIC_RESTART_COUNT of the generation that the group is in; in the environment of a process that was
 * kept, this and MASTER_PORT are those of its start. */
CRW_EXPORT int crw_group_restart_count(const struct crw_group *group);

/*
 * Memory that crun holds for this rank and hands to the process that takes its place, whatever happened
 * to this one: two slots of n_bytes. A slot that is being written does not count, so a process that is
 * killed at any instant leaves the other one whole.
 */
struct crw_memory;

/* kind: what another layout of the bytes must not be mistaken for; slots of another size or kind are
 * dropped. CRW_E_NOT_FOUND: there is none, or n_bytes are too many for it (a quarter of the machine's
 * memory for all ranks). */
CRW_EXPORT int crw_memory_open(const struct crw_group *group, size_t n_bytes, uint32_t kind,
                               struct crw_memory **ret);
/* The slots keep their content. */
CRW_EXPORT void crw_memory_close(struct crw_memory *m);
/* The slot to write next, 64-byte aligned: the older one, its content is dropped. */
CRW_EXPORT void *crw_memory_begin(struct crw_memory *m);
/* Marks the slot as whole, under this number (not UINT64_MAX). */
CRW_EXPORT void crw_memory_commit(struct crw_memory *m, uint64_t number);
/* Numbers of the slots that are whole, the newest first; how many. */
CRW_EXPORT size_t crw_memory_list(const struct crw_memory *m, uint64_t ret_numbers[2]);
/* The slot with that number; NULL when it is not there. */
CRW_EXPORT const void *crw_memory_find(const struct crw_memory *m, uint64_t number);

/* ---- random numbers ---- */

/* PyTorch's CPU generator: MT19937, seeded with the low 32 bits. */
struct crw_rng {
    uint32_t state[624];
    int next;
};

/* Initialises *rng, which needs no other initialisation; the high 32 bits of seed are ignored, as in PyTorch. */
CRW_EXPORT void crw_rng_seed(struct crw_rng *rng, uint64_t seed);
CRW_EXPORT uint32_t crw_rng_u32(struct crw_rng *rng);
/* torch.Tensor.uniform_(a, b): bit for bit. */
CRW_EXPORT void crw_rng_uniform(struct crw_rng *rng, float *out, size_t count, float a, float b);
/* torch.randperm(n, generator seeded with seed): bit for bit. n below 2^32 / 20. */
CRW_EXPORT int crw_randperm(uint64_t seed, uint32_t n, uint32_t *out);

/* ---- data sharding ---- */

/*
 * torch.utils.data.DistributedSampler, resumable. The whole position is `consumed`: how many samples of
 * the epoch's permuted list all ranks together have used.
 */
struct crw_sampler;

struct crw_sampler_options {
    uint32_t n_samples;
    int rank, world_size;
    uint64_t seed;
    bool shuffle, drop_last;
};

/* The sampler is in no epoch until crw_sampler_start(). CRW_E_ARGUMENT: rank is not in 0..world_size-1; -ENOMEM.
 * *ret is set on success only. */
CRW_EXPORT int crw_sampler_create(const struct crw_sampler_options *options, struct crw_sampler **ret);
/* NULL is fine. */
CRW_EXPORT void crw_sampler_destroy(struct crw_sampler *s);
/* Starts an epoch at consumed samples (0, or the number in a snapshot; any world size may have consumed
 * them). */
CRW_EXPORT int crw_sampler_start(struct crw_sampler *s, uint64_t epoch, uint64_t consumed);
/* Up to batch_size sample numbers of this rank; returns how many, 0 at the end of the epoch. */
CRW_EXPORT size_t crw_sampler_next(struct crw_sampler *s, uint32_t *indices, size_t batch_size);
/* Samples of the permuted list that all ranks have taken once every rank has taken as many as this one,
 * at most n_samples: what to write into a snapshot. */
CRW_EXPORT uint64_t crw_sampler_consumed(const struct crw_sampler *s);
/* Batches of batch_size left in this epoch for this rank. */
CRW_EXPORT size_t crw_sampler_batches_left(const struct crw_sampler *s, size_t batch_size);

/* ---- batches ---- */

/*
 * Batches in a sampler's order, gathered by a thread while the caller computes with the one before. How many
 * are gathered ahead changes when the work is done, never what a batch holds.
 */
struct crw_loader;

struct crw_loader_options {
    /* The caller's, to be destroyed after the loader. The loader alone uses it from the first
     * crw_loader_start() on. */
    struct crw_sampler *sampler;
    size_t batch_size;
    size_t input_size;  /* floats of a sample */
    size_t target_size; /* bytes of a sample */
    int n_ahead; /* at most so many batches ahead; 0: no thread, a batch is gathered when it is asked for */
    /* Fills input[n][input_size] and targets[n][target_size] with these samples. Runs on the loader's
     * thread. A result other than 0 ends the epoch: crw_loader_next() returns it in place of the batch.
     * */
    int (*gather)(void *data, const uint32_t *samples, size_t n, float *input, void *targets);
    void *data;
};

struct crw_batch {
    size_t n; /* samples; 0: the epoch is over */
    const uint32_t *samples;
    const float *input;
    const void *targets;
    uint64_t consumed; /* crw_sampler_consumed() when this batch has been used */
};

CRW_EXPORT int crw_loader_create(const struct crw_loader_options *options, struct crw_loader **ret);
CRW_EXPORT void crw_loader_destroy(struct crw_loader *loader);
/* As crw_sampler_start(). An epoch that is not over is given up. */
CRW_EXPORT int crw_loader_start(struct crw_loader *loader, uint64_t epoch, uint64_t consumed);
/* The next batch; its arrays are the caller's to read until the next call. ret->n is 0 at the end of the
 * epoch. A result other than 0 is that of gather(). */
CRW_EXPORT int crw_loader_next(struct crw_loader *loader, struct crw_batch *ret);

/* ---- models ---- */

enum crw_layer_kind {
    CRW_LAYER_LINEAR,      /* in, out */
    CRW_LAYER_CONV2D,      /* in, out channels, kernel; stride 1, no padding */
    CRW_LAYER_BATCHNORM2D, /* in = channels */
    CRW_LAYER_RELU,
    CRW_LAYER_MAXPOOL2D, /* kernel = stride = 2 (or 0, the same), floor */
    CRW_LAYER_FLATTEN,
    CRW_LAYER_LOG_SOFTMAX,
    CRW_LAYER_KIND_COUNT
};

/* A field that a kind does not have is 0. */
struct crw_layer {
    enum crw_layer_kind kind;
    const char *name; /* of its parameters: "conv1" gives "conv1.weight"; NULL without parameters */
    int in, out, kernel;
};

struct crw_shape {
    int channels, height, width; /* a flat vector of k features is {k, 1, 1} */
};

struct crw_model;

/* A named tensor; name and data belong to its maker. */
struct crw_tensor {
    const char *name;
    enum crw_dtype dtype;
    int n_dims;
    int64_t dims[4];
    void *data;
};

/*
 * Builds a chain of layers for inputs of the given shape and batches of up to max_batch. Parameters and
 * gradients are one contiguous arena each, in PyTorch's parameter order. gradients: memory for them (from
 * crw_shared_alloc, crw_model_count_parameters() floats), or NULL to have them allocated.
 */
CRW_EXPORT int crw_model_create(const struct crw_layer *layers, size_t n_layers, struct crw_shape input,
                                int max_batch, float *gradients, struct crw_model **ret_model);
CRW_EXPORT void crw_model_destroy(struct crw_model *model);
/* Floats in the parameter arena of such a chain. */
CRW_EXPORT size_t crw_model_count_parameters(const struct crw_layer *layers, size_t n_layers);

/* torch.manual_seed(seed) and the layers' own initialisation in order: bit for bit. */
CRW_EXPORT void crw_model_init(struct crw_model *model, uint64_t seed);

CRW_EXPORT float *crw_model_parameters(struct crw_model *model, size_t *ret_count);
CRW_EXPORT float *crw_model_gradients(struct crw_model *model);
/* Other memory for them from now on, as crw_model_create() takes it; NULL: the model's own. -ENOMEM. */
CRW_EXPORT int crw_model_set_gradients(struct crw_model *model, float *gradients);
/* Views of parameters, and of buffers (running_mean, running_var, num_batches_tracked), by number. */
CRW_EXPORT size_t crw_model_n_tensors(const struct crw_model *model);
CRW_EXPORT struct crw_tensor crw_model_tensor(const struct crw_model *model, size_t i);
CRW_EXPORT size_t crw_model_n_buffers(const struct crw_model *model);
CRW_EXPORT struct crw_tensor crw_model_buffer(const struct crw_model *model, size_t i);

/* Identifies the network: a checksum over layer kinds, shapes and names. */
CRW_EXPORT uint32_t crw_model_hash(const struct crw_model *model);
/* CRC-32C over all parameters in PyTorch's order. */
CRW_EXPORT uint32_t crw_model_crc32c(const struct crw_model *model);
/*
 * Writes parameters and buffers as a safetensors file under the names of PyTorch's state_dict. path holds
 * what it held before or the whole file, whatever happens meanwhile. -errno.
 */
CRW_EXPORT int crw_model_save(const struct crw_model *model, const char *path);

/*
 * CRW_BF16: what linear layers and convolutions multiply (inputs, weights, and gradients on the way back) is
 * rounded to bfloat16 first. Sums, everything between the layers, parameters, gradients and optimizer stay
 * fp32. CRW_F32, the default: nothing is rounded. CRW_E_ARGUMENT for other types, -ENOMEM.
 */
CRW_EXPORT int crw_model_set_precision(struct crw_model *model, enum crw_dtype precision);

/*
 * Runs the chain over n inputs [n, channels, height, width]. training selects batch statistics and keeps
 * what backward needs. *ret_output (ret_output may be NULL) is the last layer's output [n, features],
 * owned by the model and valid until the next forward. CRW_E_ARGUMENT for an n that is not 1..max_batch,
 * or where training would need the variance of a single value.
 */
CRW_EXPORT int crw_model_forward(struct crw_model *model, const float *input, int n, bool training,
                                 const float **ret_output);

/*
 * Losses of the last forward's output, averaged over the batch; each prepares crw_model_backward().
 * targets[i] is the class of sample i, 0 or more and below the number of outputs; CRW_E_ARGUMENT for any
 * other. A sample with the target ignore_index counts neither in the loss nor in the gradient; a batch of
 * such samples alone has the loss NaN and the gradient 0, as in PyTorch.
 */
#define CRW_IGNORE_INDEX (-100) /* PyTorch's default */

/* torch.nn.functional.nll_loss: the outputs are log-probabilities. */
CRW_EXPORT int crw_model_nll_loss(struct crw_model *model, const int64_t *targets, int64_t ignore_index,
                                  float *ret_loss);
/* torch.nn.functional.cross_entropy: the outputs are scores. */
CRW_EXPORT int crw_model_cross_entropy_loss(struct crw_model *model, const int64_t *targets,
                                            int64_t ignore_index, float *ret_loss);
/* torch.nn.functional.mse_loss: averaged over all outputs of all samples; targets are as many numbers as
 * outputs. */
CRW_EXPORT int crw_model_mse_loss(struct crw_model *model, const float *targets, float *ret_loss);
/*
 * Which samples of the last forward have their largest output (torch.argmax: the first of equals) at
 * their target: flags[i] becomes 1 or 0. Returns how many; flags may be NULL. A target that is no class
 * is never correct.
 */
CRW_EXPORT size_t crw_model_correct(const struct crw_model *model, const int64_t *targets, uint8_t *flags);

/*
 * Gradients of the loss computed last, written (not added) to the gradient arena. CRW_E_ARGUMENT unless
 * the last forward had training set and a loss of its output has succeeded; else the result of the
 * gradient hook. A second call writes the same gradients again.
 */
CRW_EXPORT int crw_model_backward(struct crw_model *model);
/*
 * The same from the gradient of the last forward's output, d_output [n, features], for a loss of the
 * program's own or for layers of its own behind the chain. d_input [n, channels, height, width] (may be
 * NULL) becomes the gradient of the input, for layers before the chain. CRW_E_ARGUMENT, -ENOMEM, or the
 * result of the gradient hook.
 */
CRW_EXPORT int crw_model_backward_from(struct crw_model *model, const float *d_output, float *d_input);
/*
 * Makes backward call hook(data, begin) whenever the gradients from number `begin` to the end of the
 * arena are final, with falling numbers and at last 0: from there to crw_reducer_ready() is one call. A
 * result other than 0 ends backward, which returns it. NULL: no hook.
 */
CRW_EXPORT void crw_model_set_gradient_hook(struct crw_model *model, int (*hook)(void *data, size_t begin),
                                            void *data);

/* ---- gradients ---- */

/* L2 norm of all of them, as torch.nn.utils.clip_grad_norm_ measures it; no finite number when one is not. */
CRW_EXPORT double crw_gradients_norm(const float *gradients, size_t count);
CRW_EXPORT void crw_gradients_scale(float *gradients, size_t count, float factor);
/* sums[i] += gradients[i] */
CRW_EXPORT void crw_gradients_add(float *sums, const float *gradients, size_t count);

/*
 * Averages an array of gradients over the ranks of a group, in buckets that are started while backward
 * still computes those before them. The bits are those of one crw_all_reduce(). Where cores are as many
 * as ranks that is slower than one call at the end, and there is one bucket then: see crw_group(3).
 */
struct crw_reducer;

/*
 * Collective. gradients should be from crw_shared_alloc(); they are cleared. bucket_bytes: the size of a
 * bucket, the same on all ranks (at most 64 buckets are made); 0: measured here, which takes about ten
 * all-reduces.
 */
CRW_EXPORT int crw_reducer_create(struct crw_group *group, float *gradients, size_t count,
                                  size_t bucket_bytes, struct crw_reducer **ret);
CRW_EXPORT void crw_reducer_destroy(struct crw_reducer *r);
CRW_EXPORT size_t crw_reducer_n_buckets(const struct crw_reducer *r);
/* Gradients from number `begin` to the end are final: they belong to the reducer until the end of the
 * step. Does not wait and does not fail. Ranks may call it as often as they like, or never. */
CRW_EXPORT void crw_reducer_ready(struct crw_reducer *r, size_t begin);
/* The end of the step: all are final. Returns when all are averaged; the first failure. */
CRW_EXPORT int crw_reducer_finish(struct crw_reducer *r);
/* Between steps. false: ready and finish do nothing, as in torch's no_sync(). The same on all ranks. */
CRW_EXPORT void crw_reducer_set_sync(struct crw_reducer *r, bool sync);

/* ---- optimizers ---- */

enum crw_optimizer_kind { CRW_SGD, CRW_ADAMW, CRW_ADADELTA, CRW_OPTIMIZER_KIND_COUNT };

struct crw_optimizer_options {
    enum crw_optimizer_kind kind;
    double lr;
    double weight_decay;
    double momentum, dampening; /* SGD */
    bool nesterov;              /* SGD */
    double beta1, beta2;        /* AdamW */
    double rho;                 /* Adadelta */
    double eps;                 /* AdamW, Adadelta */
};

/* PyTorch's defaults of the kind. */
CRW_EXPORT struct crw_optimizer_options crw_optimizer_defaults(enum crw_optimizer_kind kind);

struct crw_optimizer;

CRW_EXPORT int crw_optimizer_create(const struct crw_optimizer_options *options, size_t count,
                                    struct crw_optimizer **ret);
CRW_EXPORT void crw_optimizer_destroy(struct crw_optimizer *o);
CRW_EXPORT void crw_optimizer_step(struct crw_optimizer *o, float *parameters, const float *gradients);
CRW_EXPORT void crw_optimizer_set_lr(struct crw_optimizer *o, double lr);
/* State arrays, each as long as the parameter arena, under PyTorch's names ("square_avg", "acc_delta";
 * "momentum_buffer"; "exp_avg", "exp_avg_sq"), and the number of steps taken. */
CRW_EXPORT size_t crw_optimizer_n_states(const struct crw_optimizer *o);
CRW_EXPORT float *crw_optimizer_state(const struct crw_optimizer *o, size_t i, const char **ret_name);
CRW_EXPORT uint64_t crw_optimizer_steps(const struct crw_optimizer *o);
CRW_EXPORT void crw_optimizer_set_steps(struct crw_optimizer *o, uint64_t steps);

/* ---- snapshots ---- */

/*
 * A snapshot is one safetensors file snap-<step, 12 digits>.safetensors with a CRC-32C of every tensor and
 * the caller's strings in its metadata. Written by a thread of its own beside the training: staged by a
 * copy, to a temporary name, synced, renamed, folder synced. The last `keep` are kept.
 */
struct crw_snapshots;

struct crw_pair {
    const char *key;
    const char *value;
};

/*
 * Opens (creates) the folder for writing; the first save claims it, unless another run has saved there since.
 * -EBUSY, -ESTALE: another run or a later generation saves there. -errno when it cannot be written.
 */
CRW_EXPORT int crw_snapshots_create(const char *folder, int keep, struct crw_snapshots **ret);
/* Waits for the save in flight, at most 30 minutes; a save that has not ended then has a line on stderr. */
CRW_EXPORT void crw_snapshots_destroy(struct crw_snapshots *s);
/*
 * Copies the tensors and starts saving them; waits first if a save is still in flight. meta: strings to
 * keep beside them. A failed save does not fail here: see crw_snapshots_wait_for() and crw_snapshots_status().
 */
CRW_EXPORT int crw_snapshots_save(struct crw_snapshots *s, uint64_t step, const struct crw_tensor *tensors,
                                  size_t n_tensors, const struct crw_pair *meta, size_t n_meta);
/* Waits until nothing is in flight. */
CRW_EXPORT void crw_snapshots_wait(struct crw_snapshots *s);
/* True: the save in flight has not ended wait_ms after its start, and crw_snapshots_save() would wait for it. A rank
 * for which others wait asks first, and skips that save: a disk that hangs then stops no rank. */
CRW_EXPORT bool crw_snapshots_busy(struct crw_snapshots *s, int wait_ms);
/* Waits up to timeout_ms. 0: what was saved last is on disk for good. CRW_E_TIMEOUT: it is in flight still. -ESTALE:
 * another run or a later generation has the folder, this process can save no more. -errno: the last save failed. */
CRW_EXPORT int crw_snapshots_wait_for(struct crw_snapshots *s, int timeout_ms);
#define CRW_NO_STEP UINT64_MAX
/* Newest step known to be on disk for good (CRW_NO_STEP: none), and, once for each failed save, its sentence in
 * *ret_failure (else NULL; valid until the next call). One call gives one sentence: call until it gives NULL. */
CRW_EXPORT uint64_t crw_snapshots_status(struct crw_snapshots *s, const char **ret_failure);

/* A snapshot that was read and checked completely. */
struct crw_snapshot;

/*
 * Reads the newest valid snapshot of the folder. Damaged ones are skipped; each gives one sentence to warn
 * (may be NULL). meta_key/meta_value: a string the snapshot must carry ("model_hash"), or NULL; a valid
 * snapshot that carries another value is CRW_E_MISMATCH, not skipped. CRW_E_NOT_FOUND when there is none,
 * CRW_E_DAMAGED when all are damaged: that is no new run. -errno (-EIO) when one cannot be read.
 */
CRW_EXPORT int crw_snapshot_open_newest(const char *folder, const char *meta_key, const char *meta_value,
                                        void (*warn)(void *data, const char *sentence), void *warn_data,
                                        struct crw_snapshot **ret);
/* Reads one file. CRW_E_DAMAGED, CRW_E_NOT_FOUND, -errno. */
CRW_EXPORT int crw_snapshot_open(const char *path, struct crw_snapshot **ret);
CRW_EXPORT void crw_snapshot_close(struct crw_snapshot *s);
CRW_EXPORT uint64_t crw_snapshot_step(const struct crw_snapshot *s);
/* NULL when there is no such string. */
CRW_EXPORT const char *crw_snapshot_meta(const struct crw_snapshot *s, const char *key);
/* Copies the tensor into t->data; CRW_E_MISMATCH unless name, dtype and dims are exactly t's. */
CRW_EXPORT int crw_snapshot_read(const struct crw_snapshot *s, const struct crw_tensor *t);

/* CRC-32C (Castagnoli), crc 0 to start, chainable. */
CRW_EXPORT uint32_t crw_crc32c(uint32_t crc, const void *data, size_t n_bytes);

#ifdef __cplusplus
}
#endif
