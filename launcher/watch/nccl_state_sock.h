#pragma once

/* What NCCL and PyTorch know of a hang themselves, where they were asked to. Neither is required. */

/* Makes PyTorch's flight recorder write its trace: a byte into the pipe of each rank (TORCH_NCCL_DEBUG_INFO_PIPE_FILE). */
void nccl_state_trigger(char *const *environment, int rank_base, int n_workers);

/* Writes the answer of NCCL's RAS service (NCCL_RAS_ADDR, else port 28028 of this host) to folder/nccl_ras.txt; no file
 * when there is none. Waits 2 s at most. */
void nccl_state_write(char *const *environment, const char *folder);
