#pragma once

/*
 * What a report on failed workers shows of files: their error files, the end of an output, the head of a program. They are read beside
 * the loop, one after the other in the order in which they were asked for. While a disk hangs nothing is read.
 */

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct disk_texts;
struct file_part;

struct disk_texts_host {
    uv_loop_t *loop;
    size_t n;                              /* texts */
    void (*on_read)(void *data, size_t i); /* this one was read, or cannot be */
    void *data;
};

/* NULL without memory. */
struct disk_texts *disk_texts_create(const struct disk_texts_host *host);
void disk_texts_destroy(struct disk_texts *t);

/* Asks for text i of this generation, in place of an earlier one. Takes over the part; NULL (no memory, no file): there is none. */
void disk_texts_want(struct disk_texts *t, size_t i, unsigned generation, struct file_part *part);

/* NULL: it was not asked for, is not there yet, or cannot be read. Valid until the text is asked for again. */
const struct file_part *disk_texts_get(const struct disk_texts *t, size_t i, unsigned generation);

/* Whether text i, or any text, was asked for and is not there yet. */
bool disk_texts_await(const struct disk_texts *t, size_t i);
bool disk_texts_await_any(const struct disk_texts *t);

/* What has not been read is missing. */
void disk_texts_give_up(struct disk_texts *t);
