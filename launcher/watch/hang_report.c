#include "launcher/watch/hang_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/strbuf.h"

enum {
    WAITS_MAX = 8,
    WAITS_SHOWN = 2,
    /* Beside the headline, a line for ranks at other places, one from NCCL, one for nodes that are silent, and a hint. */
    GROUPS_SHOWN = HANG_LINES_MAX - 5 - WAITS_SHOWN,
    RANKS_TEXT_SIZE = 120
};

/* ---- groups ---- */

bool hang_is_blocked(uint32_t state)
{
    return state == 'D' || state == 'T' || state == 't';
}

/* Equal: at the same place. */
static int compare_places(const struct hang_rank *a, const struct hang_rank *b)
{
    if (a->has_ended != b->has_ended)
        return a->has_ended - b->has_ended;
    if (a->is_awaited != b->is_awaited)
        return a->is_awaited - b->is_awaited;
    if (hang_is_blocked(a->state) != hang_is_blocked(b->state) ||
        (hang_is_blocked(a->state) && a->state != b->state))
        return a->state - b->state;
    if (a->child_state != b->child_state)
        return a->child_state - b->child_state;
    return a->kind != b->kind ? (int)a->kind - (int)b->kind : strcmp(a->text, b->text);
}

/* ---- counted collectives ---- */

static const char *collective_name(enum worker_collective_kind kind)
{
    static const char *const names[WORKER_COLLECTIVE_KIND_COUNT] = {
        [WORKER_COLLECTIVE_NONE] = "none",
        [WORKER_COLLECTIVE_BARRIER] = "barrier",
        [WORKER_COLLECTIVE_BROADCAST] = "broadcast",
        [WORKER_COLLECTIVE_ALL_GATHER] = "all-gather",
        [WORKER_COLLECTIVE_GATHER] = "gather",
        [WORKER_COLLECTIVE_SCATTER] = "scatter",
        [WORKER_COLLECTIVE_ALL_REDUCE] = "all-reduce",
        [WORKER_COLLECTIVE_REDUCE_SCATTER] = "reduce-scatter",
        [WORKER_COLLECTIVE_REDUCE] = "reduce",
    };

    return kind < WORKER_COLLECTIVE_KIND_COUNT ? names[kind] : "collective";
}

const struct hang_collective *hang_waits_in(const struct hang_rank *r)
{
    for (size_t i = 0; i < r->n_collectives; i++)
        if (r->collectives[i].kind != WORKER_COLLECTIVE_NONE)
            return &r->collectives[i];
    return NULL;
}

static void take_records(struct hang_rank *rank, const uint8_t *records, size_t n, bool waiting)
{
    struct worker_collective c;

    for (size_t i = 0; i < n && rank->n_collectives < HANG_COLLECTIVES_MAX; i++) {
        memcpy(&c, records + i * sizeof(c), sizeof(c));
        if (c.group == 0 || (int64_t)c.pid != rank->pid || (c.kind != WORKER_COLLECTIVE_NONE) != waiting)
            continue;
        rank->collectives[rank->n_collectives++] =
            (struct hang_collective){.group = c.group,
                                     .number = c.number,
                                     .kind = (enum worker_collective_kind)c.kind,
                                     .n_ranks = c.n_ranks,
                                     .is_world = c.is_world == 1};
    }
}

void hang_add_collectives(struct hang_rank *rank, const void *records, size_t n)
{
    rank->n_collectives = 0;
    take_records(rank, records, n, true);
    take_records(rank, records, n, false);
    const struct hang_collective *c = hang_waits_in(rank);
    if (!c)
        return;
    rank->kind = STACK_COLLECTIVE;
    (void)snprintf(rank->text, sizeof(rank->text), "in %s, collective %llu of %s", collective_name(c->kind),
                   (unsigned long long)c->number, c->is_world ? "all ranks" : "its group"); /* fits */
}

/* A collective in which ranks wait for others. */
struct hang_wait {
    struct hang_collective of; /* of the rank furthest on */
    size_t n_missing;
};

static bool is_missing(const struct hang_rank *r, const struct hang_collective *of)
{
    for (size_t i = 0; i < r->n_collectives; i++)
        if (r->collectives[i].group == of->group)
            return r->collectives[i].number < of->number;
    return of->is_world && r->n_collectives < HANG_COLLECTIVES_MAX;
}

static void add_wait(struct hang_wait *waits, size_t *n, const struct hang_collective *of)
{
    size_t i = 0;

    while (i < *n && waits[i].of.group != of->group)
        i++;
    if (i == WAITS_MAX)
        return;
    if (i == *n)
        waits[(*n)++] = (struct hang_wait){.of = *of};
    else if (of->number > waits[i].of.number)
        waits[i].of = *of;
}

