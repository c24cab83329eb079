#include "launcher/front/front.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/util/signal_name.h"

enum { ACTIONS_PER_HOST = 2, ACTIONS_OF_JOB = 4 };

int front_init(struct front *f, const struct front_config *config, const char *const *names)
{
    size_t n = config->n_hosts;

    *f = (struct front){.config = *config, .names = names, .n_usable = config->n_hosts};
    f->hosts = calloc(n, sizeof(*f->hosts));
    f->actions = calloc(n * ACTIONS_PER_HOST + ACTIONS_OF_JOB, sizeof(*f->actions));
    if (f->hosts && f->actions)
        return 0;
    front_finish(f);
    return -ENOMEM;
}

void front_finish(struct front *f)
{
    free(f->hosts);
    free(f->actions);
    *f = (struct front){0};
}

static void act(struct front *f, enum front_action_kind kind, unsigned host, int value)
{
    f->actions[f->n_actions++] = (struct front_action){.kind = kind, .host = host, .value = value};
}

static bool is_starting(const struct host_status *h)
{
    return h->state == FRONT_STARTING || h->state == FRONT_COPYING;
}

static void enter(struct front *f, unsigned host, enum front_host_state state, uint64_t now_ms)
{
    struct host_status *h = &f->hosts[host];

    f->n_starting -= is_starting(h);
    *h = (struct host_status){.state = state, .since_ms = now_ms};
    f->n_starting += is_starting(h);
}

static bool stops(const struct front *f)
{
    return f->is_ending || f->interrupt;
}

/* Agents that have not joined the rendezvous. */
static unsigned count_joining(const struct front *f, uint64_t now_ms)
{
    unsigned n_running = 0, n_young = 0;

    for (unsigned i = 0; i < f->config.n_hosts && f->config.hosts_rendezvous; i++)
        if (f->hosts[i].state == FRONT_RUNNING) {
            n_running++;
            n_young += now_ms < f->hosts[i].since_ms + FRONT_JOIN_MS;
        }
    unsigned n_away = n_running > f->n_joined ? n_running - f->n_joined : 0;
    return n_away < n_young ? n_away : n_young;
}

static void launch_more(struct front *f, uint64_t now_ms)
{
    unsigned n_joining = count_joining(f, now_ms);
    unsigned n = now_ms >= f->spares_ms ? f->config.n_hosts : f->config.max_nodes;

    for (unsigned i = 0; i < n && f->n_starting + n_joining < FRONT_STARTING_MAX && !stops(f); i++)
        if (f->hosts[i].state == FRONT_WAITING) {
            enter(f, i, FRONT_STARTING, now_ms);
            act(f, FRONT_DO_LAUNCH, i, 0);
        }
}

/* Hosts without an agent take no part in the stop of a job. */
static void give_up_starting(struct front *f, uint64_t now_ms)
{
    for (unsigned i = 0; i < f->config.n_hosts; i++) {
        bool was_launched = is_starting(&f->hosts[i]);
        if (!was_launched && f->hosts[i].state != FRONT_WAITING)
            continue;
        enter(f, i, FRONT_LOST, now_ms);
        if (was_launched)
            act(f, FRONT_DO_CLOSE, i, 0);
    }
}

static void signal_running(struct front *f, int signal)
{
    for (unsigned i = 0; i < f->config.n_hosts; i++)
        if (f->hosts[i].state == FRONT_RUNNING)
            act(f, FRONT_DO_SIGNAL, i, signal);
}

static void close_all(struct front *f, uint64_t now_ms)
{
    give_up_starting(f, now_ms);
    for (unsigned i = 0; i < f->config.n_hosts; i++)
        if (f->hosts[i].state == FRONT_RUNNING) {
            enter(f, i, FRONT_LOST, now_ms);
            act(f, FRONT_DO_CLOSE, i, 0);
        }
}

/* After f->why was composed and reported. */
static void end_job(struct front *f, uint64_t now_ms)
{
    f->is_ending = true;
    f->push_ms = now_ms + f->config.grace_ms;
    f->give_up_ms = now_ms + FRONT_GATHER_MS;
    memcpy(f->cause, f->why, sizeof(f->cause));
    for (unsigned i = 0; i < f->config.n_hosts; i++)
        if (f->hosts[i].state == FRONT_WAITING)
            enter(f, i, FRONT_LOST, now_ms);
    act(f, FRONT_DO_END_JOB, 0, 0);
}

