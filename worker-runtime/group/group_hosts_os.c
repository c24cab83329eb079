/*
 * Joining a world with ranks on several hosts.
 *
 *   1. The ranks of a host (those of one GROUP_RANK) meet in shared memory, as in group_os.c.
 *   2. Each rank listens at the address by which the host reaches the worker store, or at CRUN_LOCAL_ADDR, and shares the
 *      address with the others of the host; the leader publishes the host's part of the peer table in the store, and fetches
 *      the parts of the other leaders. One key for each host: nothing here grows with the square of the ranks.
 *   3. Every rank has the whole table: control connections, then links, then a barrier of all.
 *   4. Each rank watches the other ranks of the host, and all pass another barrier as a proof that the watched
 *      processes were the ranks.
 *
 * The token that authenticates connections is made by the leader of the first host and is in the leader's part of the table.
 * Where the job has a key (job_key_os.h), the ranks prove the key too.
 */

#include "worker-runtime/group/group_os.h"

#include "base/cleanup.h"
#include "proto/key_openssl.h"
#include "worker-runtime/shm/shm_collectives_os.h"
#include "worker-runtime/net/peer_table.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/job_key_os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { HOST_KEY_SIZE = 96 };

static void host_key(const struct crw_group *group, int number, int host, const char *what,
                     char key[HOST_KEY_SIZE])
{
    (void)snprintf(key, HOST_KEY_SIZE, "crw/group/%d/%d/%s/%d", group->env.generation, number, what, host);
}

/* ---- the peer table ---- */

static int listen_here(const struct crw_group *group, struct net **ret_net)
{
    const char *given = env_text("CRUN_LOCAL_ADDR");
    char address[NET_ADDRESS_SIZE];

    if (given)
        return net_create(given, group->env.rank, group->env.world_size, group->detector, ret_net);
    int r = net_own_address(group->store.client.fd, address);
    if (r < 0)
        return crw_fail_errno(r, "cannot find the address by which this host reaches the worker store");
    return net_create(address, group->env.rank, group->env.world_size, group->detector, ret_net);
}

/* The leader publishes the host's part of the table. */
static int publish_peer_table(struct crw_group *group, int number, const struct peer_table_entry *entries)
{
    uint8_t token[NET_TOKEN] = {0};
    char key[HOST_KEY_SIZE];
    size_t size;

    if (group->env.group_rank == 0 && getrandom(token, sizeof(token), 0) != (ssize_t)sizeof(token))
        return crw_fail_errno(-errno, "cannot get random bytes for the job's token");
    _cleanup_free_ uint8_t *data = peer_table_encode(entries, group->env.local_world_size, token, &size);
    if (!data)
        return crw_fail_errno(-ENOMEM, "cannot publish the addresses of this host's ranks");
    host_key(group, number, group->env.group_rank, "host", key);
    return store_conn_set(&group->store, key, data, size);
}

static int fetch_peer_table(struct crw_group *group, int number, struct peer_table *table)
{
    for (int host = 0; host < group->env.group_world_size; host++) {
        _cleanup_free_ void *data = NULL;
        char key[HOST_KEY_SIZE];
        size_t size;

        host_key(group, number, host, "host", key);
        TRY(store_conn_get(&group->store, key, -1, &data, &size));
        if (!peer_table_add(table, host, data, size))
            return crw_fail(CRW_E_STORE,
                            "store key %s has no valid table of the ranks of node %d: the nodes run "
                            "different builds, or two of them have the same number",
                            key, host);
    }
    if (!peer_table_is_complete(table))
        return crw_fail(CRW_E_STORE, "the %d nodes do not have all %d ranks", group->env.group_world_size,
                        group->env.world_size);
    return 0;
}

/* From the leader to the other ranks of its host. */
static int share_peer_table(struct crw_group *group, struct peer_table *table)
{
    size_t n = (size_t)table->world_size;

    TRY(shm_broadcast(&group->shm, table->peers, n * sizeof(*table->peers), 0));
    TRY(shm_broadcast(&group->shm, table->keys, n * sizeof(*table->keys), 0));
    return shm_broadcast(&group->shm, table->token, sizeof(table->token), 0);
}

