/*
 * How the world comes to be when its ranks are on several hosts.
 *
 *   1. The ranks of a host (those of one GROUP_RANK) meet in shared memory, as in group_os.c.
 *   2. Each listens at the address by which this host reaches the worker store, or at CRUN_LOCAL_ADDR, and tells
 *      the others of its host; the leader puts that into the store, and takes what the other leaders put
 *      there. One key for each host: nothing here grows with the square of the ranks.
 *   3. Everybody knows everybody: control connections, then links, then a barrier over all.
 *   4. Each takes the other ranks of its host under watch, and all meet again, which shows that those
 *      watched were the ranks.
 *
 * The token that keeps strangers out is made by the leader of the first host and is in its part of the store.
 */

#include "worker-runtime/group/group_os.h"

#include "base/cleanup.h"
#include "worker-runtime/shm/shm_collectives.h"
#include "worker-runtime/net/peer_table.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { KEY_SIZE = 96 };

static void host_key(const struct crw_group *group, int number, int host, const char *what,
                     char key[KEY_SIZE])
{
    (void)snprintf(key, KEY_SIZE, "crw/group/%d/%d/%s/%d", group->env.generation, number, what, host);
}

/* ------------------------------------------------------------------ who is where */

static int listen_here(const struct crw_group *group, struct net **ret_net)
{
    const char *given = env_local_address();
    char address[NET_ADDRESS_SIZE];
    int r;

    if (given)
        return net_create(given, group->env.rank, group->env.world_size, group->watch, ret_net);
    r = net_own_address(group->store.client.fd, address);
    if (r < 0)
        return crw_fail_errno(r, "cannot tell by which address this host reaches the worker store");
    return net_create(address, group->env.rank, group->env.world_size, group->watch, ret_net);
}

/* The leader: what its host has to say, into the store. */
static int publish(struct crw_group *group, int number, const struct table_entry *entries)
{
    _cleanup_free_ uint8_t *data = NULL;
    uint8_t token[NET_TOKEN] = {0};
    char key[KEY_SIZE];
    size_t size;

    if (group->env.group_rank == 0 && getrandom(token, sizeof(token), 0) != (ssize_t)sizeof(token))
        return crw_fail_errno(-errno, "cannot get random bytes for the job's token");
    data = table_encode(entries, group->env.local_world_size, token, &size);
    if (!data)
        return crw_fail_errno(-ENOMEM, "cannot tell other hosts of the ranks of this one");
    host_key(group, number, group->env.group_rank, "host", key);
    return store_conn_set(&group->store, key, data, size);
}

static int fetch(struct crw_group *group, int number, struct table *table)
{
    for (int host = 0; host < group->env.group_world_size; host++) {
        _cleanup_free_ void *data = NULL;
        char key[KEY_SIZE];
        size_t size;
        int r;

        host_key(group, number, host, "host", key);
        r = store_conn_get(&group->store, key, -1, &data, &size);
        if (r != 0)
            return r;
        if (!table_add(table, host, data, size))
            return crw_fail(CRW_E_STORE,
                            "what store key %s says about the ranks of node %d makes no sense: the nodes run "
                            "different builds, or two of them have the same number",
                            key, host);
    }
    if (!table_is_complete(table))
        return crw_fail(CRW_E_STORE, "the %d nodes do not have all %d ranks", group->env.group_world_size,
                        group->env.world_size);
    return 0;
}

/* From the leader to the other ranks of its host. */
static int hand_on(struct crw_group *group, struct table *table)
{
    size_t n = (size_t)table->world_size;
    int r = comm_cpu_broadcast(&group->shm, table->peers, n * sizeof(*table->peers), 0);

    if (r == 0)
        r = comm_cpu_broadcast(&group->shm, table->keys, n * sizeof(*table->keys), 0);
    return r == 0 ? comm_cpu_broadcast(&group->shm, table->token, sizeof(table->token), 0) : r;
}

