#pragma once

/*
 * Blocks of state: what a worker keeps in the file of CRUN_STATE_FD behind the head (worker_memory.h), so that a later worker, of this
 * node or of another one, can continue from there. Pure; all numbers are little-endian.
 *
 * The file from STATE_TABLE_AT on:
 *
 *   0..7    "CRUNBLK1"
 *   8..11   number of slots, 2 or 3 (u32)
 *   12..15  0
 *   16..    slots of STATE_SLOT_SIZE bytes each:
 *      0..7   step + 1; 0: the slot is not whole. Cleared before the first byte of the block is written, set behind the last one (u64)
 *      8..11  world rank (u32)
 *      12..15 generation of the writer (u32)
 *      16..23 offset of the block in the file, a multiple of STATE_BLOCK_ALIGNMENT from STATE_BLOCKS_AT on (u64)
 *      24..31 bytes of the block (u64)
 *      32..35 checksum of the bytes (u32)
 *      36..39 kind of the checksum, enum state_checksum (u32)
 *      40..43 world size of the writer (u32)
 *      44..47 content, enum state_content (u32)
 *      48..51 number of readers in crun (u32): above 0 the worker leaves the slot alone
 *      52..55 CRC-32 of the bytes 0..47 (u32): a damaged place is not taken for a block
 *      56..63 0
 *
 * A reader and the writer agree without a lock. The reader adds itself to the readers, then reads the step again, and goes away unless
 * the step is the same. The writer clears the step, then reads the readers; with a reader there the writer puts the step back and takes
 * another slot, or leaves this step out. Both use pwrite() and pread(), which no processor reorders.
 *
 * A process uses blocks or the in-memory checkpoint of libcrw, which begins in the head: the file shrinks for the latter, and crun
 * seals a file with blocks against shrinking.
 *
 * A block of the content STATE_FILES holds files:
 *
 *   0..7    "CRUNFIL1"
 *   8..11   number of files, at most STATE_FILES_MAX (u32)
 *   12..15  0
 *   16..    for each file 64 bytes: offset in the block (u64), bytes (u64), name (48 bytes, padded with NUL)
 *
 * How a worker asks: all workers of a node inherit one end of a datagram socket (STATE_BLOCKS_ENVIRONMENT). A worker makes a pair of
 * sockets of the type SOCK_SEQPACKET and sends one of the two by SCM_RIGHTS with BLOCKS_HELLO. Requests and answers then are records
 * over that pair, and its end is the end of the worker.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATE_TABLE_MAGIC "CRUNBLK1"
#define STATE_FILES_MAGIC "CRUNFIL1"
#define STATE_BLOCKS_ENVIRONMENT "CRUN_BLOCKS_FD"

enum {
    STATE_TABLE_AT = 131072,
    STATE_BLOCKS_AT = 1 << 20,
    STATE_BLOCK_ALIGNMENT = 4096,
    STATE_SLOTS_MAX = 3,
    STATE_SLOT_SIZE = 64,
    STATE_SLOT_HELD_AT = 48, /* in the slot, as the next one */
    STATE_SLOT_CRC_AT = 52,
    STATE_TABLE_HEAD_SIZE = 16,
    STATE_TABLE_SIZE = STATE_TABLE_HEAD_SIZE + STATE_SLOTS_MAX * STATE_SLOT_SIZE,
    STATE_FILES_MAX = 64,
    STATE_FILES_HEAD_SIZE = 16,
    STATE_FILE_SIZE = 64,
    STATE_FILE_NAME_SIZE = 48,
};

enum state_checksum { STATE_CRC32 = 1, STATE_CRC32C = 2 };
enum state_content { STATE_FILES = 1, STATE_SNAPSHOT = 2 };

struct state_block {
    uint64_t number; /* step + 1; 0: not whole */
    uint64_t offset, bytes;
    uint32_t rank, generation, world_size;
    uint32_t checksum, checksum_kind;
    uint32_t content;
    uint32_t held; /* readers in crun */
};

struct state_table {
    uint32_t n_slots;
    struct state_block slots[STATE_SLOTS_MAX];
};