static int find_all_peers(struct crw_group *group, int number, const struct net *net,
                          struct peer_table *table)
{
    const struct peer_table_entry mine = {.rank = group->env.rank, .peer = *net_self(net)};
    _cleanup_free_ struct peer_table_entry *entries =
        calloc((size_t)group->env.local_world_size, sizeof(mine));
    int r = entries && peer_table_init(table, group->env.world_size) == 0 ? 0 : -ENOMEM;

    if (r < 0)
        return crw_fail_errno(r, "cannot hold the addresses of %d ranks", group->env.world_size);
    TRY(shm_all_gather(&group->shm, &mine, sizeof(mine), entries));
    if (group->env.local_rank == 0) {
        TRY(publish_peer_table(group, number, entries));
        TRY(fetch_peer_table(group, number, table));
    }
    return share_peer_table(group, table);
}

/* ---- coming together ---- */

int group_set_hosts(struct crw_group *group, struct net *net, uint32_t id, const int *keys, int n_keys,
                    int rank, int world_size)
{
    group->inter_host = calloc(1, sizeof(*group->inter_host));
    if (!group->inter_host)
        return crw_fail_errno(-ENOMEM, "cannot make a group of %d ranks", world_size);
    TRY(inter_host_init(group->inter_host, net, id, &group->shm, keys, n_keys, rank, world_size,
                        group->members));
    group->rank = rank;
    group->world_size = world_size;
    group->detected_group.topology = &group->inter_host->topology;
    group->detected_group.ended = inter_host_interrupt;
    group->detected_group.data = group->inter_host;
    return 0;
}

/* The detector gets the group only when the hosts of its ranks are known. */
static int connect_all(struct crw_group *group, struct net *net, const struct peer_table *table,
                       const struct job_key *key)
{
    int interrupt_fd = failure_detector_failed_fd(group->detector);

    TRY(group_set_hosts(group, net, 0, table->keys, group->env.group_world_size, group->env.rank,
                        group->env.world_size));
    failure_detector_add_group(group->detector, &group->detected_group);
    TRY(net_start(net, table->peers, table->token, key));
    TRY(inter_host_connect_controls(group->inter_host, interrupt_fd));
    return inter_host_connect(group->inter_host, interrupt_fd);
}

static int meet_over_hosts(struct crw_group *group)
{
    TRY(inter_host_barrier(group->inter_host));
    TRY(failure_detector_watch_peers(group->detector, &group->shm, group->shm.names));
    return inter_host_barrier(group->inter_host);
}

/* All ranks have the same table and come to the same result. */
static int check_addresses(const struct peer_table *table)
{
    int rank = peer_table_find_unreachable(table);

    if (rank < 0)
        return 0;
    return crw_fail(
        CRW_E_ENVIRONMENT,
        "rank %d listens on %s, which ranks of other hosts cannot reach: MASTER_ADDR leads to a loopback "
        "address on its host; set CRUN_LOCAL_ADDR there to an address of that host's network, or "
        "MASTER_ADDR to a numeric one",
        rank, table->peers[rank].address);
}

static int join_over_hosts(struct crw_group *group, int number, struct net *net, const struct job_key *key)
{
    struct peer_table table = {0};
    int r = find_all_peers(group, number, net, &table);

    failure_detector_remove_group(group->detector, &group->detected_group);
    if (r == 0)
        r = check_addresses(&table);
    if (r == 0)
        r = connect_all(group, net, &table, key);
    peer_table_finish(&table);
    return r == 0 ? meet_over_hosts(group) : r;
}

int group_join_hosts(struct crw_group *group, int number)
{
    struct net *net = NULL;
    struct job_key job_key = {0};
    char key[HOST_KEY_SIZE];
    int fd, r;

    host_key(group, number, group->env.group_rank, "memory", key);
    TRY(group_get_memory(group, key, group->env.local_rank == 0, group->env.local_world_size, &fd));
    TRY(group_map(group, fd, group->env.local_rank, group->env.local_world_size));
    failure_detector_add_group(group->detector, &group->detected_group);
    r = shm_barrier(&group->shm);
    if (r ==
        0) /* before others learn the address: they would be refused there, and report that as the first failure */
        r = job_key_read(group->env.generation, &job_key);
    if (r == 0)
        r = listen_here(group, &net);
    if (r == 0)
        r = join_over_hosts(group, number, net, &job_key);
    key_erase(&job_key, sizeof(job_key)); /* the net has a copy */
    net_destroy(net);                     /* group->inter_host has its share */
    return r;
}
