/*
 * The sandbox of a daemon, by trying what it forbids: each row is a child that limits itself and then does one thing. The
 * daemon's own programs under it are the process tests of crund.
 */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "rendezvous/daemon/sandbox_os.h"

#include "tests/support/c/cmocka_fixed.h"

static char folder[] = "/tmp/crun-sandbox-XXXXXX";

/* Results of a row: 0, an errno, or KILLED. */
enum { KILLED = 1000, NOT_LIMITED = 255 };

static int of_call(long r)
{
    return r < 0 ? errno : 0;
}

/* ---- what is tried ---- */

static int read_elsewhere(void)
{
    return of_call(open("/etc/passwd", O_RDONLY));
}

static int read_own(void)
{
    return of_call(open("state/old", O_RDONLY));
}

static int write_own(void)
{
    int fd = open("state/new", O_WRONLY | O_CREAT | O_TRUNC, 0600);

    return fd < 0 || write(fd, "x", 1) != 1 || fsync(fd) < 0 || rename("state/new", "state/newer") < 0 ? errno
                                                                                                       : 0;
}

static int remove_own(void)
{
    return of_call(unlink("state/old"));
}

static int write_what_is_for_reading(void)
{
    return of_call(open("secrets/a", O_WRONLY));
}

static int read_secret(void)
{
    return of_call(open("secrets/a", O_RDONLY));
}

static int create_beside(void)
{
    return of_call(open("other", O_WRONLY | O_CREAT, 0600));
}

static int create_in_the_folder_of_sockets(void)
{
    return of_call(open("run/file", O_WRONLY | O_CREAT, 0600));
}

static int remove_socket(void)
{
    return of_call(unlink("run/socket"));
}

static int link_out(void)
{
    return of_call(link("state/old", "run/old"));
}

static int execute(void)
{
    char *argv[] = {(char[]){"true"}, NULL}, *none[] = {NULL};

    return of_call(execve("/bin/true", argv, none));
}

static int execute_at(void)
{
    char *argv[] = {(char[]){"true"}, NULL}, *none[] = {NULL};

    return of_call(syscall(SYS_execveat, AT_FDCWD, "/bin/true", argv, none, 0));
}

static int trace(void)
{
    return of_call(ptrace(PTRACE_TRACEME, 0, 0, 0));
}

static int read_memory(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {&byte, 1};

    return of_call(process_vm_readv(getppid(), &here, 1, &there, 1, 0));
}

static int make_process(void)
{
    return of_call(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}

static int make_namespace(void)
{
    return of_call(unshare(CLONE_NEWUSER));
}

static void *do_nothing(void *data)
{
    return data;
}

static int make_thread(void)
{
    pthread_t thread;
    int r = pthread_create(&thread, NULL, do_nothing, NULL);

    return r ? r : pthread_join(thread, NULL);
}

static int open_socket_of(int family)
{
    return of_call(socket(family, SOCK_STREAM, 0));
}

static int open_inet(void)
{
    return open_socket_of(AF_INET);
}

static int open_unix(void)
{
    return open_socket_of(AF_UNIX);
}

static int open_netlink(void)
{
    return of_call(socket(AF_NETLINK, SOCK_RAW, 0));
}

static int listen_again(void)
{
    const struct sockaddr_un any = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    return of_call(bind(fd, (const struct sockaddr *)&any, sizeof(sa_family_t))); /* as below */
}

static int connect_to(void)
{
    const struct sockaddr_un absent = {.sun_family = AF_UNIX, .sun_path = "absent"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    return of_call(
        connect(fd, (const struct sockaddr *)&absent, sizeof(absent))); /* refused without a socket, too */
}

static int map_code_that_can_be_written(void)
{
    void *p = mmap(NULL, 4096, PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? errno : 0;
}

static int make_memory_executable(void)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? EPROTO : of_call(mprotect(p, 4096, PROT_READ | PROT_EXEC));
}

/* Of a library, or of what was written to the state. */
static int map_file_as_code(void)
{
    int fd = open("secrets/a", O_RDONLY);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

    return p == MAP_FAILED ? errno : 0;
}

static const struct sockaddr_un absent_log = {.sun_family = AF_UNIX, .sun_path = "absent"};

static int send_to(void)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        return EPROTO;
    return of_call(sendto(pair[0], "x", 1, 0, (const struct sockaddr *)&absent_log, sizeof(absent_log)));
}

static int send_datagram(void)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0)
        return errno;
    return of_call(sendto(pair[0], "x", 1, 0, (const struct sockaddr *)&absent_log, sizeof(absent_log)));
}

