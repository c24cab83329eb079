#include "worker-runtime/programs/options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/decimal.h"
#include "worker-runtime/programs/numbers.h"

#define DEFAULT_DATA "/usr/share/datasets/fashion-mnist"

const char train_options_help[] =
    "Usage: train [toy|classifier|mnist] [options]\n"
    "\n"
    "Trains a small network. Under crun (or torchrun) each worker trains on its\n"
    "share of the samples; without a launcher it trains alone.\n"
    "\n"
    "  toy                       linear regression on made-up samples\n"
    "  classifier                two-layer perceptron on made-up samples\n"
    "  mnist                     convolutional network on images in MNIST's format\n"
    "                            (the default)\n"
    "\n"
    "      --data DIR            mnist: folder of the four IDX files, .gz or not\n"
    "                            (default " DEFAULT_DATA
    ")\n"
    "      --shape 10x2|20x1     toy: inputs and outputs (10x2)\n"
    "      --limit N             use the first N training samples only\n"
    "      --seed N              initial weights and order of the samples (0)\n"
    "\n"
    "      --epochs N            passes over the training samples\n"
    "                            (toy, classifier 10; mnist 5)\n"
    "      --max-steps N         stop after N steps\n"
    "      --batch-size N        samples per worker and batch\n"
    "                            (toy 10 or 32, classifier 8, mnist 64)\n"
    "      --accumulate K        batches per step (1)\n"
    "      --optimizer NAME      sgd, adamw or adadelta\n"
    "                            (toy sgd, classifier adamw, mnist adadelta)\n"
    "      --lr X                learning rate (toy 0.01, classifier 0.0001,\n"
    "                            mnist 0.01; PyTorch's default for another optimizer\n"
    "                            than the program's own)\n"
    "      --lr-schedule NAME    constant, step[:EVERY[:GAMMA]] or cosine[:EPOCHS]\n"
    "                            (constant)\n"
    "      --clip-norm X         scale gradients so that their norm is at most X\n"
    "      --precision NAME      fp32 or bf16, on a GPU also tf32 (fp32)\n"
    "      --backend NAME        auto, cpu or cuda (auto: cuda where there is a GPU)\n"
    "      --reduce NAME         what averages gradients between GPUs: nccl, or host, by\n"
    "                            way of the hosts' memory and without NCCL (nccl)\n"
    "      --oversubscribe-gpu   workers may share a GPU; for tests, it is slow\n"
    "      --prefetch N          gather N batches ahead in a thread (0)\n"
    "\n"
    "      --snapshot-dir DIR    save snapshots there, and resume from the newest\n"
    "                            valid one\n"
    "      --snapshot-every N    also every N steps, not only after epochs\n"
    "                            (mnist 100, others 0: never)\n"
    "      --save-every-epochs N save after every N epochs and after the last (1)\n"
    "      --keep K              keep the newest K snapshots (3)\n"
    "      --save-on-every-host  the first worker of each host saves, for folders\n"
    "                            that hosts do not share\n"
    "      --save-model FILE     write the parameters alone at the end\n"
    "      --metrics FILE        append one JSON line per epoch and per resume\n"
    "      --log-every N         print every Nth step (classifier 1, others 0: none)\n"
    "      --fault rank=R,step=S,kind=kill|exit|hang|nan|kill-early\n"
    "                            fail on purpose, before the first restart\n"
    "  -h, --help\n"
    "      --version\n"
    "\n"
    "See train(1).\n";

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
static const char *const backend_names[] = {"auto", "cpu", "cuda"};
static const char *const reduce_names[] = {"", "nccl", "host"};
const char *const precision_names[] = {"fp32", "bf16", "tf32"};
static const char *const shape_names[] = {"", "10x2", "20x1"};

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

/* ---- what there is ---- */

enum train_option_kind {
    OPTION_COUNT,    /* uint64_t */
    OPTION_POSITIVE, /* double */
    OPTION_TEXT,     /* const char * */
    OPTION_CHOICE,   /* an enum, by names */
    OPTION_SCHEDULE,
    OPTION_FAULT,
    OPTION_FLAG, /* bool */
    OPTION_GONE, /* refused; names[0]: what there is instead */
};

/* A multi-word option has a spelling with underscores, too: torchrun's users expect that. */
struct train_option_spec {
    const char *name, *other_name;
    enum train_option_kind kind;
    size_t offset; /* in struct train_options */
    uint64_t min, max;
    const char *const *names;
    int n_names;
};

#define FIELD(field) .offset = offsetof(struct train_options, field)
#define NAMES(array) .names = array, .n_names = (int)(sizeof(array) / sizeof((array)[0]))

