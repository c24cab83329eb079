#include "base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_MIN = 256 };

void buf_finish(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_reset(struct buf *b)
{
    buf_finish(b);
}

void buf_clear(struct buf *b, size_t keep_max)
{
    if (b->capacity > keep_max)
        buf_reset(b);
    b->begin = 0;
    b->end = 0;
}

static size_t grown_capacity(size_t capacity, size_t needed)
{
    size_t doubled = capacity > SIZE_MAX / 2 ? SIZE_MAX : capacity * 2;

    if (needed < BUF_MIN)
        return BUF_MIN;
    /* Doubling makes many small appends cheap. A jump past that is one large one: twice its size would be
     * wasted. */
    return needed > doubled ? needed : doubled;
}

/* Moves the content to the front of a larger allocation. */
static int buf_grow(struct buf *b, size_t capacity)
{
    uint8_t *data;

    if (b->begin == 0) {
        /* The kernel can move the pages of a large one instead of copying it. */
        data = realloc(b->data, capacity);
        if (!data)
            return -ENOMEM;
    } else {
        data = malloc(capacity);
        if (!data)
            return -ENOMEM;
        assert(b->data); /* begin is past something */
        memcpy(data, b->data + b->begin, buf_size(b));
        free(b->data);
    }
    b->data = data;
    b->capacity = capacity;
    return 0;
}

uint8_t *buf_reserve(struct buf *b, size_t n)
{
    size_t size = buf_size(b);

    if (n > SIZE_MAX - size)
        return NULL;
    if (b->capacity - b->end >= n && b->data)
        return b->data + b->end;
    /* Moving costs size bytes; doing it only when at least as much was consumed keeps it linear. */
    if (b->begin >= size && b->capacity - size >= n && b->data)
        memmove(b->data, b->data + b->begin, size);
    else if (buf_grow(b, grown_capacity(b->capacity, size + n)) < 0)
        return NULL;
    b->begin = 0;
    b->end = size;
    return b->data + b->end;
}

void buf_commit(struct buf *b, size_t n)
{
    assert(n <= b->capacity - b->end);
    b->end += n;
}

int buf_append(struct buf *b, const void *data, size_t n)
{
    if (n == 0)
        return 0;
    uint8_t *to = buf_reserve(b, n);
    if (!to)
        return -ENOMEM;
    memcpy(to, data, n);
    b->end += n;
    return 0;
}

int buf_append_u8(struct buf *b, uint8_t v)
{
    return buf_append(b, &v, 1);
}

int buf_append_u32(struct buf *b, uint32_t v)
{
    uint8_t bytes[4];

    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(v >> (8 * i));
    return buf_append(b, bytes, sizeof(bytes));
}

int buf_append_u64(struct buf *b, uint64_t v)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(v >> (8 * i));
    return buf_append(b, bytes, sizeof(bytes));
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= buf_size(b));
    b->begin += n;
    if (b->begin == b->end) {
        b->begin = 0;
        b->end = 0;
    }
}
