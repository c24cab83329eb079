#include "rendezvous/session/session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/format.h"
#include "base/utf8.h"

#define MS UINT64_C(1000000)

enum {
    /* Time for a connection to be established; the next attempt follows. */
    DIAL_MS = 1000,
    /* Something else at the endpoint has to be named within 5 s. */
    GREETING_MS = 4500,
    GREETING_AGAIN_MS = 1000,
    BACKOFF_MIN_MS = 100,
    BACKOFF_MAX_MS = 1000,
    /* Several crunds without a leader: a new leader comes within a moment. */
    BACKOFF_LEADERLESS_MS = 200,
    /* Of several crunds, a leader silent for the lease in etcd leads no more: the next leader waits --grace for the nodes. */
    LEADER_SILENT_MS = 3000,
    COMPLAIN_MS = 10000,
    /* A restarting rendezvous may close a connection, too; not so often in a row. */
    REBUFFS_MAX = 3,
    ALIVES_PER_TIMEOUT = 4,
    RENEWALS_PER_LEASE = 16, /* at most: a renewal takes the place of a sign of life */
    /* After SIGTERM the scheduler sends SIGKILL: do not spend the grace period redialling. */
    DRAIN_UNREACHABLE_MS = 5000,
};

const char *const session_link_names[SESSION_LINK_COUNT] = {
    [SESSION_LINK_DOWN] = "down",
    [SESSION_LINK_DIALING] = "dialing",
    [SESSION_LINK_GREETING] = "greeting",
    [SESSION_LINK_OPENING] = "opening",
    [SESSION_LINK_UP] = "up",
    [SESSION_LINK_CLOSED] = "over",
};

static void add_action(struct session_actions *out, enum session_action action)
{
    assert(out->n_items < SESSION_ACTIONS_MAX);
    out->items[out->n_items++] = action;
}

static void __attribute__((format(printf, 2, 3))) set_text(struct session *s, const char *format, ...)
{
    char text[sizeof(s->text) + 64];

    (void)format_arguments(text, sizeof(text), format);
    text_copy(s->text, sizeof(s->text), text);
}

static uint64_t node_timeout_ns(const struct session *s)
{
    return s->hello.params.node_timeout_ms * MS;
}

void session_init(struct session *s, const struct session_config *config)
{
    *s = (struct session){.hello = config->hello,
                          .endpoint = config->endpoint,
                          .cutoff_ns = config->cutoff_ns,
                          .has_more_endpoints = config->has_more_endpoints,
                          .random = config->hello.nonce.low | 1,
                          .generation = -1,
                          .group_rank = -1,
                          .cause = session_cause_empty(SESSION_CAUSE_NONE)};
    s->hello.attempt = 0;
}

/* ---- hellos and reports ---- */

void session_report(const struct session *s, uint64_t now_ns, struct session_report *ret)
{
    *ret = (struct session_report){.phase = s->phase,
                                   .instance = s->instance,
                                   .generation = s->generation,
                                   .group_rank = s->group_rank,
                                   .port = s->port,
                                   .restarts = s->restarts,
                                   .changes = s->changes,
                                   .drain = s->drain,
                                   .stop_signal = s->end == SESSION_END_NONE ? s->stop_signal : 0,
                                   .quiet = s->quiet && s->phase == SESSION_RUNNING,
                                   .keeps_keys = s->keeps_keys && s->phase == SESSION_READY,
                                   .cut_from = s->phase != SESSION_RUNNING ? s->cut_from : 0,
                                   .cause = s->cause};
    text_copy(ret->unfit, sizeof(ret->unfit), s->unfit);
    if (s->phase == SESSION_FAILED && now_ns > s->failed_ns)
        ret->age_ns = now_ns - s->failed_ns;
    if (s->phase == SESSION_LEFT) {
        ret->cause = session_cause_empty(SESSION_CAUSE_NONE);
        ret->cause.kind = SESSION_CAUSE_LEFT;
        text_copy(ret->cause.text, sizeof(ret->cause.text), s->leaving ? s->cause.text : s->text);
    }
}

void session_hello(const struct session *s, uint64_t now_ns, struct session_hello *ret)
{
    *ret = s->hello;
    session_report(s, now_ns, &ret->report);
}

