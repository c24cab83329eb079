#pragma once

/*
 * The output of ranks on many hosts, as the front shows and keeps it: by the streams, prefixes, log files and output thread that
 * a single node uses (launcher/output), where the bytes of other hosts come from memory. With -r and -t the log file is
 * LOG_DIR/HOST/RUN_ID_RANDOM/attempt_N/LOCAL_RANK/. Error files of workers lie there, too, and stacks in attempt_N/stacks_K/, of each
 * host at most FRONT_FILES_MAX files and FRONT_FILES_SIZE bytes.
 *
 * Streams with -r alone have an output of their own: a disk that hangs makes their workers wait, while other streams and sentences
 * go on. With -t the console follows the log file, so a disk that hangs stops the console as on one node.
 *
 * Bytes are reported to `granted` when a file has them or few enough wait for the console. The channel's window bounds the bytes
 * kept: a console that stands still makes workers without log files wait, and the event loop never waits.
 *
 * Ways it goes wrong: log files cannot be made or written (reported once for each host; the streams concerned go on to the console,
 * behind what their files hold), a disk that hangs at the end (left behind one second after front_output_abandon(); the
 * process has to end by _exit() where front_output_is_left()), no memory (reported once for each host; bytes are dropped).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct channel_open;
struct channel_stream;
struct front_output;
struct job;

enum {
    FRONT_RANKS_MAX = 1 << 20, /* the bytes of higher ranks are dropped */
    FRONT_FILES_MAX = 4096,
    FRONT_FILES_SIZE = 256 << 20,
};

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

/* A stream of standard output or standard error, or of a file; stream->data, first NULL, is for this module. A log file is made at once, and a stream
 * without a log file costs nothing before its first byte. */
void front_output_open(struct front_output *o, unsigned host, struct channel_stream *stream);
void front_output_data(struct front_output *o, unsigned host, struct channel_stream *stream,
                       const uint8_t *bytes, size_t n);
void front_output_close(struct front_output *o, struct channel_stream *stream);

/* Whether a log file alone gets the stream. */
bool front_output_hides(const struct front_output *o, const struct channel_open *open);

/* The log folder, where known; NULL: a temporary folder, not made yet. Valid as long as the output. */
const char *front_output_logs(const struct front_output *o);

/* Whole lines, on stderr, behind the bytes of all streams that were closed before. False: the output has ended,
 * and the caller may write to stderr. */
bool front_output_say(struct front_output *o, const char *sentence);

/* A signal ends the job: see output_hurry(). */
void front_output_hurry(struct front_output *o);

/* Closes all streams, ends when files and console have everything, and names the folder of log files as on one node. Nothing else
 * follows but front_output_say() and front_output_abandon(). */
void front_output_end(struct front_output *o, int exit_code);

/* Ends now: what the console has not taken is dropped, except sentences. Files get a second. */
void front_output_abandon(struct front_output *o);

/* A thread waits for a disk, and uses memory until the process ends. */
bool front_output_is_left(const struct front_output *o);

/* After on_end, when the loop has run dry, unless front_output_is_left(). NULL is fine. */
void front_output_destroy(struct front_output *o);
