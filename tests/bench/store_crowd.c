/*
 * Any number of clients meeting in one barrier, without sockets: their requests as bytes, through the codec, the
 * store core and the outbox that crund ships, and every byte of every answer checked. What a kernel adds for
 * connections is not in it; file descriptors are no limit.
 *
 *     store_crowd CLIENTS       prints one line of JSON
 *
 * The barrier is PyTorch's: everybody counts in and waits for the door, the last one opens it. Then BARRIER, the
 * operation, does the same once more.
 */

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "proto/wire.h"
#include "rendezvous/store/store.h"

#include "tests/support/c/clock.h"
#include "tests/support/c/wire_messages.h"

struct sim_client {
    struct store_client client;
    struct wire_scanner scanner;
    uint64_t n_counted;  /* its reply to ADD */
    unsigned n_released; /* bytes 00 that it was sent */
};

static struct store store;
static struct outbox out; /* shared, as in the server */
static struct sim_client *clients;
static uint64_t n_clients;

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "store_crowd: %s\n", what);
    exit(1);
}

/* The answer to one client's request leaves the outbox: size bytes, which are copied to `to`. */
static void take_reply(uint8_t *to, size_t size)
{
    struct iovec iov;

    if (outbox_size(&out) != size)
        die("a reply has the wrong size");
    if (size == 0)
        return;
    (void)outbox_iov(&out, &iov, 1); /* one: the replies are short */
    memcpy(to, iov.iov_base, size);
    outbox_consume(&out, size);
}

static void say(struct sim_client *c, const struct buf *b)
{
    static const struct wire_limits limits = WIRE_LIMITS_DEFAULT;
    struct wire_request request;
    size_t done = 0, size;

    while (done < buf_size(b)) {
        struct store_budget budget = STORE_BUDGET_NONE;

        if (wire_decode(&c->scanner, &limits, buf_bytes(b) + done, buf_size(b) - done, &request, &size) != 0)
            die("a request was not understood");
        if (store_apply(&store, &c->client, &request, &out, &budget) != 0)
            die("a request was refused");
        done += size;
    }
}

static void tell_released(void)
{
    while (!list_is_empty(&store.released)) {
        struct list *entry = store.released.next;
        struct store_client *client = list_entry(entry, struct store_client, released);

        list_unlink(entry);
        list_entry(client, struct sim_client, client)->n_released++;
    }
}

static void count_in_and_wait(void)
{
    struct wire_span door = wire_span("/door", 5);
    struct buf count = {0}, wait = {0};
    uint8_t reply[8];

    if (wire_put_key_amount(&count, WIRE_OP_ADD, wire_span("/count", 6), 1) < 0 ||
        wire_put_keys(&wait, WIRE_OP_WAIT, &door, 1) < 0)
        die("memory");
    for (uint64_t i = 0; i < n_clients; i++) {
        say(&clients[i], &count);
        take_reply(reply, sizeof(reply));
        clients[i].n_counted = wire_load_u64(reply);
        say(&clients[i], &wait);
        take_reply(NULL, 0);
    }
    buf_finish(&count);
    buf_finish(&wait);
}

static void open_door(void)
{
    struct buf open = {0};

    if (wire_put_key_value(&open, WIRE_OP_SET, wire_span("/door", 5), wire_span("1", 1)) < 0)
        die("memory");
    say(&clients[n_clients - 1], &open);
    /* It waits itself: its own release is its reply, those of the others are on the list. */
    take_reply((uint8_t[1]){0}, 1);
    clients[n_clients - 1].n_released++;
    tell_released();
    buf_finish(&open);
}

static void meet_in_barrier(void)
{
    struct buf arrive = {0};

    if (wire_put_key_amount(&arrive, WIRE_OP_BARRIER, wire_span("/barrier", 8), (int64_t)n_clients) < 0)
        die("memory");
    for (uint64_t i = 0; i < n_clients; i++) {
        say(&clients[i], &arrive);
        take_reply((uint8_t[1]){0}, i == n_clients - 1);
    }
    clients[n_clients - 1].n_released++;
    tell_released();
    buf_finish(&arrive);
}

static void check_everybody(unsigned n_released)
{
    for (uint64_t i = 0; i < n_clients; i++) {
        if (clients[i].n_counted != i + 1)
            die("a client was counted wrongly");
        if (clients[i].n_released != n_released)
            die("a client was not released exactly once");
    }
}

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

int main(int argc, char *argv[])
{
    static const struct store_limits limits = STORE_LIMITS_DEFAULT;
    static const uint8_t seed[SIPHASH_SEED_SIZE];
    double started, door_s, barrier_s;
    size_t before, largest;

    n_clients = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    if (n_clients == 0 || n_clients > limits.waiters_max) {
        (void)fprintf(stderr, "usage: store_crowd CLIENTS (up to %" PRIu64 ")\n", limits.waiters_max);
        return 2;
    }
    before = allocated();
    clients = calloc(n_clients, sizeof(*clients));
    if (!clients || store_init(&store, &limits, seed) < 0)
        die("memory");
    for (uint64_t i = 0; i < n_clients; i++)
        store_client_init(&clients[i].client);
    started = now_s();
    count_in_and_wait();
    largest = allocated();
    open_door();
    door_s = now_s() - started;
    check_everybody(1);
    started = now_s();
    meet_in_barrier();
    barrier_s = now_s() - started;
    check_everybody(2);
    (void)printf("{\"clients\": %" PRIu64
                 ", \"add_wait_set_s\": %.3f, \"barrier_s\": %.3f, \"memory_kib\": %zu, "
                 "\"bytes_per_client\": %.0f}\n",
                 n_clients, door_s, barrier_s, (largest - before) / 1024,
                 (double)(largest - before) / (double)n_clients);
    for (uint64_t i = 0; i < n_clients; i++)
        store_client_finish(&store, &clients[i].client);
    outbox_finish(&out);
    store_finish(&store);
    free(clients);
    return 0;
}
