#pragma once

/*
 * The arithmetic of reductions: the same elements of several ranks, combined in rank order, so that the
 * result has the same bits wherever and however often it is computed. Pure.
 */

#include "worker-runtime/crw.h"

#include <stddef.h>

bool reduce_supports(enum crw_dtype dtype, enum crw_op op);

/* Bytes of an element of a supported type. */
size_t reduce_element_size(enum crw_dtype dtype);

/*
 * Combines elements begin..end of n_sources >= 1 arrays and writes them to the same place of n_targets
 * arrays, each of which may be one of the sources but must not overlap one otherwise. CRW_MAX: NaN wins.
 * CRW_AVG of integers rounds to zero.
 */
void reduce(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources,
            void *const *targets, int n_targets, size_t begin, size_t end);

/*
 * The same in steps, for sources that are not all here: reduce_begin() with the first ones, reduce_more() with
 * those that follow, reduce_end() with how many there were. The bits are those of one reduce() of all.
 * partial: reduce_partial_size() bytes for each of end - begin elements.
 */
size_t reduce_partial_size(enum crw_dtype dtype);
void reduce_begin(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources,
                  size_t begin, size_t end, void *partial);
void reduce_more(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources,
                 size_t begin, size_t end, void *partial);
/* Leaves partial undefined. */
void reduce_end(enum crw_dtype dtype, enum crw_op op, void *partial, int n_sources, void *const *targets,
                int n_targets, size_t begin, size_t end);
