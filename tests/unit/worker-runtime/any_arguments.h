#pragma once

/*
 * Values for the parameters of functions, drawn at random: NULL, what is right, and what is not. An array is as long as the
 * largest small count, or the count is one that no array can have: nothing can notice an array that is too short.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"

enum { TEXT_MAX = 2000 };

struct draw {
    uint64_t state;
    char text[TEXT_MAX]; /* the arguments of the next call */
    int n_bad;           /* results that are none */
    void *sentinel;
    /* Objects that are right; made when they are drawn. */
    struct crw_group *group;
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct crw_sampler *sampler, *loaded;
    struct crw_loader *loader;
    struct crw_reducer *reducer;
    struct crw_memory *memory;
    struct crw_snapshots *snapshots;
    struct crw_snapshot *snapshot;
    struct crw_rng rng;
};

struct any_function {
    const char *name;
    void (*call)(struct draw *d);
    bool is_last;  /* it may end what others use */
    bool is_alone; /* it forks, so nothing is called before that starts a thread */
};

extern const struct any_function any_functions[];
extern const size_t n_any_functions;

void begin_call(struct draw *d, const char *name);
/* place: where an object goes; NULL: it makes none. */
void end_call(struct draw *d, int result, void *place);

/* Whole numbers. */
int draw_int(struct draw *d);
int draw_int_n(struct draw *d, bool launches);
uint64_t draw_number(struct draw *d);
bool draw_bool(struct draw *d);
double draw_real(struct draw *d);
size_t draw_count(struct draw *d, bool has_array);
struct crw_shape draw_shape(struct draw *d);

/* Memory. */
void *draw_array(struct draw *d);
void *draw_ret(struct draw *d);
void *draw_place(struct draw *d);
int64_t *draw_targets(struct draw *d);
int *draw_members(struct draw *d);
struct crw_layer *draw_layers(struct draw *d);
struct crw_tensor *draw_tensors(struct draw *d);
struct crw_pair *draw_pairs(struct draw *d);
struct crw_samples *draw_samples(struct draw *d);
struct crw_env *draw_env(struct draw *d);
struct crw_sampler_options *draw_sampler_options(struct draw *d);
struct crw_loader_options *draw_loader_options(struct draw *d);
struct crw_optimizer_options *draw_optimizer_options(struct draw *d);
struct crw_trainer_options *draw_trainer_options(struct draw *d);

const char *draw_text_address(struct draw *d);
const char *draw_text_folder(struct draw *d);
const char *draw_text_key(struct draw *d);
const char *draw_text_message(struct draw *d);
const char *draw_text_meta_key(struct draw *d);
const char *draw_text_meta_value(struct draw *d);
const char *draw_text_path(struct draw *d);

/* Functions. */
int (*draw_worker(struct draw *d))(struct crw_group *group, void *data);
int (*draw_hook(struct draw *d))(void *data, size_t begin);
void (*draw_warn(struct draw *d))(void *data, const char *sentence);

/* Objects, or NULL. */
struct crw_group *draw_group(struct draw *d);
struct crw_model *draw_model(struct draw *d);
struct crw_optimizer *draw_optimizer(struct draw *d);
struct crw_sampler *draw_sampler(struct draw *d);
struct crw_loader *draw_loader(struct draw *d);
struct crw_reducer *draw_reducer(struct draw *d);
struct crw_memory *draw_memory(struct draw *d);
struct crw_snapshots *draw_snapshots(struct draw *d);
struct crw_snapshot *draw_snapshot(struct draw *d);
struct crw_rng *draw_rng(struct draw *d);
struct crw_work *draw_work(struct draw *d);
struct crw_trainer *draw_trainer(struct draw *d);
