#include "launcher/output/fold.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"

struct folded_line {
    struct folded_line *next;
    uint64_t due_ns, source;
    int first_rank; /* of the node's member 0 */
    size_t n_prefix, n_bytes;
    char text[]; /* prefix, then the line */
};

struct fold_member {
    struct folded_line *head, *last;
    int n_joined;
};

struct fold {
    int n_members, n_present, n_expected;
    struct fold_member *members;
    bool *is_in; /* is_in[i]: member i has printed the line that is shown now */
    int n_lines; /* waiting lines of all members */
    size_t n_bytes;
};

static int grow_fold(struct fold *f, int n_members)
{
    if (!array_resize(f->members, (size_t)n_members) || !array_resize(f->is_in, (size_t)n_members))
        return -ENOMEM;
    memset(f->members + f->n_members, 0, (size_t)(n_members - f->n_members) * sizeof(*f->members));
    f->n_members = n_members;
    return 0;
}

struct fold *fold_create(int n_members, int n_expected)
{
    struct fold *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->n_expected = n_expected;
    if (grow_fold(f, n_members) == 0)
        return f;
    fold_free(f);
    return NULL;
}

static size_t line_size(const struct folded_line *l)
{
    return l->n_prefix + l->n_bytes;
}

static void drop_head(struct fold *f, struct fold_member *m)
{
    struct folded_line *l = m->head;

    m->head = l->next;
    if (!m->head)
        m->last = NULL;
    f->n_lines--;
    f->n_bytes -= line_size(l);
    free(l);
}

void fold_free(struct fold *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_members; i++)
        while (f->members[i].head)
            drop_head(f, &f->members[i]);
    free(f->members);
    free(f->is_in);
    free(f);
}

int fold_join(struct fold *f, int member)
{
    int r = member < f->n_members ? 0 : grow_fold(f, member + 1 + f->n_members / 2);

    if (!r && f->members[member].n_joined++ == 0)
        f->n_present++;
    return r;
}

void fold_leave(struct fold *f, int member)
{
    assert(f->members[member].n_joined > 0);
    if (--f->members[member].n_joined == 0)
        f->n_present--;
}

/* ---- equal lines ---- */

static bool is_alike(const struct folded_line *a, const struct folded_line *b)
{
    return a->source == b->source && a->n_bytes == b->n_bytes &&
           memcmp(a->text + a->n_prefix, b->text + b->n_prefix, a->n_bytes) == 0;
}

static bool has_alike(const struct fold_member *m, const struct folded_line *l)
{
    const struct folded_line *at = m->head;

    while (at && !is_alike(at, l))
        at = at->next;
    return at;
}

/* The first line of all present members, if they are alike; else NULL. */
static const struct folded_line *find_complete(const struct fold *f)
{
    const struct folded_line *first = NULL;

    for (int i = 0; f->n_present >= f->n_expected && i < f->n_members; i++) {
        const struct fold_member *m = &f->members[i];

        if (m->n_joined == 0)
            continue;
        if (!m->head || (first && !is_alike(m->head, first)))
            return NULL;
        first = m->head;
    }
    return first;
}

/* The member whose first line is due first; NULL: nothing waits. */
static struct fold_member *find_oldest(const struct fold *f)
{
    struct fold_member *oldest = NULL;

    for (int i = 0; i < f->n_members; i++) {
        struct fold_member *m = &f->members[i];
        if (m->head && (!oldest || m->head->due_ns < oldest->head->due_ns))
            oldest = m;
    }
    return oldest;
}

/* ---- showing ---- */

static int append_range(struct buf *out, bool is_first, int first, int last)
{
    char text[32];
    int n = last > first ? snprintf(text, sizeof(text), "%s%d-%d", is_first ? "" : ",", first, last)
                         : snprintf(text, sizeof(text), "%s%d", is_first ? "" : ",", first); /* both fit */

    return buf_append(out, text, (size_t)n);
}

