#include "launcher/watch/store_waits.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/watch/digest.h"
#include "launcher/watch/hang_report.h"

enum { NUMBER_MAX = 100000000, OF_A_GROUP = 3 };

uint64_t store_client_of(const char *host, uint16_t port)
{
    uint64_t digest = digest_add(DIGEST_EMPTY, host, strlen(host) + 1);

    digest = digest_add(digest, &port, sizeof(port));
    return digest ? digest : 1;
}

/* ---- the name of a key ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The number that begins at *at; moves *at behind it. */
static int take_number(const char *key, size_t size, size_t *at)
{
    int number = 0;

    for (; *at < size && is_digit(key[*at]); ++*at)
        number = number < NUMBER_MAX ? 10 * number + key[*at] - '0' : NUMBER_MAX;
    return number;
}

static bool is_behind(const char *key, size_t at, const char *word)
{
    size_t n = strlen(word);

    return at >= n && memcmp(key + at - n, word, n) == 0;
}

/* "rank3", "rank_3" */
static bool is_named(const char *key, size_t at)
{
    return is_behind(key, at, "rank") ||
           (at > 0 && !is_letter(key[at - 1]) && is_behind(key, at - 1, "rank"));
}

int store_key_rank(const char *key, size_t size, size_t n_ranks)
{
    size_t n_groups = 0; /* parts between two double slashes */
    bool is_certain = false;
    int rank = -1;

    for (size_t at = 0, begin; at < size; at += at == begin) {
        begin = at;
        n_groups += is_behind(key, at, "//");
        if (!is_digit(key[at]))
            continue;
        int number = take_number(key, size, &at);
        if (is_named(key, begin))
            is_certain = true;
        else if (is_certain || at < size || (begin > 0 && is_letter(key[begin - 1])))
            continue;
        rank = is_behind(key, begin, "//cuda//") ? 0 : number;
    }
    return n_groups < OF_A_GROUP && (size_t)rank < n_ranks ? rank : -1;
}

/* ---- ranks ---- */

/* Where the rank is, from the text so far: "waits for other ranks, in wait at train.py:9" or "all_reduce at train.py:9". */
static const char *place_in(const char *text)
{
    const char *in = strstr(text, ", in ");

    if (in)
        return in + strlen(", in ");
    return strstr(text, " at ") ? text : "";
}

/* at key "ready/1" of the worker store, in wait at train.py:9 */
static void put_key(struct hang_rank *r, const char *bytes, size_t size, size_t n_keys)
{
    char key[64], place[80], more[40] = "";
    size_t n = size > 1 && bytes[0] == '/' ? size - 1 : size; /* PyTorch's client adds the slash */
    size_t kept = n < sizeof(key) - 1 ? n : sizeof(key) - 1;

    memcpy(key, bytes + size - kept, kept);
    key[kept] = '\0';
    text_clean(key);
    (void)snprintf(place, sizeof(place), "%s", place_in(r->text)); /* may be cut */
    if (n_keys > 1)
        (void)snprintf(more, sizeof(more), " and %u more", (unsigned)(n_keys - 1)); /* fits */
    int at = snprintf(r->text, sizeof(r->text), "at key \"%s%s\"%s of the worker store",
                      kept < n ? "..." : "", key, more); /* fits */
    if (place[0])
        (void)snprintf(r->text + at, sizeof(r->text) - (size_t)at, ", in %s", place); /* may be cut */
}

static bool has_client(const struct hang_rank *r, uint64_t client)
{
    for (int i = 0; i < HANG_STORE_CLIENTS_MAX; i++)
        if (r->store_clients[i] == client)
            return true;
    return false;
}

void store_waits_add(struct hang_rank *ranks, size_t n_ranks, uint64_t client, const char *key,
                     size_t key_size, size_t n_keys)
{
    for (size_t i = 0; i < n_ranks; i++) {
        if (ranks[i].waits_for_key || !has_client(&ranks[i], client))
            continue;
        put_key(&ranks[i], key, key_size, n_keys);
        ranks[i].kind = STACK_COLLECTIVE;
        ranks[i].activity = ACTIVITY_WAITS;
        ranks[i].waits_for_key = true;
        ranks[i].setter = store_key_rank(key, key_size, n_ranks);
    }
}

void store_waits_end(struct hang_rank *ranks, size_t n_ranks)
{
    for (size_t i = 0; i < n_ranks; i++)
        for (size_t k = 0; k < n_ranks && ranks[i].waits_for_key; k++)
            ranks[k].is_awaited |= ranks[k].rank == ranks[i].setter && !ranks[k].waits_for_key;
}
