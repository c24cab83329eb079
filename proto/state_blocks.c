#include "proto/state_blocks.h"

#include <errno.h>
#include <string.h>

#include "base/crc32.h"
#include "base/err.h"
#include "proto/wire.h"

/* ---- numbers ---- */

/* A member of a struct and its place in the bytes. */
struct place {
    uint16_t at, member, size;
};

#define PLACE(at, type, member)                                                                              \
    {                                                                                                        \
        at, offsetof(type, member), sizeof(((type *)0)->member)                                              \
    }

static void take_places(const struct place *places, size_t n, const uint8_t *bytes, void *ret)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t v =
            places[i].size == 8 ? wire_load_u64(bytes + places[i].at) : wire_load_u32(bytes + places[i].at);
        uint32_t narrow = (uint32_t)v;
        memcpy((uint8_t *)ret + places[i].member, places[i].size == 8 ? (void *)&v : (void *)&narrow,
               places[i].size);
    }
}

static void put_places(const struct place *places, size_t n, const void *from, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t v = 0;
        uint32_t narrow = 0;
        memcpy(places[i].size == 8 ? (void *)&v : (void *)&narrow, (const uint8_t *)from + places[i].member,
               places[i].size);
        wire_store_u32(out + places[i].at, places[i].size == 8 ? (uint32_t)v : narrow);
        if (places[i].size == 8)
            wire_store_u32(out + places[i].at + 4, (uint32_t)(v >> 32));
    }
}

/* ---- table ---- */

static const struct place slot_places[] = {
    PLACE(0, struct state_block, number),         PLACE(8, struct state_block, rank),
    PLACE(12, struct state_block, generation),    PLACE(16, struct state_block, offset),
    PLACE(24, struct state_block, bytes),         PLACE(32, struct state_block, checksum),
    PLACE(36, struct state_block, checksum_kind), PLACE(40, struct state_block, world_size),
    PLACE(44, struct state_block, content),       PLACE(STATE_SLOT_HELD_AT, struct state_block, held),
};

void state_slot_put(const struct state_block *block, uint8_t out[STATE_SLOT_SIZE])
{
    memset(out, 0, STATE_SLOT_SIZE);
    put_places(slot_places, ARRAY_SIZE(slot_places), block, out);
    wire_store_u32(out + STATE_SLOT_CRC_AT, crc32_zlib(0, out, STATE_SLOT_HELD_AT));
}

static bool slot_is_undamaged(const uint8_t *slot)
{
    return wire_load_u32(slot + STATE_SLOT_CRC_AT) == crc32_zlib(0, slot, STATE_SLOT_HELD_AT);
}

static bool block_is_valid(const struct state_block *b, uint64_t file_size)
{
    return b->offset >= STATE_BLOCKS_AT && b->offset % STATE_BLOCK_ALIGNMENT == 0 && b->offset <= file_size &&
           b->bytes <= file_size - b->offset && b->rank < b->world_size && b->world_size <= INT32_MAX &&
           (b->checksum_kind == STATE_CRC32 || b->checksum_kind == STATE_CRC32C) &&
           (b->content == STATE_FILES || b->content == STATE_SNAPSHOT);
}

