#pragma once

/*
 * IDX files of bytes (the MNIST family), compressed by gzip or not.
 */

#include <stddef.h>
#include <stdint.h>

struct idx {
    uint32_t n_items;
    int n_dims;       /* dimensions of one item: 0 for labels, 2 for images */
    uint32_t dims[2]; /* rows, columns */
    const uint8_t *data;
    void *mapping; /* of a plain file */
    size_t mapping_size;
    uint8_t *memory; /* of a compressed file, inflated */
};

/* path, or path with ".gz" added or removed, whichever exists. n_dims: dimensions that an item has to have, 0 or 2. 0; -1 with a
 * sentence in error[0..n): the file is missing, short, long or of another type, or cannot be read. *ret is written on success. */
int idx_open(const char *path, int n_dims, struct idx *ret, char *error, size_t n);
/* Also of a zeroed structure. */
void idx_close(struct idx *idx);
