#include "launcher/watch/slow.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "launcher/watch/hang_report.h"

/* ---- the values ---- */

static int compare_shares(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

void slow_sort(int32_t *shares, size_t n)
{
    qsort(shares, n, sizeof(*shares), compare_shares);
}

/* The lower median of the others is the middle share or, for a rank up to the middle, the share behind the middle. */
int32_t slow_awaited(const int32_t *sorted, size_t n, int32_t share)
{
    size_t middle = (n - 2) / 2;

    if (n < 2)
        return -1;
    return sorted[middle] < share ? 0 : sorted[middle + 1] - share;
}

/* ---- the line ---- */

bool slow_is_due(const struct slow *s, uint64_t now_ns)
{
    return !s->checked_ns || now_ns - s->checked_ns >= SLOW_CHECK_NS;
}

/* NULL: as many ranks as have room were slow in the last SLOW_AGAIN_NS. */
static struct slow_rank *find_rank(struct slow *s, int rank, uint64_t now_ns)
{
    struct slow_rank *empty = NULL;

    for (size_t i = 0; i < SLOW_RANKS; i++) {
        struct slow_rank *r = &s->ranks[i];

        if (r->n_times > 0 && r->rank == rank)
            return r;
        if (r->n_times == 0 || now_ns - r->slow_ns > SLOW_AGAIN_NS)
            empty = r;
    }
    if (empty)
        *empty = (struct slow_rank){.rank = rank};
    return empty;
}

/* Returns whether a line is due. */
static bool note_slow(struct slow *s, struct slow_rank *r, bool in_a_row, uint64_t now_ns)
{
    r->n_times = in_a_row ? r->n_times + 1 : 1;
    r->slow_ns = now_ns;
    s->n_slow += r->n_times >= SLOW_TIMES;
    return r->n_times >= SLOW_TIMES && (!r->line_ns || now_ns - r->line_ns >= SLOW_AGAIN_NS);
}

static int32_t share_of(const struct hang_rank *r)
{
    return r->n_waits >= SLOW_WAITS || r->waits_percent < 0 ? r->waits_percent : 0;
}

static const struct hang_rank *choose_line(struct slow *s, uint64_t now_ns, const struct hang_rank *ranks,
                                           size_t n_ranks, const int32_t *sorted, size_t n_known)
{
    const struct hang_rank *found = NULL;
    struct slow_rank *found_slow = NULL;
    uint64_t before_ns = now_ns - s->checked_ns < 2 * SLOW_CHECK_NS ? s->checked_ns : now_ns;

    s->checked_ns = now_ns;
    s->n_slow = s->percent = 0;
    for (size_t i = 0; i < n_ranks; i++) {
        int32_t share = share_of(&ranks[i]), awaited = share < 0 ? -1 : slow_awaited(sorted, n_known, share);
        struct slow_rank *r = awaited >= SLOW_LINE_PERCENT ? find_rank(s, ranks[i].rank, now_ns) : NULL;

        if (!r || !note_slow(s, r, r->slow_ns == before_ns, now_ns) || awaited <= s->percent)
            continue;
        found = &ranks[i];
        found_slow = r;
        s->percent = awaited;
    }
    if (found_slow)
        found_slow->line_ns = now_ns;
    return found;
}

const struct hang_rank *slow_step(struct slow *s, uint64_t now_ns, const struct hang_rank *ranks,
                                  size_t n_ranks)
{
    _cleanup_free_ int32_t *shares = malloc((n_ranks + 1) * sizeof(*shares));
    size_t n_known = 0;

    if (!shares || !slow_is_due(s, now_ns))
        return NULL;
    for (size_t i = 0; i < n_ranks; i++)
        if (share_of(&ranks[i]) >= 0)
            shares[n_known++] = share_of(&ranks[i]);
    slow_sort(shares, n_known);
    return choose_line(s, now_ns, ranks, n_ranks, shares, n_known);
}

void slow_text(const struct slow *s, const struct hang_rank *rank, char *out, size_t size)
{
    bool has_text = rank->text[0] && rank->activity != ACTIVITY_COMPUTES && rank->activity != ACTIVITY_WAITS;
    char more[48] = "";

    if (s->n_slow > 1)
        (void)snprintf(more, sizeof(more), " and %d more", s->n_slow - 1); /* fits */
    (void)snprintf(out, size,
                   "slow: the other ranks have waited for rank %d on %s%s%s%s%s for %d %% of the last minute",
                   rank->rank, rank->host, has_text ? " (" : "", has_text ? rank->text : "",
                   has_text ? ")" : "", more, (int)s->percent);
}
