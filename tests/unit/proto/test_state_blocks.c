#include "proto/state_blocks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "proto/wire.h"
#include "tests/support/c/cmocka_fixed.h"

enum { FILE_SIZE = STATE_BLOCKS_AT + 8 * STATE_BLOCK_ALIGNMENT };

static const struct state_block good = {.number = 8,
                                        .offset = STATE_BLOCKS_AT,
                                        .bytes = 5000,
                                        .rank = 1,
                                        .generation = 2,
                                        .world_size = 4,
                                        .checksum = 0x11223344,
                                        .checksum_kind = STATE_CRC32,
                                        .content = STATE_FILES};

static void put_table(uint8_t bytes[STATE_TABLE_SIZE], const struct state_block *blocks, uint32_t n)
{
    memset(bytes, 0, STATE_TABLE_SIZE);
    (void)snprintf((char *)bytes, 9, "%s",
                   STATE_TABLE_MAGIC); /* the number of slots takes the place of the NUL */
    wire_store_u32(bytes + 8, n);
    for (uint32_t i = 0; i < n; i++)
        state_slot_put(&blocks[i], bytes + (state_slot_at(i) - STATE_TABLE_AT));
}

static void test_table_round_trip(void **state)
{
    (void)state;
    struct state_block blocks[3] = {good, good, good};
    uint8_t bytes[STATE_TABLE_SIZE];
    struct state_table table;

    blocks[1].offset += 2 * STATE_BLOCK_ALIGNMENT;
    blocks[1].number = 9;
    blocks[1].held = 3;
    blocks[2].number = 0;
    put_table(bytes, blocks, 3);
    assert_int_equal(state_table_read(bytes, sizeof(bytes), FILE_SIZE, &table), 0);
    assert_int_equal(table.n_slots, 3);
    assert_memory_equal(table.slots, blocks, sizeof(blocks));
    assert_int_equal(wire_load_u32(bytes + (state_slot_at(1) - STATE_TABLE_AT) + STATE_SLOT_HELD_AT), 3);
}

static void test_slots_that_are_not_whole(void **state)
{
    (void)state;
    static const struct {
        struct state_block block;
        const char *what;
    } rows[] = {
        {{8, STATE_BLOCKS_AT - 4096, 10, 1, 2, 4, 0, 1, 1, 0}, "inside the head"},
        {{8, STATE_BLOCKS_AT + 1, 10, 1, 2, 4, 0, 1, 1, 0}, "not aligned"},
        {{8, STATE_BLOCKS_AT, FILE_SIZE, 1, 2, 4, 0, 1, 1, 0}, "longer than the file"},
        {{8, UINT64_MAX - 4095, 4096, 1, 2, 4, 0, 1, 1, 0}, "behind the file"},
        {{8, STATE_BLOCKS_AT, UINT64_MAX, 1, 2, 4, 0, 1, 1, 0}, "a sum that overflows"},
        {{8, STATE_BLOCKS_AT, 10, 4, 2, 4, 0, 1, 1, 0}, "rank outside the world"},
        {{8, STATE_BLOCKS_AT, 10, 1, 2, UINT32_MAX, 0, 1, 1, 0}, "world too large"},
        {{8, STATE_BLOCKS_AT, 10, 1, 2, 4, 0, 3, 1, 0}, "unknown checksum"},
        {{8, STATE_BLOCKS_AT, 10, 1, 2, 4, 0, 1, 0, 0}, "unknown content"},
    };
    struct state_table table;
    uint8_t bytes[STATE_TABLE_SIZE];

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct state_block blocks[2] = {rows[i].block, {0}};
        put_table(bytes, blocks, 2);
        assert_int_equal(state_table_read(bytes, sizeof(bytes), FILE_SIZE, &table), 0);
        if (table.slots[0].number != 0)
            fail_msg("%s", rows[i].what);
    }
    const struct state_block two[2] = {good, good};
    put_table(bytes, two, 2);
    assert_int_equal(state_table_read(bytes, sizeof(bytes), FILE_SIZE, &table), 0);
    assert_int_equal(table.slots[0].number, 8);
    assert_int_equal(table.slots[1].number, 0); /* shares its bytes */
}

static void test_every_flipped_bit_of_a_slot(void **state)
{
    (void)state;
    const struct state_block blocks[2] = {good, {0}};
    struct state_table table;
    uint8_t bytes[STATE_TABLE_SIZE];

    for (size_t bit = 0; bit < 8 * STATE_SLOT_SIZE; bit++) {
        size_t at = bit / 8;
        bool is_ignored = (at >= STATE_SLOT_HELD_AT && at < STATE_SLOT_CRC_AT) || at >= STATE_SLOT_CRC_AT + 4;
        put_table(bytes, blocks, 2);
        bytes[STATE_TABLE_HEAD_SIZE + at] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(state_table_read(bytes, sizeof(bytes), FILE_SIZE, &table), 0);
        assert_int_equal(table.slots[0].number, is_ignored ? 8 : 0);
    }
}

