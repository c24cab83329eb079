/*
 * Load for the rounds: N agents in one process, each with the shipping agent core (session.h) and a socket of
 * its own, on one rendezvous. All connect at once and get their places; then, again and again, a worker of one of
 * them fails, all are told, and all get places in the next generation. Prints one line of JSON.
 *
 *     rounds_load --port P [--host H] [--agents N] [--rounds R] [--node-timeout MS] [--per-address N]
 *                 [--secret-file FILE]    with TLS
 *                 [--daemon PID]          the CPU time of this process, too, until all agents have joined
 *
 * All agents share one core, which real ones do not: a notice counts as arrived when it was read, and while
 * notices are under way nothing else is done; what the agents answer is worked out when all have arrived.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "proto/frame.h"
#include "proto/secret_os.h"
#include "proto/tls_openssl.h"
#include "rendezvous/session/session.h"
#include "rendezvous/session/session_json.h"

enum { EVENTS = 16384, READ_SIZE = 4096, TICK_MS = 20, WAIT_S = 60, WORKERS = 8, ROUNDS_MAX = 1000 };

static struct settings {
    const char *host;
    uint16_t port;
    unsigned n_agents, n_rounds, node_timeout_ms, per_address;
    const char *secret_file;
    int daemon; /* 0: not given */
} settings = {
    .host = "127.0.0.1", .n_agents = 1000, .n_rounds = 20, .node_timeout_ms = 1000, .per_address = 5000};

struct agent {
    int fd;
    bool connected, polled_out;
    struct session session;
    struct frame_reader reader;
    struct buf in, out;
    struct tls_link *tls; /* NULL: in the clear */
    struct buf records;   /* with TLS: what the socket gets */
};

static struct agent *agents;
static struct tls_context *tls; /* NULL: in the clear */
static int epoll_fd = -1;

/* What the present phase waits for. */
static unsigned n_placed, n_told;
static uint64_t told_last_ns, placed_last_ns;
static uint64_t n_bytes_in, n_bytes_out, n_lost, n_redials;
static double handshake_cpu_ms; /* of the agents' side */
static bool only_reading;

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "rounds_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "rounds_load: %s\n", what);
    exit(1);
}

/* Milliseconds of CPU time of a process; 0: of this one. */
static double cpu_ms(int pid)
{
    struct timespec t = {0};
    clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;

    require(pid == 0 || clock_getcpuclockid(pid, &clock) == 0, "there is no process --daemon");
    require(clock_gettime(clock, &t) == 0, "no clock of a process");
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- sockets ---- */

static void step(struct agent *a, struct session_event event);

static void watch(struct agent *a, int operation, bool out)
{
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0u), .data.ptr = a};

    if (epoll_ctl(epoll_fd, operation, a->fd, &e) < 0)
        die("epoll_ctl");
    a->polled_out = out;
}

/* 28,000 connections fit between two addresses, so some thousand agents share one of 127.0.0.0/8. */
static void bind_source(int fd, unsigned i)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    int on = 1;

    if (strncmp(settings.host, "127.", 4) != 0)
        return;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + i / settings.per_address);
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on,
                     sizeof(on)); /* else ports run out sooner */
    if (bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0)
        die("bind");
}

static void dial(struct agent *a)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(settings.port)};
    int on = 1;

    a->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (a->fd < 0)
        die("socket");
    (void)setsockopt(a->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* only slower without */
    bind_source(a->fd, (unsigned)(a - agents));
    require(inet_pton(AF_INET, settings.host, &to.sin_addr) == 1, "--host is not an IPv4 address");
    a->connected = false;
    frame_reader_init_agent(&a->reader, 4711);
    if (tls) {
        frame_reader_init_server(&a->reader); /* no echo comes before the opening */
        require(tls_link_create(&a->tls, tls, NULL) == 0, "no memory");
    }
    if (connect(a->fd, (struct sockaddr *)&to, sizeof(to)) < 0 && errno != EINPROGRESS)
        die("connect");
    watch(a, EPOLL_CTL_ADD, true);
    if (a->session.hello.attempt > 1)
        n_redials++;
}

