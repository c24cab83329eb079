/*
 * Fuzz target: what agents may tell the rendezvous, and what may be on its disk. Input: lines. A line that
 * begins with a digit is the JSON body that this agent sends; "+" lets time pass, one tenth of a second for
 * each; "-" and a digit breaks that agent's connection; "=" restarts the rendezvous with its state; any other
 * line is a saved state or a view to read. The core must keep its own accounts whatever is said.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/session/session_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_SESSIONS = 10, N_JOBS_MAX = 4 };

struct bench {
    struct rounds rounds;
    struct rounds_conn sessions[N_SESSIONS];
    struct buf disk;              /* one job after the other */
    size_t saved[2 * N_JOBS_MAX]; /* and as many tombstones */
    size_t n_saved;
    uint64_t now_ns;
};

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void start(struct bench *b)
{
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;

    config.seed = 1;
    config.max_jobs = N_JOBS_MAX;
    config.max_nodes = 5;
    rounds_init(&b->rounds, &config);
    for (int i = 0; i < N_SESSIONS; i++)
        rounds_conn_init(&b->sessions[i]);
}

/* Counts are kept, and every view can be said and understood. */
static void check_job(const struct rounds_job *job)
{
    uint32_t n = 0;

    list_for_each(i, &job->nodes)
    {
        struct rounds_node *node = list_entry(i, struct rounds_node, in_job);
        _cleanup_(buf_finish) struct buf frame = {0};
        struct session_view view, copy;
        char error[SESSION_JSON_ERROR_SIZE];

        require(!node->session || node->session->node == node);
        rounds_view(node, &view);
        require(session_json_put_view(&frame, &view) == 0);
        require(session_json_get_view(buf_bytes(&frame) + 4, buf_size(&frame) - 4, &copy, error));
        require(copy.kind == view.kind && copy.generation == view.generation);
        n++;
    }
    require(n == rounds_job_n_nodes(job));
    require(job->restarts <= job->params.max_restarts && job->changes <= job->params.max_changes);
}

static void drain(struct bench *b)
{
    struct rounds_action action;

    while (rounds_next(&b->rounds, &action))
        if (action.kind == ROUNDS_DO_SEND || action.kind == ROUNDS_DO_ALIVE || action.kind == ROUNDS_DO_CLOSE)
            require(action.session >= b->sessions && action.session < b->sessions + N_SESSIONS);
    list_for_each(i, &b->rounds.jobs) check_job(list_entry(i, struct rounds_job, in_rounds));
}

static void step(struct bench *b, struct rounds_event event)
{
    event.now_ns = b->now_ns;
    rounds_step(&b->rounds, &event);
    drain(b);
}

static void say(struct bench *b, struct rounds_conn *s, const uint8_t *body, size_t n)
{
    static struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE];

    if (!session_json_get_message(body, n, &message, error))
        return;
    if (message.kind == SESSION_JSON_HELLO)
        step(b, (struct rounds_event){.kind = ROUNDS_HELLO,
                                      .session = s,
                                      .hello = &message.hello,
                                      .peer = "10.0.0.1",
                                      .local = "10.0.0.2"});
    else
        step(b, (struct rounds_event){.kind = ROUNDS_REPORT, .session = s, .report = &message.report});
}

static void pass(struct bench *b)
{
    b->now_ns += 100000000;
    if (rounds_deadline(&b->rounds) > b->now_ns)
        return;
    step(b, (struct rounds_event){.kind = ROUNDS_TIMER});
    require(rounds_deadline(&b->rounds) > b->now_ns); /* or a daemon would spin */
}

/* What is saved can be loaded, and says the same when it is saved again. */
static void restart(struct bench *b)
{
    char error[ROUNDS_JSON_ERROR_SIZE];
    size_t at = 0;

    b->n_saved = 0;
    buf_reset(&b->disk);
    list_for_each(i, &b->rounds.jobs)
    {
        require(rounds_json_save(&b->disk, list_entry(i, struct rounds_job, in_rounds)) == 0);
        b->saved[b->n_saved++] = buf_size(&b->disk);
    }
    rounds_finish(&b->rounds);
    start(b);
    for (size_t i = 0; i < b->n_saved; at = b->saved[i++])
        require(rounds_json_load(&b->rounds, buf_bytes(&b->disk) + at, b->saved[i] - at, b->now_ns, error));
    drain(b);
}

static void read_any(struct bench *b, const uint8_t *line, size_t n)
{
    static struct session_view view;
    char error[SESSION_JSON_ERROR_SIZE];

    (void)session_json_get_view(line, n, &view, error); /* it may say no */
    if (rounds_json_load(&b->rounds, line, n, b->now_ns, error))
        drain(b);
}

static void run_line(struct bench *b, const uint8_t *line, size_t n)
{
    if (n == 0)
        return;
    if (line[0] >= '0' && line[0] <= '9')
        say(b, &b->sessions[line[0] - '0'], line + 1, n - 1);
    else if (line[0] == '+')
        for (size_t i = 0; i < n && i < 1000; i++)
            pass(b);
    else if (line[0] == '-' && n > 1 && line[1] >= '0' && line[1] <= '9')
        step(b, (struct rounds_event){.kind = ROUNDS_DISCONNECTED, .session = &b->sessions[line[1] - '0']});
    else if (line[0] == '=')
        restart(b);
    else
        read_any(b, line, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bench b;
    size_t begin = 0;

    b.now_ns = 1000000000;
    start(&b);
    for (size_t end = 0; end <= size; end++) {
        if (end < size && data[end] != '\n')
            continue;
        run_line(&b, data + begin, end - begin);
        begin = end + 1;
    }
    rounds_finish(&b.rounds);
    buf_finish(&b.disk);
    return 0;
}
