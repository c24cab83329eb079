#include "launcher/snapshots/snapshot_saver_uv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/minmax.h"
#include "launcher/snapshots/snapshot_folder_os.h"
#include "launcher/snapshots/state_memory_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"

enum {
    END_LIMIT_MS = 20000, /* for a disk at the end of the job */
    END_STEPS = 2,
};

enum part { PART_AWAITED, PART_WRITING };

struct saver_place {
    uint64_t instance;
    uint32_t generation;
    int32_t node, n_nodes;
};

struct snapshot_saver {
    struct saver_host host;
    char *folder; /* NULL: none */
    uint32_t every;
    struct saver_place place;
    bool is_saving, has_failed, is_ending;
    bool has_logged; /* a failure */
    uint64_t step;   /* .is_saving */
    struct saver_place step_place;
    uint64_t saved;                 /* last step written by this node, and 1 */
    int n_writing;                  /* threads */
    int n_done;                     /* workers */
    enum part *parts;               /* of each worker */
    struct state_memory **memories; /* .is_ending */
    uint64_t end_steps[END_STEPS];
    size_t n_end_steps;
};

/* A thread's work: the block of a worker, or the end of the step. */
struct save_work {
    char *folder;
    struct snapshot_folder to;
    struct state_memory *memory; /* NULL: the end of the step */
    uint32_t rank;
    int result;
};

static void start_next(struct snapshot_saver *s);

static void free_save_work(void *data)
{
    struct save_work *w = data;

    if (!w)
        return;
    state_memory_unref(w->memory);
    free(w->folder);
    free(w);
}

/* ---- in the thread ---- */

static int save_block(const struct save_work *w)
{
    _cleanup_close_ int fd = -1;
    struct state_block block;
    uint32_t slot;

    if (!state_memory_find(w->memory, w->rank, w->to.step, &slot, &block))
        return -ESTALE;
    int r = state_memory_copy(w->memory, slot, &block, &fd);
    return r ? r : snapshot_folder_write(&w->to, fd, w->rank);
}

static void save_in_thread(void *data)
{
    struct save_work *w = data;

    w->result = w->memory ? save_block(w) : snapshot_folder_finish(&w->to);
}

/* ---- on the loop ---- */

static void free_saver(struct snapshot_saver *s)
{
    for (int i = 0; s->memories && i < s->host.n_workers; i++)
        state_memory_unref(s->memories[i]);
    free(s->memories);
    free(s->parts);
    free(s->folder);
    free(s);
}

static void end_step(struct snapshot_saver *s)
{
    s->is_saving = false;
    if (s->is_ending)
        start_next(s);
}

/* A step that a worker has overwritten before its copy is no failure of the folder. */
static void note_failure(struct snapshot_saver *s, int r)
{
    s->has_failed = true;
    if (r == -ESTALE || s->has_logged)
        return;
    s->has_logged = true;
    log_line("the snapshot of step %llu is not written to %s: %s", (unsigned long long)s->step, s->folder,
             r == -EBADMSG     ? "a block in memory is damaged"
             : r == -ETIMEDOUT ? "the disk does not answer"
                               : strerror(-r));
}

static int submit_work(struct snapshot_saver *s, struct state_memory *memory, uint32_t rank);

static void on_work_end(void *owner, void *data)
{
    struct snapshot_saver *s = owner;
    struct save_work *w = data;
    bool was_finish = w && !w->memory;
    int r = w ? w->result : -ETIMEDOUT;

    free_save_work(w);
    s->n_writing--;
    if (r < 0)
        note_failure(s, r);
    else if (!was_finish)
        s->n_done++;
    if (was_finish && r >= 0)
        s->saved = s->step + 1;
    if (was_finish && r > 0 && !s->is_ending)
        s->host.on_saved(s->host.data, s->step);
    bool is_over = was_finish || (s->has_failed && s->n_writing == 0);
    if (!is_over && s->n_done == s->host.n_workers)
        is_over = submit_work(s, NULL, 0) < 0;
    if (is_over)
        end_step(s);
}

static struct save_work *make_work(const struct snapshot_saver *s, struct state_memory *memory, uint32_t rank)
{
    struct save_work *w = calloc(1, sizeof(*w));

    if (!w || !(w->folder = strdup(s->folder))) {
        free(w);
        return NULL;
    }
    w->to = (struct snapshot_folder){.folder = w->folder,
                                     .step = s->step,
                                     .instance = s->step_place.instance,
                                     .generation = s->step_place.generation,
                                     .node = s->step_place.node,
                                     .n_nodes = s->step_place.n_nodes};
    w->memory = memory ? state_memory_ref(memory) : NULL;
    w->rank = rank;
    return w;
}

static int submit_work(struct snapshot_saver *s, struct state_memory *memory, uint32_t rank)
{
    struct save_work *w = make_work(s, memory, rank);
    const struct side_task task = {.kind = SIDE_OTHER,
                                   .run = save_in_thread,
                                   .drop = free_save_work,
                                   .done = on_work_end,
                                   .data = w,
                                   .owner = s,
                                   .limit_ms = s->is_ending ? END_LIMIT_MS : 0};
    struct side_call *call;
    int r = w ? side_thread_submit(&call, s->host.loop, &task) : -ENOMEM;

    if (r) {
        free_save_work(w);
        note_failure(s, r);
        return r;
    }
    s->n_writing++;
    return 0;
}

