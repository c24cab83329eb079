/*
 * The rounds in the server, on a loop of the test's own: what it holds for an agent, that it ends with nothing
 * left, also when it is stopped from within, and that it survives memory running out at any allocation. Whole
 * daemons are in tests/integration/test_rounds.py and test_rounds_state.py.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/daemon/compose_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/store_shell_uv.h"
#include "rendezvous/session/session_json.h"
#include "tests/support/c/failing_alloc.h"
#include "tests/support/c/synced_files.h"

#include "tests/support/c/cmocka_fixed.h"

enum { TURNS = 4, PATIENCE_MS = 20000, N_CROWD = 40 };

static uv_loop_t loop;
static struct server *server;
static char folder[] = "/tmp/test_server_rounds.XXXXXX";
static bool stopped, stop_when_deserted;
static unsigned n_lines, n_deserted;

static void note_stopped(void *data)
{
    stopped = true;
}

static bool disk_was_slow, disk_was_given_up, disk_was_back, disk_has_failed;

static void count_line(void *data, const char *line)
{
    disk_was_slow = disk_was_slow || strstr(line, "agents wait for it");
    disk_was_given_up = disk_was_given_up || strstr(line, "go on without");
    disk_was_back = disk_was_back || strstr(line, "is written again");
    disk_has_failed = disk_has_failed || strstr(line, "cannot be written: Input/output error");
    assert_true(strlen(line) > 0 && !strchr(line, '\n'));
    n_lines++;
}

static void note_deserted(void *data)
{
    n_deserted++;
    if (stop_when_deserted)
        server_stop(server, note_stopped, NULL);
}

static unsigned disk_limit_ms;

static int start(const char *state_dir)
{
    struct server_rounds rounds = {
        .state = state_dir, .disk_limit_ms = disk_limit_ms, .log = count_line, .empty = note_deserted};
    struct server_config config = {.rounds = &rounds};

    stopped = stop_when_deserted = false;
    n_lines = n_deserted = 0;
    return server_create(&server, &loop, &config);
}

static void run_out(void)
{
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_true(stopped);
}

static void stop(void)
{
    server_stop(server, note_stopped, NULL);
    run_out();
}

static void empty_folder(void)
{
    DIR *list = opendir(folder);
    struct dirent *entry;

    assert_non_null(list);
    while ((entry = readdir(list)))
        if (entry->d_name[0] != '.')
            assert_int_equal(unlinkat(dirfd(list), entry->d_name, 0), 0);
    assert_int_equal(closedir(list), 0);
}

static void turn(void)
{
    for (int i = 0; i < TURNS; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* ---- agents ---- */

struct client {
    int fd;
    struct frame_reader reader;
    struct buf in;
    struct session_hello hello;
    unsigned n_alive;         /* empty frames heard */
    bool told;                /* view is set */
    struct session_view view; /* the last one */
};

/* For hear(): any view but a refusal. */
enum { VIEW_ANY = SESSION_VIEW_COUNT };

static void client_init(struct client *c, unsigned number, unsigned n_nodes)
{
    int pair[2];

    *c = (struct client){.hello = {.job = "job",
                                   .nonce = {.low = number},
                                   .role = "default",
                                   .n_workers = 1,
                                   .node_rank = -1,
                                   .params = SESSION_PARAMS_DEFAULT,
                                   .report = {.phase = SESSION_READY, .generation = -1, .group_rank = -1}}};
    c->hello.params.min_nodes = c->hello.params.max_nodes = n_nodes;
    c->hello.params.node_timeout_ms = 600000;
    (void)snprintf(c->hello.host, sizeof(c->hello.host), "node%u", number);
    frame_reader_init_agent(&c->reader, 7);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    c->fd = pair[1];
    (void)server_admit(server, NULL, pair[0], &(struct conn_owner){.id = 1},
                       false); /* without memory it closes the socket */
}

static void client_finish(struct client *c)
{
    (void)close(c->fd); /* nothing is pending on it */
    buf_finish(&c->in);
    turn();
}

