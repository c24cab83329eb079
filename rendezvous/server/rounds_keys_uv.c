#include "rendezvous/server/rounds_keys_uv.h"

#include "rendezvous/server/job_stores_uv.h"
#include "rendezvous/server/replica_uv.h"
#include "rendezvous/server/rounds_state_uv.h"
#include "rendezvous/server/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

/* Saves which crunds have the keys of the job, if its store waits for that. */
static void save_keys(struct rounds_shell *r, struct rounds_job *job)
{
    struct job_stores *stores = r->server->job_stores;
    uint64_t backup;

    if (!job_stores_is_marked(stores, job, &backup))
        return;
    job->keys_at = rounds_state_id(r->state);
    job->keys_backup = backup;
    rounds_state_save(r->state, job);
    job_stores_set_mark(stores, job, rounds_state_mark(r->state, job));
}

static void save_all_keys(struct rounds_shell *r)
{
    list_for_each(i, &r->core.jobs) save_keys(r, list_entry(i, struct rounds_job, in_rounds));
}

void rounds_keys_begin(struct rounds_shell *r, const struct rounds_job *job)
{
    job_stores_begin(r->server->job_stores, job->id, job->instance, job->key_space);
    if (!r->server->replicas)
        return;
    list_for_each(i, &r->core.jobs)
    {
        struct rounds_job *own = list_entry(i, struct rounds_job, in_rounds);

        if (own == job)
            save_keys(r, own);
    }
}

void rounds_keys_gain_backup(struct rounds_shell *r)
{
    if (!r->leads)
        return;
    save_all_keys(r);
    rounds_state_write(r->state);
}

void rounds_keys_lose_backup(struct rounds_shell *r)
{
    if (!r || !r->server->job_stores || !job_stores_lose_backup(r->server->job_stores, r->leads) || !r->leads)
        return;
    rounds_log(r, "the crund that has the keys of jobs, too, is lost");
    save_all_keys(r);
    rounds_state_write(r->state);
}

void rounds_keys_lead(struct rounds_shell *r)
{
    if (!r->server->replicas)
        return;
    list_for_each(i, &r->core.jobs)
    {
        struct rounds_job *job = list_entry(i, struct rounds_job, in_rounds);

        if (job->key_space == 0 || !job_stores_serve(r->server->job_stores, job, rounds_state_id(r->state)))
            continue;
        job->keys_lost = false;
        rounds_log(r, "job '%.64s': its keys are served by this crund from now on", job->id);
        save_keys(r, job);
    }
    job_stores_end_rest(r->server->job_stores);
    replica_shell_lead(
        r->server->replicas); /* last: one that cannot be reached takes part in what is saved here */
}
