#include "launcher/watch/progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES_PER_TIMEOUT = 12,
    LOOKS_PER_TIMEOUT = 6, /* at places */
    SLACK = 60,            /* a timer may be early by one part in so many of the time-out */
};
static const uint64_t interval_max_ns = 2000000000u, ticks_ns = 20000000u;

int progress_init(struct progress *p, uint64_t timeout_ns, int n_ranks)
{
    *p = (struct progress){.timeout_ns = timeout_ns, .n_ranks = n_ranks};
    p->ranks = calloc((size_t)n_ranks, sizeof(*p->ranks));
    return p->ranks ? 0 : -ENOMEM;
}

void progress_finish(struct progress *p)
{
    free(p->ranks);
    p->ranks = NULL;
}

void progress_begin(struct progress *p, uint64_t now_ns)
{
    memset(p->ranks, 0, (size_t)p->n_ranks * sizeof(*p->ranks));
    p->strong_ns = p->places_ns = p->sample_ns = now_ns;
    p->has_sample = p->is_reported = false;
}

uint64_t progress_interval_ns(const struct progress *p)
{
    uint64_t interval = p->timeout_ns / SAMPLES_PER_TIMEOUT;

    return p->timeout_ns && interval < interval_max_ns ? interval : interval_max_ns;
}

uint64_t progress_silence_ns(const struct progress *p, uint64_t now_ns)
{
    return now_ns > p->strong_ns ? now_ns - p->strong_ns : 0;
}

bool progress_wants_places(const struct progress *p, uint64_t now_ns)
{
    return p->timeout_ns && !p->is_reported && progress_silence_ns(p, now_ns) >= p->timeout_ns / 2 &&
           now_ns - p->places_ns >= p->timeout_ns / LOOKS_PER_TIMEOUT - p->timeout_ns / SLACK;
}

/* The end of a process takes its bytes from the sum: that moves, too. */
static uint64_t difference(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0 ? b - a : a - b;
}

static bool has_moved_bytes(struct progress_rank *r, const struct progress_sample *is, uint64_t elapsed_ns)
{
    double left_out = PROGRESS_READ_RATE * (double)elapsed_ns / 1e9;

    r->excess = r->excess > left_out ? r->excess - left_out : 0;
    r->excess += (double)difference(is->n_bytes, r->last.n_bytes);
    return r->excess >= PROGRESS_READ_MIN;
}

static bool has_strong_sign(struct progress_rank *r, const struct progress_sample *is, uint64_t elapsed_ns)
{
    bool has_bytes = has_moved_bytes(r, is, elapsed_ns);

    return has_bytes || r->last.is_alive != is->is_alive || r->last.head != is->head;
}

static bool is_share(uint64_t was, uint64_t is, uint64_t whole_ns, uint64_t share)
{
    return is > was && is - was >= whole_ns / share;
}

static bool main_computes(const struct progress_place *was, const struct progress_place *is,
                          uint64_t whole_ns)
{
    return is_share(was->main_ran_ns, is->main_ran_ns, whole_ns, PROGRESS_BUSY_SHARE) ||
           is_share(was->main_ran_ns + was->main_waited_ns, is->main_ran_ns + is->main_waited_ns, whole_ns,
                    2);
}

/* The kernel counts them in ticks: two may be the rounding. */
static bool others_compute(const struct progress_place *was, const struct progress_place *is,
                           uint64_t whole_ns)
{
    return is->others_ran_ns > was->others_ran_ns + ticks_ns &&
           is_share(was->others_ran_ns, is->others_ran_ns, whole_ns, PROGRESS_BUSY_SHARE);
}

/*
 * Blocked without a context switch since the last look: it has not left the place. With switches it polls, or it was found
 * there again by chance: other threads that compute do so for it. One that runs is judged by its stack; where no tool
 * shows that, by its page faults, which a loop that waits does not have.
 */
static bool has_moved(const struct progress_place *was, const struct progress_place *is, uint64_t whole_ns)
{
    if (was->processes != is->processes || was->where != is->where)
        return true;
    if (is->runs)
        return is->stack != PROGRESS_STACK_KNOWN && was->faults != is->faults;
    return was->switches != is->switches && others_compute(was, is, whole_ns);
}

