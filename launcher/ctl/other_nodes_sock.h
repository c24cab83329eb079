#pragma once

/* What crunctl learns from a rendezvous, with the secret that this user has for its jobs. */

#include <stdbool.h>

struct job_status;
struct look_options;
struct looked;

/* Adds the other nodes of the job, whose crun listens at path. Without an answer the job stays as it is. */
void other_nodes_add(struct job_status *job, const struct look_options *request, const char *path);

/* The jobs of request->endpoint. 0, or -errno with a line on standard error. */
int other_nodes_ask(const struct look_options *request, struct looked *ret);
