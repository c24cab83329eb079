#pragma once

/*
 * TCP between ranks: how its sockets are made and waited for. Sockets here are non-blocking, without
 * Nagle delay, and probe an idle peer's host: one that has not answered for NET_SILENCE_MS ends the
 * connection.
 *
 * Data that the peer's kernel does not take is limited by net_limit_silence() only, and only on control
 * connections. TCP_USER_TIMEOUT also counts the time for which the peer's receive window is closed,
 * although its kernel acknowledges every window probe: on a connection that carries data it would end
 * the job of a rank that reads later than that (it computes, writes a checkpoint, is stopped by a
 * debugger or migrated). A control connection carries a few records, and the net's thread reads them, so
 * its window never closes; its end frees the ranks that wait on the other connections.
 */

#include "worker-runtime/net/net_frame.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { NET_SILENCE_MS = 10000 };

/* Results beside 0 and -errno; none has a message yet. */
enum {
    NET_E_LOST = 1,    /* the other end closed, or is silent */
    NET_E_INTERRUPTED, /* the interrupt is readable */
    NET_E_TIMEOUT,     /* nothing moved for that long */
    NET_E_LEFT,        /* net_connect_once() only: the rank has left the group */
    NET_E_DIFFERS,     /* the same: one of the two ranks encrypts, the other does not */
};

/* What a wait looks at beside its sockets. */
struct net_wait {
    int interrupt_fd; /* readable: leave; -1: none */
    int timeout_ms;   /* for each wait: something has to move within it */
};

/* address: numeric; a port is chosen. 0, -EINVAL (no address), -errno. */
int net_listen(const char *address, int *ret_fd, uint16_t *ret_port);

/* One attempt to connect to a numeric address. 0, NET_E_INTERRUPTED, -errno (of the attempt, too: -ECONNREFUSED, -ETIMEDOUT). */
int net_dial(const char *address, uint16_t port, const struct net_wait *wait, int *ret_fd);

/* The options that every socket of ours has. */
void net_tune(int fd);
/* Ends the connection when data has not been acknowledged for NET_SILENCE_MS (on), or removes that limit. */
void net_limit_silence(int fd, bool on);

/* This end's own address, as others can reach it if they can reach the other end's network. 0 or -errno. */
int net_own_address(int fd, char address[NET_ADDRESS_SIZE]);

/* Bytes that went (or came) without waiting; 0: none now. NET_E_LOST is -EPIPE here; other -errno. */
ssize_t net_send(int fd, const void *data, size_t n_bytes);
ssize_t net_send_message(int fd, const struct msghdr *message);
ssize_t net_receive(int fd, void *data, size_t n_bytes);

/* -errno of a connection, or of an attempt to connect, whose other end has not answered, with the network as the reason: it has
 * neither closed, reset nor refused it. */
bool net_is_unreachable(ssize_t negative_errno);

enum { NET_POLL_MAX = 128 };

/* Until one of fds (events 0: not looked at; NET_POLL_MAX at most) is ready. NULL is no list. Results as above. */
int net_poll(const struct net_wait *wait, struct pollfd *fds, int n_fds);

/* What an errno of a socket means: a result of this file. */
int net_result(ssize_t negative_errno);