/* Keeps collectives with a missing rank. Returns how many. */
static size_t find_waits(const struct hang_rank *ranks, size_t n_ranks, struct hang_wait waits[WAITS_MAX])
{
    size_t n = 0, n_kept = 0;

    for (size_t i = 0; i < n_ranks; i++)
        for (size_t k = 0; k < ranks[i].n_collectives; k++)
            if (ranks[i].collectives[k].kind != WORKER_COLLECTIVE_NONE)
                add_wait(waits, &n, &ranks[i].collectives[k]);
    for (size_t w = 0; w < n; w++) {
        for (size_t i = 0; i < n_ranks; i++)
            waits[w].n_missing += is_missing(&ranks[i], &waits[w].of);
        if (waits[w].n_missing > 0)
            waits[n_kept++] = waits[w];
    }
    return n_kept;
}

/* Facts about all ranks, to compare each rank with. */
struct hang_majority {
    bool any_in_loop, any_known;
    size_t n_largest; /* collective group */
    size_t n_ranks, n_ended, n_waiting;
    struct hang_wait waits[WAITS_MAX];
    size_t n_waits;
};

static struct hang_majority survey(const struct hang_rank *ranks, size_t n_ranks)
{
    struct hang_majority m = {.n_largest = 0};

    m.n_waits = find_waits(ranks, n_ranks, m.waits);
    for (size_t i = 0; i < n_ranks; i++) {
        m.any_known |= ranks[i].kind != STACK_UNKNOWN;
        m.any_in_loop |= !ranks[i].has_ended && ranks[i].kind != STACK_DESTROY;
        m.n_ended += ranks[i].has_ended;
        m.n_waiting += ranks[i].kind == STACK_COLLECTIVE && !ranks[i].has_ended;
    }
    m.n_ranks = n_ranks;
    return m;
}

/* Where a majority is missing, an absence alone is no fault. */
static bool is_waited_for(const struct hang_rank *r, const struct hang_majority *m)
{
    for (size_t i = 0; i < m->n_waits; i++)
        if (is_missing(r, &m->waits[i].of) && (hang_waits_in(r) || m->waits[i].n_missing <= m->n_ranks / 2))
            return true;
    return false;
}

/* Less than half of the ranks have begun the collective: the majority waits elsewhere, perhaps for the rank. */
static bool waits_for_most(const struct hang_rank *r, const struct hang_majority *m)
{
    const struct hang_collective *c = hang_waits_in(r);

    for (size_t i = 0; c && i < m->n_waits; i++)
        if (m->waits[i].of.group == c->group)
            return m->waits[i].n_missing > m->n_ranks / 2;
    return false;
}

static int suspicion_of(const struct hang_rank *r, size_t n_together, const struct hang_majority *m)
{
    if (r->has_ended) /* a majority of ended ranks waits for the rest */
        return m->any_in_loop && m->n_ended <= m->n_waiting ? 80 : 0;
    if (r->state == 'T' || r->state == 't')
        return 100;
    if (r->state == 'D')
        return 95;
    if (r->child_state)
        return 90;
    if (r->is_awaited)
        return 88;
    if (r->kind == STACK_COLLECTIVE && !hang_waits_in(r) && n_together > m->n_ranks / 2)
        return 0; /* part of a majority in an uncounted call */
    if (m->n_waits > 0 && is_waited_for(r, m))
        return hang_waits_in(r) ? 45 : 85;
    if (m->n_waits > 0 && hang_waits_in(r))
        return waits_for_most(r, m) ? 40 : 0;
    if (r->kind == STACK_UNKNOWN && (r->activity == ACTIVITY_READS || r->activity == ACTIVITY_WRITES))
        return 30;                /* the main thread may wait for the others as well as for the transfer */
    if (r->kind == STACK_UNKNOWN) /* the tool was too slow: no fact about the rank */
        return m->any_known ? -1 : 0;
    if (r->kind == STACK_DESTROY)
        return m->any_in_loop ? 70 : 0;
    if (r->kind == STACK_COLLECTIVE)
        return n_together < m->n_largest ? 40 : 0;
    return m->n_waiting > 0 ? 60 : 10;
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

static int compare_keys_by_place(const void *a, const void *b)
{
    const struct sort_key *x = a, *y = b;
    int r = compare_places(&x->rank, &y->rank);

    return r ? r : x->rank.rank - y->rank.rank;
}

/* How many ranks are at the place of each, and the lowest of them. Returns the size of the largest collective group. */
static size_t count_together(struct sort_key *keys, size_t n)
{
    size_t n_largest = 0;

    qsort(keys, n, sizeof(*keys), compare_keys_by_place);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && compare_places(&keys[i].rank, &keys[end].rank) == 0; end++)
            ;
        for (size_t k = i; k < end; k++) {
            keys[k].n_together = end - i;
            keys[k].first = keys[i].rank.rank;
        }
        if (keys[i].rank.kind == STACK_COLLECTIVE && !keys[i].rank.has_ended && end - i > n_largest)
            n_largest = end - i;
    }
    return n_largest;
}

