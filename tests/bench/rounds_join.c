/*
 * What a round costs the rendezvous, without sockets: N agents say hello and are told their places, one
 * fails and all are told, all are ready and are told their places again. Every message passes through its
 * JSON. Prints time and bytes for each agent.
 *
 *     rounds-join [N...]        (default: 100 1000 10000)
 */

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "proto/frame.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/session/session_json.h"

#include "tests/support/c/clock.h"

struct bench {
    struct rounds rounds;
    struct rounds_conn *sessions;
    struct session_view *views;
    struct session_hello hello;
    unsigned n;
    uint64_t n_in, n_out; /* bytes */
    struct buf disk;
};

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "rounds-join: %s\n", what);
    exit(1);
}

static void step(struct bench *b, struct rounds_event event)
{
    struct rounds_action action;

    event.now_ns = 1000000000;
    rounds_step(&b->rounds, &event);
    while (rounds_next(&b->rounds, &action)) {
        struct buf out = {0};

        if (action.kind == ROUNDS_DO_SAVE) {
            buf_reset(&b->disk);
            require(rounds_json_save(&b->disk, action.job) == 0, "no memory");
        } else if (action.kind == ROUNDS_DO_SEND) {
            require(session_json_put_view(&out, &action.view) == 0, "no memory");
            b->n_out += buf_size(&out);
            b->views[action.session - b->sessions] = action.view;
        }
        buf_finish(&out);
    }
}

/* What agent i sends: a hello, or a report. */
static void say(struct bench *b, unsigned i, bool hello)
{
    static struct session_json_message message;
    struct session_hello *h = &b->hello;
    struct buf frame = {0};
    char error[SESSION_JSON_ERROR_SIZE];

    h->nonce = (struct session_nonce){i * UINT64_C(0x9E3779B97F4A7C15), i};
    (void)snprintf(h->host, sizeof(h->host), "node%u.cluster.example", i);
    h->report.instance = b->views[i].instance;
    h->report.group_rank = (int32_t)b->views[i].place.group_rank;
    require((hello ? session_json_put_hello(&frame, h) : session_json_put_report(&frame, &h->report)) == 0,
            "no memory");
    b->n_in += buf_size(&frame);
    require(session_json_get_message(buf_bytes(&frame) + FRAME_HEADER_SIZE,
                                     buf_size(&frame) - FRAME_HEADER_SIZE, &message, error),
            error);
    buf_finish(&frame);
    if (hello)
        step(b, (struct rounds_event){.kind = ROUNDS_HELLO,
                                      .session = &b->sessions[i],
                                      .hello = &message.hello,
                                      .peer = "10.0.0.1",
                                      .local = "10.0.0.2"});
    else
        step(b, (struct rounds_event){
                    .kind = ROUNDS_REPORT, .session = &b->sessions[i], .report = &message.report});
}

static void say_all(struct bench *b, bool hello, enum session_phase phase, int64_t generation)
{
    b->hello.report.phase = phase;
    b->hello.report.generation = generation;
    for (unsigned i = 0; i < b->n; i++)
        say(b, i, hello);
}

/* Time and bytes since the last line. */
static void print(struct bench *b, const char *what, double *since_ms)
{
    double now = now_ms();

    printf("%6u agents  %-34s %8.2f ms  %7.2f us/agent  %5.0f bytes in, %5.0f out for each\n", b->n, what,
           now - *since_ms, (now - *since_ms) * 1e3 / b->n, (double)b->n_in / b->n, (double)b->n_out / b->n);
    b->n_in = b->n_out = 0;
    *since_ms = now_ms();
}

static void run(unsigned n)
{
    struct bench b = {.n = n};
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;
    double since_ms;

    config.seed = 1;
    rounds_init(&b.rounds, &config);
    b.sessions = calloc(n, sizeof(*b.sessions));
    b.views = calloc(n, sizeof(*b.views));
    require(b.sessions && b.views, "no memory");
    for (unsigned i = 0; i < n; i++)
        rounds_conn_init(&b.sessions[i]);
    b.hello = (struct session_hello){.job = "bench",
                                     .attempt = 1,
                                     .role = "default",
                                     .n_workers = 8,
                                     .node_rank = -1,
                                     .params = SESSION_PARAMS_DEFAULT,
                                     .report = {.port = 40000}};
    b.hello.params.min_nodes = b.hello.params.max_nodes = n;
    b.hello.params.max_restarts = 1;
    since_ms = now_ms();
    say_all(&b, true, SESSION_READY, -1);
    require(b.views[n - 1].kind == SESSION_VIEW_START, "the round did not form");
    print(&b, "hello to place, with a state of", &since_ms);
    printf("%54.1f KiB on disk\n", (double)buf_size(&b.disk) / 1024);
    say_all(&b, false, SESSION_RUNNING, 0);
    print(&b, "all are running", &since_ms);
    b.hello.report.phase = SESSION_FAILED;
    b.hello.report.cause = (struct session_cause){.kind = SESSION_CAUSE_WORKER, .exit_code = 1};
    say(&b, 0, false);
    require(b.views[n - 1].kind == SESSION_VIEW_STOP, "the failure was not told");
    print(&b, "one fails, all are told", &since_ms);
    b.hello.report.cause = session_cause_empty(SESSION_CAUSE_NONE);
    say_all(&b, false, SESSION_READY, 0);
    require(b.views[n - 1].kind == SESSION_VIEW_START && b.views[n - 1].generation == 1,
            "no second generation");
    print(&b, "ready to the next place", &since_ms);
    rounds_finish(&b.rounds);
    buf_finish(&b.disk);
    free(b.sessions);
    free(b.views);
}

int main(int argc, char **argv)
{
    static const unsigned sizes[] = {100, 1000, 10000};

    for (int i = 1; i < argc; i++)
        run((unsigned)strtoul(argv[i], NULL, 10));
    for (size_t i = 0; argc == 1 && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        run(sizes[i]);
    return 0;
}