/* Without a connection the next hello carries the report. */
static void send_report_action(struct session *s, struct session_actions *out)
{
    if (s->link == SESSION_LINK_UP || s->link == SESSION_LINK_OPENING)
        add_action(out, SESSION_DO_REPORT);
}

/* ---- the end ---- */

static bool has_connection(const struct session *s)
{
    return s->link != SESSION_LINK_DOWN && s->link != SESSION_LINK_CLOSED;
}

static void session_finish(struct session *s, enum session_end end, struct session_actions *out)
{
    if (has_connection(s))
        add_action(out, SESSION_DO_CLOSE);
    s->link = SESSION_LINK_CLOSED;
    if (s->leaving)
        return; /* the end is decided */
    s->end = end;
    add_action(out, SESSION_DO_END);
}

/* ---- the link ---- */

/* Somewhere in the upper half, so that agents cut off together do not return together. */
static uint64_t jitter_ns(struct session *s, uint32_t ms)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (ms / 2 + s->random % (ms / 2 + 1)) * MS;
}

static void session_dial(struct session *s, uint64_t now_ns, struct session_actions *out)
{
    s->link = SESSION_LINK_DIALING;
    s->dialed_ns = now_ns;
    s->link_until_ns = now_ns + DIAL_MS * MS;
    s->opened = false;
    s->is_hello_answered = s->is_renewal_open = false;
    s->hello.attempt++;
    add_action(out, SESSION_DO_DIAL);
}

static uint64_t patience_ns(const struct session *s)
{
    if (s->was_up && s->cutoff_ns > 0)
        return s->cutoff_ns;
    return s->was_up && s->lease_ms == 0 ? SESSION_CUTOFF_MS * MS : s->hello.params.join_timeout_ms * MS;
}

static uint64_t unreachable_until_ns(const struct session *s)
{
    uint64_t until_ns = s->unreachable_since_ns + patience_ns(s);
    uint64_t drain_ns = (s->drain_ns > s->unreachable_since_ns ? s->drain_ns : s->unreachable_since_ns) +
                        DRAIN_UNREACHABLE_MS * MS;

    return s->drain && drain_ns < until_ns ? drain_ns : until_ns;
}

/* The connection is lost, or was never there. The next attempt begins at most a second after the last. */
static void session_fall_back(struct session *s, uint64_t now_ns)
{
    if (s->link == SESSION_LINK_UP) {
        s->unreachable_since_ns = now_ns;
        s->backoff_ms = 0;
        s->patience_ns = GREETING_AGAIN_MS * MS;
    }
    s->link = SESSION_LINK_DOWN;
    s->redirect[0] = '\0';
    uint64_t wait_ns = s->backoff_ms > 0 ? jitter_ns(s, s->backoff_ms) : 0;
    s->link_until_ns = s->dialed_ns + wait_ns > now_ns ? s->dialed_ns + wait_ns : now_ns;
    s->backoff_ms = s->backoff_ms == 0 ? BACKOFF_MIN_MS : s->backoff_ms * 2;
    if (s->backoff_ms > BACKOFF_MAX_MS)
        s->backoff_ms = BACKOFF_MAX_MS;
}

/* why: in a few words, kept for the sentence of session_give_up(); NULL: nothing more is known. */
static void session_complain(struct session *s, uint64_t now_ns, const char *what, const char *why,
                             struct session_actions *out)
{
    uint64_t until_ns = unreachable_until_ns(s);
    unsigned long long left_s = until_ns > now_ns ? (until_ns - now_ns) / (1000 * MS) : 0;

    text_copy(s->trouble, sizeof(s->trouble), why ? why : "no answer");
    if (now_ns < s->next_complaint_ns || left_s == 0) /* the end is near, with the same reason */
        return;
    s->next_complaint_ns = now_ns + COMPLAIN_MS * MS;
    set_text(s, "the rendezvous at %.200s %s%s%s%s; trying again for %llu s%s", s->endpoint, what,
             why ? " (" : "", why ? why : "", why ? ")" : "", left_s,
             s->phase == SESSION_RUNNING ? ", and the workers go on meanwhile" : "");
    add_action(out, SESSION_DO_LOG);
}

