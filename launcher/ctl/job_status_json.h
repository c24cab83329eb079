#pragma once

/*
 * A job's status as JSON: {"version":1,"job":...,"generation":...,"restarts":...,"nodes":[{...,"workers":[...]}]}. Fields
 * may be added; readers ignore those that they do not know.
 */

#include <stddef.h>
#include <stdint.h>

struct job_status;
struct node_status;

enum { JOB_STATUS_VERSION = 1 };

/* Malloc'ed; NULL without memory. */
char *job_status_to_json(const struct job_status *s);

/* 0; -EBADMSG: not such an object, or of another version; or -ENOMEM. *ret is finished by the caller after 0 alone. */
int job_status_from_json(const char *bytes, size_t n, struct job_status *ret);

/* A node with n workers from the first on, as in "nodes". Malloc'ed; NULL without memory. */
char *job_status_node_to_json(const struct node_status *n, size_t first, size_t n_workers);

/* The workers of a piece of a node's status (look_json.h), for the last node of the job. 0, -EBADMSG or -ENOMEM. */
int job_status_read_piece(const uint8_t *body, size_t n, struct job_status *s);
