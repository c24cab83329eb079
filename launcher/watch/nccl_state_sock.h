#pragma once

#include "launcher/watch/nccl_ras_json.h"

/* What NCCL and PyTorch know of a hang themselves, where they were asked to. Neither is required. */

/* Makes PyTorch's flight recorder write its trace: a byte into the pipe of each rank (TORCH_NCCL_DEBUG_INFO_PIPE_FILE). */
void nccl_state_trigger(char *const *environment, int rank_base, int n_workers);

/* Asks NCCL's RAS service (NCCL_RAS_ADDR, else port 28028 of this host), for 2 s at most. The answers are in folder/nccl_ras.json and
 * nccl_ras.txt; no file where there is no answer, or folder is NULL. jobs, line: nccl_ras_json.h. */
void nccl_state_write(char *const *environment, const char *folder, const struct stack_job *jobs,
                      size_t n_jobs, char line[HANG_NCCL_SIZE]);