/* In two pieces, so that the start of a frame is kept. */
static void say(struct client *c, const struct buf *bytes)
{
    size_t half = buf_size(bytes) / 2;

    (void)send(c->fd, buf_bytes(bytes), half, MSG_NOSIGNAL); /* whoever was cut off says nothing */
    turn();
    (void)send(c->fd, buf_bytes(bytes) + half, buf_size(bytes) - half, MSG_NOSIGNAL);
    turn();
}

/* Put together before any memory fails. What a client needs of it later may fail as well: it says nothing then. */
static struct buf greeting, opening;

static bool say_hello(struct client *c)
{
    struct buf bytes = {0};
    bool said;

    c->hello.attempt++;
    said = session_json_put_hello(&bytes, &c->hello) == 0;
    say(c, &greeting);
    say(c, &opening);
    if (said)
        say(c, &bytes);
    buf_finish(&bytes);
    return said;
}

static bool say_report(struct client *c, enum session_phase phase)
{
    struct buf bytes = {0};
    bool said;

    c->hello.report.phase = phase;
    c->hello.report.instance = c->view.instance;
    c->hello.report.generation = c->view.generation;
    c->hello.report.group_rank = (int32_t)c->view.place.group_rank;
    said = session_json_put_report(&bytes, &c->hello.report) == 0;
    if (said)
        say(c, &bytes);
    buf_finish(&bytes);
    return said;
}

/* Takes one frame out of what has arrived; false: there is none. */
static bool take_frame(struct client *c)
{
    char error[SESSION_JSON_ERROR_SIZE];
    struct frame frame;
    size_t size;

    if (frame_decode(&c->reader, buf_bytes(&c->in), buf_size(&c->in), &frame, &size) != 0)
        return false;
    if (frame.kind == FRAME_BODY)
        c->told = session_json_get_view(frame.body.data, frame.body.size, &c->view, error);
    c->n_alive += frame.kind == FRAME_ALIVE;
    buf_consume(&c->in, size);
    return true;
}

static bool is_told(const struct client *c, unsigned kind)
{
    bool refused = c->view.kind == SESSION_VIEW_REFUSED;

    return c->told && (c->view.kind == kind || (kind == VIEW_ANY && !refused));
}

/* Waits until the last view is of that kind; false: it was refused, or the connection closed. */
static bool hear(struct client *c, unsigned kind)
{
    for (int i = 0; i < PATIENCE_MS && !is_told(c, kind) && !is_told(c, SESSION_VIEW_REFUSED); i++) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        uint8_t bytes[4096];
        ssize_t n;

        turn();
        n = poll(&p, 1, 1) > 0 ? recv(c->fd, bytes, sizeof(bytes), 0) : -1;
        if (n == 0 || (n > 0 && buf_append(&c->in, bytes, (size_t)n) < 0))
            return false;
        while (!is_told(c, kind) && take_frame(c))
            ;
    }
    return is_told(c, kind);
}

/* ---- tests ---- */

static void test_idle_agent_is_small(void **state)
{
    static struct client clients[N_CROWD];
    size_t live;

    assert_true(sizeof(struct agent_conn) < 600);
    assert_int_equal(start(NULL), 0);
    for (unsigned i = 0; i < N_CROWD; i++)
        client_init(&clients[i], i, N_CROWD + 1);
    for (unsigned i = 0; i < N_CROWD / 2; i++)
        assert_true(say_hello(&clients[i]) && hear(&clients[i], SESSION_VIEW_WAIT));
    live = failing_alloc_live();
    for (unsigned i = N_CROWD / 2; i < N_CROWD; i++)
        assert_true(say_hello(&clients[i]) && hear(&clients[i], SESSION_VIEW_WAIT));
    /* Each: the agent in the place of the client, the node, and here the test's own buffer. */
    assert_in_range(failing_alloc_live() - live, N_CROWD, N_CROWD + 2);
    assert_int_equal(server_n_nodes(server), N_CROWD);
    stop();
    for (unsigned i = 0; i < N_CROWD; i++)
        client_finish(&clients[i]);
}

