#pragma once

/*
 * The answer of NCCL's RAS service to "verbose status" as JSON (NCCL 2.28.7 and later): the rank for which other ranks of a
 * communicator wait. Pure; takes any bytes.
 *
 * First suspect is a rank without an answer to RAS, then a rank with fewer or other collectives than most ranks with the highest
 * number. A process that waits in another communicator comes last, since the process is late for a reason.
 *
 * NCCL 2.28.7 and 2.28.9 leave out a comma in the objects of `missing_ranks`. The comma is added.
 */

#include <stddef.h>

#include "launcher/watch/hang_report.h"

struct buf;
struct stack_job;

/* jobs: processes of the own job on this host. Two jobs of a user share NCCL's port, and an answer without such a process gives no line.
 * json: the answer from its first brace on, as valid JSON. line: for the report on a hang, with its newline; "": no rank is suspect.
 * 0, -EBADMSG (no JSON, broken or too large) or -ENOMEM; then both are empty. */
int nccl_ras_read(const char *text, size_t n_bytes, const struct stack_job *jobs, size_t n_jobs,
                  struct buf *json, char line[HANG_NCCL_SIZE]);
