/*
 * Fuzz target: snapshots as a file gives them. Whatever the bytes are, parsing ends and stays inside them; a
 * header that is accepted keeps every promise of safetensors.h; written again it reads the same. A
 * snapshot that passes its checks does not pass with a bit changed (which one, the input chooses).
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "worker-runtime/checkpoint/snapshot_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Tensors tile the data, and fit their shapes. */
static void require_tiling(const struct safetensors *st, size_t size)
{
    uint64_t at = 0;

    require(st->data_at >= 8 && st->data_at <= size);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct safetensors_tensor *t = &st->tensors[i];
        uint64_t n_bytes;

        require(t->begin == at && t->end >= at);
        require(safetensors_count_bytes(t->dtype, t->n_dims, t->dims, &n_bytes));
        require(n_bytes == t->end - t->begin);
        require(safetensors_find_tensor(st, t->name) == t);
        at = t->end;
    }
    require(at == size - st->data_at);
}

static void require_strings(const struct safetensors *st, const uint8_t *data)
{
    for (size_t i = 0; i < st->n_strings; i++) {
        const struct safetensors_string *s = &st->strings[i];

        require(safetensors_find_string(st, s->key) == s);
        require(s->at + s->size < st->data_at);
        require(data[s->at - 1] == '"' && data[s->at + s->size] == '"');
        require(strlen(s->value) <= s->size);
    }
}

static void require_same(const struct safetensors *a, const struct safetensors *b)
{
    require(a->n_tensors == b->n_tensors && a->n_strings == b->n_strings);
    for (size_t i = 0; i < a->n_strings; i++)
        require(strcmp(a->strings[i].key, b->strings[i].key) == 0 &&
                strcmp(a->strings[i].value, b->strings[i].value) == 0);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct safetensors_tensor *x = &a->tensors[i], *y = safetensors_find_tensor(b, x->name);

        require(y && x->dtype == y->dtype && x->n_dims == y->n_dims &&
                x->end - x->begin == y->end - y->begin);
    }
}

static void require_round_trip(const struct safetensors *st, uint8_t *data)
{
    _cleanup_free_ struct crw_tensor *tensors = calloc(st->n_tensors + 1, sizeof(*tensors));
    _cleanup_free_ struct crw_pair *pairs = calloc(st->n_strings + 1, sizeof(*pairs));
    _cleanup_(buf_finish) struct buf written = {0};
    struct safetensors again;
    const char *why;

    require(tensors && pairs);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct safetensors_tensor *t = &st->tensors[i];

        tensors[i] = (struct crw_tensor){.name = t->name, .dtype = t->dtype, .n_dims = t->n_dims};
        memcpy(tensors[i].dims, t->dims, sizeof(tensors[i].dims));
        tensors[i].data = data + st->data_at + t->begin;
    }
    for (size_t i = 0; i < st->n_strings; i++)
        pairs[i] = (struct crw_pair){st->strings[i].key, st->strings[i].value};
    require(safetensors_encode(tensors, st->n_tensors, pairs, st->n_strings, &written, &why) == 0);
    require(safetensors_parse(buf_bytes(&written), buf_size(&written), &again, &why) == 0);
    require_tiling(&again, buf_size(&written));
    require_same(st, &again);
    safetensors_finish(&again);
}

static int crc_of(void *data, uint64_t at, uint64_t n, uint32_t *ret_crc)
{
    *ret_crc = crw_crc32c(0, (const uint8_t *)data + at, (size_t)n);
    return 0;
}

static void check_snapshot(uint8_t *data, size_t size)
{
    const struct snapshot_bytes bytes = {crc_of, data};
    char why[SNAPSHOT_WHY_MAX];
    struct safetensors st;
    uint64_t step;

    if (snapshot_image_check(data, size, &bytes, &st, &step, why) != 0)
        return;
    safetensors_finish(&st);
    data[step % size] ^= (uint8_t)(1u << step / size % 8);
    require(snapshot_image_check(data, size, &bytes, &st, &step, why) == SNAPSHOT_IMAGE_E_DAMAGED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_free_ uint8_t *copy = malloc(size ? size : 1);
    struct safetensors st;
    const char *why;

    require(copy);
    memcpy(copy, data, size);
    if (safetensors_parse(copy, size, &st, &why) == 0) {
        require_tiling(&st, size);
        require_strings(&st, copy);
        require_round_trip(&st, copy);
        safetensors_finish(&st);
        check_snapshot(copy, size);
    }
    return 0;
}
