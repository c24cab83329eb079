#pragma once

/*
 * What all programs share: everything around a network and its samples. One step is
 *
 *     next batch -> forward -> loss -> backward     (--accumulate times)
 *     all-reduce -> clip -> optimizer -> commit
 *
 * and the optimizer runs only when the all-reduce succeeded and every number is finite: a step that a
 * failing peer cuts off leaves parameters, statistics and position as they were.
 *
 * trainer.c is the loop, trainer_step.c one turn of it, trainer_setup.c what comes before and after it,
 * trainer_resume.c where it begins.
 */

#include <stdbool.h>
#include <stdint.h>

#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"
#include "worker-runtime/programs/device.h"
#include "worker-runtime/programs/memory_checkpoint.h"
#include "worker-runtime/programs/options.h"
#include "worker-runtime/programs/report_os.h"
#include "worker-runtime/programs/state.h"

/* Exit codes of train. */
enum { TRAIN_DONE = 0, TRAIN_FAILED = 1, TRAIN_USAGE = 2 };

enum part { PART_TRAINING, PART_TEST };

/* What a program brings. `data` is its own. */
struct program {
    const char *name;
    const char *samples_name; /* "images" */

    const struct crw_layer *layers;
    size_t n_layers;
    struct crw_shape input;
    size_t target_size; /* bytes of a sample's target */

    /* Opens or makes the samples and counts them; no test samples, no test. -1 with a sentence in
     * error[0..n) when it cannot. close is called in any case. */
    int (*open)(void *data, uint32_t *ret_n_training, uint32_t *ret_n_test, char *error, size_t n);
    void (*close)(void *data);

    /* Fills input and targets with the samples of these numbers. */
    void (*gather)(void *data, enum part part, const uint32_t *samples, size_t n, float *input,
                   void *targets);

    /* The loss of the last forward; prepares backward. A result of crw.h. */
    int (*loss)(struct crw_model *model, const void *targets, float *ret_loss);

    /* The same loss, and all samples of a part at once, for training on a GPU. */
    enum crw_loss loss_kind;
    void (*resident)(void *data, enum part part, struct crw_samples *ret);

    /* Fraction of the batch's samples of all ranks that the last forward names correctly: for every batch, a
     * collective. NULL: it is not measured. 0 or the failed collective's result. */
    int (*accuracy)(void *data, struct crw_group *group, struct crw_model *model,
                    const struct crw_batch *batch, double *ret_accuracy);

    void *data;
};

/* Numbers that ride behind the gradients through the same all-reduce. */
enum { EXTRA_LOSS, EXTRA_STOP, N_EXTRA };

struct trainer {
    const struct program *program;
    const struct train_options *options;
    const struct crw_env *env;
    struct crw_group *group;
    bool primary;
    bool on_device; /* this rank has a GPU to train on, and may */

    struct train_report report;
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct crw_sampler *sampler;
    struct crw_loader *loader;
    struct crw_snapshots *snapshots; /* on the ranks that save, with --snapshot-dir; else NULL */
    struct device *device;           /* NULL: the CPU trains */
    struct train_state state;
    struct memory_checkpoint checkpoint;
    bool alive;           /* the state is whole, and is that of the last commit */
    bool recovering;      /* no step was committed since the group was formed again */
    bool postponed;       /* a save was due while the one before it had not ended */
    uint64_t saved_step;  /* step of the newest save that was started */
    double asked_at;      /* when a request to stop was first seen, report_now(); 0: not yet */
    uint64_t shared_step; /* newest step with rank 0's statistics and losses on all ranks */

    uint32_t n_training, n_test;
    size_t n_parameters;
    float *reduced;              /* n_parameters + N_EXTRA, shared with the ranks of this host */
    struct crw_reducer *reducer; /* averages `reduced`; NULL where a device trains */
    float *batch_gradients;      /* of one batch; `reduced` itself when a step has only one */

    /* For testing, a batch each. */
    uint32_t *test_samples;
    float *test_input;
    void *test_targets;

    char error[1024];
    bool follows;   /* it fails because another rank did */
    bool timed_out; /* a peer hangs: the launcher does not replace it */
};

/* trainer.c: trains a program to the end. Returns an exit code; what went wrong is on stderr. */
int trainer_run(const struct program *program, const struct train_options *options, const struct crw_env *env,
                struct crw_group *group);

/* Of one step. */
struct step {
    uint64_t n_samples, n_batches; /* of this rank */
    uint64_t consumed;             /* where it leaves the epoch */
    float loss;                    /* mean over this rank's batches */
    bool refused;                  /* a batch has no loss: t->error is the reason */
    double loss_all;               /* over all ranks' */
    double accuracy;               /* over all ranks' samples; NAN: not asked for */
    bool stop;                     /* a rank wants to */
};

enum step_result { STEP_DONE, STEP_NO_DATA, STEP_FAILED };

/* trainer_step.c: takes a step and commits it; s is zeroed. STEP_FAILED: t->error is the reason, nothing is committed. */
enum step_result trainer_step(struct trainer *t, struct step *s);

/* trainer_step.c: the gradient hook of a step of one batch; data is the trainer. Starts to average the gradients from
 * `begin` on, and the numbers behind them. 0. */
int trainer_gradients_ready(void *data, size_t begin);

/* trainer_setup.c: allocates, opens, resumes. Collective; -1 when some rank could not, which that rank has reported. */
int trainer_set_up(struct trainer *t);
void trainer_tear_down(struct trainer *t);

/* trainer_resume.c: brings all ranks into one state, the newest there is. Collective; as trainer_set_up(). */
int trainer_resume(struct trainer *t);

/* Puts the sentence into t->error. -1. */
int trainer_fail(struct trainer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/*
 * All ranks learn whether all parts went well. If not, the lowest rank that failed prints its reason, and all
 * return -1: so a job that cannot start gives one sentence, not one from each worker.
 */
int trainer_agree(struct trainer *t, int result);

/* The state is on the host. 0; -1: t->error and crw_error_message() have the reason. */
int trainer_fetch(struct trainer *t);
/* After a peer's failure: forms the group again, where the launcher replaces that one, and brings all ranks into
 * one state. -1: it is over. */
int trainer_rejoin(struct trainer *t);

/* As crw_stop_requested(); notes the time. */
bool trainer_is_asked_to_stop(struct trainer *t);

/* A warning of this rank on stderr. */
void trainer_warn(struct trainer *t, const char *sentence);

/* With --save-on-every-host, before a save: all ranks take rank 0's running statistics and losses, so that all hosts
 * save the same bytes. Collective; 0 or its result. */
int trainer_share(struct trainer *t);

/* Starts saving the state, where snapshots are wanted and the state is whole. */
void trainer_save(struct trainer *t);

/* The same at the end of an epoch, of those whose end is saved. */
void trainer_save_epoch(struct trainer *t);

/* Reports saves that have failed. -1 with the reason in t->error: the folder is another run's or a later generation's. */
int trainer_check_saves(struct trainer *t);

/* At the end: saves the state and waits for that as long as the launcher allows. stops: the launcher has asked to stop.
 * -1, which is reported: the last step is not on disk. */
int trainer_finish_saves(struct trainer *t, bool stops);

static inline bool trainer_is_first_of_host(const struct trainer *t)
{
    return t->env->local_rank == 0;
}
