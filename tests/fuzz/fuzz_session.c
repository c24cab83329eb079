/*
 * Fuzz target: the rounds behind sockets: clients and agents of one server, as far as bytes go. Input: records of
 * one byte (its low three bits: the connection; the others: what to do), a u16 length and that many bytes.
 *
 *   0  the bytes as they are            3  the connection is closed
 *   1  greeting and opening, then them  4  as 2, and what the server says is not read from now on
 *   2  them as the body of a frame
 *
 * The server keeps its accounts whatever is said, and nothing is left of it in the end.
 */

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "proto/frame.h"
#include "rendezvous/daemon/compose_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/store_shell_uv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_CONNECTIONS = 8, TURNS = 3, RECORD_HEAD = 3 };

enum what { SAY, BEGIN, FRAME, CLOSE, FRAME_DEAF, WHAT_COUNT };

struct bench {
    uv_loop_t loop;
    struct server *server;
    int fds[N_CONNECTIONS]; /* the clients' ends; -1: not connected */
    bool write_failed[N_CONNECTIONS];
    bool stopped;
};

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* ---- accounts ---- */

static void check_agents(const struct server *s)
{
    uint64_t input = 0, agents_input = 0;
    unsigned n = 0;

    list_for_each(i, &rounds_shell_of(s)->agents)
    {
        struct agent_conn *a = list_entry(i, struct agent_conn, link);

        require(!a->closing && list_is_empty(&a->unsent_link));
        require(!a->session.node || a->session.node->session == &a->session);
        require(buf_size(&a->out) + buf_size(&a->held) <= AGENT_CONN_OUTPUT_MAX + FRAME_OPENING_SIZE);
        require(buf_size(&a->in) < FRAME_BODY_MAX + FRAME_HEADER_SIZE);
        agents_input += a->charged_input;
        n++;
    }
    list_for_each(i, &store_shell_of(s)->peers)
    {
        input += list_entry(i, struct peer, link)->charged_input;
        n++;
    }
    require(n == s->n_peers && input == store_shell_of(s)->input.total && agents_input == s->session_input);
}

static void turn(struct bench *b)
{
    for (int i = 0; i < TURNS; i++) {
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
        check_agents(b->server);
    }
}

/* ---- what clients do ---- */

static void connect_client(struct bench *b, unsigned i)
{
    int pair[2];

    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    b->fds[i] = pair[1];
    b->write_failed[i] = false;
    require(server_admit(b->server, NULL, pair[0], &(struct conn_owner){.id = 1}, false) == 0);
}

static void close_client(struct bench *b, unsigned i)
{
    if (b->fds[i] >= 0)
        require(close(b->fds[i]) == 0);
    b->fds[i] = -1;
}

static void hear(struct bench *b)
{
    uint8_t heard[4096];

    for (unsigned i = 0; i < N_CONNECTIONS; i++)
        while (b->fds[i] >= 0 && !b->write_failed[i] && read(b->fds[i], heard, sizeof(heard)) > 0)
            ;
}

static void say(struct bench *b, unsigned i, const struct buf *bytes)
{
    size_t done = 0;

    while (done < buf_size(bytes)) {
        ssize_t n = send(b->fds[i], buf_bytes(bytes) + done, buf_size(bytes) - done, MSG_NOSIGNAL);

        if (n < 0)
            break; /* it was closed, or does not read for now */
        done += (size_t)n;
        turn(b);
    }
    turn(b);
    hear(b);
}

static void run_record(struct bench *b, unsigned head, const uint8_t *data, size_t n)
{
    unsigned i = head % N_CONNECTIONS;
    enum what what = head / N_CONNECTIONS % WHAT_COUNT;
    struct buf bytes = {0};

    if (what == CLOSE) {
        close_client(b, i);
        turn(b);
        return;
    }
    if (b->fds[i] < 0)
        connect_client(b, i);
    if (what == BEGIN)
        require(frame_put_greeting(&bytes, 7) == 0 && frame_put_opening(&bytes) == 0);
    if (what == FRAME_DEAF)
        b->write_failed[i] = true;
    if (what == FRAME || what == FRAME_DEAF)
        require(buf_append_u32(&bytes, (uint32_t)n) == 0);
    require(buf_append(&bytes, data, n) == 0);
    say(b, i, &bytes);
    buf_finish(&bytes);
}

/* ---- life ---- */

static void note_stopped(void *data)
{
    ((struct bench *)data)->stopped = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct server_rounds rounds = {.max_jobs = 3, .max_nodes = 4, .max_agents = 6};
    static const struct server_config config = {.rounds = &rounds};
    struct bench b = {0};
    size_t at = 0;

    require(uv_loop_init(&b.loop) == 0 && server_create(&b.server, &b.loop, &config) == 0);
    for (unsigned i = 0; i < N_CONNECTIONS; i++)
        b.fds[i] = -1;
    while (size - at >= RECORD_HEAD) {
        size_t n = data[at + 1] | (size_t)data[at + 2] << 8;
        const uint8_t *bytes = data + at + RECORD_HEAD;

        n = n < size - at - RECORD_HEAD ? n : size - at - RECORD_HEAD;
        run_record(&b, data[at], bytes, n);
        at += RECORD_HEAD + n;
    }
    require(server_n_nodes(b.server) <= rounds.max_agents);
    server_close_jobs(b.server, "the input is over");
    turn(&b);
    server_stop(b.server, note_stopped, &b);
    require(uv_run(&b.loop, UV_RUN_DEFAULT) == 0 && b.stopped);
    require(uv_loop_close(&b.loop) == 0);
    for (unsigned i = 0; i < N_CONNECTIONS; i++)
        close_client(&b, i);
    return 0;
}
