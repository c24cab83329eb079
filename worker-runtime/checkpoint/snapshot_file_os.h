#pragma once

/*
 * Snapshots as files of one folder: writing one so that it survives a crash at any point, reading one,
 * listing them. The system calls that change the folder go through a table, so that a test can let each of
 * them fail, be cut short, or be the last thing that the process does.
 *
 * Failures are reported by crw_fail(); `folder` is only for those sentences, the work is done on folder_fd.
 */

#include "worker-runtime/base/run_identity.h"
#include "worker-runtime/checkpoint/snapshot_plan.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Each returns 0 or more, or a negative errno. */
struct snapshot_io {
    int (*create)(void *data, int folder_fd, const char *name); /* fails when it exists; an fd */
    int (*reserve)(void *data, int fd, uint64_t n_bytes);
    ssize_t (*write)(void *data, int fd, const void *bytes, size_t n_bytes);
    int (*sync)(void *data, int fd); /* of a file or of the folder */
    int (*close)(void *data, int fd);
    int (*rename)(void *data, int folder_fd, const char *from, const char *to);
    int (*remove)(void *data, int folder_fd, const char *name);
    void *data;
    unsigned retry_ms; /* before a failed save is tried again, and longer each time; 0: it is not */
    unsigned end_ms;   /* longest wait of crw_snapshots_destroy() */
};

/* The system itself. */
extern const struct snapshot_io snapshot_io_system;

/* Opens a folder, making it and those above it when missing. Its fd or -errno. */
int snapshot_folder_create(const char *folder);

enum {
    SNAPSHOT_E_TAKEN = -10001
}; /* another run or a later generation saves there: no error of the system */

/*
 * Keeps other runs from saving to the same folder for as long as this descriptor is open; the kernel drops
 * the lock with the process, however it ends. Where the fence names this writer's run and an earlier
 * generation, the lock is a lost process's: the writer goes on without it. Else the call waits until the
 * lock is free, a few seconds at most. 0, SNAPSHOT_E_TAKEN, or -errno of reading the fence.
 */
int snapshot_folder_lock(int folder_fd, const char *folder, const struct run_identity *writer);

/* Proves that files can be made here. Changes nothing for those that save there. 0 or -errno. */
int snapshot_folder_probe(const struct snapshot_io *io, int folder_fd, const char *folder);

/* Snapshots by name, newest first, nothing known of their content; free() the array. 0 or -errno. */
int snapshot_folder_list(int folder_fd, const char *folder, struct snapshot_entry **ret, size_t *ret_n);

enum snapshot_claim {
    SNAPSHOT_LOOK,  /* may this writer claim the folder? Nothing is written */
    SNAPSHOT_CLAIM, /* before its first save */
    SNAPSHOT_PASS,  /* the folder is claimed, and a file is to get its name */
};

/*
 * The fence of the folder (snapshot_fence.h), for this writer. A writer without an instance passes where there is no fence, and
 * gets an instance of its own where there is one. 0, SNAPSHOT_E_TAKEN, or -errno of reading or writing it.
 */
int snapshot_folder_pass_fence(const struct snapshot_io *io, int folder_fd, const char *folder,
                               struct run_identity *writer, enum snapshot_claim claim);

/* What was in the folder when this writer opened it. */
struct snapshot_sight {
    struct run_identity owner; /* of the fence */
    struct snapshot_entry *entries;
    size_t n_entries;
};

/* free() the entries. 0 or -errno. */
int snapshot_folder_see(int folder_fd, const char *folder, struct snapshot_sight *ret);

/*
 * Before the first save: takes lock and fence, and removes what unfinished writers left. A program that
 * opens a folder and saves nothing thus harms no run that does. Another run that has begun to save since
 * `seen` keeps the folder, also when that run has ended. As the two above.
 */
int snapshot_folder_claim(const struct snapshot_io *io, int folder_fd, const char *folder,
                          const struct snapshot_sight *seen, struct run_identity *writer);

/* Asked when a file is whole, before it gets its name: 0, or -errno with a sentence. */
struct snapshot_gate {
    int (*pass)(void *data);
    void *data;
};

/*
 * Writes a file so that `name` holds either what it held before or all of the bytes, whatever happens.
 * what: its name in sentences. gate: NULL: none. 0: it is on disk for good. -errno: it is not known to be.
 */
int snapshot_file_replace(const struct snapshot_io *io, int folder_fd, const char *what,
                          const char *temporary, const char *name, const void *bytes, size_t n_bytes,
                          const struct snapshot_gate *gate);

/*
 * Writes a sealed image under the name of its step. 0: it is on disk for good. -errno: it is not known to
 * be; what was there under that name before is there still, or the new one is.
 */
int snapshot_file_write(const struct snapshot_io *io, int folder_fd, const char *folder, uint64_t step,
                        const void *bytes, size_t n_bytes, const struct snapshot_gate *gate);

/* Opens a regular file and returns its length. 0, CRW_E_NOT_FOUND, CRW_E_DAMAGED (it is no file), -errno. */
int snapshot_file_open(int folder_fd, const char *name, const char *path, int *ret_fd, uint64_t *ret_size);

/* Reads n_bytes of it from `at` on. Their number, smaller when the file ends before; or -errno. */
ssize_t snapshot_file_read(int fd, void *to, size_t n_bytes, uint64_t at);
