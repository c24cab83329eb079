/*
 * Happy path: connect, send the greeting, wait for the echo as every agent does, send the hello of an agent that has
 * left, wait until the rendezvous has closed the connection.
 *
 * Ways it fails: the network or the rendezvous has failed. Then no node waits for the notice.
 */

#include "launcher/supervise/death_notice_sock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "proto/frame.h"
#include "rendezvous/session/session_json.h"

enum {
    PATIENCE_S = 5, /* for each step */
    NONCE = 0x6c617374,
    ECHO_SIZE = 4,
};

/* ---- preparing ---- */

bool death_notice_prepare(struct death_notice *w, const struct session_hello *hello,
                          const struct sockaddr *to, socklen_t to_size)
{
    struct session_hello last = *hello;
    _cleanup_(buf_finish) struct buf bytes = {0};

    *w = (struct death_notice){.to_size = to_size};
    if (to_size > sizeof(w->to))
        return false;
    memcpy(&w->to, to, to_size);
    last.attempt = UINT32_MAX;
    last.report = (struct session_report){
        .phase = SESSION_LEFT,
        .instance = hello->report.instance,
        .generation = hello->report.generation,
        .group_rank = hello->report.group_rank,
        .cause = session_cause_empty(SESSION_CAUSE_LOST),
    };
    text_copy(last.report.cause.text, sizeof(last.report.cause.text),
              "its crun ended without a message, and its workers were killed");
    bool is_complete = frame_put_greeting(&bytes, NONCE) == 0;
    w->greeting_size = buf_size(&bytes);
    is_complete = is_complete && frame_put_opening(&bytes) == 0 &&
                  session_json_put_hello(&bytes, &last) == 0 && buf_size(&bytes) <= sizeof(w->bytes);
    w->size = is_complete ? buf_size(&bytes) : 0;
    if (is_complete)
        memcpy(w->bytes, buf_bytes(&bytes), w->size);
    return is_complete;
}

/* ---- sending ---- */

/* connect() is limited by the send timeout. */
static void limit_waiting(int fd)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    const int yes = 1;

    /* These two fail only with a wrong size. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)); /* slower without, not wrong */
}

static bool send_all(int fd, const uint8_t *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n; /* an empty socket has room for it */
}

void death_notice_send(const struct death_notice *w)
{
    _cleanup_close_ int fd = socket(w->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint8_t answer[256];

    if (fd < 0)
        return;
    limit_waiting(fd);
    if (connect(fd, (const struct sockaddr *)&w->to, w->to_size) < 0 ||
        !send_all(fd, w->bytes, w->greeting_size) || recv(fd, answer, ECHO_SIZE, MSG_WAITALL) != ECHO_SIZE ||
        !send_all(fd, w->bytes + w->greeting_size, w->size - w->greeting_size))
        return;
    /* A socket that is closed with bytes unread is reset, and the peer may then lose the hello. */
    while (recv(fd, answer, sizeof(answer), 0) > 0)
        continue;
}
