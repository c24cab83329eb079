#pragma once

/* The answer of crun to "stacks": {"version":1,"job":...,"folder":...,"groups":[lines]}. */

#include <stddef.h>

/* folder, lines: may be NULL. Malloc'ed, or NULL without memory. */
char *job_stacks_to_json(const char *job, const char *folder, const char *lines);

/* The same for people; NULL: it is none, or without memory. */
char *job_stacks_text(const char *bytes, size_t n_bytes);