static inline uint64_t state_slot_at(uint32_t slot)
{
    return STATE_TABLE_AT + STATE_TABLE_HEAD_SIZE + (uint64_t)slot * STATE_SLOT_SIZE;
}

/* bytes: the n <= STATE_TABLE_SIZE bytes at STATE_TABLE_AT of a file of file_size bytes. A slot that is damaged, leaves the file or shares
 * bytes with another slot has number 0 in *ret. 0; -ENOENT: no table yet; -EBADMSG: other bytes. */
int state_table_read(const uint8_t *bytes, size_t n, uint64_t file_size, struct state_table *ret);

/* A slot as its STATE_SLOT_SIZE bytes. */
void state_slot_put(const struct state_block *block, uint8_t out[STATE_SLOT_SIZE]);

struct state_file {
    uint64_t offset, bytes; /* in the block */
    char name[STATE_FILE_NAME_SIZE];
};

/* Letters, digits, '.', '_' and '-' alone, neither "." nor "..". */
bool state_file_name_is_valid(const char *name);

/* The files in a block of block_size bytes; bytes: the first n of them, STATE_FILES_HEAD_SIZE + STATE_FILES_MAX * STATE_FILE_SIZE suffice.
 * Returns the number of files, or -EBADMSG: not such a block, a file outside the block, a bad name, or a name that comes twice. */
int state_files_read(const uint8_t *bytes, size_t n, uint64_t block_size,
                     struct state_file ret[STATE_FILES_MAX]);

enum blocks_kind {
    BLOCKS_SIZE =
        1, /* bytes: needed for the whole file. Answer: -; arg: slots to use. ENOMEM: arg: MiB that would fit */
    BLOCKS_WHOLE, /* step, rank, arg: the slot that is whole now. No answer */
    BLOCKS_STEP, /* Answer, once crun has chosen: bytes: step + 1, 0: none; arg, generation: of the step. Status EAGAIN: to be read, BLOCKS_VERDICT follows; 0: final */
    BLOCKS_BLOCK, /* rank, step, generation, arg: enum blocks_source. Answer: a read-only file, bytes, checksum, tier. ENOENT: nowhere */
    BLOCKS_VERDICT, /* step, generation, status: 0, or the error of this rank. Answer, once all ranks have sent one: as for BLOCKS_STEP */
    BLOCKS_FOLDER,  /* text: the folder; arg: every so many steps, 0: at the end alone. No answer */
    BLOCKS_REJECT,  /* step: the state from there on is bad. Answer: - */
    BLOCKS_SAVED,   /* from crun, id 0: step is whole in the folder */
    BLOCKS_HELLO,   /* arg: local rank; rank, generation. No answer */
    BLOCKS_KIND_END,
};

enum blocks_source { BLOCKS_ANY_TIER, BLOCKS_NOT_OWN_MEMORY };
enum state_tier { TIER_NONE, TIER_MEMORY, TIER_PEER, TIER_FOLDER };

enum { BLOCKS_RECORD_SIZE = 64, BLOCKS_TEXT_SIZE = 3072 };

/*
 * Bytes of a record: size (u32, with the text), kind, id, status (u32 each), step (u64), rank, generation (u32 each), bytes (u64), checksum,
 * checksum kind, tier, arg (u32 each), 8 bytes 0, then the text.
 */
struct blocks_record {
    uint32_t kind;   /* enum blocks_kind */
    uint32_t id;     /* of the request; its answer has the same */
    uint32_t status; /* 0 or an errno */
    uint64_t step;
    uint32_t rank, generation;
    uint64_t bytes;
    uint32_t checksum, checksum_kind;
    uint32_t tier;
    uint32_t arg;
    char text[BLOCKS_TEXT_SIZE]; /* ends with NUL */
};

/* Returns the size of the record. */
size_t blocks_record_put(const struct blocks_record *record,
                         uint8_t out[BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE]);
/* One whole record. False: not one; *ret is then undefined. */
bool blocks_record_get(const uint8_t *bytes, size_t n, struct blocks_record *ret);
