#include "launcher/watch/proc_activity_os.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/proc_stat_os.h"
#include "launcher/util/digest.h"
#include "launcher/watch/store_sockets_sock.h"

enum {
    PATH_SIZE = 4096,
    POLL_NS = 500000, /* processor time in a second of a thread with nothing but polls with time-outs */
};

/* ---- system calls ---- */

static const struct {
    int number;
    enum activity_call call;
} calls[] = {
    {SYS_futex, ACTIVITY_CALL_WAITS},      {SYS_epoll_pwait, ACTIVITY_CALL_WAITS},
    {SYS_ppoll, ACTIVITY_CALL_WAITS},      {SYS_pselect6, ACTIVITY_CALL_WAITS},
    {SYS_connect, ACTIVITY_CALL_WAITS},    {SYS_accept4, ACTIVITY_CALL_WAITS},
    {SYS_accept, ACTIVITY_CALL_WAITS},
#ifdef SYS_poll
    {SYS_poll, ACTIVITY_CALL_WAITS},       {SYS_select, ACTIVITY_CALL_WAITS},
    {SYS_epoll_wait, ACTIVITY_CALL_WAITS},
#endif
    {SYS_read, ACTIVITY_CALL_READS},       {SYS_readv, ACTIVITY_CALL_READS},
    {SYS_pread64, ACTIVITY_CALL_READS},    {SYS_recvfrom, ACTIVITY_CALL_READS},
    {SYS_recvmsg, ACTIVITY_CALL_READS},    {SYS_write, ACTIVITY_CALL_WRITES},
    {SYS_writev, ACTIVITY_CALL_WRITES},    {SYS_pwrite64, ACTIVITY_CALL_WRITES},
    {SYS_sendto, ACTIVITY_CALL_WRITES},    {SYS_sendmsg, ACTIVITY_CALL_WRITES},
    {SYS_fsync, ACTIVITY_CALL_WRITES},     {SYS_fdatasync, ACTIVITY_CALL_WRITES},
    {SYS_nanosleep, ACTIVITY_CALL_SLEEPS}, {SYS_clock_nanosleep, ACTIVITY_CALL_SLEEPS},
    {SYS_wait4, ACTIVITY_CALL_REAPS},      {SYS_waitid, ACTIVITY_CALL_REAPS},
    {SYS_openat, ACTIVITY_CALL_OPENS},
};

static enum activity_call group_of(int number)
{
    for (size_t i = 0; i < ARRAY_SIZE(calls); i++)
        if (calls[i].number == number)
            return calls[i].call;
    return ACTIVITY_CALL_OTHER;
}

static bool is_epoll(int number)
{
#ifdef SYS_epoll_wait
    if (number == SYS_epoll_wait)
        return true;
#endif
    return number == SYS_epoll_pwait;
}

/* ---- one look ---- */

/* "NUMBER 0xARGUMENT ... 0xSTACK 0xPLACE", "running", or "-1 ..." for a thread outside of system calls. */
static void read_call(pid_t pid, struct proc_activity *ret)
{
    char text[PROC_FILE_SIZE], *at;

    ret->descriptor = -1;
    ret->facts.call = ACTIVITY_CALL_OTHER;
    ret->place = 0;
    if (!proc_file_read(pid, text, "syscall"))
        return;
    long number = strncmp(text, "running", 7) == 0 ? -1 : strtol(text, &at, 10);
    ret->call = (int)number;
    ret->facts.call = number < 0 ? ACTIVITY_CALL_RUNS : group_of((int)number);
    if (number < 0)
        return;
    if (ret->facts.call == ACTIVITY_CALL_READS || ret->facts.call == ACTIVITY_CALL_WRITES ||
        is_epoll((int)number))
        ret->descriptor = (int)strtoul(at, NULL, 16);
    ret->place = proc_digest_call(DIGEST_EMPTY, text);
}

