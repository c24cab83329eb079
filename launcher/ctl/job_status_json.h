#pragma once

/*
 * A job's status as JSON: {"version":1,"job":...,"generation":...,"restarts":...,"nodes":[{...,"workers":[...]}]}. Fields
 * may be added; readers ignore those that they do not know.
 */

#include <stddef.h>

struct job_status;

enum { JOB_STATUS_VERSION = 1 };

/* Malloc'ed; NULL without memory. */
char *job_status_to_json(const struct job_status *s);

/* 0; -EBADMSG: not such an object, or of another version; or -ENOMEM. *ret is finished by the caller after 0 alone. */
int job_status_from_json(const char *bytes, size_t n, struct job_status *ret);
