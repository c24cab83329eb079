/*
 * What comes before the training loop and after it: opening, allocating, saving, closing. Resuming: trainer_resume.c.
 */

#include "base/err.h"
#include "base/format.h"
#include "worker-runtime/programs/trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A save may take SAVE_PATIENCE_MS of the ranks' time; the last one all that a collective may. */
enum { SAVE_PATIENCE_MS = 1000, SAVES_POLL_MS = 100, SAVES_WAIT_S = 1800 };

int trainer_fail(struct trainer *t, const char *format, ...)
{
    (void)format_arguments(t->error, sizeof(t->error), format);
    return -1;
}

int trainer_agree(struct trainer *t, int result)
{
    int64_t first = result < 0 ? -(int64_t)crw_rank(t->group) - 1 : INT64_MIN;

    if (crw_all_reduce(t->group, &first, 1, CRW_I64, CRW_MAX) != 0) {
        t->follows = true;
        fprintf(stderr, "train: rank %d: %s\n", crw_rank(t->group), crw_error_message());
        return -1;
    }
    if (first == INT64_MIN)
        return 0;
    t->follows = result == 0;
    if (-first - 1 == crw_rank(t->group)) {
        fprintf(stderr, "train: %s\n", t->error);
        (void)crw_error_record(t->error); /* it is on stderr in any case */
    }
    (void)crw_barrier(t->group); /* no rank exits before the message is out; a failure changes nothing */
    return -1;
}

/* ---- what a rank does alone ---- */

static int check_train_options(struct trainer *t)
{
    const struct train_options *o = t->options;

    TRY(device_wanted(t, &t->on_device));
    if (!t->on_device && o->precision == TRAIN_TF32)
        return trainer_fail(t, "--precision tf32 is for GPUs, and the CPU trains; use fp32 or bf16");
    if (!t->on_device && o->reduce == TRAIN_REDUCE_NCCL)
        return trainer_fail(t, "--reduce nccl is for GPUs, and the CPU trains; use host");
    if (t->on_device && o->fault.kind == FAULT_NAN)
        return trainer_fail(t, "--fault kind=nan is for the CPU; use --backend cpu");
    if (o->fault.kind != FAULT_NONE && o->fault.rank >= crw_world_size(t->group))
        return trainer_fail(t, "--fault: there is no rank %d among %d worker%s", o->fault.rank,
                            crw_world_size(t->group), crw_world_size(t->group) == 1 ? "" : "s");
    return 0;
}

static int open_samples(struct trainer *t)
{
    const struct program *p = t->program;

    TRY(p->open(p->data, &t->n_training, &t->n_test, t->error, sizeof(t->error)));
    if (t->options->limit > 0 && t->options->limit < t->n_training)
        t->n_training = (uint32_t)t->options->limit;
    return 0;
}

static size_t input_size(const struct program *p)
{
    return (size_t)p->input.channels * (size_t)p->input.height * (size_t)p->input.width;
}

static int allocate_batches(struct trainer *t)
{
    size_t batch_size = t->options->batch_size;

    t->batch_gradients = t->reduced;
    if (t->options->accumulate > 1)
        t->batch_gradients = malloc(t->n_parameters * sizeof(float));
    t->test_samples = calloc(batch_size, sizeof(*t->test_samples));
    t->test_input = calloc(batch_size, input_size(t->program) * sizeof(float));
    t->test_targets = calloc(batch_size, t->program->target_size);
    if (!t->batch_gradients || !t->test_samples || !t->test_input || !t->test_targets)
        return trainer_fail(t, "out of memory for batches of %zu %s", batch_size, t->program->samples_name);
    return 0;
}

