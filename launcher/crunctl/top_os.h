#pragma once

/*
 * crunctl top on a terminal: looks once a second and draws; keys act at once. Only sequences that need no answer are sent, so
 * a slow line (ssh) delays nothing. The terminal is as before when it ends, by q, a signal or the end of its input.
 */

struct job_survey;
struct survey_options;

/* *before: an earlier look, which it takes. 0, or 1 after an error that was printed. */
int top_run(struct survey_options *request, struct job_survey *before);
