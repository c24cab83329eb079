/* Lines of --event-log. Every reader accepts a new field, but no new meaning of a field. */

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "launcher/report/events.h"
#include "launcher/util/signal_name.h"
#include "base/cleanup.h"
#include "base/utf8.h"

enum { EVENT_LINE_MAX = 4096 }; /* bytes of a line of a report; a longer line is cut */

static const char *const names[EVENT_KIND_COUNT] = {
    [EVENT_START] = "start",     [EVENT_READY] = "ready",   [EVENT_EXIT] = "exit",
    [EVENT_FAILURE] = "failure", [EVENT_PEER] = "peer",     [EVENT_STOP] = "stop",
    [EVENT_RESTART] = "restart", [EVENT_WARM] = "warm",     [EVENT_END] = "end",
    [EVENT_HANG] = "hang",       [EVENT_STACKS] = "stacks", [EVENT_STALL] = "stall",
    [EVENT_MARK] = "mark",       [EVENT_SLOW] = "slow",
};

enum event_kind events_kind(const char *name)
{
    enum event_kind kind = 0;

    while (kind < EVENT_KIND_COUNT && strcmp(names[kind], name) != 0)
        kind++;
    return kind;
}

/* RFC 3339 in UTC, with nanoseconds. */
static void format_time(int64_t time_ns, char *out, size_t out_size)
{
    time_t s = (time_t)(time_ns / 1000000000);
    char day[32] = "";
    struct tm utc;

    if (gmtime_r(&s, &utc))
        (void)strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &utc); /* stays empty beyond the year 9999 */
    (void)snprintf(out, out_size, "%s.%09dZ", day, (int)(time_ns % 1000000000)); /* fits */
}

/* Whole numbers as they are: a double has room for 53 bits only. Room is for an int64. */
static void add_integer(cJSON *line, const char *name, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%lld", (long long)value); /* fits */
    (void)cJSON_AddRawToObject(line, name, text);                 /* a field without memory is left out */
}

static void add_signal(cJSON *line, const char *name, int signal)
{
    char text[SIGNAL_NAME_SIZE];

    if (!signal_name(signal, text))
        (void)snprintf(text, sizeof(text), "%d", signal); /* fits */
    (void)cJSON_AddStringToObject(line, name, text);
}

void events_add_text(cJSON *object, const char *name, const char *text)
{
    _cleanup_free_ char *copy = text_utf8_copy(text, strlen(text));

    (void)cJSON_AddStringToObject(object, name, copy ? copy : ""); /* a field without memory is left out */
}

static void add_ending(cJSON *line, const struct event_job *job, const struct event_ending *e)
{
    add_integer(line, "local_rank", e->local_rank);
    add_integer(line, "rank", job->place.rank_base + e->local_rank);
    if (e->pid <= 0)
        return; /* the worker never ran */
    add_integer(line, "pid", e->pid);
    if (e->code >= 0)
        add_integer(line, "exit_code", e->code);
    else
        add_signal(line, "signal", -e->code);
    if (e->core_dumped)
        (void)cJSON_AddTrueToObject(line, "core_dumped");
    (void)cJSON_AddBoolToObject(line, "stopped_by_crun", e->stopped);
    add_integer(line, "max_rss_kib", e->max_rss_kib);
    add_integer(line, "ran_ns", (int64_t)e->ran_ns);
}

static void add_pids(cJSON *line, const pid_t *pids, int n)
{
    cJSON *list = cJSON_AddArrayToObject(line, "pids");

    for (int i = 0; list && i < n; i++)
        (void)cJSON_AddItemToArray(list, cJSON_CreateNumber(pids[i]));
}

static void add_start(cJSON *line, const struct event_job *job)
{
    add_integer(line, "crun_pid", job->crun);
    events_add_text(line, "program", job->program);
    events_add_text(line, "role", job->role);
    add_integer(line, "local_world_size", job->n_workers);
    add_integer(line, "world_size", job->place.world_size);
    add_integer(line, "group_world_size", job->place.group_world_size);
    add_integer(line, "max_restarts", job->max_restarts);
}

static void add_peer(cJSON *line, const struct event *e)
{
    (void)cJSON_AddStringToObject(line, "cause", e->cause);
    if (e->peer->host[0])
        events_add_text(line, "peer_host", e->peer->host);
    if (e->peer->group_rank >= 0)
        add_integer(line, "peer_group_rank", e->peer->group_rank);
    if (e->peer->rank >= 0)
        add_integer(line, "peer_rank", e->peer->rank);
}

