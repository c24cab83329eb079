#include "launcher/watch/watch_task_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/host/proc_info_os.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/output/output_handover_sock.h"
#include "launcher/util/digest.h"
#include "launcher/util/read_disk_os.h"
#include "launcher/watch/nccl_state_sock.h"
#include "launcher/watch/proc_activity_os.h"
#include "launcher/watch/stack_text.h"
#include "base/cleanup.h"
#include "base/strbuf.h"

enum {
    LOOKS_PER_LISTING = 8,   /* descendants are looked for in every so many looks */
    LOOK_STACKS_MAX = 64,    /* processes whose stacks one look takes */
    LOOK_MIN_MS = 2000,      /* for the stacks of a look; twice as long behind a look without enough time */
    LOOKS_PER_TIMEOUT = 12,  /* and no less than such a part of the time-out */
    REPORT_MS = 4000,        /* and REPORT_PROCESS_MS for each process, at most REPORT_MAX_MS: */
    REPORT_PROCESS_MS = 100, /* to start tools for the stacks of a report */
    REPORT_MAX_MS = 20000,
    NATIVE_MS = 4000, /* the same for native frames of Python programs, behind it */
    DESCRIPTION_SIZE = 32 << 10,
    FOLDERS_MAX = 100,
};

int watch_task_init(struct watch_task *t, char *const *environment, const char *python, int n_workers,
                    const int *state_fds)
{
    size_t n = (size_t)n_workers;

    *t = (struct watch_task){
        .environment = environment, .python = python, .n_workers = n_workers, .state_fds = state_fds};
    t->trees = calloc(n, sizeof(*t->trees));
    t->old_trees = calloc(n, sizeof(*t->old_trees));
    t->found_bytes = calloc(n, sizeof(*t->found_bytes));
    t->pids = calloc(n, sizeof(*t->pids));
    t->have_succeeded = calloc(n, sizeof(*t->have_succeeded));
    t->samples = calloc(n, sizeof(*t->samples));
    proc_info_host_name(t->host, sizeof(t->host));
    if (!t->trees || !t->old_trees || !t->found_bytes || !t->pids || !t->have_succeeded || !t->samples)
        return -ENOMEM;
    return stall_look_init(&t->stall, n_workers);
}

static void free_set(struct stack_set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        free(set->jobs[i].text);
        free(set->processes[i].description);
    }
    free(set->jobs);
    free(set->processes);
    *set = (struct stack_set){.n = 0};
}

void watch_task_set_folder(struct watch_task *t, const char *folder)
{
    size_t n = folder ? strlen(folder) : 0;

    t->folder[0] = '\0';
    t->folder_made = t->is_delivered = false;
    if (n < sizeof(t->folder) - 64)
        memcpy(t->folder, folder ? folder : "", n + 1);
    const char *slash = t->link ? strrchr(t->folder, '/') : NULL;
    t->n_hidden = slash ? (size_t)(slash + 1 - t->folder) : 0;
}

static const struct stack_tools *tools_of(struct watch_task *t)
{
    if (!t->has_tools)
        stack_tools_find(&t->tools, t->environment, t->python);
    t->has_tools = true;
    return &t->tools;
}

static void note_lack(struct watch_task *t)
{
    for (int i = 0; !tools_of(t)->paths[STACK_TOOL_PY_SPY] && i < t->n_workers; i++)
        t->lacks_py_spy |= t->pids[i] && proc_sample_is_python(t->trees[i].pids[0]);
}

/* ---- a look ---- */

static bool are_trees_current(const struct watch_task *t)
{
    for (int i = 0; i < t->n_workers; i++) {
        const struct proc_tree *tree = &t->trees[i];

        if (tree->started != t->pids[i] || (tree->sums.has_ended && tree->started != tree->pids[0]))
            return false; /* a shell goes on with its next command */
    }
    return true;
}

static bool has_process(const struct proc_tree *tree, pid_t pid)
{
    for (int i = 0; i < tree->n_pids; i++)
        if (tree->pids[i] == pid)
            return true;
    return false;
}

