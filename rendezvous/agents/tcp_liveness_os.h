#pragma once

/*
 * What a session wants of TCP: a few bytes four times a second, which have to get through a network that loses
 * some of its packets. Both ends of a session use it. None of it can fail in a way that matters: where the
 * kernel does not know an option, things are as they were without.
 *
 * Why: TCP delivers nothing until a lost packet has been sent again, which takes round trips. On lines of 200 ms that lose 5 % of their
 * packets, a healthy node was declared dead every minute. So the end that is about to declare its peer dead asks the kernel first. It
 * grants the slack of tcp_liveness_slack_ns() beyond the node timeout, and three node timeouts in all at most. An agent waits as long
 * while its data is acknowledged. On a quick network without losses nothing changes.
 */

#include <stdbool.h>
#include <stdint.h>

/* Packets that were lost again are sent again at steady intervals, not at ever longer ones. */
void tcp_liveness_tune(int fd);

/* The kernel ends the connection when the peer's kernel has acknowledged nothing for so long, also while nothing is sent, or when its
 * process has read nothing for so long and more is waiting than fits. So a host that is lost is noticed, and a process that is
 * stopped only when much is sent to it. */
void tcp_liveness_limit(int fd, unsigned silence_ms);

/* Extra silence to tolerate on this connection: four round trips, in which lost packets are sent again;
 * UINT64_MAX if the receive queue is not empty (data behind a lost segment, or not read yet). 0 where the
 * kernel does not report it. */
uint64_t tcp_liveness_slack_ns(int fd);

/* How long ago the peer's kernel has acknowledged something, in ms; UINT32_MAX if that is not known. It does so also for
 * words that its process cannot read yet, and for a process that is stopped. */
uint32_t tcp_liveness_acknowledged_ms(int fd);