static bool read_target(const struct proc_activity *a, char path[PATH_SIZE])
{
    char link[64];

    path[0] = '\0';
    if (a->descriptor < 0 || a->facts.state == 'D')
        return false;
    (void)snprintf(link, sizeof(link), "/proc/%d/fd/%d", (int)a->pid, a->descriptor); /* fits */
    ssize_t n = readlink(link, path, PATH_SIZE - 1);
    path[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* A FIFO has a name like a file: the function of the kernel is the difference. */
static enum activity_target find_target(const struct proc_activity *a)
{
    char path[PATH_SIZE], place[PROC_FILE_SIZE];

    if (!read_target(a, path))
        return ACTIVITY_TARGET_NONE;
    if (strncmp(path, "socket:", 7) == 0 || strncmp(path, "anon_inode:", 11) == 0)
        return ACTIVITY_TARGET_SOCKET;
    (void)proc_file_read(a->pid, place, "wchan");
    return strncmp(path, "pipe:", 5) == 0 || strstr(place, "pipe") || strstr(place, "tty")
               ? ACTIVITY_TARGET_PIPE
               : ACTIVITY_TARGET_FILE;
}

static uint64_t since(uint64_t was, uint64_t is)
{
    return is > was ? is - was : 0;
}

static void set_differences(struct proc_activity *a, const struct proc_activity *was)
{
    struct activity_facts *f = &a->facts;

    f->elapsed_ns = since(was->at_ns, a->at_ns);
    f->ran_ns = since(was->sums.ran_ns, a->sums.ran_ns);
    f->main_ran_ns = since(was->main.ran_ns, a->main.ran_ns);
    if (a->processes != was->processes)
        return;
    f->child_ran_ns = since(was->sums.child_ran_ns, a->sums.child_ran_ns);
    f->read = since(was->sums.read, a->sums.read);
    f->written = since(was->sums.written, a->sums.written);
}

/* A server without requests waits for no rank. One look at the sockets for each place where the rank waits. */
static void judge_server(struct proc_activity *a, const struct proc_activity *was)
{
    bool waits = a->place && a->place == was->place && a->facts.call == ACTIVITY_CALL_WAITS;

    a->is_server_known = waits && a->call != SYS_futex && a->call != SYS_connect;
    if (!a->is_server_known)
        return;
    a->is_server = was->is_server_known ? was->is_server
                   : a->call == SYS_accept || a->call == SYS_accept4
                       ? true
                       : store_sockets_serves(a->pid, a->descriptor);
}

/*
 * Without a look before at the same process the differences are 0, and the rank has moved. With another set of processes only the
 * time of the worker has a difference: a data loader may have read much before the look that found the process.
 */
void proc_activity_look(struct proc_activity *a, const struct proc_tree *tree, uint64_t now_ns)
{
    const struct proc_activity was = *a;

    *a = (struct proc_activity){
        .pid = tree->n_pids ? tree->pids[0] : 0, .at_ns = now_ns, .sums = tree->sums, .main = was.main};
    a->processes = digest_add(DIGEST_EMPTY, tree->pids, (size_t)tree->n_pids * sizeof(tree->pids[0]));
    if (tree->sums.state != 'D')
        a->main = proc_read_times(a->pid);
    read_call(a->pid, a);
    a->facts.has_ended = tree->sums.has_ended;
    a->facts.state = tree->sums.state;
    a->facts.child_runs = tree->sums.child_runs;
    a->facts.target = find_target(a);
    bool is_same = was.pid == a->pid && was.at_ns;
    /* A poll writes nothing. An answer to a peer may take less time than a poll. */
    bool has_worked = since(was.main.ran_ns, a->main.ran_ns) > POLL_NS || was.sums.written != a->sums.written;
    a->moved = !is_same || was.place != a->place || (was.main.n_slices != a->main.n_slices && has_worked);
    if (!is_same)
        return;
    set_differences(a, &was);
    judge_server(a, &was);
}

/* ---- the file that is read or written ---- */

enum { DESCRIPTORS_MAX = 256, BETWEEN_LOOKS_MS = 20, SEARCH_PAUSES = 15 };

struct open_files {
    int n, numbers[DESCRIPTORS_MAX];
    uint64_t positions[DESCRIPTORS_MAX];
};

/* Output of other processes moves the position of standard output and error, too. */
static bool is_candidate(int number, const char *info, bool writes)
{
    const char *flags = strstr(info, "flags:");
    int mode = flags ? (int)(strtoul(flags + strlen("flags:"), NULL, 8) & O_ACCMODE) : O_RDWR;

    return writes ? mode != O_RDONLY && number > STDERR_FILENO : mode != O_WRONLY;
}

/* Files by their position; the rest is at 0 for good. */
static void read_positions(pid_t pid, bool writes, struct open_files *ret)
{
    _cleanup_(folder_list_close) struct folder_list list;
    char text[PROC_FILE_SIZE];
    const char *number;

    ret->n = 0;
    if (folder_list_open(&list, "/proc/%d/fdinfo", (int)pid) != 0)
        return;
    while (ret->n < DESCRIPTORS_MAX && (number = folder_list_next(&list))) {
        if (number[0] < '0' || number[0] > '9' || !proc_file_read(pid, text, "fdinfo/%.16s", number))
            continue;
        if (!is_candidate(atoi(number), text, writes))
            continue;
        ret->numbers[ret->n] = atoi(number);
        ret->positions[ret->n++] = proc_file_number(text, "pos:", 10);
    }
}

/* The descriptor with another position in `is` than in `was`; -1: none. */
static int find_moving(const struct open_files *was, const struct open_files *is)
{
    for (int i = 0; i < is->n; i++)
        for (int k = 0; k < was->n; k++)
            if (was->numbers[k] == is->numbers[i] && was->positions[k] != is->positions[i])
                return is->numbers[i];
    return -1;
}

/* Between two reads the system call names no file: a moving position does. Waits for up to SEARCH_PAUSES pauses, of *pauses that are left. */
static int find_moving_descriptor(pid_t pid, bool writes, int *pauses)
{
    static _Thread_local struct open_files first, next;
    int found = -1, most = *pauses < SEARCH_PAUSES ? *pauses : SEARCH_PAUSES;

    read_positions(pid, writes, &first);
    for (int i = 0; i < most && found < 0; i++) {
        --*pauses;
        sleep_ns(BETWEEN_LOOKS_MS * UINT64_C(1000000)); /* signals go to other threads */
        read_positions(pid, writes, &next);
        found = find_moving(&first, &next);
    }
    return found;
}

/* ---- words ---- */

/* The descendant that a rank waits for: a compiler, else the youngest. */
static pid_t find_child(const struct proc_tree *tree, struct proc_stat *ret, bool *ret_compiles)
{
    pid_t found = 0;

    *ret_compiles = false;
    for (int i = 1; i < tree->n_pids && !*ret_compiles; i++) {
        if (!proc_stat_read(tree->pids[i], ret))
            continue;
        *ret_compiles = activity_is_compiler(ret->name);
        found = tree->pids[i];
    }
    return found;
}

enum activity proc_activity_text(const struct proc_activity *a, const struct proc_tree *tree, int *pauses,
                                 char *out, size_t size)
{
    struct activity_facts facts = a->facts;
    char path[PATH_SIZE], place[PROC_FILE_SIZE];
    struct proc_stat stat;
    pid_t child = find_child(tree, &stat, &facts.child_compiles);
    enum activity activity = activity_judge(&facts);
    struct proc_activity shown = *a;

    (void)proc_file_read(a->pid, place, "wchan");
    if ((activity == ACTIVITY_READS || activity == ACTIVITY_WRITES) && facts.target != ACTIVITY_TARGET_FILE)
        shown.descriptor = find_moving_descriptor(a->pid, activity == ACTIVITY_WRITES, pauses);
    const struct activity_words words = {.activity = activity,
                                         .path = read_target(&shown, path) ? path : NULL,
                                         .bytes_per_s = activity_rate(&facts),
                                         .place = place,
                                         .child = child,
                                         .name = child ? stat.name : NULL};
    activity_text(&words, out, size);
    return activity;
}
