#include "tests/support/c/snapshots/content.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct content {
    float weights[CONTENT_WEIGHTS];
    int64_t counter;
};

static void fill(struct content *c, uint64_t step)
{
    for (int i = 0; i < CONTENT_WEIGHTS; i++)
        c->weights[i] = (float)step * 1000 + (float)i;
    c->counter = (int64_t)step * 3;
}

int content_save(struct crw_snapshots *s, uint64_t step)
{
    struct content c;
    const struct crw_tensor tensors[] = {
        {"model.weights", CRW_F32, 2, {10, 100}, c.weights},
        {"buffer.counter", CRW_I64, 0, {0}, &c.counter},
    };
    const struct crw_pair meta[] = {{"model_hash", "cafe"}, {"epoch", "2"}};
    int r;

    fill(&c, step);
    r = crw_snapshots_save(s, step, tensors, 2, meta, 2);
    memset(&c, 0xee, sizeof(c));
    return r;
}

static bool has_meta(const struct crw_snapshot *s, const char *key, const char *value)
{
    const char *found = crw_snapshot_meta(s, key);

    return found && strcmp(found, value) == 0;
}

bool content_matches(const struct crw_snapshot *s)
{
    struct content expected, c = {0};
    const struct crw_tensor weights = {"model.weights", CRW_F32, 2, {10, 100}, c.weights};
    const struct crw_tensor counter = {"buffer.counter", CRW_I64, 0, {0}, &c.counter};

    fill(&expected, crw_snapshot_step(s));
    return crw_snapshot_read(s, &weights) == 0 && crw_snapshot_read(s, &counter) == 0 &&
           memcmp(c.weights, expected.weights, sizeof(c.weights)) == 0 && c.counter == expected.counter &&
           has_meta(s, "model_hash", "cafe") && has_meta(s, "epoch", "2") && !crw_snapshot_meta(s, "nothing");
}

struct warnings {
    const char *folder;
    int n;
    bool unnamed; /* one did not say where */
};

static void count_warning(void *data, const char *sentence)
{
    struct warnings *w = data;

    w->n++;
    w->unnamed |= !strstr(sentence, w->folder);
}

int content_load_newest(const char *folder, uint64_t *ret_step, int *ret_n_warnings,
                        char why[CONTENT_WHY_MAX])
{
    struct crw_snapshot *s;
    struct warnings warnings = {.folder = folder};
    int result = 0;
    int r = crw_snapshot_open_newest(folder, "model_hash", "cafe", count_warning, &warnings, &s);

    if (r != 0 && r != CRW_E_NOT_FOUND && r != CRW_E_DAMAGED) {
        (void)snprintf(why, CONTENT_WHY_MAX, "%s", crw_error_message());
        return -1;
    }
    if (ret_n_warnings)
        *ret_n_warnings = warnings.n;
    *ret_step = 0;
    if (warnings.unnamed) {
        (void)snprintf(why, CONTENT_WHY_MAX, "a warning does not name the folder");
        result = -1;
    }
    if ((r == CRW_E_DAMAGED) != (r != 0 && warnings.n > 0)) {
        (void)snprintf(why, CONTENT_WHY_MAX, "result %d with %d damaged", r, warnings.n);
        result = -1;
    }
    if (r != 0)
        return result;
    *ret_step = crw_snapshot_step(s);
    if (!content_matches(s)) {
        (void)snprintf(why, CONTENT_WHY_MAX, "the snapshot of step %llu is not what was saved",
                       (unsigned long long)*ret_step);
        result = -1;
    }
    crw_snapshot_close(s);
    return result;
}

static int crc_in_memory(void *data, uint64_t at, uint64_t n, uint32_t *ret_crc)
{
    *ret_crc = crw_crc32c(0, (const uint8_t *)data + at, (size_t)n);
    return 0;
}

int content_check_image(const uint8_t *image, size_t size, struct safetensors *ret, uint64_t *ret_step,
                        char why[SNAPSHOT_WHY_MAX])
{
    const struct snapshot_bytes bytes = {crc_in_memory, (void *)(uintptr_t)image}; /* only read */

    return snapshot_image_check(image, size, &bytes, ret, ret_step, why);
}

int content_save_durably(const char *folder, int keep, uint64_t step, char why[CONTENT_WHY_MAX])
{
    struct crw_snapshots *s;
    const char *failure = NULL;
    uint64_t durable = 0;
    int r = crw_snapshots_create(folder, keep, &s);

    if (r == 0) {
        r = content_save(s, step);
        crw_snapshots_wait(s);
        durable = crw_snapshots_status(s, &failure);
    }
    if (r != 0 || failure || durable != step)
        (void)snprintf(why, CONTENT_WHY_MAX, "%s", failure ? failure : crw_error_message());
    if (r == 0)
        crw_snapshots_destroy(s);
    return r == 0 && durable == step ? 0 : -1;
}

const char *content_path(const char *folder, const char *name)
{
    static _Thread_local char path[1024];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

void folder_for_each(const char *folder, void (*file)(const char *folder, const char *name, void *data),
                     void *data)
{
    DIR *dir = opendir(folder);
    struct dirent *found;

    if (!dir) {
        fprintf(stderr, "cannot list %s\n", folder);
        abort();
    }
    while ((found = readdir(dir)))
        if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0)
            file(folder, found->d_name, data);
    closedir(dir);
}

static void count_file(const char *folder, const char *name, void *data)
{
    ++*(int *)data;
}

int folder_count(const char *folder)
{
    int n = 0;

    folder_for_each(folder, count_file, &n);
    return n;
}

static void remove_file(const char *folder, const char *name, void *data)
{
    unlink(content_path(folder, name));
}

void folder_empty(const char *folder)
{
    folder_for_each(folder, remove_file, NULL);
}