static void hang_up(struct agent *a)
{
    if (a->fd >= 0)
        (void)close(a->fd); /* the other end notices */
    a->fd = -1;
    buf_reset(&a->in);
    buf_reset(&a->out);
    buf_reset(&a->records);
    tls_link_free(a->tls);
    a->tls = NULL;
}

/* What the socket gets: the frames, or their records. */
static struct buf *output_of(struct agent *a)
{
    if (!a->tls)
        return &a->out;
    if (buf_size(&a->out) > 0)
        require(tls_link_send(a->tls, buf_bytes(&a->out), buf_size(&a->out), &a->records) == 0,
                "TLS cannot send");
    buf_reset(&a->out);
    return &a->records;
}

static void flush(struct agent *a)
{
    struct buf *out = output_of(a);
    ssize_t n;

    if (a->fd < 0 || !a->connected || buf_size(out) == 0)
        return;
    n = send(a->fd, buf_bytes(out), buf_size(out), MSG_NOSIGNAL);
    if (n > 0) {
        buf_consume(out, (size_t)n);
        n_bytes_out += (uint64_t)n;
    }
    if (a->polled_out != (buf_size(out) > 0))
        watch(a, EPOLL_CTL_MOD, buf_size(out) > 0);
}

/* ---- the core ---- */

static void say_hello(struct agent *a)
{
    static struct session_hello hello;

    session_hello(&a->session, now_ns(), &hello);
    require(frame_put_opening(&a->out) == 0 && session_json_put_hello(&a->out, &hello) == 0, "no memory");
}

static void say_report(struct agent *a)
{
    static struct session_report report;

    session_report(&a->session, now_ns(), &report);
    require(session_json_put_report(&a->out, &report) == 0, "no memory");
}

static void carry_out(struct agent *a, enum session_action action)
{
    switch (action) {
    case SESSION_DO_DIAL:
        dial(a);
        break;
    case SESSION_DO_GREET:
        if (tls)
            break;
        require(frame_put_greeting(&a->out, 4711) == 0, "no memory");
        break;
    case SESSION_DO_HELLO:
        say_hello(a);
        break;
    case SESSION_DO_REPORT:
        say_report(a);
        break;
    case SESSION_DO_ALIVE:
        require(frame_put_alive(&a->out) == 0, "no memory");
        break;
    case SESSION_DO_CLOSE:
        flush(a);
        hang_up(a);
        break;
    case SESSION_DO_START:
        n_placed++;
        placed_last_ns = now_ns();
        break;
    case SESSION_DO_STOP: /* its workers are gone at once */
        step(a, (struct session_event){.kind = SESSION_EVENT_GROUP_READY, .port = 40000});
        break;
    case SESSION_DO_END:
        (void)fprintf(stderr, "rounds_load: an agent ends: %s\n", a->session.text);
        exit(1);
    default:
        break;
    }
}

static void step(struct agent *a, struct session_event event)
{
    struct session_actions actions;

    event.now_ns = now_ns();
    session_step(&a->session, &event, &actions);
    for (size_t i = 0; i < actions.n_items; i++)
        carry_out(a, actions.items[i]);
}

/* ---- what arrives ---- */

static void hear_view(struct agent *a, struct wire_span body)
{
    static struct session_view view;
    char error[SESSION_JSON_ERROR_SIZE];

    require(session_json_get_view(body.data, body.size, &view, error), error);
    step(a, (struct session_event){.kind = SESSION_EVENT_VIEW, .view = &view});
}

static void hear(struct agent *a, const struct frame *frame)
{
    static const enum session_event_kind kinds[FRAME_KIND_COUNT] = {
        [FRAME_ECHO] = SESSION_EVENT_ECHOED,
        [FRAME_OPENED] = SESSION_EVENT_OPENED,
        [FRAME_ALIVE] = SESSION_EVENT_ALIVE,
    };

    if (frame->kind == FRAME_BODY)
        hear_view(a, frame->body);
    else
        step(a, (struct session_event){.kind = kinds[frame->kind]});
}