static int send_message(void)
{
    struct iovec part = {(char[]){"x"}, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        return EPROTO;
    return of_call(sendmsg(pair[0], &message, 0));
}

static int send_to_the_other_end(void)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return EPROTO;
    return of_call(send(pair[0], "x", 1, MSG_NOSIGNAL));
}

static int signal_another(void)
{
    return of_call(kill(getppid(), 0));
}

static int signal_itself(void)
{
    (void)signal(SIGUSR1, SIG_IGN);
    return of_call(raise(SIGUSR1));
}

static int change_user(void)
{
    return of_call(setuid(getuid()));
}

static int be_dumpable(void)
{
    return of_call(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
}

static int keep_random_numbers(void)
{
    uint8_t byte;
    struct rlimit limit;

    return of_call(getrandom(&byte, 1, 0)) || of_call(getrlimit(RLIMIT_NOFILE, &limit));
}

static int raise_limits(void)
{
    const struct rlimit limit = {64, 64};

    return of_call(syscall(SYS_prlimit64, getppid(), RLIMIT_NOFILE, &limit, NULL));
}

/* ---- rows ---- */

struct attempt {
    const char *what;
    int (*act)(void);
    int expected;
};

static int run_limited(int (*act)(void), bool dials)
{
    const struct sandbox_path paths[] = {{"state", SANDBOX_WRITE},
                                         {"secrets", SANDBOX_READ},
                                         {"run", SANDBOX_SOCKETS},
                                         {"absent", SANDBOX_READ}};
    const struct sandbox_calls calls = {.pid = getpid(), .dials = dials};
    char why[SANDBOX_ERROR_SIZE];

    if (sandbox_limit_files(paths, ARRAY_SIZE(paths), why) < 0 || sandbox_limit_calls(&calls, why) < 0) {
        (void)fprintf(stderr, "%s\n", why);
        return NOT_LIMITED;
    }
    return act();
}

static int outcome_of(int (*act)(void), bool dials)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(run_limited(act, dials));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS ? KILLED : WEXITSTATUS(status);
}

static void attempt_all(const struct attempt *rows, size_t n, bool dials)
{
    for (size_t i = 0; i < n; i++) {
        int outcome = outcome_of(rows[i].act, dials);

        if (outcome != rows[i].expected)
            fail_msg("%s: %d and not %d", rows[i].what, outcome, rows[i].expected);
    }
}

static void a_limited_daemon(void **state)
{
    static const struct attempt rows[] = {
        {"read another file", read_elsewhere, EACCES},
        {"read its state", read_own, 0},
        {"write its state", write_own, 0},
        {"link its state elsewhere", link_out, EPERM},
        {"remove its state", remove_own, 0},
        {"read a secret", read_secret, 0},
        {"write a secret", write_what_is_for_reading, EACCES},
        {"make a file beside", create_beside, EACCES},
        {"make a file beside its socket", create_in_the_folder_of_sockets, EACCES},
        {"remove its socket", remove_socket, 0},
        {"execute", execute, KILLED},
        {"execute by descriptor", execute_at, KILLED},
        {"trace", trace, KILLED},
        {"read another process", read_memory, KILLED},
        {"fork", make_process, EPERM},
        {"unshare", make_namespace, EPERM},
        {"start a thread", make_thread, 0},
        {"open TCP", open_inet, EPERM},
        {"open a unix socket", open_unix, EPERM},
        {"open netlink", open_netlink, EPERM},
        {"listen again", listen_again, EPERM},
        {"connect", connect_to, EPERM},
        {"map code", map_code_that_can_be_written, EPERM},
        {"make code", make_memory_executable, EPERM},
        {"map a file as code", map_file_as_code, EPERM},
        {"send", send_to_the_other_end, 0},
        {"send to an address", send_to, EPERM},
        {"send to an address from a pair", send_datagram, EPERM},
        {"send a message, whose address no filter sees", send_message, EPERM},
        {"signal another", signal_another, EPERM},
        {"signal itself", signal_itself, 0},
        {"change the user", change_user, EPERM},
        {"change what is dumped", be_dumpable, EPERM},
        {"random numbers", keep_random_numbers, 0},
        {"limits of another", raise_limits, EPERM},
    };

    attempt_all(rows, ARRAY_SIZE(rows), false);
}

