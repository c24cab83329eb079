#pragma once

struct agent_host;
struct agent_lines;
struct agent_observer;
struct disk_texts;
struct failures_source;
struct guardian_report;
struct line_match;

/* take: gets each report, in their order, with the data of the host. 0 or -ENOMEM. */
int agent_lines_create(struct agent_lines **ret, struct agent_observer *observer,
                       const struct agent_host *host, const struct disk_texts *texts,
                       void (*take)(void *data, const struct guardian_report *report));

/* A line that a rule of --on-line is about. */
void agent_lines_match(struct agent_lines *l, const struct line_match *match);

/* The lines that output_look() was called for are known. */
void agent_lines_looked(struct agent_lines *l);

/* A report of the guardian, which may wait for lines that were printed before, or for files, which are asked for. */
void agent_lines_report(struct agent_lines *l, const struct failures_source *source,
                        const struct guardian_report *report);

/* A file that reports may wait for was read. */
void agent_lines_check(struct agent_lines *l);

/* The worker that was killed for a line, and that line as a sentence. -1: none was in this generation. */
int agent_lines_worker(const struct agent_lines *l, const char **ret_cause);

/* Workers are started: none of them was killed. */
void agent_lines_forget(struct agent_lines *l);
