#include "launcher/snapshots/block_requests_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/util/send_descriptors_sock.h"

enum {
    CHANNELS_PER_WORKER = 8, /* of dead processes whose descendants hold the socket, too */
    TURN_MAX = 16,           /* records of a channel in one turn of the loop */
};

struct block_requests {
    struct block_requests_host host;
    uv_poll_t poll;
    struct list channels;
    uint32_t n_channels;
};

/* ---- channels ---- */

static void on_channel_closed(uv_handle_t *handle)
{
    struct block_channel *c = handle->data;

    (void)close(c->fd);
    free(c);
}

static void end_channel(struct block_channel *c)
{
    list_unlink(&c->siblings);
    c->requests->n_channels--;
    uv_close((uv_handle_t *)&c->poll, on_channel_closed);
}

static void lose_channel(struct block_channel *c)
{
    c->requests->host.on_gone(c->requests->host.data, c);
    end_channel(c);
}

static void on_channel(uv_poll_t *poll, int status, int events)
{
    struct block_channel *c = poll->data;
    const struct block_requests_host *host = &c->requests->host;
    uint8_t bytes[BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE];
    struct blocks_record record;

    for (int i = 0; i < TURN_MAX; i++) {
        _cleanup_close_ int fd = -1; /* none is expected */
        int n = receive_descriptor(c->fd, bytes, sizeof(bytes), &fd);
        if (n == 0)
            return;
        if (n < 0 || !blocks_record_get(bytes, (size_t)n, &record)) {
            lose_channel(c);
            return;
        }
        host->on_request(host->data, c, &record);
    }
}

void block_channel_answer(const struct block_channel *channel, const struct blocks_record *answer, int fd)
{
    uint8_t bytes[BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE];
    size_t n = blocks_record_put(answer, bytes);

    (void)send_descriptors(channel->fd, bytes, n, &fd, fd >= 0, MSG_DONTWAIT); /* see the header */
}

void block_requests_tell(const struct block_requests *r, const struct blocks_record *record)
{
    list_for_each_entry(struct block_channel, c, &r->channels, siblings) block_channel_answer(c, record, -1);
}

/* ---- the door ---- */

/* Owns fd. 0 or -errno. */
static int add_channel(struct block_requests *r, int fd, const struct blocks_record *hello)
{
    _cleanup_close_ int owned = fd;
    int type = 0;
    socklen_t size = sizeof(type);

    if (r->n_channels >= r->host.n_workers * CHANNELS_PER_WORKER)
        return -EMFILE;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_SEQPACKET)
        return -EPROTOTYPE;
    _cleanup_free_ struct block_channel *made = calloc(1, sizeof(*made));
    if (!made)
        return -ENOMEM;
    *made = (struct block_channel){.requests = r,
                                   .fd = fd,
                                   .local_rank = hello->arg,
                                   .rank = hello->rank,
                                   .generation = hello->generation};
    int result = uv_poll_init(r->host.loop, &made->poll, fd);
    if (result)
        return result;
    struct block_channel *c = steal_ptr(made);
    (void)steal_fd(&owned);
    c->poll.data = c;
    list_append(&r->channels, &c->siblings);
    r->n_channels++;
    result = uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_channel);
    if (result)
        end_channel(c);
    return result;
}

static void on_door(uv_poll_t *poll, int status, int events)
{
    struct block_requests *r = poll->data;
    uint8_t bytes[BLOCKS_RECORD_SIZE + BLOCKS_TEXT_SIZE];
    struct blocks_record hello;

    for (int i = 0; i < TURN_MAX; i++) {
        _cleanup_close_ int fd = -1;
        int n = receive_descriptor(r->host.door, bytes, sizeof(bytes), &fd);
        if (n == 0)
            return;
        if (n > 0 && fd >= 0 && blocks_record_get(bytes, (size_t)n, &hello) && hello.kind == BLOCKS_HELLO &&
            hello.arg < r->host.n_workers)
            (void)add_channel(r, steal_fd(&fd), &hello); /* the worker reads the end of its socket */
    }
}

int block_requests_open(struct block_requests **ret, const struct block_requests_host *host)
{
    _cleanup_free_ struct block_requests *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->host = *host;
    list_init(&r->channels);
    int result = uv_poll_init(host->loop, &r->poll, host->door);
    if (result)
        return result;
    r->poll.data = r;
    *ret = steal_ptr(r);
    result = uv_poll_start(&(*ret)->poll, UV_READABLE, on_door);
    if (result)
        block_requests_close(steal_ptr(*ret));
    return result;
}

static void on_door_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void block_requests_close(struct block_requests *r)
{
    if (!r)
        return;
    list_for_each_entry_safe(struct block_channel, c, &r->channels, siblings) end_channel(c);
    uv_close((uv_handle_t *)&r->poll, on_door_closed);
}
