#pragma once

/*
 * A saved job as a file: one line with a checksum, and the body (rounds_json.h).
 *
 *     crun-rounds 1 <checksum, 16 hexadecimal digits> <bytes of the body, 8 hexadecimal digits>\n
 *
 * The number is the version of this line; the body has its own.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct rounds_job;

/* A job of 16384 nodes with the longest names is below this: control characters, which JSON makes six bytes of, are
 * refused in names. */
enum { ROUNDS_FILE_MAX = 64 << 20, ROUNDS_FILE_NAME_SIZE = 32 };

/* "job-<instance>.json": ids are any text, and two instances of one id may be there for a moment. */
void rounds_file_name(uint64_t instance, char name[ROUNDS_FILE_NAME_SIZE]);
bool rounds_file_is_name(const char *name);

/* Appends the whole file. 0 or -ENOMEM or -EMSGSIZE; the buf may then hold a part of it. */
int rounds_file_put(struct buf *out, const struct rounds_job *job);

/* Where the rest begins; NULL: the file is not whole, or never was one of these. */
const uint8_t *rounds_file_check(const uint8_t *data, size_t n, size_t *ret_size);
