/*
 * Saves one snapshot of every type, shape and kind of text that matters to a reader, through the public API:
 *
 *     crw-snapshot-writer FOLDER STEP
 *
 * Element i of a tensor is i, as far as its type can hold it; test_snapshot_python.py expects that.
 */

#include "worker-runtime/crw.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static float weights[2 * 3 * 4], scalar[1] = {0.5f};
    static double doubles[5];
    static int64_t counters[3];
    static uint8_t bytes[7];
    static uint16_t halves[4] = {0x0000, 0x3f80, 0x4000, 0x4040}; /* bfloat16 0, 1, 2, 3 */
    const struct crw_tensor tensors[] = {
        {"model.bytes", CRW_U8, 1, {7}, bytes},
        {"model.conv.weight", CRW_F32, 3, {2, 3, 4}, weights},
        {"optim.conv.weight.square_avg", CRW_F64, 1, {5}, doubles},
        {"buffer.bn.num_batches_tracked", CRW_I64, 1, {3}, counters},
        {"model.scale", CRW_F32, 0, {0}, scalar},
        {"model.halves", CRW_BF16, 2, {2, 2}, halves},
        {"model.empty", CRW_F32, 2, {0, 3}, NULL},
    };
    const struct crw_pair meta[] = {{"epoch", "3"},
                                    {"note", "quote \" backslash \\ tab \t"},
                                    {"name", "Fran\xc3\xa7oise \xe2\x82\xac \xf0\x9f\x98\x80"}};
    struct crw_snapshots *s;
    const char *failure;

    if (argc != 3) {
        fprintf(stderr, "usage: %s FOLDER STEP\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < 24; i++)
        weights[i] = (float)i;
    for (int i = 0; i < 5; i++)
        doubles[i] = i;
    for (int i = 0; i < 3; i++)
        counters[i] = i;
    for (int i = 0; i < 7; i++)
        bytes[i] = (uint8_t)i;
    if (crw_snapshots_create(argv[1], 2, &s) != 0 ||
        crw_snapshots_save(s, strtoull(argv[2], NULL, 10), tensors, sizeof(tensors) / sizeof(tensors[0]),
                           meta, sizeof(meta) / sizeof(meta[0])) != 0) {
        fprintf(stderr, "%s: %s\n", argv[0], crw_error_message());
        return 1;
    }
    crw_snapshots_wait(s);
    crw_snapshots_status(s, &failure);
    if (failure)
        fprintf(stderr, "%s: %s\n", argv[0], failure);
    crw_snapshots_destroy(s);
    return failure ? 1 : 0;
}
