#pragma once

/*
 * A look at the jobs of this node: every socket is asked, and what /proc, log files and the GPU driver have is added. Two
 * looks give rates.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct job_status;

struct look_request {
    const char *job;    /* a name, or how it begins; NULL: all */
    const char *socket; /* this one alone, or NULL */
    char *const *environment;
};

struct look {
    struct job_status *jobs;
    size_t n_jobs;
    uint64_t taken_ns;
};

/* 0 or -ENOMEM; sockets that do not answer are named on standard error. look_finish() in both cases. */
int look_take(struct look *ret, const struct look_request *request);

/* Rates, from an earlier look. */
void look_compare(struct look *look, const struct look *before);

size_t look_count_ranks(const struct look *look);

void look_finish(struct look *look);
