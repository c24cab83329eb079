/*
 * crund: the rendezvous daemon. Parses options, listens, prints the address, runs, drains, exits.
 *
 * Exit codes: 0 stopped by SIGTERM or SIGINT, 1 could not start, 2 wrong usage.
 */

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include "base/decimal.h"
#include "base/err.h"
#include "rendezvous/daemon/compose_uv.h"
#include "rendezvous/daemon/credentials_uv.h"
#include "base/option_answer_os.h"
#include "rendezvous/daemon/daemon_options.h"
#include "rendezvous/daemon/daemon_sandbox_os.h"
#include "rendezvous/daemon/etcd_login_os.h"
#include "rendezvous/store/metrics_text.h"
#include "rendezvous/server/metrics_uv.h"
#include "rendezvous/daemon/sd_notify_sock.h"
#include "rendezvous/server/server_security.h"
#include "rendezvous/store/store_stats.h"

enum { N_SIGNALS = 3, FIRST_INHERITED_FD = 3 };

/* With a smaller backlog, a few thousand clients that connect together have to retry. */
enum { BACKLOG_WARNING = 1024 };

struct daemon {
    struct daemon_options options;
    uv_loop_t loop;
    struct server *server;
    char address[sizeof(((struct daemon_address *)NULL)->host) + 16]; /* first listening address; "": none */
    struct etcd_login login;
    uv_signal_t signals[N_SIGNALS];
    size_t n_signals;               /* watched */
    struct metrics *metrics;        /* NULL: none are served */
    struct store_stats stats;       /* for the metrics */
    struct credentials credentials; /* of agents */
    uv_poll_t owner;                /* of announce_fd */
    bool has_owner;                 /* owner is open */
    bool stopping;
};

/* poll() before write(): a writable pipe takes a whole line. A pipe whose reader has stopped is not
 * writable, and a log line must not block the clients. */
static bool may_write_log(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&p, 1, 0) == 1 && p.revents & POLLOUT;
}

static void print_log_line(void *data, const char *line)
{
    static uint64_t n_dropped;

    if (!may_write_log()) {
        n_dropped++;
        return;
    }
    if (n_dropped > 0)
        (void)fprintf(stderr, "crund: %llu lines dropped: standard error was full\n",
                      (unsigned long long)n_dropped);
    n_dropped = 0;
    (void)fprintf(stderr, "crund: %s\n", line);
}

static void log_failure(const char *what, const char *where, int error)
{
    (void)fprintf(stderr, "crund: %s %s: %s\n", what, where, strerror(-error));
}

/* ---- surroundings ---- */

/* Raises the limit of file descriptors to its hard limit; crund(8) explains how to raise the hard limit. */
static void raise_fd_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        log_failure("cannot raise the limit of", "file descriptors", -errno);
}

static void warn_small_backlog(void)
{
    FILE *f = fopen("/proc/sys/net/core/somaxconn", "re");
    int backlog;

    if (!f)
        return;
    if (fscanf(f, "%d", &backlog) == 1 && backlog < BACKLOG_WARNING)
        (void)fprintf(stderr,
                      "crund: net.core.somaxconn is %d: when more clients than that connect at once, "
                      "some have to try again; raise it with sysctl\n",
                      backlog);
    (void)fclose(f); /* only read */
}

/* ---- stopping ---- */

static void on_server_stopped(void *data)
{
    struct daemon *d = data;

    for (size_t i = 0; i < d->n_signals; i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    if (d->has_owner)
        uv_close((uv_handle_t *)&d->owner, NULL);
    metrics_destroy(d->metrics);
    d->metrics = NULL;
}

/* ---- signals ---- */

/* why: for the log, or NULL. */
static void stop_daemon(struct daemon *d, const char *why)
{
    d->stopping = true;
    d->credentials.server = NULL;
    if (why)
        (void)fprintf(stderr, "crund: %s: stopping\n", why);
    int r = sd_notify_send("STOPPING=1");
    if (r < 0)
        log_failure("cannot notify", "the service manager", r);
    server_drain(d->server, d->options.drain_ms, on_server_stopped, d);
}

/* The other end of --announce-fd is closed: its process has ended, or needs crund no more. */
static void on_owner(uv_poll_t *handle, int status, int events)
{
    struct daemon *d = handle->data;

    (void)uv_poll_stop(handle); /* cannot fail */
    if (!d->stopping)
        stop_daemon(d, NULL);
}

static void on_daemon_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;

    if (d->stopping)
        return;
    if (number == SIGHUP && credentials_are_wanted(&d->options)) {
        credentials_reread(&d->credentials);
        return;
    }
    stop_daemon(d, strsignal(number));
}

