/*
 * Every function of crw.h and crw_trainer.h with any arguments: none ends the process, hangs, or takes more memory than there is.
 *
 *     test_any_arguments [CALLS [SEED [FUNCTION]]]
 *
 * CALLS of each function, each in a child of its own (bounded_child.h) that sees 64 MiB of memory, after up to six calls of
 * others. An int that is a result has a sentence when it is a failure, and the place for an object is as it was.
 */

#include "tests/unit/worker-runtime/any_arguments.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "proto/worker_memory.h"
#include "tests/support/c/bounded_child.h"
#include "tests/support/c/clock.h"
#include "base/memory.h"

enum { SMALL_MAX = 100, ARRAY_BYTES = 64 << 10, BEFORE_MAX = 6, CALLS = IS_SANITIZED ? 2 : 5 };

static char root[] = "/tmp/test-any-arguments.XXXXXX";
static _Alignas(64) char arrays[4][ARRAY_BYTES];
static char long_text[5000];

/* ---- drawing ---- */

static uint64_t next(struct draw *d) /* splitmix64 */
{
    uint64_t x = d->state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static size_t below(struct draw *d, size_t n)
{
    return (size_t)(next(d) % n);
}

__attribute__((format(printf, 2, 3))) static void note(struct draw *d, const char *format, ...)
{
    size_t n = strlen(d->text);
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(d->text + n, sizeof(d->text) - n, format, arguments);
    va_end(arguments);
}

void begin_call(struct draw *d, const char *name)
{
    fprintf(stderr, "%s(%s)\n", name, d->text);
    d->text[0] = '\0';
}

void end_call(struct draw *d, int result, void *place)
{
    bool failed = result < 0 || result > 0;

    if (result < -4095 || (failed && !crw_error_message()[0])) {
        fprintf(stderr, "    result %d: \"%s\"\n", result, crw_error_message());
        d->n_bad++;
    }
    if (failed && place && *(void **)place != d->sentinel) {
        fprintf(stderr, "    result %d, and an object\n", result);
        d->n_bad++;
    }
}

static int draw_any_int(struct draw *d)
{
    static const int ints[] = {INT_MIN, -77, -1, 0, 0, 1, 1, 2, 3, 4, 4, 77, 65536, INT_MAX - 15, INT_MAX};

    return ints[below(d, ARRAY_SIZE(ints))];
}

int draw_int(struct draw *d)
{
    int n = draw_any_int(d);

    note(d, " %d", n);
    return n;
}

int draw_int_n(struct draw *d, bool launches)
{
    static const int ints[] = {INT_MIN, -1, 0, 1, 2, 100000, INT_MAX};
    int n = launches ? ints[below(d, ARRAY_SIZE(ints))] : draw_any_int(d);

    note(d, " %d", n);
    return n;
}

uint64_t draw_number(struct draw *d)
{
    static const uint64_t numbers[] = {
        0, 0, 1, 2, 7, 100, 1 << 20, 0x80000000, UINT32_MAX, INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX};
    uint64_t n = numbers[below(d, ARRAY_SIZE(numbers))];

    if (n == 1 << 20)
        n = next(d) << 32; /* whose low half is small */
    note(d, " %llx", (unsigned long long)n);
    return n;
}

bool draw_bool(struct draw *d)
{
    return below(d, 2);
}

double draw_real(struct draw *d)
{
    static const double reals[] = {0, 0.5, 0.9, 1, 1e-3, -1, -0.0, 1e308, NAN, INFINITY, -INFINITY};
    double x = reals[below(d, ARRAY_SIZE(reals))];

    note(d, " %g", x);
    return x;
}

static size_t any_count(struct draw *d, bool has_array)
{
    static const size_t small[] = {0, 1, 2, 3, 4},
                        huge[] = {(size_t)1 << 48, SIZE_MAX / 2, SIZE_MAX / 4 + 2, SIZE_MAX - 1, SIZE_MAX};
    static const size_t sized[] = {SMALL_MAX, 4097, 1 << 20, 1 << 28, (size_t)1 << 31, (size_t)1 << 40};

    if (below(d, 2))
        return small[below(d, ARRAY_SIZE(small))];
    return has_array || below(d, 2) ? huge[below(d, ARRAY_SIZE(huge))] : sized[below(d, ARRAY_SIZE(sized))];
}

size_t draw_count(struct draw *d, bool has_array)
{
    size_t n = any_count(d, has_array);

    note(d, " %zx", n);
    return n;
}

struct crw_shape draw_shape(struct draw *d)
{
    const bool right = below(d, 2);

    return right ? (struct crw_shape){3, 1 + (int)below(d, 9), 1 + (int)below(d, 9)}
                 : (struct crw_shape){draw_int(d), draw_int(d), draw_int(d)};
}

/* ---- memory ---- */

/* NULL every fourth time. */
static bool is_null(struct draw *d)
{
    bool null = below(d, 4) == 0;

    note(d, null ? " NULL" : " p");
    return null;
}

void *draw_array(struct draw *d)
{
    return is_null(d) ? NULL : arrays[below(d, 2)];
}

void *draw_ret(struct draw *d)
{
    return is_null(d) ? NULL : arrays[2];
}

void *draw_place(struct draw *d)
{
    d->sentinel = &d->sentinel;
    memcpy(arrays[3], &d->sentinel, sizeof(d->sentinel));
    return is_null(d) ? NULL : arrays[3];
}

int64_t *draw_targets(struct draw *d)
{
    static int64_t targets[SMALL_MAX];
    const int64_t wrong = (int64_t)draw_number(d);

    for (size_t i = 0; i < SMALL_MAX; i++)
        targets[i] = (int64_t)below(d, 2);
    targets[below(d, 4)] = wrong;
    return is_null(d) ? NULL : targets;
}

int *draw_members(struct draw *d)
{
    static int members[SMALL_MAX];

    for (size_t i = 0; i < 4; i++)
        members[i] = below(d, 2) ? draw_int(d) : 0;
    return is_null(d) ? NULL : members;
}

static const char *one_of(struct draw *d, const char *const *texts, size_t n)
{
    const char *text = texts[below(d, n)];

    note(d, " \"%.40s\"", text ? text : "(NULL)");
    return text;
}

struct crw_layer *draw_layers(struct draw *d)
{
    static const char *const names[] = {NULL, "a", "b", "c", "", long_text};
    static struct crw_layer layers[4];

    for (size_t i = 0; i < ARRAY_SIZE(layers); i++) {
        const bool right = below(d, 2);
        layers[i] = right ? (struct crw_layer){CRW_LAYER_CONV2D, i ? "d" : "e", 3, 3, 1}
                          : (struct crw_layer){.kind = (enum crw_layer_kind)draw_int(d),
                                               .name = one_of(d, names, ARRAY_SIZE(names)),
                                               .in = draw_int(d),
                                               .out = draw_int(d),
                                               .kernel = draw_int(d)};
    }
    if (below(d, 2))
        layers[below(d, 4)] = (struct crw_layer){CRW_LAYER_FLATTEN};
    return is_null(d) ? NULL : layers;
}

struct crw_tensor *draw_tensors(struct draw *d)
{
    static const char *const names[] = {NULL, "a", "b", "", long_text, "\xff", "__metadata__"};
    static struct crw_tensor tensors[4];

    for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
        const bool right = below(d, 2);
        tensors[i] = (struct crw_tensor){.name = i ? one_of(d, names, ARRAY_SIZE(names)) : "a",
                                         .dtype = right ? CRW_F32 : (enum crw_dtype)draw_int(d),
                                         .n_dims = right ? 1 : draw_int(d),
                                         .dims = {4, 1, 1, 1},
                                         .data = is_null(d) ? NULL : arrays[0]};
        if (!right) /* either nothing, or more than there can be */
            tensors[i].dims[below(d, 4)] = below(d, 2) ? INT64_MIN : INT64_MAX - (int64_t)below(d, 2);
    }
    return is_null(d) ? NULL : tensors;
}

