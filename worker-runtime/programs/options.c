#include "worker-runtime/programs/options.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/programs/numbers.h"

#define DEFAULT_DATA "/usr/share/datasets/fashion-mnist"

const char *const program_names[TRAIN_PROGRAM_COUNT] = {
    [TRAIN_TOY] = "toy",
    [TRAIN_CLASSIFIER] = "classifier",
    [TRAIN_MNIST] = "mnist",
};
const char *const optimizer_names[CRW_OPTIMIZER_KIND_COUNT] = {
    [CRW_SGD] = "sgd",
    [CRW_ADAMW] = "adamw",
    [CRW_ADADELTA] = "adadelta",
};
const char *const precision_names[] = {"fp32", "bf16", "tf32"};

/* The options of a program where the command line sets none. */
static const struct recipe {
    enum crw_optimizer_kind optimizer;
    double lr;
    uint64_t epochs, batch_size, snapshot_every, log_every;
} recipes[TRAIN_PROGRAM_COUNT] = {
    [TRAIN_TOY] = {CRW_SGD, 0.01, .epochs = 10, .batch_size = 10},
    [TRAIN_CLASSIFIER] = {CRW_ADAMW, 1e-4, .epochs = 10, .batch_size = 8, .log_every = 1},
    [TRAIN_MNIST] = {CRW_ADADELTA, 0.01, .epochs = 5, .batch_size = 64, .snapshot_every = 100},
};
enum { BATCH_SIZE_20X1 = 32 };

/* Not set by the command line: filled in from the program's recipe. */
#define UNSAID UINT64_MAX
enum { UNSAID_OPTIMIZER = CRW_OPTIMIZER_KIND_COUNT };

/* ---- the table ---- */

static const char *take_positive(void *member, const char *text)
{
    return number_parse_positive(text, member) ? NULL : "a positive number";
}

static const char *take_schedule(void *member, const char *text)
{
    return schedule_parse(text, member) == 0 ? NULL : "constant, step[:EVERY[:GAMMA]] or cosine[:EPOCHS]";
}

static const char *take_fault(void *member, const char *text)
{
    return fault_parse(text, member) == 0 ? NULL : "rank=R,step=S,kind=kill|exit|hang|nan|kill-early";
}

#define PROGRAMS "toy classifier mnist" /* as in enum train_program */

/* The program, once. */
static int take_program(void *to, const char *word, char *error, size_t n)
{
    struct train_options *o = to;
    int program = option_choice(PROGRAMS, word, strlen(word));

    if (o->program != TRAIN_PROGRAM_COUNT)
        snprintf(error, n, "unexpected argument '%s'; see train --help", word);
    else if (program < 0)
        snprintf(error, n, "unknown program '%s': there are toy, classifier and mnist; see train --help",
                 word);
    else
        o->program = (enum train_program)program;
    return program < 0 || *error ? OPTIONS_E_USAGE : 0;
}

#define AT(member) OPTION_AT(struct train_options, member)
enum { EPOCHS_MAX = 1000000000, BATCH_MAX = 65536, SAMPLES_MAX = 200000000 };

static const struct option_spec specs[] = {
    {"data", OPTION_TEXT, AT(data), .placeholder = "DIR",
     .help = "mnist: folder of the four IDX files, .gz or not (default " DEFAULT_DATA ")"},
    {"shape", OPTION_CHOICE, AT(shape), .placeholder = "10x2|20x1", .choices = " 10x2 20x1",
     .help = "toy: inputs and outputs (10x2)"},
    {"limit", OPTION_NUMBER, AT(limit), 1, SAMPLES_MAX, "N", NULL, "use the first N training samples only"},
    {"seed", OPTION_NUMBER, AT(seed), 0, UINT64_MAX, "N", "0", "initial weights and order of the samples"},
    {"epochs", OPTION_NUMBER, AT(epochs), 1, EPOCHS_MAX, "N", NULL,
     "passes over the training samples (toy, classifier 10; mnist 5)"},
    {"max-steps", OPTION_NUMBER, AT(max_steps), 1, UINT64_MAX, "N", NULL, "stop after N steps"},
    {"batch-size", OPTION_NUMBER, AT(batch_size), 1, BATCH_MAX, "N", NULL,
     "samples per worker and batch (toy 10 or 32, classifier 8, mnist 64)"},
    {"accumulate", OPTION_NUMBER, AT(accumulate), 1, BATCH_MAX, "K", "1", "batches per step"},
    {"optimizer", OPTION_CHOICE, AT(optimizer), .placeholder = "NAME",
     .choices = "sgd adamw adadelta", /* as in enum crw_optimizer_kind */
     .help = "sgd, adamw or adadelta (toy sgd, classifier adamw, mnist adadelta)"},
    {"lr", OPTION_OWN, AT(lr), .placeholder = "X", .take = take_positive,
     .help =
         "learning rate (toy 0.01, classifier 0.0001, mnist 0.01; PyTorch's default for another optimizer than the "
         "program's own)"},
    {"lr-schedule", OPTION_OWN, AT(schedule), .placeholder = "NAME", .take = take_schedule,
     .help = "constant, step[:EVERY[:GAMMA]] or cosine[:EPOCHS] (constant)"},
    {"clip-norm", OPTION_OWN, AT(clip_norm), .placeholder = "X", .take = take_positive,
     .help = "scale gradients so that their norm is at most X"},
    {"precision", OPTION_CHOICE, AT(precision), .placeholder = "NAME", .fallback = "fp32",
     .choices = "fp32 bf16 tf32", .help = "fp32 or bf16, on a GPU also tf32"},
    {"backend", OPTION_CHOICE, AT(backend), .placeholder = "NAME", .fallback = "auto",
     .choices = "auto cpu cuda", .help = "auto, cpu or cuda; auto: cuda where there is a GPU"},
    {"reduce", OPTION_CHOICE, AT(reduce), .placeholder = "nccl|host", .choices = " nccl host",
     .help =
         "what averages gradients between GPUs: nccl, or host, by way of the hosts' memory and without NCCL (nccl)"},
    {"oversubscribe-gpu", OPTION_FLAG, AT(oversubscribe_gpu),
     .help = "workers may share a GPU; for tests, it is slow"},
    {"prefetch", OPTION_NUMBER, AT(prefetch), 0, 1024, "N", "0", "gather N batches ahead in a thread"},
    {"snapshot-dir", OPTION_TEXT, AT(snapshot_dir), .placeholder = "DIR",
     .help = "save snapshots there, and resume from the newest valid one"},
    {"snapshot-every", OPTION_NUMBER, AT(snapshot_every), 0, UINT64_MAX - 1, "N", NULL,
     "also every N steps, not only after epochs (mnist 100, others 0: never)"},
    {"save-every-epochs", OPTION_NUMBER, AT(save_every_epochs), 1, EPOCHS_MAX, "N", "1",
     "save after every N epochs and after the last"},
    {"keep", OPTION_NUMBER, AT(keep), 1, 1000000, "K", "3", "keep the newest K snapshots"},
    {"save-on-every-host", OPTION_FLAG, AT(save_on_every_host),
     .help = "the first worker of each host saves, for folders that hosts do not share"},
    {"save-model", OPTION_TEXT, AT(save_model), .placeholder = "FILE",
     .help = "write the parameters alone at the end"},
    {"metrics", OPTION_TEXT, AT(metrics), .placeholder = "FILE",
     .help = "append one JSON line per epoch and per resume"},
    {"plot", OPTION_GONE, .help = "python/examples/plot_metrics.py draws the file of --metrics"},
    {"log-every", OPTION_NUMBER, AT(log_every), 0, UINT64_MAX - 1, "N", NULL,
     "print every Nth step (classifier 1, others 0: none)"},
    {"fault", OPTION_OWN, AT(fault), .placeholder = "rank=R,step=S,kind=kill|exit|hang|nan|kill-early",
     .take = take_fault, .help = "fail on purpose, before the first restart"},
    OPTION_ROWS_OF_ALL,
};

