/*
 * A channel is a ring of bytes with one writer and one reader: two counters that only grow, each written
 * by one side. A message is its size and its bytes, in as many pieces as it takes, so that the reader
 * copies one piece out while the writer copies the next one in.
 *
 * A side that has moved its counter rings the other's doorbell; a side that cannot go on spins for a
 * while and then sleeps on its own doorbell. The doorbell is read before the ring, so that a change in
 * between ends the sleep.
 *
 * Ways it fails: the peer's end, reported by the failure bit, which also rings every doorbell; the
 * deadline. What the peer had written before it left is read first: it may send and leave.
 */

#include "worker-runtime/shm/shm_p2p_os.h"

#include "proto/wait_sock.h"
#include "base/minmax.h"
#include "worker-runtime/base/error.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    RING_BYTES = 512 * 1024,
    PIECE = 64 * 1024,
};

struct p2p_channel {
    _Alignas(SHM_LINE) _Atomic uint64_t written;
    _Alignas(SHM_LINE) _Atomic uint64_t read;
    _Alignas(SHM_LINE) uint8_t ring[RING_BYTES];
};

static_assert(sizeof(struct p2p_channel) <= SHM_CHANNEL, "the room that there is for one");

static size_t channel_filled(const struct p2p_channel *c)
{
    return (size_t)(atomic_load(&c->written) - atomic_load(&c->read));
}

static bool channel_has_room(const struct p2p_channel *c)
{
    return channel_filled(c) < RING_BYTES;
}

static bool channel_has_data(const struct p2p_channel *c)
{
    return channel_filled(c) > 0;
}

/* ---- waiting ---- */

static bool channel_spin(struct shm *shm, const struct p2p_channel *c,
                         bool (*is_ready)(const struct p2p_channel *c))
{
    int64_t asleep_ns = sock_now_ns() + shm->spin_ns;

    while (!is_ready(c)) {
        if (sock_now_ns() >= asleep_ns)
            return false;
        shm_pause();
    }
    return true;
}

static int channel_sleep(struct shm *shm, const struct p2p_channel *c, int peer,
                         bool (*is_ready)(const struct p2p_channel *c))
{
    int64_t deadline_ns = sock_deadline_ns(shm->timeout_ms);

    for (;;) {
        uint32_t seen = shm_doorbell(shm);
        bool over = shm_has_failed(shm, peer); /* before the look: what it left behind is there by now */
        int64_t left_ns = deadline_ns - sock_now_ns();

        if (is_ready(c))
            return 0;
        if (over)
            return shm_fail_result(shm, peer);
        if (left_ns <= 0)
            return shm_fail_timeout(shm, peer);
        shm_sleep_on_doorbell(shm, seen, left_ns);
    }
}

static int channel_wait(struct shm *shm, const struct p2p_channel *c, int peer,
                        bool (*is_ready)(const struct p2p_channel *c))
{
    if (is_ready(c) || channel_spin(shm, c, is_ready))
        return 0;
    return channel_sleep(shm, c, peer, is_ready);
}

/* ---- bytes ---- */

/* Bytes from `position` on that lie in one stretch of the ring. */
static size_t channel_stretch(uint64_t position, size_t n)
{
    return min_size(min_size(n, PIECE), RING_BYTES - (size_t)(position % RING_BYTES));
}

static int channel_write(struct shm *shm, struct p2p_channel *c, const void *data, size_t n_bytes, int to)
{
    for (size_t done = 0; done < n_bytes;) {
        uint64_t at = atomic_load_explicit(&c->written, memory_order_relaxed); /* only we write it */

        TRY(channel_wait(shm, c, to, channel_has_room));
        size_t n = channel_stretch(at, min_size(n_bytes - done, RING_BYTES - channel_filled(c)));
        memcpy(c->ring + at % RING_BYTES, (const uint8_t *)data + done, n);
        atomic_store(&c->written, at + n);
        shm_ring_doorbell(shm, to);
        done += n;
    }
    return 0;
}

/* data NULL: to nowhere. */
static int channel_read(struct shm *shm, struct p2p_channel *c, void *data, size_t n_bytes, int from)
{
    for (size_t done = 0; done < n_bytes;) {
        uint64_t at = atomic_load_explicit(&c->read, memory_order_relaxed); /* only we write it */

        TRY(channel_wait(shm, c, from, channel_has_data));
        size_t n = channel_stretch(at, min_size(n_bytes - done, channel_filled(c)));
        if (data)
            memcpy((uint8_t *)data + done, c->ring + at % RING_BYTES, n);
        atomic_store(&c->read, at + n);
        shm_ring_doorbell(shm, from);
        done += n;
    }
    return 0;
}

/* ---- messages ---- */

static int open_channel(struct shm_p2p *p, int from, int to, struct p2p_channel **at)
{
    void *room;

    if (*at)
        return 0;
    int r = shm_map_channel(p->shm, from, to, &room);
    if (r < 0)
        return crw_fail_errno(r, "cannot get memory for messages from rank %d to rank %d",
                              shm_name_of(p->shm, from), shm_name_of(p->shm, to));
    *at = room;
    return 0;
}

int shm_p2p_send(struct shm_p2p *p, const void *data, size_t n_bytes, int to)
{
    const uint64_t size = n_bytes;

    TRY(open_channel(p, p->shm->rank, to, &p->out[to]));
    if (shm_has_failed(p->shm, to))
        TRY(shm_fail_result(p->shm, to)); /* room is no use without a reader */
    TRY(channel_write(p->shm, p->out[to], &size, sizeof(size), to));
    return channel_write(p->shm, p->out[to], data, n_bytes, to);
}

int shm_p2p_receive(struct shm_p2p *p, void *data, size_t n_bytes, int from)
{
    uint64_t size;

    TRY(open_channel(p, from, p->shm->rank, &p->in[from]));
    TRY(channel_read(p->shm, p->in[from], &size, sizeof(size), from));
    TRY(channel_read(p->shm, p->in[from], size == n_bytes ? data : NULL, size, from));
    if (size != n_bytes)
        return crw_fail(CRW_E_ARGUMENT,
                        "rank %d sent %zu bytes where rank %d expected %zu; the message was dropped",
                        shm_name_of(p->shm, from), (size_t)size, shm_name_of(p->shm, p->shm->rank), n_bytes);
    return 0;
}

int shm_p2p_init(struct shm_p2p *p, struct shm *shm)
{
    *p = (struct shm_p2p){
        .shm = shm,
        .out = calloc((size_t)shm->world_size, sizeof(struct p2p_channel *)),
        .in = calloc((size_t)shm->world_size, sizeof(struct p2p_channel *)),
    };
    if (p->out && p->in)
        return 0;
    shm_p2p_finish(p);
    return crw_fail_errno(-ENOMEM, "cannot join the group");
}

void shm_p2p_finish(struct shm_p2p *p)
{
    for (int i = 0; p->out && p->in && i < p->shm->world_size; i++) {
        shm_unmap_channel(p->out[i]);
        shm_unmap_channel(p->in[i]);
    }
    free(p->out);
    free(p->in);
    *p = (struct shm_p2p){0};
}
