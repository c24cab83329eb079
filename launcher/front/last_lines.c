#include "launcher/front/last_lines.h"

#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

struct rank_lines {
    struct list entry;
    uint32_t rank;
    size_t n;
    char bytes[LAST_LINES_BYTES];
};

void last_lines_init(struct last_lines *l)
{
    for (size_t i = 0; i < LAST_LINES_BUCKETS; i++)
        list_init(&l->ranks[i]);
}

static void drop_rank(struct last_lines *l, struct rank_lines *r)
{
    if (!r)
        return;
    l->n[r->rank % LAST_LINES_BUCKETS]--;
    list_unlink(&r->entry);
    free(r);
}

void last_lines_finish(struct last_lines *l)
{
    for (size_t i = 0; i < LAST_LINES_BUCKETS; i++)
        while (!list_is_empty(&l->ranks[i]))
            drop_rank(l, list_entry(l->ranks[i].next, struct rank_lines, entry));
}

static struct rank_lines *find_rank(const struct last_lines *l, uint32_t rank)
{
    const struct list *bucket = &l->ranks[rank % LAST_LINES_BUCKETS];

    list_for_each_entry(struct rank_lines, r, bucket, entry)
    {
        if (r->rank == rank)
            return r;
    }
    return NULL;
}

void last_lines_forget(struct last_lines *l, uint32_t rank)
{
    drop_rank(l, find_rank(l, rank));
}

static struct rank_lines *add_rank(struct last_lines *l, uint32_t rank)
{
    struct list *bucket = &l->ranks[rank % LAST_LINES_BUCKETS];
    struct rank_lines *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    if (l->n[rank % LAST_LINES_BUCKETS] == LAST_LINES_RANKS)
        drop_rank(l, list_entry(bucket->next, struct rank_lines, entry));
    r->rank = rank;
    list_append(bucket, &r->entry);
    l->n[rank % LAST_LINES_BUCKETS]++;
    return r;
}

void last_lines_add(struct last_lines *l, uint32_t rank, const uint8_t *bytes, size_t n)
{
    struct rank_lines *r = find_rank(l, rank);
    size_t n_new = min_size(n, LAST_LINES_BYTES);

    if (!r)
        r = add_rank(l, rank);
    if (!r)
        return;
    size_t n_kept = min_size(r->n, LAST_LINES_BYTES - n_new);
    memmove(r->bytes, r->bytes + r->n - n_kept, n_kept);
    memcpy(r->bytes + n_kept, bytes + n - n_new, n_new);
    r->n = n_kept + n_new;
}

char *last_lines_get(const struct last_lines *l, uint32_t rank)
{
    const struct rank_lines *r = find_rank(l, rank);
    size_t n = r ? r->n : 0;

    while (n > 0 && r->bytes[n - 1] == '\n')
        n--;
    size_t from = n;
    for (int lines = 0; from > 0; from--)
        if (r->bytes[from - 1] == '\n' && ++lines == LAST_LINES_SHOWN)
            break;
    return n > 0 ? strndup(r->bytes + from, n - from) : NULL;
}