static int find_everybody(struct crw_group *group, int number, const struct net *net, struct table *table)
{
    const struct table_entry mine = {.rank = group->env.rank, .peer = *net_self(net)};
    _cleanup_free_ struct table_entry *entries = calloc((size_t)group->env.local_world_size, sizeof(mine));
    int r = entries && table_init(table, group->env.world_size) == 0 ? 0 : -ENOMEM;

    if (r < 0)
        return crw_fail_errno(r, "cannot hold the addresses of %d ranks", group->env.world_size);
    r = comm_cpu_all_gather(&group->shm, &mine, sizeof(mine), entries);
    if (r == 0 && group->env.local_rank == 0) {
        r = publish(group, number, entries);
        if (r == 0)
            r = fetch(group, number, table);
    }
    return r == 0 ? hand_on(group, table) : r;
}

/* ------------------------------------------------------------------ coming together */

int group_span(struct crw_group *group, struct net *net, uint32_t id, const int *keys, int n_keys, int rank,
               int world_size)
{
    int r;

    group->span = calloc(1, sizeof(*group->span));
    if (!group->span)
        return crw_fail_errno(-ENOMEM, "cannot make a group of %d ranks", world_size);
    r = span_init(group->span, net, id, &group->shm, keys, n_keys, rank, world_size, group->members);
    if (r != 0)
        return r;
    group->rank = rank;
    group->world_size = world_size;
    group->watched.hosts = &group->span->hosts;
    group->watched.ended = span_interrupt;
    group->watched.data = group->span;
    return 0;
}

/* The watch meets a group that it can tell the ranks of. */
static int connect_all(struct crw_group *group, struct net *net, const struct table *table)
{
    int interrupt_fd = watch_failed_fd(group->watch);
    int r = group_span(group, net, 0, table->keys, group->env.group_world_size, group->env.rank,
                       group->env.world_size);

    if (r != 0)
        return r;
    watch_add_group(group->watch, &group->watched);
    r = net_start(net, table->peers, table->token);
    if (r == 0)
        r = span_connect_controls(group->span, interrupt_fd);
    return r == 0 ? span_connect(group->span, interrupt_fd) : r;
}

static int meet(struct crw_group *group)
{
    int r = span_barrier(group->span);

    if (r == 0)
        r = watch_peers(group->watch, &group->shm, group->shm.names);
    return r == 0 ? span_barrier(group->span) : r;
}

/* All ranks have the same table and come to the same result. */
static int check_addresses(const struct table *table)
{
    int rank = table_find_unreachable(table);

    if (rank < 0)
        return 0;
    return crw_fail(
        CRW_E_ENVIRONMENT,
        "rank %d listens on %s, which ranks of other hosts cannot reach: MASTER_ADDR leads to a loopback "
        "address on its host; set CRUN_LOCAL_ADDR there to an address of that host's network, or "
        "MASTER_ADDR to a numeric one",
        rank, table->peers[rank].address);
}

static int join(struct crw_group *group, int number, struct net *net)
{
    struct table table = {0};
    int r = find_everybody(group, number, net, &table);

    watch_remove_group(group->watch, &group->watched);
    if (r == 0)
        r = check_addresses(&table);
    if (r == 0)
        r = connect_all(group, net, &table);
    table_finish(&table);
    return r == 0 ? meet(group) : r;
}

int group_join_hosts(struct crw_group *group, int number)
{
    struct net *net = NULL;
    char key[KEY_SIZE];
    int fd, r;

    host_key(group, number, group->env.group_rank, "memory", key);
    r = group_get_memory(group, key, group->env.local_rank == 0, group->env.local_world_size, &fd);
    if (r == 0)
        r = group_map(group, fd, group->env.local_rank, group->env.local_world_size);
    if (r != 0)
        return r;
    watch_add_group(group->watch, &group->watched);
    r = comm_cpu_barrier(&group->shm);
    if (r == 0)
        r = listen_here(group, &net);
    if (r == 0)
        r = join(group, number, net);
    net_destroy(net); /* the span has its share */
    return r;
}
