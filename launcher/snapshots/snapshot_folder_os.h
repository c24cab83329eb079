#pragma once

/*
 * Snapshots of all ranks in a folder on a file system that all nodes share. For threads: any disk may hang.
 *
 *   FOLDER/.step-N.J.G/   while the nodes write: the files of each rank's block, and an empty file .node-K for each node that is done
 *   FOLDER/step-N/        complete; N: step, J: instance of the job, G: generation
 *
 * The node that finds a mark of every node renames the folder: no message between nodes is needed, also at the end of a job. Files and
 * folders are synced before the mark and before the rename, so that a crash leaves a complete snapshot or none. Of the files named
 * ".metadata", equal in all blocks, rank 0's is kept. A name that is not a step's, and a folder in a step's folder, are never touched.
 */

#include <stdbool.h>
#include <stdint.h>

struct snapshot_folder {
    const char *folder;
    uint64_t step, instance;
    uint32_t generation;
    int32_t node, n_nodes;
};

/* Writes the files of a rank's block, a readable descriptor of content STATE_FILES. 0, -EBADMSG: another content, or -errno. */
int snapshot_folder_write(const struct snapshot_folder *f, int block_fd, uint32_t rank);

/* This node's ranks are written. 1: the snapshot is complete; 0: other nodes still write; -errno. Keeps the newest two snapshots. */
int snapshot_folder_finish(const struct snapshot_folder *f);
