/* Looks at a process that waits for a peer: a message received and answered is a move, however short; a wait that goes on is none. */

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "launcher/watch/proc_activity_os.h"
#include "launcher/watch/proc_sample_os.h"

#include "tests/support/c/cmocka_fixed.h"

#define SECOND UINT64_C(1000000000)

/* Answers each byte. Ends with its parent. */
static pid_t start_peer(int ends[2])
{
    char byte;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (recv(ends[1], &byte, 1, 0) == 1 && write(ends[1], &byte, 1) == 1)
        ;
    _exit(0);
}

static void talk(int fd)
{
    char byte = 'x';

    assert_int_equal(write(fd, &byte, 1), 1);
    assert_int_equal(read(fd, &byte, 1), 1);
    (void)usleep(20000); /* until the peer waits again */
}

static void look(struct proc_activity *a, struct proc_tree *tree, uint64_t at_ns)
{
    proc_sum(tree);
    proc_activity_look(a, tree, at_ns);
}

static void a_short_answer_is_a_move(void **state)
{
    struct proc_activity a = {.pid = 0};
    static struct proc_tree tree;
    int ends[2];

    (void)state;
    if (access("/proc/self/schedstat", R_OK) != 0)
        skip(); /* this kernel counts no slices */
    tree.n_pids = 1;
    tree.pids[0] = start_peer(ends);
    talk(ends[0]);
    look(&a, &tree, SECOND);
    look(&a, &tree, 2 * SECOND);
    bool moved_at_rest = a.moved, waits = activity_judge(&a.facts) == ACTIVITY_WAITS;
    talk(ends[0]);
    look(&a, &tree, 3 * SECOND);
    (void)kill(tree.pids[0], SIGKILL);
    (void)waitpid(tree.pids[0], NULL, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
    assert_false(moved_at_rest);
    assert_true(waits);
    assert_true(a.moved);
}

/* Reads more than the rate that counts, and moves no position. */
static pid_t start_reader(void)
{
    static char block[10000];
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    while (pread(fd, block, sizeof(block), 0) > 0)
        (void)usleep(1000);
    _exit(1);
}

/* Each of 64 ranks may read in such a way, and no other look happens meanwhile. */
static void the_search_for_files_is_bounded(void **state)
{
    struct proc_activity a = {.pid = 0};
    static struct proc_tree tree;
    int pauses = PROC_ACTIVITY_PAUSES;
    char text[160];

    (void)state;
    tree.n_pids = 1;
    tree.pids[0] = start_reader();
    (void)usleep(50000);
    look(&a, &tree, now_ns());
    (void)usleep(200000);
    look(&a, &tree, now_ns());
    uint64_t began_ns = now_ns();
    for (int i = 0; i < 16; i++)
        if (proc_activity_text(&a, &tree, &pauses, text, sizeof(text)) != ACTIVITY_READS)
            fail_msg("%s", text);
    uint64_t took_ns = now_ns() - began_ns;
    (void)kill(tree.pids[0], SIGKILL);
    (void)waitpid(tree.pids[0], NULL, 0);
    assert_int_equal(pauses, 0);
    assert_true(took_ns < 3 * SECOND);
}

static void a_read_of_an_event_is_a_wait(void **state)
{
    struct proc_activity a = {.pid = 0};
    static struct proc_tree tree;
    char text[160];
    int pauses = 0, fd = eventfd(0, EFD_CLOEXEC);
    uint64_t n;

    (void)state;
    assert_true(fd >= 0);
    tree.n_pids = 1;
    tree.pids[0] = fork();
    if (tree.pids[0] == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(read(fd, &n, sizeof(n)) < 0);
    }
    (void)usleep(100000);
    proc_activity_look(&a, &tree, SECOND);
    proc_activity_look(&a, &tree, 2 * SECOND);
    enum activity activity = proc_activity_text(&a, &tree, &pauses, text, sizeof(text));
    (void)kill(tree.pids[0], SIGKILL);
    (void)waitpid(tree.pids[0], NULL, 0);
    (void)close(fd);
    if (activity != ACTIVITY_WAITS)
        fail_msg("%s", text);
}

/* ---- servers ---- */

enum server_kind { SERVER_ACCEPTS, SERVER_POLLS, SERVER_EPOLLS, CLIENT_POLLS, CLIENT_EPOLLS };

static int listen_at(struct sockaddr_in *at)
{
    socklen_t n = sizeof(*at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (fd < 0 || bind(fd, (struct sockaddr *)at, n) != 0 || listen(fd, 8) != 0 ||
        getsockname(fd, (struct sockaddr *)at, &n) != 0)
        _exit(1);
    return fd;
}

/* Waits for a client or, connected with itself, for a peer. */
static void wait_as(enum server_kind kind)
{
    struct sockaddr_in at;
    int listener = listen_at(&at), fd = listener, epoll = epoll_create1(EPOLL_CLOEXEC);

    if (kind == CLIENT_POLLS || kind == CLIENT_EPOLLS)
        if ((fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0 ||
            connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0)
            _exit(1);
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        _exit(1);
    if (kind == SERVER_ACCEPTS)
        (void)accept(listener, NULL, NULL);
    else if (kind == SERVER_POLLS || kind == CLIENT_POLLS)
        (void)poll(&polled, 1, -1);
    else
        (void)epoll_wait(epoll, &event, 1, -1);
    _exit(0);
}

static const struct {
    enum server_kind kind;
    bool is_server;
} servers[] = {{SERVER_ACCEPTS, true},
               {SERVER_POLLS, true},
               {SERVER_EPOLLS, true},
               {CLIENT_POLLS, false},
               {CLIENT_EPOLLS, false}};

static void a_server_without_requests_waits_for_no_rank(void **state)
{
    static struct proc_tree tree;

    (void)state;
    for (size_t i = 0; i < sizeof(servers) / sizeof(servers[0]); i++) {
        struct proc_activity a = {.pid = 0};
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            wait_as(servers[i].kind);
        }
        tree.n_pids = 1;
        tree.pids[0] = pid;
        for (uint64_t t = 1; t < 50 && (t < 4 || activity_judge(&a.facts) != ACTIVITY_WAITS || a.moved);
             t++) {
            (void)usleep(50000);
            look(&a, &tree, t * SECOND);
        }
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        if (activity_judge(&a.facts) != ACTIVITY_WAITS || a.is_server != servers[i].is_server)
            fail_msg("row %zu: %d", i, a.is_server);
    }
}

/* ---- shells ---- */

static const struct {
    const char *script;
    bool passes; /* the last process is judged */
} scripts[] = {
    {"sleep 60; true", true},
    {"sh -c 'sleep 60; true'; true", true},
    {"sleep 60 & sleep 61; true", false},
};

/* Descendants of the first process, down to the last child of each. */
static pid_t last_child(pid_t pid)
{
    char path[64], text[64] = "";

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return pid;
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    return n ? last_child((pid_t)atol(text)) : pid;
}

static void the_process_behind_a_waiting_shell_is_judged(void **state)
{
    static struct proc_tree tree;

    (void)state;
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            (void)setpgid(0, 0);
            (void)execl("/bin/sh", "sh", "-c", scripts[i].script, NULL);
            _exit(1);
        }
        (void)usleep(300000);
        assert_int_equal(proc_find_trees(&pid, 1, &tree), 0);
        pid_t expected = scripts[i].passes ? last_child(pid) : pid;
        (void)kill(-pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        if (tree.pids[0] != expected || tree.started != pid || tree.n_pids < 2)
            fail_msg("row %zu: %d of %d", i, (int)tree.pids[0], (int)expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_answer_is_a_move),
        cmocka_unit_test(a_read_of_an_event_is_a_wait),
        cmocka_unit_test(the_search_for_files_is_bounded),
        cmocka_unit_test(a_server_without_requests_waits_for_no_rank),
        cmocka_unit_test(the_process_behind_a_waiting_shell_is_judged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