static int append_ranks(const struct fold *f, int first_rank, struct buf *out)
{
    int r = buf_append(out, "[ranks ", strlen("[ranks "));
    bool is_first = true;

    for (int first = 0; !r && first < f->n_members; first++) {
        if (!f->is_in[first])
            continue;
        int last = first;
        while (last + 1 < f->n_members && f->is_in[last + 1])
            last++;
        r = append_range(out, is_first, first_rank + first, first_rank + last);
        is_first = false;
        first = last;
    }
    return r ? r : buf_append(out, "] ", 2);
}

static void append_folded(const struct fold *f, const struct folded_line *l, int n_in, struct buf *console)
{
    size_t size = buf_size(console);
    int r = n_in > 1 ? append_ranks(f, l->first_rank, console) : buf_append(console, l->text, l->n_prefix);

    if (!r)
        r = buf_append(console, l->text + l->n_prefix, l->n_bytes);
    if (!r)
        r = buf_append(console, "\n", 1);
    if (r)
        console->end = console->begin + size; /* no part of a line is shown */
}

/* Shows the first line of a member for all members with an equal first line. */
static void show_heads(struct fold *f, const struct folded_line *l, struct buf *console)
{
    int n_in = 0;

    for (int i = 0; i < f->n_members; i++) {
        f->is_in[i] = f->members[i].head && is_alike(f->members[i].head, l);
        n_in += f->is_in[i];
    }
    append_folded(f, l, n_in, console);
    for (int i = 0; i < f->n_members; i++)
        if (f->is_in[i])
            drop_head(f, &f->members[i]);
}

/* Shows the first line of the member for all members that have printed an equal line, behind their earlier lines. */
static void show_first(struct fold *f, const struct fold_member *member, struct buf *console)
{
    const struct folded_line *l = member->head;

    for (int i = 0; i < f->n_members; i++) {
        const struct fold_member *m = &f->members[i];

        if (!has_alike(m, l))
            continue;
        while (!is_alike(m->head, l))
            show_heads(f, m->head, console);
    }
    show_heads(f, l, console);
}

void fold_emit(struct fold *f, uint64_t looked_ns, struct buf *console)
{
    for (;;) {
        const struct folded_line *complete = find_complete(f);
        const struct fold_member *oldest = complete ? NULL : find_oldest(f);

        if (complete)
            show_heads(f, complete, console);
        else if (oldest && (oldest->head->due_ns <= looked_ns || (f->n_present == 0 && f->n_expected == 0) ||
                            f->n_lines > FOLD_LINES_MAX || f->n_bytes > FOLD_BYTES_MAX))
            show_first(f, oldest, console);
        else
            return;
    }
}

void fold_flush(struct fold *f, struct buf *console)
{
    for (const struct fold_member *oldest; (oldest = find_oldest(f));)
        show_first(f, oldest, console);
}

uint64_t fold_due_ns(const struct fold *f)
{
    const struct fold_member *oldest = find_oldest(f);

    return oldest ? oldest->head->due_ns : UINT64_MAX;
}

void fold_add(struct fold *f, const struct fold_line *line, struct buf *console)
{
    struct fold_member *m = &f->members[line->member];
    size_t n_prefix = strlen(line->prefix);
    struct folded_line *l = calloc(1, sizeof(*l) + n_prefix + line->n_bytes);

    if (!l)
        return;
    l->due_ns = line->now_ns + FOLD_WAIT_NS;
    l->source = line->source;
    l->first_rank = line->rank - line->member;
    l->n_prefix = n_prefix;
    l->n_bytes = line->n_bytes;
    memcpy(l->text, line->prefix, n_prefix);
    if (line->n_bytes > 0)
        memcpy(l->text + n_prefix, line->text, line->n_bytes);
    if (m->last)
        m->last->next = l;
    else
        m->head = l;
    m->last = l;
    f->n_lines++;
    f->n_bytes += line_size(l);
    fold_emit(f, 0, console); /* other members may have printed the line in time: see fold_emit() */
}
