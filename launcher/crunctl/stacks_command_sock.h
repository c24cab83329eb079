#pragma once

/* crunctl stacks: has the stacks of a job's workers on this node taken, and prints where they are. */

#include <stdbool.h>

struct survey_options;

/* job: the name of a job or how it begins, NULL: all; socket: that one alone, or NULL. Returns crunctl's exit code. */
int stacks_command(char *const *environment, const char *socket, const char *job, bool is_json);

/* The same for the job of request->endpoint that request names. */
int stacks_of_endpoint(const struct survey_options *request, bool is_json);