/* Without memory the order stays. */
bool hang_sort(struct hang_rank *ranks, size_t n_ranks)
{
    _cleanup_free_ struct sort_key *keys = n_ranks ? calloc(n_ranks, sizeof(*keys)) : NULL;
    struct hang_majority m = survey(ranks, n_ranks);

    if (!keys)
        return false;
    for (size_t i = 0; i < n_ranks; i++)
        keys[i].rank = ranks[i];
    m.n_largest = count_together(keys, n_ranks);
    for (size_t i = 0; i < n_ranks; i++)
        keys[i].suspicion = suspicion_of(&keys[i].rank, keys[i].n_together, &m);
    qsort(keys, n_ranks, sizeof(*keys), compare_keys);
    for (size_t i = 0; i < n_ranks; i++)
        ranks[i] = keys[i].rank;
    const struct sort_key *last = &keys[n_ranks - 1];
    while (last > keys && last->suspicion < 0)
        last--;
    return keys[0].n_together < n_ranks &&
           (keys[0].suspicion > last->suspicion || keys[0].n_together < last->n_together);
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

static const char *state_text(uint32_t state)
{
    if (state == 'T' || state == 't')
        return "stopped by a signal, ";
    return state == 'D' ? "blocked in the kernel (state D), " : "";
}

/* With the state in front of a stack; words about the state, as of a look, are not repeated. */
static void add_place(struct strbuf *t, const struct hang_rank *r)
{
    const char *state = r->activity ? "" : state_text(r->state), *text = r->text;

    if (strncmp(text, "is ", 3) == 0 && *state && strncmp(text + 3, state, strcspn(state, " ,")) == 0)
        strbuf_add(t, ": %s", text + 3);
    else
        strbuf_add(t, ": %s%s", state, text[0] ? text : "no stack to be had");
}

/* Hosts; the process of a single rank. */
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
        add_place(t, &ranks[0]);
    if (ranks[0].child_state)
        strbuf_add(t, "; its process %lld (%s) is %s", (long long)ranks[0].child_pid, ranks[0].child_name,
                   ranks[0].child_state == 'D' ? "blocked in the kernel (state D)" : "stopped by a signal");
    strbuf_add(t, "\n");
}

static int compare_numbers(const void *a, const void *b)
{
    const struct hang_rank *x = a, *y = b;

    return x->rank - y->rank;
}

/* "  all-reduce, collective 12 of all 8 ranks: rank 3 is missing" */
static void add_wait_line(struct strbuf *t, const struct hang_wait *wait, const struct hang_rank *ranks,
                          size_t n_ranks)
{
    _cleanup_free_ struct hang_rank *missing = calloc(wait->n_missing, sizeof(*missing));
    char names[RANKS_TEXT_SIZE];
    size_t n = 0;

    for (size_t i = 0; missing && i < n_ranks && n < wait->n_missing; i++)
        if (is_missing(&ranks[i], &wait->of))
            missing[n++] = ranks[i];
    if (n) {
        qsort(missing, n, sizeof(*missing), compare_numbers);
        format_ranks(missing, n, names);
        strbuf_add(t, "  %s, collective %llu of %s%u ranks: %s %s missing\n", collective_name(wait->of.kind),
                   (unsigned long long)wait->of.number, wait->of.is_world ? "all " : "a group of ",
                   wait->of.n_ranks, names, n == 1 ? "is" : "are");
    }
}

static void add_wait_lines(struct strbuf *t, const struct hang_rank *ranks, size_t n_ranks)
{
    struct hang_wait waits[WAITS_MAX];
    size_t n = find_waits(ranks, n_ranks, waits);

    for (size_t i = 0; i < n && i < WAITS_SHOWN; i++)
        add_wait_line(t, &waits[i], ranks, n_ranks);
}

size_t hang_count_groups(const struct hang_rank *ranks, size_t n_ranks)
{
    size_t n = n_ranks > 0;

    for (size_t i = 1; i < n_ranks; i++)
        n += compare_places(&ranks[i - 1], &ranks[i]) != 0;
    return n;
}

char *hang_text(const struct hang_rank *ranks, size_t n_ranks, bool stands_out)
{
    struct strbuf t = {0};
    size_t n_shown = 0;

    for (size_t i = 0, end; i < n_ranks; i = end) {
        for (end = i + 1; end < n_ranks && compare_places(&ranks[i], &ranks[end]) == 0; end++)
            ;
        if (n_shown++ == GROUPS_SHOWN) {
            strbuf_add(&t, "  %zu more ranks at other places\n", n_ranks - i);
            break;
        }
        add_group(&t, ranks + i, end - i, stands_out && i == 0);
    }
    add_wait_lines(&t, ranks, n_ranks);
    return strbuf_steal(&t);
}
