#pragma once

/*
 * The output of ranks on many hosts, as the front shows and keeps it: by the streams, prefixes, log files and output thread that
 * a single node uses (launcher/output).
 *
 *   -r, -t   a side thread makes LOG_DIR/HOST/RUN_ID_RANDOM/attempt_N/LOCAL_RANK/ and appends the stream's bytes to the log file there;
 *            with -t the output thread follows the file
 *   else     a pipe to the output thread, which shows whole lines without prefix
 *
 * Bytes are kept until the file or the pipe has taken them, and reported to `granted` then. The channel's window bounds the bytes
 * kept: a console that stands still makes workers without log files wait, a disk that hangs makes workers with log files wait,
 * and the event loop never waits. A stream costs nothing before front_output_open().
 *
 * Ways it goes wrong: log files cannot be made or written (reported once for each host; the streams concerned go on to the console,
 * behind what their files hold), a disk that hangs at the end (left behind one second after front_output_abandon(); the
 * process has to end by _exit() while side_thread_is_any_hung()), no memory or descriptors (reported once for each host; the
 * bytes of the stream are dropped).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct channel_open;
struct front_output;
struct job;

enum { FRONT_RANKS_MAX = 1 << 20 }; /* the bytes of higher ranks are dropped */

struct front_output_config {
    /* Settings of output: redirects, tees, listed, filters, fold_output, line_prefix, role, log_dir, worker_run_id. n_workers bounds
     * the local ranks of each host; JOB_WORKERS_MAX where hosts decide. */
    const struct job *job;
    char *const *environment;
    const char *const *hosts; /* n_hosts names, for prefixes and folders */
    unsigned n_hosts;
    int n_ranks; /* of the whole job, for --fold-output: equal lines of all are shown at once; 0: not known */
    /* n further bytes of the stream were consumed. Also called from within front_output_data(). */
    void (*granted)(void *data, unsigned host, uint32_t stream, size_t n);
    void (*on_end)(void *data); /* everything is closed after front_output_end() or front_output_abandon() */
    void *data;
};

/* Borrows what config points to. Returns 0 or -errno. */
int front_output_create(struct front_output **ret, uv_loop_t *loop, const struct front_output_config *config);

/* A new stream of standard output or standard error. */
void front_output_open(struct front_output *o, unsigned host, uint32_t stream,
                       const struct channel_open *open);
void front_output_data(struct front_output *o, unsigned host, uint32_t stream, const uint8_t *bytes,
                       size_t n);
void front_output_close(struct front_output *o, unsigned host, uint32_t stream);

/* The channel of the host has ended: all its streams. */
void front_output_close_host(struct front_output *o, unsigned host);

/* Whole lines, on stderr: behind the bytes of all streams that were closed before, unless those take more than a second. */
void front_output_say(struct front_output *o, const char *sentence);

/* A signal ends the job. From now on the bytes of a pipe that the console has not taken for a second are dropped, and
 * front_output_end() waits for a second at most. */
void front_output_hurry(struct front_output *o);

/* Closes all streams, and ends when files and console have everything. Nothing else follows but front_output_say() and
 * front_output_abandon(). */
void front_output_end(struct front_output *o);

/* Ends now: what the console has not taken is dropped, except sentences. Files get a second. */
void front_output_abandon(struct front_output *o);

/* After on_end, when the loop has run dry. NULL is fine. */
void front_output_destroy(struct front_output *o);