static int create_model(struct trainer *t)
{
    const struct train_options *o = t->options;
    const struct program *p = t->program;
    struct crw_optimizer_options optimizer = crw_optimizer_defaults(o->optimizer);

    optimizer.lr = o->lr;
    if (crw_model_create(p->layers, p->n_layers, p->input, (int)o->batch_size, t->batch_gradients,
                         &t->model) != 0 ||
        crw_model_set_precision(t->model, o->precision == TRAIN_BF16 ? CRW_BF16 : CRW_F32) != 0 ||
        crw_optimizer_create(&optimizer, t->n_parameters, &t->optimizer) != 0)
        return trainer_fail(t, "%s", crw_error_message());
    crw_model_init(t->model, o->seed);
    return 0;
}

static int gather_training(void *data, const uint32_t *samples, size_t n, float *input, void *targets)
{
    const struct program *p = data;

    p->gather(p->data, PART_TRAINING, samples, n, input, targets);
    return 0;
}

static int create_loader(struct trainer *t)
{
    const struct crw_sampler_options sampler = {
        .n_samples = t->n_training,
        .rank = crw_rank(t->group),
        .world_size = crw_world_size(t->group),
        .seed = t->options->seed,
        .shuffle = true,
    };
    struct crw_loader_options loader = {
        .batch_size = t->options->batch_size,
        .input_size = input_size(t->program),
        .target_size = t->program->target_size,
        .n_ahead = (int)t->options->prefetch,
        .gather = gather_training,
        .data = (void *)(uintptr_t)t->program, /* only read */
    };

    if (crw_sampler_create(&sampler, &t->sampler) != 0)
        return trainer_fail(t, "%s", crw_error_message());
    loader.sampler = t->sampler;
    if (crw_loader_create(&loader, &t->loader) != 0)
        return trainer_fail(t, "%s", crw_error_message());
    return 0;
}

static int create_state(struct trainer *t)
{
    const struct train_options *o = t->options;
    struct train_recipe recipe = {0};

    recipe_add(&recipe, "seed", "%" PRIu64, o->seed);
    recipe_add(&recipe, "n_samples", "%" PRIu32, t->n_training);
    recipe_add(&recipe, "optimizer", "%s", optimizer_names[o->optimizer]);
    recipe_add(&recipe, "lr", "%.17g", o->lr);
    recipe_add(&recipe, "lr_schedule", "%s", schedule_describe(&o->schedule).text);
    recipe_add(&recipe, "accumulate", "%" PRIu64, o->accumulate);
    recipe_add(&recipe, "clip_norm", "%.17g", o->clip_norm);
    recipe_add(&recipe, "precision", "%s", precision_names[o->precision]);
    if (state_create(&t->state, t->model, t->optimizer, &recipe) != 0)
        return trainer_fail(t, "out of memory for the training state");
    if (memory_checkpoint_open(t) < 0)
        return trainer_fail(t, "out of memory for a copy of the training state");
    return 0;
}

/* A file that is written at the end only: better reported now that it cannot be. */
static int check_output(struct trainer *t, const char *option, const char *path)
{
    struct stat st;
    char folder[PATH_MAX];

    if (!path || !t->primary)
        return 0;
    const char *slash = strrchr(path, '/');
    if (strlen(path) >= sizeof(folder))
        return trainer_fail(t, "%s %s: the path is too long", option, path);
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    if (access(folder, W_OK | X_OK) < 0)
        return trainer_fail(t, "%s %s: cannot write to its folder: %s", option, path, strerror(errno));
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return trainer_fail(t, "%s %s: it is no regular file; name a new file", option, path);
    return 0;
}

static int open_outputs(struct trainer *t)
{
    const struct train_options *o = t->options;
    int r = report_open(&t->report, t->primary, o->metrics, t->program->samples_name);

    if (r < 0)
        return trainer_fail(t, "--metrics %s: cannot append to it: %s", o->metrics, strerror(-r));
    TRY(check_output(t, "--save-model", o->save_model));
    if ((t->primary || (o->save_on_every_host && trainer_is_first_of_host(t))) && o->snapshot_dir &&
        crw_snapshots_create(o->snapshot_dir, (int)o->keep, &t->snapshots) != 0)
        return trainer_fail(t, "%s", crw_error_message());
    return 0;
}

