/*
 * Collectives and messages as programs call them: arguments checked, then run now or started.
 *
 * A call is a record of what is to be done (struct queued_call), made by one function for both. Run now,
 * it uses the caller's thread after the calls in its queue; started, it goes to the end of the queue.
 * Wrong arguments are refused before anything is sent to the peers.
 */

#include "worker-runtime/shm/shm_collectives_os.h"
#include "worker-runtime/shm/reduce_ops.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* ---- doing ---- */

static int run_now(struct crw_group *group, struct async_queue *queue, const struct queued_call *call)
{
    assert(group);
    if (queue)
        async_queue_drain(queue);
    return group_run_call(group, call);
}

static int run_collective(struct crw_group *group, int checked, const struct queued_call *call)
{
    return checked == 0 ? run_now(group, &group->collectives, call) : checked;
}

static int start_collective(struct crw_group *group, int checked, const struct queued_call *call,
                            struct crw_work **ret_work)
{
    return checked == 0 ? async_queue_start(&group->collectives, call, ret_work) : checked;
}

/* ---- checking ---- */

static int check_size(uint64_t n, const char *what)
{
    if (n >> SIGNATURE_SIZE_BITS)
        return crw_fail(CRW_E_ARGUMENT, "%" PRIu64 " %s are impossible", n, what);
    return 0;
}

static int check_root(const struct crw_group *group, int root)
{
    if (root < 0 || root >= group->world_size)
        return crw_fail(CRW_E_ARGUMENT, "rank %d cannot be the root: there are %d ranks", root,
                        group->world_size);
    return 0;
}

static int check_reduction(size_t count, enum crw_dtype dtype, enum crw_op op)
{
    if (!reduce_supports(dtype, op))
        return crw_fail(CRW_E_ARGUMENT,
                        "type %d with operation %d cannot be reduced; CRW_F32, CRW_F64, CRW_BF16, "
                        "CRW_I64 and CRW_I32 can",
                        (int)dtype, (int)op);
    return check_size(count, "elements");
}

static int check_rooted_reduction(const struct crw_group *group, size_t count, enum crw_dtype dtype,
                                  enum crw_op op, int root)
{
    int r = check_reduction(count, dtype, op);

    return r == 0 ? check_root(group, root) : r;
}

static int check_rooted(const struct crw_group *group, size_t n_bytes, int root)
{
    int r = check_size(n_bytes, "bytes");

    return r == 0 ? check_root(group, root) : r;
}

static int check_peer(const struct crw_group *group, size_t n_bytes, int peer)
{
    if (peer < 0 || peer >= group->world_size || peer == group->rank)
        return crw_fail(CRW_E_ARGUMENT, "rank %d cannot exchange messages with rank %d: there are %d ranks",
                        group->rank, peer, group->world_size);
    return check_size(n_bytes, "bytes");
}

/* ---- reductions ---- */

static int run_all_reduce(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_all_reduce(group->inter_host, c->out, c->n, c->dtype, c->op)
                             : shm_all_reduce(&group->shm, c->out, c->n, c->dtype, c->op);
}

int crw_all_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype, enum crw_op op)
{
    const struct queued_call call = {.run = run_all_reduce,
                                     .kind = WORKER_COLLECTIVE_ALL_REDUCE,
                                     .out = data,
                                     .n = count,
                                     .dtype = dtype,
                                     .op = op};

    return run_collective(group, check_reduction(count, dtype, op), &call);
}

int crw_all_reduce_start(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                         enum crw_op op, struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_all_reduce,
                                     .kind = WORKER_COLLECTIVE_ALL_REDUCE,
                                     .out = data,
                                     .n = count,
                                     .dtype = dtype,
                                     .op = op};

    return start_collective(group, check_reduction(count, dtype, op), &call, ret_work);
}

static int run_reduce(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_reduce(group->inter_host, c->out, c->n, c->dtype, c->op, c->peer)
                             : shm_reduce(&group->shm, c->out, c->n, c->dtype, c->op, c->peer);
}

int crw_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
               int root)
{
    const struct queued_call call = {.run = run_reduce,
                                     .kind = WORKER_COLLECTIVE_REDUCE,
                                     .out = data,
                                     .n = count,
                                     .dtype = dtype,
                                     .op = op,
                                     .peer = root};

    return run_collective(group, check_rooted_reduction(group, count, dtype, op, root), &call);
}

int crw_reduce_start(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
                     int root, struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_reduce,
                                     .kind = WORKER_COLLECTIVE_REDUCE,
                                     .out = data,
                                     .n = count,
                                     .dtype = dtype,
                                     .op = op,
                                     .peer = root};

    return start_collective(group, check_rooted_reduction(group, count, dtype, op, root), &call, ret_work);
}

static int run_reduce_scatter(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host
               ? inter_host_reduce_scatter(group->inter_host, c->in, c->out, c->n, c->dtype, c->op)
               : shm_reduce_scatter(&group->shm, c->in, c->out, c->n, c->dtype, c->op);
}

int crw_reduce_scatter(struct crw_group *group, const void *data, void *result, size_t count,
                       enum crw_dtype dtype, enum crw_op op)
{
    const struct queued_call call = {.run = run_reduce_scatter,
                                     .kind = WORKER_COLLECTIVE_REDUCE_SCATTER,
                                     .in = data,
                                     .out = result,
                                     .n = count,
                                     .dtype = dtype,
                                     .op = op};

    return run_collective(group, check_reduction(count, dtype, op), &call);
}

int crw_reduce_scatter_start(struct crw_group *group, const void *data, void *result, size_t count,
                             enum crw_dtype dtype, enum crw_op op, struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_reduce_scatter,
                                     .kind = WORKER_COLLECTIVE_REDUCE_SCATTER,
                                     .in = data,
                                     .out = result,
                                     .n = count,
                                     .dtype = dtype,
                                     .op = op};

    return start_collective(group, check_reduction(count, dtype, op), &call, ret_work);
}

