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
struct output_stream;

struct line_match;

struct output_callbacks {
    void (*on_match)(void *lines,
                     const struct line_match *match); /* a line that one of the job's rules is about */
    void (*on_looked)(void *lines);                   /* see output_look() */
    void *lines;
    void (*on_end)(void *data); /* everything is closed after output_end() or output_abandon() */
    void *data;
};

/* Returns 0 or -errno; the thread starts with the first stream or sentence. */
int output_create(struct output **ret, uv_loop_t *loop, const struct output_callbacks *callbacks);

/* Looks at all that workers have written so far; on_looked follows, behind the lines that were found by it. A further call
 * before that starts another look in place of the first. False: there is no output, and on_looked does not follow. */
bool output_look(struct output *o);

/* Shows a stream of a worker, behind all that was added before; *stream is NULL afterwards. Returns 0, or -errno: then the
 * stream is still the caller's. */
int output_add(struct output *o, struct output_stream **stream);

/* As output_flush() for a single stream of another host, which output_add() took and the output thread frees. */
void output_close(struct output *o, struct output_stream *stream);

/* No process of the generation is left: what it wrote is shown to its end, and sentences queued from now on behind it. */
void output_flush(struct output *o);

/*
 * Sentences of crun (whole lines), on stderr: behind what finished generations wrote there, before what later ones
 * write. False when they could not be queued.
 */
bool output_say(struct output *o, const char *text);

/* The job is over: ends when the console has taken the rest. */
void output_end(struct output *o);

/* Ends now: what the console has not taken is dropped (it is in the log files), except crun's sentences, which get a
 * fraction of a second. A thread that waits for a disk is left behind after one second. */
void output_abandon(struct output *o);

/* After the loop has run dry. NULL is fine. */
void output_destroy(struct output *o);