static void take_frames(struct agent *a)
{
    struct frame frame;
    size_t size;

    while (a->fd >= 0 && frame_decode(&a->reader, buf_bytes(&a->in), buf_size(&a->in), &frame, &size) == 0) {
        hear(a, &frame);
        if (a->fd >= 0)
            buf_consume(&a->in, size);
    }
    flush(a);
}

/* Is there a "stop" among what was just read? The notice has arrived then, whatever follows from it. */
static void note_notice(const uint8_t *data, size_t n)
{
    static const char stop[] = "\"view\":\"stop\"";

    if (!memmem(data, n, stop, sizeof(stop) - 1))
        return;
    n_told++;
    told_last_ns = now_ns();
}

/* Records, into what they contain. */
static void take_records(struct agent *a, const void *bytes, size_t n)
{
    bool was = tls_link_is_established(a->tls);
    double cpu_before_ms = was ? 0 : cpu_ms(0);
    size_t before = buf_size(&a->in);

    require(tls_link_receive(a->tls, bytes, n, &a->in, &a->records) == 0, tls_link_error(a->tls));
    if (!was)
        handshake_cpu_ms += cpu_ms(0) - cpu_before_ms;
    if (buf_size(&a->in) > before)
        note_notice(buf_bytes(&a->in) + before, buf_size(&a->in) - before);
    if (!was && tls_link_is_established(a->tls)) {
        step(a, (struct session_event){.kind = SESSION_EVENT_ECHOED});
    }
    flush(a);
}

static bool receive_records(struct agent *a)
{
    uint8_t bytes[READ_SIZE];
    ssize_t n = read(a->fd, bytes, sizeof(bytes));

    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    n_bytes_in += (uint64_t)n;
    take_records(a, bytes, (size_t)n);
    return true;
}

/* False: the connection is lost. */
static bool receive(struct agent *a)
{
    if (a->tls)
        return receive_records(a);
    uint8_t *place = buf_reserve(&a->in, READ_SIZE);
    ssize_t n;

    require(place, "no memory");
    n = read(a->fd, place, READ_SIZE);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    note_notice(place, (size_t)n);
    n_bytes_in += (uint64_t)n;
    buf_commit(&a->in, (size_t)n);
    return true;
}

static void lose(struct agent *a)
{
    n_lost++;
    hang_up(a);
    step(a, (struct session_event){.kind = SESSION_EVENT_LOST, .text = "the connection broke"});
}

static void on_writable(struct agent *a)
{
    if (!a->connected) {
        a->connected = true;
        step(a, (struct session_event){.kind = SESSION_EVENT_CONNECTED});
        if (a->tls)
            take_records(a, NULL, 0); /* begins the handshake */
    }
    flush(a);
    if (a->fd >= 0 && a->polled_out && buf_size(&a->out) == 0)
        watch(a, EPOLL_CTL_MOD, false);
}

static void tick(void)
{
    static uint64_t next_ns;
    uint64_t now = now_ns();

    if (now < next_ns)
        return;
    next_ns = now + TICK_MS * UINT64_C(1000000);
    for (unsigned i = 0; i < settings.n_agents; i++)
        if (session_deadline(&agents[i].session) <= now) {
            step(&agents[i], (struct session_event){.kind = SESSION_EVENT_TIMER});
            flush(&agents[i]);
        }
}

static void work_all(void)
{
    for (unsigned i = 0; i < settings.n_agents; i++)
        if (agents[i].fd >= 0 && buf_size(&agents[i].in) > 0)
            take_frames(&agents[i]);
}

/* Everything that has arrived is read first, then worked on. */
static void turn(void)
{
    static struct epoll_event events[EVENTS];
    /* Without sleeping, where time counts: to wake this process for each notice would be the daemon's work. */
    int n = epoll_wait(epoll_fd, events, EVENTS, only_reading ? 0 : TICK_MS);

    for (int i = 0; i < n; i++) {
        struct agent *a = events[i].data.ptr;

        if (a->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !receive(a))
            lose(a);
    }
    if (only_reading)
        return;
    for (int i = 0; i < n; i++) {
        struct agent *a = events[i].data.ptr;

        if (a->fd >= 0 && events[i].events & EPOLLOUT)
            on_writable(a);
        if (a->fd >= 0 && buf_size(&a->in) > 0)
            take_frames(a);
    }
    tick();
}

