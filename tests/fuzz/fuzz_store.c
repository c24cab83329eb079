/*
 * Fuzz target: the store core with several clients. Input: one byte that chooses the limits, then records:
 * a byte that names the client (low bits) or closes it (0x80), a length byte, and that many bytes that the
 * client sends. So messages are cut and interleaved anywhere. Clients have said VALIDATE already. With 0x80 in the first byte they are of
 * several owners, with a share each.
 *
 * After every record the books must be right: what is charged stays within the limit, and what is waited
 * for is not there. At the end everything must have been given back (store_finish() asserts it).
 */

#include <stdint.h>
#include <stdlib.h>

#include "rendezvous/store/store_entry.h"
#include "tests/support/c/store_harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_CLIENTS = 4, N_OWNERS = 3, SHARED = 0x80, CLOSE = 0x80 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static const struct store_limits limits[] = {
    {.keys_max = 1000, .bytes_max = 1 << 20, .waiters_max = 100},
    {.keys_max = 2, .bytes_max = 1 << 20, .waiters_max = 1},
    {.keys_max = 1000, .bytes_max = 700, .waiters_max = 100},
    {.keys_max = 1000, .bytes_max = 100000, .waiters_max = 2},
};

static void greet(struct harness *h, unsigned client)
{
    if (h->store.account.shares)
        h->clients[client].client.owner = client % N_OWNERS;
    h->clients[client].greeted = true;
}

static size_t count_list(const struct list *l)
{
    size_t n = 0;

    list_for_each(pos, l) n++;
    return n;
}

static void check(const struct harness *h)
{
    const struct store *s = &h->store;
    size_t cursor = 0, n_keys = 0, n_names = 0, n_waiting = 0, n_pinned = 0;
    struct store_entry *name;

    require(s->account.bytes <= s->limits.bytes_max);
    require(list_is_empty(&s->released)); /* the harness told them */
    while ((name = store_table_next(&s->names, &cursor))) {
        n_names++;
        n_keys += name->value != NULL;
        require(name->value || name->queue_head || name->n_waiters > 0 || name->n_pinned > 0);
        n_pinned += name->n_pinned;
        require((name->queue_head == NULL) == (name->queue_size == 0));
        require(count_list(&name->waiters) == name->n_waiters && name->n_waiters <= s->limits.waiters_max);
    }
    for (unsigned i = 1; s->account.shares && i < N_OWNERS; i++) {
        require(s->account.shares[i].bytes <= s->limits.bytes_max / 2);
        require(s->account.shares[i].keys <= s->limits.keys_max / 2);
    }
    require(n_names == s->names.used && n_keys == s->n_keys && n_keys <= s->limits.keys_max);
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        n_waiting += h->clients[i].client.wait != NULL;
        n_pinned -= h->clients[i].client.promised != NULL;
    }
    require(n_waiting == s->n_waiting && n_pinned == 0);
}

/* Reads what was answered, so that replies do not pile up, and only now and then. */
static void read_replies(struct harness *h, unsigned client)
{
    uint8_t bytes[4096];

    while (harness_pending(h, client) > sizeof(bytes))
        (void)harness_take(h, client, bytes, sizeof(bytes)); /* all that matters is that it can be read */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = data + size;
    struct harness h;

    if (size == 0 || harness_init(&h, &limits[data[0] % 4]) < 0)
        return 0;
    if (data[0] & SHARED && store_share_out(&h.store, N_OWNERS) < 0)
        return 0;
    h.wire = (struct wire_limits){.key_max = 300, .value_max = 60000, .keys_max = 64, .message_max = 100000};
    for (unsigned i = 0; i < N_CLIENTS; i++)
        greet(&h, i);
    for (data++; end - data >= 2;) {
        unsigned client = data[0] % N_CLIENTS;
        size_t n = data[1];

        if (n > (size_t)(end - data - 2))
            n = (size_t)(end - data - 2);
        if (data[0] & CLOSE) {
            harness_close(&h, client);
            greet(&h, client);
        } else {
            harness_feed(&h, client, data + 2, n);
        }
        data += 2 + n;
        read_replies(&h, client);
        check(&h);
    }
    harness_finish(&h);
    return 0;
}
