#pragma once

/*
 * The output thread: shows the lines of streams (output_stream_os.h) and the sentences of crun on the console. The
 * thread owns everything a disk can hold up, so a file system that hangs never stops the event loop.
 *
 * All functions are for the one thread that created the pump.
 */

#include <stdbool.h>

#include "launcher/cli/line_rules.h"
#include <stdint.h>

enum { LINE_MATCHES_MAX = 32 };

/* A line that matches a rule of the job. */
struct line_match {
    int local_rank, rule;
    bool
        is_of_ended; /* its generation was over when the line was read, or another worker had taken its place */
    char line[LINE_QUOTE_SIZE];
};

struct output_pump;
struct output_report;
struct output_stream;

/* Opens the consoles and starts the thread. on_news is called from that thread when output_pump_next_match() or output_pump_next_report()
 * has something, output_pump_has_looked() becomes true, or output_pump_join() is possible. Without console the thread only writes log
 * files of other hosts. Returns 0 or -errno. */
int output_pump_create(struct output_pump **ret, bool has_console, void (*on_news)(void *data), void *data);

/* False: no match waits. Matches beyond LINE_MATCHES_MAX are dropped. */
bool output_pump_next_match(struct output_pump *p, struct line_match *ret);

/* Asks for a look at everything workers have written so far. Returns a number for output_pump_has_looked(). The look does not wait
 * for a console without room. */
uint64_t output_pump_look(struct output_pump *p);
bool output_pump_has_looked(struct output_pump *p, uint64_t number);

/* Bytes of workers that this process has taken for the console so far. For any thread. */
uint64_t output_pump_bytes(void);

/* Takes over the stream, behind all that was added before. */
void output_pump_add(struct output_pump *p, struct output_stream *s);

/* As output_pump_add() for a sentence, which the console has on return unless it is slow or the thread is stuck. False: the thread shows
 * nothing more, and the sentence is the caller's. */
bool output_pump_say(struct output_pump *p, struct output_stream *sentence);

/* See output_feed(), output_close() and output_hurry(). */
int output_pump_feed(struct output_pump *p, struct output_stream *s, const void *bytes, size_t n);
void output_pump_close(struct output_pump *p, struct output_stream *s);
void output_pump_hurry(struct output_pump *p);

/* False: there is none. */
bool output_pump_next_report(struct output_pump *p, struct output_report *ret);

/* Nothing is added to the streams of this node added so far. */
void output_pump_flush(struct output_pump *p);

/* The thread ends when the console has taken everything, or, with abandon, crun's sentences only. */
void output_pump_end(struct output_pump *p, bool abandon);

/* Frees the pump if the thread has ended. False: it has not. */
bool output_pump_join(struct output_pump *p);

/* Leaves the thread behind, which waits for a disk: writes the sentences that it has not taken itself. on_news is not
 * called any more. The pump is not freed: the process is about to end. */
void output_pump_leave(struct output_pump *p);
