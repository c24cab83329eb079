#pragma once

/*
 * A look at jobs: every socket of this node is asked, and what /proc, log files and the GPU driver have is added. Other nodes of
 * a job are added from its rendezvous: from the crun that serves it, over its socket, or over TLS where the job has a secret
 * that this user has, too. Two looks give rates.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/certificate_paths.h"
#include "proto/secret_os.h"
#include "launcher/util/strlist.h"

struct job_status;

/* This user's secret, read when the first look needs it and kept for all others: what a descriptor or a pipe holds can be read
 * once. Zeroed at first. */
struct survey_secret {
    struct secret secret;
    bool was_read;
    char error[SECRET_ERROR_SIZE]; /* a sentence when it cannot be used */
};

struct survey_options {
    const char *job;      /* a name, or how it begins; NULL: all */
    const char *socket;   /* this one alone, or NULL */
    const char *endpoint; /* ask this rendezvous, or those of a list with commas, and no socket; or NULL */
    bool
        wants_stacks; /* of the job: the endpoint has them taken, and from a socket only the name is wanted */
    const char *secret_file;               /* or NULL: as crun finds it */
    struct certificate_paths certificates; /* in place of the secret, where it has one */
    char *const *environment;
    struct survey_secret secret; /* survey_secret_finish() */
};

struct job_survey {
    struct job_status *jobs;
    size_t n_jobs;
    struct strlist sockets; /* that were asked; job_status.socket is one of them */
    uint64_t taken_ns;
};

/* 0; -ENOMEM, or the reason why the endpoint or the socket that was named did not answer, or why the folder of sockets is not used.
 * What does not answer is named on standard error. job_survey_finish() in both cases. */
int job_survey_take(struct job_survey *ret, struct survey_options *request);

/* After the last look. */
void survey_secret_finish(struct survey_secret *s);

/* Rates, from an earlier look. */
void job_survey_compare(struct job_survey *look, const struct job_survey *before);

size_t job_survey_count_ranks(const struct job_survey *look);

void job_survey_finish(struct job_survey *look);
