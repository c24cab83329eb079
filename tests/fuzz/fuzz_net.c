/*
 * Fuzz target: what ranks of different hosts read from strangers. Input: one byte that chooses the decoder, and
 * its bytes. What is accepted has to be the encoding of what was understood, byte for byte, and nothing
 * that was understood may point outside of the job.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/net/peer_table.h"
#include "worker-runtime/net/net_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD_SIZE = 5 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void try_hello(const uint8_t *data)
{
    uint8_t again[NET_HELLO_SIZE];
    struct net_hello hello;

    if (!net_hello_decode(data, WORLD_SIZE, &hello))
        return;
    require(hello.from < WORLD_SIZE && hello.to < WORLD_SIZE && hello.from != hello.to);
    require(hello.purpose >= NET_CONTROL && hello.purpose < NET_PURPOSE_COUNT);
    net_hello_encode(&hello, again);
    require(memcmp(again, data, sizeof(again)) == 0);
}

static void try_news(const uint8_t *data)
{
    uint8_t again[NET_RECORD_SIZE];
    struct net_record record;

    if (!net_record_decode(data, WORLD_SIZE, &record))
        return;
    require(record.rank >= 0 && record.rank < WORLD_SIZE);
    net_record_encode(&record, again);
    require(memcmp(again, data, sizeof(again)) == 0);
}

/* The same table twice is never accepted: its ranks are taken. */
static void try_table(const uint8_t *data, size_t size)
{
    struct peer_table table;

    require(peer_table_init(&table, WORLD_SIZE) == 0);
    if (peer_table_add(&table, 0, data, size)) {
        for (int i = 0; i < WORLD_SIZE; i++)
            require(table.keys[i] < 0 ||
                    (strlen(table.peers[i].address) < NET_ADDRESS_SIZE && table.peers[i].port > 0));
        require(!peer_table_add(&table, 1, data, size));
    }
    peer_table_finish(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[NET_HELLO_SIZE] = {0};

    if (size < 1)
        return 0;
    if (data[0] % 3 == 2) {
        try_table(data + 1, size - 1);
        return 0;
    }
    memcpy(bytes, data + 1, size - 1 < sizeof(bytes) ? size - 1 : sizeof(bytes));
    if (data[0] % 3 == 0)
        try_hello(bytes);
    else
        try_news(bytes);
    return 0;
}