/* The host is not usable any more: spares are launched at spares_ms. */
static void lose_usable(struct front *f, unsigned host, const char *event, const char *detail,
                        uint64_t now_ms, uint64_t spares_ms)
{
    f->n_usable--;
    f->spares_ms = spares_ms < f->spares_ms ? spares_ms : f->spares_ms;
    bool is_enough = f->n_usable >= f->config.min_nodes;
    char reason[FRONT_REASON_SIZE];
    text_copy_words(reason, sizeof(reason), detail);
    (void)snprintf(f->why, sizeof(f->why), "host %.100s %s%s%s; the job %s", f->names[host], event,
                   *reason ? ": " : "", reason, is_enough ? "goes on without it" : "cannot run without it");
    if (!is_enough && !stops(f))
        end_job(f, now_ms);
}

static void on_lost(struct front *f, unsigned host, bool had_agent, const char *why, uint64_t now_ms)
{
    bool is_news = !f->interrupt && (!f->is_ending || !had_agent);

    enter(f, host, FRONT_LOST, now_ms);
    if (is_news)
        act(f, FRONT_DO_SAY, host, 0);
    lose_usable(f, host, had_agent ? "was lost" : "could not be started", why, now_ms, now_ms);
}

static void on_result(struct front *f, unsigned host, int code, uint64_t now_ms)
{
    enter(f, host, FRONT_ENDED, now_ms);
    f->n_succeeded += code == 0;
    if (code == 0) {
        give_up_starting(f, now_ms); /* the job is over */
        return;
    }
    f->first_code = f->first_code ? f->first_code : code;
    char detail[32];
    (void)snprintf(detail, sizeof(detail), "exit code %d", code);
    lose_usable(f, host, "has failed", detail, now_ms, now_ms + FRONT_GATHER_MS);
}

/* Agents of min_nodes hosts have succeeded: the job went on without a failed host. */
static int exit_code(const struct front *f)
{
    bool is_success = f->n_succeeded >= f->config.min_nodes && !f->interrupt && !f->is_ending;

    if (f->first_code && !is_success)
        return f->first_code;
    if (f->interrupt && f->n_succeeded == 0 && f->config.exit_code_of_worker)
        return 128 + f->interrupt;
    return f->is_ending || f->n_succeeded == 0;
}

/* Without an agent no report names the signal. */
static void report_early_stop(struct front *f, int signal)
{
    char name[SIGNAL_NAME_SIZE];

    for (unsigned i = 0; i < f->config.n_hosts; i++)
        if (f->hosts[i].state == FRONT_RUNNING || f->hosts[i].state == FRONT_ENDED)
            return;
    (void)snprintf(f->why, sizeof(f->why), "stopped by %s before the start on any host",
                   signal_name(signal, name));
    act(f, FRONT_DO_SAY, 0, 0);
}

static void on_signal(struct front *f, int signal, uint64_t now_ms)
{
    if (f->interrupt && now_ms < f->signal_ms + FRONT_SAME_REQUEST_MS)
        return;
    f->signal_ms = now_ms;
    f->interrupt = f->interrupt ? f->interrupt : signal;
    if (++f->n_signals == 1) {
        report_early_stop(f, signal);
        give_up_starting(f, now_ms);
    }
    if (f->n_signals < 3)
        signal_running(f, signal);
    else
        close_all(f, now_ms);
}

/* The first push is a signal, the second closes the channels. */
static void push_ending(struct front *f, uint64_t now_ms)
{
    if (f->n_pushes++ == 0)
        signal_running(f, SIGTERM);
    else
        close_all(f, now_ms);
    f->push_ms = now_ms + f->config.grace_ms;
}

/* Names with commas, cut after many. Returns the number of hosts. */
static unsigned list_hosts(const struct front *f, bool (*is_listed)(const struct host_status *),
                           char ret[FRONT_WHY_SIZE])
{
    unsigned n_listed = 0;
    size_t n = 0;

    ret[0] = 0;
    for (unsigned i = 0; i < f->config.n_hosts; i++) {
        if (!is_listed(&f->hosts[i]))
            continue;
        (void)snprintf(ret + n, FRONT_WHY_SIZE - n, "%s%s", n_listed++ ? ", " : "", f->names[i]);
        n += strlen(ret + n);
    }
    return n_listed;
}

static void name_waiting(struct front *f, uint64_t now_ms)
{
    char names[FRONT_WHY_SIZE];

    if (stops(f) || now_ms < f->begin_ms + f->show_after_ms)
        return;
    f->show_after_ms *= 2;
    unsigned n_waiting = list_hosts(f, is_starting, names);
    for (unsigned i = 0; i < f->config.n_hosts; i++)
        n_waiting += f->hosts[i].state == FRONT_WAITING;
    if (n_waiting == 0)
        return;
    (void)snprintf(f->why, sizeof(f->why), "waiting for %u of %u hosts%s%.450s", n_waiting, f->config.n_hosts,
                   names[0] ? ": " : "", names);
    act(f, FRONT_DO_SAY, 0, 0);
}

