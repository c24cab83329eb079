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

enum part_state { PART_AWAITED, PART_WRITING };

/* The block of a worker, or, behind the last worker, the end of the step. */
struct part {
    struct snapshot_saver *saver;
    enum part_state state;
    struct side_call *call; /* NULL: no thread */
};

struct saver_state {
    uint64_t step;
    uint32_t generation;
};

struct snapshot_saver {
    struct saver_host host;
    uv_timer_t deadline; /* of the end */
    char *folder;        /* NULL: none */
    uint32_t every;
    struct snapshot_place place;
    bool has_choice; /* of the generation, from which its workers continue */
    struct saver_state choice;
    bool is_saving, has_failed, is_ending;
    bool has_logged;                /* a failure */
    struct saver_state saving;      /* begun last in the generation */
    bool has_step;                  /* .saving */
    uint64_t saved;                 /* last step written by this node, and 1 */
    int n_writing;                  /* threads */
    int n_done;                     /* workers */
    struct part *parts;             /* of each worker, and of the end */
    struct state_memory **memories; /* .is_ending */
    struct saver_state end_states[END_STEPS];
    size_t n_end_states;
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

    if (!state_memory_find(w->memory, w->rank, w->to.step, w->to.generation, &slot, &block))
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

static void on_deadline_closed(uv_handle_t *handle)
{
    free_saver(handle->data);
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
    log_line("the snapshot of step %llu is not written to %s: %s", (unsigned long long)s->saving.step,
             s->folder,
             r == -EBADMSG     ? "a block in memory is damaged"
             : r == -ETIMEDOUT ? "the disk does not answer"
                               : strerror(-r));
}

static int submit_work(struct part *part, struct state_memory *memory, uint32_t rank);

static void on_work_end(void *owner, void *data)
{
    struct part *part = owner;
    struct snapshot_saver *s = part->saver;
    struct save_work *w = data;
    bool was_finish = !w->memory;
    int r = w->result;

    free_save_work(w);
    part->call = NULL;
    s->n_writing--;
    if (r < 0)
        note_failure(s, r);
    else if (!was_finish)
        s->n_done++;
    if (was_finish && r >= 0)
        s->saved = s->saving.step + 1;
    if (was_finish && r > 0 && !s->is_ending)
        s->host.on_saved(s->host.data, s->saving.step);
    bool is_over = was_finish || (s->has_failed && s->n_writing == 0);
    if (!is_over && s->n_done == s->host.n_workers)
        is_over = submit_work(&s->parts[s->host.n_workers], NULL, 0) < 0;
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
                                     .step = s->saving.step,
                                     .instance = s->place.instance,
                                     .generation = s->saving.generation,
                                     .node = s->place.node,
                                     .n_nodes = s->place.n_nodes};
    w->memory = memory ? state_memory_ref(memory) : NULL;
    w->rank = rank;
    return w;
}

static int submit_work(struct part *part, struct state_memory *memory, uint32_t rank)
{
    struct snapshot_saver *s = part->saver;
    struct save_work *w = make_work(s, memory, rank);
    const struct side_task task = {.kind = SIDE_OTHER,
                                   .run = save_in_thread,
                                   .drop = free_save_work,
                                   .done = on_work_end,
                                   .data = w,
                                   .owner = part};
    int r = w ? side_thread_submit(&part->call, s->host.loop, &task) : -ENOMEM;

    if (r) {
        free_save_work(w);
        note_failure(s, r);
        return r;
    }
    part->state = PART_WRITING;
    s->n_writing++;
    return 0;
}

static void begin_step(struct snapshot_saver *s, uint64_t step, uint32_t generation)
{
    s->is_saving = s->has_step = true;
    s->has_failed = false;
    s->saving = (struct saver_state){.step = step, .generation = generation};
    s->n_done = 0;
    for (int i = 0; i < s->host.n_workers; i++)
        s->parts[i].state = PART_AWAITED;
}

struct snapshot_saver *snapshot_saver_create(const struct saver_host *host)
{
    struct snapshot_saver *s = calloc(1, sizeof(*s));

    if (!s || !(s->parts = calloc((size_t)host->n_workers + 1, sizeof(*s->parts)))) {
        free(s);
        return NULL;
    }
    s->host = *host;
    for (int i = 0; i <= host->n_workers; i++)
        s->parts[i].saver = s;
    (void)uv_timer_init(host->loop, &s->deadline); /* cannot fail */
    s->deadline.data = s;
    return s;
}

/* All workers name the same folder; the first name counts. */
void snapshot_saver_set_folder(struct snapshot_saver *s, const char *folder, uint32_t every)
{
    if (s->folder || folder[0] != '/')
        return;
    s->folder = strdup(folder);
    s->every = every;
}

void snapshot_saver_begin(struct snapshot_saver *s, const struct snapshot_place *place)
{
    s->place = *place;
    s->has_choice = false;
    s->is_saving = s->has_failed = s->n_writing > 0; /* ends with the last thread */
    s->has_step = false;
}

void snapshot_saver_continue(struct snapshot_saver *s, uint64_t step, uint32_t generation)
{
    s->has_choice = true;
    s->choice = (struct saver_state){.step = step, .generation = generation};
    if (s->saved > step + 1)
        s->saved = step + 1;
}

