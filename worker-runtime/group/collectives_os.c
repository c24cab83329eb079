/*
 * Collectives and messages as programs call them: arguments checked, then run now or started.
 *
 * A call is a record of what is to be done (struct queued_call), made and checked by the same functions for both. Run
 * now, it uses the caller's thread after the calls in its queue; started, it goes to the end of the queue. Wrong
 * arguments are refused before anything is sent to the peers.
 */

#include "worker-runtime/shm/shm_collectives_os.h"
#include "worker-runtime/shm/reduce_ops.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* ---- operations ---- */

static int run_barrier(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_barrier(group->inter_host) : shm_barrier(&group->shm);
}

static int run_broadcast(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_broadcast(group->inter_host, c->out, c->n, c->peer)
                             : shm_broadcast(&group->shm, c->out, c->n, c->peer);
}

static int run_all_gather(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_all_gather(group->inter_host, c->in, c->n, c->out)
                             : shm_all_gather(&group->shm, c->in, c->n, c->out);
}

static int run_gather(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_gather(group->inter_host, c->in, c->n, c->out, c->peer)
                             : shm_gather(&group->shm, c->in, c->n, c->out, c->peer);
}

static int run_scatter(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_scatter(group->inter_host, c->in, c->n, c->out, c->peer)
                             : shm_scatter(&group->shm, c->in, c->n, c->out, c->peer);
}

static int run_all_reduce(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_all_reduce(group->inter_host, c->out, c->n, c->dtype, c->op)
                             : shm_all_reduce(&group->shm, c->out, c->n, c->dtype, c->op);
}

static int run_reduce_scatter(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host
               ? inter_host_reduce_scatter(group->inter_host, c->in, c->out, c->n, c->dtype, c->op)
               : shm_reduce_scatter(&group->shm, c->in, c->out, c->n, c->dtype, c->op);
}

static int run_reduce(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_reduce(group->inter_host, c->out, c->n, c->dtype, c->op, c->peer)
                             : shm_reduce(&group->shm, c->out, c->n, c->dtype, c->op, c->peer);
}

static const struct {
    int (*run)(struct crw_group *group, const struct queued_call *c);
    bool reduces, has_root;
    bool has_in; /* an array to read beside the one to write */
} operations[WORKER_COLLECTIVE_KIND_COUNT] = {
    [WORKER_COLLECTIVE_BARRIER] = {run_barrier},
    [WORKER_COLLECTIVE_BROADCAST] = {run_broadcast, .has_root = true},
    [WORKER_COLLECTIVE_ALL_GATHER] = {run_all_gather, .has_in = true},
    [WORKER_COLLECTIVE_GATHER] = {run_gather, .has_root = true, .has_in = true},
    [WORKER_COLLECTIVE_SCATTER] = {run_scatter, .has_root = true, .has_in = true},
    [WORKER_COLLECTIVE_ALL_REDUCE] = {run_all_reduce, .reduces = true},
    [WORKER_COLLECTIVE_REDUCE_SCATTER] = {run_reduce_scatter, .reduces = true, .has_in = true},
    [WORKER_COLLECTIVE_REDUCE] = {run_reduce, .reduces = true, .has_root = true},
};

static struct queued_call move(enum worker_collective_kind kind, const void *in, void *out, size_t n_bytes,
                               int root)
{
    static char nothing; /* an array of no elements may be NULL, what is given to memcpy() may not */

    return (struct queued_call){.run = operations[kind].run,
                                .kind = kind,
                                .in = n_bytes > 0 ? in : &nothing,
                                .out = n_bytes > 0 ? out : &nothing,
                                .n = n_bytes,
                                .peer = root};
}

static struct queued_call reduction(enum worker_collective_kind kind, const void *in, void *out, size_t count,
                                    enum crw_dtype dtype, enum crw_op op, int root)
{
    struct queued_call call = move(kind, in, out, count, root);

    call.dtype = dtype;
    call.op = op;
    return call;
}

/* ---- checking ---- */

static int check_size(uint64_t n, const char *what)
{
    if (n >> SIGNATURE_SIZE_BITS)
        return crw_fail(CRW_E_ARGUMENT, "%" PRIu64 " %s are impossible", n, what);
    return 0;
}

/* What gather writes and scatter reads is the root's alone. */
static int check_arrays(const struct crw_group *group, const struct queued_call *c)
{
    bool is_other = operations[c->kind].has_root && c->peer != group->rank;
    bool needs_in = operations[c->kind].has_in && !(c->kind == WORKER_COLLECTIVE_SCATTER && is_other);
    bool needs_out = !(c->kind == WORKER_COLLECTIVE_GATHER && is_other);

    if ((needs_in && !is_array(c->in, c->n, 1)) || (needs_out && !is_array(c->out, c->n, 1)))
        return crw_fail(CRW_E_ARGUMENT, "an array of %zu elements or bytes cannot be NULL", c->n);
    return 0;
}