static void session_hang_up(struct session *s, uint64_t now_ns, const char *what, const char *why,
                            struct session_actions *out)
{
    add_action(out, SESSION_DO_CLOSE);
    session_fall_back(s, now_ns);
    session_complain(s, now_ns, what, why, out);
}

static void finish_foreign(struct session *s, const char *what, struct session_actions *out)
{
    set_text(s, "%.200s is not a rendezvous of crun: %.200s; check --rdzv-endpoint and what listens there",
             s->endpoint, what);
    session_finish(s, SESSION_END_FOREIGN, out);
}

/* A TCPStore does so, and a crund only while deposed. */
static bool is_tcpstore(const struct session *s)
{
    return s->n_rebuffs >= REBUFFS_MAX && !s->is_crund;
}

static void step_lost(struct session *s, const struct session_event *event, struct session_actions *out)
{
    bool rebuffed = s->link == SESSION_LINK_OPENING && !s->opened;
    const char *why = event->text ? event->text : "closed";

    s->n_rebuffs = rebuffed ? s->n_rebuffs + 1 : 0;
    if (is_tcpstore(s) && !s->has_more_endpoints) {
        s->link = SESSION_LINK_DOWN; /* there is nothing to close */
        finish_foreign(s,
                       "it answers as PyTorch's TCPStore does and closes the connection when crun opens its "
                       "session, so it belongs to torchrun or to a training script",
                       out);
        return;
    }
    session_fall_back(s, event->now_ns);
    session_complain(s, event->now_ns, s->was_up ? "was lost" : "cannot be reached",
                     is_tcpstore(s) ? "it closes the connection when crun opens its session, as PyTorch's "
                                      "TCPStore does"
                                    : why,
                     out);
}

static void step_foreign(struct session *s, const struct session_event *event, struct session_actions *out)
{
    if (s->was_up) { /* another process took the port of an ended rendezvous, perhaps until a restart */
        session_hang_up(s, event->now_ns, "was lost", "something else answers there now", out);
        return;
    }
    finish_foreign(s, event->text ? event->text : "it does not speak the protocol", out);
}

static void step_version(struct session *s, const struct session_event *event, struct session_actions *out)
{
    set_text(
        s,
        "the rendezvous at %.200s speaks version %.20s of the agent session and this crun version %d; use "
        "the same release of crun on all nodes",
        s->endpoint, event->text ? event->text : "?", SESSION_VERSION);
    session_finish(s, SESSION_END_FOREIGN, out);
}

/* ---- the lease ---- */

uint64_t session_lease_end(const struct session *s)
{
    return s->lease_ms > 0 ? s->leased_ns + s->lease_ms * MS : UINT64_MAX;
}

/* RUNNING: the workers are stopped then. */
static uint64_t lease_stop_time(const struct session *s)
{
    return s->lease_ms > 0 ? session_lease_end(s) - session_lease_stop_ns(s->lease_ms) : UINT64_MAX;
}

static bool is_lease_over(const struct session *s, uint64_t now_ns)
{
    return now_ns >= lease_stop_time(s);
}

static void set_leased(struct session *s, uint64_t sent_ns)
{
    if (sent_ns > s->leased_ns)
        s->leased_ns = sent_ns;
}

static void set_own_cause(struct session *s, enum session_cause_kind kind)
{
    s->cause = session_cause_empty(kind);
    s->cause.group_rank = s->group_rank;
    text_copy(s->cause.host, sizeof(s->cause.host), s->hello.host);
}

static void set_lease_cause(struct session *s)
{
    uint64_t silence_ms = s->lease_ms - s->lease_ms / 5;

    set_own_cause(s, SESSION_CAUSE_LOST);
    (void)snprintf(s->cause.text, sizeof(s->cause.text),
                   "the rendezvous did not answer it for %g s, and its lease is %g s",
                   (double)silence_ms / 1000, (double)s->lease_ms / 1000); /* fits */
}

/* Others may start in the place of this node soon. How: SESSION_DO_FENCE or _FENCED. */
static void session_fence(struct session *s, enum session_action how, struct session_actions *out)
{
    s->phase = SESSION_STOPPING;
    set_lease_cause(s);
    add_action(out, how);
    send_report_action(s, out);
}

