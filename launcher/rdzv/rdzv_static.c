#include "launcher/rdzv/rdzv_static.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/rdzv/rdzv_static_json.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/format.h"
#include "base/strbuf.h"

static const char count_key[] = "init/"; /* a key of the store: without "/" and prefix */

void rdzv_static_init(struct rdzv_static *n, const struct rdzv_static_config *config)
{
    *n = (struct rdzv_static){.config = *config};
    client_init(&n->client);
}

void rdzv_static_finish(struct rdzv_static *n)
{
    client_finish(&n->client);
}

/* ---- requests ---- */

static struct wire_span span_of(const char *text)
{
    return wire_span(text, strlen(text));
}

/* "/<run_id>/torchelastic/..." */
__attribute__((format(printf, 2, 3))) static char *key_of(const struct rdzv_static *n, const char *format,
                                                          ...)
{
    char name[96];

    (void)format_arguments(name, sizeof(name), format); /* all names used here fit */
    return strbuf_format("/%s/torchelastic/%s", n->config.run_id, name);
}

/* Frees the key. */
static int request_key(struct rdzv_static *n, enum wire_op op, char *key, int64_t amount)
{
    struct wire_span span;

    if (!key)
        return -ENOMEM;
    span = span_of(key);
    int r = op == WIRE_OP_WAIT
                ? client_keys(&n->client, op, &span, 1)
                : client_request(&n->client, &(struct wire_request){.op = op, .key = span, .amount = amount});
    free(key);
    return r;
}

/* Frees both. */
static int set_store_key(struct rdzv_static *n, char *key, char *value)
{
    int r = -ENOMEM;

    if (key && value)
        r = client_request(&n->client, &(struct wire_request){
                                           .op = WIRE_OP_SET, .key = span_of(key), .value = span_of(value)});
    free(key);
    free(value);
    return r;
}

int rdzv_static_join(struct rdzv_static *n)
{
    const struct wire_request requests[] = {
        {.op = WIRE_OP_VALIDATE, .word = WIRE_VALIDATE_MAGIC},
        {.op = WIRE_OP_PING, .word = n->config.rank},
        {.op = WIRE_OP_ADD, .key = span_of(count_key), .amount = 1},
    };
    int r = 0;

    n->stage = STATIC_GREETING;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(requests); i++)
        r = client_request(&n->client, &requests[i]);
    return r;
}

/* Requests op for a list: a role_info key of each node. */
static int request_roles(struct rdzv_static *n, enum wire_op op)
{
    uint32_t n_nodes = n->config.n_nodes;
    _cleanup_free_ struct wire_span *keys = calloc(n_nodes, sizeof(*keys));
    _cleanup_free_ char **names = calloc(n_nodes, sizeof(*names));
    int r = keys && names ? 0 : -ENOMEM;

    for (uint32_t i = 0; !r && i < n_nodes; i++) {
        names[i] = key_of(n, "role_info/%u", i);
        if (names[i])
            keys[i] = span_of(names[i]);
        else
            r = -ENOMEM;
    }
    if (!r)
        r = client_keys(&n->client, op, keys, n_nodes);
    for (uint32_t i = 0; names && i < n_nodes; i++)
        free(names[i]);
    return r;
}

static int wait_for_others(struct rdzv_static *n)
{
    n->stage = STATIC_GATHERING;
    return n->config.rank == 0
               ? request_roles(n, WIRE_OP_WAIT)
               : request_key(n, WIRE_OP_WAIT, key_of(n, "assigned_ranks/%u", n->config.rank), 0);
}

static int read_awaited_keys(struct rdzv_static *n)
{
    n->stage = STATIC_READING;
    return n->config.rank == 0
               ? request_roles(n, WIRE_OP_MULTI_GET)
               : request_key(n, WIRE_OP_GET, key_of(n, "assigned_ranks/%u", n->config.rank), 0);
}

static int request_twins(struct rdzv_static *n)
{
    char *key = key_of(n, "crun_nodes/%u", n->config.rank);
    int64_t amount = n->is_counted ? 0 : 1;

    n->is_counted = true;
    return request_key(n, WIRE_OP_ADD, key, amount);
}

int rdzv_static_count(struct rdzv_static *n)
{
    if (n->stage != STATIC_GATHERING)
        return 0;
    TRY(client_cancel(&n->client)); /* the answer comes with the others */
    TRY(client_request(&n->client, &(struct wire_request){.op = WIRE_OP_GET, .key = span_of(count_key)}));
    TRY(request_twins(n));
    return wait_for_others(n);
}

int rdzv_static_leave(struct rdzv_static *n)
{
    n->stage = STATIC_LEAVING;
    return request_key(n, WIRE_OP_ADD, key_of(n, "agent/terminal_state/num_members"), 1);
}

/* ---- rank assignment ---- */

static int set_assigned(struct rdzv_static *n)
{
    n->assignment.group_rank = n->config.rank;
    n->assignment.group_world_size = n->config.n_nodes;
    n->n_there = n->config.n_nodes;
    n->stage = STATIC_ASSIGNED;
    return 0;
}

