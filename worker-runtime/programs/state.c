#include "worker-runtime/programs/state.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"
#include "base/err.h"
#include "base/format.h"

enum { NAME_SIZE = 96 };

#define MODEL_HASH "%08" PRIx32

void recipe_add(struct train_recipe *recipe, const char *key, const char *format, ...)
{
    assert(recipe->n < RECIPE_MAX);
    recipe->entries[recipe->n].key = key;
    (void)format_arguments(recipe->entries[recipe->n++].value, RECIPE_VALUE_SIZE, format);
}

/* A tensor like another one under a name of its own. */
__attribute__((format(printf, 3, 4))) static struct crw_tensor *
add_tensor(struct train_state *s, struct crw_tensor tensor, const char *format, ...)
{
    char *name = s->names + s->n_tensors * NAME_SIZE;

    (void)format_arguments(name, NAME_SIZE, format);
    tensor.name = name;
    s->tensors[s->n_tensors] = tensor;
    return &s->tensors[s->n_tensors++];
}

/* The optimizer's states are laid out like the parameter arena; a tensor's part has the same offset. */
static void add_optimizer_states(struct train_state *s, struct crw_tensor parameter, size_t offset)
{
    for (size_t i = 0; i < crw_optimizer_n_states(s->optimizer); i++) {
        const char *state_name;
        float *state = crw_optimizer_state(s->optimizer, i, &state_name);

        add_tensor(s, parameter, "optim.%s.%s", parameter.name, state_name)->data = state + offset;
    }
}

static size_t state_tensor_bytes(const struct crw_tensor *t)
{
    size_t n = t->dtype == CRW_I64 ? 8 : 4;

    for (int i = 0; i < t->n_dims; i++)
        n *= (size_t)t->dims[i];
    return n;
}

size_t state_committed_bytes(const struct train_state *s)
{
    size_t n = 0;

    for (size_t i = 0; i < crw_model_n_buffers(s->model); i++) {
        struct crw_tensor buffer = crw_model_buffer(s->model, i);

        n += state_tensor_bytes(&buffer);
    }
    return n;
}

/* Copies all buffers from the model to the committed place, or back. */
static void copy_buffers(struct train_state *s, bool commit)
{
    uint8_t *at = s->committed;

    for (size_t i = 0; i < crw_model_n_buffers(s->model); i++) {
        struct crw_tensor buffer = crw_model_buffer(s->model, i);
        size_t n = state_tensor_bytes(&buffer);

        if (commit)
            memcpy(at, buffer.data, n);
        else
            memcpy(buffer.data, at, n);
        at += n;
    }
}

void state_restored(struct train_state *s, uint64_t optimizer_steps)
{
    copy_buffers(s, false);
    crw_optimizer_set_steps(s->optimizer, optimizer_steps);
}

void state_commit(struct train_state *s)
{
    copy_buffers(s, true);
}

int state_create(struct train_state *ret, struct crw_model *model, struct crw_optimizer *optimizer,
                 const struct train_recipe *recipe)
{
    size_t n_parameters = crw_model_n_tensors(model), n_buffers = crw_model_n_buffers(model);
    size_t n = n_parameters * (1 + crw_optimizer_n_states(optimizer)) + n_buffers;
    size_t n_floats;
    const float *arena = crw_model_parameters(model, &n_floats);
    uint8_t *committed;
    struct train_state s = {.model = model, .optimizer = optimizer, .recipe = *recipe};

    s.tensors = calloc(n, sizeof(*s.tensors));
    s.names = calloc(n, NAME_SIZE);
    s.committed = malloc(state_committed_bytes(&s) + 1); /* never 0 bytes */
    s.received = malloc(state_committed_bytes(&s) + 1);
    if (!s.tensors || !s.names || !s.committed || !s.received) {
        state_finish(&s);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n_parameters; i++) {
        struct crw_tensor parameter = crw_model_tensor(model, i);

        add_tensor(&s, parameter, "model.%s", parameter.name);
        add_optimizer_states(&s, parameter, (size_t)((float *)parameter.data - arena));
    }
    committed = s.committed;
    for (size_t i = 0; i < n_buffers; i++) {
        struct crw_tensor buffer = crw_model_buffer(model, i);

        add_tensor(&s, buffer, "buffer.%s", buffer.name)->data = committed;
        committed += state_tensor_bytes(&buffer);
    }
    state_commit(&s);
    *ret = s;
    return 0;
}

void state_finish(struct train_state *s)
{
    free(s->tensors);
    free(s->names);
    free(s->committed);
    free(s->received);
    *s = (struct train_state){0};
}

int state_save(struct train_state *s, struct crw_snapshots *snapshots, int world_size, uint32_t batch_size)
{
    const struct train_position *p = &s->position;
    struct train_recipe all = {0};
    struct crw_pair meta[RECIPE_MAX];

    recipe_add(&all, "step", "%" PRIu64, p->step);
    recipe_add(&all, "epoch", "%" PRIu64, p->epoch);
    recipe_add(&all, "consumed", "%" PRIu64, p->consumed);
    recipe_add(&all, "batches", "%" PRIu64, p->batches);
    recipe_add(&all, "loss_sum", "%a", p->loss_sum); /* hexadecimal floats lose no bit */
    recipe_add(&all, "loss_all_sum", "%a", p->loss_all_sum);
    recipe_add(&all, "model_hash", MODEL_HASH, crw_model_hash(s->model));
    recipe_add(&all, "world_size", "%d", world_size);
    recipe_add(&all, "batch_size", "%" PRIu32, batch_size);
    recipe_add(&all, "optimizer_steps", "%" PRIu64, crw_optimizer_steps(s->optimizer));
    for (size_t i = 0; i < s->recipe.n; i++)
        recipe_add(&all, s->recipe.entries[i].key, "%s", s->recipe.entries[i].value);
    for (size_t i = 0; i < all.n; i++)
        meta[i] = (struct crw_pair){all.entries[i].key, all.entries[i].value};
    return crw_snapshots_save(snapshots, p->step, s->tensors, s->n_tensors, meta, all.n);
}