static bool is_silent(const struct host_status *h)
{
    return h->state == FRONT_RUNNING && h->silence_s >= FRONT_SILENCE_S && !h->is_named;
}

/* A host that does not answer holds up the end of the job. */
static void name_silent(struct front *f)
{
    char names[FRONT_WHY_SIZE];
    unsigned n = stops(f) ? list_hosts(f, is_silent, names) : 0, silence_s = 0;

    if (n == 0)
        return;
    for (unsigned i = 0; i < f->config.n_hosts; i++)
        if (is_silent(&f->hosts[i])) {
            silence_s = f->hosts[i].silence_s;
            f->hosts[i].is_named = true;
        }
    (void)snprintf(f->why, sizeof(f->why), "waiting for host%s %.400s, which %s not answered for %u s",
                   n > 1 ? "s" : "", names, n > 1 ? "have" : "has", silence_s);
    act(f, FRONT_DO_SAY, 0, 0);
}

static bool is_overdue(const struct host_status *h, uint64_t now_ms)
{
    uint64_t limit_ms = h->state == FRONT_COPYING ? FRONT_COPY_LIMIT_MS : FRONT_START_LIMIT_MS;

    return is_starting(h) && now_ms >= h->since_ms + limit_ms;
}

/* At most one sentence in a step. */
static void on_tick(struct front *f, uint64_t now_ms)
{
    for (unsigned i = 0; i < f->config.n_hosts; i++) {
        if (!is_overdue(&f->hosts[i], now_ms))
            continue;
        bool is_copying = f->hosts[i].state == FRONT_COPYING;
        act(f, FRONT_DO_CLOSE, i, 0);
        on_lost(f, i, false, is_copying ? "no start within ten minutes" : "no answer within two minutes",
                now_ms);
        return;
    }
    name_waiting(f, now_ms);
    name_silent(f);
    if (f->is_ending && now_ms >= f->give_up_ms)
        give_up_starting(f, now_ms);
    if (f->is_ending && now_ms >= f->push_ms)
        push_ending(f, now_ms);
}

static void dispatch(struct front *f, const struct front_event *e)
{
    switch (e->kind) {
    case FRONT_EVENT_BEGIN:
        f->begin_ms = e->now_ms;
        f->show_after_ms = FRONT_SHOW_MS;
        f->spares_ms = e->now_ms + FRONT_SPARES_MS;
        break;
    case FRONT_EVENT_COPY:
        enter(f, e->host, FRONT_COPYING, e->now_ms);
        break;
    case FRONT_EVENT_GREETED:
        enter(f, e->host, stops(f) ? FRONT_LOST : FRONT_RUNNING, e->now_ms);
        if (stops(f))
            act(f, FRONT_DO_CLOSE, e->host, 0);
        break;
    case FRONT_EVENT_JOINED:
        f->n_joined = (unsigned)e->value;
        break;
    case FRONT_EVENT_SILENT:
        f->hosts[e->host].silence_s = (unsigned)e->value;
        break;
    case FRONT_EVENT_RESULT:
        on_result(f, e->host, e->value, e->now_ms);
        break;
    case FRONT_EVENT_LOST:
        on_lost(f, e->host, f->hosts[e->host].state == FRONT_RUNNING, e->text, e->now_ms);
        break;
    case FRONT_EVENT_REFUSED:
        on_lost(f, e->host, false, e->text, e->now_ms);
        break;
    case FRONT_EVENT_SIGNAL:
        on_signal(f, e->value, e->now_ms);
        break;
    case FRONT_EVENT_PASS:
        signal_running(f, e->value);
        break;
    case FRONT_EVENT_TICK:
        on_tick(f, e->now_ms);
        break;
    default:
        break;
    }
}

static bool is_about_host(enum front_event_kind kind)
{
    return kind >= FRONT_EVENT_COPY && kind <= FRONT_EVENT_REFUSED;
}

/* Waiting hosts alone are spares that came too late for the job. */
static bool is_any_open(const struct front *f)
{
    bool is_open = false;

    for (unsigned i = 0; i < f->config.n_hosts; i++)
        is_open = is_open || host_status_is_open(&f->hosts[i]);
    return is_open;
}

void front_step(struct front *f, struct front_event event)
{
    f->n_actions = 0;
    if (f->is_finished || (is_about_host(event.kind) && !host_status_is_open(&f->hosts[event.host])))
        return;
    dispatch(f, &event);
    launch_more(f, event.now_ms);
    f->is_finished = !is_any_open(f);
    if (f->is_finished)
        act(f, FRONT_DO_FINISH, 0, exit_code(f));
}