/* The first view of a connection answers the hello. */
static void take_lease(struct session *s, const struct session_view *view)
{
    s->lease_ms = view->lease_ms;
    if (!s->is_hello_answered)
        set_leased(s, s->hello_ns);
    s->is_hello_answered = true;
}

static void take_renewed(struct session *s, uint32_t number)
{
    if (!s->is_renewal_open || number != s->renewal)
        return;
    s->is_renewal_open = false;
    set_leased(s, s->renewal_ns);
}

static bool is_renewal_due(const struct session *s, uint64_t now_ns)
{
    return s->lease_ms > 0 && !s->is_renewal_open &&
           now_ns >= s->renewal_ns + s->lease_ms * MS / RENEWALS_PER_LEASE;
}

/* ---- views ---- */

static void take_start(struct session *s, const struct session_event *event, struct session_actions *out)
{
    const struct session_view *view = event->view;

    if (s->phase != SESSION_READY || view->generation <= s->generation)
        return; /* a repetition */
    if (is_lease_over(s, event->now_ns)) {
        /* The view was long on the way: others may run in the place of this node. The next hello brings a new lease. */
        session_hang_up(s, event->now_ns, "was too slow", "an order to start came after the lease", out);
        return;
    }
    s->phase = SESSION_RUNNING;
    s->cut_from = 0;
    s->instance = view->instance;
    s->generation = view->generation;
    s->group_rank = (int32_t)view->place.group_rank;
    s->restarts = view->restarts;
    s->changes = view->changes;
    s->cause = session_cause_empty(SESSION_CAUSE_NONE);
    s->drain = s->drained = s->quiet = false;
    add_action(out, SESSION_DO_START);
    send_report_action(s, out);
}

/* The report that settles the generation has to name the cut: the next report is too late. */
static void note_cut(struct session *s, const struct session_event *event)
{
    if (event->cut_from > 0)
        s->cut_from = event->cut_from;
}

static void take_stop(struct session *s, const struct session_event *event, struct session_actions *out)
{
    const struct session_view *view = event->view;

    if (view->generation != s->generation || (s->phase != SESSION_RUNNING && s->phase != SESSION_DONE))
        return;
    s->phase = SESSION_STOPPING;
    s->cause = view->cause;
    note_cut(s, event);
    add_action(out, SESSION_DO_STOP);
    send_report_action(s, out);
}

static void take_drain(struct session *s, const struct session_view *view, struct session_actions *out)
{
    if (!view->drain || s->drained || s->phase != SESSION_RUNNING || view->generation != s->generation)
        return;
    s->drained = true;
    add_action(out, SESSION_DO_DRAIN);
}

static void take_quiet(const struct session *s, const struct session_view *view, struct session_actions *out)
{
    if (view->quiet && s->quiet && s->phase == SESSION_RUNNING && view->generation == s->generation)
        add_action(out, SESSION_DO_QUIET);
}

static void take_end(struct session *s, const struct session_view *view, struct session_actions *out)
{
    s->verdict = view->verdict;
    s->stop_signal = view->verdict == SESSION_VERDICT_FAILURE ? view->stop_signal : 0;
    s->cause = view->cause;
    s->restarts = view->restarts;
    s->changes = view->changes;
    session_cause_describe(&view->cause, s->text, sizeof(s->text));
    s->phase = SESSION_LEFT; /* confirms that the result has arrived */
    send_report_action(s, out);
    session_finish(s, SESSION_END_VERDICT, out);
}

/* The rendezvous has answered in OPENING: the view may be held back until the state is on disk. */
static void session_extend_opening(struct session *s, uint64_t now_ns)
{
    uint64_t until_ns = now_ns + node_timeout_ns(s);

    s->unreachable_since_ns = now_ns;
    if (s->link_until_ns < until_ns)
        s->link_until_ns = until_ns;
}

/*
 * A crund that follows the leader has answered, and is not out of reach, but can decide nothing. The leader is dialled
 * at once, unless the answer came after a redirection: two crunds may name each other for a moment.
 */
