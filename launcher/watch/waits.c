#include "launcher/watch/waits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NS_PER_MS = 1000000, LOOK_NS = 1000000000, STEPS_LEARNT = 2 };

#define LOOKS_MASK ((UINT64_C(1) << WAITS_LOOKS) - 1)

int waits_init(struct waits *w, int n_ranks)
{
    *w = (struct waits){.n_ranks = n_ranks, .ranks = calloc((size_t)n_ranks, sizeof(*w->ranks))};
    return w->ranks ? 0 : -ENOMEM;
}

void waits_finish(struct waits *w)
{
    free(w->ranks);
    w->ranks = NULL;
}

void waits_begin(struct waits *w)
{
    memset(w->ranks, 0, (size_t)w->n_ranks * sizeof(*w->ranks));
    w->look_ns = 0;
}

static void keep_wait(struct wait_rank *r, uint64_t length_ns)
{
    uint64_t ms = length_ns / NS_PER_MS;

    r->kept[r->n_waits++ % WAITS_KEPT] = ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static void end_wait(struct wait_rank *r, uint64_t now_ns, bool counts_steps)
{
    uint64_t length_ns = r->since_ns ? now_ns - r->since_ns : 0;

    r->since_ns = 0;
    if (length_ns > r->longest_ns)
        r->longest_ns = length_ns;
    if (!counts_steps && length_ns)
        keep_wait(r, length_ns);
}

static void note_steps(struct wait_rank *r, uint64_t step)
{
    if (step > r->step) {
        keep_wait(r, r->longest_ns);
        r->longest_ns = 0;
    }
    r->step = step;
}

static void take_sample(struct wait_rank *r, uint64_t now_ns, const struct wait_sample *s)
{
    if (!s->waits || s->moved || !s->is_alive)
        end_wait(r, now_ns, s->step > 0);
    note_steps(r, s->step);
    r->n_moves += r->has_waited && s->moved && r->n_moves < WAITS_MOVES;
    r->n_all_moves += s->moved && r->n_all_moves < WAITS_MOVES_UNSEEN;
    r->has_waited |= s->waits;
    if (s->waits && s->is_alive && !r->since_ns)
        r->since_ns = now_ns;
}

/* The part of the time since the last look that does not count. */
static uint64_t gap_ns(const struct waits *w, uint64_t now_ns)
{
    return w->look_ns && now_ns > w->look_ns + WAITS_GAP_NS ? now_ns - w->look_ns - WAITS_GAP_NS : 0;
}

uint64_t waits_length_ns(const struct waits *w, int rank, uint64_t now_ns)
{
    const struct wait_rank *r = &w->ranks[rank];
    uint64_t end_ns = now_ns - gap_ns(w, now_ns);

    return r->since_ns && end_ns > r->since_ns ? end_ns - r->since_ns : 0;
}

static int compare_lengths(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static uint64_t median_ns(const struct wait_rank *r)
{
    uint32_t sorted[WAITS_KEPT];
    size_t n = r->n_waits < WAITS_KEPT ? (size_t)r->n_waits : WAITS_KEPT;

    if (n == 0)
        return 0;
    memcpy(sorted, r->kept, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare_lengths);
    return (uint64_t)sorted[n / 2] * NS_PER_MS;
}

static uint64_t at_least_usual_ns(const struct wait_rank *r, uint64_t ns)
{
    uint64_t usual_ns = WAITS_FACTOR * median_ns(r);

    return usual_ns > ns ? usual_ns : ns;
}

uint64_t waits_limit_ns(const struct waits *w, int rank)
{
    const struct wait_rank *r = &w->ranks[rank];
    bool is_first = r->step < STEPS_LEARNT && r->n_waits < STEPS_LEARNT && r->n_moves < WAITS_MOVES &&
                    r->n_all_moves < WAITS_MOVES_UNSEEN;

    return at_least_usual_ns(r, is_first ? WAITS_FIRST_NS : WAITS_LEAST_NS);
}

int waits_count_unusual(const struct waits *w, uint64_t now_ns)
{
    int n = 0;

    for (int i = 0; i < w->n_ranks; i++)
        n += waits_length_ns(w, i, now_ns) >= waits_limit_ns(w, i);
    return n;
}

bool waits_any_longer(const struct waits *w, uint64_t length_ns, uint64_t now_ns)
{
    for (int i = 0; i < w->n_ranks; i++)
        if (waits_length_ns(w, i, now_ns) >= length_ns)
            return true;
    return false;
}

/* ---- the share ---- */

static uint64_t last_beat_of(const struct waits *w, const struct wait_sample *samples)
{
    uint64_t last = 0;

    for (int i = 0; i < w->n_ranks; i++)
        if (samples[i].is_alive && samples[i].beat_end && (!last || samples[i].beat_end < last))
            last = samples[i].beat_end;
    return last;
}

static bool is_ahead(const struct wait_rank *r, const struct wait_sample *s, uint64_t last_beat)
{
    uint64_t stride = r->beat_end && s->beat_end > r->beat_end ? s->beat_end - r->beat_end : 1;

    return s->rests && s->beat_end > last_beat && s->beat_end - last_beat <= stride;
}

static void note_look(struct wait_rank *r, const struct wait_sample *s, uint64_t last_beat)
{
    bool waits = s->waits_now || is_ahead(r, s, last_beat),
         begins = waits && (s->moved || !r->n_looks_waited);

    r->beat_end = s->beat_end;
    r->n_looks_waited = !waits ? 0 : begins ? 1 : r->n_looks_waited + 1;
    if (!s->is_alive || (uint64_t)r->n_looks_waited * LOOK_NS > at_least_usual_ns(r, WAITS_LEAST_NS))
        return;
    r->looks = r->looks << 1 | waits;
    r->begun = r->begun << 1 | begins;
    r->n_looks += r->n_looks < WAITS_LOOKS;
}

int waits_percent(const struct waits *w, int rank)
{
    const struct wait_rank *r = &w->ranks[rank];

    return r->n_looks < WAITS_LOOKS_LEAST ? -1
                                          : 100 * __builtin_popcountll(r->looks & LOOKS_MASK) / r->n_looks;
}

bool waits_any_share(const struct waits *w, int percent)
{
    for (int i = 0; i < w->n_ranks; i++)
        if (waits_percent(w, i) >= percent)
            return true;
    return false;
}

int waits_count_begun(const struct waits *w, int rank)
{
    return __builtin_popcountll(w->ranks[rank].begun & LOOKS_MASK);
}

void waits_step(struct waits *w, uint64_t now_ns, const struct wait_sample *samples)
{
    uint64_t last_beat = last_beat_of(w, samples), gap = gap_ns(w, now_ns);

    for (int i = 0; i < w->n_ranks; i++) {
        w->ranks[i].since_ns += w->ranks[i].since_ns ? gap : 0;
        take_sample(&w->ranks[i], now_ns, &samples[i]);
        note_look(&w->ranks[i], &samples[i], last_beat);
    }
    w->look_ns = now_ns;
}

void waits_end_look(struct waits *w, uint64_t now_ns)
{
    if (now_ns > w->look_ns)
        w->look_ns = now_ns - w->look_ns < WAITS_LOOK_MAX_NS ? now_ns : w->look_ns + WAITS_LOOK_MAX_NS;
}
