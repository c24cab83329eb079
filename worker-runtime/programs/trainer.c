/*
 * The training loop: epochs, their tests, and how it ends. A step: trainer_step.c.
 */

#include "worker-runtime/programs/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "base/err.h"
#include "base/time.h"

enum { FOLLOW_MS = 2000, FOLLOW_PAUSE_MS = 1 };

/* ---- testing ---- */

static int64_t count_correct(struct trainer *t, uint32_t begin, uint32_t end)
{
    const struct program *p = t->program;
    uint32_t batch_size = (uint32_t)t->options->batch_size;
    int64_t n_correct = 0;

    for (uint32_t at = begin, n; at < end; at += n) {
        n = end - at < batch_size ? end - at : batch_size;
        for (uint32_t i = 0; i < n; i++)
            t->test_samples[i] = at + i;
        p->gather(p->data, PART_TEST, t->test_samples, n, t->test_input, t->test_targets);
        (void)crw_model_forward(t->model, t->test_input, (int)n, false, NULL); /* n fits */
        n_correct += (int64_t)crw_model_correct(t->model, t->test_targets, NULL);
    }
    return n_correct;
}

/* Fraction of the test samples that the model names correctly; each rank looks at its part. */
static int test(struct trainer *t, double *ret_accuracy)
{
    uint64_t world_size = (uint64_t)crw_world_size(t->group), rank = (uint64_t)crw_rank(t->group);
    struct crw_trained trained;

    *ret_accuracy = NAN;
    /* Batch norm's running statistics are rank 0's, as with PyTorch's DDP. */
    if (crw_model_n_buffers(t->model) > 0 && state_broadcast_statistics(&t->state, t->group, 0) != 0)
        return -1;
    if (t->device && crw_trainer_load(t->device->trainer) != 0)
        return -1;
    /* Closing an epoch is a commit of its own: no rank may be two ahead of a rank that dies before its last step's
     * (recovery.h). */
    if (t->n_test == 0)
        return crw_barrier(t->group);
    uint32_t begin = (uint32_t)(t->n_test * rank / world_size);
    uint32_t end = (uint32_t)(t->n_test * (rank + 1) / world_size);
    if (t->device && crw_trainer_test(t->device->trainer, begin, end - begin, &trained) != 0)
        return -1;
    int64_t n_correct = t->device ? (int64_t)trained.n_correct : count_correct(t, begin, end);
    if (crw_all_reduce(t->group, &n_correct, 1, CRW_I64, CRW_SUM) != 0)
        return -1;
    *ret_accuracy = (double)n_correct / t->n_test;
    return 0;
}

/* ---- one epoch ---- */

enum epoch_end { EPOCH_COMPLETE, EPOCH_STOPPED, EPOCH_AT_MAX_STEPS, EPOCH_FAILED };

/* One epoch, or the rest of one, while it runs. */
struct epoch {
    double started;
    uint64_t n_samples; /* of all ranks, since started */
};

static double speed(const struct epoch *e, double seconds)
{
    return seconds > 0 ? (double)e->n_samples / seconds : 0;
}

/* Reports that the primary rank alone writes. */
static void report_progress_of(struct trainer *t, const struct epoch *e, const struct step *s)
{
    const struct train_position *p = &t->state.position;
    uint64_t log_every = t->options->log_every;

    if (!t->primary)
        return;
    if (t->recovering)
        report_recommit(&t->report, p->step);
    t->recovering = false;
    if (log_every > 0 && p->step % log_every == 0)
        report_step(&t->report, p->step, s->loss_all, s->accuracy);
    if (report_wants_progress(&t->report))
        report_progress(&t->report, p->epoch + 1, t->options->epochs, p->consumed, t->n_training,
                        p->loss_sum / (double)p->batches, speed(e, report_now() - e->started));
}

static int end_epoch(struct trainer *t, const struct epoch *running)
{
    struct train_position *p = &t->state.position;
    double seconds = report_now() - running->started;

    TRY(trainer_fetch(t));

    struct epoch_report e = {
        .epoch = p->epoch + 1,
        .n_epochs = t->options->epochs,
        .step = p->step,
        .loss = p->loss_sum / (double)p->batches,
        .loss_all = p->loss_all_sum / (double)p->batches,
        .samples_per_s = speed(running, seconds),
        .seconds = seconds,
        .param_crc32c = crw_model_crc32c(t->model),
    };

    if (test(t, &e.test_accuracy) != 0) {
        t->follows = true;
        return trainer_fail(t, "%s", crw_error_message());
    }
    /* The line first, then the snapshot: killed in between, the epoch's last steps and its line come
     * again, but no epoch is ever without a line. */
    report_epoch(&t->report, &e);
    p->epoch++;
    p->consumed = 0;
    p->batches = 0;
    p->loss_sum = 0;
    p->loss_all_sum = 0;
    memory_checkpoint_commit(t);
    t->saved_step = UINT64_MAX; /* the same step, but another position */
    t->shared_step = p->step;   /* statistics are rank 0's, sums are 0 */
    trainer_save_epoch(t);
    return 0;
}

static bool at_max_steps(const struct trainer *t)
{
    return t->options->max_steps > 0 && t->state.position.step >= t->options->max_steps;
}

/* After a step. -1: the training is over. */
static int save_in_epoch(struct trainer *t)
{
    uint64_t every = t->options->snapshot_every;
    bool is_due = every > 0 && t->state.position.step % every == 0;

    TRY(trainer_check_saves(t));
    if (is_due && trainer_share(t) != 0) {
        t->follows = true;
        return trainer_fail(t, "%s", crw_error_message());
    }
    if (is_due || t->postponed)
        trainer_save(t);
    return 0;
}