static int set_up_alone(struct trainer *t)
{
    if (check_train_options(t) < 0 || open_samples(t) < 0 || allocate_batches(t) < 0 || create_model(t) < 0 ||
        create_loader(t) < 0 || create_state(t) < 0)
        return -1;
    return open_outputs(t);
}

/* ---- together ---- */

/* All ranks train on GPUs or none does: a host without one must not leave the others waiting. */
static int start_device(struct trainer *t)
{
    int64_t n_on_device = t->on_device;
    int result = 0;

    if (crw_all_reduce(t->group, &n_on_device, 1, CRW_I64, CRW_SUM) != 0)
        return trainer_agree(t, trainer_fail(t, "%s", crw_error_message()));
    if (n_on_device == 0)
        return 0;
    if (n_on_device < crw_world_size(t->group))
        result = trainer_fail(t, "%d of %d workers have a GPU; use --backend cpu", (int)n_on_device,
                              crw_world_size(t->group));
    else
        result = device_create(t, &t->device);
    if (result == 0 && crw_trainer_transport(t->device->trainer)[0])
        report_say(&t->report, "%s", crw_trainer_transport(t->device->trainer));
    if (result == 0)
        report_say(&t->report, "%s", crw_trainer_products(t->device->trainer));
    if (result == 0 && crw_trainer_load(t->device->trainer) != 0)
        result = trainer_fail(t, "%s", crw_error_message());
    return trainer_agree(t, result);
}

/* Gradients of a step of one batch are averaged while backward computes the rest of them; those of several batches are
 * final only at the end of the last. Collective. */
static int create_reducer(struct trainer *t)
{
    int result = 0;

    if (t->device)
        return 0;
    if (crw_reducer_create(t->group, t->reduced, t->n_parameters + N_EXTRA, 0, &t->reducer) != 0)
        result = trainer_fail(t, "%s", crw_error_message());
    if (result == 0 && t->batch_gradients == t->reduced)
        crw_model_set_gradient_hook(t->model, trainer_gradients_ready, t);
    return trainer_agree(t, result);
}

/* From here on this process is worth more than a new one. */
static int declare_ready(struct trainer *t)
{
    return crw_group_ready(t->group) == 0 ? 0 : trainer_fail(t, "%s", crw_error_message());
}

int trainer_set_up(struct trainer *t)
{
    const struct program *p = t->program;
    void *shared;

    t->n_parameters = crw_model_count_parameters(p->layers, p->n_layers);
    if (crw_shared_alloc(t->group, (t->n_parameters + N_EXTRA) * sizeof(float), &shared) != 0) {
        fprintf(stderr, "train: rank %d: %s\n", crw_rank(t->group), crw_error_message());
        return -1;
    }
    t->reduced = shared;
    if (trainer_agree(t, set_up_alone(t)) != 0)
        return -1;
    report_say(&t->report, "%s: %" PRIu32 " %s, %d worker%s on %s, %" PRIu64 " %s per step, %zu parameters",
               p->name, t->n_training, p->samples_name, crw_world_size(t->group),
               crw_world_size(t->group) == 1 ? "" : "s", t->on_device ? "GPUs" : "CPUs",
               t->options->batch_size * t->options->accumulate * (uint64_t)crw_world_size(t->group),
               p->samples_name, t->n_parameters);
    t->recovering = t->env->restart_count > 0;
    return trainer_resume(t) == 0 && start_device(t) == 0 && create_reducer(t) == 0 ? declare_ready(t) : -1;
}

/* The part of trainer_set_up() that concerns the others, for a rank that has everything else still. */
static int join_again(struct trainer *t)
{
    void *shared;

    if (crw_shared_alloc(t->group, (t->n_parameters + N_EXTRA) * sizeof(float), &shared) != 0) {
        t->follows = true;
        return trainer_fail(t, "%s", crw_error_message());
    }
    if (t->batch_gradients == t->reduced) {
        t->batch_gradients = shared;
        crw_model_set_gradients(t->model, shared);
    }
    t->reduced = shared;
    return trainer_agree(t, 0) == 0 && trainer_resume(t) == 0 && start_device(t) == 0 ? create_reducer(t)
                                                                                      : -1;
}