/* The bytes of a process before its discovery are no progress: a data loader may be found seconds after its start. */
static void note_found_bytes(struct watch_task *t, int worker)
{
    const struct proc_tree *tree = &t->trees[worker];

    for (int i = 0; i < tree->n_pids; i++)
        if (!has_process(&t->old_trees[worker], tree->pids[i]))
            t->found_bytes[worker] += proc_sample_bytes(tree->pids[i]);
}

static void list_trees(struct watch_task *t, bool anyway)
{
    if (anyway || t->n_looks % LOOKS_PER_LISTING == 0 || !are_trees_current(t)) {
        memcpy(t->old_trees, t->trees, (size_t)t->n_workers * sizeof(*t->trees));
        (void)proc_find_trees(t->pids, t->n_workers, t->trees); /* the workers alone when it fails */
        for (int i = 0; i < t->n_workers; i++)
            note_found_bytes(t, i);
    }
    for (int i = 0; i < t->n_workers; i++)
        proc_sum(&t->trees[i]);
    t->n_looks++;
}

/* The stacks of main threads that run, of all ranks, so that the tools work side by side. */
struct look_stacks {
    struct stack_job jobs[LOOK_STACKS_MAX];
    int ranks[LOOK_STACKS_MAX];
    size_t n;
};

static void add_look_jobs(struct watch_task *t, struct look_stacks *s, int worker, const pid_t *running,
                          int n_running)
{
    for (int i = 0; i < n_running && s->n < LOOK_STACKS_MAX; i++) {
        const bool is_python = proc_sample_is_python(running[i]);

        s->ranks[s->n] = worker;
        s->jobs[s->n++] =
            (struct stack_job){.pid = running[i], .tool = stack_tools_choose(tools_of(t), is_python)};
    }
}

/* Of a rank with several processes a late stack decides, else a missing stack. */
static enum progress_stack worse_of(enum progress_stack a, enum progress_stack b)
{
    if (a == PROGRESS_STACK_LATE || b == PROGRESS_STACK_LATE)
        return PROGRESS_STACK_LATE;
    return a < b ? a : b;
}

static bool add_digests(struct watch_task *t, struct look_stacks *s)
{
    bool any_late = false;

    for (size_t i = 0; i < s->n; i++)
        t->samples[s->ranks[i]].place.stack = PROGRESS_STACK_KNOWN;
    for (size_t i = 0; i < s->n; i++) {
        struct progress_place *place = &t->samples[s->ranks[i]].place;
        struct stack_summary summary = {.digest = 0};

        bool known = s->jobs[i].text && !s->jobs[i].is_late &&
                     stack_summarize(s->jobs[i].text, s->jobs[i].n_text, (int)s->jobs[i].pid, &summary);
        place->stack = worse_of(place->stack, s->jobs[i].is_late ? PROGRESS_STACK_LATE
                                              : known            ? PROGRESS_STACK_KNOWN
                                                                 : PROGRESS_STACK_NONE);
        place->where = digest_add(place->where, &summary.digest, sizeof(summary.digest));
        any_late |= s->jobs[i].is_late;
        free(s->jobs[i].text);
    }
    return any_late;
}

static void look_at_places(struct watch_task *t)
{
    static _Thread_local struct look_stacks stacks;
    pid_t running[PROC_TREE_MAX];

    stacks.n = 0;
    for (int i = 0; i < t->n_workers; i++) {
        int n = proc_sample_place(&t->trees[i], &t->samples[i], running);
        add_look_jobs(t, &stacks, i, running, n);
    }
    uint64_t limit_ns = t->timeout_ns / LOOKS_PER_TIMEOUT, least_ns = LOOK_MIN_MS * UINT64_C(1000000);
    limit_ns = (limit_ns > least_ns ? limit_ns : least_ns) * (t->was_late ? 2 : 1);
    stack_tools_run(tools_of(t), stacks.jobs, stacks.n, limit_ns);
    t->was_late = add_digests(t, &stacks);
}

