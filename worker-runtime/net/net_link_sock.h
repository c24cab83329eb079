#pragma once

/*
 * A connection between ranks of different hosts, from its handshake on: a socket, and the encryption of the data where the
 * ranks have agreed on a cipher. One thread at a time sends on a link, one receives, and the two may differ.
 */

#include "worker-runtime/net/tcp_sock.h"

#include <sys/uio.h>

struct net_sealing;
struct secret_key;

struct net_link {
    int fd;
    struct net_sealing *
        sealing; /* NULL: data is in the clear, and goes straight between the socket and the caller's memory */
};

/* Takes over the socket. NULL: no memory, and it is closed. */
struct net_link *net_link_new(int fd);
/* From now on with that cipher. 0, -ENOMEM, -ENOSYS. */
int net_link_encrypt(struct net_link *l, enum seal_cipher cipher, const struct secret_key *of_sent,
                     const struct secret_key *of_received);
/* Closes it; what was sent goes its way. NULL is fine. */
void net_link_close(struct net_link *l);

/* -1: there is no link. */
static inline int net_link_fd(const struct net_link *l)
{
    return l ? l->fd : -1;
}

/*
 * As net_send() and net_receive() of tcp_sock.h. After less than all was sent the next call has to begin with the first byte
 * that was not, and with at least as many bytes: they may be encrypted already. -EBADMSG: what came is not what the other
 * end sent; nothing more comes.
 */
ssize_t net_link_send(struct net_link *l, const void *data, size_t n_bytes);
ssize_t net_link_send_parts(struct net_link *l, const struct iovec *parts, int n_parts);
ssize_t net_link_receive(struct net_link *l, void *data, size_t n_bytes);

/* There is something to be received that poll() does not report. */
bool net_link_holds(const struct net_link *l);

/* All of it, waiting as it takes. Results as those of net_poll(). */
int net_link_send_all(const struct net_wait *wait, struct net_link *l, const void *data, size_t n_bytes);
/* The same in the clear on a socket that is no link yet. */
int net_send_all(const struct net_wait *wait, int fd, const void *data, size_t n_bytes);
int net_receive_all(const struct net_wait *wait, int fd, void *data, size_t n_bytes);
