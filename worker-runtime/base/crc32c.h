#pragma once

/* The portable twin of crw_crc32c(), for its test. */

#include "worker-runtime/crw.h"

uint32_t crc32c_table(uint32_t crc, const void *data, size_t n_bytes);