static void destroy_device(struct trainer *t)
{
    device_destroy(t->device);
    t->device = NULL;
}

/* The state comes to the host, where the ranks choose from what they have; the trainer on the device goes, because its
 * communicator is over. */
static int leave_device(struct trainer *t)
{
    if (!t->device)
        return 0;
    TRY(trainer_fetch(t));
    destroy_device(t);
    return 0;
}

int trainer_rejoin(struct trainer *t)
{
    int r = leave_device(t);

    if (r < 0)
        return -1;
    do {
        t->follows = false;
        crw_reducer_destroy(t->reducer); /* waits for what it has started */
        t->reducer = NULL;
        if (crw_group_rejoin(t->group) != 0) {
            t->follows = true; /* t->error has the reason already */
            return -1;
        }
        r = join_again(t);
        if (r < 0)
            destroy_device(t); /* it has taken no step: the host's state is the newest */
    } while (r < 0 && t->follows);
    t->recovering = true;
    return r == 0 ? declare_ready(t) : -1;
}

void trainer_tear_down(struct trainer *t)
{
    crw_reducer_destroy(t->reducer);
    crw_snapshots_destroy(t->snapshots);
    device_destroy(t->device);
    report_close(&t->report);
    memory_checkpoint_close(&t->checkpoint);
    state_finish(&t->state);
    crw_loader_destroy(t->loader);
    crw_sampler_destroy(t->sampler);
    crw_optimizer_destroy(t->optimizer);
    crw_model_destroy(t->model);
    if (t->batch_gradients != t->reduced)
        free(t->batch_gradients);
    free(t->test_samples);
    free(t->test_input);
    free(t->test_targets);
    t->program->close(t->program->data);
}

/* ---- snapshots ---- */

void trainer_warn(struct trainer *t, const char *sentence)
{
    if (t->primary)
        report_warn(&t->report, "%s", sentence);
    else
        fprintf(stderr, "train: rank %d: warning: %s\n", crw_rank(t->group), sentence);
}

/* Returns the last of them. */
static const char *report_failed_saves(struct trainer *t, const char *more)
{
    static char last[1200];
    const char *failure;

    for (last[0] = '\0'; (void)crw_snapshots_status(t->snapshots, &failure), failure;) {
        snprintf(last, sizeof(last), "%s%s", failure, more);
        trainer_warn(t, last);
        report_failed_save(&t->report, failure);
    }
    return last;
}

int trainer_check_saves(struct trainer *t)
{
    if (!t->snapshots)
        return 0;
    if (crw_snapshots_wait_for(t->snapshots, 0) != -ESTALE) {
        (void)report_failed_saves(t, "; training goes on");
        return 0;
    }
    (void)trainer_fail(t, "%s", report_failed_saves(t, ""));
    crw_snapshots_destroy(t->snapshots);
    t->snapshots = NULL; /* for good */
    return -1;
}

int trainer_share(struct trainer *t)
{
    struct train_position position = t->state.position;

    if (!t->options->save_on_every_host || !t->options->snapshot_dir)
        return 0;
    TRY(trainer_fetch(t));
    TRY(state_broadcast_statistics(&t->state, t->group, 0));
    TRY(crw_broadcast(t->group, &position, sizeof(position), 0));
    t->state.position = position;
    t->shared_step = position.step;
    return 0;
}

int trainer_fetch(struct trainer *t)
{
    if (!t->device)
        return 0;
    if (crw_trainer_save(t->device->trainer) != 0)
        return trainer_fail(t, "%s", crw_error_message());
    state_commit(&t->state); /* what the device has is committed */
    return 0;
}

/* Half of another rank's state is none, and hosts do not save different ones of a step. */
static bool may_save(const struct trainer *t)
{
    return t->snapshots && t->alive && (t->primary || t->shared_step == t->state.position.step);
}

