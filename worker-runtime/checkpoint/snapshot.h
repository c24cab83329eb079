#pragma once

/*
 * What the two halves of snapshots (snapshot_write_os.c, snapshot_read_os.c) and their tests know beyond
 * crw.h.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/checkpoint/snapshot_file_os.h"

/* As crw_snapshots_create(), with other system calls. io must outlive the object. */
int snapshots_create(const char *folder, int keep, const struct snapshot_io *io, struct crw_snapshots **ret);

/*
 * Reads and checks the snapshot of a step. Results of crw_snapshot_open(); CRW_E_DAMAGED, too, where the file holds another
 * step. keeps: the tensors are wanted; else 64 KiB of the file are in memory at a time.
 */
int snapshot_load(int folder_fd, const char *folder, uint64_t step, bool keeps, struct crw_snapshot **ret);
