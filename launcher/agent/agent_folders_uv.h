#pragma once

/* Removes the temporary folders at the end of the job, beside the loop: the disk may hang. */

#include <stdbool.h>
#include <uv.h>

struct agent_folders;
struct logs;

/* 0 or -ENOMEM. free() when the process does not end by _exit(). */
int agent_folders_create(struct agent_folders **ret, uv_loop_t *loop, const struct logs *logs);

/* Begins the removal, once. all: of all folders, not of the empty ones alone. */
void agent_folders_remove(struct agent_folders *f, bool all);

/* Runs the loop until the removal has ended. False: the disk does not answer. */
bool agent_folders_await(struct agent_folders *f);
