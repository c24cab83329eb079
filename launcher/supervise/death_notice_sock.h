#pragma once

/*
 * The last word of a crun that was killed, said by its guardian: that it is gone, and its workers with it.
 * The rendezvous then need not wait for its silence to last.
 *
 * crun writes it down before it forks the guardian, which neither allocates nor looks anything up.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct session_hello;

struct death_notice {
    struct sockaddr_storage to;
    socklen_t to_size;
    uint8_t greeting[64], words[2048];
    size_t greeting_size, words_size;
};

/* Of the agent with this hello, to where it is connected. False: there is none. */
bool death_notice_write(struct death_notice *w, const struct session_hello *hello, const struct sockaddr *to,
                        socklen_t to_size);

/* Says it, or gives up after some seconds: silence has told the same by then. */
void death_notice_say(const struct death_notice *w);
