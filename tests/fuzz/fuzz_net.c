/*
 * Fuzz target: what ranks of different hosts read from strangers. Input: one byte that chooses the decoder, and
 * its bytes. What is accepted has to be the encoding of what was understood, byte for byte, and nothing
 * that was understood may point outside of the job.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/net/net_frame.h"
#include "worker-runtime/net/peer_table.h"
#include "worker-runtime/net/sealed_stream_openssl.h"

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

/* ---- sealed records ---- */

enum { RECORDS = 3, STREAM = 4096 };

static const size_t sizes[RECORDS] = {1, 300, 40};
static uint8_t plain[STREAM];

static struct record_seal *seal_of(bool encrypts)
{
    const struct secret_key secret = {"a key of the fuzzer"};
    struct record_seal *seal = NULL;

    require(record_seal_new(SEAL_CIPHER_AES, &secret, encrypts, SEAL_KEY_RECORDS, &seal) == 0);
    return seal;
}

/* What the other end sent; returns its size. */
static size_t make_stream(uint8_t stream[STREAM])
{
    struct record_seal *seal = seal_of(true);
    size_t n = 0, at = 0;

    for (int i = 0; i < RECORDS; i++) {
        const struct iovec part = {plain + at, sizes[i]};

        require(record_seal_close(seal, &part, sizes[i], stream + n) == 0);
        n += sizes[i] + SEAL_EXTRA;
        at += sizes[i];
    }
    record_seal_free(seal);
    return n;
}

/* Bytes of data in the records that come as they were sent. */
static size_t genuine_data(const uint8_t *sent, const uint8_t *stream, size_t n)
{
    size_t data = 0, at = 0;

    for (int i = 0; i < RECORDS; i++) {
        at += sizes[i] + SEAL_EXTRA;
        if (at > n || memcmp(sent, stream, at) != 0)
            break;
        data += sizes[i];
    }
    return data;
}

/* Receives the bytes in pieces, and takes the data in others; returns how much there was. */
static size_t take_stream(const uint8_t *stream, size_t n, size_t piece, size_t wanted)
{
    struct sealed_in in = {.seal = seal_of(false)};
    size_t n_data = 0, done = 0;
    ssize_t r = 0;

    while (r >= 0 && (done < n || sealed_in_holds(&in))) {
        uint8_t data[STREAM], *room;
        ssize_t size = sealed_in_room(&in, &room);

        require(size >= 0);
        if (size > 0) {
            size_t now = (size_t)size < n - done ? (size_t)size : n - done;

            now = now < piece ? now : piece;
            memcpy(room, stream + done, now);
            sealed_in_came(&in, now);
            done += now;
        }
        r = sealed_in_take(&in, data, wanted);
        if (r <= 0)
            continue;
        require(memcmp(data, plain + n_data, (size_t)r) == 0);
        n_data += (size_t)r;
    }
    require(r >= 0 || sealed_in_take(&in, &(uint8_t){0}, 1) == r);
    sealed_in_finish(&in);
    return n_data;
}

/* Two bytes choose the pieces; the others are the difference from what was sent, and then more bytes. */
static void try_sealed(const uint8_t *data, size_t size)
{
    uint8_t sent[STREAM] = {0}, stream[STREAM];
    size_t n = make_stream(sent);

    if (size < 2)
        return;
    for (size_t i = 0; i < size - 2 && i < STREAM; i++)
        stream[i] = (uint8_t)(data[2 + i] ^ (i < n ? sent[i] : 0));
    n = size - 2 < STREAM ? size - 2 : STREAM;
    require(take_stream(stream, n, data[0] + 1u, data[1] + 1u) == genuine_data(sent, stream, n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[NET_HELLO_SIZE] = {0};

    if (size < 1)
        return 0;
    if (data[0] % 4 == 3) {
        try_sealed(data + 1, size - 1);
        return 0;
    }
    if (data[0] % 4 == 2) {
        try_table(data + 1, size - 1);
        return 0;
    }
    memcpy(bytes, data + 1, size - 1 < sizeof(bytes) ? size - 1 : sizeof(bytes));
    if (data[0] % 4 == 0)
        try_hello(bytes);
    else
        try_news(bytes);
    return 0;
}
