#pragma once

struct agent_host;
struct agent_lines;
struct agent_observer;
struct disk_texts;
struct failures_source;
struct guardian_report;
struct line_match;

/* take: gets the reports in order, with the data of the host. */
struct agent_lines *agent_lines_create(struct agent_observer *observer, const struct agent_host *host,
                                       const struct disk_texts *texts,
                                       void (*take)(void *data, const struct guardian_report *report));

/* A line with a rule of --on-line. Callback of struct output, like the next. */
void agent_lines_match(void *lines, const struct line_match *match);

/* All lines before output_look() are known. */
void agent_lines_looked(void *lines);

/* A report of the guardian. Asks for the files of a failed worker; the report may wait for them, or for lines. */
void agent_lines_report(struct agent_lines *l, const struct failures_source *source,
                        const struct guardian_report *report);

/* A file of a failed worker was read. */
void agent_lines_check(struct agent_lines *l);

/* The worker killed because of a line, with the line as a sentence. -1: no worker of this generation. */
int agent_lines_worker(const struct agent_lines *l, const char **ret_cause);

/* Workers are started anew: agent_lines_worker() is -1. */
void agent_lines_forget(struct agent_lines *l);

/* When the loop has ended. */
void agent_lines_destroy(struct agent_lines *l);