struct crw_pair *draw_pairs(struct draw *d)
{
    static struct crw_pair pairs[4];

    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
        pairs[i] = (struct crw_pair){draw_text_meta_key(d), draw_text_meta_value(d)};
    return is_null(d) ? NULL : pairs;
}

struct crw_samples *draw_samples(struct draw *d)
{
    static struct crw_samples samples;

    samples = (struct crw_samples){.inputs = draw_array(d),
                                   .table = draw_array(d),
                                   .targets = draw_array(d),
                                   .n = (uint32_t)draw_number(d)};
    return is_null(d) ? NULL : &samples;
}

/* A world of one, with a number that is wrong, or an address without an end. */
struct crw_env *draw_env(struct draw *d)
{
    static struct crw_env env;
    int *const numbers[] = {&env.rank,       &env.world_size,       &env.local_rank,    &env.local_world_size,
                            &env.group_rank, &env.group_world_size, &env.restart_count, &env.notice_fd,
                            &env.generation};

    env = (struct crw_env){
        .world_size = 1, .local_world_size = 1, .group_world_size = 1, .run_id = "none", .notice_fd = -1};
    env.launched = draw_bool(d);
    for (size_t i = below(d, 4); i > 0; i--)
        *numbers[below(d, ARRAY_SIZE(numbers))] = draw_int(d);
    if (below(d, 4) == 0)
        memset(env.master_addr, 'a', sizeof(env.master_addr));
    if (below(d, 4) == 0)
        memset(env.run_id, 'a', sizeof(env.run_id));
    return is_null(d) ? NULL : &env;
}