static bool blocks_overlap(const struct state_block *a, const struct state_block *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

int state_table_read(const uint8_t *bytes, size_t n, uint64_t file_size, struct state_table *ret)
{
    static const uint8_t none[8];

    *ret = (struct state_table){0};
    if (n < STATE_TABLE_HEAD_SIZE || memcmp(bytes, none, sizeof(none)) == 0)
        return -ENOENT;
    if (memcmp(bytes, STATE_TABLE_MAGIC, 8) != 0)
        return -EBADMSG;
    ret->n_slots = wire_load_u32(bytes + 8);
    if (ret->n_slots < 2 || ret->n_slots > STATE_SLOTS_MAX ||
        n < STATE_TABLE_HEAD_SIZE + ret->n_slots * STATE_SLOT_SIZE)
        return -EBADMSG;
    for (uint32_t i = 0; i < ret->n_slots; i++) {
        struct state_block *b = &ret->slots[i];
        const uint8_t *at = bytes + STATE_TABLE_HEAD_SIZE + i * STATE_SLOT_SIZE;
        take_places(slot_places, ARRAY_SIZE(slot_places), at, b);
        bool is_valid = b->number == 0 || (slot_is_undamaged(at) && block_is_valid(b, file_size));
        for (uint32_t j = 0; j < i && b->number > 0; j++)
            is_valid = is_valid && !(ret->slots[j].number > 0 && blocks_overlap(&ret->slots[j], b));
        if (!is_valid)
            b->number = 0;
    }
    return 0;
}

/* ---- files in a block ---- */

bool state_file_name_is_valid(const char *name)
{
    static const char valid[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

    return name[0] && name[strspn(name, valid)] == '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static bool take_file(const uint8_t *bytes, uint64_t block_size, struct state_file *ret)
{
    ret->offset = wire_load_u64(bytes);
    ret->bytes = wire_load_u64(bytes + 8);
    memcpy(ret->name, bytes + 16, sizeof(ret->name));
    return ret->name[sizeof(ret->name) - 1] == '\0' && state_file_name_is_valid(ret->name) &&
           ret->offset <= block_size && ret->bytes <= block_size - ret->offset;
}

int state_files_read(const uint8_t *bytes, size_t n, uint64_t block_size,
                     struct state_file ret[STATE_FILES_MAX])
{
    if (n < STATE_FILES_HEAD_SIZE || memcmp(bytes, STATE_FILES_MAGIC, 8) != 0)
        return -EBADMSG;
    uint32_t n_files = wire_load_u32(bytes + 8);
    if (n_files > STATE_FILES_MAX || n < STATE_FILES_HEAD_SIZE + (size_t)n_files * STATE_FILE_SIZE)
        return -EBADMSG;
    for (uint32_t i = 0; i < n_files; i++) {
        if (!take_file(bytes + STATE_FILES_HEAD_SIZE + i * STATE_FILE_SIZE, block_size, &ret[i]))
            return -EBADMSG;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(ret[i].name, ret[j].name) == 0)
                return -EBADMSG;
    }
    return (int)n_files;
}

/* ---- records ---- */

static const struct place record_places[] = {
    PLACE(4, struct blocks_record, kind),           PLACE(8, struct blocks_record, id),
    PLACE(12, struct blocks_record, status),        PLACE(16, struct blocks_record, step),
    PLACE(24, struct blocks_record, rank),          PLACE(28, struct blocks_record, generation),
    PLACE(32, struct blocks_record, bytes),         PLACE(40, struct blocks_record, checksum),
    PLACE(44, struct blocks_record, checksum_kind), PLACE(48, struct blocks_record, tier),
    PLACE(52, struct blocks_record, arg),
};

size_t blocks_record_put(const struct blocks_record *record,
                         uint8_t out[BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE])
{
    size_t n_text = strlen(record->text), size = BLOCKS_RECORD_SIZE + n_text;

    memset(out, 0, BLOCKS_RECORD_SIZE);
    put_places(record_places, ARRAY_SIZE(record_places), record, out);
    wire_store_u32(out, (uint32_t)size);
    memcpy(out + BLOCKS_RECORD_SIZE, record->text, n_text);
    return size;
}

bool blocks_record_get(const uint8_t *bytes, size_t n, struct blocks_record *ret)
{
    if (n < BLOCKS_RECORD_SIZE || n >= BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE || wire_load_u32(bytes) != n)
        return false;
    take_places(record_places, ARRAY_SIZE(record_places), bytes, ret);
    memcpy(ret->text, bytes + BLOCKS_RECORD_SIZE, n - BLOCKS_RECORD_SIZE);
    ret->text[n - BLOCKS_RECORD_SIZE] = '\0';
    return ret->kind > 0 && ret->kind < BLOCKS_KIND_END && strlen(ret->text) == n - BLOCKS_RECORD_SIZE;
}
