/*
 * SipHash with one compression round and three finalisation rounds, after the paper of Aumasson and
 * Bernstein. The words are little endian, so the same seed gives the same table order on every host.
 */

#include "base/siphash.h"

#include <endian.h>
#include <string.h>

struct sip {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(struct sip *s)
{
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 = rotate(s->v2, 32);
}

static inline uint64_t load_word(const uint8_t *p)
{
    uint64_t word;

    memcpy(&word, p, sizeof(word));
    return le64toh(word);
}

static inline void sip_word(struct sip *s, uint64_t word)
{
    s->v3 ^= word;
    sip_round(s);
    s->v0 ^= word;
}

/* The last word: what is left of the data, and the length in the top byte. */
static inline uint64_t death_notice(const uint8_t *p, size_t n)
{
    uint64_t word = (uint64_t)n << 56;

    for (size_t i = 0; i < (n & 7); i++)
        word |= (uint64_t)p[i] << (8 * i);
    return word;
}

uint64_t siphash13(const uint8_t seed[SIPHASH_SEED_SIZE], const void *data, size_t n)
{
    uint64_t k0 = load_word(seed), k1 = load_word(seed + 8);
    struct sip s = {
        .v0 = k0 ^ UINT64_C(0x736f6d6570736575),
        .v1 = k1 ^ UINT64_C(0x646f72616e646f6d),
        .v2 = k0 ^ UINT64_C(0x6c7967656e657261),
        .v3 = k1 ^ UINT64_C(0x7465646279746573),
    };
    const uint8_t *p = data;

    for (size_t left = n; left >= 8; left -= 8, p += 8)
        sip_word(&s, load_word(p));
    sip_word(&s, death_notice(p, n));
    s.v2 ^= 0xff;
    sip_round(&s);
    sip_round(&s);
    sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
