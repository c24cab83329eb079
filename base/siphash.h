#pragma once

/*
 * SipHash-1-3: a keyed hash. Without the seed a client cannot choose names that all land in one bucket,
 * which is what a table that untrusted clients fill needs.
 */

#include <stddef.h>
#include <stdint.h>

enum { SIPHASH_SEED_SIZE = 16 };

uint64_t siphash13(const uint8_t seed[SIPHASH_SEED_SIZE], const void *data, size_t n);