static void test_tables_of_others(void **state)
{
    (void)state;
    const struct state_block blocks[2] = {good, {0}};
    struct state_table table;
    uint8_t bytes[STATE_TABLE_SIZE] = {0};

    assert_int_equal(state_table_read(bytes, sizeof(bytes), FILE_SIZE, &table), -ENOENT);
    put_table(bytes, blocks, 2);
    assert_int_equal(state_table_read(bytes, 15, FILE_SIZE, &table), -ENOENT);
    assert_int_equal(
        state_table_read(bytes, STATE_TABLE_HEAD_SIZE + 2 * STATE_SLOT_SIZE - 1, FILE_SIZE, &table),
        -EBADMSG);
    assert_int_equal(state_table_read(bytes, STATE_TABLE_HEAD_SIZE + 2 * STATE_SLOT_SIZE, FILE_SIZE, &table),
                     0);
    bytes[0] = 'X';
    assert_int_equal(state_table_read(bytes, sizeof(bytes), FILE_SIZE, &table), -EBADMSG);
    for (uint32_t n = 0; n < 6; n++) {
        put_table(bytes, blocks, 2);
        wire_store_u32(bytes + 8, n);
        assert_int_equal(state_table_read(bytes, sizeof(bytes), FILE_SIZE, &table),
                         n == 2 || n == 3 ? 0 : -EBADMSG);
    }
}

static void put_file(uint8_t *bytes, uint32_t i, uint64_t offset, uint64_t n, const char *name)
{
    uint8_t *at = bytes + STATE_FILES_HEAD_SIZE + i * STATE_FILE_SIZE;

    memset(at, 0, STATE_FILE_SIZE);
    wire_store_u32(at, (uint32_t)offset);
    wire_store_u32(at + 4, (uint32_t)(offset >> 32));
    wire_store_u32(at + 8, (uint32_t)n);
    wire_store_u32(at + 12, (uint32_t)(n >> 32));
    for (size_t k = 0; name[k]; k++)
        at[16 + k] = (uint8_t)name[k];
}

static void test_files_of_a_block(void **state)
{
    (void)state;
    static const char *const bad_names[] = {
        "",    ".",   "..",       "a/b",
        "a b", "a\n", "\xc3\xa9", "123456789012345678901234567890123456789012345678" /* no NUL */};
    uint8_t bytes[STATE_FILES_HEAD_SIZE + 2 * STATE_FILE_SIZE] = STATE_FILES_MAGIC;
    struct state_file files[STATE_FILES_MAX];

    wire_store_u32(bytes + 8, 2);
    put_file(bytes, 0, 192, 100, "__0_0.distcp");
    put_file(bytes, 1, 320, 80, ".metadata");
    assert_int_equal(state_files_read(bytes, sizeof(bytes), 400, files), 2);
    assert_string_equal(files[1].name, ".metadata");
    assert_int_equal(files[1].offset, 320);
    assert_int_equal(state_files_read(bytes, sizeof(bytes), 399, files), -EBADMSG);
    assert_int_equal(state_files_read(bytes, sizeof(bytes) - 1, 400, files), -EBADMSG);
    put_file(bytes, 1, 320, 80, "__0_0.distcp");
    assert_int_equal(state_files_read(bytes, sizeof(bytes), 400, files), -EBADMSG); /* twice */
    for (size_t i = 0; i < ARRAY_SIZE(bad_names); i++) {
        put_file(bytes, 1, 320, 80, bad_names[i]);
        assert_int_equal(state_files_read(bytes, sizeof(bytes), 400, files), -EBADMSG);
    }
    put_file(bytes, 1, UINT64_MAX, 80, "x");
    assert_int_equal(state_files_read(bytes, sizeof(bytes), 400, files), -EBADMSG);
    put_file(bytes, 1, 320, UINT64_MAX, "x");
    assert_int_equal(state_files_read(bytes, sizeof(bytes), 400, files), -EBADMSG);
}

static void test_records(void **state)
{
    (void)state;
    const struct blocks_record record = {.kind = BLOCKS_FOLDER,
                                         .id = 7,
                                         .status = ENOMEM,
                                         .step = UINT64_C(1) << 40,
                                         .rank = 3,
                                         .generation = 4,
                                         .bytes = UINT64_MAX,
                                         .checksum = 5,
                                         .checksum_kind = STATE_CRC32C,
                                         .tier = TIER_PEER,
                                         .arg = 9,
                                         .text = "/tmp/x"};
    struct blocks_record got;
    uint8_t bytes[BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE];
    size_t n = blocks_record_put(&record, bytes);

    assert_int_equal(n, BLOCKS_RECORD_SIZE + 6);
    assert_true(blocks_record_get(bytes, n, &got));
    assert_int_equal(got.step, record.step);
    assert_int_equal(got.bytes, record.bytes);
    assert_int_equal(got.arg, 9);
    assert_int_equal(got.status, ENOMEM);
    assert_string_equal(got.text, "/tmp/x");
    assert_false(blocks_record_get(bytes, n - 1, &got));
    assert_false(blocks_record_get(bytes, BLOCKS_RECORD_SIZE - 1, &got));
    bytes[n - 1] = '\0';
    assert_false(blocks_record_get(bytes, n, &got)); /* NUL in the text */
    bytes[n - 1] = 'x';
    wire_store_u32(bytes + 4, BLOCKS_KIND_END);
    assert_false(blocks_record_get(bytes, n, &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_round_trip),
        cmocka_unit_test(test_slots_that_are_not_whole),
        cmocka_unit_test(test_every_flipped_bit_of_a_slot),
        cmocka_unit_test(test_tables_of_others),
        cmocka_unit_test(test_files_of_a_block),
        cmocka_unit_test(test_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
