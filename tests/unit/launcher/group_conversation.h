#pragma once

/*
 * Conversations with the worker group: an event at a time, and the actions that it has to answer, as text with the names of
 * group_action_name(): "spawn", "kill", "signal 15", "arm +30000" (ms from now), "finish 1", "replace 1 2" (these
 * workers) ...
 */

#include <stdio.h>
#include <string.h>

#include "launcher/supervise/worker_group.h"

#include "tests/support/c/cmocka_fixed.h"

#define MS UINT64_C(1000000)

struct line {
    int at_ms;
    enum group_event_kind kind;
    int worker, value;
    const char *answer;
};

/* The workers that such an action concerns are marked in the group. */
static inline size_t write_workers(const struct worker_group *g, enum group_action_kind kind, char *out,
                                   size_t size)
{
    size_t n = 0;

    for (int i = 0; i < g->config.n_workers; i++) {
        const struct group_worker *w = &g->workers[i];

        if ((kind == GROUP_DO_REPLACE && w->state == GROUP_WORKER_NONE) ||
            (kind == GROUP_DO_KILL_NEWCOMERS && w->to_kill && !w->failed))
            n += (size_t)snprintf(out + n, size - n, " %d", i);
    }
    return n;
}

static inline size_t write_action(const struct worker_group *g, const struct group_action *a, uint64_t now_ns,
                                  char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "%s", group_action_name(a->kind));

    switch (a->kind) {
    case GROUP_DO_ARM:
        return n + (size_t)snprintf(out + n, size - n, " +%d",
                                    (int)((int64_t)(a->deadline_ns - now_ns) / (int64_t)MS));
    case GROUP_DO_REPLACE:
    case GROUP_DO_KILL_NEWCOMERS:
        return n + write_workers(g, a->kind, out + n, size - n);
    case GROUP_DO_SIGNAL:
    case GROUP_DO_FINISH:
    case GROUP_DO_NOTIFY_FAILED:
    case GROUP_DO_NOTIFY_STOP:
    case GROUP_DO_REPORT_FAILED:
    case GROUP_DO_PASS_SIGNAL:
    case GROUP_DO_PRINT_PAUSE:
    case GROUP_DO_LEAVE:
        return n + (size_t)snprintf(out + n, size - n, " %d", a->value);
    default:
        return n;
    }
}

static inline void write_actions(const struct worker_group *g, const struct group_actions *actions,
                                 uint64_t now_ns, char *out, size_t size)
{
    size_t n = 0;

    out[0] = '\0';
    for (size_t i = 0; i < actions->n_items; i++) {
        n += (size_t)snprintf(out + n, size - n, "%s", i ? ", " : "");
        n += write_action(g, &actions->items[i], now_ns, out + n, size - n);
    }
}

/* Lines end with an answer of NULL; the value of GROUP_START is the generation and the restarts so far. The node is
 * needed for worker == NEEDED. A signal stops the whole job for worker == ALL_NODES. */
enum { NEEDED = -2, ALL_NODES = -3 };

static inline void converse_as(struct worker_group *g, const struct group_config *config,
                               const struct line *lines)
{
    assert_int_equal(group_init(g, config), 0);
    for (const struct line *line = lines; line->answer; line++) {
        const struct group_event event = {.kind = line->kind,
                                          .now_ns = (uint64_t)line->at_ms * MS + 1,
                                          .worker = line->worker,
                                          .pid = line->kind == GROUP_STARTED ? 100 + line->worker : 0,
                                          .value = line->value,
                                          .generation = (uint32_t)line->value,
                                          .is_needed = line->worker == NEEDED,
                                          .stops_job = line->worker == ALL_NODES,
                                          .restarts = line->value};
        struct group_actions actions;
        char answer[256];

        group_step(g, &event, &actions);
        write_actions(g, &actions, event.now_ns, answer, sizeof(answer));
        if (strcmp(answer, line->answer) != 0)
            fail_msg("line %d: answered '%s', expected '%s'", (int)(line - lines) + 1, answer, line->answer);
    }
}
