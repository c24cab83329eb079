#pragma once

/*
 * When a crund that follows connects to the leader again for replicas of keys. Pure.
 *
 * The connection stays as long as the leader does, so one that ends early was refused: the leader decodes another version of the stream,
 * or has another key. That does not change by itself, and each attempt costs both a TLS handshake: the pause grows with each refusal in a row. A
 * leader that is not reached, as it has just been started again, is tried at the shortest pause, and so is one that has served.
 */

#include <stdbool.h>
#include <stdint.h>

enum {
    REPLICA_REDIAL_MIN_MS = 200,
    REPLICA_REDIAL_MAX_MS = 10000,
    REPLICA_REDIAL_STEADY_MS = 10000, /* a connection that lasted so long was not refused */
    /* A leader that ends closes connections once or twice that have just been made. */
    REPLICA_REDIAL_LOGGED = 3
};

struct replica_redial {
    unsigned n_refused; /* in a row */
    uint64_t due_ms;    /* not before */
};

/* A connection to the leader that has ended. */
struct replica_attempt {
    bool is_connected; /* the leader's kernel has accepted it */
    bool has_served;   /* the leader has sent a message that was decoded */
    bool is_broken;    /* one that was not */
    uint64_t lasted_ms;
};

/* True: the leader refuses this crund, which is to be logged; once in a row of refusals. */
bool replica_redial_ended(struct replica_redial *r, const struct replica_attempt *attempt, uint64_t now_ms);

/* Another leader: it is tried at once. */
void replica_redial_reset(struct replica_redial *r);
