#pragma once

/*
 * The arithmetic of reductions: the same elements of several ranks, combined in rank order, so that the
 * result has the same bits wherever and however often it is computed. Pure.
 */

#include "worker-runtime/crw.h"

#include <stddef.h>
#include <stdint.h>

bool reduce_supports(enum crw_dtype dtype, enum crw_op op);

/* Bytes of an element of a supported type. */
size_t reduce_element_size(enum crw_dtype dtype);

/*
 * Combines elements begin..end of n_sources >= 1 arrays and writes them to the same place of n_targets
 * arrays, each of which may be one of the sources but must not overlap one otherwise. CRW_MAX: NaN wins.
 * CRW_AVG of integers rounds to zero.
 */
void reduce(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources, void *const *targets,
            int n_targets, size_t begin, size_t end);
