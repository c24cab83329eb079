#pragma once

/* Base64 with padding (RFC 4648, section 4), as etcd's gateway has it for keys and values. */

#include <stdbool.h>
#include <stddef.h>

struct buf;

/* Without the NUL. */
static inline size_t base64_size(size_t n)
{
    return (n + 2) / 3 * 4;
}

/* Writes base64_size(n) characters and a NUL. */
void base64_encode(const void *data, size_t n, char *to);

/* Appends what the text stands for; false: it is no base64, or memory is out (out may then hold a part of it). */
bool base64_decode(const char *text, struct buf *out);
