#pragma once

/*
 * What workers print, where crun has a part in it: -r (into files), -t (into files and, with prefixes, to the console),
 * filters; and the sentences of crun itself, in their order among that.
 *
 * A worker writes its log file itself, so neither a slow terminal nor a crun that is stopped holds it up, and an error of
 * the disk is its own. The console is written by a thread that follows the files (output_pump_os.h): a disk that hangs
 * does not stop the event loop.
 */

#include <stdbool.h>
#include <uv.h>

struct output;
struct output_report;
struct output_stream;

struct line_match;

struct output_callbacks {
    void (*on_match)(void *lines, const struct line_match *match); /* a line that matches a rule of the job */
    void (*on_looked)(void *lines);                                /* see output_look() */
    void *lines;
    void (*on_report)(void *data, const struct output_report *report); /* or NULL: no stream of other hosts */
    void (*on_end)(void *data); /* everything is closed after output_end() or output_abandon() */
    void *data;
};

/* Returns 0 or -errno; the thread starts with the first stream or sentence. Without console the output is for log files of other
 * hosts alone. */
int output_create(struct output **ret, uv_loop_t *loop, bool has_console,
                  const struct output_callbacks *callbacks);

/* Looks at everything workers have written so far; on_looked follows, behind the matching lines. A further call before on_looked
 * starts another look in place of the first. False: no output exists, and on_looked does not follow. */
bool output_look(struct output *o);

/* Shows a stream of a worker, behind everything added before; *stream is NULL afterwards. Returns 0, or -errno: then the
 * stream is still the caller's. */
int output_add(struct output *o, struct output_stream **stream);

/* Gives bytes to a stream of another host, after output_add(). Bounded by the caller, by means of on_report. 0, -ENOMEM, or -EPIPE:
 * no output has the stream. */
int output_feed(struct output_stream *s, const void *bytes, size_t n);

/* Nothing follows in the stream of another host, which the output frees. */
void output_close(struct output_stream *s);

/* For a report's `rest` without another output. Returns the number of bytes that may be given again: output_feed() refuses them. */
size_t output_drop(struct output_stream *s);

/* A signal ends the job. From now on bytes for a console that takes nothing for a second are dropped, and output_end()
 * becomes output_abandon() after a second. */
void output_hurry(struct output *o);

/* By output_abandon(), or by output_hurry() and output_end(). */
bool output_is_abandoned(const struct output *o);

/* A thread was left behind by output_abandon(), and uses memory until the process ends. */
bool output_is_left(const struct output *o);

/* No process of the generation is left: its output is shown to the end, and sentences queued from now on behind the output. */
void output_flush(struct output *o);

/*
 * Sentences of crun (whole lines), on stderr: behind the output of finished generations there, before the output
 * of later ones. False: the sentences were not queued.
 */
bool output_say(struct output *o, const char *text);

/* The job is over: ends when the console has taken the rest. */
void output_end(struct output *o);

/* Ends now: what the console has not taken is dropped (it is in the log files), except crun's sentences, which get a
 * fraction of a second. A thread that waits for a disk is left behind after one second. */
void output_abandon(struct output *o);

/* After the loop has run dry. NULL is fine. */
void output_destroy(struct output *o);
