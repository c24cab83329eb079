/*
 * Happy path: connect, greet, wait for the echo as every agent does, say the hello of an agent that has left,
 * wait until the rendezvous has closed.
 *
 * Ways it fails: the network or the rendezvous is gone. Then nobody misses it.
 */

#include "launcher/supervise/death_notice_sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "proto/frame.h"
#include "rendezvous/session_json.h"

enum {
    PATIENCE_S = 5, /* for each step */
    NONCE = 0x6c617374,
    ECHO_SIZE = 4,
};

/* ---- writing it down ---- */

static bool take(struct buf *from, uint8_t *to, size_t room, size_t *ret_size)
{
    size_t n = buf_size(from);

    if (n > 0 && n <= room)
        memcpy(to, buf_bytes(from), n);
    *ret_size = n;
    buf_finish(from);
    return n > 0 && n <= room;
}

bool death_notice_write(struct death_notice *w, const struct session_hello *hello, const struct sockaddr *to,
                        socklen_t to_size)
{
    struct session_hello last = *hello;
    struct buf greeting = {0}, words = {0};

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
        .cause = {.kind = SESSION_CAUSE_LOST, .group_rank = -1, .rank = -1, .local_rank = -1},
    };
    session_copy_text(last.report.cause.text, sizeof(last.report.cause.text),
                      "its crun ended without a word, and its workers were killed");
    bool complete = frame_put_greeting(&greeting, NONCE) == 0 && frame_put_opening(&words) == 0 &&
                    session_json_put_hello(&words, &last) == 0;
    bool greets = take(&greeting, w->greeting, sizeof(w->greeting), &w->greeting_size);
    bool speaks = take(&words, w->words, sizeof(w->words), &w->words_size);
    return complete && greets && speaks;
}

/* ---- saying it ---- */

/* Also connect() ends by then. */
static void set_patience(int fd)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    const int yes = 1;

    /* These two fail only with a wrong size. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)); /* slower without, not wrong */
}

static bool log_line(int fd, const uint8_t *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n; /* an empty socket has room for it */
}

void death_notice_say(const struct death_notice *w)
{
    _cleanup_close_ int fd = socket(w->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint8_t answer[256];

    if (fd < 0)
        return;
    set_patience(fd);
    if (connect(fd, (const struct sockaddr *)&w->to, w->to_size) < 0 ||
        !log_line(fd, w->greeting, w->greeting_size) ||
        recv(fd, answer, ECHO_SIZE, MSG_WAITALL) != ECHO_SIZE || !log_line(fd, w->words, w->words_size))
        return;
    /* A socket that is closed with bytes unread is reset, and what was said may go with it. */
    while (recv(fd, answer, sizeof(answer), 0) > 0)
        continue;
}
