#include "launcher/watch/hang_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/util/strbuf.h"

enum { GROUPS_SHOWN = HANG_LINES_MAX - 2, RANKS_TEXT_SIZE = 120 };

/* ---- groups ---- */

bool hang_is_blocked(char state)
{
    return state == 'D' || state == 'T' || state == 't';
}

static bool are_together(const struct hang_rank *a, const struct hang_rank *b)
{
    return a->has_ended == b->has_ended && hang_is_blocked(a->state) == hang_is_blocked(b->state) &&
           (!hang_is_blocked(a->state) || a->state == b->state) && a->child_state == b->child_state &&
           a->kind == b->kind && strcmp(a->text, b->text) == 0;
}

static size_t count_together(const struct hang_rank *ranks, size_t n_ranks, const struct hang_rank *rank)
{
    size_t n = 0;

    for (size_t i = 0; i < n_ranks; i++)
        n += are_together(&ranks[i], rank);
    return n;
}

/* What all ranks are compared with. */
struct hang_majority {
    bool any_collective, any_in_loop, any_known;
    size_t n_largest; /* collective group */
};

static struct hang_majority survey(const struct hang_rank *ranks, size_t n_ranks)
{
    struct hang_majority m = {.n_largest = 0};

    for (size_t i = 0; i < n_ranks; i++) {
        size_t n = count_together(ranks, n_ranks, &ranks[i]);

        m.any_known |= ranks[i].kind != STACK_UNKNOWN;
        m.any_in_loop |= !ranks[i].has_ended && ranks[i].kind != STACK_DESTROY;
        if (ranks[i].kind != STACK_COLLECTIVE || ranks[i].has_ended)
            continue;
        m.any_collective = true;
        if (n > m.n_largest)
            m.n_largest = n;
    }
    return m;
}

static int suspicion_of(const struct hang_rank *r, size_t n_together, const struct hang_majority *m)
{
    if (r->has_ended)
        return m->any_in_loop ? 80 : 0;
    if (r->state == 'T' || r->state == 't')
        return 100;
    if (r->state == 'D')
        return 95;
    if (r->child_state)
        return 90;
    if (r->kind == STACK_UNKNOWN) /* the tool was too slow: that is nothing about the rank */
        return m->any_known ? -1 : 0;
    if (r->kind == STACK_DESTROY)
        return m->any_in_loop ? 70 : 0;
    if (r->kind == STACK_COLLECTIVE)
        return n_together < m->n_largest ? 40 : 0;
    return m->any_collective ? 60 : 10;
}

/* ---- order ---- */

struct sort_key {
    int suspicion;
    size_t n_together;
    int first; /* the lowest rank of the group */
    struct hang_rank rank;
};

static int compare_keys(const void *a, const void *b)
{
    const struct sort_key *x = a, *y = b;

    if (x->suspicion != y->suspicion)
        return y->suspicion - x->suspicion;
    if (x->n_together != y->n_together)
        return x->n_together < y->n_together ? -1 : 1;
    if (x->first != y->first)
        return x->first - y->first;
    return x->rank.rank - y->rank.rank;
}

static int first_rank_together(const struct hang_rank *ranks, size_t n_ranks, const struct hang_rank *rank)
{
    int first = rank->rank;

    for (size_t i = 0; i < n_ranks; i++)
        if (ranks[i].rank < first && are_together(&ranks[i], rank))
            first = ranks[i].rank;
    return first;
}

