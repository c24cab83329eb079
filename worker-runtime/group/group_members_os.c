/*
 * Groups of some ranks of a group.
 *
 *   1. The first member makes shared memory; over several hosts, the first on each of them.
 *   2. All ranks of the old group share in one collective which members they asked for and, those first members, where
 *      the memory is.
 *   3. Members map it and connect to those of other hosts, and all ranks share the result: either all members have the
 *      group or none has. Until then the first member keeps the memory open.
 *
 * Ways it fails: those of any collective of the old group.
 */

#include "base/cleanup.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"
#include "worker-runtime/base/stop_os.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What every rank sends to the others. */
struct offer {
    int32_t result;
    uint32_t members_crc32c;
    uint32_t next_id;
    char place[GROUP_PLACE_SIZE]; /* of the first member, or of the first on its host */
};

static int check_members(const struct crw_group *from, const int *members, int n_members)
{
    int world_size = crw_world_size(from);

    if (!members || n_members < 1 || n_members > world_size)
        return crw_fail(CRW_E_ARGUMENT, "%d of %d ranks are no group", n_members, world_size);
    for (int i = 0; i < n_members; i++) {
        if (members[i] < 0 || members[i] >= world_size)
            return crw_fail(CRW_E_ARGUMENT, "rank %d cannot be a member: there are %d ranks", members[i],
                            world_size);
        for (int j = 0; j < i; j++)
            if (members[j] == members[i])
                return crw_fail(CRW_E_ARGUMENT, "rank %d cannot be a member twice", members[i]);
    }
    return 0;
}

/* -1: none. */
static int member_rank(int rank, const int *members, int n_members)
{
    for (int i = 0; i < n_members; i++)
        if (members[i] == rank)
            return i;
    return -1;
}

/* The failure of this rank has its message already: it is looked at first. */
static int result_of_rank(const struct crw_group *from, int rank, int result)
{
    if (result != 0 && rank != crw_rank(from))
        return crw_fail(result, "rank %d failed in the same call: see its own message", rank);
    return result;
}

static int exchange_offers(struct crw_group *from, const struct offer *mine, struct offer *offers)
{
    assert(offers); /* the ranks have agreed on that */
    TRY(crw_all_gather(from, mine, sizeof(*mine), offers));
    TRY(mine->result);
    for (int i = 0; i < crw_world_size(from); i++)
        TRY(result_of_rank(from, i, offers[i].result));
    for (int i = 0; i < crw_world_size(from); i++)
        if (offers[i].members_crc32c != mine->members_crc32c)
            return crw_fail(CRW_E_ARGUMENT,
                            "rank %d and rank %d want groups of different members: all ranks must ask "
                            "for the same one",
                            crw_rank(from), i);
    return 0;
}

int group_agree(struct crw_group *group, int result)
{
    /* The largest is that of the lowest rank that failed. */
    int64_t first = result ? (int64_t)(crw_world_size(group) - crw_rank(group)) << 32 | (uint32_t)result : 0;
    int r = crw_all_reduce(group, &first, 1, CRW_I64, CRW_MAX);

    if (r || result)
        return r ? r : result; /* this rank's own message is the better one */
    return first ? result_of_rank(group, crw_world_size(group) - (int)(first >> 32), (int32_t)first) : 0;
}

/* ---- over several hosts ---- */

/* -1: there is but one. */
static int host_of_member(const struct crw_group *from, int rank)
{
    return from->inter_host ? from->inter_host->topology.host_of[rank] : -1;
}

/* The first member on the same host: it makes the memory. */
static int first_member_on_host(const struct crw_group *from, int rank, const int *members, int n_members)
{
    for (int i = 0; i < n_members; i++)
        if (host_of_member(from, members[i]) == host_of_member(from, rank))
            return members[i];
    return -1;
}

/* How many of them are on this host, up to (not including) member number `end`. */
static int count_members_here(const struct crw_group *from, const int *members, int end)
{
    int n = 0;

    for (int i = 0; i < end; i++)
        n += host_of_member(from, members[i]) == host_of_member(from, crw_rank(from));
    return n;
}

/* A number for the group that none of the ranks has used. */
static uint32_t agreed_id(const struct crw_group *from, const struct offer *offers)
{
    uint32_t id = 0;

    assert(offers);
    for (int i = 0; i < crw_world_size(from); i++)
        if (offers[i].next_id > id)
            id = offers[i].next_id;
    return id;
}