static void sample_progress(struct watch_task *t)
{
    for (int i = 0; i < t->n_workers; i++) {
        proc_sample(&t->trees[i], t->state_fds[i], &t->samples[i]);
        t->samples[i].n_bytes -=
            t->found_bytes[i]; /* a difference of such numbers is exact, whatever wraps */
    }
    if (t->with_places)
        look_at_places(t);
}

static void look(struct watch_task *t)
{
    list_trees(t, t->lists || (t->with_progress && t->with_places));
    if (t->with_progress)
        sample_progress(t);
    if (t->with_waits)
        stall_look_take(&t->stall, t);
    if (!t->with_waits || !t->describes)
        return;
    note_lack(t);
    stall_look_describe(&t->stall, t, t->takes_stacks ? tools_of(t) : NULL);
}

/* ---- stacks ---- */

static char *describe_process(pid_t pid)
{
    char *text = malloc(DESCRIPTION_SIZE);

    if (text)
        (void)proc_sample_describe(pid, text, DESCRIPTION_SIZE); /* "" when the process has ended */
    return text;
}

static void add_process(struct watch_task *t, struct stack_set *set, int worker, pid_t pid)
{
    char state = proc_sample_state(pid);
    bool is_blocked = hang_is_blocked(state), is_python = state != 'D' && proc_sample_is_python(pid);
    enum stack_tool tool = stack_tools_choose(tools_of(t), is_python);

    set->processes[set->n] =
        (struct stack_process){.worker = worker, .state = state, .description = describe_process(pid)};
    /* No tool looks at a process in state D, and only py-spy at a stopped process without a pause. */
    set->jobs[set->n++] =
        (struct stack_job){.pid = pid,
                           .is_blocked = is_blocked,
                           .tool = is_blocked && tool != STACK_TOOL_PY_SPY ? STACK_TOOL_NONE : tool};
}

/* The workers first: the report needs them. */
static int collect(struct watch_task *t, struct stack_set *set)
{
    size_t n = 1;

    for (int i = 0; i < t->n_workers; i++)
        n += (size_t)t->trees[i].n_pids;
    set->n = 0;
    set->jobs = calloc(n, sizeof(*set->jobs));
    set->processes = calloc(n, sizeof(*set->processes));
    if (!set->jobs || !set->processes)
        return -ENOMEM;
    for (int i = 0; i < t->n_workers; i++)
        if (t->trees[i].n_pids > 0)
            add_process(t, set, i, t->trees[i].pids[0]);
    for (int i = 0; i < t->n_workers; i++)
        for (int p = 1; p < t->trees[i].n_pids; p++)
            add_process(t, set, i, t->trees[i].pids[p]);
    return 0;
}

/* ---- the report ---- */

/* Without a stack the activity as of the last look has to do. */
static void describe_main_process(const struct watch_task *t, int worker, const struct stack_job *job,
                                  const struct stack_process *process, int *pauses, struct hang_rank *ret)
{
    struct stack_summary summary = {.kind = STACK_UNKNOWN};

    if (job->text)
        (void)stack_summarize(job->text, job->n_text, (int)job->pid, &summary); /* unknown when it has none */
    ret->pid = job->pid;
    ret->state = (unsigned char)process->state;
    ret->kind = summary.kind;
    memcpy(ret->text, summary.text, sizeof(ret->text));
    if (summary.kind == STACK_UNKNOWN)
        (void)proc_activity_text(&t->stall.activities[worker], &t->trees[worker], pauses, ret->text,
                                 sizeof(ret->text));
}

static void describe_rank(const struct watch_task *t, const struct stack_set *set, int worker, int *pauses,
                          struct hang_rank *ret)
{
    const struct proc_tree *tree = &t->trees[worker];
    struct worker_collective records[WORKER_COLLECTIVES_MAX];

    *ret = (struct hang_rank){.rank = t->rank_base + worker, .has_ended = tree->n_pids == 0};
    for (size_t i = 0; i < set->n; i++) {
        const struct stack_process *p = &set->processes[i];

        if (p->worker != worker)
            continue;
        if (set->jobs[i].pid == tree->pids[0]) {
            describe_main_process(t, worker, &set->jobs[i], p, pauses, ret);
        } else if (!ret->child_state && hang_is_blocked(p->state)) {
            proc_sample_child(set->jobs[i].pid, p->state, ret);
        }
    }
    hang_add_collectives(ret, records, worker_collectives_read(t->state_fds[worker], records));
}