/* ---- phases ---- */

static void wait_for(const unsigned *counter, unsigned n, const char *what)
{
    uint64_t until_ns = now_ns() + WAIT_S * UINT64_C(1000000000);

    while (*counter < n) {
        turn();
        require(now_ns() < until_ns, what);
    }
}

static void init_agent(struct agent *a, unsigned i)
{
    struct session_config config = {
        .endpoint = "the rendezvous",
        .cutoff_ns = SESSION_CUTOFF_MS * UINT64_C(1000000),
        .hello = session_hello_of_node(&(struct session_params)SESSION_PARAMS_DEFAULT, WORKERS)};

    config.hello.nonce = (struct session_nonce){.high = (uint64_t)getpid(), .low = i + 1};
    text_copy(config.hello.role, sizeof(config.hello.role), "default");
    config.hello.params.min_nodes = config.hello.params.max_nodes = settings.n_agents;
    config.hello.params.max_restarts = SESSION_COUNT_MAX;
    config.hello.params.node_timeout_ms = settings.node_timeout_ms;
    (void)snprintf(config.hello.host, sizeof(config.hello.host), "node%u.cluster.example", i);
    (void)snprintf(config.hello.job, sizeof(config.hello.job), "load-%d", (int)getpid());
    a->fd = -1;
    session_init(&a->session, &config);
    step(a, (struct session_event){.kind = SESSION_EVENT_GROUP_READY, .port = 40000});
}

static uint64_t join_all(void)
{
    uint64_t begin_ns = now_ns();

    for (unsigned i = 0; i < settings.n_agents; i++)
        step(&agents[i], (struct session_event){.kind = SESSION_EVENT_START});
    wait_for(&n_placed, settings.n_agents, "not everybody got a place in time");
    return placed_last_ns - begin_ns;
}

struct round {
    uint64_t told_ns, placed_ns;
};

static struct round fail_one(unsigned i)
{
    struct agent *a = &agents[i];
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER, .local_rank = 0, .exit_code = 1, .pid = 4711};
    uint64_t begin_ns;

    n_placed = n_told = 0;
    cause.rank = a->session.group_rank * WORKERS;
    begin_ns = now_ns();
    step(a, (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = begin_ns});
    flush(a);
    only_reading = true;
    wait_for(&n_told, settings.n_agents,
             "not everybody was told in time"); /* the failed one is told as well */
    only_reading = false;
    work_all();
    step(a, (struct session_event){.kind = SESSION_EVENT_GROUP_READY, .port = 40000});
    flush(a);
    wait_for(&n_placed, settings.n_agents, "not everybody got the next place in time");
    return (struct round){.told_ns = told_last_ns - begin_ns, .placed_ns = placed_last_ns - begin_ns};
}

/* Lets a second pass between rounds, so that heartbeats have their normal rhythm. */
static void rest(unsigned ms)
{
    uint64_t until_ns = now_ns() + ms * UINT64_C(1000000);

    while (now_ns() < until_ns)
        turn();
}

static int compare(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return a < b ? -1 : a > b;
}

static double quantile_ms(uint64_t *values, unsigned n, double q)
{
    unsigned at = (unsigned)((n - 1) * q + 0.5);

    qsort(values, n, sizeof(*values), compare);
    return (double)values[at] / 1e6;
}

static void print_times(const char *name, uint64_t *values, unsigned n)
{
    printf(",\"%s_ms\":{\"median\":%.2f,\"p99\":%.2f,\"max\":%.2f}", name, quantile_ms(values, n, 0.5),
           quantile_ms(values, n, 0.99), quantile_ms(values, n, 1));
}

