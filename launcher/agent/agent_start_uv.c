#include "launcher/agent/agent_start_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/output/attempt_files_uv.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/rdzv/worker_store_uv.h"
#include "launcher/util/log_os.h"
#include "base/cleanup.h"
#include "base/random_os.h"
#include "rendezvous/server/server_uv.h"

struct agent_start {
    struct agent_host *host;
    struct rank_assignment *assignment;
    struct generation_host *generations;
    void (*on_start)(void *data, int r, bool is_replacement);
    struct attempt_files_config files_config;
    struct attempt_request *files; /* while a thread makes the files; else NULL */
    bool is_replacing;             /* the files are for a replacement */
    bool *failed;                  /* the workers to replace; NULL before the first replacement */
    int cause_rank;                /* the rank whose failure the replacement mends, or -1 */
    struct server *store;          /* for the next generation to take; or NULL */
    int held_port;                 /* a port kept free for the next generation; or -1 */
    bool is_store_promised;        /* several nodes: "ready" has named the port of the present store */
};

/* ---- the store ---- */

/* Without other nodes the agent assigns the ranks itself: an empty store, and all ranks on the own node. */
int agent_start_assign(struct agent_start *s)
{
    const struct job *job = s->host->job;
    uint32_t n = (uint32_t)job->n_workers;
    struct rank_assignment *assignment = s->assignment;
    uint64_t instance = assignment->instance; /* of the run, otherwise given by a rendezvous */

    if (!instance && random_fill(&instance, sizeof(instance)) < 0)
        instance = 0; /* snapshots are then ordered by their lock alone */
    *assignment = (struct rank_assignment){
        .group_world_size = 1, .world_size = n, .role_world_size = n, .instance = instance};
    text_copy(assignment->master_addr, sizeof(assignment->master_addr), job->master_addr);
    if (job->worker_has_store) {
        int r = worker_store_hold(&s->held_port, &assignment->master_port);
        if (r)
            log_line("cannot find a free port for the store of the workers: %s", strerror(-r));
        return r;
    }
    const struct worker_store_options options = {
        .host = job->master_addr, .port = job->master_port, .security = job->security};
    int r = worker_store_open(&s->store, s->host->loop, &options, &assignment->master_port);
    if (r)
        log_line("cannot open the worker store at %s port %u: %s%s", job->master_addr, job->master_port,
                 strerror(-r),
                 r == -EADDRINUSE
                     ? "; another program has it, choose another --master-port or use --standalone"
                     : "");
    return r;
}

static void drop_store(struct agent_start *s)
{
    close_fd(&s->held_port);
    server_stop(steal_ptr(s->store), NULL, NULL);
}

void agent_start_take_store(struct agent_start *s, struct server *store)
{
    s->is_store_promised = false;
    drop_store(s); /* of a failed start */
    s->store = store;
}

/* Several nodes: the rendezvous has named the present store as the store of the next generation. */
static void take_promised_store(struct agent_start *s)
{
    if (s->host->job->meeting == JOB_ROUNDS && !s->store && s->host->generation &&
        s->assignment->group_rank == 0)
        s->store = steal_ptr(s->host->generation->server);
}

/* Whether all remaining workers have asked for their store to stay. */
static bool remaining_keep_store(const struct agent_start *s)
{
    for (int i = 0; i < s->host->group->config.n_workers; i++)
        if (s->host->group->workers[i].can_stay && !s->host->group->workers[i].failed &&
            !s->host->generation->workers[i].keeps_store)
            return false;
    return true;
}

/* Remaining workers talk through the store of their first generation: a store on the own node is offered again, and the rendezvous keeps
 * the keys of its own store. */
void agent_start_report_ready(struct agent_start *s)
{
    bool keeps_keys = s->assignment->key_space > 0;
    bool is_kept =
        s->host->generation && (keeps_keys || s->host->generation->server) &&
        (s->is_store_promised || (s->host->group->state == GROUP_REPLACING && remaining_keep_store(s)));

    s->is_store_promised = is_kept;
    membership_ready(s->host->membership, is_kept && !keeps_keys ? s->assignment->master_port : 0,
                     is_kept && keeps_keys);
}

/* ---- the start ---- */