static void report(struct watch_task *t, const struct stack_set *set)
{
    struct hang_rank *ranks = calloc((size_t)t->n_workers, sizeof(*ranks));
    int pauses = PROC_ACTIVITY_PAUSES;
    size_t n = 0;

    for (int i = 0; ranks && i < t->n_workers; i++) {
        if (!t->pids[i] && !t->have_succeeded[i])
            continue;
        describe_rank(t, set, i, &pauses, &ranks[n]);
        ranks[n++].host = t->host;
    }
    free(t->ranks);
    t->ranks = ranks;
    t->n_ranks = n;
    free(t->text);
    t->stands_out = ranks && hang_sort(ranks, n);
    _cleanup_free_ char *groups = ranks ? hang_text(ranks, n, t->stands_out) : NULL;
    t->text = strbuf_format("%s%s", groups ? groups : "", t->nccl);
    t->first_worker = n ? ranks[0].rank - t->rank_base : -1;
}

/* ---- files ---- */

static void make_stack_folder(struct watch_task *t)
{
    size_t n = strlen(t->folder);

    t->folder_made = false;
    if (n) /* of the generation: there is none yet where no output goes to files */
        (void)mkdir(t->folder, 0777);
    /* With a link no earlier folder is left. */
    for (int i = t->link ? t->n_folder + 1 : 1; n && !t->folder_made && i <= FOLDERS_MAX; i++) {
        (void)snprintf(t->folder + n, sizeof(t->folder) - n, "/stacks_%d",
                       i); /* watch_task_set_folder() left room */
        t->folder_made = mkdir(t->folder, 0700) == 0;
        t->n_folder = i;
        if (!t->folder_made && errno != EEXIST)
            return;
    }
}

static void write_process(FILE *file, const struct stack_job *job, const struct stack_process *process,
                          bool is_first)
{
    if (is_first)
        (void)fprintf(file, "== process %d\n%s", (int)job->pid,
                      process->description ? process->description : "");
    if (job->text)
        (void)fwrite(job->text, 1, job->n_text, file);
    (void)fputs("\n", file);
}

static void stack_file_path(const struct watch_task *t, int worker, char *path, size_t n)
{
    (void)snprintf(path, n, "%s/rank_%d.txt", t->folder, t->rank_base + worker); /* fits */
}

/* A full disk costs the files, not the report. */
static void write_files(const struct watch_task *t, const struct stack_set *set, bool is_first)
{
    char path[sizeof(t->folder) + 32];

    for (int i = 0; t->folder_made && i < t->n_workers; i++) {
        stack_file_path(t, i, path, sizeof(path));
        int fd = t->trees[i].n_pids ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
        FILE *file = fd >= 0 ? fdopen(fd, "a") : NULL;
        if (!file && fd >= 0)
            (void)close(fd); /* nothing was written */
        for (size_t k = 0; file && k < set->n; k++)
            if (set->processes[k].worker == i)
                write_process(file, &set->jobs[k], &set->processes[k], is_first);
        if (file)
            (void)fclose(file);
    }
}

static void remove_files(struct watch_task *t)
{
    char path[sizeof(t->folder) + 32];

    for (int i = 0; t->folder_made && i < t->n_workers; i++) {
        stack_file_path(t, i, path, sizeof(path));
        (void)unlink(path); /* not each rank has one */
    }
    for (int i = 0; t->folder_made && i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/nccl_ras.%s", t->folder, i ? "json" : "txt"); /* fits */
        (void)unlink(path);
    }
    if (t->folder_made)
        (void)rmdir(t->folder); /* stays if a user has put something there */
}

