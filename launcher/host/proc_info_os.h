#pragma once

/* Facts about processes and the machine that messages and reports quote, from /proc and the kernel. */

#include <stddef.h>

/* What the kernel does with core dumps: /proc/sys/kernel/core_pattern. "" when unknown. */
void proc_info_core_pattern(char *out, size_t out_size);

/* The host's own name; "" when unknown. */
void proc_info_host_name(char *out, size_t out_size);

/* "process 4711 (bash)", with " of user 1000" behind it for a process of another user. */
void proc_info_sender(int pid, unsigned user, char *out, size_t out_size);

/* "process 4711 (local rank 0) does not end on SIGKILL: state D, in nfs_wait". local_rank: -1 for a process that is no
 * worker, which has its name there. */
void proc_info_stuck(int pid, int local_rank, char *out, size_t out_size);