static int assign_by_node_rank(struct rdzv_static *n)
{
    n->assignment.rank_base = n->assignment.role_rank_base = n->config.rank * n->config.n_workers;
    n->assignment.world_size = n->assignment.role_world_size = n->config.n_nodes * n->config.n_workers;
    return set_assigned(n);
}

static uint32_t role_size(const struct rdzv_static_role *roles, uint32_t n_roles, const char *role)
{
    uint32_t size = 0;

    for (uint32_t i = 0; i < n_roles; i++)
        size += strcmp(roles[i].role, role) == 0 ? roles[i].n_workers : 0;
    return size;
}

/* The ranks of all nodes: in the order of the nodes, also within each role. */
static int assign_ranks(struct rdzv_static *n, const struct rdzv_static_role *roles)
{
    struct rank_assignment next = {0};

    for (uint32_t i = 0; i < n->config.n_nodes; i++)
        next.world_size += roles[i].n_workers;
    for (uint32_t i = 0; i < n->config.n_nodes; i++) {
        next.role_rank_base = role_size(roles, i, roles[i].role);
        next.role_world_size = role_size(roles, n->config.n_nodes, roles[i].role);
        if (i == n->config.rank)
            n->assignment = next;
        TRY(set_store_key(n, key_of(n, "assigned_ranks/%u", i), rdzv_static_json_ranks(&next)));
        next.rank_base += roles[i].n_workers;
    }
    return set_assigned(n);
}

static int take_roles(struct rdzv_static *n, const struct wire_reply *reply)
{
    _cleanup_free_ struct rdzv_static_role *roles = calloc(n->config.n_nodes, sizeof(*roles));
    struct wire_span list = reply->items, value;
    uint32_t n_read = 0;

    if (!roles)
        return -ENOMEM;
    while (n_read < n->config.n_nodes && wire_next_key(&list, &value) &&
           rdzv_static_json_read_role(value.data, value.size, &roles[n_read]))
        n_read++;
    n->error = "the store holds something else than the description of a node under role_info";
    int r = n_read == n->config.n_nodes ? assign_ranks(n, roles) : STATIC_E_BAD;
    for (uint32_t i = 0; i < n_read; i++)
        free(roles[i].role);
    return r;
}

static int take_ranks(struct rdzv_static *n, const struct wire_reply *reply)
{
    if (rdzv_static_json_read_ranks(reply->value.data, reply->value.size, &n->assignment))
        return set_assigned(n);
    n->error = "the store holds something else than four numbers under assigned_ranks";
    return STATIC_E_BAD;
}

/* ---- replies ---- */

static void take_count(struct rdzv_static *n, int64_t count)
{
    n->n_there = count > n->config.n_nodes ? n->config.n_nodes : count > 0 ? (uint32_t)count : 0;
}

static int publish_role(struct rdzv_static *n)
{
    if (n->config.identical)
        return assign_by_node_rank(n);
    TRY(set_store_key(n, key_of(n, "role_info/%u", n->config.rank),
                      rdzv_static_json_role(n->config.role, n->config.rank, n->config.n_workers)));
    return wait_for_others(n);
}

static int take_members(struct rdzv_static *n, int64_t count)
{
    int r = 0;

    if (count >= n->config.n_nodes) /* a SET has no answer; the request behind the SET has */
        r = set_store_key(n, key_of(n, "agent/terminal_state/last_member"), strdup("<val_ignored>"));
    return r ? r : request_key(n, WIRE_OP_WAIT, key_of(n, "agent/terminal_state/last_member"), 0);
}

static int take_wait(struct rdzv_static *n, int64_t status)
{
    if (status == WIRE_WAIT_CANCELED)
        return 0; /* by rdzv_static_count(): the wait goes on */
    if (n->stage == STATIC_GATHERING)
        return client_abandon(&n->client) ? -ENOMEM : read_awaited_keys(n);
    if (n->stage == STATIC_LEAVING)
        n->stage = STATIC_DEPARTED;
    return 0;
}

static int take_reply(struct rdzv_static *n, const struct wire_reply *reply)
{
    char text[24] = "";

    switch (reply->op) {
    case WIRE_OP_ADD:
        if (n->stage == STATIC_LEAVING)
            return take_members(n, reply->number);
        if (n->stage == STATIC_GATHERING) {
            n->has_twin = reply->number > 1;
            return 0;
        }
        take_count(n, reply->number);
        return publish_role(n);
    case WIRE_OP_WAIT:
        return take_wait(n, reply->number);
    case WIRE_OP_GET:
        if (n->stage != STATIC_GATHERING)
            return take_ranks(n, reply);
        (void)snprintf(text, sizeof(text), "%.*s", (int)reply->value.size, (const char *)reply->value.data);
        take_count(n, atoll(text));
        return 0;
    case WIRE_OP_MULTI_GET:
        return take_roles(n, reply);
    default: /* PING */
        return 0;
    }
}

int rdzv_static_receive(struct rdzv_static *n)
{
    struct wire_reply reply;
    int r;

    while ((r = client_next(&n->client, &reply)) == 0)
        TRY(take_reply(n, &reply));
    return r == CLIENT_E_MORE ? 0 : r;
}