static int check_collective(const struct crw_group *group, const struct queued_call *c)
{
    if (!group)
        return crw_fail(CRW_E_ARGUMENT, "a collective needs a group, not NULL");
    if (operations[c->kind].reduces && !reduce_supports(c->dtype, c->op))
        return crw_fail(CRW_E_ARGUMENT,
                        "type %d with operation %d cannot be reduced; CRW_F32, CRW_F64, CRW_BF16, "
                        "CRW_I64 and CRW_I32 can",
                        (int)c->dtype, (int)c->op);
    TRY(check_size(c->n, operations[c->kind].reduces ? "elements" : "bytes"));
    if (operations[c->kind].has_root && (c->peer < 0 || c->peer >= group->world_size))
        return crw_fail(CRW_E_ARGUMENT, "rank %d cannot be the root: there are %d ranks", c->peer,
                        group->world_size);
    return check_arrays(group, c);
}

/* data: to be sent or received. */
static int check_message(const struct crw_group *group, const void *data, size_t n_bytes, int peer)
{
    if (!group)
        return crw_fail(CRW_E_ARGUMENT, "a message needs a group, not NULL");
    if (peer < 0 || peer >= group->world_size || peer == group->rank)
        return crw_fail(CRW_E_ARGUMENT, "rank %d cannot exchange messages with rank %d: there are %d ranks",
                        group->rank, peer, group->world_size);
    TRY(check_size(n_bytes, "bytes"));
    if (!is_array(data, n_bytes, 1))
        return crw_fail(CRW_E_ARGUMENT, "a message of %zu bytes cannot be NULL", n_bytes);
    return 0;
}

/* ---- doing ---- */

static int run_now(struct crw_group *group, struct async_queue *queue, const struct queued_call *call)
{
    if (queue)
        async_queue_drain(queue);
    return group_run_call(group, call);
}

static int run_collective(struct crw_group *group, struct queued_call call)
{
    TRY(check_collective(group, &call));
    return run_now(group, &group->collectives, &call);
}

static int start_collective(struct crw_group *group, struct queued_call call, struct crw_work **ret_work)
{
    TRY(check_collective(group, &call));
    return async_queue_start(&group->collectives, &call, ret_work);
}

/* ---- reductions and moves ---- */

int crw_all_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype, enum crw_op op)
{
    return run_collective(group, reduction(WORKER_COLLECTIVE_ALL_REDUCE, NULL, data, count, dtype, op, 0));
}

int crw_all_reduce_start(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                         enum crw_op op, struct crw_work **ret_work)
{
    return start_collective(group, reduction(WORKER_COLLECTIVE_ALL_REDUCE, NULL, data, count, dtype, op, 0),
                            ret_work);
}

int crw_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
               int root)
{
    return run_collective(group, reduction(WORKER_COLLECTIVE_REDUCE, NULL, data, count, dtype, op, root));
}

int crw_reduce_start(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
                     int root, struct crw_work **ret_work)
{
    return start_collective(group, reduction(WORKER_COLLECTIVE_REDUCE, NULL, data, count, dtype, op, root),
                            ret_work);
}

int crw_reduce_scatter(struct crw_group *group, const void *data, void *result, size_t count,
                       enum crw_dtype dtype, enum crw_op op)
{
    return run_collective(group,
                          reduction(WORKER_COLLECTIVE_REDUCE_SCATTER, data, result, count, dtype, op, 0));
}

int crw_reduce_scatter_start(struct crw_group *group, const void *data, void *result, size_t count,
                             enum crw_dtype dtype, enum crw_op op, struct crw_work **ret_work)
{
    return start_collective(
        group, reduction(WORKER_COLLECTIVE_REDUCE_SCATTER, data, result, count, dtype, op, 0), ret_work);
}

int crw_broadcast(struct crw_group *group, void *data, size_t n_bytes, int root)
{
    return run_collective(group, move(WORKER_COLLECTIVE_BROADCAST, NULL, data, n_bytes, root));
}

int crw_broadcast_start(struct crw_group *group, void *data, size_t n_bytes, int root,
                        struct crw_work **ret_work)
{
    return start_collective(group, move(WORKER_COLLECTIVE_BROADCAST, NULL, data, n_bytes, root), ret_work);
}

int crw_all_gather(struct crw_group *group, const void *data, size_t n_bytes, void *all)
{
    return run_collective(group, move(WORKER_COLLECTIVE_ALL_GATHER, data, all, n_bytes, 0));
}

int crw_all_gather_start(struct crw_group *group, const void *data, size_t n_bytes, void *all,
                         struct crw_work **ret_work)
{
    return start_collective(group, move(WORKER_COLLECTIVE_ALL_GATHER, data, all, n_bytes, 0), ret_work);
}

