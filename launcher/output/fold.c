#include "launcher/output/fold.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

struct entry {
    uint64_t due_ns, source;
    int first_rank; /* of the node's member 0 */
    int n_printed;
    size_t n_prefix, n_bytes;
    uint64_t *printed; /* a bit for each member; in the same allocation, as what follows */
    char *text;        /* prefix of the first member, then the line */
};

struct fold {
    int n_members;
    size_t n_words;      /* of a set of members */
    int *n_joined;       /* of each member */
    uint64_t *present;   /* set of members that have joined */
    uint64_t *next;      /* for each member: number of the first entry that its next line can join */
    uint64_t begin, end; /* numbers of the entries that wait */
    struct entry *entries[FOLD_LINES_MAX]; /* at their number modulo the size */
    size_t n_bytes;
};

struct fold *fold_create(int n_members)
{
    struct fold *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->n_members = n_members;
    f->n_words = ((size_t)n_members + 63) / 64;
    f->n_joined = calloc((size_t)n_members, sizeof(*f->n_joined));
    f->present = calloc(f->n_words, sizeof(*f->present));
    f->next = calloc((size_t)n_members, sizeof(*f->next));
    if (f->n_joined && f->present && f->next)
        return f;
    fold_free(f);
    return NULL;
}

static struct entry *entry_at(const struct fold *f, uint64_t number)
{
    return f->entries[number % FOLD_LINES_MAX];
}

void fold_free(struct fold *f)
{
    if (!f)
        return;
    for (uint64_t i = f->begin; i < f->end; i++)
        free(entry_at(f, i));
    free(f->n_joined);
    free(f->present);
    free(f->next);
    free(f);
}

static void set_member(uint64_t *set, int member)
{
    set[member / 64] |= UINT64_C(1) << (member % 64);
}

static bool has_member(const uint64_t *set, int member)
{
    return set[member / 64] >> (member % 64) & 1;
}

void fold_join(struct fold *f, int member)
{
    f->n_joined[member]++;
    set_member(f->present, member);
}

void fold_leave(struct fold *f, int member)
{
    assert(f->n_joined[member] > 0);
    if (--f->n_joined[member] == 0)
        f->present[member / 64] &= ~(UINT64_C(1) << (member % 64));
}

/* ---- the end of the queue ---- */

static struct entry *new_entry(const struct fold *f, const struct fold_line *line)
{
    size_t n_prefix = strlen(line->prefix);
    struct entry *e = calloc(1, sizeof(*e) + f->n_words * sizeof(uint64_t) + n_prefix + line->n_bytes);

    if (!e)
        return NULL;
    *e = (struct entry){.due_ns = line->now_ns + FOLD_WAIT_NS,
                        .source = line->source,
                        .first_rank = line->rank - line->member,
                        .n_prefix = n_prefix,
                        .n_bytes = line->n_bytes,
                        .printed = (uint64_t *)(e + 1)};
    e->text = (char *)(e->printed + f->n_words);
    memcpy(e->text, line->prefix, n_prefix);
    if (line->n_bytes > 0)
        memcpy(e->text + n_prefix, line->text, line->n_bytes);
    return e;
}

static bool is_equal(const struct entry *e, const struct fold_line *line)
{
    return e->source == line->source && e->n_bytes == line->n_bytes &&
           !has_member(e->printed, line->member) &&
           (line->n_bytes == 0 || memcmp(e->text + e->n_prefix, line->text, line->n_bytes) == 0);
}

/* The number of the entry that the line joins; f->end: none. */
static uint64_t find_equal(const struct fold *f, const struct fold_line *line)
{
    uint64_t at = f->next[line->member] > f->begin ? f->next[line->member] : f->begin;

    while (at < f->end && !is_equal(entry_at(f, at), line))
        at++;
    return at;
}

static void join_entry(struct fold *f, uint64_t number, int member)
{
    struct entry *e = entry_at(f, number);

    set_member(e->printed, member);
    e->n_printed++;
    f->next[member] = number + 1;
}

/* ---- the front ---- */

/* Members that have left may have printed it: their number proves nothing. */
static bool is_complete(const struct fold *f, const struct entry *e)
{
    for (size_t i = 0; i < f->n_words; i++)
        if (f->present[i] & ~e->printed[i])
            return false;
    return true;
}

static int append_range(struct buf *out, bool is_first, int first, int last)
{
    char text[32];
    int n = last > first ? snprintf(text, sizeof(text), "%s%d-%d", is_first ? "" : ",", first, last)
                         : snprintf(text, sizeof(text), "%s%d", is_first ? "" : ",", first); /* both fit */

    return buf_append(out, text, (size_t)n);
}

static int append_ranks(const struct fold *f, const struct entry *e, struct buf *out)
{
    int r = buf_append(out, "[ranks ", strlen("[ranks "));
    bool is_first = true;

    for (int first = 0; !r && first < f->n_members; first++) {
        if (!has_member(e->printed, first))
            continue;
        int last = first;
        while (last + 1 < f->n_members && has_member(e->printed, last + 1))
            last++;
        r = append_range(out, is_first, e->first_rank + first, e->first_rank + last);
        is_first = false;
        first = last;
    }
    return r ? r : buf_append(out, "] ", 2);
}

static void append_entry(const struct fold *f, const struct entry *e, struct buf *console)
{
    size_t size = buf_size(console);
    int r = e->n_printed > 1 ? append_ranks(f, e, console) : buf_append(console, e->text, e->n_prefix);

    if (!r)
        r = buf_append(console, e->text + e->n_prefix, e->n_bytes);
    if (!r)
        r = buf_append(console, "\n", 1);
    if (r)
        console->end = console->begin + size; /* a line that has no room is not shown in part */
}

static size_t entry_size(const struct entry *e)
{
    return e->n_prefix + e->n_bytes;
}

static void emit_front(struct fold *f, struct buf *console)
{
    struct entry *e = entry_at(f, f->begin);

    append_entry(f, e, console);
    f->n_bytes -= entry_size(e);
    f->begin++;
    free(e);
}

static bool front_is_due(const struct fold *f, uint64_t now_ns)
{
    const struct entry *e = entry_at(f, f->begin);

    return e->due_ns <= now_ns || f->n_bytes > FOLD_BYTES_MAX || is_complete(f, e);
}

void fold_emit(struct fold *f, uint64_t now_ns, struct buf *console)
{
    while (f->begin < f->end && front_is_due(f, now_ns))
        emit_front(f, console);
}

void fold_flush(struct fold *f, struct buf *console)
{
    while (f->begin < f->end)
        emit_front(f, console);
}

uint64_t fold_due_ns(const struct fold *f)
{
    return f->begin < f->end ? entry_at(f, f->begin)->due_ns : UINT64_MAX;
}

void fold_add(struct fold *f, const struct fold_line *line, struct buf *console)
{
    uint64_t number = find_equal(f, line);

    if (number == f->end) {
        struct entry *e = new_entry(f, line);
        if (!e)
            return;
        if (f->end - f->begin == FOLD_LINES_MAX)
            emit_front(f, console);
        f->entries[f->end++ % FOLD_LINES_MAX] = e;
        f->n_bytes += entry_size(e);
    }
    join_entry(f, number, line->member);
    fold_emit(f, line->now_ns, console);
}