static const struct option_word word_rows[] = {
    {"  toy", "linear regression on made-up samples"},
    {"  classifier", "two-layer perceptron on made-up samples"},
    {"  mnist", "convolutional network on images in MNIST's format (the default)"},
    {0},
};

const struct option_table train_option_table = {
    .commands = "train",
    .page = "train(1)",
    .specs = specs,
    .n = ARRAY_SIZE(specs),
    .words = PROGRAMS,
    .take_word = take_program,
    .usage = "usage: train [toy|classifier|mnist] [options]\n",
    .about =
        "Trains a small network. Under crun (or torchrun) each worker trains on its share of the samples; without a "
        "launcher it trains alone.",
    .word_rows = word_rows,
    .ending = "See train(1).",
};

/* ---- the whole line ---- */

static int check_program_options(const struct train_options *o, char *error, size_t n)
{
    if (o->program != TRAIN_MNIST && o->data)
        snprintf(error, n, "--data is for mnist; %s makes up its samples", program_names[o->program]);
    else if (o->program != TRAIN_TOY && o->shape != TRAIN_SHAPE_UNSAID)
        snprintf(error, n, "--shape is for toy, not for %s", program_names[o->program]);
    else
        return 0;
    return OPTIONS_E_USAGE;
}

static void fill_in(struct train_options *o)
{
    const struct recipe *recipe = &recipes[o->program];

    if (!o->data)
        o->data = DEFAULT_DATA;
    if (o->shape == TRAIN_SHAPE_UNSAID)
        o->shape = TRAIN_SHAPE_10X2;
    if ((unsigned)o->optimizer == UNSAID_OPTIMIZER)
        o->optimizer = recipe->optimizer;
    if (o->lr == 0)
        o->lr = o->optimizer == recipe->optimizer ? recipe->lr : crw_optimizer_defaults(o->optimizer).lr;
    if (o->epochs == UNSAID)
        o->epochs = recipe->epochs;
    if (o->batch_size == UNSAID)
        o->batch_size = o->shape == TRAIN_SHAPE_20X1 ? BATCH_SIZE_20X1 : recipe->batch_size;
    if (o->snapshot_every == UNSAID)
        o->snapshot_every = recipe->snapshot_every;
    if (o->log_every == UNSAID)
        o->log_every = recipe->log_every;
    if (o->schedule.kind == SCHEDULE_COSINE && o->schedule.epochs == 0)
        o->schedule.epochs = o->epochs;
}

int train_options_parse(char *const argv[], struct train_options *ret, char *error, size_t n)
{
    struct train_options o = {
        .program = TRAIN_PROGRAM_COUNT,
        .optimizer = (enum crw_optimizer_kind)UNSAID_OPTIMIZER,
        .epochs = UNSAID,
        .batch_size = UNSAID,
        .snapshot_every = UNSAID,
        .log_every = UNSAID,
    };
    int r = option_table_parse(&train_option_table, argv, &o, error, n);

    if (o.program == TRAIN_PROGRAM_COUNT)
        o.program = TRAIN_MNIST;
    if (r == 0)
        r = check_program_options(&o, error, n);
    if (r == 0)
        fill_in(&o);
    *ret = o;
    return r;
}
