#include "launcher/watch/stall.h"

#include <string.h>

#include "base/strbuf.h"
#include "base/utf8.h"
#include "launcher/report/events.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/waits.h"

enum { NS_PER_MS = 1000000 };

/* The line whose pause holds for the awaited rank; without such a rank the last line. NULL: a rank without a line. */
static struct stall_line *find_line(struct stall *s, int awaited)
{
    for (int i = 0; i < s->n_lines; i++)
        if (s->lines[i].rank == awaited)
            return &s->lines[i];
    return s->n_lines > 0 && (awaited < 0 || s->n_lines == STALL_LINES) ? &s->lines[s->n_lines - 1] : NULL;
}

bool stall_may_look(struct stall *s, uint64_t now_ns, size_t n_ranks)
{
    const struct stall_line *line = find_line(s, s->awaited);
    uint64_t pause_ns = n_ranks * STALL_RANK_NS;

    if (line && now_ns < line->again_ns && pause_ns < STALL_BETWEEN_NS)
        pause_ns = STALL_BETWEEN_NS;
    if (!s->has_asked && s->looked_ns && now_ns - s->looked_ns < pause_ns)
        return false;
    s->looked_ns = now_ns;
    return true;
}

bool stall_may_take_stacks(uint64_t *stacks_ns, uint64_t now_ns)
{
    bool may_take = !*stacks_ns || now_ns - *stacks_ns >= STALL_STACKS_NS;

    *stacks_ns = may_take ? now_ns : *stacks_ns;
    return may_take;
}

static bool is_unusual(const struct hang_rank *r)
{
    return r->waits_ms > 0 && r->waits_ms >= r->limit_ms;
}

/* The longest unusual wait. */
static const struct hang_rank *find_waiter(const struct hang_rank *ranks, size_t n_ranks)
{
    const struct hang_rank *found = NULL;

    for (size_t i = 0; i < n_ranks; i++)
        if (is_unusual(&ranks[i]) && (!found || ranks[i].waits_ms > found->waits_ms))
            found = &ranks[i];
    return found;
}

static uint64_t longest_wait_ns(const struct hang_rank *ranks, size_t n_ranks)
{
    const struct hang_rank *waiter = find_waiter(ranks, n_ranks);

    return waiter ? (uint64_t)waiter->waits_ms * NS_PER_MS : 0;
}

bool stall_is_any_unusual(const struct hang_rank *ranks, size_t n_ranks)
{
    return longest_wait_ns(ranks, n_ranks) > 0;
}

static uint64_t default_tolerance_ns(const struct hang_rank *awaited)
{
    switch (awaited->activity) {
    case ACTIVITY_READS:
    case ACTIVITY_WRITES:
        return awaited->bytes_per_s >= STALL_FAST_BYTES ? STALL_TRANSFER_NS : 0;
    case ACTIVITY_COMPILES:
        return STALL_COMPILER_NS;
    default:
        return 0;
    }
}

static bool is_any_known(const struct hang_rank *ranks, size_t n_ranks)
{
    for (size_t i = 0; i < n_ranks; i++)
        if (is_unusual(&ranks[i]) && (ranks[i].is_wait_known || ranks[i].waits_for_key))
            return true;
    return false;
}

static uint64_t tolerance_ns(const struct stall *s, const struct hang_rank *awaited, bool is_known)
{
    uint64_t learnt_ns = s->tolerated_ns[awaited->activity], least_ns = default_tolerance_ns(awaited);

    if (!is_known && (awaited->activity == ACTIVITY_WAITS || awaited->activity == ACTIVITY_UNKNOWN))
        return UINT64_MAX;
    if (!is_known && least_ns < WAITS_FIRST_NS)
        least_ns = WAITS_FIRST_NS;
    return learnt_ns > least_ns ? learnt_ns : least_ns;
}

/* Between two lines looks are rare, so the last look knows too short a wait. */
static enum stall_verdict end_stall(struct stall *s, uint64_t now_ns)
{
    bool was_reported = s->n_lines > 0;
    uint64_t length_ns = now_ns - s->begun_ns,
             learnt_ns =
                 (uint64_t)(STALL_LEARNT * (double)(length_ns > s->longest_ns ? length_ns : s->longest_ns));

    if (learnt_ns > STALL_LEARNT_MAX_NS)
        learnt_ns = STALL_LEARNT_MAX_NS;
    if (learnt_ns > s->tolerated_ns[s->activity])
        s->tolerated_ns[s->activity] = learnt_ns;
    s->longest_ns = 0;
    s->n_lines = 0;
    s->has_asked = false;
    return was_reported ? STALL_GOES_ON : STALL_NOTHING;
}

static void note_look(struct stall *s, uint64_t now_ns, uint64_t longest_ns, const struct hang_rank *awaited)
{
    if (s->longest_ns && now_ns - longest_ns > s->seen_ns)
        (void)end_stall(s, s->seen_ns); /* the next line is the first of another stall */
    if (s->longest_ns == 0) {
        s->first_ns = now_ns;
        s->begun_ns = now_ns > longest_ns ? now_ns - longest_ns : 0;
    }
    if (s->longest_ns == 0 || awaited->rank != s->awaited)
        s->awaited_ns = now_ns;
    if (longest_ns > s->longest_ns)
        s->longest_ns = longest_ns;
    if (awaited->activity != ACTIVITY_WAITS) /* by chance at the instant of its move */
        s->activity = awaited->activity;
    s->awaited = awaited->rank;
    s->seen_ns = now_ns;
}