static int gather(void *data, const uint32_t *samples, size_t n, float *input, void *targets)
{
    return data ? 7 : 0;
}

struct crw_sampler_options *draw_sampler_options(struct draw *d)
{
    static struct crw_sampler_options options;

    options = (struct crw_sampler_options){.n_samples = (uint32_t)draw_number(d),
                                           .rank = draw_int(d),
                                           .world_size = draw_int(d),
                                           .seed = draw_number(d),
                                           .shuffle = draw_bool(d),
                                           .drop_last = draw_bool(d)};
    return is_null(d) ? NULL : &options;
}

struct crw_loader_options *draw_loader_options(struct draw *d)
{
    static struct crw_loader_options options;

    options = (struct crw_loader_options){.sampler = draw_sampler(d),
                                          .batch_size = draw_count(d, 0),
                                          .input_size = draw_count(d, 0),
                                          .target_size = draw_count(d, 0),
                                          .n_ahead = draw_int(d),
                                          .gather = is_null(d) ? NULL : gather};
    return is_null(d) ? NULL : &options;
}

struct crw_optimizer_options *draw_optimizer_options(struct draw *d)
{
    static struct crw_optimizer_options options;

    options = crw_optimizer_defaults((enum crw_optimizer_kind)draw_int(d));
    if (below(d, 2))
        options = (struct crw_optimizer_options){.kind = (enum crw_optimizer_kind)draw_int(d),
                                                 .lr = draw_real(d),
                                                 .momentum = draw_real(d),
                                                 .dampening = draw_real(d),
                                                 .nesterov = draw_bool(d),
                                                 .beta1 = draw_real(d),
                                                 .beta2 = draw_real(d),
                                                 .rho = draw_real(d),
                                                 .eps = draw_real(d)};
    return is_null(d) ? NULL : &options;
}

struct crw_trainer_options *draw_trainer_options(struct draw *d)
{
    static struct crw_trainer_options options;

    options = (struct crw_trainer_options){.group = draw_group(d),
                                           .model = draw_model(d),
                                           .optimizer = draw_optimizer(d),
                                           .loss = (enum crw_loss)draw_int(d),
                                           .ignore_index = draw_targets(d),
                                           .products = (enum crw_products)draw_int(d),
                                           .clip_norm = draw_real(d),
                                           .timeout_ms = draw_int(d)};
    return is_null(d) ? NULL : &options;
}

/* ---- texts ---- */

static char snapshot_folder[64], snapshot_path[128], new_path[64], any_file[64];

const char *draw_text_address(struct draw *d)
{
    static const char *const texts[] = {NULL,
                                        "",
                                        "tcp://",
                                        "tcp://host:wrong",
                                        "tcp://127.0.0.1:1",
                                        "tcp://[::1]:65536",
                                        "tcp://127.0.0.1:-1",
                                        "host",
                                        long_text};

    return one_of(d, texts, ARRAY_SIZE(texts));
}

const char *draw_text_folder(struct draw *d)
{
    static const char *const texts[] = {NULL,         "",          snapshot_folder, new_path,
                                        "/proc/none", "/dev/null", long_text};

    return one_of(d, texts, ARRAY_SIZE(texts));
}

const char *draw_text_key(struct draw *d)
{
    static const char *const texts[] = {NULL, "", "a", "crw.step", "\xff", long_text};

    return one_of(d, texts, ARRAY_SIZE(texts));
}

const char *draw_text_message(struct draw *d)
{
    return draw_text_key(d);
}

const char *draw_text_meta_key(struct draw *d)
{
    return draw_text_key(d);
}

const char *draw_text_meta_value(struct draw *d)
{
    return draw_text_key(d);
}