static void test_closed_jobs_are_told_and_left(void **state)
{
    struct client a, b;

    assert_int_equal(start(NULL), 0);
    client_init(&a, 1, 2);
    client_init(&b, 2, 3);
    (void)snprintf(b.hello.job, sizeof(b.hello.job), "other");
    assert_true(say_hello(&a) && say_hello(&b));
    server_close_jobs(server, "the machine goes down");
    assert_true(hear(&a, SESSION_VIEW_END));
    assert_int_equal(a.view.verdict, SESSION_VERDICT_FAILURE);
    assert_string_equal(a.view.cause.text, "the machine goes down");
    assert_true(hear(&b, SESSION_VIEW_END));
    assert_int_equal(n_deserted, 0);
    client_finish(&a);
    assert_int_equal(n_deserted, 0);
    client_finish(&b);
    assert_int_equal(n_deserted, 1);
    assert_int_equal(server_n_nodes(server), 0);
    stop();
}

static void test_jobs_that_begin_later_are_closed(void **state)
{
    struct client a;

    assert_int_equal(start(NULL), 0);
    server_close_all_jobs(server, "a host is missing");
    client_init(&a, 1, 2);
    assert_true(say_hello(&a) && hear(&a, SESSION_VIEW_END));
    assert_string_equal(a.view.cause.text, "a host is missing");
    client_finish(&a);
    stop();
}

static void test_stopped_from_within(void **state)
{
    struct client a, b;

    assert_int_equal(start(NULL), 0);
    stop_when_deserted = true;
    client_init(&a, 1, 2);
    client_init(&b, 2, 2);
    assert_true(say_hello(&a) && hear(&a, SESSION_VIEW_WAIT));
    assert_true(say_report(&a, SESSION_LEFT)); /* the only node there is; b has not said who it is */
    run_out();
    client_finish(&a);
    client_finish(&b);
}

static void test_drain_ends_with_agents(void **state)
{
    struct client a;
    uint8_t bytes[512];

    assert_int_equal(start(folder), 0);
    client_init(&a, 1, 1);
    assert_true(say_hello(&a));
    server_drain(server, PATIENCE_MS, note_stopped, NULL);
    assert_true(hear(&a, SESSION_VIEW_START)); /* which was being written down */
    while (recv(a.fd, bytes, sizeof(bytes), 0) != 0)
        turn();
    client_finish(&a);
    run_out();
    assert_int_equal(n_deserted, 0);
    empty_folder();
}

static bool ask_alive(struct client *c)
{
    static const uint8_t empty[FRAME_HEADER_SIZE];
    unsigned n = c->n_alive;

    c->told = false;
    (void)send(c->fd, empty, sizeof(empty), MSG_NOSIGNAL);
    for (int i = 0; i < PATIENCE_MS && c->n_alive == n && !c->told; i++) {
        uint8_t bytes[4096];
        ssize_t got;

        turn();
        got = recv(c->fd, bytes, sizeof(bytes), 0);
        assert_true(got < 0 || buf_append(&c->in, bytes, (size_t)got) == 0);
        while (take_frame(c))
            ;
    }
    return c->n_alive > n && !c->told;
}

/* What is not on disk yet is not said; whatever does not depend on it is. */
static void test_slow_disk_holds_back_what_it_must(void **state)
{
    struct client a, b, other;

    assert_int_equal(start(folder), 0);
    client_init(&a, 1, 2);
    client_init(&b, 2, 2);
    client_init(&other, 3, 2);
    (void)snprintf(other.hello.job, sizeof(other.hello.job), "other");
    synced_files_hang = true;
    assert_true(say_hello(&a) && hear(&a, SESSION_VIEW_WAIT));
    assert_true(say_hello(&b));
    assert_true(say_hello(&other) && hear(&other, SESSION_VIEW_WAIT));
    for (int i = 0; i < 10; i++) /* and nothing but that */
        assert_true(ask_alive(&a) && ask_alive(&b));
    synced_files_hang = false;
    assert_true(hear(&a, SESSION_VIEW_START) && hear(&b, SESSION_VIEW_START));
    client_finish(&a);
    client_finish(&b);
    client_finish(&other);
    stop();
    empty_folder();
}

/* Takes what has arrived. */
static void take_arrived(struct client *c)
{
    uint8_t bytes[4096];
    ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);

    assert_true(n < 0 || buf_append(&c->in, bytes, (size_t)n) == 0);
    while (take_frame(c))
        ;
}

