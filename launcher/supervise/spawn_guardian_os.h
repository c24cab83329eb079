#pragma once

/* Forking the guardian (guardian_os.h) of a generation. For crun. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct death_notice;
struct logs;
struct spawn_worker;

/*
 * Forks a guardian that starts the workers; with a zygote (else NULL) it waits for orders to start n_workers instead,
 * generation after generation, and workers is not used. If crun is killed, the guardian sends the death notice (NULL: none) and
 * removes empty folders of the logs (NULL: none). Returns 0 with the guardian's process id and crun's end of the link to
 * it (see guardian_os.h; non-blocking, close-on-exec), or -errno. The caller may close the workers' descriptors
 * afterwards.
 */
int spawn_guardian(const struct spawn_worker *workers, size_t n_workers, const struct spawn_worker *zygote,
                   const struct death_notice *death_notice, const struct logs *logs, uint32_t grace_ms,
                   pid_t *ret_pid, int *ret_link);