static void take_elsewhere(struct session *s, const struct session_event *event, struct session_actions *out)
{
    bool is_known = event->view->leader[0] != '\0' && !s->was_redirected;

    s->was_redirected = is_known;
    s->n_rebuffs = 0;
    add_action(out, SESSION_DO_CLOSE);
    if (s->was_up)
        s->unreachable_since_ns = event->now_ns;
    if (is_known)
        s->backoff_ms = 0;
    else if (s->backoff_ms > BACKOFF_LEADERLESS_MS)
        s->backoff_ms = BACKOFF_LEADERLESS_MS;
    session_fall_back(s, event->now_ns);
    text_copy(s->redirect, sizeof(s->redirect), is_known ? event->view->leader : "");
    if (event->view->leader[0] == '\0')
        session_complain(s, event->now_ns, "has no leader now", "its state cannot be written", out);
}

/* A crund that was deposed and does not know it yet. Or etcd was restored from a backup, which takes its revisions back: that does
 * not pass by itself, so the sentence names the page with the remedy. */
static void reject_old_term(struct session *s, const struct session_event *event, struct session_actions *out)
{
    char why[sizeof(s->trouble)];

    (void)snprintf(why, sizeof(why),
                   "its term %" PRIu64 " is below %" PRIu64
                   "; if etcd was restored: crund(8), RESTORING ETCD",
                   event->view->term, s->term);
    session_hang_up(s, event->now_ns, "was replaced by another one", why, out);
}

static void session_set_up(struct session *s, uint64_t now_ns)
{
    s->heard_ns = now_ns;
    if (s->link == SESSION_LINK_UP)
        return;
    s->link = SESSION_LINK_UP;
    s->was_up = true;
    s->n_rebuffs = 0;
    s->next_complaint_ns = 0;
    s->alive_ns = now_ns; /* a sign of life at once: the silence timer of crund has run since our hello */
}

static void step_view(struct session *s, const struct session_event *event, struct session_actions *out)
{
    const struct session_view *view = event->view;

    s->is_crund = true;
    if (view->kind == SESSION_VIEW_ELSEWHERE) {
        take_elsewhere(s, event, out);
        return;
    }
    if (view->term < s->term) {
        reject_old_term(s, event, out);
        return;
    }
    s->term = view->term;
    s->was_redirected = false;
    session_set_up(s, event->now_ns);
    take_lease(s, view);
    switch (view->kind) {
    case SESSION_VIEW_WAIT:
        if (s->phase == SESSION_READY)
            add_action(out, SESSION_DO_PROGRESS);
        else if (s->unfit[0] && view->check)
            add_action(out, SESSION_DO_CHECK);
        break;
    case SESSION_VIEW_START:
        take_start(s, event, out);
        /* The rendezvous sends "start" until the report "running" has arrived, and "continue" only if something changes
         * afterwards: a drain may come with this view and no other. */
        take_drain(s, view, out);
        break;
    case SESSION_VIEW_CONTINUE:
        take_drain(s, view, out);
        take_quiet(s, view, out);
        break;
    case SESSION_VIEW_STOP:
        take_stop(s, event, out);
        break;
    case SESSION_VIEW_END:
        take_end(s, view, out);
        break;
    case SESSION_VIEW_REFUSED:
        set_text(s, "the rendezvous at %.200s refuses this node: %.300s", s->endpoint, view->cause.text);
        session_finish(s, SESSION_END_REFUSED, out);
        break;
    case SESSION_VIEW_ELSEWHERE:
    case SESSION_VIEW_COUNT:
        break;
    }
}

/* ---- the worker group ---- */

/* The failure was reported already, without the text, which takes a while to be read. */
static bool is_text_of_failure(const struct session *s, const struct session_event *event)
{
    return s->phase == SESSION_FAILED && !s->cause.text[0] && s->cause.rank == event->cause->rank &&
           s->cause.pid == event->cause->pid;
}

static void step_group_failed(struct session *s, const struct session_event *event,
                              struct session_actions *out)
{
    /* A worker may have failed before it could be stopped for another reason. */
    if ((s->phase != SESSION_RUNNING && s->phase != SESSION_STOPPING && !is_text_of_failure(s, event)) ||
        s->leaving)
        return;
    if (is_lease_over(s, event->now_ns)) { /* they were killed for that while this process did not run */
        if (s->phase == SESSION_RUNNING) {
            session_fence(s, SESSION_DO_FENCED, out);
            return;
        }
        set_lease_cause(s);
        send_report_action(s, out);
        return;
    }
    s->phase = SESSION_FAILED;
    s->cause = *event->cause;
    s->cause.kind = SESSION_CAUSE_WORKER;
    note_cut(s, event);
    s->failed_ns = event->when_ns;
    send_report_action(s, out);
}

