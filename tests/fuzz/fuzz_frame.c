/*
 * Fuzz target: the agent session's frames. Input: one byte that chooses the side (its lowest bit) and the
 * slices, and the rest is what the peer sends. The events must be the same whether that arrives at once or
 * in slices, and no body may lie outside of what arrived.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

struct outcome {
    uint64_t checksum;
    size_t used;
    int result;
};

static void add(struct outcome *o, uint64_t value)
{
    o->checksum = (o->checksum ^ value) * UINT64_C(0x100000001b3);
}

static void add_frame(struct outcome *o, const struct frame *frame, const uint8_t *data, size_t size)
{
    add(o, frame->kind);
    if (frame->kind != FRAME_BODY)
        return;
    require(frame->body.data > data && frame->body.data + frame->body.size == data + size);
    for (size_t i = 0; i < frame->body.size; i++)
        add(o, frame->body.data[i]);
}

static struct outcome run(const uint8_t *data, size_t n, uint8_t choice, bool sliced)
{
    struct outcome o = {.result = FRAME_E_MORE};
    uint32_t state = choice;
    struct frame_reader f;
    size_t end = sliced ? 0 : n;

    if (choice & 1)
        frame_reader_init_agent(&f, 0x04030201);
    else
        frame_reader_init_server(&f);
    for (;;) {
        struct frame frame;
        size_t size = 0;

        o.result = frame_decode(&f, data + o.used, end - o.used, &frame, &size);
        if (o.result == 0) {
            require(size > 0 && size <= end - o.used);
            add_frame(&o, &frame, data + o.used, size);
            o.used += size;
        } else if (o.result == FRAME_E_MORE && end < n) {
            state = state * 1664525 + 1013904223;
            end += 1 + (state >> 16) % 30;
            end = end < n ? end : n;
        } else {
            return o;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct outcome whole, sliced;

    if (size < 1)
        return 0;
    whole = run(data + 1, size - 1, data[0], false);
    sliced = run(data + 1, size - 1, data[0], true);
    require(whole.checksum == sliced.checksum && whole.used == sliced.used && whole.result == sliced.result);
    return 0;
}
