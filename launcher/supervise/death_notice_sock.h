#pragma once

/*
 * The death notice of a crun that was killed, sent by its guardian: crun and its workers have ended. The rendezvous then
 * need not wait for the node timeout.
 *
 * crun prepares it before it forks the guardian, which neither allocates nor resolves names. The notice is in the clear, also in a job
 * with a secret: the guardian cannot take part in a handshake. The node's nonce, known from inside the session alone, proves its origin.
 *
 * Why not the end of crun's connection: a proxy or a stateful firewall ends connections, too. The agent then dials again, for which a
 * lost SYN takes the kernel a second. Where the guardian dies with crun (the machine, or a whole cgroup), the node timeout decides.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct session_hello;

struct death_notice {
    struct sockaddr_storage to;
    socklen_t to_size;
    uint8_t bytes[2112]; /* the greeting, then the rest of the conversation */
    size_t greeting_size, size;
};

/* Prepares the notice of the agent with this hello, for the address that it is connected to. False: it does not fit. */
bool death_notice_prepare(struct death_notice *w, const struct session_hello *hello,
                          const struct sockaddr *to, socklen_t to_size);

/* Sends it, or gives up after some seconds: the node timeout has passed by then. */
void death_notice_send(const struct death_notice *w);