static void step_group_ready(struct session *s, const struct session_event *event,
                             struct session_actions *out)
{
    if ((s->phase != SESSION_STOPPING && s->phase != SESSION_FAILED) || s->leaving)
        return;
    s->phase = SESSION_READY;
    s->port = event->port;
    s->keeps_keys = event->keeps_keys;
    note_cut(s, event);
    s->unfit[0] = 0;
    send_report_action(s, out);
}

static void step_group_unfit(struct session *s, const struct session_event *event,
                             struct session_actions *out)
{
    if (s->phase != SESSION_STOPPING && s->phase != SESSION_FAILED)
        return;
    s->phase = SESSION_STOPPING;
    text_copy(s->unfit, sizeof(s->unfit),
              event->text && *event->text ? event->text : "its health check failed");
    send_report_action(s, out);
}

static bool may_have_workers(const struct session *s)
{
    return s->phase == SESSION_RUNNING || s->phase == SESSION_FAILED ||
           (s->phase == SESSION_STOPPING && s->generation >= 0 && !s->unfit[0]);
}

static void session_leave(struct session *s, struct session_actions *out)
{
    s->phase = SESSION_LEFT;
    send_report_action(s, out);
    if (has_connection(s))
        add_action(out, SESSION_DO_CLOSE);
    s->link = SESSION_LINK_CLOSED;
}

/* With a lease a node that has left has no workers, as others may start at once: until then it is one that stops. */
static void step_leave(struct session *s, const struct session_event *event, struct session_actions *out)
{
    set_text(s, "%s", event->text ? event->text : "");
    s->stop_signal = event->number;
    if (s->lease_ms == 0 || !may_have_workers(s)) {
        session_leave(s, out);
        return;
    }
    s->leaving = true;
    s->phase = SESSION_STOPPING;
    set_own_cause(s, SESSION_CAUSE_LEFT);
    text_copy(s->cause.text, sizeof(s->cause.text), s->text);
    send_report_action(s, out);
}

/* ---- time ---- */

static void session_give_up(struct session *s, struct session_actions *out)
{
    set_text(s,
             s->was_up ? "the rendezvous at %.200s was lost and could not be reached again for %llu s%s%s"
                       : "the rendezvous at %.200s could not be reached for %llu s (the join timeout)%s%s; "
                         "check that it runs there, that --rdzv-endpoint is right, and firewalls between",
             s->endpoint,
             (unsigned long long)((unreachable_until_ns(s) - s->unreachable_since_ns) / (1000 * MS)),
             s->trouble[0] ? ": " : "", s->trouble);
    session_finish(s, SESSION_END_UNREACHABLE, out);
}

static uint64_t silent_ns(const struct session *s)
{
    uint64_t silent_ns = s->heard_ns + node_timeout_ns(s);

    return silent_ns > s->slow_until_ns ? silent_ns : s->slow_until_ns;
}

bool session_is_overdue(const struct session *s, uint64_t now_ns)
{
    return s->link == SESSION_LINK_UP && now_ns >= silent_ns(s);
}

static uint64_t slack_max_ns(const struct session *s)
{
    uint64_t most_ns = SESSION_SLACK_TIMEOUTS * node_timeout_ns(s), leader_ns = LEADER_SILENT_MS * MS;
    uint64_t led_ns = leader_ns > node_timeout_ns(s) ? leader_ns - node_timeout_ns(s) : 0;

    return s->term > 0 && led_ns < most_ns ? led_ns : most_ns;
}

static void step_slow(struct session *s, uint64_t slack_ns)
{
    uint64_t most_ns = slack_max_ns(s);

    s->slow_until_ns = s->heard_ns + node_timeout_ns(s) + (slack_ns < most_ns ? slack_ns : most_ns);
}

