/*
 * Rank assignment of a new generation.
 *
 * Group ranks: a node keeps the one it had, as long as it is below the new number of nodes. Then come nodes
 * that were away, with the rank that they report; then those with a --node-rank, which is a wish; then all
 * others, by host name with numbers read as numbers (node2 before node10), in the places that are left.
 *
 * Global ranks follow from the group ranks: each node's begin where those of the node before end. The same
 * within each role.
 */

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "proto/address.h"
#include "rendezvous/rounds/rounds_impl.h"

/* ---- host names ---- */

/* Skips zeros, so that equal numbers of other spelling compare equal. */
static size_t digits(const char **text)
{
    size_t n = 0;

    while (**text == '0')
        (*text)++;
    while (isdigit((unsigned char)(*text)[n]))
        n++;
    return n;
}

static int compare_numbers(const char **a, const char **b)
{
    size_t n_a = digits(a), n_b = digits(b);
    int order = n_a != n_b ? (n_a < n_b ? -1 : 1) : memcmp(*a, *b, n_a);

    *a += n_a;
    *b += n_b;
    return order;
}

static int compare_hosts(const char *a, const char *b)
{
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            int order = compare_numbers(&a, &b);

            if (order != 0)
                return order;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return *a ? 1 : *b ? -1 : 0;
}

/* ---- group ranks ---- */

enum claim { CLAIM_HAS, CLAIM_HAD, CLAIM_WISH, CLAIM_NONE };

static enum claim claim_of(const struct rounds_node *n)
{
    if (n->previous_member && n->group_rank >= 0)
        return CLAIM_HAS;
    if (n->group_rank >= 0)
        return CLAIM_HAD;
    return n->node_rank >= 0 ? CLAIM_WISH : CLAIM_NONE;
}

static int32_t claimed_rank(const struct rounds_node *n)
{
    return n->group_rank >= 0 ? n->group_rank : n->node_rank;
}

static int compare_serials(const struct rounds_node *a, const struct rounds_node *b)
{
    return a->serial < b->serial ? -1 : a->serial > b->serial;
}

/* The order in which nodes choose a place. */
static int compare_claims(const void *x, const void *y)
{
    const struct rounds_node *a = *(struct rounds_node *const *)x, *b = *(struct rounds_node *const *)y;
    enum claim claim_a = claim_of(a), claim_b = claim_of(b);

    if (claim_a != claim_b)
        return claim_a < claim_b ? -1 : 1;
    if (claim_a != CLAIM_NONE && claimed_rank(a) != claimed_rank(b))
        return claimed_rank(a) < claimed_rank(b) ? -1 : 1;
    int order = compare_hosts(a->host, b->host);
    return order != 0 ? order : compare_serials(a, b);
}

/* Which nodes become members when more are ready than MAX: previous members first, then by arrival. */
static int compare_seniority(const void *x, const void *y)
{
    const struct rounds_node *a = *(struct rounds_node *const *)x, *b = *(struct rounds_node *const *)y;

    if (a->previous_member != b->previous_member)
        return a->previous_member ? -1 : 1;
    return compare_serials(a, b);
}

/* by_role[] serves as room for the candidates, by_rank[] for the places. */
static size_t choose_members(struct rounds_job *job)
{
    struct rounds_node **candidates = job->by_role;
    size_t n = 0;

    job_each_node(node, job)
    {
        if (node->state == ROUNDS_NODE_READY)
            candidates[n++] = node;
    }
    if (n > job->params.max_nodes) {
        qsort(candidates, n, sizeof(struct rounds_node *), compare_seniority);
        n = job->params.max_nodes;
    }
    qsort(candidates, n, sizeof(struct rounds_node *), compare_claims);
    return n;
}

static void assign_group_ranks(struct rounds_job *job, size_t n)
{
    struct rounds_node **candidates = job->by_role, **places = job->by_rank;
    size_t n_left = 0, free_place = 0;

    memset(places, 0, n * sizeof(struct rounds_node *));
    for (size_t i = 0; i < n; i++) {
        struct rounds_node *node = candidates[i];
        int32_t wish = claimed_rank(node);

        if (wish >= 0 && (size_t)wish < n && !places[wish])
            places[wish] = node;
        else
            candidates[n_left++] = node; /* never overtakes i */
    }
    for (size_t i = 0; i < n_left; i++) {
        while (places[free_place])
            free_place++;
        places[free_place] = candidates[i];
    }
}

/* ---- global ranks ---- */

static int compare_roles(const void *x, const void *y)
{
    const struct rounds_node *a = *(struct rounds_node *const *)x, *b = *(struct rounds_node *const *)y;
    int order = strcmp(a->role, b->role);

    return order != 0 ? order : a->group_rank - b->group_rank;
}

static void assign_role_ranks(struct rounds_node **by_role, size_t n)
{
    size_t first = 0;

    qsort(by_role, n, sizeof(struct rounds_node *), compare_roles);
    while (first < n) {
        uint32_t size = 0;
        size_t end = first;

        for (; end < n && strcmp(by_role[end]->role, by_role[first]->role) == 0; end++) {
            by_role[end]->role_rank_base = size;
            size += by_role[end]->n_workers;
        }
        for (; first < end; first++)
            by_role[first]->role_world_size = size;
    }
}

/* The daemon runs on that node's machine: it came over loopback, or from the address it came to. */
static bool is_neighbour(const struct rounds_node *n)
{
    return address_is_loopback(n->peer) || (n->peer[0] && strcmp(n->peer, n->local) == 0);
}

/* All of them came through one NAT, so they reach each other behind it. An agent that does not report the
 * address that it sees itself has none that is known. */
static bool share_nat(struct rounds_node *const *nodes, size_t n_nodes)
{
    for (size_t i = 0; i < n_nodes; i++)
        if (!nodes[i]->own[0] || strcmp(nodes[i]->own, nodes[i]->peer) == 0 ||
            strcmp(nodes[i]->peer, nodes[0]->peer) != 0)
            return false;
    return true;
}

/* Where the others reach this node. Of one on our own machine another node knows by which address that is reached:
 * the one it found us at. */
static const char *reachable_address(const struct rounds_node *n, struct rounds_node *const *nodes,
                                     size_t n_nodes)
{
    if (n->addr[0])
        return n->addr;
    if (is_neighbour(n))
        for (size_t i = 0; i < n_nodes; i++)
            if (!is_neighbour(nodes[i]) && nodes[i]->local[0])
                return nodes[i]->local;
    return share_nat(nodes, n_nodes) ? n->own : n->peer;
}

void job_assign_ranks(struct rounds_job *job)
{
    size_t n = choose_members(job);

    assert(n > 0 && n <= job->n_slots);
    job->waiting.refused[0] = 0;
    assign_group_ranks(job, n);
    job->world_size = 0;
    job->n_members = (uint32_t)n;
    job->n_done_left = 0;
    for (size_t i = 0; i < n; i++) {
        struct rounds_node *node = job->by_rank[i];

        assert(node); /* as many nodes as ranks, and each has one */
        node_set_traits(node, true, node->quiet);
        node->answered = false;
        node->group_rank = (int32_t)i;
        node->rank_base = job->world_size;
        job->world_size += node->n_workers;
        job->by_role[i] = node;
    }
    assign_role_ranks(job->by_role, n);
    text_copy(job->master_addr, sizeof(job->master_addr),
              reachable_address(job->by_rank[0], job->by_rank, n));
    job->master_port = job->by_rank[0]->port;
}
