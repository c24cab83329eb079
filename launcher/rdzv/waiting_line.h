#pragma once

/*
 * The line that a node shows while it waits for others: how many are there, their names, the job, the endpoint, what is
 * missing, the time that is left. On a terminal it is redrawn in place at each view; elsewhere it is printed when
 * something but the time has changed, and else after pauses that double up to a minute. Pure.
 */

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/session/session_message.h"

enum { WAITING_TEXT_SIZE = 1024, WAITING_HINTS = 3 };

struct waiting_facts {
    const char *job, *endpoint;
    uint32_t n_ready, min_nodes, max_nodes;
    uint32_t missing[SESSION_MISSING_MAX], n_missing; /* node ranks */
    const struct session_waiting *more;               /* NULL: not known */
    bool standby;                                     /* the job runs without this node */
    bool is_loopback;                                 /* the endpoint leads each machine to itself */
};

/* Zeroed before the first use, and by waiting_begin(). */
struct waiting_line {
    char shown[WAITING_TEXT_SIZE];  /* the last line without its time */
    uint64_t hinted[WAITING_HINTS]; /* digests of the hints that were printed */
    uint64_t due_ms;                /* an unchanged line is printed then */
    uint32_t pause_ms;
};

/* A wait begins. Hints that were printed are not printed again. */
void waiting_begin(struct waiting_line *w);

/* Whether a line, composed without its time, is to be printed now; remembers it then. On a terminal always. */
bool waiting_is_due(struct waiting_line *w, const char *line, uint64_t now_ms, bool is_terminal);

/* Composes the line. False: nothing is to be printed now, which is never so on a terminal. */
bool waiting_next(struct waiting_line *w, const struct waiting_facts *facts, uint64_t now_ms,
                  bool is_terminal, char line[WAITING_TEXT_SIZE]);

/* A frequent reason for waiting in vain, as a sentence, once for each; false: none that is new. */
bool waiting_hint(struct waiting_line *w, const struct waiting_facts *facts, char line[WAITING_TEXT_SIZE]);
