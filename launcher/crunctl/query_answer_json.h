#pragma once

/*
 * What a rendezvous answers to a look (rendezvous/session/look_json.h), frame by frame, as jobs for crunctl to show. Pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct job_status;

struct query_answer {
    struct job_status *jobs;
    size_t n_jobs;
    char *stacks;        /* of a job, as job_stacks_json.h has them; NULL: none came */
    size_t n_unreported; /* nodes without a status of their workers */
    uint32_t next;       /* after the end: where to go on; 0: that was all */
    bool is_over;
    char refusal[256]; /* the rendezvous refuses, or does not lead, and this is why; "": it does not */
};

/* The body of the next frame. 0; -EACCES with a refusal; -EBADMSG or -ENOMEM. */
int query_answer_take(struct query_answer *l, const uint8_t *body, size_t n);

/* Frames of a whole answer, without the opening. 0 and is_over, or as above; -EBADMSG also when the end is missing. */
int query_answer_take_frames(struct query_answer *l, const uint8_t *bytes, size_t n);

void query_answer_finish(struct query_answer *l);
