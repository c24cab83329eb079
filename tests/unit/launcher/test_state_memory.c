/* State files of a worker as crun reads them: holds, checksums, truncations, and a writer that takes turns with readers. */

#include "launcher/snapshots/state_memory_os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/err.h"
#include "base/memory.h"
#include "proto/wire.h"

#include "tests/support/c/cmocka_fixed.h"

enum { BLOCK_SIZE = 3 << 19, SLOT_BYTES = 2 << 20, FILE_BYTES = STATE_BLOCKS_AT + 2 * SLOT_BYTES };

struct worker {
    int fd;
    uint8_t bytes[BLOCK_SIZE];
    struct state_memory *memory;
};

static struct worker *new_worker(void)
{
    struct worker *w = calloc(1, sizeof(*w));
    uint64_t room;

    assert_non_null(w);
    w->fd = memfd_create("test-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(w->fd >= 0);
    w->memory = state_memory_open(w->fd);
    assert_non_null(w->memory);
    assert_int_equal(state_memory_size(w->memory, FILE_BYTES, &room), 0);
    uint8_t head[STATE_TABLE_HEAD_SIZE] = STATE_TABLE_MAGIC;
    wire_store_u32(head + 8, 2);
    assert_int_equal(pwrite(w->fd, head, sizeof(head), STATE_TABLE_AT), sizeof(head));
    return w;
}

static void free_worker(struct worker *w)
{
    state_memory_unref(w->memory);
    close(w->fd);
    free(w);
}

static uint32_t readers_of(const struct worker *w, uint32_t slot)
{
    uint8_t bytes[4];

    assert_int_equal(pread(w->fd, bytes, 4, (off_t)state_slot_at(slot) + STATE_SLOT_HELD_AT), 4);
    return wire_load_u32(bytes);
}

/* As a worker does. False: the slot has a reader. */
static bool write_block(struct worker *w, uint32_t slot, uint64_t step, uint32_t kind)
{
    uint8_t none[8] = {0}, before[8], out[STATE_SLOT_SIZE];
    struct state_block b = {.number = step + 1,
                            .offset = STATE_BLOCKS_AT + slot * SLOT_BYTES,
                            .bytes = BLOCK_SIZE,
                            .rank = 1,
                            .world_size = 2,
                            .checksum_kind = kind,
                            .content = STATE_FILES};
    off_t at = (off_t)state_slot_at(slot);

    assert_int_equal(pread(w->fd, before, 8, at), 8);
    assert_int_equal(pwrite(w->fd, none, 8, at), 8);
    if (readers_of(w, slot) > 0) {
        assert_int_equal(pwrite(w->fd, before, 8, at), 8);
        return false;
    }
    memset(w->bytes, (int)(step % 251), sizeof(w->bytes));
    assert_int_equal(pwrite(w->fd, w->bytes, BLOCK_SIZE, (off_t)b.offset), BLOCK_SIZE);
    b.checksum = kind == STATE_CRC32 ? crc32_zlib(0, w->bytes, BLOCK_SIZE) : crc32c(0, w->bytes, BLOCK_SIZE);
    state_slot_put(&b, out);
    assert_int_equal(pwrite(w->fd, out + 8, STATE_SLOT_HELD_AT - 8, at + 8), STATE_SLOT_HELD_AT - 8);
    assert_int_equal(pwrite(w->fd, out + STATE_SLOT_CRC_AT, 4, at + STATE_SLOT_CRC_AT), 4);
    assert_int_equal(pwrite(w->fd, out, 8, at), 8);
    return true;
}

static struct state_block find(const struct worker *w, uint64_t step, uint32_t *slot)
{
    struct state_block b = {0};

