#include "launcher/watch/proc_sample_os.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/utf8.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/supervise/child_processes_os.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/proc_stat_os.h"
#include "launcher/util/digest.h"
#include "launcher/watch/hang_report.h"

enum { HEAD_SIZE = 64, THREADS_MAX = 512, DEPTH_MAX = 32 };

static bool read_stat(pid_t pid, struct proc_stat *ret)
{
    return proc_stat_read(pid, ret) && !ret->has_ended;
}

char proc_sample_state(pid_t pid)
{
    struct proc_stat stat;

    return read_stat(pid, &stat) ? stat.state : '\0';
}

/* ---- trees ---- */

struct process_entry {
    pid_t pid, parent;
    pid_t child; /* a child; 0: none, -1: several */
    int tree;    /* -1: of no worker; -2: not looked up yet */
    bool sleeps;
};

struct process_table {
    struct buf buf;
    struct process_entry *items;
    size_t n;
};

static int compare_entries(const void *a, const void *b)
{
    const struct process_entry *x = a, *y = b;

    return (x->pid > y->pid) - (x->pid < y->pid);
}

static struct process_entry *find_entry(const struct process_table *t, pid_t pid)
{
    const struct process_entry key = {.pid = pid};

    return t->n && pid ? bsearch(&key, t->items, t->n, sizeof(key), compare_entries) : NULL;
}

static int add_entry(struct process_table *t, pid_t pid)
{
    struct proc_stat stat;

    if (pid <= 0 || !read_stat(pid, &stat))
        return 0;
    const struct process_entry e = {
        .pid = pid, .parent = stat.parent, .tree = -2, .sleeps = stat.state == 'S'};
    int r = buf_append(&t->buf, &e, sizeof(e));
    t->items = (struct process_entry *)(void *)buf_bytes(&t->buf);
    t->n = buf_size(&t->buf) / sizeof(e);
    return r;
}

static int list_all(struct process_table *t)
{
    _cleanup_(folder_list_close) struct folder_list list;
    const char *name;
    int r = folder_list_open(&list, "/proc");

    while (!r && (name = folder_list_next(&list)))
        r = add_entry(t, (pid_t)atol(name));
    return r;
}

static int add_children(struct process_table *t, pid_t pid)
{
    _cleanup_(folder_list_close) struct folder_list threads;
    pid_t children[PROC_TREE_MAX];
    char path[64];
    const char *name;

    int r = folder_list_open(&threads, "/proc/%d/task", (int)pid);
    if (r)
        return 0; /* it has ended */
    while (!r && (name = folder_list_next(&threads))) {
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children", (int)pid, name); /* fits */
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        int n = fd < 0 ? 0 : child_processes_read(fd, children, PROC_TREE_MAX);
        for (int i = 0; !r && i < n; i++)
            r = add_entry(t, children[i]);
    }
    return r;
}

/* A node may have thousands of other processes. */
static int list_below(struct process_table *t, const pid_t *workers, int n)
{
    int r = 0;

    for (int i = 0; !r && i < n; i++)
        r = add_entry(t, workers[i]);
    for (size_t i = 0; !r && i < t->n && i < (size_t)n * PROC_TREE_MAX; i++)
        r = add_children(t, t->items[i].pid);
    return r;
}

static int list_processes(struct process_table *t, const pid_t *workers, int n)
{
    bool has_children = access("/proc/thread-self/children", F_OK) == 0; /* not in every kernel */
    int r = has_children ? list_below(t, workers, n) : list_all(t);

    if (t->n)
        qsort(t->items, t->n, sizeof(*t->items), compare_entries);
    for (size_t i = 0; i < t->n; i++) {
        struct process_entry *parent = find_entry(t, t->items[i].parent);

        if (parent)
            parent->child = parent->child ? -1 : t->items[i].pid;
    }
    return r;
}

/* Follows the parents to a process whose tree is known. The depth has a bound: the table is no snapshot. */
static int tree_of(const struct process_table *t, pid_t pid, int depth)
{
    struct process_entry *e = find_entry(t, pid);

    if (!e || depth > DEPTH_MAX)
        return -1;
    if (e->tree == -2)
        e->tree = tree_of(t, e->parent, depth + 1);
    return e->tree;
}

