#pragma once

/*
 * What the two halves of snapshots (snapshot_write.c, snapshot_read.c) and their tests know beyond crw.h.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/snapshot_file.h"

/* As crw_snapshots_create(), with other system calls. io must outlive the object. */
int snapshots_create(const char *folder, int keep, const struct snapshot_io *io, struct crw_snapshots **ret);

/* Reads and checks one file of a folder; path is only for sentences. Results of crw_snapshot_open(). */
int snapshot_load(int folder_fd, const char *name, const char *path, struct crw_snapshot **ret);