/* Without memory the order stays. */
bool hang_sort(struct hang_rank *ranks, size_t n_ranks)
{
    struct sort_key *keys = n_ranks ? calloc(n_ranks, sizeof(*keys)) : NULL;
    struct hang_majority m = survey(ranks, n_ranks);

    if (!keys)
        return false;
    for (size_t i = 0; i < n_ranks; i++) {
        keys[i].rank = ranks[i];
        keys[i].n_together = count_together(ranks, n_ranks, &ranks[i]);
        keys[i].first = first_rank_together(ranks, n_ranks, &ranks[i]);
        keys[i].suspicion = suspicion_of(&ranks[i], keys[i].n_together, &m);
    }
    qsort(keys, n_ranks, sizeof(*keys), compare_keys);
    for (size_t i = 0; i < n_ranks; i++)
        ranks[i] = keys[i].rank;
    const struct sort_key *last = &keys[n_ranks - 1];
    while (last > keys && last->suspicion < 0)
        last--;
    bool stands_out = keys[0].n_together < n_ranks &&
                      (keys[0].suspicion > last->suspicion || keys[0].n_together < last->n_together);
    free(keys);
    return stands_out;
}

/* ---- text ---- */

/* "ranks 0-2, 5" of the first n. */
static void format_ranks(const struct hang_rank *ranks, size_t n, char out[RANKS_TEXT_SIZE])
{
    int at = snprintf(out, RANKS_TEXT_SIZE, n == 1 ? "rank" : "ranks");

    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && ranks[end].rank == ranks[end - 1].rank + 1; end++)
            ;
        if (at > RANKS_TEXT_SIZE - 40) {
            (void)snprintf(out + at, (size_t)(RANKS_TEXT_SIZE - at), ", ..."); /* fits */
            return;
        }
        at += snprintf(out + at, (size_t)(RANKS_TEXT_SIZE - at), end - i > 1 ? "%s %d-%d" : "%s %d",
                       i ? "," : "", ranks[i].rank, ranks[end - 1].rank);
    }
}

static const char *state_text(char state)
{
    if (state == 'T' || state == 't')
        return "stopped by a signal, ";
    return state == 'D' ? "blocked in the kernel (state D), " : "";
}

/* Which hosts: of one rank with its process. */
static void add_hosts(struct strbuf *t, const struct hang_rank *ranks, size_t n)
{
    size_t n_hosts = 1;

    for (size_t i = 1; i < n; i++)
        n_hosts += strcmp(ranks[i].host, ranks[i - 1].host) != 0;
    if (n == 1 && !ranks[0].has_ended)
        strbuf_add(t, " on %s (pid %lld)", ranks[0].host, (long long)ranks[0].pid);
    else if (n_hosts == 1)
        strbuf_add(t, " on %s", ranks[0].host);
    else
        strbuf_add(t, " on %zu nodes", n_hosts);
}

static void add_group(struct strbuf *t, const struct hang_rank *ranks, size_t n, bool stands_out)
{
    char names[RANKS_TEXT_SIZE];

    format_ranks(ranks, n, names);
    strbuf_add(t, "  %s", names);
    add_hosts(t, ranks, n);
    if (stands_out)
        strbuf_add(t, " %s", n == 1 ? "stands out" : "stand out");
    if (ranks[0].has_ended)
        strbuf_add(t, ": ended with success");
    else
        strbuf_add(t, ": %s%s", state_text(ranks[0].state),
                   ranks[0].text[0] ? ranks[0].text : "no stack to be had");
    if (ranks[0].child_state)
        strbuf_add(t, "; its process %lld is %s", (long long)ranks[0].child_pid,
                   ranks[0].child_state == 'D' ? "blocked in the kernel (state D)" : "stopped by a signal");
    strbuf_add(t, "\n");
}

char *hang_text(const struct hang_rank *ranks, size_t n_ranks, bool stands_out)
{
    struct strbuf t = {0};
    size_t n_shown = 0;

    for (size_t i = 0, end; i < n_ranks; i = end) {
        for (end = i + 1; end < n_ranks && are_together(&ranks[i], &ranks[end]); end++)
            ;
        if (n_shown++ == GROUPS_SHOWN) {
            strbuf_add(&t, "  %zu more ranks at other places\n", n_ranks - i);
            break;
        }
        add_group(&t, ranks + i, end - i, stands_out && i == 0);
    }
    return strbuf_steal(&t);
}