void events_add_lines(cJSON *object, const char *name, const char *lines)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);

    for (const char *at = lines; list && at && *at;) {
        size_t n = strcspn(at, "\n"), indent = strspn(at, " ");
        size_t shown = n - indent < EVENT_LINE_MAX ? n - indent : EVENT_LINE_MAX;
        _cleanup_free_ char *text = text_utf8_copy(at + indent, shown);

        (void)cJSON_AddItemToArray(list, cJSON_CreateString(text ? text : ""));
        at += n + (at[n] == '\n');
    }
}

static void add_stall(cJSON *line, const struct event_stall *s)
{
    add_integer(line, "waiting", s->n_waiting);
    add_integer(line, "waits_ms", s->waits_ms);
    (void)cJSON_AddStringToObject(line, "activity", s->activity);
    if (s->bytes_per_s)
        add_integer(line, "bytes_per_s", (int64_t)s->bytes_per_s);
}

static void add_hang(cJSON *line, const struct event_hang *h)
{
    if (h->is_hang)
        add_integer(line, "silence_ns", (int64_t)h->silence_ns);
    if (h->rank >= 0)
        add_integer(line, "rank", h->rank);
    if (h->stall)
        add_stall(line, h->stall);
    if (h->folder)
        events_add_text(line, "folder", h->folder);
    events_add_lines(line, "groups", h->groups);
}

static void add_own_fields(cJSON *line, const struct event_job *job, const struct event *e)
{
    switch (e->kind) {
    case EVENT_START:
        add_start(line, job);
        break;
    case EVENT_READY:
        add_pids(line, e->pids, job->n_workers);
        add_integer(line, "took_ns", (int64_t)e->took_ns);
        break;
    case EVENT_FAILURE:
        (void)cJSON_AddStringToObject(line, "cause", e->cause);
        if (e->number)
            add_integer(line, "errno", e->number);
        break;
    case EVENT_PEER:
        add_peer(line, e);
        break;
    case EVENT_STOP:
        add_signal(line, "signal", e->number);
        if (e->sender > 0)
            add_integer(line, "sender_pid", e->sender);
        break;
    case EVENT_RESTART:
        add_integer(line, "restarts_left", e->left);
        break;
    case EVENT_HANG:
    case EVENT_STACKS:
    case EVENT_STALL:
    case EVENT_SLOW:
        add_hang(line, e->hang);
        break;
    case EVENT_WARM:
        add_integer(line, "modules", e->warm->n_modules);
        add_integer(line, "shared_memory_kib", e->warm->memory_kib);
        add_integer(line, "took_ns", e->warm->took_us * 1000);
        break;
    case EVENT_MARK:
        add_integer(line, "local_rank", e->mark->local_rank);
        add_integer(line, "rank", job->place.rank_base + e->mark->local_rank);
        (void)cJSON_AddStringToObject(line, "action", e->mark->action);
        events_add_text(line, "rule", e->mark->rule);
        events_add_text(line, "line", e->mark->line);
        break;
    case EVENT_END:
        events_add_text(line, "program", job->program); /* there may have been no start */
        (void)cJSON_AddStringToObject(line, "result", e->cause);
        add_integer(line, "exit_code", e->number);
        add_integer(line, "took_ns", (int64_t)e->took_ns);
        break;
    default:
        break;
    }
}

char *events_print(cJSON *line)
{
    char *text = line ? cJSON_PrintUnformatted(line) : NULL;
    char *with_end = text ? realloc(text, strlen(text) + 2) : NULL;

    cJSON_Delete(line);
    if (!with_end)
        free(text);
    return with_end ? strcat(with_end, "\n") : NULL;
}

char *events_json_line(const struct event_job *job, const struct event *event)
{
    cJSON *line = cJSON_CreateObject();
    char time[64];

    format_time(event->time_ns, time, sizeof(time));
    (void)cJSON_AddStringToObject(line, "time", time);
    add_integer(line, "monotonic_ns", (int64_t)event->monotonic_ns);
    (void)cJSON_AddStringToObject(line, "event", names[event->kind]);
    events_add_text(line, "run_id", job->run_id);
    (void)cJSON_AddStringToObject(line, "run", job->run);
    events_add_text(line, "host", job->host);
    add_integer(line, "group_rank", job->place.group_rank);
    add_integer(line, "generation", event->generation);
    add_integer(line, "restarts", event->restarts);
    add_own_fields(line, job, event);
    if (event->ending)
        add_ending(line, job, event->ending);
    if (event->reason)
        events_add_text(line, "reason", event->reason);
    return events_print(line);
}
