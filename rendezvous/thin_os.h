#pragma once

/*
 * What a session wants of TCP: a few bytes four times a second, which have to get through a network that loses
 * some of its packets. Both ends of a session use it. None of it can fail in a way that matters: where the
 * kernel does not know an option, things are as they were without.
 */

#include <stdbool.h>
#include <stdint.h>

/* Packets that were lost again are sent again at steady intervals, not at ever longer ones. */
void thin_tune(int fd);

/* Something has come that cannot be read yet, as a packet before it was lost; or nobody has read it yet.
 * *ret_segments: how many segments with data have come so far, 0 if that is not known. */
bool thin_stirs(int fd, uint32_t *ret_segments);

/* How long ago the peer's kernel has acknowledged something, in ms; UINT32_MAX if that is not known. It does so also for
 * words that its process cannot read yet, and for a process that is stopped. */
uint32_t thin_acknowledged_ms(int fd);
