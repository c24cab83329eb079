#pragma once

/*
 * Growable byte buffer with a read end: bytes are appended behind and consumed in front. It owns no
 * memory while it is empty after buf_reset(), so an idle connection costs the struct alone.
 */

#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data; /* allocation, NULL when capacity is 0 */
    size_t begin;  /* first byte not consumed */
    size_t end;    /* one past the last byte written */
    size_t capacity;
};

void buf_finish(struct buf *b);

/* Drops content and memory. */
void buf_reset(struct buf *b);

/* Drops content, and the memory if it is more than keep_max; else the memory is kept for what comes next. */
void buf_clear(struct buf *b, size_t keep_max);

static inline size_t buf_size(const struct buf *b)
{
    return b->end - b->begin;
}

static inline uint8_t *buf_bytes(const struct buf *b)
{
    return b->data ? b->data + b->begin : NULL;
}

/* Makes room for n more bytes behind the content and returns where to write them; the content does not
 * grow until buf_commit(). NULL when memory is out; the content is then unchanged. */
uint8_t *buf_reserve(struct buf *b, size_t n);

/* n bytes after a buf_reserve() of at least n are now content. */
void buf_commit(struct buf *b, size_t n);

/* Returns 0 or -ENOMEM; unchanged on failure. */
int buf_append(struct buf *b, const void *data, size_t n);

int buf_append_u8(struct buf *b, uint8_t v);
/* Little endian, the order of the TCPStore wire. */
int buf_append_u32(struct buf *b, uint32_t v);
int buf_append_u64(struct buf *b, uint64_t v);

/* Removes n <= buf_size() bytes from the front. The memory is kept for what comes next. */
void buf_consume(struct buf *b, size_t n);
