#include "launcher/crunctl/job_survey_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/minmax.h"
#include "base/time.h"
#include "launcher/crunctl/control_client_sock.h"
#include "launcher/crunctl/last_line.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/proc_usage_os.h"
#include "launcher/host/nvml_os.h"
#include "launcher/util/side_thread_os.h"
#include "launcher/crunctl/query_answer_json.h"
#include "launcher/crunctl/other_nodes_sock.h"

void job_survey_finish(struct job_survey *look)
{
    for (size_t i = 0; i < look->n_jobs; i++)
        job_status_finish(&look->jobs[i]);
    free(look->jobs);
    strlist_finish(&look->sockets);
    *look = (struct job_survey){0};
}

static int take_reply(struct job_survey *look, struct survey_options *o, const char *bytes, size_t n)
{
    if (!array_resize(look->jobs, look->n_jobs + 1))
        return -ENOMEM;
    struct job_status *job = &look->jobs[look->n_jobs];
    int r = job_status_from_json(bytes, n, job);
    if (!r && job_status_match(job->job, o->job) == JOB_MATCH_NONE)
        job_status_finish(job);
    else if (!r)
        look->n_jobs++;
    return r;
}

/* Paths in the answer of another user's process: root opens none of them. */
static void drop_logs(struct job_status *s)
{
    for (size_t n = 0; n < s->n_nodes_known; n++)
        for (size_t i = 0; i < s->nodes[n].n_workers; i++)
            s->nodes[n].workers[i].log[0] = '\0';
}

static int ask_socket(struct job_survey *look, struct survey_options *o, struct control_socket *s)
{
    _cleanup_(buf_finish) struct buf reply = {0};
    size_t n_before = look->n_jobs;

    int r = control_client_ask(s, "status", CONTROL_PATIENCE_MS, &reply);
    if (!r)
        r = take_reply(look, o, (const char *)buf_bytes(&reply), buf_size(&reply));
    if (r || look->n_jobs == n_before)
        return r;
    struct job_status *job = &look->jobs[n_before];
    job->socket = s->path;
    if (o->wants_stacks)
        return 0;
    if (s->is_foreign)
        drop_logs(job);
    other_nodes_add(job, o, s);
    job_status_mark_slow(job);
    return 0;
}

/* The socket of a killed crun is passed over: the next crun of the name removes the socket. A named socket has to answer, and for stacks each socket with a crun. */
static int ask_sockets(struct job_survey *look, struct survey_options *o)
{
    int result = 0;

    for (size_t i = 0; i < look->sockets.n_items; i++) {
        struct control_socket s = {.path = look->sockets.items[i], .is_named = o->socket != NULL};
        int r = ask_socket(look, o, &s);

        if (!r || (!s.is_named && (r == -ECONNREFUSED || r == -ENOENT)))
            continue;
        (void)fprintf(stderr, "crunctl: %s: %s\n", s.path, control_client_error(r));
        if (s.is_named || o->wants_stacks)
            result = r;
    }
    return result;
}

/* The agent of a host on this machine may have answered for the same job. */
static int take_front_job(struct job_survey *look, struct job_status *job, const char *socket)
{
    for (size_t i = 0; i < look->n_jobs; i++)
        if (strcmp(look->jobs[i].job, job->job) == 0)
            return job_status_take_nodes(&look->jobs[i], job);
    if (!array_resize(look->jobs, look->n_jobs + 1))
        return -ENOMEM;
    job->socket = socket;
    look->jobs[look->n_jobs++] = *job;
    *job = (struct job_status){0};
    return 0;
}

static int ask_front(struct job_survey *look, const struct survey_options *o, const char *socket)
{
    _cleanup_(query_answer_finish) struct query_answer looked;
    int r = 0;

    if (other_nodes_ask_front(socket, &looked) != 0)
        return 0;
    for (size_t i = 0; i < looked.n_jobs && !r; i++)
        if (job_status_match(looked.jobs[i].job, o->job) != JOB_MATCH_NONE) {
            job_status_mark_slow(&looked.jobs[i]);
            r = take_front_job(look, &looked.jobs[i], socket);
        }
    return r;
}

/* crun --hosts has no workers here: its rendezvous knows the hosts and their workers. */
static int ask_fronts(struct job_survey *look, const struct survey_options *o)
{
    size_t n = look->sockets.n_items;
    int r = o->socket ? 0 : control_client_fronts(o->environment, &look->sockets);

    for (; !r && n < look->sockets.n_items; n++)
        r = ask_front(look, o, look->sockets.items[n]);
    return r;
}

static void keep_best_matches(struct job_survey *look, const char *asked)
{
    enum job_match best = JOB_MATCH_BEGINNING;
    size_t n = 0;

    for (size_t i = 0; i < look->n_jobs; i++)
        if (job_status_match(look->jobs[i].job, asked) > best)
            best = JOB_MATCH_WHOLE;
    for (size_t i = 0; i < look->n_jobs; i++) {
        if (job_status_match(look->jobs[i].job, asked) >= best)
            look->jobs[n++] = look->jobs[i];
        else
            job_status_finish(&look->jobs[i]);
    }
    look->n_jobs = n;
}

/* ---- the own machine ---- */

/*
 * The driver's management library (NVML) is opened at the first look. A hung driver is waited for at most GPU_USAGE_MS and not asked again, and the process has to end by _exit() (side_thread_is_any_hung()). For the thread of main() alone.
 */
enum { GPU_USAGE_MS = 2000 };