/* The memory is mapped. */
static int connect_members(struct crw_group *group, const struct crw_group *from, uint32_t id,
                           const int *members, int n_members)
{
    _cleanup_free_ int *keys = calloc((size_t)n_members, sizeof(*keys));

    assert(from->inter_host);
    if (!keys)
        return crw_fail_errno(-ENOMEM, "cannot make a group");
    for (int i = 0; i < n_members; i++)
        keys[i] = host_of_member(from, members[i]);
    return group_set_hosts(group, from->inter_host->net, id, keys, from->inter_host->topology.n_hosts,
                           member_rank(crw_rank(from), members, n_members), n_members);
}

/* Numbers in the world, for the failure detector. */
static int *world_ranks(const struct crw_group *from, const int *members, int n_members)
{
    int *ranks = calloc((size_t)n_members, sizeof(*ranks));

    for (int i = 0; ranks && i < n_members; i++)
        ranks[i] = from->members ? from->members[members[i]] : members[i];
    return ranks;
}

static int become_member(struct crw_group *group, const struct crw_group *from, const struct offer *offers,
                         const int *members, int n_members)
{
    int number = member_rank(crw_rank(from), members, n_members),
        n_here = count_members_here(from, members, n_members);
    const char *place = offers[first_member_on_host(from, crw_rank(from), members, n_members)].place;
    int fd;

    group->members = world_ranks(from, members, n_members);
    if (!group->members)
        return crw_fail_errno(-ENOMEM, "cannot make a group");
    if (group->env.launched)
        collective_record_init(&group->record, collective_record_below(&from->record), n_members, false);
    TRY(group_open_memory(place, &fd));
    TRY(group_map(group, fd, count_members_here(from, members, number), n_here));
    if (n_here < n_members)
        TRY(connect_members(group, from, agreed_id(from, offers), members, n_members));
    group->detected_group.members = group->members;
    group->detector = failure_detector_share(from->detector);
    failure_detector_add_group(group->detector, &group->detected_group);
    store_conn_set_interrupt(&group->store, failure_detector_failed_fd(group->detector));
    stop_acquire();
    group->stop_acquired = true;
    return group->inter_host
               ? inter_host_connect(group->inter_host, failure_detector_failed_fd(group->detector))
               : 0;
}

/* A rank that is no member has nothing to do but to agree. */
static int join_as_member(const struct crw_group *from, const struct offer *offers, const int *members,
                          int n_members, struct crw_group **ret_group)
{
    *ret_group = NULL;
    if (member_rank(crw_rank(from), members, n_members) < 0)
        return 0;
    struct crw_group *group = group_new(&from->env, from->timeout_ms);
    if (!group)
        return crw_fail_errno(-ENOMEM, "cannot make a group");
    int r = become_member(group, from, offers, members, n_members);
    if (r)
        crw_group_destroy(group);
    else
        *ret_group = group;
    return r;
}

/* Whatever goes wrong is part of the offer. *ret_fd is written on the first member only. */
static void make_offer(const struct crw_group *from, const int *members, int n_members,
                       struct offer *ret_offer, int *ret_fd)
{
    int r = check_members(from, members, n_members);

    if (r == 0 && first_member_on_host(from, crw_rank(from), members, n_members) == crw_rank(from)) {
        r = shm_create_memory(count_members_here(from, members, n_members), ret_fd);
        if (r == 0)
            r = group_describe_memory(*ret_fd, ret_offer->place);
    }
    if (from->inter_host)
        ret_offer->next_id = net_next_group(from->inter_host->net);
    if (r == 0)
        ret_offer->members_crc32c = crw_crc32c(0, members, (size_t)n_members * sizeof(*members));
    ret_offer->result = r;
}

int crw_group_new(struct crw_group *from, const int *members, int n_members, struct crw_group **ret_group)
{
    _cleanup_free_ struct offer *offers = NULL;
    _cleanup_close_ int fd = -1;
    struct crw_group *group = NULL;
    struct offer mine = {0};

    NEED(from && ret_group, CRW_E_ARGUMENT);
    offers = calloc((size_t)crw_world_size(from), sizeof(*offers));
    TRY(group_agree(from, offers ? 0 : crw_fail_errno(-ENOMEM, "cannot make a group")));
    make_offer(from, members, n_members, &mine, &fd);
    TRY(exchange_offers(from, &mine, offers));
    if (from->inter_host)
        net_use_group(from->inter_host->net, agreed_id(from, offers));
    int r = group_agree(from, join_as_member(from, offers, members, n_members, &group));
    if (r)
        crw_group_destroy(group);
    else
        *ret_group = group;
    return r;
}