static int watch_signals(struct daemon *d)
{
    static const int numbers[N_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};
    size_t n = credentials_are_wanted(&d->options) ? N_SIGNALS : N_SIGNALS - 1; /* SIGHUP reads them again */

    for (size_t i = 0; i < n; i++) {
        d->signals[i].data = d;
        TRY(uv_signal_init(&d->loop, &d->signals[i]));
        d->n_signals++;
        TRY(uv_signal_start(&d->signals[i], on_daemon_signal, numbers[i]));
    }
    return 0;
}

/* ---- starting ---- */

static void *end_at_once(void *data)
{
    return data;
}

static void do_no_work(uv_work_t *work)
{
    (void)work; /* only starts the thread */
}

static void after_no_work(uv_work_t *work, int status)
{
    (void)work;
    (void)status; /* 0: never cancelled */
}

/* libuv starts the threads for the state and for credentials with the first batch, and aborts the process where the system has no
 * thread to give. So the system is asked for a thread here, and libuv starts the only thread now. */
static int start_state_thread(struct daemon *d)
{
    static uv_work_t work;
    pthread_t thread;

    if (!d->options.state && !credentials_are_wanted(&d->options))
        return 0;
    int r = pthread_create(&thread, NULL, end_at_once, NULL);
    if (r)
        return -r;
    (void)pthread_join(thread, NULL);
    /* A thread for the state, and another for files of secrets, which may hang. Without memory: four threads. */
    (void)setenv("UV_THREADPOOL_SIZE", "2", 0);
    return uv_queue_work(&d->loop, &work, do_no_work, after_no_work);
}

/* A line for the owner, from an empty pipe or socket. */
static int announce(struct daemon *d, const char *address)
{
    char line[sizeof(d->address) + 1];
    int n = snprintf(line, sizeof(line), "%s\n", address); /* fits */

    if (d->options.announce_fd < 0 || write(d->options.announce_fd, line, (size_t)n) == n)
        return 0;
    log_failure("cannot write to", "--announce-fd", -errno);
    return -EIO;
}

static int watch_owner(struct daemon *d)
{
    if (d->options.announce_fd < 0)
        return 0;
    TRY(uv_poll_init(&d->loop, &d->owner, d->options.announce_fd));
    d->owner.data = d;
    d->has_owner = true;
    return uv_poll_start(&d->owner, UV_DISCONNECT, on_owner);
}

static int listen_tcp(struct daemon *d, const struct daemon_address *a)
{
    char address[sizeof(d->address)];
    uint16_t port = a->port;
    int r = server_listen_tcp(d->server, a->host, a->port, &port);

    (void)snprintf(address, sizeof(address), strchr(a->host, ':') ? "[%s]:%u" : "%s:%u", a->host, port);
    if (r < 0) {
        log_failure("cannot listen on", address, r);
        return r;
    }
    (void)printf("crund: listening on %s\n", address);
    if (d->address[0] == '\0')
        memcpy(d->address, address, sizeof(address));
    return announce(d, address);
}

static int listen_unix(struct daemon *d, const struct daemon_address *a)
{
    int r = server_listen_unix(d->server, a->unix_path);

    if (r < 0)
        log_failure("cannot listen on", a->unix_path, r);
    else
        (void)printf("crund: listening on %s\n", a->unix_path);
    return r;
}

/* How many sockets the service manager has opened, from descriptor 3 on (sd_listen_fds(3)). */
static unsigned count_inherited(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    uint64_t value;

    if (!pid || !n || !decimal_parse(pid, 1, INT_MAX, &value) || value != (uint64_t)getpid())
        return 0;
    return decimal_parse(n, 1, DAEMON_LISTEN_MAX, &value) ? (unsigned)value : 0;
}

static int listen_inherited(struct daemon *d, int fd)
{
    uint16_t port;
    int r = server_listen_fd(d->server, fd, &port);

    if (r < 0)
        (void)fprintf(stderr, "crund: cannot use descriptor %d of the service manager: %s\n", fd,
                      strerror(-r));
    else
        (void)printf("crund: listening on descriptor %d (port %u)\n", fd, port);
    return r;
}

static void compose_metrics(void *data, struct metrics_text *m)
{
    struct daemon *d = data;

    server_write_metrics(d->server, m);
    server_write_job_metrics(d->server, m);
    store_stats_write(&d->stats, m);
}

static int serve_metrics(struct daemon *d)
{
    const struct metrics_host host = {.loop = &d->loop, .compose = compose_metrics, .data = d};
    char why[METRICS_ERROR_SIZE];
    uint16_t port;

    if (!d->options.metrics_addr)
        return 0;
    int r = metrics_create(&d->metrics, &host, d->options.metrics_addr, &port, why);
    if (r < 0)
        (void)fprintf(stderr, "crund: %s\n", why);
    else
        (void)printf("crund: metrics on port %u\n", port);
    return r;
}

