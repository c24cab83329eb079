#pragma once

/*
 * The command line of `train`: which program, and the options that all programs share. After parsing, what
 * was not given is filled in from the program's own recipe.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/options.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/programs/fault.h"
#include "worker-runtime/programs/schedule.h"

enum train_program { TRAIN_TOY, TRAIN_CLASSIFIER, TRAIN_MNIST, TRAIN_PROGRAM_COUNT };
enum train_backend { TRAIN_BACKEND_AUTO, TRAIN_BACKEND_CPU, TRAIN_BACKEND_CUDA };
enum train_reduce { TRAIN_REDUCE_UNSAID, TRAIN_REDUCE_NCCL, TRAIN_REDUCE_HOST };
enum train_precision { TRAIN_FP32, TRAIN_BF16, TRAIN_TF32 };
enum train_shape { TRAIN_SHAPE_UNSAID, TRAIN_SHAPE_10X2, TRAIN_SHAPE_20X1 }; /* of toy */

struct train_options {
    enum train_program program;
    const char *data;       /* mnist: where the images are */
    enum train_shape shape; /* toy */

    /* The recipe. */
    enum crw_optimizer_kind optimizer;
    double lr;
    struct schedule schedule;
    double clip_norm; /* 0: no limit */
    enum train_precision precision;
    uint64_t epochs;
    uint64_t max_steps;  /* 0: no limit */
    uint64_t batch_size; /* per rank */
    uint64_t accumulate; /* batches of a step */
    uint64_t seed;
    uint64_t limit; /* first so many training samples; 0: all */

    enum train_backend backend;
    enum train_reduce reduce;
    bool oversubscribe_gpu; /* workers of a host may share a GPU */
    uint64_t prefetch;      /* batches gathered ahead */

    /* What is written, and where; NULL: not at all. */
    const char *snapshot_dir;
    uint64_t snapshot_every;    /* steps; 0: at the ends of epochs only */
    uint64_t save_every_epochs; /* a snapshot at the end of every so many epochs, and of the last */
    uint64_t keep;
    bool save_on_every_host; /* not only rank 0 saves, but the first rank of each host */
    const char *save_model;
    const char *metrics;
    uint64_t log_every; /* a line every so many steps; 0: none */

    struct fault fault;
};

/* 0, or a result of base/options.h; error[0..n) has one sentence after OPTIONS_E_USAGE. The strings of ret point into argv. */
int train_options_parse(char *const argv[], struct train_options *ret, char *error, size_t n);

extern const struct option_table train_option_table;

/* As on the command line. */
extern const char *const program_names[TRAIN_PROGRAM_COUNT];
extern const char *const optimizer_names[CRW_OPTIMIZER_KIND_COUNT];
extern const char *const precision_names[];