/* A disk that hangs stops the thread that saves, and not this rank, for which all others wait. */
static bool is_busy(struct trainer *t, bool is_last)
{
    bool busy = crw_snapshots_busy(t->snapshots, SAVE_PATIENCE_MS);

    if (busy && !t->postponed && !is_last)
        trainer_warn(t, "a snapshot is still being written, and the next one is postponed; training goes on");
    t->postponed = busy;
    return busy;
}

static void save(struct trainer *t, bool is_last)
{
    if (!may_save(t) || t->saved_step == t->state.position.step || is_busy(t, is_last))
        return;
    if (t->shared_step != t->state.position.step &&
        trainer_fetch(t) < 0) { /* what is shared is on the host */
        report_warn(&t->report, "%s; this state is not saved", crw_error_message());
        return;
    }
    if (state_save(&t->state, t->snapshots, crw_world_size(t->group), (uint32_t)t->options->batch_size) == 0)
        t->saved_step = t->state.position.step;
    else
        trainer_warn(t, crw_error_message());
}

void trainer_save(struct trainer *t)
{
    save(t, false);
}

void trainer_save_epoch(struct trainer *t)
{
    uint64_t epoch = t->state.position.epoch;

    if (epoch % t->options->save_every_epochs == 0 || epoch == t->options->epochs)
        trainer_save(t);
}

bool trainer_is_asked_to_stop(struct trainer *t)
{
    bool is_asked = crw_stop_requested(t->group);

    if (is_asked && t->asked_at == 0)
        t->asked_at = report_now();
    return is_asked;
}

/* A process that is asked to stop is killed after CRUN_SHUTDOWN_TIMEOUT, of which the last step has spent a part. A
 * quarter of the rest is for the end of the process. */
static double stop_deadline(struct trainer *t)
{
    const char *text = getenv("CRUN_SHUTDOWN_TIMEOUT");
    double now = report_now();

    if (t->asked_at == 0)
        t->asked_at = now; /* another rank has seen the request */
    return text ? now + 0.75 * (t->asked_at + strtod(text, NULL) - now) : now + SAVES_WAIT_S;
}

/* Waits for as long as the launcher allows. A save that failed, or had to be postponed, is tried once more. */
static int save_last(struct trainer *t, bool stops)
{
    double deadline = report_now() + SAVES_WAIT_S;
    bool is_asked = false;
    int r = -ECANCELED;

    for (int i = 0; i < 2; i++) {
        save(t, true);
        while ((r = crw_snapshots_wait_for(t->snapshots, SAVES_POLL_MS)) == CRW_E_TIMEOUT &&
               report_now() < deadline)
            if (!is_asked && (trainer_is_asked_to_stop(t) || stops)) {
                is_asked = true;
                deadline = stop_deadline(t);
            }
        if (r == CRW_E_TIMEOUT || r == -ESTALE || (r == 0 && t->saved_step == t->state.position.step))
            return r;
        t->saved_step = UINT64_MAX;
    }
    return r == 0 ? -ECANCELED : r;
}

int trainer_finish_saves(struct trainer *t, bool stops)
{
    const char *failure;
    int r = 0;

    if (!may_save(t)) {
        if (t->snapshots)
            (void)report_failed_saves(t, "");
        return 0;
    }
    if (trainer_check_saves(t) == 0) {
        r = save_last(t, stops);
        failure = report_failed_saves(t, "");
        if (r == 0)
            return 0;
        (void)trainer_fail(t, "step %" PRIu64 " is not on disk: %s", t->state.position.step,
                           failure[0] ? failure : crw_error_message());
    }
    fprintf(stderr, "train: rank %d: %s\n", crw_rank(t->group), t->error);
    (void)crw_error_record(t->error);
    if (r == CRW_E_TIMEOUT)
        t->snapshots = NULL; /* its thread hangs in the system */
    return -1;
}
