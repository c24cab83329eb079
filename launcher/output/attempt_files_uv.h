#pragma once

/*
 * The folders and log files of one attempt, made by a thread: a disk that hangs holds the start of the workers up, and
 * nothing else. The loop goes on meanwhile, and an unwanted start is cancelled.
 */

#include <stdbool.h>
#include <uv.h>

struct attempt_request;
struct job;
struct logs;
struct output_stream;

/* The files of one worker. */
struct worker_files {
    int stdio[3];                     /* descriptors of the worker; -1: crun's own */
    struct output_stream *streams[2]; /* parts for the console; NULL: none */
};

struct attempt_files {
    char *dir;    /* malloc'ed; NULL: no files; see logs_begin_attempt() */
    bool is_flat; /* see struct logs */
    int n_workers;
    struct worker_files *workers; /* a taker sets a member to -1 or NULL */
};

struct attempt_files_config {
    uv_loop_t *loop;
    const struct job *job;
    char *const *environment;
    struct logs *logs; /* gets the folders made by the first request */
};

/*
 * Begins to make the files of this attempt for the selected workers (NULL: for all). rank_base: the rank of the
 * first worker in the whole job, for prefixes. on_ready is called once,
 * from the loop, unless the request is cancelled: with 0 and files to take from, or with -errno after the
 * failure was logged, and NULL. The rest of the files is freed behind on_ready. Returns 0, or -errno with the failure logged.
 */
int attempt_files_begin(struct attempt_request **ret, const struct attempt_files_config *config, int attempt,
                        int rank_base, const bool *selected,
                        void (*on_ready)(void *data, int r, struct attempt_files *files), void *data);

/* Late files are removed by the thread; the process has to end by _exit() while side_thread_is_any_hung(). */
void attempt_files_cancel(struct attempt_request *request);