static int start_listening(struct daemon *d)
{
    unsigned n_inherited = count_inherited();

    for (unsigned i = 0; i < n_inherited; i++)
        TRY(listen_inherited(d, FIRST_INHERITED_FD + (int)i));
    if (n_inherited > 0 && d->options.is_default_address)
        d->options.n_addresses = 0;
    for (size_t i = 0; i < d->options.n_addresses; i++) {
        const struct daemon_address *a = &d->options.addresses[i];

        TRY(a->unix_path ? listen_unix(d, a) : listen_tcp(d, a));
    }
    TRY(serve_metrics(d));
    /* Scripts wait for the lines above. */
    if (fflush(stdout) == 0)
        return 0;
    log_failure("cannot write to", "standard output", -errno);
    return -EIO;
}

/* The options point into `login` afterwards. */
static int read_etcd_access(struct daemon *d)
{
    struct etcd_access *a = &d->options.etcd;
    char error[ETCD_LOGIN_ERROR_SIZE];
    int r = 0;

    if (d->options.etcd_login)
        r = etcd_login_read(&d->login, d->options.etcd_login, error);
    if (r == 0 && a->key_file)
        r = etcd_key_check(a->key_file, error);
    if (r < 0)
        (void)fprintf(stderr, "crund: %s\n", error);
    if (r == 0 && d->options.etcd_login) {
        a->user = d->login.user;
        a->password = d->login.password;
    }
    return r;
}

/* Opens files before the sandbox hides them. A sentence was printed on failure, as by the functions below. */
static int open_daemon(void *data)
{
    struct daemon *d = data;
    char error[CERTIFICATE_ERROR_SIZE];
    int r = uv_loop_init(&d->loop);

    d->credentials = (struct credentials){.options = &d->options, .loop = &d->loop};
    if (r < 0) {
        log_failure("cannot", "start", r);
        return r;
    }
    r = credentials_read(&d->credentials, error);
    if (r < 0)
        (void)fprintf(stderr, "crund: %s\n", error);
    return r;
}

static int create_daemon_server(struct daemon *d)
{
    struct server_security security = credentials_security(&d->credentials);
    struct server_config config = {.limits = &d->options.limits,
                                   .rounds = &d->options.rounds,
                                   .security = credentials_are_wanted(&d->options) ? &security : NULL,
                                   .log = print_log_line,
                                   .stats = d->options.metrics_addr ? &d->stats : NULL};

    d->options.rounds.state = d->options.state;
    d->options.rounds.log = print_log_line;
    d->options.rounds.debug = d->options.debug ? print_log_line : NULL;
    d->options.rounds.etcd = d->options.etcd;
    return server_create(&d->server, &d->loop, &config);
}

static int start_daemon(void *data)
{
    static int (*const steps[])(struct daemon *) = {watch_signals, start_state_thread, watch_owner,
                                                    read_etcd_access, create_daemon_server};
    struct daemon *d = data;
    int r = 0;

    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(steps); i++)
        r = steps[i](d);
    if (r < 0) {
        log_failure("cannot", "start", r);
        return r;
    }
    d->credentials.server = d->server;
    return start_listening(d);
}

static int run_daemon(struct daemon *d)
{
    int r = sd_notify_open();

    if (r < 0)
        log_failure("cannot notify", "the service manager", r);
    r = daemon_sandbox_around(&d->options, open_daemon, start_daemon, d);
    if (r == 0)
        r = server_advertise(d->server, d->options.advertise ? d->options.advertise : d->address);
    if (r < 0 && d->server) {
        server_stop(d->server, on_server_stopped, d); /* or socket files would stay */
        (void)uv_run(&d->loop, UV_RUN_DEFAULT);
    }
    if (r < 0)
        return EXIT_FAILURE;
    r = sd_notify_send("READY=1");
    if (r < 0)
        log_failure("cannot notify", "the service manager", r);
    (void)uv_run(&d->loop, UV_RUN_DEFAULT); /* returns when no handle is left */
    credentials_finish(&d->credentials);
    r = uv_loop_close(&d->loop);
    if (r < 0)
        log_failure("cannot", "end cleanly", r);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char *argv[])
{
    static struct daemon daemon;
    char error[512];

    int r = daemon_options_parse(&daemon.options, argv, error, sizeof(error));
    if (r)
        return option_answer(&daemon_option_table, r, error, CRUN_VERSION);
    (void)signal(SIGPIPE, SIG_IGN); /* a client that left is a result of write() */
    (void)signal(SIGXFSZ, SIG_IGN); /* at the limit of file size a save fails, and the jobs go on */
    raise_fd_limit();
    warn_small_backlog();
    return run_daemon(&daemon);
}
