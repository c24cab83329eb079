/* Looks at a process that waits for a peer: a message received and answered is a move, however short; a wait that goes on is none. */

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_answer_is_a_move),
        cmocka_unit_test(a_read_of_an_event_is_a_wait),
        cmocka_unit_test(the_search_for_files_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
