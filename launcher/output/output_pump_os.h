#pragma once

/*
 * The output thread: shows the lines of streams (output_stream_os.h) and the sentences of crun on the console. It owns
 * everything that can wait for a disk, so that a file system that hangs never stops the event loop.
 *
 * All functions are for the one thread that created the pump.
 */

#include <stdbool.h>
#include <stdint.h>

struct output_pump;
struct output_stream;

/* Opens the consoles and starts the thread. on_end is called from that thread when it is about to end, after
 * output_pump_end() or output_pump_abandon(). Returns 0 or -errno. */
int output_pump_create(struct output_pump **ret, void (*on_end)(void *data), void *data);

/* Bytes of workers that this process has taken for the console so far. For any thread. */
uint64_t output_pump_bytes(void);

/* Takes over the stream, behind all that was added before. */
void output_pump_add(struct output_pump *p, struct output_stream *s);

/* As output_pump_add() for a sentence, which the console has on return unless it is slow or the thread is stuck. */
void output_pump_say(struct output_pump *p, struct output_stream *sentence);

/* Nothing is added to the streams added so far. */
void output_pump_flush(struct output_pump *p);

/* The thread ends when the console has taken everything, or, with abandon, crun's sentences only. */
void output_pump_end(struct output_pump *p);
void output_pump_abandon(struct output_pump *p);

/* Waits for the thread, which has called on_end, and frees the pump. */
void output_pump_join(struct output_pump *p);

/* Leaves the thread behind, which waits for a disk: writes the sentences that it has not taken itself. on_end is not
 * called any more. The pump is not freed: the process is about to end. */
void output_pump_leave(struct output_pump *p);
