#pragma once

/*
 * Reads parts of files that may be on any disk: error files, logs, programs. Never waits for the writer of a FIFO, as a
 * worker chooses what lies in its log folder, and never longer than a quarter of a second for a disk that hangs. The same
 * for a small file that is written.
 */

#include <stdbool.h>
#include <stddef.h>

/* A part of a regular file, to be read by a thread. */
struct file_part {
    char *path;
    size_t n_max;
    bool from_end; /* its last bytes, not its first */
    char *bytes;   /* the result, closed by a NUL; NULL: it cannot be read */
    size_t n_bytes;
    bool is_executable;
};

/* Takes over the path. NULL without memory, or without a path. */
struct file_part *file_part_create(char *path, size_t n_max, bool from_end);
void file_part_read(void *part);
void file_part_drop(void *part); /* NULL is fine */

/* The first n_max bytes of a regular file: malloc'ed, with room for a NUL behind them; NULL on failure, or when the disk
 * does not answer. */
char *read_disk_start(const char *path, size_t n_max, size_t *ret_n_bytes);

/* Makes a file of this text, in place of one that is there. 0 or -errno; -ETIMEDOUT: it may still be written. */
int write_disk_file(const char *path, const char *text, unsigned limit_ms);
