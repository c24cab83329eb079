#pragma once

/* What crunctl learns from a rendezvous, with the secret that this user has for its jobs. */

#include <stdbool.h>

struct control_socket;
struct job_status;
struct survey_options;
struct query_answer;

/* Adds the other nodes of the job, whose crun has this socket. Without an answer the job stays as it is. */
void other_nodes_add(struct job_status *job, struct survey_options *request, struct control_socket *s);

/* The jobs of request->endpoint, or the stacks of one, which are waited for (none may come). Of a list the first
 * endpoint that answers and leads. 0, or -errno with a line on standard error for each. */
int other_nodes_ask(struct survey_options *request, struct query_answer *ret);
