/*
 *   bytes  field
 *   0..3   magic
 *   4..35  token
 *   then for each rank
 *   0..3   rank
 *   4..5   port
 *   6..69  address, zero-filled, at least one zero
 *
 * Numbers are little-endian. Ranks of another build are found out by the magic: change it with the format.
 */

#include "worker-runtime/net/peer_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/address.h"
#include "proto/wire.h"

enum { HEAD = 4 + NET_TOKEN, ENTRY = 4 + 2 + NET_ADDRESS_SIZE };

static const uint8_t magic[4] = {'c', 'r', 'w', '1'};

int peer_table_init(struct peer_table *t, int world_size)
{
    *t = (struct peer_table){
        .world_size = world_size,
        .peers = calloc((size_t)world_size, sizeof(*t->peers)),
        .keys = calloc((size_t)world_size, sizeof(*t->keys)),
    };
    if (!t->peers || !t->keys) {
        peer_table_finish(t);
        return -ENOMEM;
    }
    for (int i = 0; i < world_size; i++)
        t->keys[i] = -1;
    return 0;
}

void peer_table_finish(struct peer_table *t)
{
    free(t->peers);
    free(t->keys);
    *t = (struct peer_table){0};
}

uint8_t *peer_table_encode(const struct peer_table_entry *entries, int n, const uint8_t token[NET_TOKEN],
                           size_t *ret_size)
{
    size_t size = HEAD + (size_t)n * ENTRY;
    uint8_t *data = calloc(1, size), *at = data + HEAD;

    if (!data)
        return NULL;
    memcpy(data, magic, sizeof(magic));
    memcpy(data + sizeof(magic), token, NET_TOKEN);
    for (int i = 0; i < n; i++, at += ENTRY) {
        wire_store_u32(at, (uint32_t)entries[i].rank);
        at[4] = (uint8_t)entries[i].peer.port;
        at[5] = (uint8_t)(entries[i].peer.port >> 8);
        memcpy(at + 6, entries[i].peer.address, strnlen(entries[i].peer.address, NET_ADDRESS_SIZE - 1));
    }
    *ret_size = size;
    return data;
}

static bool add_entry(struct peer_table *t, int host, const uint8_t *at)
{
    uint32_t rank = wire_load_u32(at);
    uint16_t port = (uint16_t)(at[4] | at[5] << 8);

    if (rank >= (uint32_t)t->world_size || t->keys[rank] >= 0 || at[ENTRY - 1] != 0 || at[6] == 0 ||
        port == 0)
        return false;
    t->keys[rank] = host;
    t->peers[rank].port = port;
    memcpy(t->peers[rank].address, at + 6, NET_ADDRESS_SIZE);
    return true;
}

bool peer_table_add(struct peer_table *t, int host, const uint8_t *data, size_t size)
{
    if (size < HEAD + ENTRY || (size - HEAD) % ENTRY != 0 || memcmp(data, magic, sizeof(magic)) != 0)
        return false;
    for (size_t at = HEAD; at < size; at += ENTRY)
        if (!add_entry(t, host, data + at))
            return false;
    if (host == 0)
        memcpy(t->token, data + sizeof(magic), NET_TOKEN);
    return true;
}

bool peer_table_is_complete(const struct peer_table *t)
{
    for (int i = 0; i < t->world_size; i++)
        if (t->keys[i] < 0)
            return false;
    return true;
}

/* The first rank behind `from` that other hosts can reach and that is not on host `except`; world_size: none. */
static int find_routable(const struct peer_table *t, int from, int except)
{
    while (from < t->world_size && (address_is_loopback(t->peers[from].address) || t->keys[from] == except))
        from++;
    return from;
}

int peer_table_find_unreachable(const struct peer_table *t)
{
    int first = find_routable(t, 0, -1), second = t->world_size;

    if (first < t->world_size) /* else they are all on one machine */
        second = find_routable(t, first, t->keys[first]);
    for (int i = 0; first < t->world_size && i < t->world_size; i++)
        if (address_is_loopback(t->peers[i].address) &&
            (t->keys[i] != t->keys[first] || second < t->world_size))
            return i;
    return -1;
}