static void a_daemon_that_dials(void **state)
{
    static const struct attempt rows[] = {
        {"open TCP", open_inet, 0},
        {"connect", connect_to, ENOENT},
        {"load a library", map_file_as_code, 0},
        {"send a message", send_message, 0},
        {"listen again", listen_again, EPERM},
        {"open netlink", open_netlink, EPERM},
        {"execute", execute, KILLED},
    };

    attempt_all(rows, ARRAY_SIZE(rows), true);
}

static int make_ring(void)
{
    uint64_t parameters[15] = {0}; /* struct io_uring_params */

    return of_call(syscall(425, 4, parameters)); /* io_uring_setup */
}

/* A kernel that allows rings answers 0, so that a filter that lets the call pass is noticed; not one that has none. */
static void no_ring_is_made(void **state)
{
    char why[SANDBOX_ERROR_SIZE];
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        int limited = sandbox_refuse_rings(why), ring = make_ring();
        _exit(limited == 0 && ring == ENOSYS && open_inet() == 0 ? outcome_of(execute, false) == KILLED : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

/* ---- threads that are there already ---- */

static int to_thread[2], from_thread[2];

static void *wait_and_listen(void *data)
{
    char outcome = 0;

    if (read(to_thread[0], &outcome, 1) == 1) {
        outcome = (char)open_netlink();
        (void)!write(from_thread[1], &outcome, 1);
    }
    return data;
}

static int let_the_thread_act(void)
{
    char outcome = 0;

    return write(to_thread[1], &outcome, 1) == 1 && read(from_thread[0], &outcome, 1) == 1 ? outcome : EPROTO;
}

static int limit_beside_a_thread(void)
{
    const struct sandbox_calls calls = {.pid = getpid()};
    char why[SANDBOX_ERROR_SIZE];
    pthread_t thread;

    if (pipe(to_thread) < 0 || pipe(from_thread) < 0 ||
        pthread_create(&thread, NULL, wait_and_listen, NULL) != 0 || sandbox_limit_calls(&calls, why) < 0)
        return NOT_LIMITED;
    return let_the_thread_act();
}

static void threads_from_before_are_bound(void **state)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(limit_beside_a_thread());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EPERM);
}

/* ---- surroundings ---- */

static int make_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    return fd < 0 ? -1 : close(fd);
}

static int make_folders(void **state)
{
    return !mkdtemp(folder) || chdir(folder) < 0 || mkdir("state", 0700) < 0 || mkdir("secrets", 0700) < 0 ||
                   mkdir("run", 0700) < 0 || make_file("state/old") < 0 || make_file("secrets/a") < 0 ||
                   make_file("run/socket") < 0
               ? -1
               : 0;
}

static int remove_folders(void **state)
{
    (void)unlink("state/newer");
    (void)unlink("secrets/a");
    return rmdir("state") < 0 || rmdir("secrets") < 0 || rmdir("run") < 0 || chdir("/") < 0 ||
                   rmdir(folder) < 0
               ? -1
               : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limited_daemon),
        cmocka_unit_test(a_daemon_that_dials),
        cmocka_unit_test(no_ring_is_made),
        cmocka_unit_test(threads_from_before_are_bound),
    };
    char why[SANDBOX_ERROR_SIZE];
    int status;

    if (!sandbox_is_possible()) {
        (void)puts("SKIP: a sanitizer needs calls and files that the sandbox refuses");
        return 77;
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(sandbox_limit_files(NULL, 0, why) < 0 ||
              sandbox_limit_calls(&(struct sandbox_calls){.pid = getpid()}, why) < 0);
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        (void)puts("SKIP: this kernel has no Landlock, or no filter of system calls");
        return 77;
    }
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
