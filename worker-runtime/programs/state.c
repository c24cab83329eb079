#include "worker-runtime/programs/state.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 96 };

void recipe_begin(struct train_recipe *recipe)
{
    recipe->n = 0;
}

void recipe_add(struct train_recipe *recipe, const char *key, const char *format, ...)
{
    va_list args;

    assert(recipe->n < RECIPE_MAX);
    recipe->entries[recipe->n].key = key;
    va_start(args, format);
    vsnprintf(recipe->entries[recipe->n++].value, RECIPE_VALUE_SIZE, format, args);
    va_end(args);
}

static struct crw_tensor *add_tensor(struct train_state *s, struct crw_tensor like)
{
    struct crw_tensor *t = &s->tensors[s->n_tensors];

    *t = like;
    t->name = s->names + s->n_tensors * NAME_SIZE;
    s->n_tensors++;
    return t;
}

static char *tensor_name(struct crw_tensor *t)
{
    return (char *)(uintptr_t)t->name; /* points into s->names, which is ours to write */
}

/* The optimizer's states are laid out like the parameter arena; a tensor's part has the same offset. */
static void add_optimizer_states(struct train_state *s, struct crw_tensor parameter, size_t offset)
{
    for (size_t i = 0; i < crw_optimizer_n_states(s->optimizer); i++) {
        const char *state_name;
        float *state = crw_optimizer_state(s->optimizer, i, &state_name);
        struct crw_tensor *t = add_tensor(s, parameter);

        t->data = state + offset;
        snprintf(tensor_name(t), NAME_SIZE, "optim.%s.%s", parameter.name, state_name);
    }
}

static size_t state_tensor_bytes(const struct crw_tensor *t)
{
    size_t n = t->dtype == CRW_I64 ? 8 : 4;

    for (int i = 0; i < t->n_dims; i++)
        n *= (size_t)t->dims[i];
    return n;
}