const char *draw_text_path(struct draw *d)
{
    static const char *const texts[] = {NULL, "",       any_file, snapshot_folder, new_path, "/proc/self/mem",
                                        "a/", long_text};

    return one_of(d, texts, ARRAY_SIZE(texts));
}

/* ---- functions ---- */

static int worker(struct crw_group *group, void *data)
{
    return crw_barrier(group);
}

static int hook(void *data, size_t begin)
{
    return data ? 7 : 0;
}

static void warn(void *data, const char *sentence)
{
}

int (*draw_worker(struct draw *d))(struct crw_group *group, void *data)
{
    return is_null(d) ? NULL : worker;
}

int (*draw_hook(struct draw *d))(void *data, size_t begin)
{
    return is_null(d) ? NULL : hook;
}

void (*draw_warn(struct draw *d))(void *data, const char *sentence)
{
    return is_null(d) ? NULL : warn;
}

/* ---- objects ---- */

/* What is right has to be made. */
static void made(int r)
{
    if (r == 0)
        return;
    fprintf(stderr, "an object was not made: %d: %s\n", r, crw_error_message());
    _exit(119);
}

struct crw_group *draw_group(struct draw *d)
{
    const struct crw_env alone = {
        .world_size = 1, .local_world_size = 1, .group_world_size = 1, .run_id = "none", .notice_fd = -1};

    if (!d->group)
        made(crw_group_create(&alone, &d->group));
    return is_null(d) ? NULL : d->group;
}

struct crw_model *draw_model(struct draw *d)
{
    static const struct crw_layer layers[] = {{CRW_LAYER_CONV2D, "c", 3, 4, 2},
                                              {CRW_LAYER_BATCHNORM2D, "n", 4},
                                              {CRW_LAYER_RELU},
                                              {CRW_LAYER_MAXPOOL2D},
                                              {CRW_LAYER_FLATTEN},
                                              {CRW_LAYER_LINEAR, "f", 16, 5}};

    if (!d->model) {
        made(crw_model_create(layers, ARRAY_SIZE(layers), (struct crw_shape){3, 5, 5}, 4, NULL, &d->model));
        crw_model_init(d->model, 1);
    }
    return is_null(d) ? NULL : d->model;
}

struct crw_optimizer *draw_optimizer(struct draw *d)
{
    const struct crw_optimizer_options options =
        crw_optimizer_defaults((enum crw_optimizer_kind)below(d, CRW_OPTIMIZER_KIND_COUNT));

    if (!d->optimizer)
        made(crw_optimizer_create(&options, SMALL_MAX, &d->optimizer));
    return is_null(d) ? NULL : d->optimizer;
}

static void make_sampler(struct crw_sampler **at)
{
    if (!*at)
        made(crw_sampler_create(
            &(struct crw_sampler_options){.n_samples = 90, .world_size = 1, .shuffle = true}, at));
}

struct crw_sampler *draw_sampler(struct draw *d)
{
    make_sampler(&d->sampler);
    return is_null(d) ? NULL : d->sampler;
}

struct crw_loader *draw_loader(struct draw *d)
{
    struct crw_loader_options options = {
        .batch_size = 7, .input_size = 2, .target_size = 8, .gather = gather};

    if (!d->loader) {
        make_sampler(&d->loaded);
        options.sampler = d->loaded;
        options.n_ahead = (int)below(d, 3);
        made(crw_loader_create(&options, &d->loader));
    }
    return is_null(d) ? NULL : d->loader;
}

struct crw_reducer *draw_reducer(struct draw *d)
{
    if (!d->group)
        (void)draw_group(d);
    if (!d->reducer)
        made(crw_reducer_create(d->group, (float *)(void *)arrays[0], SMALL_MAX, below(d, 2) ? 4096 : 64,
                                &d->reducer));
    return is_null(d) ? NULL : d->reducer;
}

struct crw_memory *draw_memory(struct draw *d)
{
    char number[16];

    if (!d->group)
        (void)draw_group(d);
    if (!d->memory) {
        (void)snprintf(number, sizeof(number), "%d", memfd_create("state", 0));
        made(setenv(WORKER_MEMORY_STATE_ENVIRONMENT, number, 1));
        made(crw_memory_open(d->group, 4096, 7, &d->memory));
    }
    return is_null(d) ? NULL : d->memory;
}

struct crw_snapshots *draw_snapshots(struct draw *d)
{
    char own[64];

