#include "worker-runtime/checkpoint/snapshot_fence.h"

#include "base/decimal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char head[] = "crun snapshot fence 1\n";

/* Moves behind "WORD VALUE\n"; false: that is not there. */
static bool take_line(const char **text, const char *word, char *value, size_t size)
{
    size_t n = strlen(word), length;

    if (strncmp(*text, word, n) != 0 || (*text)[n] != ' ')
        return false;
    length = strcspn(*text + n + 1, "\n ");
    if (length == 0 || length >= size || (*text)[n + 1 + length] != '\n')
        return false;
    memcpy(value, *text + n + 1, length);
    value[length] = 0;
    *text += n + 1 + length + 1;
    return true;
}

bool snapshot_fence_parse(const char *text, size_t n, struct snapshot_fence *ret)
{
    char copy[SNAPSHOT_FENCE_TEXT_MAX + 1], number[16];
    const char *at = copy;
    uint64_t generation;

    *ret = (struct snapshot_fence){0};
    if (n > SNAPSHOT_FENCE_TEXT_MAX || memchr(text, 0, n) || n < sizeof(head) - 1 ||
        memcmp(text, head, sizeof(head) - 1) != 0)
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    at += sizeof(head) - 1;
    if (take_line(&at, "instance", ret->owner.instance, sizeof(ret->owner.instance)) &&
        take_line(&at, "generation", number, sizeof(number)) &&
        decimal_parse(number, 0, INT32_MAX, &generation)) {
        ret->owner.generation = (uint32_t)generation;
        while (ret->n_ended < SNAPSHOT_FENCE_ENDED_MAX &&
               take_line(&at, "ended", ret->ended[ret->n_ended], RUN_INSTANCE_SIZE))
            ret->n_ended++;
        if (*at == 0)
            return true;
    }
    *ret = (struct snapshot_fence){0};
    return false;
}

size_t snapshot_fence_format(const struct snapshot_fence *f, char ret[SNAPSHOT_FENCE_TEXT_MAX])
{
    size_t n = (size_t)snprintf(ret, SNAPSHOT_FENCE_TEXT_MAX, "%sinstance %s\ngeneration %" PRIu32 "\n", head,
                                f->owner.instance, f->owner.generation);

    for (size_t i = 0; i < f->n_ended; i++)
        n += (size_t)snprintf(ret + n, SNAPSHOT_FENCE_TEXT_MAX - n, "ended %s\n", f->ended[i]); /* fits */
    return n;
}

static bool has_ended(const struct snapshot_fence *f, const char *instance)
{
    for (size_t i = 0; i < f->n_ended; i++)
        if (strcmp(f->ended[i], instance) == 0)
            return true;
    return false;
}

static void end_owner(struct snapshot_fence *f)
{
    size_t n_kept = f->n_ended < SNAPSHOT_FENCE_ENDED_MAX ? f->n_ended : SNAPSHOT_FENCE_ENDED_MAX - 1;

    memmove(f->ended[1], f->ended[0], n_kept * sizeof(f->ended[0]));
    memcpy(f->ended[0], f->owner.instance, sizeof(f->ended[0]));
    f->n_ended = n_kept + 1;
}

enum snapshot_fence_result snapshot_fence_pass(struct snapshot_fence *f, const struct run_identity *writer,
                                               bool claims)
{
    bool is_free = f->owner.instance[0] == 0;

    if (!is_free && strcmp(f->owner.instance, writer->instance) == 0) {
        if (f->owner.generation == writer->generation)
            return SNAPSHOT_FENCE_OURS;
        if (f->owner.generation > writer->generation)
            return SNAPSHOT_FENCE_LATER_GENERATION;
    } else if (!is_free) {
        if (!claims || has_ended(f, writer->instance))
            return SNAPSHOT_FENCE_LATER_RUN;
        end_owner(f);
    }
    f->owner = *writer;
    return SNAPSHOT_FENCE_CHANGED;
}
