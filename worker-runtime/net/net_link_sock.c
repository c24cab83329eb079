#include "worker-runtime/net/net_link_sock.h"

#include "base/err.h"
#include "worker-runtime/net/sealed_stream_openssl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct net_sealing {
    struct sealed_out out;
    struct sealed_in in;
};

struct net_link *net_link_new(int fd)
{
    struct net_link *l = malloc(sizeof(*l));

    if (l)
        *l = (struct net_link){.fd = fd};
    else
        (void)close(fd); /* unused */
    return l;
}

static void free_sealing(struct net_sealing *s)
{
    if (!s)
        return;
    sealed_out_finish(&s->out);
    sealed_in_finish(&s->in);
    free(s);
}

int net_link_encrypt(struct net_link *l, enum seal_cipher cipher, const struct secret_key *of_sent,
                     const struct secret_key *of_received)
{
    struct net_sealing *s = calloc(1, sizeof(*s));
    int r = s ? record_seal_new(cipher, of_sent, true, SEAL_KEY_RECORDS, &s->out.seal) : -ENOMEM;

    if (r == 0)
        r = record_seal_new(cipher, of_received, false, SEAL_KEY_RECORDS, &s->in.seal);
    if (r)
        free_sealing(s);
    else
        l->sealing = s;
    return r;
}

void net_link_close(struct net_link *l)
{
    if (!l)
        return;
    (void)close(l->fd); /* what was sent goes its way */
    free_sealing(l->sealing);
    free(l);
}

/* ---- sending ---- */

static size_t size_of_parts(const struct iovec *parts, int n_parts)
{
    size_t n = 0;

    for (int i = 0; i < n_parts; i++)
        n += parts[i].iov_len;
    return n;
}

/* A record that was begun is sent to its end before there is another one. */
static ssize_t send_sealed(struct net_link *l, const struct iovec *parts, int n_parts)
{
    struct sealed_out *out = &l->sealing->out;
    size_t n = size_of_parts(parts, n_parts), rest;

    if (n == 0)
        return 0;
    if (out->n_data == 0)
        TRY(sealed_out_fill(out, parts, n));
    assert(n >= out->n_data);
    const uint8_t *bytes = sealed_out_rest(out, &rest);
    ssize_t sent = net_send(l->fd, bytes, rest);
    return sent < 0 ? sent : (ssize_t)sealed_out_sent(out, (size_t)sent);
}

ssize_t net_link_send(struct net_link *l, const void *data, size_t n_bytes)
{
    const struct iovec part = {(void *)(uintptr_t)data, n_bytes}; /* only read */

    return l->sealing ? send_sealed(l, &part, 1) : net_send(l->fd, data, n_bytes);
}

ssize_t net_link_send_parts(struct net_link *l, const struct iovec *parts, int n_parts)
{
    const struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, /* only read */
                                   .msg_iovlen = (size_t)n_parts};

    return l->sealing ? send_sealed(l, parts, n_parts) : net_send_message(l->fd, &message);
}

/* ---- receiving ---- */

/* What is there, without the socket; an error that comes behind data is for the next call. */
static ssize_t take_all(struct sealed_in *in, uint8_t *data, size_t n_bytes)
{
    size_t done = 0;
    ssize_t n = 0;

    do {
        n = sealed_in_take(in, data + done, n_bytes - done);
        done += n > 0 ? (size_t)n : 0;
    } while (n > 0 && done < n_bytes);
    return done > 0 ? (ssize_t)done : n;
}

static ssize_t receive_sealed(struct net_link *l, uint8_t *data, size_t n_bytes)
{
    struct sealed_in *in = &l->sealing->in;
    ssize_t n;

    while ((n = take_all(in, data, n_bytes)) == 0) {
        uint8_t *room;
        ssize_t wanted = sealed_in_room(in, &room);
        ssize_t got = wanted > 0 ? net_receive(l->fd, room, (size_t)wanted) : wanted;

        if (got <= 0)
            return got;
        sealed_in_came(in, (size_t)got);
    }
    return n;
}

bool net_link_holds(const struct net_link *l)
{
    return l->sealing && sealed_in_holds(&l->sealing->in);
}

ssize_t net_link_receive(struct net_link *l, void *data, size_t n_bytes)
{
    return l->sealing ? receive_sealed(l, data, n_bytes) : net_receive(l->fd, data, n_bytes);
}

/* ---- all of it ---- */

static int move_all(const struct net_wait *wait, struct net_link *l, uint8_t *data, size_t n_bytes,
                    bool sends)
{
    struct pollfd polled = {.fd = l->fd, .events = sends ? POLLOUT : POLLIN};

    for (size_t done = 0; done < n_bytes;) {
        size_t left = n_bytes - done;
        ssize_t n = sends ? net_link_send(l, data + done, left) : net_link_receive(l, data + done, left);

        if (n < 0)
            return net_result(n);
        done += (size_t)n;
        TRY(n == 0 ? net_poll(wait, &polled, 1) : 0);
    }
    return 0;
}

int net_link_send_all(const struct net_wait *wait, struct net_link *l, const void *data, size_t n_bytes)
{
    return move_all(wait, l, (void *)(uintptr_t)data, n_bytes, true); /* only read */
}

int net_send_all(const struct net_wait *wait, int fd, const void *data, size_t n_bytes)
{
    return net_link_send_all(wait, &(struct net_link){.fd = fd}, data, n_bytes);
}

int net_receive_all(const struct net_wait *wait, int fd, void *data, size_t n_bytes)
{
    return move_all(wait, &(struct net_link){.fd = fd}, data, n_bytes, false);
}
