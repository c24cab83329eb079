#pragma once

/*
 * Whether the host of the crund that leads is lost: a pure decision of a follower, which has one connection to the leader and
 * sends a ping on it each LEADER_TICK_MS, when the one before was answered.
 *
 *     ticks       0     1    2      3              4    5    6
 *     connection  ping              another one                the leader is lost
 *     etcd                     answers                           answers
 *
 * The leader is lost when it has answered nothing for SILENT_TICKS on each of two connections in a row, and when this host is not
 * the one that is cut off: etcd has answered before the last connection was opened, during the silence, and
 * has answered again since. So a follower that was cut off, and whose host is connected again, asks the leader once
 * more before it takes its place: etcd may answer before the leader's answer is there. Where etcd has to elect a leader of its own
 * (that was on the lost host, too) and answers only later than that, a new connection is opened at its first answer, and the
 * leader has one tick, and until the next answer, to show that it is there.
 *
 * Ticks are counted, and not time: sockets are read between two of them, so a process that was stopped does not take its own
 * absence for silence of the leader.
 *
 * Failure: none. A leader that is slow is deposed by mistake when it answers nothing for 1.2 s.
 */

#include <stdbool.h>
#include <stdint.h>

enum {
    LEADER_TICK_MS = 200,
    SILENT_TICKS =
        3, /* on a connection, until another one is opened; one more where etcd has answered before it */
    LOST_TICKS = 2 * SILENT_TICKS,
    LEADER_PAUSE_MIN_MS = 5
};

enum leader_step {
    LEADER_STEP_NONE,
    LEADER_STEP_PING,   /* on the connection that is there */
    LEADER_STEP_REOPEN, /* close it, and open another one */
    LEADER_STEP_REPLACE /* the leader is lost */
};

struct leader_silence {
    bool is_answered;                       /* the last ping */
    unsigned n_silent, n_silent_connection; /* ticks: in all, and on the connection that is there */
    bool has_etcd_answered,
        is_sound; /* etcd: during the silence, on this connection; before this connection */
    unsigned
        n_closed; /* connections in a row that the other end has closed before they had answered at a tick */
};

/* A connection is opened: to a leader that has not been watched before, or after REOPEN or the end of the one before. */
void leader_silence_begin(struct leader_silence *s);
void leader_silence_reopened(struct leader_silence *s);

/* The connection has ended, or was not opened; r: 0 or -errno. A connection that fails is a tick of silence, as where there is no route,
 * unless this process lacks what it needs for one. True: the kernel there refuses connections, so that its process has ended. */
bool leader_silence_ended(struct leader_silence *s, int r);

/*
 * How long to wait, after such an end, before the next connection is opened. A process that ends closes its sockets one after another:
 * the kernel may accept a connection once more after the one before it was closed. Another process may listen there 100 ms later. So the
 * pauses are short at first, and double.
 */
unsigned leader_silence_pause_ms(const struct leader_silence *s, int r);

/* The leader has sent something. */
void leader_silence_answered(struct leader_silence *s);

/* LEADER_TICK_MS have passed. */
enum leader_step leader_silence_tick(struct leader_silence *s);

/* etcd has answered a request. */
enum leader_step leader_silence_etcd_answered(struct leader_silence *s);