    (void)snprintf(own, sizeof(own), "%s/%d", root, getpid());
    if (!d->snapshots)
        made(crw_snapshots_create(own, 1, &d->snapshots));
    return is_null(d) ? NULL : d->snapshots;
}

struct crw_snapshot *draw_snapshot(struct draw *d)
{
    if (!d->snapshot)
        made(crw_snapshot_open(snapshot_path, &d->snapshot));
    return is_null(d) ? NULL : d->snapshot;
}

struct crw_rng *draw_rng(struct draw *d)
{
    if (below(d, 4) == 0)
        d->rng.next = draw_int(d);
    return is_null(d) ? NULL : &d->rng;
}

struct crw_work *draw_work(struct draw *d)
{
    struct crw_work *work = NULL;

    if (!d->group)
        (void)draw_group(d);
    made(crw_barrier_start(d->group, &work));
    return is_null(d) ? NULL : work;
}

/* There is none without a GPU. */
struct crw_trainer *draw_trainer(struct draw *d)
{
    return NULL;
}

/* ---- running ---- */

struct job {
    uint64_t seed;
    size_t function;
};

static int run_job(void *data)
{
    static struct draw d;
    const struct job *job = data;

    d.state = job->seed * 1000003 + job->function;
    memory_pretend(64 << 20);
    for (size_t i = any_functions[job->function].is_alone ? 0 : below(&d, BEFORE_MAX + 1); i > 0; i--) {
        const struct any_function *before = &any_functions[below(&d, n_any_functions)];

        if (!before->is_last && !before->is_alone)
            before->call(&d);
    }
    any_functions[job->function].call(&d);
    return d.n_bad ? 118 : 0;
}

static void report(const struct job *job, int status, FILE *output)
{
    char line[512];

    printf("%s, seed %llu: ended with %#x\n", any_functions[job->function].name,
           (unsigned long long)job->seed, (unsigned)status);
    rewind(output);
    while (fgets(line, sizeof(line), output))
        printf("    %s", line);
}

/* How many calls of the function went wrong. */
static int try_function(size_t function, uint64_t seed, int n_calls)
{
    int n_wrong = 0;

    for (int i = 0; i < n_calls; i++) {
        struct job job = {.seed = seed + (uint64_t)i, .function = function};
        FILE *output = tmpfile();
        int status = output ? run_bounded(run_job, &job, output) : -1;

        if (status && output)
            report(&job, status, output);
        n_wrong += status != 0;
        if (output)
            (void)fclose(output);
    }
    return n_wrong;
}

static void make_snapshot(void)
{
    static float data[4];
    const struct crw_tensor tensor = {.name = "a", .n_dims = 1, .dims = {4}, .data = data};
    const struct crw_pair pair = {"a", "b"};
    struct crw_snapshots *s = NULL;

    (void)snprintf(snapshot_folder, sizeof(snapshot_folder), "%s/snapshots", root);
    (void)snprintf(snapshot_path, sizeof(snapshot_path), "%s/snap-000000000007.safetensors", snapshot_folder);
    (void)snprintf(new_path, sizeof(new_path), "%s/new", root);
    made(crw_snapshots_create(snapshot_folder, 1, &s));
    made(crw_snapshots_save(s, 7, &tensor, 1, &pair, 1));
    crw_snapshots_destroy(s);
    (void)snprintf(any_file, sizeof(any_file), "%s/file", root);
    made(link(snapshot_path, any_file)); /* it may be overwritten, the snapshot not */
}

int main(int argc, char **argv)
{
    int n_calls = argc > 1 ? atoi(argv[1]) : CALLS, n_wrong = 0, n_functions = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)(now_s() * 1e9) * 1000003;
    double began_s = now_s();
    char command[64];

    if (!mkdtemp(root) || setenv("CRW_TIMEOUT_MS", "100", 1) || chdir(root))
        return 1;
    memset(long_text, 'a', sizeof(long_text) - 1);
    make_snapshot();
    for (size_t i = 0; i < n_any_functions; i++) {
        if (argc > 3 && strcmp(argv[3], any_functions[i].name) != 0)
            continue;
        n_functions++;
        n_wrong += try_function(i, seed, n_calls);
    }
    printf("%d functions, %d calls of each, seed %llu, %.1f s: %d wrong\n", n_functions, n_calls,
           (unsigned long long)seed, now_s() - began_s, n_wrong);
    (void)snprintf(command, sizeof(command), "rm -rf %s", root);
    return n_wrong || n_functions == 0 || system(command);
}