static enum epoch_end train_epoch(struct trainer *t)
{
    struct train_position *p = &t->state.position;
    const struct train_options *o = t->options;
    struct epoch epoch = {.started = report_now()};
    double lr = schedule_lr(&o->schedule, o->lr, p->epoch);
    enum step_result result;

    crw_optimizer_set_lr(t->optimizer, lr);
    if ((t->device ? device_start_epoch(t->device, lr)
                   : crw_loader_start(t->loader, p->epoch, p->consumed)) != 0) {
        (void)trainer_fail(t, "%s", crw_error_message());
        return EPOCH_FAILED;
    }
    for (;;) {
        struct step step = {0};

        if (at_max_steps(t))
            return EPOCH_AT_MAX_STEPS;
        result = trainer_step(t, &step);
        if (result != STEP_DONE)
            break;
        epoch.n_samples += step.n_samples * (uint64_t)crw_world_size(t->group);
        report_progress_of(t, &epoch, &step);
        if (step.stop)
            return EPOCH_STOPPED;
        if (save_in_epoch(t) < 0)
            return EPOCH_FAILED;
    }
    if (result == STEP_FAILED || end_epoch(t, &epoch) != 0)
        return EPOCH_FAILED;
    return EPOCH_COMPLETE;
}

/* ---- the end ---- */

/* A peer failed, the group is over or the numbers are. The state is that of the last complete step: the
 * primary rank keeps it, so that only the step in flight is lost. */
static int leave_failed(struct trainer *t)
{
    report_clear_bar(&t->report);
    fprintf(stderr, "train: rank %d: %s\n", crw_rank(t->group), t->error);
    if (!t->follows)
        (void)crw_error_record(t->error); /* it is on stderr in any case */
    (void)trainer_finish_saves(t, false);
    return TRAIN_FAILED;
}

/* All ranks end alike from here on. A request to stop that other ranks received first may still come, and is not to kill
 * one that has done what it asks for. */
static void ignore_requests(void)
{
    (void)signal(SIGTERM, SIG_IGN); /* cannot fail for a signal that exists */
}

static int leave_stopped(struct trainer *t)
{
    unsigned long long step = t->state.position.step;

    (void)trainer_share(t); /* where it fails, rank 0 alone saves */
    int r = trainer_finish_saves(t, true);
    ignore_requests();
    if (r < 0)
        return TRAIN_FAILED;
    if (t->options->snapshot_dir) {
        report_say(&t->report, "stopped on request after step %llu; resume with the same command", step);
        return TRAIN_DONE;
    }
    report_say(&t->report, "stopped on request after step %llu; nothing is saved without --snapshot-dir",
               step);
    return TRAIN_FAILED;
}

/* Parameters alone, for others. */
static int write_model(struct trainer *t)
{
    const char *path = t->options->save_model;

    if (!t->primary || !path)
        return TRAIN_DONE;
    if (crw_model_save(t->model, path) != 0) {
        fprintf(stderr, "train: --save-model: %s\n", crw_error_message());
        return TRAIN_FAILED;
    }
    report_say(&t->report, "wrote the parameters to %s", path);
    return TRAIN_DONE;
}

static int leave_done(struct trainer *t)
{
    (void)trainer_share(t); /* as above */
    int r = trainer_finish_saves(t, false);
    ignore_requests();
    return write_model(t) == TRAIN_DONE && r == 0 ? TRAIN_DONE : TRAIN_FAILED;
}

static int train(struct trainer *t)
{
    const struct train_options *o = t->options;

    if (t->state.position.epoch >= o->epochs)
        report_say(&t->report, "all %llu epochs are done already; more with --epochs",
                   (unsigned long long)o->epochs);
    while (t->state.position.epoch < o->epochs) {
        switch (train_epoch(t)) {
        case EPOCH_COMPLETE:
            break;
        case EPOCH_STOPPED:
            return leave_stopped(t);
        case EPOCH_AT_MAX_STEPS:
            if (trainer_fetch(t) < 0)
                return leave_failed(t);
            report_max_steps(&t->report, t->state.position.step, crw_model_crc32c(t->model));
            return leave_done(t);
        case EPOCH_FAILED:
            if (!t->follows || t->timed_out || trainer_rejoin(t) < 0)
                return leave_failed(t);
            break;
        }
    }
    return leave_done(t);
}

/*
 * Launchers blame the rank that ends first. One that only follows another's failure waits until it is asked to
 * stop, so that it cannot overtake the rank that failed; a moment only, because not every launcher asks.
 */
static void follow(const struct trainer *t)
{
    for (int ms = 0; t->env->launched && ms < FOLLOW_MS && !crw_stop_requested(t->group);
         ms += FOLLOW_PAUSE_MS)
        sleep_ns(FOLLOW_PAUSE_MS * UINT64_C(1000000));
}

int trainer_run(const struct program *program, const struct train_options *options, const struct crw_env *env,
                struct crw_group *group)
{
    struct trainer t = {
        .program = program,
        .options = options,
        .env = env,
        .group = group,
        .primary = crw_rank(group) == 0,
    };
    int exit_code = TRAIN_FAILED;

    if (trainer_set_up(&t) == 0)
        exit_code = train(&t);
    trainer_tear_down(&t);
    if (exit_code != TRAIN_DONE && t.follows)
        follow(&t);
    return exit_code;
}