static const char *const instead_of_plot[] = {"python/examples/plot_metrics.py draws the file of --metrics"};

static const struct train_option_spec specs[] = {
    {"data", NULL, OPTION_TEXT, FIELD(data)},
    {"shape", NULL, OPTION_CHOICE, FIELD(shape), NAMES(shape_names)},
    {"limit", NULL, OPTION_COUNT, FIELD(limit), 1, 200000000},
    {"seed", NULL, OPTION_COUNT, FIELD(seed), 0, UINT64_MAX},
    {"epochs", NULL, OPTION_COUNT, FIELD(epochs), 1, 1000000000},
    {"max-steps", "max_steps", OPTION_COUNT, FIELD(max_steps), 1, UINT64_MAX},
    {"batch-size", "batch_size", OPTION_COUNT, FIELD(batch_size), 1, 65536},
    {"accumulate", NULL, OPTION_COUNT, FIELD(accumulate), 1, 65536},
    {"optimizer", NULL, OPTION_CHOICE, FIELD(optimizer), NAMES(optimizer_names)},
    {"lr", NULL, OPTION_POSITIVE, FIELD(lr)},
    {"lr-schedule", "lr_schedule", OPTION_SCHEDULE, FIELD(schedule)},
    {"clip-norm", "clip_norm", OPTION_POSITIVE, FIELD(clip_norm)},
    {"precision", NULL, OPTION_CHOICE, FIELD(precision), NAMES(precision_names)},
    {"backend", NULL, OPTION_CHOICE, FIELD(backend), NAMES(backend_names)},
    {"reduce", NULL, OPTION_CHOICE, FIELD(reduce), NAMES(reduce_names)},
    {"oversubscribe-gpu", "oversubscribe_gpu", OPTION_FLAG, FIELD(oversubscribe_gpu)},
    {"prefetch", NULL, OPTION_COUNT, FIELD(prefetch), 0, 1024},
    {"snapshot-dir", "snapshot_dir", OPTION_TEXT, FIELD(snapshot_dir)},
    {"snapshot-every", "snapshot_every", OPTION_COUNT, FIELD(snapshot_every), 0, UINT64_MAX - 1},
    {"save-every-epochs", "save_every_epochs", OPTION_COUNT, FIELD(save_every_epochs), 1, 1000000000},
    {"keep", NULL, OPTION_COUNT, FIELD(keep), 1, 1000000},
    {"save-on-every-host", "save_on_every_host", OPTION_FLAG, FIELD(save_on_every_host)},
    {"save-model", "save_model", OPTION_TEXT, FIELD(save_model)},
    {"metrics", NULL, OPTION_TEXT, FIELD(metrics)},
    {"plot", NULL, OPTION_GONE, NAMES(instead_of_plot)},
    {"log-every", "log_every", OPTION_COUNT, FIELD(log_every), 0, UINT64_MAX - 1},
    {"fault", NULL, OPTION_FAULT, FIELD(fault)},
    {"help", NULL, OPTION_FLAG, FIELD(help)},
    {"version", NULL, OPTION_FLAG, FIELD(version)},
};
enum { N_SPECS = sizeof(specs) / sizeof(specs[0]), FIRST_ID = 256 };

static bool has_value(const struct train_option_spec *spec)
{
    return spec->kind != OPTION_FLAG;
}

/* For getopt_long(): the number of an option is FIRST_ID + its place in specs. */
static void fill_train_options(struct option options[2 * N_SPECS + 1])
{
    for (int i = 0; i < N_SPECS; i++) {
        int argument = has_value(&specs[i]) ? required_argument : no_argument;

        if (specs[i].other_name)
            *options++ = (struct option){specs[i].other_name, argument, NULL, FIRST_ID + i};
        *options++ = (struct option){specs[i].name, argument, NULL, FIRST_ID + i};
    }
    *options = (struct option){0};
}

/* ---- one option ---- */

static int fail_choice(const struct train_option_spec *spec, const char *text, char *error, size_t n)
{
    size_t at = (size_t)snprintf(error, n, "--%s %s: expected ", spec->name, text);

    for (int i = 0; i < spec->n_names && at < n; i++) {
        if (spec->names[i][0])
            at += (size_t)snprintf(error + at, n - at, "%s%s", spec->names[i],
                                   i + 1 == spec->n_names   ? ""
                                   : i + 2 == spec->n_names ? " or "
                                                            : ", ");
    }
    return -1;
}