struct gpu_query {
    struct gpu_status gpus[JOB_STATUS_GPUS_MAX];
    size_t n_gpus;
};

static struct nvml nvml;
static bool is_opened, is_usable;

static void open_driver(void)
{
    is_opened = true;
    is_usable = nvml_open(&nvml) && nvml.handle && nvml.utilization && nvml.memory;
}

static void query_gpu(struct gpu_query *q, unsigned index)
{
    struct nvml_utilization utilization = {0};
    struct nvml_memory memory = {0};
    nvml_device device;

    if (nvml.handle(index, &device) != 0 || nvml.memory(device, &memory) != 0)
        return;
    (void)nvml.utilization(device, &utilization); /* 0 without support (MIG) */
    q->gpus[q->n_gpus++] = (struct gpu_status){.index = (int32_t)index,
                                               .percent = (int32_t)min_size(utilization.gpu, 100),
                                               .used_mib = (int64_t)(memory.used >> 20),
                                               .total_mib = (int64_t)(memory.total >> 20)};
}

/* In a thread. */
static void query_gpus(void *data)
{
    struct gpu_query *q = data;
    unsigned n = 0;

    if (!is_opened)
        open_driver();
    if (!is_usable || nvml.count(&n) != 0)
        return;
    for (unsigned i = 0; i < n && q->n_gpus < JOB_STATUS_GPUS_MAX; i++)
        query_gpu(q, i);
}

/* Returns the number of GPUs filled in; 0 also where there is no driver. */
static size_t read_gpus(struct gpu_status ret[JOB_STATUS_GPUS_MAX])
{
    if (side_thread_is_any_hung() || !nvml_has_driver())
        return 0;
    struct gpu_query *q = calloc(1, sizeof(*q));
    const struct side_order order = {.kind = SIDE_OTHER, .run = query_gpus, .drop = free, .data = q};
    if (!q || side_work_call(&order, GPU_USAGE_MS) != 0)
        return 0; /* the thread frees the query */
    size_t n = q->n_gpus;
    memcpy(ret, q->gpus, n * sizeof(*ret));
    free(q);
    return n;
}

enum { TAIL_SIZE = 4096 };

/* Only of a file: the job chooses the path, and a pipe would be emptied. */
static void read_last_line(struct worker_status *w)
{
    char tail[TAIL_SIZE];
    struct stat info;

    if (!w->log[0])
        return;
    _cleanup_close_ int fd = open(w->log, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return;
    ssize_t n = pread(fd, tail, sizeof(tail), info.st_size > TAIL_SIZE ? info.st_size - TAIL_SIZE : 0);
    if (n > 0)
        last_line_of(tail, (size_t)n, w->last_line, sizeof(w->last_line));
}

/* Beside the reports of the agents: /proc, the ends of log files, the GPU driver. */
static void read_own_nodes(struct job_survey *look)
{
    struct gpu_status gpus[JOB_STATUS_GPUS_MAX];
    size_t n_gpus = look->n_jobs > 0 ? read_gpus(gpus) : 0;

    for (size_t i = 0; i < look->n_jobs; i++)
        for (size_t n = 0; n < look->jobs[i].n_nodes_known; n++) {
            struct node_status *node = &look->jobs[i].nodes[n];

            if (node->is_remote)
                continue;
            for (size_t w = 0; w < node->n_workers; w++) {
                proc_usage_read(&node->workers[w]);
                read_last_line(&node->workers[w]);
            }
            memcpy(node->gpus, gpus, n_gpus * sizeof(*gpus));
            node->n_gpus = n_gpus;
        }
}

static int ask_endpoint(struct job_survey *ret, struct survey_options *request)
{
    struct query_answer looked;
    int r = other_nodes_ask(request, &looked);

    ret->jobs = looked.jobs;
    ret->n_jobs = looked.n_jobs;
    looked.jobs = NULL;
    looked.n_jobs = 0;
    query_answer_finish(&looked);
    ret->taken_ns = now_ns();
    for (size_t i = 0; i < ret->n_jobs; i++)
        job_status_mark_slow(&ret->jobs[i]);
    return r;
}

int job_survey_take(struct job_survey *ret, struct survey_options *request)
{
    *ret = (struct job_survey){0};
    if (request->endpoint)
        return ask_endpoint(ret, request);
    int r = control_client_list(request->environment, request->socket, &ret->sockets);
    if (!r)
        r = ask_sockets(ret, request);
    if (!r)
        r = ask_fronts(ret, request);
    keep_best_matches(ret, request->job);
    ret->taken_ns = now_ns();
    if (!request->wants_stacks)
        read_own_nodes(ret);
    return r;
}

void job_survey_compare(struct job_survey *look, const struct job_survey *before)
{
    int64_t ms = (int64_t)(look->taken_ns - before->taken_ns) / 1000000;

    for (size_t i = 0; i < look->n_jobs; i++)
        for (size_t k = 0; k < before->n_jobs; k++)
            if (strcmp(look->jobs[i].job, before->jobs[k].job) == 0 &&
                look->jobs[i].crun_pid == before->jobs[k].crun_pid)
                job_status_compare(&look->jobs[i], &before->jobs[k], ms);
}

size_t job_survey_count_ranks(const struct job_survey *look)
{
    size_t n_ranks = 0;

    for (size_t i = 0; i < look->n_jobs; i++)
        for (size_t n = 0; n < look->jobs[i].n_nodes_known; n++)
            n_ranks += look->jobs[i].nodes[n].n_workers;
    return n_ranks;
}
