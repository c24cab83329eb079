#include "tests/sim/schedule.h"

#include <stdio.h>
#include <stdlib.h>

void schedule_finish(struct schedule *s)
{
    free(s->heap);
    *s = (struct schedule){0};
}

/* Without a branch: which of two moments is earlier cannot be predicted, and this is what a run does most. */
static size_t before(const struct moment *a, const struct moment *b)
{
    return (size_t)((a->at_ns < b->at_ns) | ((a->at_ns == b->at_ns) & (a->serial < b->serial)));
}

static void grow_schedule(struct schedule *s)
{
    if (s->n < s->capacity)
        return;
    s->capacity = s->capacity ? s->capacity * 2 : 1024;
    s->heap = realloc(s->heap, s->capacity * sizeof(*s->heap));
    if (!s->heap) {
        fputs("sim: no memory\n", stderr);
        exit(2);
    }
}

/* A heap in which each moment has four that follow it: half as deep as one with two. */
enum { WAYS = 4 };

static void rise(struct schedule *s, size_t at, const struct moment *m)
{
    while (at > 0 && before(m, &s->heap[(at - 1) / WAYS])) {
        s->heap[at] = s->heap[(at - 1) / WAYS];
        at = (at - 1) / WAYS;
    }
    s->heap[at] = *m;
}

static void add_moment(struct schedule *s, const struct moment *m)
{
    grow_schedule(s);
    rise(s, s->n++, m);
}

void schedule_add(struct schedule *s, uint64_t at_ns, uint32_t kind, uint32_t who, uint64_t detail)
{
    add_moment(s, &(struct moment){
                      .at_ns = at_ns, .serial = s->n_serials++, .kind = kind, .who = who, .detail = detail});
}

void schedule_add_last(struct schedule *s, uint64_t at_ns, uint32_t kind, uint32_t who, uint64_t detail)
{
    add_moment(s, &(struct moment){.at_ns = at_ns,
                                   .serial = s->n_serials++ | UINT64_C(1) << 63,
                                   .kind = kind,
                                   .who = who,
                                   .detail = detail});
}

/* The earliest of four neighbours. */
static size_t earliest(const struct moment *heap, size_t first)
{
    size_t a = first + before(&heap[first + 1], &heap[first]);
    size_t b = first + 2 + before(&heap[first + 3], &heap[first + 2]);
    size_t later = (size_t)0 - before(&heap[b], &heap[a]);

    return (a & ~later) | (b & later);
}

bool schedule_next(struct schedule *s, struct moment *ret)
{
    struct moment last;
    size_t at = 0, child = 1;

    if (s->n == 0)
        return false;
    *ret = s->heap[0];
    last = s->heap[--s->n];
    /* The hole goes down to the end, and what was last rises from there: it mostly stays. */
    for (; child + WAYS <= s->n; at = child, child = WAYS * at + 1) {
        child = earliest(s->heap, child);
        s->heap[at] = s->heap[child];
    }
    for (size_t i = child + 1; i < s->n && child < s->n; i++)
        child = before(&s->heap[i], &s->heap[child]) ? i : child;
    if (child < s->n) {
        s->heap[at] = s->heap[child];
        at = child;
    }
    if (s->n > 0)
        rise(s, at, &last);
    return true;
}
