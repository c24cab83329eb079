#pragma once

/*
 * Text of jobs for a terminal or a pipe: one block for each job, with a line for each worker. Texts from the network and from
 * file names are made printable. Pure.
 */

#include <stddef.h>
#include <stdint.h>

struct job_status;
struct worker_status;

/* Malloc'ed lines, NULL without memory. width: columns that lines are cut to, 0: not cut; now_s: since 1970. */
char *status_text(const struct job_status *jobs, size_t n_jobs, int width, int64_t now_s);

/* "59 s", "12:05", "3:12:05", "2 d 3:12:05". */
void status_format_duration(int64_t seconds, char out[32]);

/* "70 GiB", "1.5 GiB", "12 MiB". */
void status_format_memory(int64_t kib, char out[24]);

/* "running", "failed (SIGKILL)", "failed (exit code 3)". */
void status_format_end(const struct worker_status *w, char out[64]);

/* "-" before ranks are assigned. */
void status_format_rank(int32_t rank, char out[16]);