/* Name of the executed file, without the folder; "": not known. */
static const char *read_program(pid_t pid, char path[PROC_FILE_SIZE])
{
    char link[64];

    (void)snprintf(link, sizeof(link), "/proc/%d/exe", (int)pid); /* fits */
    ssize_t n = readlink(link, path, PROC_FILE_SIZE - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : "";
}

/* A shell that waits for a command. Other programs wait for a process in the course of their work. */
static bool is_waiting_shell(pid_t pid)
{
    static const char *const shells[] = {"sh", "bash", "dash", "zsh", "ksh", "busybox", "timeout"};
    char text[PROC_FILE_SIZE];
    const char *program = read_program(pid, text);
    bool is_shell = false;

    for (size_t i = 0; i < ARRAY_SIZE(shells); i++)
        is_shell |= strcmp(program, shells[i]) == 0;
    if (!is_shell || !proc_file_read(pid, text, "syscall"))
        return false;
    int number = atoi(text); /* 0: it runs */
    return number == SYS_wait4 || number == SYS_waitid || number == SYS_rt_sigsuspend;
}

static pid_t find_judged(const struct process_table *t, pid_t worker)
{
    const struct process_entry *e = find_entry(t, worker);

    for (int depth = 0; depth < DEPTH_MAX && e && e->child > 0 && e->sleeps && is_waiting_shell(e->pid);
         depth++)
        e = find_entry(t, e->child);
    return e ? e->pid : worker;
}

int proc_find_trees(const pid_t *workers, int n, struct proc_tree *trees)
{
    struct process_table table = {.n = 0};
    int r = list_processes(&table, workers, n);

    for (int i = 0; i < n; i++) {
        struct process_entry *e = find_entry(&table, workers[i]);

        trees[i].n_pids = workers[i] ? 1 : 0;
        trees[i].started = workers[i];
        trees[i].pids[0] = find_judged(&table, workers[i]);
        if (e)
            e->tree = i;
    }
    for (size_t i = 0; i < table.n; i++) {
        bool is_twice = i > 0 && table.items[i].pid == table.items[i - 1].pid; /* the parent has changed */
        int at = tree_of(&table, table.items[i].pid, 0);
        if (at >= 0 && !is_twice && table.items[i].pid != trees[at].pids[0] &&
            trees[at].n_pids < PROC_TREE_MAX)
            trees[at].pids[trees[at].n_pids++] = table.items[i].pid;
    }
    buf_finish(&table.buf);
    return r;
}

/* ---- samples ---- */

static void add_bytes(pid_t pid, struct proc_sums *s)
{
    char text[PROC_FILE_SIZE];

    (void)proc_file_read(pid, text, "io"); /* "" without permission */
    s->read += proc_file_number(text, "rchar: ", 10);
    s->written += proc_file_number(text, "wchar: ", 10);
}

static uint64_t bytes_of(const struct proc_sums *s)
{
    return s->read + PROGRESS_WRITTEN * s->written;
}

uint64_t proc_sample_bytes(pid_t pid)
{
    struct proc_sums s = {.read = 0};

    add_bytes(pid, &s);
    return bytes_of(&s);
}

static void add_process(struct proc_sums *s, pid_t pid, bool is_worker)
{
    struct proc_stat stat;

    bool is_there = read_stat(pid, &stat);
    if (is_worker) {
        s->has_ended = !is_there;
        s->state = is_there ? stat.state : '\0';
    }
    if (!is_there)
        return;
    s->child_runs |= !is_worker && (stat.state == 'R' || stat.state == 'D');
    *(is_worker ? &s->ran_ns : &s->child_ran_ns) += proc_stat_ns(stat.cpu_ticks);
    add_bytes(pid, s);
}

void proc_sum(struct proc_tree *tree)
{
    tree->sums = (struct proc_sums){.has_ended = tree->n_pids == 0};
    for (int i = 0; i < tree->n_pids; i++)
        add_process(&tree->sums, tree->pids[i], i == 0);
}

void proc_sample(const struct proc_tree *tree, int state_fd, struct progress_sample *ret)
{
    struct worker_collective records[WORKER_COLLECTIVES_MAX];
    uint8_t head[HEAD_SIZE];

    *ret = (struct progress_sample){.is_alive = tree->n_pids > 0, .n_bytes = bytes_of(&tree->sums)};
    ssize_t n = state_fd >= 0 ? pread(state_fd, head, sizeof(head), 0) : 0;
    if (n > 0)
        ret->head = digest_add(DIGEST_EMPTY, head, (size_t)n);
    ret->head = digest_add(ret->head, records, worker_collectives_read(state_fd, records) * sizeof(*records));
}

/* /proc/PID/schedstat; not every kernel has it. */
struct proc_times proc_read_times(pid_t pid)
{
    char text[PROC_FILE_SIZE], *at;
    struct proc_times times = {.ran_ns = 0};
    struct proc_stat stat;

    if (proc_file_read(pid, text, "schedstat")) {
        times.ran_ns = strtoull(text, &at, 10);
        times.waited_ns = strtoull(at, &at, 10);
        times.n_slices = strtoull(at, NULL, 10);
    } else if (proc_stat_read_thread(pid, pid, &stat)) {
        times.ran_ns = proc_stat_ns(stat.cpu_ticks);
    }
    return times;
}

static void add_times(pid_t pid, uint64_t cpu_ticks, struct progress_place *place)
{
    const struct proc_times times = proc_read_times(pid);
    uint64_t all_ns = proc_stat_ns(cpu_ticks);

    place->main_ran_ns += times.ran_ns;
    place->main_waited_ns += times.waited_ns;
    place->others_ran_ns += all_ns > times.ran_ns ? all_ns - times.ran_ns : 0;
}

uint64_t proc_digest_call(uint64_t digest, const char *text)
{
    const char *at = strrchr(text, ' ');

    while (at && at > text && at[-1] != ' ')
        at--;
    digest = digest_add(digest, text, strcspn(text, " "));
    return at ? digest_add(digest, at, strlen(at)) : digest;
}

/* Of a running process only the fact. */
static bool add_place_of(pid_t pid, struct progress_place *place)
{
    char text[PROC_FILE_SIZE];
    struct proc_stat stat;

    if (!read_stat(pid, &stat))
        return false;
    (void)proc_file_read(pid, text, "syscall"); /* "" without permission */
    bool runs = stat.state == 'R' || strncmp(text, "running", 7) == 0;
    place->processes = digest_add(place->processes, &pid, sizeof(pid));
    place->where = digest_add(place->where, &runs, sizeof(runs));
    if (!runs)
        place->where = proc_digest_call(place->where, text);
    place->faults += stat.faults;
    (void)proc_file_read(pid, text, "status");
    place->switches += proc_file_number(text, "\nvoluntary_ctxt_switches:", 10);
    if (runs)
        place->switches += proc_file_number(text, "nonvoluntary_ctxt_switches:", 10);
    place->runs |= runs;
    add_times(pid, stat.cpu_ticks, place);
    return runs;
}

int proc_sample_place(const struct proc_tree *tree, struct progress_sample *ret, pid_t *running)
{
    int n_running = 0;

    ret->has_place = tree->n_pids > 0;
    ret->place = (struct progress_place){.processes = DIGEST_EMPTY, .where = DIGEST_EMPTY};
    for (int i = 0; i < tree->n_pids; i++)
        if (add_place_of(tree->pids[i], &ret->place))
            running[n_running++] = tree->pids[i];
    return n_running;
}

/* ---- text ---- */

void proc_sample_child(pid_t pid, char state, struct hang_rank *ret)
{
    struct proc_stat stat = {.name = "?"};

    (void)proc_stat_read(pid, &stat); /* "?" stays when the process has ended */
    ret->child_pid = pid;
    ret->child_state = (unsigned char)state;
    memcpy(ret->child_name, stat.name, sizeof(ret->child_name));
    text_clean(ret->child_name);
}

bool proc_sample_is_python(pid_t pid)
{
    char path[PROC_FILE_SIZE];

    return strncmp(read_program(pid, path), "python", 6) == 0;
}

static size_t describe_thread(pid_t pid, const char *thread, char *out, size_t size)
{
    char place[PROC_FILE_SIZE], call[PROC_FILE_SIZE];
    struct proc_stat stat = {.state = '?'};

    (void)proc_stat_read_thread(pid, (pid_t)atol(thread), &stat); /* '?' stays after the end */
    (void)proc_file_read(pid, place, "task/%.20s/wchan", thread);
    (void)proc_file_read(pid, call, "task/%.20s/syscall", thread);
    call[strcspn(call, "\n")] = '\0';
    int n = snprintf(out, size, "thread %.20s (%.16s) state %c wchan %.64s syscall %.200s\n", thread,
                     stat.name, stat.state, place[0] ? place : "-", call[0] ? call : "-");
    return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

size_t proc_sample_describe(pid_t pid, char *out, size_t size)
{
    _cleanup_(folder_list_close) struct folder_list list;
    const char *name;
    size_t n = 0;

    out[0] = '\0';
    if (folder_list_open(&list, "/proc/%d/task", (int)pid) != 0)
        return 0;
    for (int i = 0; i < THREADS_MAX && (name = folder_list_next(&list)); i++)
        if (atol(name) > 0)
            n += describe_thread(pid, name, out + n, size - n);
    return n;
}