/* A crash forgets an end that is not on disk: an agent that was refused because of it would have ended for nothing. */
static void test_refusal_is_held_until_its_reason_is_saved(void **state)
{
    struct client a, late;

    assert_int_equal(start(folder), 0);
    client_init(&a, 1, 1);
    client_init(&late, 2, 1);
    assert_true(say_hello(&a) && hear(&a, SESSION_VIEW_START));
    synced_files_hang = true;
    assert_true(say_report(&a, SESSION_DONE));
    assert_true(say_hello(&late));
    for (int i = 0; i < 10; i++)
        assert_true(ask_alive(&a)); /* its own end is held, too */
    take_arrived(&late);
    assert_false(late.told);
    synced_files_hang = false;
    assert_true(hear(&a, SESSION_VIEW_END));
    assert_false(hear(&late, VIEW_ANY));
    assert_int_equal(late.view.kind, SESSION_VIEW_REFUSED);
    assert_non_null(strstr(late.view.cause.text, "is over"));
    client_finish(&a);
    client_finish(&late);
    stop();
    empty_folder();
}

/* A write that never ends is logged, and holds nothing back any more after a while. */
static void test_hanging_disk_is_given_up(void **state)
{
    struct client a, b;

    disk_limit_ms = 120;
    disk_was_slow = disk_was_given_up = disk_was_back = false;
    assert_int_equal(start(folder), 0);
    client_init(&a, 1, 1);
    synced_files_hang = true;
    assert_true(say_hello(&a));
    assert_true(hear(&a, SESSION_VIEW_START));
    assert_true(disk_was_slow && disk_was_given_up);
    client_init(&b, 2, 1); /* and the next one is not held at all */
    (void)snprintf(b.hello.job, sizeof(b.hello.job), "other");
    assert_true(say_hello(&b));
    assert_true(hear(&b, SESSION_VIEW_START));
    synced_files_hang = false;
    for (int i = 0; i < PATIENCE_MS && !disk_was_back; i++) {
        turn();
        (void)poll(NULL, 0, 1);
    }
    assert_true(disk_was_back);
    client_finish(&a);
    client_finish(&b);
    stop();
    empty_folder();
    disk_limit_ms = 0;
}

/* After a power failure the state directory itself has to be there. */
static void test_the_state_directory_is_synced(void **state)
{
    char inside[sizeof(folder) + 16];

    (void)snprintf(inside, sizeof(inside), "%s/../%s.new", folder, strrchr(folder, '/') + 1);
    (void)rmdir(inside);
    synced_files_n_tmp = 0;
    assert_int_equal(start(inside), 0);
    assert_true(synced_files_n_tmp > 0);
    stop();
    assert_int_equal(rmdir(inside), 0);
}

static void assert_synced(void)
{
    char reason[SYNCED_FILES_REASON_SIZE];

    synced_files_compare(reason);
    if (reason[0])
        fail_msg("%s", reason);
}

static unsigned count_state_files(void)
{
    DIR *list = opendir(folder);
    struct dirent *entry;
    unsigned n = 0;

    assert_non_null(list);
    while ((entry = readdir(list)))
        n += entry->d_name[0] != '.';
    assert_int_equal(closedir(list), 0);
    return n;
}

/* Until the thread has carried out all that was ordered: the folder has so many files, and is as a power cut would leave it. */
static void wait_until_synced(unsigned n_files)
{
    char reason[SYNCED_FILES_REASON_SIZE] = "";

    for (int i = 0; i < PATIENCE_MS; i++) {
        turn();
        synced_files_compare(reason);
        if (count_state_files() == n_files && !reason[0])
            return;
        (void)poll(NULL, 0, 1);
    }
    fail_msg("%u files instead of %u; %s", count_state_files(), n_files, reason);
}

/* A power cut after an agent has read what to do leaves all that this depends on: a file that was written the first time, one that
 * was replaced, and, when the job has ended, no file. */
