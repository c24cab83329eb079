#pragma once

/*
 * A connection between ranks of different hosts, from the handshake on: a socket, and the encryption of the data where the
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

/* Takes over the socket. NULL: no memory, and the socket is closed. */
struct net_link *net_link_new(int fd);
/* From now on with the cipher. 0, -ENOMEM, -ENOSYS. */
int net_link_encrypt(struct net_link *l, enum seal_cipher cipher, const struct secret_key *of_sent,
                     const struct secret_key *of_received);
/* Closes the link; sent bytes go their way. NULL is fine. */
void net_link_close(struct net_link *l);

/* -1: there is no link. */
static inline int net_link_fd(const struct net_link *l)
{
    return l ? l->fd : -1;
}

/*
 * As net_send() and net_receive() of tcp_sock.h. After less than all was sent the next call has to begin with the first
 * unsent byte, and with at least as many bytes: the rest may be encrypted already. -EBADMSG: the bytes that came are not
 * the bytes that the other end sent; nothing more comes.
 */
ssize_t net_link_send(struct net_link *l, const void *data, size_t n_bytes);
ssize_t net_link_send_parts(struct net_link *l, const struct iovec *parts, int n_parts);
ssize_t net_link_receive(struct net_link *l, void *data, size_t n_bytes);

/* The bytes moved by an algorithm on several links, without waiting in a call. */
struct net_flow {
    const struct net_wait *wait;
    const struct net_link *failed; /* after NET_E_LOST and errors: the link */
    bool moved;                    /* bytes, since the algorithm has last set this to false */
};

/* n: the result of a call above. Moves *position by the bytes. 0, or a result of net_poll(). */
static inline int net_flow_note(struct net_flow *f, const struct net_link *link, ssize_t n, size_t *position)
{
    if (n < 0) {
        f->failed = link;
        return net_result(n);
    }
    *position += (size_t)n;
    f->moved = f->moved || n > 0;
    return 0;
}

/* Bytes can be received without poll() reporting the socket. */
bool net_link_holds(const struct net_link *l);

/* All bytes, with waits. Results of net_poll(). */
int net_link_send_all(const struct net_wait *wait, struct net_link *l, const void *data, size_t n_bytes);
/* The same in the clear on a socket without a link. */
int net_send_all(const struct net_wait *wait, int fd, const void *data, size_t n_bytes);
int net_receive_all(const struct net_wait *wait, int fd, void *data, size_t n_bytes);
