#include "launcher/snapshots/state_memory_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/crc32.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "proto/wire.h"

enum { PIECE_SIZE = 1 << 20 };

struct state_memory *state_memory_open(int fd)
{
    _cleanup_close_ int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct state_memory *m = own < 0 ? NULL : calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->fd = steal_fd(&own);
    atomic_init(&m->n_users, 1);
    (void)pthread_mutex_init(&m->lock, NULL); /* fails only without memory for attributes */
    return m;
}

struct state_memory *state_memory_ref(struct state_memory *m)
{
    atomic_fetch_add(&m->n_users, 1);
    return m;
}

void state_memory_unref(struct state_memory *m)
{
    if (!m || atomic_fetch_sub(&m->n_users, 1) > 1)
        return;
    (void)pthread_mutex_destroy(&m->lock); /* no user is left */
    (void)close(m->fd);
    free(m);
}

int state_memory_size(struct state_memory *m, uint64_t n, uint64_t *ret_room)
{
    struct stat st;

    if (fstat(m->fd, &st) < 0)
        return -errno;
    uint64_t before = (uint64_t)st.st_size;
    if (n > before && !memory_has_room(1, n - before)) {
        *ret_room = before + memory_available("");
        return -ENOMEM;
    }
    if (n > before && fallocate(m->fd, 0, (off_t)before, (off_t)(n - before)) < 0) {
        *ret_room = before;
        return errno == ENOSPC ? -ENOMEM : -errno; /* of a memory file: no page */
    }
    return fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0 ? -errno : 0;
}

/* Less than n bytes: the file ends there. */
static ssize_t read_at(int fd, void *to, size_t n, uint64_t at)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = pread(fd, (uint8_t *)to + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

int state_memory_table(const struct state_memory *m, struct state_table *ret)
{
    uint8_t bytes[STATE_TABLE_SIZE];
    struct stat st;

    *ret = (struct state_table){0};
    if (fstat(m->fd, &st) < 0)
        return -errno;
    ssize_t n = read_at(m->fd, bytes, sizeof(bytes), STATE_TABLE_AT);
    return n < 0 ? (int)n : state_table_read(bytes, (size_t)n, (uint64_t)st.st_size, ret);
}

bool state_memory_find(const struct state_memory *m, uint32_t rank, uint64_t step, uint32_t generation,
                       uint32_t *ret_slot, struct state_block *ret)
{
    struct state_table table;

    if (state_memory_table(m, &table) != 0)
        return false;
    for (uint32_t i = 0; i < table.n_slots; i++)
        if (table.slots[i].number == step + 1 && table.slots[i].rank == rank &&
            table.slots[i].generation == generation) {
            *ret_slot = i;
            *ret = table.slots[i];
            return true;
        }
    return false;
}

/* ---- holding a slot ---- */

/* The file has the place, so only a worker that damages its file makes this fail. */
static int write_at(int fd, const uint8_t *bytes, size_t n, uint64_t at)
{
    return pwrite(fd, bytes, n, (off_t)at) == (ssize_t)n ? 0 : -EIO;
}

static int put_readers(const struct state_memory *m, uint32_t slot)
{
    uint8_t bytes[4];

    wire_store_u32(bytes, m->readers[slot]);
    return write_at(m->fd, bytes, sizeof(bytes), state_slot_at(slot) + STATE_SLOT_HELD_AT);
}

static bool is_unchanged(const struct state_memory *m, uint32_t slot, const struct state_block *block)
{
    struct state_table now;

    return state_memory_table(m, &now) == 0 && slot < now.n_slots &&
           now.slots[slot].number == block->number && now.slots[slot].generation == block->generation &&
           now.slots[slot].rank == block->rank;
}

static void let_go(struct state_memory *m, uint32_t slot)
{
    (void)pthread_mutex_lock(&m->lock); /* an ordinary lock: cannot fail */
    m->readers[slot]--;
    (void)put_readers(m, slot);
    (void)pthread_mutex_unlock(&m->lock);
}

static int hold(struct state_memory *m, uint32_t slot, const struct state_block *block)
{
    (void)pthread_mutex_lock(&m->lock);
    m->readers[slot]++;
    int r = put_readers(m, slot);
    (void)pthread_mutex_unlock(&m->lock);
    if (r == 0 && is_unchanged(m, slot, block))
        return 0;
    let_go(m, slot);
    return r < 0 ? r : -ESTALE;
}

void state_memory_clear(struct state_memory *m, uint32_t slot, const struct state_block *block)
{
    static const uint8_t none[8];

    if (hold(m, slot, block) < 0)
        return;
    (void)write_at(m->fd, none, sizeof(none), state_slot_at(slot));
    let_go(m, slot);
}

/* ---- reading ---- */

static int read_pieces(const struct state_memory *m, const struct state_block *block, state_memory_sink *sink,
                       void *data)
{
    uint32_t (*sum)(uint32_t crc, const void *bytes, size_t n) =
        block->checksum_kind == STATE_CRC32C ? crc32c : crc32_zlib;
    _cleanup_free_ uint8_t *piece = malloc(PIECE_SIZE);
    uint32_t crc = 0;

    if (!piece)
        return -ENOMEM;
    for (uint64_t at = 0; at < block->bytes; at += PIECE_SIZE) {
        size_t n = min_size(block->bytes - at, PIECE_SIZE);
        ssize_t got = read_at(m->fd, piece, n, block->offset + at);
        if (got != (ssize_t)n)
            return got < 0 ? (int)got : -EBADMSG;
        crc = sum(crc, piece, n);
        int r = sink(data, piece, n);
        if (r < 0)
            return r;
    }
    return crc == block->checksum ? 0 : -EBADMSG;
}

int state_memory_read(struct state_memory *m, uint32_t slot, const struct state_block *block,
                      state_memory_sink *sink, void *data)
{
    int r = hold(m, slot, block);

    if (r < 0)
        return r;
    r = read_pieces(m, block, sink, data);
    let_go(m, slot);
    if (r == -EBADMSG)
        state_memory_clear(m, slot, block);
    return r;
}

static int append_to_file(void *data, const uint8_t *bytes, size_t n)
{
    int fd = *(const int *)data;

    while (n > 0) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        bytes += done;
        n -= (size_t)done;
    }
    return 0;
}

int state_memory_copy(struct state_memory *m, uint32_t slot, const struct state_block *block, int *ret_fd)
{
    enum { SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };

    if (!memory_has_room(1, block->bytes))
        return -ENOMEM;
    _cleanup_close_ int fd = memfd_create("crun-block", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    int r = state_memory_read(m, slot, block, append_to_file, &fd);
    if (r < 0)
        return r;
    if (fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}