static int parse_choice(const struct train_option_spec *spec, const char *text, void *field, char *error,
                        size_t n)
{
    for (int i = 0; i < spec->n_names; i++) {
        if (spec->names[i][0] && strcmp(text, spec->names[i]) == 0) {
            *(unsigned *)field = (unsigned)i; /* what an enum without negative values is */
            return 0;
        }
    }
    return fail_choice(spec, text, error, n);
}

static int parse_count_option(const struct train_option_spec *spec, const char *text, uint64_t *field,
                              char *error, size_t n)
{
    if (decimal_parse(text, spec->min, spec->max, field))
        return 0;
    snprintf(error, n, "--%s %s: expected a whole number from %llu to %llu", spec->name, text,
             (unsigned long long)spec->min, (unsigned long long)spec->max);
    return -1;
}

static int parse_train_option(struct train_options *o, const struct train_option_spec *spec, const char *text,
                              char *error, size_t n)
{
    void *field = (char *)o + spec->offset;
    const char *expected = NULL;

    switch (spec->kind) {
    case OPTION_COUNT:
        return parse_count_option(spec, text, field, error, n);
    case OPTION_CHOICE:
        return parse_choice(spec, text, field, error, n);
    case OPTION_TEXT:
        *(const char **)field = text;
        break;
    case OPTION_POSITIVE:
        if (!number_parse_positive(text, field))
            expected = "a positive number";
        break;
    case OPTION_SCHEDULE:
        if (schedule_parse(text, field) < 0)
            expected = "constant, step[:EVERY[:GAMMA]] or cosine[:EPOCHS]";
        break;
    case OPTION_FAULT:
        if (fault_parse(text, field) < 0)
            expected = "rank=R,step=S,kind=kill|exit|hang|nan|kill-early";
        break;
    case OPTION_FLAG:
        *(bool *)field = true;
        break;
    case OPTION_GONE:
        snprintf(error, n, "--%s is gone: %s", spec->name, spec->names[0]);
        return -1;
    }
    if (!expected)
        return 0;
    snprintf(error, n, "--%s %s: expected %s", spec->name, text, expected);
    return -1;
}

/* ---- the whole line ---- */

static int parse_program(const char *name, enum train_program *ret, char *error, size_t n)
{
    for (int i = 0; i < TRAIN_PROGRAM_COUNT; i++) {
        if (strcmp(name, program_names[i]) == 0) {
            *ret = (enum train_program)i;
            return 0;
        }
    }
    snprintf(error, n, "unknown program '%s': there are toy, classifier and mnist; see train --help", name);
    return -1;
}

static int parse_arguments(int argc, char **argv, struct train_options *o, char *error, size_t n)
{
    if (optind < argc && parse_program(argv[optind++], &o->program, error, n) < 0)
        return -1;
    if (optind < argc) {
        snprintf(error, n, "unexpected argument '%s'; see train --help", argv[optind]);
        return -1;
    }
    if (o->program != TRAIN_MNIST && o->data) {
        snprintf(error, n, "--data is for mnist; %s makes up its samples", program_names[o->program]);
        return -1;
    }
    if (o->program != TRAIN_TOY && o->shape != TRAIN_SHAPE_UNSAID) {
        snprintf(error, n, "--shape is for toy, not for %s", program_names[o->program]);
        return -1;
    }
    return 0;
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

int train_options_parse(int argc, char **argv, struct train_options *ret, char *error, size_t n)
{
    struct option long_options[2 * N_SPECS + 1];
    struct train_options o = {
        .program = TRAIN_MNIST,
        .optimizer = (enum crw_optimizer_kind)UNSAID_OPTIMIZER,
        .epochs = UNSAID,
        .batch_size = UNSAID,
        .accumulate = 1,
        .snapshot_every = UNSAID,
        .save_every_epochs = 1,
        .keep = 3,
        .log_every = UNSAID,
    };
    int id;

    fill_train_options(long_options);
    opterr = 0;
    optind = 0;
    while ((id = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
        if (id == ':') {
            snprintf(error, n, "option '%s' needs a value; see train --help", argv[optind - 1]);
            return -1;
        }
        if (id == '?') {
            if (optopt > 0 && optopt < FIRST_ID)
                snprintf(error, n, "unknown option '-%c'; see train --help", optopt);
            else
                snprintf(error, n, "unknown or ambiguous option '%s'; see train --help", argv[optind - 1]);
            return -1;
        }
        if (id == 'h')
            o.help = true;
        else if (parse_train_option(&o, &specs[id - FIRST_ID], optarg, error, n) < 0)
            return -1;
    }
    if (parse_arguments(argc, argv, &o, error, n) < 0)
        return -1;
    fill_in(&o);
    *ret = o;
    return 0;
}