static void send_alive_if_due(struct session *s, uint64_t now_ns, struct session_actions *out)
{
    if (now_ns < s->alive_ns)
        return;
    s->alive_ns = now_ns + node_timeout_ns(s) / ALIVES_PER_TIMEOUT;
    if (!is_renewal_due(s, now_ns)) {
        add_action(out, SESSION_DO_ALIVE);
        return;
    }
    s->renewal++;
    s->renewal_ns = now_ns;
    s->is_renewal_open = true;
    add_action(out, SESSION_DO_RENEW);
}

static void tick_up(struct session *s, uint64_t now_ns, uint64_t late_ns, struct session_actions *out)
{
    /* A late timer: this process itself may not have run. */
    if (late_ns > node_timeout_ns(s) / ALIVES_PER_TIMEOUT)
        s->heard_ns = s->heard_ns + late_ns < now_ns ? s->heard_ns + late_ns : now_ns;
    if (now_ns >= silent_ns(s)) {
        session_hang_up(s, now_ns, "has stopped replying", NULL, out);
        return;
    }
    send_alive_if_due(s, now_ns, out);
}

/* Nothing came of this attempt in time. */
static void tick_stuck(struct session *s, uint64_t now_ns, struct session_actions *out)
{
    bool connected = s->link != SESSION_LINK_DIALING;

    if (connected && s->was_up && s->patience_ns < GREETING_MS * MS)
        s->patience_ns *= 2;
    s->n_rebuffs = 0;
    session_hang_up(
        s, now_ns, connected ? "accepts the connection and then sends nothing" : "cannot be reached",
        connected ? "something else may be listening there, or it is overloaded" : "no answer", out);
}

static uint64_t link_deadline(const struct session *s)
{
    if (s->link == SESSION_LINK_UP)
        return s->alive_ns < silent_ns(s) ? s->alive_ns : silent_ns(s);
    uint64_t deadline_ns =
        s->link_until_ns < unreachable_until_ns(s) ? s->link_until_ns : unreachable_until_ns(s);
    return s->link == SESSION_LINK_OPENING && s->alive_ns < deadline_ns ? s->alive_ns : deadline_ns;
}

static void step_session_timer(struct session *s, uint64_t now_ns, struct session_actions *out)
{
    if (s->phase == SESSION_RUNNING && is_lease_over(s, now_ns))
        session_fence(s, SESSION_DO_FENCE, out);
    uint64_t deadline_ns = link_deadline(s);

    if (now_ns < deadline_ns)
        return;
    if (s->link == SESSION_LINK_UP) {
        tick_up(s, now_ns, now_ns - deadline_ns, out);
    } else if (now_ns >= unreachable_until_ns(s)) {
        session_give_up(s, out);
        return;
    } else if (s->link == SESSION_LINK_OPENING && now_ns < s->link_until_ns) {
        send_alive_if_due(s, now_ns, out);
    } else if (s->link != SESSION_LINK_DOWN) {
        tick_stuck(s, now_ns, out);
    }
    if (s->link == SESSION_LINK_DOWN && now_ns >= s->link_until_ns)
        session_dial(s, now_ns, out);
}

uint64_t session_deadline(const struct session *s)
{
    uint64_t deadline_ns, stop_ns = lease_stop_time(s);

    if (s->link == SESSION_LINK_CLOSED || s->hello.attempt == 0)
        return UINT64_MAX;
    deadline_ns = link_deadline(s);
    return s->phase == SESSION_RUNNING && stop_ns < deadline_ns ? stop_ns : deadline_ns;
}

static void take_alive(struct session *s, uint64_t now_ns)
{
    s->heard_ns = now_ns;
    if (s->link == SESSION_LINK_OPENING)
        session_extend_opening(s, now_ns);
}

/* ---- events ---- */