static size_t all_buffer_bytes(const struct crw_model *model)
{
    size_t n = 0;

    for (size_t i = 0; i < crw_model_n_buffers(model); i++) {
        struct crw_tensor buffer = crw_model_buffer(model, i);

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

size_t state_committed_bytes(const struct train_state *s)
{
    return all_buffer_bytes(s->model);
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
    s.committed = malloc(all_buffer_bytes(model) + 1); /* never 0 bytes */
    s.received = malloc(all_buffer_bytes(model) + 1);
    if (!s.tensors || !s.names || !s.committed || !s.received) {
        state_finish(&s);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n_parameters; i++) {
        struct crw_tensor parameter = crw_model_tensor(model, i);
        struct crw_tensor *t = add_tensor(&s, parameter);

        snprintf(tensor_name(t), NAME_SIZE, "model.%s", parameter.name);
        add_optimizer_states(&s, parameter, (size_t)((float *)parameter.data - arena));
    }
    committed = s.committed;
    for (size_t i = 0; i < n_buffers; i++) {
        struct crw_tensor buffer = crw_model_buffer(model, i);
        struct crw_tensor *t = add_tensor(&s, buffer);

        snprintf(tensor_name(t), NAME_SIZE, "buffer.%s", buffer.name);
        t->data = committed;
        committed += state_tensor_bytes(t);
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

/* One string of the metadata; doubles as hexadecimal floats, which lose no bit. */
struct meta_text {
    char text[40];
};

static struct meta_text text_u64(uint64_t v)
{
    struct meta_text t;

    snprintf(t.text, sizeof(t.text), "%" PRIu64, v);
    return t;
}

static struct meta_text text_f64(double v)
{
    struct meta_text t;

    snprintf(t.text, sizeof(t.text), "%a", v);
    return t;
}

static struct meta_text text_hash(uint32_t v)
{
    struct meta_text t;

    snprintf(t.text, sizeof(t.text), "%08" PRIx32, v);
    return t;
}

int state_save(struct train_state *s, struct crw_snapshots *snapshots, int world_size, uint32_t batch_size)
{
    const struct train_position *p = &s->position;
    struct meta_text step = text_u64(p->step), epoch = text_u64(p->epoch), consumed = text_u64(p->consumed);
    struct meta_text batches = text_u64(p->batches), loss = text_f64(p->loss_sum);
    struct meta_text loss_all = text_f64(p->loss_all_sum), hash = text_hash(crw_model_hash(s->model));
    struct meta_text world = text_u64((uint64_t)world_size), batch = text_u64(batch_size);
    struct meta_text optimizer_steps = text_u64(crw_optimizer_steps(s->optimizer));
    const struct crw_pair fixed[] = {
        {"step", step.text},         {"epoch", epoch.text},
        {"consumed", consumed.text}, {"batches", batches.text},
        {"loss_sum", loss.text},     {"loss_all_sum", loss_all.text},
        {"model_hash", hash.text},   {"world_size", world.text},
        {"batch_size", batch.text},  {"optimizer_steps", optimizer_steps.text},
    };
    enum { N_FIXED = sizeof(fixed) / sizeof(fixed[0]) };
    struct crw_pair meta[N_FIXED + RECIPE_MAX];

    memcpy(meta, fixed, sizeof(fixed));
    for (size_t i = 0; i < s->recipe.n; i++)
        meta[N_FIXED + i] = (struct crw_pair){s->recipe.entries[i].key, s->recipe.entries[i].value};
    return crw_snapshots_save(snapshots, p->step, s->tensors, s->n_tensors, meta, N_FIXED + s->recipe.n);
}

static int meta_u64(const struct crw_snapshot *snapshot, const char *key, uint64_t *ret)
{
    const char *text = crw_snapshot_meta(snapshot, key);
    char *end;

    if (!text)
        return CRW_E_MISMATCH;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return *text == '\0' || *end != '\0' || errno != 0 ? CRW_E_MISMATCH : 0;
}

static int meta_f64(const struct crw_snapshot *snapshot, const char *key, double *ret)
{
    const char *text = crw_snapshot_meta(snapshot, key);
    char *end;

    if (!text)
        return CRW_E_MISMATCH;
    *ret = strtod(text, &end);
    return *text == '\0' || *end != '\0' ? CRW_E_MISMATCH : 0;
}

static int read_position(const struct crw_snapshot *snapshot, struct train_position *p, uint64_t *steps)
{
    if (meta_u64(snapshot, "step", &p->step) || meta_u64(snapshot, "epoch", &p->epoch) ||
        meta_u64(snapshot, "consumed", &p->consumed) || meta_u64(snapshot, "batches", &p->batches) ||
        meta_f64(snapshot, "loss_sum", &p->loss_sum) ||
        meta_f64(snapshot, "loss_all_sum", &p->loss_all_sum) || meta_u64(snapshot, "optimizer_steps", steps))
        return CRW_E_MISMATCH;
    return 0;
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
    int r;

    r = check_recipe(&s->recipe, snapshot, folder, error, n);
    if (r)
        return r;
    r = read_position(snapshot, &position, &optimizer_steps);
    if (r) {
        snprintf(error, n,
                 "the snapshot of step %" PRIu64
                 " in %s lacks its counters; remove it to continue "
                 "from the one before",
                 crw_snapshot_step(snapshot), folder);
        return r;
    }
    for (size_t i = 0; i < s->n_tensors; i++) {
        r = crw_snapshot_read(snapshot, &s->tensors[i]);
        if (r) {
            snprintf(error, n, "%s", crw_error_message());
            return r;
        }
    }
    copy_buffers(s, false);
    s->position = position;
    crw_optimizer_set_steps(s->optimizer, optimizer_steps);
    return 0;
}

int state_load(struct train_state *s, const char *folder, void (*warn)(void *data, const char *sentence),
               void *warn_data, char *error, size_t n)
{
    struct meta_text hash = text_hash(crw_model_hash(s->model));
    struct crw_snapshot *snapshot = NULL;
    int r;

    r = crw_snapshot_open_newest(folder, "model_hash", hash.text, warn, warn_data, &snapshot);
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
    int r;

    memcpy(s->received, s->committed, state_committed_bytes(s));
    r = crw_broadcast(group, s->received, state_committed_bytes(s), from);
    if (r)
        return r; /* a part may have come */
    memcpy(s->committed, s->received, state_committed_bytes(s));
    copy_buffers(s, false);
    return 0;
}

int state_broadcast(struct train_state *s, struct crw_group *group, int from)
{
    uint64_t optimizer_steps = crw_optimizer_steps(s->optimizer);
    int r;

    for (size_t i = 0; i < s->n_tensors; i++) {
        r = crw_broadcast(group, s->tensors[i].data, state_tensor_bytes(&s->tensors[i]), from);
        if (r)
            return r;
    }
    r = crw_broadcast(group, &s->position, sizeof(s->position), from);
    if (r)
        return r;
    r = crw_broadcast(group, &optimizer_steps, sizeof(optimizer_steps), from);
    if (r)
        return r;
    copy_buffers(s, false);
    crw_optimizer_set_steps(s->optimizer, optimizer_steps);
    return 0;
}
