#pragma once

/* What a worker has reported with beat(step), read from the memory file that crun lends it (proto/worker_memory.h). */

#include <stdbool.h>
#include <stdint.h>

struct worker_beat {
    int64_t step;
    uint64_t at_ns; /* monotonic: when it was reported, perhaps by a worker before this one */
};

/* False: there is no file (fd -1), or nothing was reported in it. */
bool worker_beat_read(int fd, struct worker_beat *ret);
