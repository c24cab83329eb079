/*
 * The directory of a daemon: does for the rounds what rounds_disk_uv.c does.
 *
 * The disk takes its time: jobs that are saved while a batch is being written go into the next one, each with its last
 * state. A crash loses what waits, and of the batch that is being written any part.
 */

#include <stdlib.h>

#include "rendezvous/rounds/rounds_json.h"
#include "tests/sim/sim.h"

static struct sim_file *file_of(struct sim_daemon *d, uint64_t instance)
{
    for (size_t i = 0; i < d->n_files; i++)
        if (d->files[i].instance == instance)
            return &d->files[i];
    if (d->n_files == d->files_capacity) {
        d->files_capacity = d->files_capacity ? d->files_capacity * 2 : 8;
        d->files = realloc(d->files, d->files_capacity * sizeof(*d->files));
        if (!d->files)
            abort();
    }
    d->files[d->n_files] = (struct sim_file){.instance = instance};
    return &d->files[d->n_files++];
}

static void start_batch(struct sim *sim, struct sim_daemon *d)
{
    uint64_t at_ns = sim->now_ns + random_between(&sim->random, 0, sim->scenario.disk_max_ns);

    for (size_t i = 0; i < d->n_files && !d->disk_busy; i++)
        d->disk_busy = d->files[i].waiting.pending;
    if (!d->disk_busy)
        return;
    d->disk_since_ns = daemon_clock(sim, d);
    for (size_t i = 0; i < d->n_files; i++) {
        struct sim_write free_one = d->files[i].writing;

        d->files[i].writing = d->files[i].waiting;
        d->files[i].waiting = free_one;
    }
    if (sim->scenario.disk_max_ns > 50 * SIM_MS)
        disturb_daemon(sim, at_ns);
    if (sim->scenario.disk_max_ns == 0)
        daemon_disk_written(sim, d);
    else
        schedule_add(&sim->schedule, at_ns, SIM_DISK, daemon_number(sim, d), d->life);
}

static void copy_text(struct buf *to, const struct buf *from)
{
    buf_reset(to);
    if (buf_append(to, buf_bytes(from), buf_size(from)) != 0)
        abort();
}

static void complete_write(struct sim *sim, struct sim_file *f)
{
    if (random_percent(&sim->random, 40))
        copy_text(&f->old, &f->disk);
    copy_text(&f->disk, &f->writing.text);
}

static void drop_write(struct sim_write *w)
{
    buf_reset(&w->text);
    w->pending = false;
}

/* That of the job's last save. */
uint64_t daemon_disk_mark(const struct sim_daemon *d, const struct rounds_job *job)
{
    for (size_t i = 0; job && i < d->n_files; i++)
        if (d->files[i].instance == job->instance)
            return d->files[i].waiting.pending   ? d->files[i].waiting.mark
                   : d->files[i].writing.pending ? d->files[i].writing.mark
                                                 : 0;
    return 0;
}

void daemon_disk_written(struct sim *sim, struct sim_daemon *d)
{
    uint64_t done = 0;

    daemon_postpone(sim, d);
    for (size_t i = 0; i < d->n_files; i++) {
        struct sim_file *f = &d->files[i];

        if (!f->writing.pending)
            continue;
        complete_write(sim, f);
        done = f->writing.mark > done ? f->writing.mark : done;
        drop_write(&f->writing);
    }
    d->disk_busy = false;
    daemon_release(sim, d, done);
    start_batch(sim, d);
}

/* The process dies: each file of the batch has been renamed, or not. */
void daemon_disk_lose_writes(struct sim *sim, struct sim_daemon *d)
{
    for (size_t i = 0; i < d->n_files; i++) {
        if (d->files[i].writing.pending && random_percent(&sim->random, 50))
            complete_write(sim, &d->files[i]);
        drop_write(&d->files[i].writing);
        drop_write(&d->files[i].waiting);
    }
    d->disk_busy = false;
}

void daemon_disk_lose(struct sim_daemon *d)
{
    for (size_t i = 0; i < d->n_files; i++)
        buf_reset(&d->files[i].disk);
}

void daemon_disk_roll_back(struct sim_daemon *d)
{
    for (size_t i = 0; i < d->n_files; i++)
        copy_text(&d->files[i].disk, &d->files[i].old);
}

void daemon_disk_load(struct sim *sim, struct sim_daemon *d)
{
    for (size_t i = 0; i < d->n_files; i++) {
        const struct buf *disk = &d->files[i].disk;

        if (buf_size(disk) == 0)
            continue;
        daemon_load(sim, d, buf_bytes(disk), buf_size(disk));
        if (d->rounds.superseded) /* renamed */
            buf_reset(&file_of(d, d->rounds.superseded)->disk);
    }
}

void daemon_disk_finish(struct sim_daemon *d)
{
    for (size_t i = 0; i < d->n_files; i++) {
        buf_finish(&d->files[i].disk);
        buf_finish(&d->files[i].old);
        buf_finish(&d->files[i].waiting.text);
        buf_finish(&d->files[i].writing.text);
    }
    free(d->files);
}

void daemon_disk_save(struct sim_daemon *d, const struct rounds_job *job, bool forget)
{
    struct sim_write *w = &file_of(d, job->instance)->waiting;

    buf_reset(&w->text);
    w->pending = true;
    w->mark = ++d->mark;
    if (!forget && rounds_json_save(&w->text, job) != 0)
        abort();
}

/* Begins to write what waits, if the disk is free. */
void daemon_disk_write(struct sim *sim, struct sim_daemon *d)
{
    if (!d->disk_busy)
        start_batch(sim, d);
}