static void test_what_was_told_survives_a_power_cut(void **state)
{
    struct client a, b;

    assert_int_equal(start(folder), 0);
    synced_files_watch(folder);
    client_init(&a, 1, 2);
    client_init(&b, 2, 2);
    a.hello.params.max_restarts = b.hello.params.max_restarts = 3;
    assert_true(say_hello(&a) && say_hello(&b));
    for (int generation = 0; generation < 3; generation++) {
        assert_true(hear(&a, SESSION_VIEW_START) && a.view.generation == generation);
        assert_int_equal(count_state_files(), 1);
        assert_synced();
        assert_true(hear(&b, SESSION_VIEW_START));
        assert_true(say_report(&a, SESSION_RUNNING) && say_report(&b, SESSION_FAILED));
        assert_true(hear(&a, SESSION_VIEW_STOP) && hear(&b, SESSION_VIEW_STOP));
        assert_true(say_report(&a, SESSION_READY) && say_report(&b, SESSION_READY));
    }
    assert_true(hear(&a, SESSION_VIEW_START) && hear(&b, SESSION_VIEW_START));
    assert_true(say_report(&a, SESSION_RUNNING) && say_report(&b, SESSION_RUNNING));
    assert_true(say_report(&a, SESSION_DONE) && say_report(&b, SESSION_DONE));
    assert_true(hear(&a, SESSION_VIEW_END) && hear(&b, SESSION_VIEW_END));
    assert_true(say_report(&a, SESSION_LEFT) && say_report(&b, SESSION_LEFT));
    client_finish(&a);
    client_finish(&b);
    wait_until_synced(0);
    stop();
}

/* A disk that does not take a file, or the names of the folder: it is logged, and the file before stays as it was. */
static void test_failing_fsync_is_logged(void **state)
{
    for (int folders = 0; folders < 2; folders++) {
        atomic_int *error = folders ? &synced_files_folder_error : &synced_files_file_error;
        struct client a;

        disk_has_failed = false;
        assert_int_equal(start(folder), 0);
        synced_files_watch(folder);
        client_init(&a, 1, 1);
        *error = EIO;
        assert_true(say_hello(&a) && hear(&a, SESSION_VIEW_START));
        assert_true(disk_has_failed);
        assert_int_equal(count_state_files(), folders ? 1 : 0);
        *error = 0;
        client_finish(&a);
        stop();
        empty_folder();
    }
}

static void write_damaged(const char *name)
{
    char path[sizeof(folder) + 64];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(close(fd), 0);
}

