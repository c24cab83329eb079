#pragma once

/* Answers of a rendezvous about jobs, with the user's secret for these jobs. */

struct control_socket;
struct job_status;
struct survey_options;
struct query_answer;

/* Adds the other nodes of the job; s: the socket of the job's crun. Without an answer nothing is added. */
void other_nodes_add(struct job_status *job, struct survey_options *request, struct control_socket *s);

/* The jobs of a front on this machine, by the name of its socket. 0 or -errno, with a line on standard error. */
int other_nodes_ask_front(const char *name, struct query_answer *ret);

/* The jobs of request->endpoint, or the stacks of a job after a wait (perhaps none). Of a list: the first endpoint
 * with an answer and the lead. 0, or -errno with a line on standard error for each endpoint. */
int other_nodes_ask(struct survey_options *request, struct query_answer *ret);
