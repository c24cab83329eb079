#pragma once

/*
 * The key of the job (CRUN_KEY_FD): crun derives it from the job's secret and lends it to the workers in a sealed memory
 * file. Ranks derive the key of a generation from it, since a worker may outlive one.
 */

#include <stdbool.h>
#include <stdint.h>

#include "proto/secret_key.h"

struct job_key {
    bool is_set;   /* false: the job has no key */
    bool encrypts; /* env_encrypt(): the key also makes those that encrypt what is sent; only with a key */
    uint32_t generation;
    struct secret_key of_generation;
};

/* 0, or CRW_E_ENVIRONMENT with a message: CRUN_KEY_FD is set, but names no key, or CRW_ENCRYPT is 1 without a key; a job
 * that has one, or wants one, does not go on without. */
int job_key_read(int generation, struct job_key *ret);
