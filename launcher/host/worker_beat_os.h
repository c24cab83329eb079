#pragma once

/* What a worker has reported with beat(step), and its counters of collectives, read from the memory file that crun lends it (proto/worker_memory.h). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/types.h>

#include "proto/worker_memory.h"

struct worker_beat {
    int64_t step;
    uint64_t at_ns; /* monotonic: when it was reported, perhaps by a worker before this one */
    int64_t earlier_step;
    uint64_t earlier_ns; /* 0: there is no earlier report */
};

/* False: there is no file (fd -1), or nothing was reported in it. */
bool worker_beat_read(int fd, struct worker_beat *ret);

/* Steps per second of the process that began at since_ns or later; -1: not known. It falls when the next step takes longer than the
 * last ones did. */
double worker_beat_rate(const struct worker_beat *beat, uint64_t since_ns, uint64_t now_ns);

/* 1 and the global rank that has stopped answering the process `pid`, which this file was lent to; 0: it has found none. */
uint32_t worker_cut_read(int fd, pid_t pid);

/* Where that rank was of an earlier generation. */
void worker_cut_clear(int fd);

/* Returns how many there are, those that were never written among them. */
size_t worker_collectives_read(int fd, struct worker_collective records[WORKER_COLLECTIVES_MAX]);
