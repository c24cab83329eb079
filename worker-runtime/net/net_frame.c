#include "worker-runtime/net/net_frame.h"

#include <assert.h>
#include <string.h>

/* Byte positions of a hello; see the header. */
enum {
    AT_VERSION = 8,
    AT_ORDER = 12,
    AT_PURPOSE = 16,
    AT_GROUP = 20,
    AT_FROM = 24,
    AT_TO = 28,
    AT_LINK = 32,
    AT_TOKEN = 36,
    AT_KEYED = 52,
    AT_GENERATION = 56,
    AT_NONCE = 60,
    AT_CIPHER = 76,
};

static_assert(AT_TOKEN + NET_TOKEN_HALF == AT_KEYED && AT_NONCE + NET_NONCE == AT_CIPHER &&
                  AT_CIPHER + 4 == NET_HELLO_SIZE,
              "as in the table");

static const uint8_t magic[AT_VERSION] = {'c', 'r', 'w', '-', 'n', 'e', 't', '\n'};
static const uint32_t order_mark = 0x01020304;

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void net_hello_encode(const struct net_hello *hello, uint8_t out[NET_HELLO_SIZE])
{
    memset(out, 0, NET_HELLO_SIZE);
    memcpy(out, magic, sizeof(magic));
    put_u32(out + AT_VERSION, NET_VERSION);
    memcpy(out + AT_ORDER, &order_mark, sizeof(order_mark));
    put_u32(out + AT_PURPOSE, hello->purpose);
    put_u32(out + AT_GROUP, hello->group);
    put_u32(out + AT_FROM, hello->from);
    put_u32(out + AT_TO, hello->to);
    put_u32(out + AT_LINK, hello->link);
    memcpy(out + AT_TOKEN, hello->token, NET_TOKEN_HALF);
    put_u32(out + AT_KEYED, hello->keyed);
    put_u32(out + AT_GENERATION, hello->generation);
    memcpy(out + AT_NONCE, hello->nonce, NET_NONCE);
    put_u32(out + AT_CIPHER, hello->cipher);
}

bool net_hello_decode(const uint8_t in[NET_HELLO_SIZE], uint32_t world_size, struct net_hello *ret)
{
    uint32_t purpose = get_u32(in + AT_PURPOSE), from = get_u32(in + AT_FROM), to = get_u32(in + AT_TO);

    if (memcmp(in, magic, sizeof(magic)) != 0 || get_u32(in + AT_VERSION) != NET_VERSION ||
        memcmp(in + AT_ORDER, &order_mark, sizeof(order_mark)) != 0 || get_u32(in + AT_KEYED) > 1 ||
        get_u32(in + AT_CIPHER) >= (get_u32(in + AT_KEYED) ? SEAL_CIPHER_COUNT : SEAL_CIPHER_NONE + 1))
        return false;
    if (purpose < NET_CONTROL || purpose >= NET_PURPOSE_COUNT || from >= world_size || to >= world_size ||
        from == to)
        return false;
    *ret = (struct net_hello){
        .purpose = (enum net_purpose)purpose,
        .group = get_u32(in + AT_GROUP),
        .from = from,
        .to = to,
        .link = get_u32(in + AT_LINK),
        .keyed = get_u32(in + AT_KEYED),
        .generation = get_u32(in + AT_GENERATION),
        .cipher = (enum seal_cipher)get_u32(in + AT_CIPHER),
    };
    memcpy(ret->token, in + AT_TOKEN, NET_TOKEN_HALF);
    memcpy(ret->nonce, in + AT_NONCE, NET_NONCE);
    return true;
}

static bool bytes_equal(const uint8_t *a, const uint8_t *b, int n)
{
    unsigned different = 0;

    for (int i = 0; i < n; i++)
        different |= (unsigned)a[i] ^ b[i];
    return different == 0;
}

bool net_token_equal(const uint8_t a[NET_TOKEN_HALF], const uint8_t b[NET_TOKEN_HALF])
{
    return bytes_equal(a, b, NET_TOKEN_HALF);
}

bool net_mac_equal(const uint8_t a[NET_MAC], const uint8_t b[NET_MAC])
{
    return bytes_equal(a, b, NET_MAC);
}

void net_proved_encode(const uint8_t hello[NET_HELLO_SIZE], const uint8_t answer[NET_ANSWER_HEAD],
                       enum net_role role, uint8_t out[NET_PROVED_SIZE])
{
    memcpy(out, hello, NET_HELLO_SIZE);
    memcpy(out + NET_HELLO_SIZE, answer, NET_ANSWER_HEAD);
    put_u32(out + NET_HELLO_SIZE + NET_ANSWER_HEAD, role);
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
        if (!net_token_equal(in, expected))
            continue;
        *ret = (enum net_answer)i;
        known = true;
    }
    return known;
}

void net_record_encode(const struct net_record *record, uint8_t out[NET_RECORD_SIZE])
{
    put_u32(out, record->kind);
    put_u32(out + 4, (uint32_t)record->rank);
    put_u32(out + 8, (uint32_t)record->detail);
}

bool net_record_decode(const uint8_t in[NET_RECORD_SIZE], uint32_t world_size, struct net_record *ret)
{
    uint32_t kind = get_u32(in), rank = get_u32(in + 4);

    if (kind < NET_RECORD_ENDED || kind >= NET_RECORD_KIND_COUNT || rank >= world_size)
        return false;
    *ret = (struct net_record){(enum net_record_kind)kind, (int32_t)rank, (int32_t)get_u32(in + 8)};
    return true;
}
