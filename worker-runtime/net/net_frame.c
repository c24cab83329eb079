#include "worker-runtime/net/net_frame.h"

#include <assert.h>
#include <string.h>

/* Before the fields. */
static const struct {
    char magic[8];
    uint32_t version, order;
} head = {"crw-net\n", NET_VERSION, 0x01020304};

static_assert(sizeof(head) + sizeof(struct net_hello) == NET_HELLO_SIZE, "as in the table");
static_assert(sizeof(struct net_record) == NET_RECORD_SIZE, "no padding");

void net_hello_encode(const struct net_hello *hello, uint8_t out[NET_HELLO_SIZE])
{
    memcpy(out, &head, sizeof(head));
    memcpy(out + sizeof(head), hello, sizeof(*hello));
}

bool net_hello_decode(const uint8_t in[NET_HELLO_SIZE], uint32_t world_size, struct net_hello *ret)
{
    struct net_hello h;

    memcpy(&h, in + sizeof(head), sizeof(h));
    if (memcmp(in, &head, sizeof(head)) != 0 || h.keyed > 1 ||
        h.cipher >= (h.keyed ? SEAL_CIPHER_COUNT : SEAL_CIPHER_NONE + 1))
        return false;
    if (h.purpose < NET_CONTROL || h.purpose >= NET_PURPOSE_COUNT || h.from >= world_size ||
        h.to >= world_size || h.from == h.to)
        return false;
    *ret = h;
    return true;
}

bool net_bytes_equal(const uint8_t *a, const uint8_t *b, int n)
{
    unsigned different = 0;

    for (int i = 0; i < n; i++)
        different |= (unsigned)a[i] ^ b[i];
    return different == 0;
}

void net_proved_encode(const uint8_t hello[NET_HELLO_SIZE], const uint8_t answer[NET_ANSWER_HEAD],
                       enum net_role role, uint8_t out[NET_PROVED_SIZE])
{
    const uint32_t number = role;

    memcpy(out, hello, NET_HELLO_SIZE);
    memcpy(out + NET_HELLO_SIZE, answer, NET_ANSWER_HEAD);
    memcpy(out + NET_HELLO_SIZE + NET_ANSWER_HEAD, &number, sizeof(number));
}

void net_answer_encode(const uint8_t token[NET_TOKEN], enum net_answer answer, uint8_t out[NET_TOKEN_HALF])
{
    static const uint8_t inverted[NET_ANSWER_COUNT] = {[NET_ANSWER_LEFT] = 0xff, [NET_ANSWER_DIFFERS] = 0x55};

    for (int i = 0; i < NET_TOKEN_HALF; i++)
        out[i] = token[NET_TOKEN_HALF + i] ^ inverted[answer];
}

bool net_answer_decode(const uint8_t in[NET_TOKEN_HALF], const uint8_t token[NET_TOKEN], enum net_answer *ret)
{
    bool known = false;

    for (int i = 0; i < NET_ANSWER_COUNT; i++) {
        uint8_t expected[NET_TOKEN_HALF];

        net_answer_encode(token, (enum net_answer)i, expected);
        if (!net_bytes_equal(in, expected, NET_TOKEN_HALF))
            continue;
        *ret = (enum net_answer)i;
        known = true;
    }
    return known;
}

void net_record_encode(const struct net_record *record, uint8_t out[NET_RECORD_SIZE])
{
    memcpy(out, record, NET_RECORD_SIZE);
}

bool net_record_decode(const uint8_t in[NET_RECORD_SIZE], uint32_t world_size, struct net_record *ret)
{
    struct net_record r;

    memcpy(&r, in, sizeof(r));
    if (r.kind < NET_RECORD_ENDED || r.kind >= NET_RECORD_KIND_COUNT || (uint32_t)r.rank >= world_size)
        return false;
    *ret = r;
    return true;
}