    assert_true(state_memory_find(w->memory, 1, step, 0, slot, &b));
    return b;
}

static void test_copy_is_sealed_and_equal(void **state)
{
    (void)state;
    for (uint32_t kind = STATE_CRC32; kind <= STATE_CRC32C; kind++) {
        struct worker *w = new_worker();
        uint32_t slot;
        int fd = -1;
        struct stat st;
        assert_true(write_block(w, 1, 7, kind));
        struct state_block b = find(w, 7, &slot);
        assert_int_equal(slot, 1);
        assert_int_equal(state_memory_copy(w->memory, slot, &b, &fd), 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_size, BLOCK_SIZE);
        uint8_t *copy = mmap(NULL, BLOCK_SIZE, PROT_READ, MAP_SHARED, fd, 0);
        assert_true(copy != MAP_FAILED);
        assert_memory_equal(copy, w->bytes, BLOCK_SIZE);
        assert_int_equal(munmap(copy, BLOCK_SIZE), 0);
        assert_int_equal(write(fd, "x", 1), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(ftruncate(fd, 0), -1);
        assert_int_equal(readers_of(w, slot), 0);
        close(fd);
        free_worker(w);
    }
}

static void test_every_flipped_bit_is_found(void **state)
{
    (void)state;
    struct worker *w = new_worker();
    uint32_t slot;
    unsigned seed = (unsigned)getpid();

    for (int i = 0; i < 40; i++) {
        assert_true(write_block(w, 0, 7, STATE_CRC32 + (uint32_t)i % 2));
        struct state_block b = find(w, 7, &slot);
        off_t at = (off_t)b.offset + rand_r(&seed) % BLOCK_SIZE;
        uint8_t byte;
        int fd = -1;
        assert_int_equal(pread(w->fd, &byte, 1, at), 1);
        byte ^= (uint8_t)(1 << rand_r(&seed) % 8);
        assert_int_equal(pwrite(w->fd, &byte, 1, at), 1);
        assert_int_equal(state_memory_copy(w->memory, slot, &b, &fd), -EBADMSG);
        assert_int_equal(fd, -1);
        assert_false(state_memory_find(w->memory, 1, 7, 0, &slot, &b)); /* not offered again */
    }
    free_worker(w);
}

static void test_truncated_file(void **state)
{
    (void)state;
    struct worker *w = calloc(1, sizeof(*w));
    uint32_t slot;
    int fd = -1;

    assert_non_null(w);
    w->fd = memfd_create("test-state",
                         MFD_CLOEXEC | MFD_ALLOW_SEALING); /* not sealed: a worker that has not asked */
    w->memory = state_memory_open(w->fd);
    assert_non_null(w->memory);
    assert_int_equal(ftruncate(w->fd, FILE_BYTES), 0);
    uint8_t head[STATE_TABLE_HEAD_SIZE] = STATE_TABLE_MAGIC;
    wire_store_u32(head + 8, 2);
    assert_int_equal(pwrite(w->fd, head, sizeof(head), STATE_TABLE_AT), sizeof(head));
    assert_true(write_block(w, 0, 7, STATE_CRC32C));
    struct state_block b = find(w, 7, &slot);
    assert_int_equal(ftruncate(w->fd, (off_t)b.offset + 100), 0);
    assert_int_equal(state_memory_copy(w->memory, slot, &b, &fd), -ESTALE); /* outside the file: not whole */
    assert_int_equal(ftruncate(w->fd, 0), 0);
    struct state_table table;
    assert_int_equal(state_memory_table(w->memory, &table), -ENOENT);
    free_worker(w);
}

static void test_size(void **state)
{
    (void)state;
    struct worker *w = new_worker();
    struct stat st;
    uint64_t room = 0;

    assert_int_equal(ftruncate(w->fd, 0), -1);
    assert_int_equal(errno, EPERM);                                              /* sealed */
    assert_int_equal(state_memory_size(w->memory, FILE_BYTES + 4096, &room), 0); /* grows */
    assert_int_equal(state_memory_size(w->memory, 4096, &room), 0);              /* large enough */
    assert_int_equal(fstat(w->fd, &st), 0);
    assert_int_equal(st.st_size, FILE_BYTES + 4096);
    assert_int_equal(state_memory_size(w->memory, UINT64_C(1) << 50, &room), -ENOMEM);
    assert_true(room > FILE_BYTES && room < UINT64_C(1) << 50);
    memory_pretend(2 << 20);
    assert_int_equal(state_memory_size(w->memory, FILE_BYTES + (4 << 20), &room), -ENOMEM);
    uint32_t slot;
    int fd = -1;
    assert_true(write_block(w, 0, 7, STATE_CRC32C));
    struct state_block b = find(w, 7, &slot);
    memory_pretend(1 << 20);
    assert_int_equal(state_memory_copy(w->memory, slot, &b, &fd), -ENOMEM);
    memory_pretend(0);
    free_worker(w);
}

struct reader {
    struct worker *worker;
    pthread_t thread;
    const atomic_bool *ends;
    atomic_int n_whole;
};

static void *read_often(void *data)
{
    struct reader *r = data;

    while (!atomic_load(r->ends)) {
        struct state_table table;
        uint32_t slot = 0;
        int fd = -1;
        if (state_memory_table(r->worker->memory, &table) != 0)
            continue;
        if (table.slots[1].number > table.slots[0].number)
            slot = 1;
        if (table.slots[slot].number == 0)
            continue;
        int result = state_memory_copy(r->worker->memory, slot, &table.slots[slot], &fd);
        if (result == 0)
            close(fd);
        else if (result != -ESTALE)
            abort(); /* a block that changed while it was read */
        atomic_fetch_add(&r->n_whole, result == 0);
    }
    return NULL;
}

static void test_writer_beside_readers(void **state)
{
    (void)state;
    struct worker *w = new_worker();
    atomic_bool ends = false;
    struct reader readers[2] = {{.worker = w, .ends = &ends}, {.worker = w, .ends = &ends}};
    int n_written = 0;

    for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_often, &readers[i]), 0);
    for (uint64_t step = 1; step <= 4000 && (n_written < 50 || atomic_load(&readers[0].n_whole) < 20); step++)
        n_written += write_block(w, (uint32_t)(step % 2), step, STATE_CRC32C);
    atomic_store(&ends, true);
    for (size_t i = 0; i < ARRAY_SIZE(readers); i++)
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
    assert_true(n_written >= 50);
    assert_true(atomic_load(&readers[0].n_whole) + atomic_load(&readers[1].n_whole) > 0);
    assert_int_equal(readers_of(w, 0), 0);
    assert_int_equal(readers_of(w, 1), 0);
    free_worker(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_is_sealed_and_equal), cmocka_unit_test(test_every_flipped_bit_is_found),
        cmocka_unit_test(test_truncated_file),           cmocka_unit_test(test_size),
        cmocka_unit_test(test_writer_beside_readers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
