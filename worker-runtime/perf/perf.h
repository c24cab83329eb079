#pragma once

/*
 * crw-perf: how long collectives take, and whether what they give is right.
 */

#include "worker-runtime/crw.h"

#include <stdbool.h>
#include <stddef.h>

/* ---- options ---- */

enum { PERF_SIZES_MAX = 64 };

struct perf_collective;

struct perf_options {
    const struct perf_collective *collective;
    size_t bytes[PERF_SIZES_MAX];
    int n_sizes;
    int iters; /* 0: as many as fit into a fraction of a second */
    int warmup;
    int n_ranks; /* workers to start; 0: this process is one already, or alone */
    bool json;
    bool private_memory; /* buffers that the ranks do not share */
};

/* -1, or the exit code after help, version or a complaint, which it prints itself. */
int perf_options_parse(char *const argv[], struct perf_options *ret);

/* ---- collectives ---- */

/* One rank's buffers; both hold `bytes`. */
struct perf_run {
    struct crw_group *group;
    int rank, n_ranks;
    size_t bytes;
    void *in, *out;
};

struct perf_collective {
    const char *name;
    int min_ranks;
    /* Sizes are multiples of this many bytes, and of it times the ranks if each has a part. 0: there is
     * no size. */
    size_t unit;
    bool parts;
    /* What of algbw goes through a rank's memory or wire, as nccl-tests has it. */
    double (*bus_factor)(int n_ranks);
    /* Puts what it has to be about into the buffers; every seed gives something else. */
    void (*fill)(const struct perf_run *run, unsigned seed);
    int (*call)(const struct perf_run *run);
    /* Elements of this rank's result that are wrong, after fill() and one call(). */
    size_t (*count_wrong)(const struct perf_run *run, unsigned seed);
};

/* NULL: there is none. Underscores and hyphens in the name do not count. */
const struct perf_collective *perf_collective_find(const char *name);
/* All, for a person: "allreduce, broadcast, ...". */
extern const char perf_collective_names[];

/* The size that a collective really has when asked for one. */
size_t perf_round_size(const struct perf_collective *collective, size_t bytes, int n_ranks);
