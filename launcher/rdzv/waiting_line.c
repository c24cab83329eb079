#include "launcher/rdzv/waiting_line.h"

#include <stdio.h>
#include <string.h>

#include "launcher/util/digest.h"
#include "base/err.h"
#include "base/format.h"

enum { PAUSE_MIN_MS = 2000, PAUSE_MAX_MS = 60000 };

/* What is longer is cut. */
static void __attribute__((format(printf, 2, 3)))
append_waiting(char line[WAITING_TEXT_SIZE], const char *format, ...)
{
    size_t n = strlen(line);

    (void)format_arguments(line + n, WAITING_TEXT_SIZE - n, format);
}

static bool has_enough(const struct waiting_facts *f)
{
    return f->n_ready >= f->min_nodes;
}

static void compose_counts(const struct waiting_facts *f, char line[WAITING_TEXT_SIZE])
{
    line[0] = 0;
    append_waiting(line, "%u/%u nodes", (unsigned)f->n_ready, (unsigned)f->max_nodes);
    if (f->min_nodes != f->max_nodes)
        append_waiting(line, " (at least %u)", (unsigned)f->min_nodes);
    append_waiting(line, " of job '%.200s' at %.200s", f->job, f->endpoint);
    if (f->more && f->more->present[0])
        append_waiting(line, ": %s", f->more->present);
    for (uint32_t i = 0; i < f->n_missing; i++)
        append_waiting(line, "%s%u", i ? ", " : "; missing: node rank ", (unsigned)f->missing[i]);
}

void waiting_begin(struct waiting_line *w)
{
    w->shown[0] = 0;
    w->due_ms = 0;
    w->pause_ms = 0;
}

bool waiting_is_due(struct waiting_line *w, const char *line, uint64_t now_ms, bool is_terminal)
{
    bool is_new = strcmp(line, w->shown) != 0;

    if (!is_terminal && !is_new && now_ms < w->due_ms)
        return false;
    w->pause_ms = is_new || w->pause_ms == 0       ? PAUSE_MIN_MS
                  : w->pause_ms * 2 < PAUSE_MAX_MS ? w->pause_ms * 2
                                                   : PAUSE_MAX_MS;
    w->due_ms = now_ms + w->pause_ms;
    (void)snprintf(w->shown, sizeof(w->shown), "%s", line); /* fits */
    return true;
}

bool waiting_next(struct waiting_line *w, const struct waiting_facts *f, uint64_t now_ms, bool is_terminal,
                  char line[WAITING_TEXT_SIZE])
{
    if (f->standby)
        (void)snprintf(line, WAITING_TEXT_SIZE,
                       "job '%.200s' at %.200s has all the nodes it can use; this one waits for a place",
                       f->job, f->endpoint);
    else
        compose_counts(f, line);
    if (!waiting_is_due(w, line, now_ms, is_terminal))
        return false;
    if (f->more && !f->standby)
        append_waiting(line, has_enough(f) ? "; begins in %u s unless more come" : "; %u s left",
                       (unsigned)((f->more->left_ms + 999) / 1000));
    return true;
}

/* ---- hints ---- */

static void hint_of_refused(const struct waiting_facts *f, char line[WAITING_TEXT_SIZE])
{
    if (f->more && f->more->refused[0])
        append_waiting(line, "a node was refused: %s; use the same command line on all nodes",
                       f->more->refused);
}

static void hint_of_other_jobs(const struct waiting_facts *f, char line[WAITING_TEXT_SIZE])
{
    if (f->more && f->more->other_jobs[0])
        append_waiting(line,
                       "nodes of other jobs wait at the same rendezvous: %s; this one waits for nodes with "
                       "--rdzv-id=%.200s",
                       f->more->other_jobs, f->job);
}

static void hint_of_loopback(const struct waiting_facts *f, char line[WAITING_TEXT_SIZE])
{
    if (f->is_loopback)
        append_waiting(
            line,
            "%.200s leads each machine to itself; nodes on other machines need an address of this one in "
            "its place",
            f->endpoint);
}

bool waiting_hint(struct waiting_line *w, const struct waiting_facts *f, char line[WAITING_TEXT_SIZE])
{
    static void (*const hints[])(const struct waiting_facts *f, char line[WAITING_TEXT_SIZE]) = {
        hint_of_refused, hint_of_other_jobs, hint_of_loopback};

    for (size_t i = 0; i < ARRAY_SIZE(hints); i++) {
        line[0] = 0;
        hints[i](f, line);
        uint64_t digest = digest_add(DIGEST_EMPTY, line, strlen(line));
        if (!line[0] || w->hinted[i] == digest)
            continue;
        w->hinted[i] = digest;
        return true;
    }
    return false;
}