int crw_gather(struct crw_group *group, const void *data, size_t n_bytes, void *all, int root)
{
    return run_collective(group, move(WORKER_COLLECTIVE_GATHER, data, all, n_bytes, root));
}

int crw_gather_start(struct crw_group *group, const void *data, size_t n_bytes, void *all, int root,
                     struct crw_work **ret_work)
{
    return start_collective(group, move(WORKER_COLLECTIVE_GATHER, data, all, n_bytes, root), ret_work);
}

int crw_scatter(struct crw_group *group, const void *all, size_t n_bytes, void *data, int root)
{
    return run_collective(group, move(WORKER_COLLECTIVE_SCATTER, all, data, n_bytes, root));
}

int crw_scatter_start(struct crw_group *group, const void *all, size_t n_bytes, void *data, int root,
                      struct crw_work **ret_work)
{
    return start_collective(group, move(WORKER_COLLECTIVE_SCATTER, all, data, n_bytes, root), ret_work);
}

int crw_barrier(struct crw_group *group)
{
    return run_collective(group, move(WORKER_COLLECTIVE_BARRIER, NULL, NULL, 0, 0));
}

int crw_barrier_start(struct crw_group *group, struct crw_work **ret_work)
{
    return start_collective(group, move(WORKER_COLLECTIVE_BARRIER, NULL, NULL, 0, 0), ret_work);
}

int crw_shared_alloc(struct crw_group *group, size_t n_bytes, void **ret_data)
{
    NEED(group && ret_data, CRW_E_ARGUMENT);
    async_queue_drain(&group->collectives);
    return group->inter_host ? inter_host_alloc(group->inter_host, n_bytes, ret_data)
                             : shm_alloc(&group->shm, n_bytes, ret_data);
}

/* ---- messages ---- */

enum direction { OUT, IN };

/* Ranks of other hosts are reached over the network. */
static bool is_on_other_host(const struct crw_group *group, int peer)
{
    return group->inter_host && group->inter_host->topology.host_of[peer] != group->inter_host->topology.host;
}

/* The number of a rank of this host in its shared memory. */
static int local_number(const struct crw_group *group, int peer)
{
    return group->inter_host ? group->inter_host->topology.local_of[peer] : peer;
}

/* NULL as long as nothing was started. */
static struct async_queue *message_queue(struct crw_group *group, int peer, enum direction direction)
{
    return group->message_queues ? &group->message_queues[2 * peer + (int)direction] : NULL;
}

static int make_message_queues(struct crw_group *group)
{
    int n = 2 * group->world_size;

    if (group->message_queues)
        return 0;
    group->message_queues = calloc((size_t)n, sizeof(*group->message_queues));
    if (!group->message_queues)
        return crw_fail_errno(-ENOMEM, "cannot start a message");
    for (int i = 0; i < n; i++)
        async_queue_init(&group->message_queues[i], group);
    return 0;
}

static int start_message(struct crw_group *group, int checked, const struct queued_call *call,
                         enum direction direction, struct crw_work **ret_work)
{
    TRY(checked == 0 ? make_message_queues(group) : checked);
    return async_queue_start(message_queue(group, call->peer, direction), call, ret_work);
}

static int run_send(struct crw_group *group, const struct queued_call *c)
{
    if (is_on_other_host(group, c->peer))
        return inter_host_send(group->inter_host, c->in, c->n, c->peer);
    return shm_p2p_send(&group->p2p, c->in, c->n, local_number(group, c->peer));
}

int crw_send(struct crw_group *group, const void *data, size_t n_bytes, int to)
{
    const struct queued_call call = {.run = run_send, .in = data, .n = n_bytes, .peer = to};

    TRY(check_message(group, data, n_bytes, to));
    return run_now(group, message_queue(group, to, OUT), &call);
}

int crw_send_start(struct crw_group *group, const void *data, size_t n_bytes, int to,
                   struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_send, .in = data, .n = n_bytes, .peer = to};

    return start_message(group, check_message(group, data, n_bytes, to), &call, OUT, ret_work);
}

static int run_recv(struct crw_group *group, const struct queued_call *c)
{
    if (is_on_other_host(group, c->peer))
        return inter_host_receive(group->inter_host, c->out, c->n, c->peer);
    return shm_p2p_receive(&group->p2p, c->out, c->n, local_number(group, c->peer));
}

int crw_recv(struct crw_group *group, void *data, size_t n_bytes, int from)
{
    const struct queued_call call = {.run = run_recv, .out = data, .n = n_bytes, .peer = from};

    TRY(check_message(group, data, n_bytes, from));
    return run_now(group, message_queue(group, from, IN), &call);
}

int crw_recv_start(struct crw_group *group, void *data, size_t n_bytes, int from, struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_recv, .out = data, .n = n_bytes, .peer = from};

    return start_message(group, check_message(group, data, n_bytes, from), &call, IN, ret_work);
}