void snapshot_saver_take(struct snapshot_saver *s, int worker, struct state_memory *memory, uint32_t rank,
                         uint64_t step)
{
    if (!s->folder || s->every == 0 || step % s->every != 0)
        return;
    /* A step that lacks blocks, as a worker has left the step out, gives way to a later step. */
    if ((!s->has_step || step > s->saving.step) && s->n_writing == 0)
        begin_step(s, step, s->place.generation);
    if (!s->is_saving || s->saving.step != step || s->has_failed || s->parts[worker].state != PART_AWAITED)
        return;
    if (submit_work(&s->parts[worker], memory, rank) < 0 && s->n_writing == 0)
        end_step(s);
}

/* ---- the end of the job ---- */

static bool has_state(const struct state_memory *memory, const struct saver_state *state,
                      struct state_block *ret)
{
    struct state_table table;

    if (!memory || state_memory_table(memory, &table) != 0)
        return false;
    for (uint32_t i = 0; i < table.n_slots; i++) {
        *ret = table.slots[i];
        if (ret->number == state->step + 1 && ret->generation == state->generation &&
            ret->content == STATE_FILES)
            return true;
    }
    return false;
}

/* Saved in the last generation, or the choice of the last generation. */
static bool is_current(const struct snapshot_saver *s, const struct saver_state *state)
{
    bool is_choice =
        s->has_choice && s->choice.step == state->step && s->choice.generation == state->generation;

    return is_choice || state->generation == s->place.generation;
}

static bool all_have(const struct snapshot_saver *s, const struct saver_state *state)
{
    struct state_block block;

    for (int i = 0; i < s->host.n_workers; i++)
        if (!has_state(s->memories[i], state, &block) || block.world_size != s->place.world_size)
            return false;
    return true;
}

static int compare_newest_first(const void *a, const void *b)
{
    const struct saver_state *left = a, *right = b;

    return (left->step < right->step) - (left->step > right->step);
}

static void find_end_states(struct snapshot_saver *s)
{
    size_t n = 0, n_max = s->place.n_nodes > 1 ? END_STEPS : 1;
    struct saver_state found[STATE_SLOTS_MAX];
    struct state_table table;

    if (!s->memories[0] || state_memory_table(s->memories[0], &table) != 0)
        return;
    for (uint32_t i = 0; i < table.n_slots; i++) {
        const struct saver_state state = {.step = table.slots[i].number - 1,
                                          .generation = table.slots[i].generation};
        if (table.slots[i].number > s->saved && is_current(s, &state) && all_have(s, &state))
            found[n++] = state;
    }
    qsort(found, n, sizeof(found[0]), compare_newest_first);
    s->n_end_states = min_size(n, n_max);
    memcpy(s->end_states, found, s->n_end_states * sizeof(found[0]));
}

static void start_end_step(struct snapshot_saver *s, const struct saver_state *state)
{
    struct state_block block;

    assert(s->memories); /* the state was found in them */
    begin_step(s, state->step, state->generation);
    for (int i = 0; i < s->host.n_workers && !s->has_failed; i++)
        if (has_state(s->memories[i], state, &block))                    /* true before */
            (void)submit_work(&s->parts[i], s->memories[i], block.rank); /* a failure is noted */
}

static void start_next(struct snapshot_saver *s)
{
    while (s->n_end_states > 0) {
        const struct saver_state state = s->end_states[0];
        memmove(&s->end_states[0], &s->end_states[1], --s->n_end_states * sizeof(s->end_states[0]));
        start_end_step(s, &state);
        if (s->n_writing > 0)
            return;
        s->is_saving = false;
    }
    uv_close((uv_handle_t *)&s->deadline, on_deadline_closed);
}

/* Threads are left alone: the process ends without waiting. */
static void on_end_deadline(uv_timer_t *timer)
{
    struct snapshot_saver *s = timer->data;

    note_failure(s, -ETIMEDOUT);
    for (int i = 0; i <= s->host.n_workers; i++)
        free_save_work(side_thread_cancel(steal_ptr(s->parts[i].call)));
    uv_close((uv_handle_t *)&s->deadline, on_deadline_closed);
}

void snapshot_saver_end(struct snapshot_saver *s,
                        struct state_memory *(*memory_of)(const void *data, int worker), const void *data)
{
    if (!s)
        return;
    s->is_ending = true;
    s->has_logged = false;
    s->memories = calloc((size_t)s->host.n_workers, sizeof(struct state_memory *));
    for (int i = 0; s->memories && memory_of && i < s->host.n_workers; i++) {
        struct state_memory *m = memory_of(data, i);
        s->memories[i] = m ? state_memory_ref(m) : NULL;
    }
    if (s->folder && s->memories)
        find_end_states(s);
    for (int i = 0; i < s->host.n_workers; i++)
        s->has_failed |= s->parts[i].state == PART_AWAITED;               /* missing for good */
    (void)uv_timer_start(&s->deadline, on_end_deadline, END_LIMIT_MS, 0); /* fails only without a callback */
    if (s->n_writing == 0)
        start_next(s);
}