static void begin_step(struct snapshot_saver *s, uint64_t step)
{
    s->is_saving = true;
    s->has_failed = false;
    s->step = step;
    s->step_place = s->place;
    s->n_done = 0;
    for (int i = 0; i < s->host.n_workers; i++)
        s->parts[i] = PART_AWAITED;
}

struct snapshot_saver *snapshot_saver_create(const struct saver_host *host)
{
    struct snapshot_saver *s = calloc(1, sizeof(*s));

    if (!s || !(s->parts = calloc((size_t)host->n_workers, sizeof(*s->parts)))) {
        free(s);
        return NULL;
    }
    s->host = *host;
    return s;
}

/* All workers name the same folder; the first to do so decides. */
void snapshot_saver_set_folder(struct snapshot_saver *s, const char *folder, uint32_t every)
{
    if (s->folder || folder[0] != '/')
        return;
    s->folder = strdup(folder);
    s->every = every;
}

void snapshot_saver_begin(struct snapshot_saver *s, uint64_t instance, uint32_t generation, int32_t node,
                          int32_t n_nodes)
{
    s->place = (struct saver_place){
        .instance = instance, .generation = generation, .node = node, .n_nodes = n_nodes};
    if (s->is_saving && s->n_writing == 0)
        s->is_saving = false;
    s->has_failed = s->is_saving; /* ends with the last thread */
}

void snapshot_saver_take(struct snapshot_saver *s, int worker, struct state_memory *memory, uint32_t rank,
                         uint64_t step)
{
    if (!s->folder || s->every == 0 || step % s->every != 0)
        return;
    if (!s->is_saving)
        begin_step(s, step);
    if (s->step != step || s->has_failed || s->parts[worker] != PART_AWAITED)
        return;
    s->parts[worker] = PART_WRITING;
    if (submit_work(s, memory, rank) < 0 && s->n_writing == 0)
        end_step(s);
}

/* ---- the end of the job ---- */

static bool has_step(const struct state_memory *memory, uint64_t step, struct state_block *ret)
{
    struct state_table table;

    if (!memory || state_memory_table(memory, &table) != 0)
        return false;
    for (uint32_t i = 0; i < table.n_slots; i++) {
        *ret = table.slots[i];
        if (ret->number == step + 1 && ret->content == STATE_FILES)
            return true;
    }
    return false;
}

static bool all_have(const struct snapshot_saver *s, uint64_t step, uint32_t generation)
{
    struct state_block block;

    for (int i = 0; i < s->host.n_workers; i++)
        if (!has_step(s->memories[i], step, &block) || block.generation != generation)
            return false;
    return true;
}

static int compare_steps(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b;

    return (*left > *right) - (*left < *right);
}

/* The newest steps of the first worker that all workers have, the oldest first. */
static void find_end_steps(struct snapshot_saver *s)
{
    size_t n = 0, n_max = s->place.n_nodes > 1 ? END_STEPS : 1;
    uint64_t steps[STATE_SLOTS_MAX];
    struct state_table table;

    if (!s->memories[0] || state_memory_table(s->memories[0], &table) != 0)
        return;
    for (uint32_t i = 0; i < table.n_slots; i++)
        if (table.slots[i].number > s->saved &&
            all_have(s, table.slots[i].number - 1, table.slots[i].generation))
            steps[n++] = table.slots[i].number - 1;
    qsort(steps, n, sizeof(steps[0]), compare_steps);
    s->n_end_steps = min_size(n, n_max);
    memcpy(s->end_steps, steps + n - s->n_end_steps, s->n_end_steps * sizeof(steps[0]));
}

static void start_end_step(struct snapshot_saver *s, uint64_t step)
{
    struct state_block block;

    assert(s->memories); /* the step was found in them */
    begin_step(s, step);
    for (int i = 0; i < s->host.n_workers && !s->has_failed; i++)
        if (has_step(s->memories[i], step, &block))           /* true before */
            (void)submit_work(s, s->memories[i], block.rank); /* a failure is noted */
}

static void start_next(struct snapshot_saver *s)
{
    while (s->n_end_steps > 0) {
        uint64_t step = s->end_steps[0];
        memmove(&s->end_steps[0], &s->end_steps[1], --s->n_end_steps * sizeof(s->end_steps[0]));
        start_end_step(s, step);
        if (s->n_writing > 0)
            return;
        s->is_saving = false;
    }
    free_saver(s);
}

void snapshot_saver_end(struct snapshot_saver *s,
                        struct state_memory *(*memory_of)(const void *data, int worker), const void *data)
{
    if (!s)
        return;
    s->is_ending = true;
    s->memories = calloc((size_t)s->host.n_workers, sizeof(struct state_memory *));
    for (int i = 0; s->memories && memory_of && i < s->host.n_workers; i++) {
        struct state_memory *m = memory_of(data, i);
        s->memories[i] = m ? state_memory_ref(m) : NULL;
    }
    if (s->folder && s->memories)
        find_end_steps(s);
    for (int i = 0; i < s->host.n_workers; i++)
        s->has_failed =
            s->has_failed ||
            s->parts[i] == PART_AWAITED; /* of the step that is being written: does not come any more */
    if (!s->is_saving || s->n_writing == 0)
        start_next(s);
}