static bool meta_u64(const struct crw_snapshot *snapshot, const char *key, uint64_t *ret)
{
    const char *text = crw_snapshot_meta(snapshot, key);

    return text && decimal_parse(text, 0, UINT64_MAX, ret);
}

static bool meta_f64(const struct crw_snapshot *snapshot, const char *key, double *ret)
{
    const char *text = crw_snapshot_meta(snapshot, key);
    char *end;

    if (!text)
        return false;
    *ret = strtod(text, &end);
    return *text != '\0' && *end == '\0';
}

static bool read_position(const struct crw_snapshot *snapshot, struct train_position *p, uint64_t *steps)
{
    return meta_u64(snapshot, "step", &p->step) && meta_u64(snapshot, "epoch", &p->epoch) &&
           meta_u64(snapshot, "consumed", &p->consumed) && meta_u64(snapshot, "batches", &p->batches) &&
           meta_f64(snapshot, "loss_sum", &p->loss_sum) &&
           meta_f64(snapshot, "loss_all_sum", &p->loss_all_sum) &&
           meta_u64(snapshot, "optimizer_steps", steps);
}

/* A run with another seed or other samples visits them in another order: continuing it would train on some
 * twice and on some never. With anything else of the recipe changed, the end would not be the run's own. */
static int check_recipe(const struct train_recipe *recipe, const struct crw_snapshot *snapshot,
                        const char *folder, char *error, size_t n)
{
    for (size_t i = 0; i < recipe->n; i++) {
        const char *key = recipe->entries[i].key, *value = recipe->entries[i].value;
        const char *found = crw_snapshot_meta(snapshot, key);

        if (!found) {
            snprintf(error, n,
                     "the snapshot of step %" PRIu64 " in %s was not written by this train: it has no %s",
                     crw_snapshot_step(snapshot), folder, key);
            return CRW_E_MISMATCH;
        }
        if (strcmp(found, value) != 0) {
            snprintf(error, n,
                     "the snapshots in %s are of a run with %s %s, this one has %s: give the same options or "
                     "another --snapshot-dir",
                     folder, key, found, value);
            return CRW_E_MISMATCH;
        }
    }
    return 0;
}

static int read_snapshot(struct train_state *s, const struct crw_snapshot *snapshot, const char *folder,
                         char *error, size_t n)
{
    struct train_position position;
    uint64_t optimizer_steps;

    TRY(check_recipe(&s->recipe, snapshot, folder, error, n));
    if (!read_position(snapshot, &position, &optimizer_steps)) {
        snprintf(error, n,
                 "the snapshot of step %" PRIu64
                 " in %s lacks its counters; remove it to continue "
                 "from the one before",
                 crw_snapshot_step(snapshot), folder);
        return CRW_E_MISMATCH;
    }
    for (size_t i = 0; i < s->n_tensors; i++) {
        int r = crw_snapshot_read(snapshot, &s->tensors[i]);
        if (r) {
            snprintf(error, n, "%s", crw_error_message());
            return r;
        }
    }
    s->position = position;
    state_restored(s, optimizer_steps);
    return 0;
}

int state_load(struct train_state *s, const char *folder, void (*warn)(void *data, const char *sentence),
               void *warn_data, char *error, size_t n)
{
    struct crw_snapshot *snapshot = NULL;
    char hash[sizeof("00000000")];

    snprintf(hash, sizeof(hash), MODEL_HASH, crw_model_hash(s->model));
    int r = crw_snapshot_open_newest(folder, "model_hash", hash, warn, warn_data, &snapshot);
    if (r) {
        snprintf(error, n, "%s", crw_error_message());
        return r;
    }
    r = read_snapshot(s, snapshot, folder, error, n);
    crw_snapshot_close(snapshot);
    return r;
}

int state_broadcast_statistics(struct train_state *s, struct crw_group *group, int from)
{
    memcpy(s->received, s->committed, state_committed_bytes(s));
    TRY(crw_broadcast(group, s->received, state_committed_bytes(s), from)); /* a part may have come */
    memcpy(s->committed, s->received, state_committed_bytes(s));
    copy_buffers(s, false);
    return 0;
}

int state_broadcast(struct train_state *s, struct crw_group *group, int from)
{
    uint64_t optimizer_steps = crw_optimizer_steps(s->optimizer);

    for (size_t i = 0; i < s->n_tensors; i++)
        TRY(crw_broadcast(group, s->tensors[i].data, state_tensor_bytes(&s->tensors[i]), from));
    TRY(crw_broadcast(group, &s->position, sizeof(s->position), from));
    TRY(crw_broadcast(group, &optimizer_steps, sizeof(optimizer_steps), from));
    state_restored(s, optimizer_steps);
    return 0;
}
