/*
 * Fuzz target: what crun reads of its workers' blocks of state, and what agents send each other about blocks. A block that is taken for
 * whole lies in its file and shares no byte with another one; a file of a block lies in the block; records and messages that were read
 * are the same after another way through the codec.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "launcher/snapshots/round_message_json.h"
#include "proto/frame.h"
#include "proto/state_blocks.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool is_inside(uint64_t offset, uint64_t n, uint64_t size)
{
    return offset <= size && n <= size - offset;
}

static void read_table(const uint8_t *data, size_t n, uint64_t file_size)
{
    struct state_table table;

    if (state_table_read(data, n, file_size, &table) != 0)
        return;
    require(table.n_slots >= 2 && table.n_slots <= STATE_SLOTS_MAX);
    for (uint32_t i = 0; i < table.n_slots; i++) {
        const struct state_block *a = &table.slots[i];
        if (a->number == 0)
            continue;
        require(a->offset >= STATE_BLOCKS_AT && is_inside(a->offset, a->bytes, file_size));
        for (uint32_t j = 0; j < i; j++) {
            const struct state_block *b = &table.slots[j];
            require(b->number == 0 || a->offset >= b->offset + b->bytes || b->offset >= a->offset + a->bytes);
        }
    }
}

static void read_files(const uint8_t *data, size_t n, uint64_t block_size)
{
    struct state_file files[STATE_FILES_MAX];
    int n_files = state_files_read(data, n, block_size, files);

    for (int i = 0; i < n_files; i++)
        require(is_inside(files[i].offset, files[i].bytes, block_size) &&
                state_file_name_is_valid(files[i].name) && !strchr(files[i].name, '/'));
}

static void read_record(const uint8_t *data, size_t n)
{
    uint8_t again[BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE];
    static struct blocks_record record, copy;

    if (!blocks_record_get(data, n, &record))
        return;
    require(blocks_record_put(&record, again) == n);
    require(blocks_record_get(again, n, &copy) && copy.bytes == record.bytes &&
            strcmp(copy.text, record.text) == 0);
}

static void read_message(const uint8_t *data, size_t n)
{
    static struct round_message message, copy;
    struct agent_message head;
    struct buf out = {0};

    if (!round_message_get(data, n, &head, &message))
        return;
    require(message.n_runs <= ROUND_RUNS_MAX);
    struct snapshot_round round = {0};
    struct round_message answer;
    int32_t to;
    require(snapshot_round_begin(&round, 0, 2) == 0);
    (void)snapshot_round_take(&round, &message, &answer, &to);
    snapshot_round_finish(&round);
    if (round_message_put(&out, &head, &message) == 0) {
        require(round_message_get(buf_bytes(&out) + FRAME_HEADER_SIZE, buf_size(&out) - FRAME_HEADER_SIZE,
                                  &head, &copy));
        require(copy.n_runs == message.n_runs && copy.kind == message.kind &&
                copy.choice.step == message.choice.step);
    }
    buf_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 9)
        return 0;
    uint64_t file_size = wire_load_u64(data + 1);
    const uint8_t *bytes = data + 9;
    size_t n = size - 9;

    switch (data[0] % 4) {
    case 0:
        read_table(bytes, n, file_size);
        break;
    case 1:
        read_files(bytes, n, file_size);
        break;
    case 2:
        read_record(bytes, n);
        break;
    default:
        read_message(bytes, n);
    }
    return 0;
}
