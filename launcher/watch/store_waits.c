#include "launcher/watch/store_waits.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "launcher/util/digest.h"
#include "launcher/watch/hang_report.h"

enum { NUMBER_MAX = 100000000, OF_A_GROUP = 3, KEY_MAX = 63 /* of text */ };

uint64_t store_client_of(const char *host, uint16_t port)
{
    uint64_t digest = digest_add(DIGEST_EMPTY, host, strlen(host) + 1);

    digest = digest_add(digest, &port, sizeof(port));
    return digest ? digest : 1;
}

/* ---- the name of a key ---- */

/* The number that begins at *at; moves *at behind it. */
static int take_number(const char *key, size_t size, size_t *at)
{
    int number = 0;

    for (; *at < size && isdigit((unsigned char)key[*at]); ++*at)
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
           (at > 0 && !isalpha((unsigned char)key[at - 1]) && is_behind(key, at - 1, "rank"));
}

int store_key_rank(const char *key, size_t size, size_t n_ranks)
{
    static const char of_libcrw[] =
        "crw/group/"; /* hosts have numbers there; the slash of PyTorch's client is optional */
    const char *prefix = memmem(key, size, of_libcrw, strlen(of_libcrw));
    size_t n_groups = 0; /* parts between two double slashes */
    bool is_certain = false;
    int rank = -1;

    for (size_t at = 0, begin; at < size; at += at == begin) {
        begin = at;
        n_groups += is_behind(key, at, "//");
        if (!isdigit((unsigned char)key[at]))
            continue;
        int number = take_number(key, size, &at);
        if (is_named(key, begin))
            is_certain = true;
        else if (is_certain || at < size || (begin > 0 && isalpha((unsigned char)key[begin - 1])))
            continue;
        rank = is_behind(key, begin, "//cuda//") ? 0 : number;
    }
    if (prefix && prefix - key <= 1)
        return -1;
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

static void copy_key(const char *bytes, size_t size, char key[64])
{
    size_t n = size > 1 && bytes[0] == '/' ? size - 1 : size; /* PyTorch's client adds the slash */
    size_t kept = n > KEY_MAX ? KEY_MAX - 3 : n;

    (void)snprintf(key, KEY_MAX + 1, "%s%.*s", n > KEY_MAX ? "..." : "", (int)kept, bytes + size - kept);
    text_clean(key);
}

/* at key "ready/1" of the worker store, in wait at train.py:9 */
static void put_key(struct hang_rank *r, const struct store_wait *wait)
{
    char place[80], more[40] = "";

    (void)snprintf(place, sizeof(place), "%s", place_in(r->text)); /* may be cut */
    if (wait->n_keys > 1)
        (void)snprintf(more, sizeof(more), " and %u more", (unsigned)(wait->n_keys - 1)); /* fits */
    int at =
        snprintf(r->text, sizeof(r->text), "at key \"%s\"%s of the worker store", wait->key, more); /* fits */
    if (place[0])
        (void)snprintf(r->text + at, sizeof(r->text) - (size_t)at, ", in %s", place); /* may be cut */
}

void store_waits_add(struct store_waits *w, uint64_t client, const char *key, size_t key_size, size_t n_keys)
{
    if (w->n == STORE_WAITS_MAX)
        return;
    struct store_wait *wait = &w->items[w->n++];
    wait->client = client;
    wait->setter = store_key_rank(key, key_size, w->n_ranks);
    wait->n_keys = n_keys;
    copy_key(key, key_size, wait->key);
}

static int compare_clients(const void *a, const void *b)
{
    const struct store_wait *x = a, *y = b;

    return (x->client > y->client) - (x->client < y->client);
}

static const struct store_wait *find_wait(const struct store_waits *w, const struct hang_rank *r)
{
    const struct store_wait *found = NULL;

    for (int i = 0; i < HANG_STORE_CLIENTS_MAX && r->store_clients[i] && !found; i++) {
        const struct store_wait key = {.client = r->store_clients[i]};

        found = bsearch(&key, w->items, w->n, sizeof(w->items[0]), compare_clients);
    }
    return found;
}

static void take_wait(struct hang_rank *r, const struct store_wait *wait)
{
    put_key(r, wait);
    r->kind = STACK_COLLECTIVE;
    r->activity = ACTIVITY_WAITS;
    r->waits_for_key = true;
    r->setter = wait->setter;
}

/* Without memory no rank is awaited by name. */
static void mark_awaited(struct hang_rank *ranks, size_t n_ranks)
{
    _cleanup_free_ bool *are_awaited = n_ranks ? calloc(n_ranks, sizeof(*are_awaited)) : NULL;

    for (size_t i = 0; are_awaited && i < n_ranks; i++)
        if (ranks[i].waits_for_key && ranks[i].setter >= 0)
            are_awaited[ranks[i].setter] = true; /* below n_ranks, see store_key_rank() */
    for (size_t i = 0; are_awaited && i < n_ranks; i++)
        ranks[i].is_awaited |= !ranks[i].waits_for_key && ranks[i].rank >= 0 &&
                               (size_t)ranks[i].rank < n_ranks && are_awaited[ranks[i].rank];
}

void store_waits_end(struct store_waits *w, struct hang_rank *ranks)
{
    if (w->n == 0)
        return;
    qsort(w->items, w->n, sizeof(w->items[0]), compare_clients);
    for (size_t i = 0; i < w->n_ranks; i++) {
        const struct store_wait *wait = find_wait(w, &ranks[i]);

        if (wait)
            take_wait(&ranks[i], wait);
    }
    mark_awaited(ranks, w->n_ranks);
}
