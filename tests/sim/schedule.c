#include "tests/sim/schedule.h"

#include <stdio.h>
#include <stdlib.h>

void schedule_finish(struct schedule *s)
{
    free(s->heap);
    *s = (struct schedule){0};
}

static bool before(const struct moment *a, const struct moment *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->serial < b->serial;
}

static void make_room(struct schedule *s)
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

void schedule_add(struct schedule *s, uint64_t at_ns, uint32_t kind, uint32_t who, uint64_t detail)
{
    struct moment m = {.at_ns = at_ns, .serial = s->n_serials++, .kind = kind, .who = who, .detail = detail};
    size_t at;

    make_room(s);
    at = s->n++;
    while (at > 0 && before(&m, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = m;
}

bool schedule_next(struct schedule *s, struct moment *ret)
{
    struct moment last;
    size_t at = 0;

    if (s->n == 0)
        return false;
    *ret = s->heap[0];
    last = s->heap[--s->n];
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= s->n)
            break;
        if (child + 1 < s->n && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return true;
}