void watch_task_finish(struct watch_task *t)
{
    if (!t->is_delivered)
        remove_files(t);
    stack_tools_finish(&t->tools);
    stall_look_finish(&t->stall);
    free_set(&t->set);
    free(t->trees);
    free(t->old_trees);
    free(t->found_bytes);
    free(t->pids);
    free(t->have_succeeded);
    free(t->samples);
    free(t->text);
    free(t->ranks);
    *t = (struct watch_task){.n_workers = 0};
}

/* Native frames of Python programs take longer, and come behind the other stacks in the files. */
static void add_native_frames(struct watch_task *t, struct stack_set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        struct stack_job *job = &set->jobs[i];

        free(job->text);
        job->text = NULL;
        job->n_text = 0;
        job->is_native = true;
        if (job->tool != STACK_TOOL_PY_SPY || job->is_blocked)
            job->tool = STACK_TOOL_NONE;
    }
    stack_tools_run(tools_of(t), set->jobs, set->n, (uint64_t)NATIVE_MS * 1000000u);
    write_files(t, set, false);
}

/* A process may seem to sleep until a tool tries to pause the process. */
static void note_blocked(struct stack_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->jobs[i].is_blocked && !hang_is_blocked(set->processes[i].state))
            set->processes[i].state = 'D';
}

static uint64_t report_limit_ns(const struct stack_set *set)
{
    uint64_t ms = REPORT_MS + REPORT_PROCESS_MS * (uint64_t)set->n;

    return (ms < REPORT_MAX_MS ? ms : REPORT_MAX_MS) * 1000000u;
}

static void take_stacks(struct watch_task *t)
{
    free_set(&t->set);
    list_trees(t, true);
    stall_look_take(&t->stall, t);
    make_stack_folder(t);
    note_lack(t);
    nccl_state_trigger(t->environment, t->rank_base, t->n_workers);
    if (collect(t, &t->set) != 0)
        return; /* without memory: the next time */
    stack_tools_run(tools_of(t), t->set.jobs, t->set.n, report_limit_ns(&t->set));
    note_blocked(&t->set);
    nccl_state_write(t->environment, t->folder_made ? t->folder : NULL, t->set.jobs, t->set.n, t->nccl);
    report(t, &t->set);
    write_files(t, &t->set, true);
}

/* False: it stays here. */
static bool hand_over_file(const struct watch_task *t, const char *path, enum output_which which, int rank)
{
    const struct output_handover handover = {.version = OUTPUT_HANDOVER_VERSION,
                                             .rank = (uint32_t)rank,
                                             .local_rank = (uint32_t)t->n_folder,
                                             .which = which,
                                             .attempt = t->attempt};
    struct file_part *part = file_part_create(strdup(path), OUTPUT_FILE_MAX, false);

    if (part)
        file_part_read(part);
    bool is_done = part && (!part->bytes /* not each rank has a file */ ||
                            output_handover_file(t->link, &handover, part->bytes, part->n_bytes) == 0);
    file_part_drop(part);
    return is_done;
}

static void hand_over_files(struct watch_task *t)
{
    char path[sizeof(t->folder) + 32];
    bool is_done = true;

    for (int i = 0; i < t->n_workers; i++) {
        stack_file_path(t, i, path, sizeof(path));
        is_done = hand_over_file(t, path, OUTPUT_STACKS, t->rank_base + i) && is_done;
    }
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/nccl_ras.%s", t->folder, i ? "json" : "txt"); /* fits */
        is_done = hand_over_file(t, path, i ? OUTPUT_NCCL_JSON : OUTPUT_NCCL_TEXT, t->rank_base) && is_done;
    }
    if (is_done)
        remove_files(t);
}

static void complete_files(struct watch_task *t)
{
    if (t->folder_made)
        add_native_frames(t, &t->set);
    if (t->folder_made && t->link)
        hand_over_files(t);
    free_set(&t->set);
}

void watch_task_run(void *task)
{
    struct watch_task *t = task;
    static void (*const work[])(struct watch_task * t) = {
        [WATCH_LOOK] = look, [WATCH_STACKS] = take_stacks, [WATCH_NATIVE] = complete_files};

    work[t->work](t);
}