/* ---- moves ---- */

static int run_broadcast(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_broadcast(group->inter_host, c->out, c->n, c->peer)
                             : shm_broadcast(&group->shm, c->out, c->n, c->peer);
}

int crw_broadcast(struct crw_group *group, void *data, size_t n_bytes, int root)
{
    const struct queued_call call = {
        .run = run_broadcast, .kind = WORKER_COLLECTIVE_BROADCAST, .out = data, .n = n_bytes, .peer = root};

    return run_collective(group, check_rooted(group, n_bytes, root), &call);
}

int crw_broadcast_start(struct crw_group *group, void *data, size_t n_bytes, int root,
                        struct crw_work **ret_work)
{
    const struct queued_call call = {
        .run = run_broadcast, .kind = WORKER_COLLECTIVE_BROADCAST, .out = data, .n = n_bytes, .peer = root};

    return start_collective(group, check_rooted(group, n_bytes, root), &call, ret_work);
}

static int run_all_gather(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_all_gather(group->inter_host, c->in, c->n, c->out)
                             : shm_all_gather(&group->shm, c->in, c->n, c->out);
}

int crw_all_gather(struct crw_group *group, const void *data, size_t n_bytes, void *all)
{
    const struct queued_call call = {
        .run = run_all_gather, .kind = WORKER_COLLECTIVE_ALL_GATHER, .in = data, .out = all, .n = n_bytes};

    return run_collective(group, check_size(n_bytes, "bytes"), &call);
}

int crw_all_gather_start(struct crw_group *group, const void *data, size_t n_bytes, void *all,
                         struct crw_work **ret_work)
{
    const struct queued_call call = {
        .run = run_all_gather, .kind = WORKER_COLLECTIVE_ALL_GATHER, .in = data, .out = all, .n = n_bytes};

    return start_collective(group, check_size(n_bytes, "bytes"), &call, ret_work);
}

static int run_gather(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_gather(group->inter_host, c->in, c->n, c->out, c->peer)
                             : shm_gather(&group->shm, c->in, c->n, c->out, c->peer);
}

int crw_gather(struct crw_group *group, const void *data, size_t n_bytes, void *all, int root)
{
    const struct queued_call call = {.run = run_gather,
                                     .kind = WORKER_COLLECTIVE_GATHER,
                                     .in = data,
                                     .out = all,
                                     .n = n_bytes,
                                     .peer = root};

    return run_collective(group, check_rooted(group, n_bytes, root), &call);
}

int crw_gather_start(struct crw_group *group, const void *data, size_t n_bytes, void *all, int root,
                     struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_gather,
                                     .kind = WORKER_COLLECTIVE_GATHER,
                                     .in = data,
                                     .out = all,
                                     .n = n_bytes,
                                     .peer = root};

    return start_collective(group, check_rooted(group, n_bytes, root), &call, ret_work);
}

static int run_scatter(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_scatter(group->inter_host, c->in, c->n, c->out, c->peer)
                             : shm_scatter(&group->shm, c->in, c->n, c->out, c->peer);
}

int crw_scatter(struct crw_group *group, const void *all, size_t n_bytes, void *data, int root)
{
    const struct queued_call call = {.run = run_scatter,
                                     .kind = WORKER_COLLECTIVE_SCATTER,
                                     .in = all,
                                     .out = data,
                                     .n = n_bytes,
                                     .peer = root};

    return run_collective(group, check_rooted(group, n_bytes, root), &call);
}

int crw_scatter_start(struct crw_group *group, const void *all, size_t n_bytes, void *data, int root,
                      struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_scatter,
                                     .kind = WORKER_COLLECTIVE_SCATTER,
                                     .in = all,
                                     .out = data,
                                     .n = n_bytes,
                                     .peer = root};

    return start_collective(group, check_rooted(group, n_bytes, root), &call, ret_work);
}

static int run_barrier(struct crw_group *group, const struct queued_call *c)
{
    return group->inter_host ? inter_host_barrier(group->inter_host) : shm_barrier(&group->shm);
}

int crw_barrier(struct crw_group *group)
{
    const struct queued_call call = {.run = run_barrier, .kind = WORKER_COLLECTIVE_BARRIER};

    return run_collective(group, 0, &call);
}

int crw_barrier_start(struct crw_group *group, struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_barrier, .kind = WORKER_COLLECTIVE_BARRIER};

    return start_collective(group, 0, &call, ret_work);
}

int crw_shared_alloc(struct crw_group *group, size_t n_bytes, void **ret_data)
{
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
    int r = checked == 0 ? make_message_queues(group) : checked;

    return r == 0 ? async_queue_start(message_queue(group, call->peer, direction), call, ret_work) : r;
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
    int r = check_peer(group, n_bytes, to);

    return r == 0 ? run_now(group, message_queue(group, to, OUT), &call) : r;
}

int crw_send_start(struct crw_group *group, const void *data, size_t n_bytes, int to,
                   struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_send, .in = data, .n = n_bytes, .peer = to};

    return start_message(group, check_peer(group, n_bytes, to), &call, OUT, ret_work);
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
    int r = check_peer(group, n_bytes, from);

    return r == 0 ? run_now(group, message_queue(group, from, IN), &call) : r;
}

int crw_recv_start(struct crw_group *group, void *data, size_t n_bytes, int from, struct crw_work **ret_work)
{
    const struct queued_call call = {.run = run_recv, .out = data, .n = n_bytes, .peer = from};

    return start_message(group, check_peer(group, n_bytes, from), &call, IN, ret_work);
}
