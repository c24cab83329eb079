#pragma once

/*
 * The folders and log files of one attempt, made by a thread: a disk that hangs holds the start of the workers up, and
 * nothing else. The loop goes on meanwhile, and a start that is not wanted any more is cancelled.
 */

#include <stdbool.h>
#include <uv.h>

struct attempt_request;
struct job;
struct logs;
struct output_stream;

/* What one worker gets. */
struct worker_files {
    int stdio[3];                     /* descriptors to start it with; -1: crun's own */
    struct output_stream *streams[2]; /* what the console shows of them; NULL: nothing */
};

struct attempt_files {
    char *dir;    /* malloc'ed; NULL: no files; see logs_begin_attempt() */
    bool is_flat; /* see struct logs */
    int n_workers;
    struct worker_files *workers; /* takers set what they took to -1 or NULL */
};

struct attempt_files_config {
    uv_loop_t *loop;
    const struct job *job;
    char *const *environment;
    struct logs *logs; /* its folders are set when the first request has made them */
};

/*
 * Begins to make the files of this attempt for the workers that are selected (NULL: for all). rank_base: the rank of the
 * first one in the whole job, for prefixes. on_ready is called once,
 * from the loop, unless the request is cancelled: with 0 and files that the caller takes from, or with -errno after the
 * failure was logged, and NULL. The files are freed after it. Returns 0, or -errno with the failure logged.
 */
int attempt_files_begin(struct attempt_request **ret, const struct attempt_files_config *config, int attempt,
                        int rank_base, const bool *selected,
                        void (*on_ready)(void *data, int r, struct attempt_files *files), void *data);

/* The thread removes what it makes from now on; the process has to end by _exit() while side_thread_is_hung(). */
void attempt_files_cancel(struct attempt_request *request);