/* One that was found running by chance at one of the two looks. Counters are those of the same processes. */
static bool is_at_rest(const struct progress_place *was, const struct progress_place *is, uint64_t whole_ns)
{
    return was->processes == is->processes && (was->runs || is->runs) && !main_computes(was, is, whole_ns) &&
           !others_compute(was, is, whole_ns);
}

static void set_place(struct progress_rank *r, uint64_t now_ns, const struct progress_place *place)
{
    r->place = *place;
    r->place_ns = now_ns;
    r->has_place = true;
}

/* The place of the look before is kept, unless that look found it running by chance, too. */
static void note_rest(struct progress_rank *r, uint64_t now_ns, const struct progress_place *place)
{
    struct progress_place next = *place;

    if (!r->place.runs && next.runs) {
        next.where = r->place.where;
        next.runs = false;
    }
    r->n_still++;
    set_place(r, now_ns, &next);
}

static void look_at_place(struct progress_rank *r, uint64_t now_ns, const struct progress_place *place,
                          bool is_stack_waited_for)
{
    if (r->has_place && is_at_rest(&r->place, place, now_ns - r->place_ns)) {
        note_rest(r, now_ns, place);
        return;
    }
    if (place->runs && place->stack == PROGRESS_STACK_LATE && is_stack_waited_for)
        return;
    bool has_rested = r->has_place && !has_moved(&r->place, place, now_ns - r->place_ns);
    r->n_still = has_rested ? r->n_still + 1 : 0;
    if (r->n_still == 0)
        r->since_ns = now_ns;
    set_place(r, now_ns, place);
}

static void look_at_places(struct progress *p, uint64_t now_ns, const struct progress_sample *samples)
{
    bool any = false, is_stack_waited_for = progress_silence_ns(p, now_ns) < 2 * p->timeout_ns;

    for (int i = 0; i < p->n_ranks; i++)
        if (samples[i].is_alive && samples[i].has_place) {
            look_at_place(&p->ranks[i], now_ns, &samples[i].place, is_stack_waited_for);
            any = true;
        }
    if (any)
        p->places_ns = now_ns;
}

static void note_strong_sign(struct progress *p, uint64_t now_ns)
{
    p->strong_ns = now_ns;
    for (int i = 0; i < p->n_ranks; i++) {
        p->ranks[i].has_place = false;
        p->ranks[i].n_still = 0;
        p->ranks[i].excess = 0;
    }
}

static bool is_still(const struct progress *p, uint64_t now_ns)
{
    uint64_t least_ns = p->timeout_ns / 2 - p->timeout_ns / SLACK;
    int n_alive = 0;

    for (int i = 0; i < p->n_ranks; i++) {
        if (!p->ranks[i].last.is_alive)
            continue;
        n_alive++;
        if (p->ranks[i].n_still < PROGRESS_PLACES_STILL || now_ns - p->ranks[i].since_ns < least_ns)
            return false;
    }
    return n_alive > 0;
}

bool progress_is_quiet(const struct progress *p, uint64_t now_ns)
{
    return p->timeout_ns && progress_silence_ns(p, now_ns) >= p->timeout_ns && is_still(p, now_ns);
}

enum progress_verdict progress_step(struct progress *p, uint64_t now_ns,
                                    const struct progress_sample *samples, uint64_t n_changes)
{
    bool is_strong = !p->has_sample || n_changes != p->n_changes, was_reported = p->is_reported;

    for (int i = 0; i < p->n_ranks; i++) {
        is_strong |= has_strong_sign(&p->ranks[i], &samples[i], now_ns - p->sample_ns);
        p->ranks[i].last = samples[i];
    }
    p->sample_ns = now_ns;
    p->n_changes = n_changes;
    p->has_sample = true;
    if (is_strong) {
        note_strong_sign(p, now_ns);
        p->is_reported = false;
        return was_reported ? PROGRESS_RESUMES : PROGRESS_MOVES;
    }
    look_at_places(p, now_ns, samples);
    if (p->is_reported || !progress_is_quiet(p, now_ns))
        return PROGRESS_MOVES;
    p->is_reported = true;
    return PROGRESS_HANGS;
}
