#pragma once

/* crunctl stacks: has the stacks of a job's workers on this node taken, and prints where they are. */

#include <stdbool.h>

struct survey_options;

/* Of the jobs that request names, here or at request->endpoint, with wants_stacks. Returns crunctl's exit code. */
int stacks_command(struct survey_options *request, bool is_json);