static void step_link(struct session *s, const struct session_event *event, struct session_actions *out)
{
    switch (event->kind) {
    case SESSION_EVENT_START:
        s->unreachable_since_ns = event->now_ns;
        s->patience_ns = GREETING_MS * MS;
        session_dial(s, event->now_ns, out);
        break;
    case SESSION_EVENT_CONNECTED:
        s->link = SESSION_LINK_GREETING;
        s->link_until_ns = event->now_ns + s->patience_ns;
        add_action(out, SESSION_DO_GREET);
        break;
    case SESSION_EVENT_ECHOED:
        s->link = SESSION_LINK_OPENING;
        if (s->was_up) /* The daemon has just accepted us; hanging up would put us at the back of its accept queue. */
            s->link_until_ns = event->now_ns + s->patience_ns;
        s->alive_ns = event->now_ns + node_timeout_ns(s) / ALIVES_PER_TIMEOUT;
        s->hello_ns = event->now_ns;
        add_action(out, SESSION_DO_HELLO);
        break;
    case SESSION_EVENT_LOST:
        step_lost(s, event, out);
        break;
    case SESSION_EVENT_FOREIGN:
        step_foreign(s, event, out);
        break;
    case SESSION_EVENT_VERSION:
        step_version(s, event, out);
        break;
    case SESSION_EVENT_RENEWED:
        take_renewed(s, event->number);
        take_alive(s, event->now_ns);
        break;
    case SESSION_EVENT_ALIVE:
        take_alive(s, event->now_ns);
        break;
    case SESSION_EVENT_SLOW:
        step_slow(s, event->slack_ns);
        break;
    case SESSION_EVENT_VIEW:
        step_view(s, event, out);
        break;
    case SESSION_EVENT_TIMER:
        step_session_timer(s, event->now_ns, out);
        break;
    case SESSION_EVENT_OPENED:
        s->opened = s->is_crund = true;
        break;
    default:
        break;
    }
}

/* Invariants at the end of a step, in builds with assertions. */
static void check_session(const struct session *s, const struct session_actions *out)
{
    bool has_assignment = s->generation >= 0 && s->instance != 0 && s->group_rank >= 0;
    bool runs = s->phase == SESSION_RUNNING || s->phase == SESSION_FAILED || s->phase == SESSION_DONE;

    assert(!runs || has_assignment);
    assert(s->link != SESSION_LINK_UP || s->was_up);
    assert(s->end == SESSION_END_NONE || s->link == SESSION_LINK_CLOSED);
    assert(s->end == SESSION_END_NONE || s->text[0] != 0);
    assert(s->link == SESSION_LINK_CLOSED || s->backoff_ms <= BACKOFF_MAX_MS);
    assert(s->link == SESSION_LINK_CLOSED || s->hello.attempt == 0 || session_deadline(s) < UINT64_MAX);
    for (size_t i = 0; i < out->n_items; i++) {
        enum session_action action = out->items[i];

        assert(action != SESSION_DO_END || i + 1 == out->n_items);
        assert(action != SESSION_DO_DIAL || s->link == SESSION_LINK_DIALING);
        assert(action != SESSION_DO_HELLO || s->link == SESSION_LINK_OPENING);
        assert((action != SESSION_DO_ALIVE && action != SESSION_DO_RENEW) ||
               s->link == SESSION_LINK_OPENING || s->link == SESSION_LINK_UP);
        (void)action;
    }
    (void)has_assignment; /* without assertions */
    (void)runs;
}

void session_step(struct session *s, const struct session_event *event, struct session_actions *out)
{
    out->n_items = 0;
    if (s->link == SESSION_LINK_CLOSED)
        return;
    switch (event->kind) {
    case SESSION_EVENT_GROUP_READY:
        step_group_ready(s, event, out);
        break;
    case SESSION_EVENT_GROUP_UNFIT:
        step_group_unfit(s, event, out);
        break;
    case SESSION_EVENT_GROUP_FAILED:
        step_group_failed(s, event, out);
        break;
    case SESSION_EVENT_GROUP_DONE:
        if (s->phase == SESSION_RUNNING) {
            s->phase = SESSION_DONE;
            send_report_action(s, out);
        }
        break;
    case SESSION_EVENT_DRAIN:
        s->drain = true;
        s->drain_ns = event->now_ns;
        send_report_action(s, out);
        break;
    case SESSION_EVENT_QUIET:
        if (s->phase == SESSION_RUNNING && s->quiet != event->is_quiet) {
            s->quiet = event->is_quiet;
            send_report_action(s, out);
        }
        break;
    case SESSION_EVENT_LEAVE:
        step_leave(s, event, out);
        break;
    case SESSION_EVENT_GROUP_GONE:
        if (s->leaving)
            session_leave(s, out);
        break;
    default:
        step_link(s, event, out);
        break;
    }
    check_session(s, out);
}