static uint64_t measure_join(void)
{
    double own_ms = cpu_ms(0), daemon_ms = settings.daemon ? cpu_ms(settings.daemon) : 0;
    uint64_t join_ns = join_all();

    own_ms = cpu_ms(0) - own_ms;
    daemon_ms = settings.daemon ? cpu_ms(settings.daemon) - daemon_ms : 0;
    printf("{\"join_own_cpu_ms\":%.1f,\"join_handshake_cpu_ms\":%.1f,\"join_daemon_cpu_ms\":%.1f,", own_ms,
           handshake_cpu_ms, daemon_ms);
    return join_ns;
}

static void run(void)
{
    static uint64_t told[ROUNDS_MAX], placed[ROUNDS_MAX];
    uint64_t join_ns = measure_join(), in, out;
    double n = settings.n_agents;

    printf("\"agents\":%u,\"join_ms\":%.1f,\"join_bytes_to\":%.0f,\"join_bytes_from\":%.0f",
           settings.n_agents, (double)join_ns / 1e6, (double)n_bytes_in / n, (double)n_bytes_out / n);
    in = n_bytes_in;
    out = n_bytes_out;
    for (unsigned i = 0; i < settings.n_rounds; i++) {
        struct round r;

        in = n_bytes_in;
        out = n_bytes_out;
        r = fail_one(i * 7919 % settings.n_agents);
        told[i] = r.told_ns;
        placed[i] = r.placed_ns;
        if (i + 1 < settings.n_rounds)
            rest(200);
    }
    printf(",\"round_bytes_to\":%.0f,\"round_bytes_from\":%.0f", (double)(n_bytes_in - in) / n,
           (double)(n_bytes_out - out) / n);
    print_times("notice", told, settings.n_rounds);
    print_times("next_place", placed, settings.n_rounds);
    printf(",\"lost\":%" PRIu64 ",\"redials\":%" PRIu64 "}\n", n_lost, n_redials);
}

static void parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},
        {"host", required_argument, NULL, 'h'},
        {"agents", required_argument, NULL, 'n'},
        {"rounds", required_argument, NULL, 'r'},
        {"node-timeout", required_argument, NULL, 't'},
        {"per-address", required_argument, NULL, 'a'},
        {"secret-file", required_argument, NULL, 's'},
        {"daemon", required_argument, NULL, 'd'},
        {NULL, 0, NULL, 0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        unsigned value = c == 'h' || c == 's' || !optarg ? 0 : (unsigned)strtoul(optarg, NULL, 10);

        if (c == 'h')
            settings.host = optarg;
        else if (c == 's')
            settings.secret_file = optarg;
        else if (c == 'd')
            settings.daemon = atoi(optarg);
        else if (c == 'p')
            settings.port = (uint16_t)value;
        else if (c == 'n')
            settings.n_agents = value;
        else if (c == 'r')
            settings.n_rounds = value;
        else if (c == 't')
            settings.node_timeout_ms = value;
        else if (c == 'a')
            settings.per_address = value;
        else
            exit(2);
    }
    require(settings.port > 0 && settings.n_agents > 1 && settings.n_rounds > 0 &&
                settings.n_rounds <= ROUNDS_MAX && settings.per_address > 0,
            "usage: rounds_load --port P [--host H] [--agents N] [--rounds R] [--node-timeout MS]");
}

static void init_tls(void)
{
    char error[SECRET_ERROR_SIZE], why[TLS_ERROR_SIZE], job[64];
    const char *reason;
    struct secret secret;
    struct secret_key key;

    if (!settings.secret_file)
        return;
    (void)snprintf(job, sizeof(job), "load-%d", (int)getpid());
    require(secret_read_file(&secret, settings.secret_file, SECRET_FILE_ANY, error) == 0, error);
    require(key_derive(&key, secret.bytes, secret.size, KEY_AGENT, job, &reason) == 0,
            "no key can be derived");
    require(tls_context_client(&tls, KEY_AGENT, job, &key, why) == 0, why);
}

int main(int argc, char **argv)
{
    struct rlimit limit;

    parse(argc, argv);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* or as many as there are */
    }
    init_tls();
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    agents = calloc(settings.n_agents, sizeof(*agents));
    require(epoll_fd >= 0 && agents, "no memory");
    for (unsigned i = 0; i < settings.n_agents; i++)
        init_agent(&agents[i], i);
    run();
    return 0;
}