/* The files are there: start the generation. */
static int begin_generation_with(struct agent_start *s, struct attempt_files *files)
{
    s->generations->death_notice = s->host->membership ? membership_death_notice(s->host->membership) : NULL;
    int r = generation_create(&s->host->generation, s->generations, s->host->group->generation,
                              s->host->group->restarts, s->assignment, files, s->store);
    if (r) {
        drop_store(s);
    } else {
        s->host->generation->held_port = s->held_port;
        s->held_port = -1;
    }
    s->store = NULL;
    return r;
}

static int replace_with(struct agent_start *s, struct attempt_files *files)
{
    return generation_replace(s->host->generation, s->host->group->generation, s->host->group->restarts,
                              s->assignment, files, steal_ptr(s->store), s->failed, s->cause_rank);
}

static void on_files_ready(void *data, int r, struct attempt_files *files)
{
    struct agent_start *s = data;

    s->files = NULL;
    if (r)
        drop_store(s);
    else if (s->is_replacing)
        r = replace_with(s, files);
    else
        r = begin_generation_with(s, files);
    s->on_start(s->host->data, r, s->is_replacing);
}

static int make_files(struct agent_start *s, const bool *selected)
{
    s->is_replacing = selected;
    int r = attempt_files_begin(&s->files, &s->files_config, (int)s->host->group->generation,
                                (int)s->assignment->rank_base, selected, on_files_ready, s);
    if (r)
        drop_store(s);
    return r;
}

int agent_start_begin(struct agent_start *s)
{
    return make_files(s, NULL);
}

/* The workers whose files are being made are not started. Their store ends with the generation. */
static void drop_pending_start(struct agent_start *s)
{
    if (!s->files)
        return;
    attempt_files_cancel(steal_ptr(s->files));
    if (s->is_replacing && !s->host->generation->server)
        s->host->generation->server = steal_ptr(s->store);
}

/* The own node serves the store, and the remaining workers need the store. */
static bool store_is_to_stay(const struct agent_start *s)
{
    return s->host->generation->server && remaining_keep_store(s);
}

/* The store and the ranks of the next generation; some workers remain. */
static int assign_replacement(struct agent_start *s)
{
    if (s->host->job->meeting == JOB_ROUNDS)
        take_promised_store(s);
    else if (store_is_to_stay(s))
        s->store = steal_ptr(s->host->generation->server);
    generation_close_store(s->host->generation); /* the remaining workers use the store no more */
    return s->host->job->meeting == JOB_ROUNDS || s->store ? 0 : agent_start_assign(s);
}

int agent_start_replace(struct agent_start *s, int cause_rank)
{
    const struct worker_group *g = s->host->group;
    size_t n = (size_t)g->config.n_workers;

    drop_pending_start(s);
    s->cause_rank = cause_rank;
    free(s->failed);
    s->failed = calloc(n, sizeof(*s->failed));
    if (!s->failed)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        s->failed[i] = g->workers[i].state == GROUP_WORKER_NONE;
    TRY(assign_replacement(s));
    return make_files(s, s->failed);
}

bool agent_start_is_pending(const struct agent_start *s)
{
    return s->files;
}

bool agent_start_cancel(struct agent_start *s)
{
    drop_pending_start(s);
    drop_store(s);
    return !s->is_replacing;
}

/* ---- the end ---- */

void agent_start_clear(struct agent_start *s)
{
    drop_pending_start(s);
    take_promised_store(s);
    /* The workers have ended, so the store has no clients. */
    generation_destroy(steal_ptr(s->host->generation));
    s->is_replacing = false;
}

void agent_start_stop(struct agent_start *s)
{
    generation_destroy(steal_ptr(s->host->generation));
    drop_store(s);
}

void agent_start_destroy(struct agent_start *s)
{
    free(s->failed);
}

struct agent_start *agent_start_create(struct agent_host *host, struct rank_assignment *assignment,
                                       struct generation_host *generations, struct logs *logs,
                                       void (*on_start)(void *data, int r, bool is_replacement))
{
    static struct agent_start start; /* a process has one agent */
    struct agent_start *s = &start;

    *s = (struct agent_start){.host = host,
                              .assignment = assignment,
                              .generations = generations,
                              .on_start = on_start,
                              .files_config = {host->loop, host->job, host->config->environment, logs},
                              .held_port = -1};
    return s;
}