static bool is_in_folder(const char *name)
{
    char path[sizeof(folder) + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* What was set aside once is not written over: an administrator may want to look at it. */
static void test_each_damaged_file_is_kept(void **state)
{
    static const char name[] = "job-0123456789abcdef.json";

    for (int i = 0; i < 3; i++) {
        write_damaged(name);
        assert_int_equal(start(folder), 0);
        stop();
    }
    assert_false(is_in_folder(name));
    assert_true(is_in_folder("job-0123456789abcdef.json.damaged"));
    assert_true(is_in_folder("job-0123456789abcdef.json.damaged.2"));
    assert_true(is_in_folder("job-0123456789abcdef.json.damaged.3"));
    empty_folder();
}

/* Not completed by an agent that is there: its frame is not waited for longer than a hello. */
static void test_incomplete_frame_has_a_deadline(void **state)
{
    static const uint8_t half[] = {0, 0};
    struct client a;
    uint8_t bytes[512];
    ssize_t n = -1;

    assert_int_equal(start(NULL), 0);
    server->limits.handshake_ms = 1000;
    client_init(&a, 1, 1);
    a.hello.params.node_timeout_ms = 600000;
    assert_true(say_hello(&a) && hear(&a, SESSION_VIEW_START));
    assert_true(ask_alive(&a)); /* a whole one has none */
    assert_int_equal(send(a.fd, half, sizeof(half), MSG_NOSIGNAL), sizeof(half));
    for (int i = 0; i < 20000 && n != 0; i++) {
        turn();
        n = recv(a.fd, bytes, sizeof(bytes), 0);
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(n, 0);
    client_finish(&a);
    stop();
}

/* What clients of the store have not completed may be all that is allowed, and agents are served. */
static void test_clients_do_not_use_up_the_input_of_agents(void **state)
{
    static const uint8_t empty[FRAME_HEADER_SIZE];
    struct client a;

    assert_int_equal(start(NULL), 0);
    client_init(&a, 1, 1);
    assert_true(say_hello(&a) && hear(&a, SESSION_VIEW_START));
    store_shell_of(server)->input.total = 2 * server->limits.input_all_max;
    assert_int_equal(send(a.fd, empty, 1, MSG_NOSIGNAL), 1);
    for (int i = 0; i < TURNS; i++)
        turn();
    assert_int_equal(send(a.fd, empty + 1, sizeof(empty) - 1, MSG_NOSIGNAL), sizeof(empty) - 1);
    assert_true(ask_alive(&a));
    store_shell_of(server)->input.total = 0;
    client_finish(&a);
    stop();
}

/* A server that is stopped while it writes is there until that is over. */
static void test_stopped_while_writing(void **state)
{
    struct client a;

    assert_int_equal(start(folder), 0);
    client_init(&a, 1, 1);
    synced_files_hang = true;
    assert_true(say_hello(&a));
    server_stop(server, note_stopped, NULL);
    turn();
    assert_false(stopped);
    synced_files_hang = false;
    run_out();
    client_finish(&a);
    empty_folder();
}

/* Two nodes join, one fails, the other is told, both go: everything that allocates. */
static void converse(void)
{
    struct client a, b;

    client_init(&a, 1, 2);
    client_init(&b, 2, 2);
    /* Each step is only waited for when the one before shows that it has to come. */
    if (say_hello(&a) && say_hello(&b) && hear(&a, VIEW_ANY) && hear(&b, VIEW_ANY) &&
        hear(&a, SESSION_VIEW_START) && hear(&b, SESSION_VIEW_START)) {
        if (say_report(&a, SESSION_RUNNING) && say_report(&b, SESSION_FAILED) && hear(&b, SESSION_VIEW_STOP))
            (void)hear(&a, SESSION_VIEW_STOP);
    }
    client_finish(&a);
    client_finish(&b);
}

/* The server is still there for others. */
static void check_served(void)
{
    struct client c;

    client_init(&c, 3, 1);
    (void)snprintf(c.hello.job, sizeof(c.hello.job), "after");
    assert_true(say_hello(&c));
    assert_true(hear(&c, SESSION_VIEW_START));
    client_finish(&c);
}

static void check_memory(const char *state_dir)
{
    size_t k, live = failing_alloc_live();
    bool fired = true;

    for (k = 1; fired; k++) {
        failing_alloc_arm(k);
        if (start(state_dir) == 0) {
            converse();
            fired = failing_alloc_fired();
            failing_alloc_arm(0);
            check_served();
            stop();
        }
        failing_alloc_arm(0);
        empty_folder();
        if (failing_alloc_live() != live)
            fail_msg("k = %zu: %zu allocations were not given back", k, failing_alloc_live() - live);
    }
    print_message("%zu allocations failed, one at a time\n", k - 2);
    assert_true(k > 15);
}

static void test_memory_runs_out(void **state)
{
    check_memory(NULL);
}

static void test_memory_runs_out_with_state(void **state)
{
    check_memory(folder);
}

static int set_up(void **state)
{
    return mkdtemp(folder) && frame_put_greeting(&greeting, 7) == 0 && frame_put_opening(&opening) == 0
               ? uv_loop_init(&loop)
               : -1;
}

static int tear_down(void **state)
{
    empty_folder();
    buf_finish(&greeting);
    buf_finish(&opening);
    return rmdir(folder) == 0 ? uv_loop_close(&loop) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_agent_is_small),
        cmocka_unit_test(test_closed_jobs_are_told_and_left),
        cmocka_unit_test(test_jobs_that_begin_later_are_closed),
        cmocka_unit_test(test_stopped_from_within),
        cmocka_unit_test(test_drain_ends_with_agents),
        cmocka_unit_test(test_slow_disk_holds_back_what_it_must),
        cmocka_unit_test(test_refusal_is_held_until_its_reason_is_saved),
        cmocka_unit_test(test_hanging_disk_is_given_up),
        cmocka_unit_test(test_the_state_directory_is_synced),
        cmocka_unit_test(test_what_was_told_survives_a_power_cut),
        cmocka_unit_test(test_failing_fsync_is_logged),
        cmocka_unit_test(test_each_damaged_file_is_kept),
        cmocka_unit_test(test_incomplete_frame_has_a_deadline),
        cmocka_unit_test(test_clients_do_not_use_up_the_input_of_agents),
        cmocka_unit_test(test_stopped_while_writing),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_memory_runs_out_with_state),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
