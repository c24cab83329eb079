#pragma once

/*
 * Reads small files whole: /proc and /sys, error files, logs. Never waits for the writer of a FIFO, as a worker
 * chooses what lies in its log folder.
 */

#include <stdbool.h>
#include <stddef.h>

/* At most out_size - 1 bytes, closed by a NUL. False, with out set to "", when the file is empty or unreadable. */
bool read_file_text(const char *path, char *out, size_t out_size);

/* The first n_max bytes of a regular file: malloc'ed, with room for a NUL behind them; NULL on failure. */
char *read_file_start(const char *path, size_t n_max, size_t *ret_n_bytes);

/* The same for the last n_max bytes. */
char *read_file_end(const char *path, size_t n_max, size_t *ret_n_bytes);