static void note_line(struct stall *s, uint64_t now_ns, struct stall_line *line)
{
    if (!line) {
        line = &s->lines[s->n_lines++]; /* find_line() finds a line where there is no room */
        *line = (struct stall_line){.rank = s->awaited, .pause_ns = STALL_AGAIN_NS / 2};
    }
    line->pause_ns *= 2;
    line->again_ns = now_ns + line->pause_ns;
}

enum stall_verdict stall_step(struct stall *s, uint64_t now_ns, const struct hang_rank *ranks, size_t n_ranks,
                              bool stands_out)
{
    static const struct hang_rank none = {.rank = -1, .activity = ACTIVITY_UNKNOWN};
    const struct hang_rank *awaited = stands_out && n_ranks > 0 ? &ranks[0] : &none;
    uint64_t longest_ns = longest_wait_ns(ranks, n_ranks);

    if (longest_ns == 0)
        return s->longest_ns ? end_stall(s, now_ns) : STALL_NOTHING;
    note_look(s, now_ns, longest_ns, awaited);
    struct stall_line *line = find_line(s, s->awaited);
    bool is_new = s->n_lines == 0 || now_ns - s->awaited_ns >= WAITS_LEAST_NS;
    uint64_t tolerated_ns = is_new ? tolerance_ns(s, awaited, is_any_known(ranks, n_ranks)) : UINT64_MAX;
    bool is_due = line ? now_ns >= line->again_ns : longest_ns >= tolerated_ns;
    bool is_near = is_due || (!line && longest_ns + STALL_NEAR_NS >= tolerated_ns);
    if (is_near && !s->has_asked && now_ns - s->first_ns >= STALL_FRESH_NS) {
        s->has_asked = true;
        return STALL_ASK;
    }
    if (!is_due)
        return STALL_NOTHING;
    s->has_asked = false;
    note_line(s, now_ns, line);
    return STALL_REPORT;
}

/* ---- the line ---- */

/* n_waiting: ranks that began to wait with the waiter. The limits of some may be a look later. */
static struct event_stall facts_of(const struct hang_rank *ranks, size_t n_ranks, size_t n_awaited,
                                   const struct hang_rank *waiter)
{
    enum activity activity = n_awaited ? ranks[0].activity : ACTIVITY_UNKNOWN;
    struct event_stall facts = {.waits_ms = waiter ? waiter->waits_ms : 0};

    for (size_t i = n_awaited; waiter && i < n_ranks; i++)
        facts.n_waiting += ranks[i].waits_ms >= waiter->waits_ms / 2 && ranks[i].waits_ms > 0;
    if (activity == ACTIVITY_READS || activity == ACTIVITY_WRITES)
        facts.bytes_per_s = ranks[0].bytes_per_s;
    text_copy(facts.activity, sizeof(facts.activity), activity_name(activity));
    return facts;
}

static bool begins_with(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static const char *preposition(const char *text)
{
    return begins_with(text, "in ") || begins_with(text, "at ") ? "" : "in ";
}

static void add_wait(struct strbuf *t, const struct hang_rank *waiter)
{
    strbuf_add(t, " %u s", waiter->waits_ms / 1000);
    if (waiter->limit_ms > WAITS_LEAST_NS / NS_PER_MS && waiter->limit_ms != WAITS_FIRST_NS / NS_PER_MS)
        strbuf_add(t, " (usual: up to %u s)", waiter->limit_ms / WAITS_FACTOR / 1000);
    const char *place = strstr(waiter->text, ", in ");
    if (place && !begins_with(waiter->text, "at "))
        strbuf_add(t, "%s", place + 1);
    else if (waiter->kind == STACK_COLLECTIVE && !begins_with(waiter->text, "wait"))
        strbuf_add(t, " %s%s", preposition(waiter->text), waiter->text);
}

static void add_awaited(struct strbuf *t, const struct hang_rank *awaited)
{
    strbuf_add(t, " for rank %d on %s", awaited->rank, awaited->host);
    if (!awaited->has_ended)
        strbuf_add(t, " (pid %lld)", (long long)awaited->pid);
    if (awaited->kind == STACK_COLLECTIVE && !begins_with(awaited->text, "wait"))
        strbuf_add(t, ": waits %s%s", preposition(awaited->text), awaited->text);
    else if (awaited->text[0])
        strbuf_add(t, ": %s", awaited->text);
}

char *stall_text(const struct hang_rank *ranks, size_t n_ranks, bool stands_out, struct event_stall *facts)
{
    size_t n_awaited = stands_out && n_ranks > 0;
    const struct hang_rank *waiter = find_waiter(ranks + n_awaited, n_ranks - n_awaited);
    struct strbuf t = {0};

    *facts = facts_of(ranks, n_ranks, n_awaited, waiter);
    strbuf_add(&t, "%u of %zu ranks %s %swaited", facts->n_waiting, n_ranks,
               facts->n_waiting == 1 ? "has" : "have", waiter && waiter->has_ended ? "ended and " : "");
    if (waiter)
        add_wait(&t, waiter);
    if (n_awaited)
        add_awaited(&t, &ranks[0]);
    else
        strbuf_add(&t, "; no rank stands out");
    return strbuf_steal(&t);
}
