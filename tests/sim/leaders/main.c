/*
 * sim_leaders: several crunds in front of one etcd, in virtual time: the shipping core that decides which of them leads
 * (rendezvous/etcd/etcd_leader.h), a model of etcd, and requests that are delayed, lost, answered too late, or carried out long
 * after their sender has given up. Processes are killed, stopped and started again, and their clocks are fast or slow.
 *
 *     sim_leaders [--seeds A..B] [--quiet] [--trace]
 *
 * What must hold:
 *   - A crund that leads saves and tells (in the rounds: sends views) what it has decided. Once it has told something, none with
 *     a lower term tells anything: two never decide at a time. Where machines are suspended, which stops their clocks, one with
 *     a lower term may still tell what it has decided before (agents refuse it), and nothing that it decides later.
 *   - What was told was saved: the next leader reads it, or something later, and each job as a whole.
 *   - When nothing fails any more one leads, and what it decides is told within a moment. It goes on to lead.
 *
 * The first violation is printed with its seed, and the exit code is 1.
 */

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd/etcd_leader.h"
#include "tests/sim/etcd_link.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

enum {
    CRUNDS_MAX = 4,
    JOBS_MAX = 64,
    DECISIONS_MAX = 4096,
    TERMS_MAX = 1024,
    CALM_S = 60, /* no faults from then on */
    END_S = 85,
    SETTLE_S = 12, /* after the calm: until one must lead */
    TELL_S = 4,    /* the longest from a decision to its telling, then */
};

enum moment_kind { APPLY, ANSWER, TICK, DECIDE, FAULT, BOOT, EXPIRE, CALM, SETTLED, CHECK_END };

/* What a crund has decided and not told yet. */
struct decision {
    uint64_t mark, instance, value, at_ns;
    bool forget;
};

/* A job in a crund's memory. */
struct known_job {
    uint64_t instance, value, nodes, size;
};

struct crund {
    bool alive;
    uint64_t life, paused_until_ns, clock_offset_ns;
    int64_t ppm;
    struct etcd_leader core;
    bool leads; /* the shell's view */
    uint64_t timer_ns;
    bool is_cut; /* from etcd */
    struct known_job jobs[JOBS_MAX];
    size_t n_jobs;
    struct decision decisions[DECISIONS_MAX];
    size_t n_decisions;
};

/* What the agents of a job were told. */
struct told_job {
    uint64_t instance, value;
    bool is_forgotten, wants_forget;
};

/* When something was told first in a term. */
struct told_term {
    int64_t term;
    uint64_t at_ns;
};

struct world {
    uint64_t seed, now_ns, n_events;
    struct random random;
    struct schedule schedule;
    struct etcd_link etcd;
    struct crund crunds[CRUNDS_MAX];
    unsigned n_crunds;
    struct told_job told[JOBS_MAX];
    size_t n_told;
    uint64_t n_instances;
    struct told_term terms[TERMS_MAX];
    size_t n_told_terms;
    uint64_t last_told_ns;
    bool is_calm, has_large, has_suspends, failed;
    bool trace;
    char failure[512];
    uint64_t n_terms, n_tells, n_terms_settled;
};

static struct world w;

static void violated(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void violated(const char *format, ...)
{
    va_list arguments;

    if (w.failed)
        return;
    w.failed = true;
    va_start(arguments, format);
    (void)vsnprintf(w.failure, sizeof(w.failure), format, arguments);
    va_end(arguments);
}

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void note(const char *format, ...)
{
    va_list arguments;

    if (!w.trace)
        return;
    printf("%10.3f ms  ", (double)w.now_ns / 1e6);
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

static uint64_t clock_of(const struct crund *c)
{
    return c->clock_offset_ns + w.now_ns + (uint64_t)((int64_t)(w.now_ns / 1000) * c->ppm / 1000);
}

/* When the clock of the crund shows that, at the earliest. */
static uint64_t when_clock(const struct crund *c, uint64_t clock_ns)
{
    uint64_t since_ns = clock_ns > c->clock_offset_ns ? clock_ns - c->clock_offset_ns : 0;

    return (uint64_t)((double)since_ns * 1e6 / (double)(1000000 + c->ppm)) + 2000;
}

static void later(uint64_t after_ns, enum moment_kind kind, unsigned who, uint64_t detail)
{
    schedule_add(&w.schedule, w.now_ns + after_ns, kind, who, detail);
}

/* ---- the texts of a job ---- */

/* Of a size that needs several chunks, sometimes. */
static void job_nodes(struct buf *out, const struct known_job *job)
{
    uint64_t word = job->nodes * UINT64_C(0x9E3779B97F4A7C15);

    for (size_t i = 0; i < job->size; i += sizeof(word))
        if (buf_append(out, &word, sizeof(word)) != 0)
            abort();
}

static int job_head(char head[100], const struct known_job *job)
{
    return snprintf(head, 100, "V%" PRIu64 " N%" PRIu64 " S%" PRIu64 ";", job->value, job->nodes, job->size);
}

static void save_job(struct crund *c, const struct known_job *job)
{
    struct buf nodes = {0};
    char head[100];
    int n = job_head(head, job);

    job_nodes(&nodes, job);
    etcd_leader_save(&c->core, job->instance, head, (size_t)n, buf_bytes(&nodes), buf_size(&nodes));
    buf_finish(&nodes);
}

static struct told_job *told_of(uint64_t instance)
{
    for (size_t i = 0; i < w.n_told; i++)
        if (w.told[i].instance == instance)
            return &w.told[i];
    if (w.n_told == JOBS_MAX)
        return NULL;
    w.told[w.n_told] = (struct told_job){.instance = instance};
    return &w.told[w.n_told++];
}

/* ---- leading ---- */

static void take_job(void *data, uint64_t instance, const uint8_t *text, size_t n)
{
    struct crund *c = data;
    struct known_job job = {.instance = instance};
    struct buf nodes = {0};
    char head[100] = "";
    int used = 0;

    if (text)
        memcpy(head, text, n < sizeof(head) - 1 ? n : sizeof(head) - 1);
    if (!text || sscanf(head, "V%" SCNu64 " N%" SCNu64 " S%" SCNu64 ";%n", &job.value, &job.nodes, &job.size,
                        &used) != 3)
        violated("a job is read that is not whole");
    job_nodes(&nodes, &job);
    if (!w.failed && (buf_size(&nodes) != n - (size_t)used ||
                      (n > (size_t)used && memcmp(buf_bytes(&nodes), text + used, n - (size_t)used) != 0)))
        violated("a job is read with the nodes of another time");
    buf_finish(&nodes);
    if (c->n_jobs < JOBS_MAX)
        c->jobs[c->n_jobs++] = job;
}

static struct known_job *job_of(struct crund *c, uint64_t instance)
{
    for (size_t i = 0; i < c->n_jobs; i++)
        if (c->jobs[i].instance == instance)
            return &c->jobs[i];
    return NULL;
}

/* It read the jobs, and was suspended until after another one led: its saves are fenced, and nothing of it is told. */
static bool is_out_of_date(const struct crund *c)
{
    for (size_t i = 0; w.has_suspends && i < w.n_told_terms; i++)
        if (w.terms[i].term > c->core.term)
            return true;
    return false;
}

static void check_loaded(struct crund *c)
{
    if (is_out_of_date(c))
        return;
    for (size_t i = 0; i < w.n_told; i++) {
        const struct told_job *t = &w.told[i];
        const struct known_job *job = job_of(c, t->instance);

        if (t->is_forgotten && job)
            violated("a job that was forgotten is there again");
        else if (!t->wants_forget && t->value > 0 && !job)
            violated("a job that was saved is gone");
        else if (!t->wants_forget && job && job->value < t->value)
            violated("a saved job is read with %" PRIu64 ", and %" PRIu64 " was told", job->value, t->value);
    }
}

static void take_change(unsigned who)
{
    struct crund *c = &w.crunds[who];

    switch (etcd_leader_change(&c->core)) {
    case ETCD_ELECTED:
        note("crund %u leads with term %" PRId64, who, c->core.term);
        c->leads = true;
        c->n_jobs = c->n_decisions = 0;
        w.n_terms++;
        etcd_leader_loaded(&c->core, take_job, c);
        check_loaded(c);
        break;
    case ETCD_DEPOSED:
        note("crund %u leads no more: %s", who, c->core.why);
        c->leads = false;
        break;
    case ETCD_NO_CHANGE:
        break;
    }
}

static void check_term(int64_t term, const struct decision *d)
{
    bool is_new = true;

    for (size_t i = 0; i < w.n_told_terms; i++) {
        const struct told_term *other = &w.terms[i];

        is_new = is_new && other->term != term;
        if (other->term > term && (!w.has_suspends || other->at_ns < d->at_ns))
            violated("a crund with term %" PRId64 " tells something after one with term %" PRId64, term,
                     other->term);
    }
    if (is_new && w.n_told_terms < TERMS_MAX)
        w.terms[w.n_told_terms++] = (struct told_term){term, w.now_ns};
}

static void tell(struct crund *c, const struct decision *d)
{
    struct told_job *t = told_of(d->instance);

    check_term(c->core.term, d);
    w.n_tells++;
    w.last_told_ns = w.now_ns;
    if (w.is_calm && w.now_ns > (CALM_S + SETTLE_S) * S && w.now_ns - d->at_ns > TELL_S * S)
        violated("a decision is told after %.1f s", (double)(w.now_ns - d->at_ns) / 1e9);
    if (!t)
        return;
    t->is_forgotten = t->is_forgotten || d->forget;
    if (d->value > t->value)
        t->value = d->value;
}

static void tell_decisions(struct crund *c)
{
    size_t kept = 0;

    if (!c->leads) {
        c->n_decisions = 0;
        return;
    }
    for (size_t i = 0; i < c->n_decisions; i++)
        if (c->decisions[i].mark <= c->core.done)
            tell(c, &c->decisions[i]);
        else
            c->decisions[kept++] = c->decisions[i];
    c->n_decisions = kept;
}

/* ---- requests ---- */

static void send(unsigned who, enum etcd_lane_of_crund lane, struct etcd_request *request)
{
    struct crund *c = &w.crunds[who];

    (void)etcd_link_send(&w.etcd, w.now_ns, who, c->life, lane, request, c->is_cut);
}

static void run_crund(unsigned who);

static void answer(unsigned who, size_t number)
{
    struct crund *c = &w.crunds[who];

    if (c->alive && w.now_ns < c->paused_until_ns)
        schedule_add(&w.schedule, c->paused_until_ns, ANSWER, who, number);
    else if (etcd_link_answer(&w.etcd, number, c->alive ? &c->core : NULL, c->life, clock_of(c)))
        run_crund(who);
}

/* As the shell does after each event. */
static void run_crund(unsigned who)
{
    struct crund *c = &w.crunds[who];
    struct etcd_request request;
    uint64_t deadline_ns;

    if (w.failed)
        return;
    etcd_leader_tick(&c->core, clock_of(c));
    take_change(who);
    tell_decisions(c);
    if (etcd_leader_next_work(&c->core, clock_of(c), &request))
        send(who, ETCD_LINK_WORK, &request);
    if (etcd_leader_next_lease(&c->core, clock_of(c), &request))
        send(who, ETCD_LINK_LEASE, &request);
    deadline_ns = etcd_leader_deadline(&c->core);
    if (deadline_ns == UINT64_MAX)
        return; /* until an answer comes */
    deadline_ns = when_clock(c, deadline_ns);
    if (deadline_ns < w.now_ns + 1000)
        deadline_ns = w.now_ns + 1000;
    if (c->timer_ns > w.now_ns && c->timer_ns <= deadline_ns)
        return;
    c->timer_ns = deadline_ns; /* ticks before that do nothing */
    schedule_add(&w.schedule, deadline_ns, TICK, who, c->life);
}

/* ---- deciding ---- */

static uint64_t random_size(void)
{
    if (w.has_large && random_percent(&w.random, 20))
        return random_between(&w.random, 10, 300) * 8192;
    return random_between(&w.random, 0, 40) * 8;
}

static void choose_decision(struct crund *c, struct decision *d)
{
    struct known_job *job = c->n_jobs > 0 ? &c->jobs[random_u64(&w.random) % c->n_jobs] : NULL;
    bool is_new = !job || (c->n_jobs < 4 && w.n_instances < JOBS_MAX && random_percent(&w.random, 10));

    if (is_new && w.n_instances < JOBS_MAX) {
        job = &c->jobs[c->n_jobs++];
        *job = (struct known_job){.instance = ++w.n_instances};
    }
    if (!job)
        return;
    d->instance = job->instance;
    if (!is_new && random_percent(&w.random, 5)) {
        struct told_job *t = told_of(job->instance);

        d->forget = t->wants_forget = true;
        etcd_leader_forget(&c->core, job->instance);
        *job = c->jobs[--c->n_jobs];
        return;
    }
    d->value = ++job->value;
    if (is_new || random_percent(&w.random, 40)) {
        job->nodes++;
        job->size = random_size();
    }
    (void)told_of(job->instance);
    save_job(c, job);
}

static void decide(unsigned who)
{
    struct crund *c = &w.crunds[who];
    struct decision d = {.at_ns = w.now_ns};

    if (c->alive && c->leads && w.now_ns >= c->paused_until_ns && c->core.change == ETCD_NO_CHANGE &&
        c->n_decisions < DECISIONS_MAX) {
        if (random_percent(&w.random, 70))
            choose_decision(c, &d); /* else something is told that is not saved: STOP */
        d.mark = etcd_leader_want_mark(&c->core);
        c->decisions[c->n_decisions++] = d;
        run_crund(who);
    }
    later(random_between(&w.random, 1, 300) * MS, DECIDE, who, 0);
}

/* ---- faults ---- */

static void boot(unsigned who)
{
    struct crund *c = &w.crunds[who];
    struct etcd_leader_config config = {.id = random_u64(&w.random)};

    if (c->alive)
        return;
    (void)snprintf(config.prefix, sizeof(config.prefix), "/t");
    (void)snprintf(config.address, sizeof(config.address), "10.0.0.%u:29400", who + 1);
    etcd_leader_init(&c->core, &config);
    c->alive = true;
    c->leads = false;
    c->life++;
    c->timer_ns = c->paused_until_ns = 0;
    c->n_jobs = c->n_decisions = 0;
    c->clock_offset_ns = 1000 * S + random_u64(&w.random) % (1000 * S);
    c->ppm = (int64_t)random_between(&w.random, 0, 60000) - 30000;
    note("crund %u boots", who);
    run_crund(who);
}

static void kill_crund(unsigned who)
{
    struct crund *c = &w.crunds[who];

    if (!c->alive)
        return;
    note("crund %u is killed%s", who, c->leads ? ", which leads" : "");
    etcd_leader_finish(&c->core);
    c->alive = c->leads = false;
    c->life++;
    later(random_between(&w.random, 1, 4000) * MS, BOOT, who, 0);
}

static void inflict(void)
{
    unsigned who = (unsigned)(random_u64(&w.random) % w.n_crunds);
    struct crund *c = &w.crunds[who];

    if (w.is_calm)
        return;
    switch (random_u64(&w.random) % 6) {
    case 0:
    case 1:
        for (unsigned i = 0; i < w.n_crunds; i++) /* the one that leads, if there is one */
            who = w.crunds[i].leads && random_percent(&w.random, 70) ? i : who;
        kill_crund(who);
        break;
    case 2:
        c->paused_until_ns = w.now_ns + random_between(&w.random, 1, 6000) * MS;
        if (w.has_suspends && random_percent(&w.random, 50))
            c->clock_offset_ns -= c->paused_until_ns - w.now_ns; /* the clock stands still meanwhile */
        note("crund %u is stopped until %.3f ms", who, (double)c->paused_until_ns / 1e6);
        break;
    case 3:
        c->is_cut = !c->is_cut;
        note("crund %u is %s etcd", who, c->is_cut ? "cut off from" : "connected to");
        break;
    case 4:
        w.etcd.is_down = !w.etcd.is_down && random_percent(&w.random, 40);
        note("etcd has %s majority", w.etcd.is_down ? "no" : "a");
        break;
    default:
        w.etcd.fault_percent = (unsigned)random_between(&w.random, 0, 12);
        break;
    }
    later(random_between(&w.random, 10, 6000) * MS, FAULT, 0, 0);
}

static void calm_down(void)
{
    w.is_calm = true;
    w.etcd.is_down = false;
    w.etcd.fault_percent = 0;
    for (unsigned i = 0; i < w.n_crunds; i++)
        w.crunds[i].is_cut = false;
    note("calm");
}

static void check_end(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w.n_crunds; i++)
        n += w.crunds[i].alive && w.crunds[i].leads;
    if (n != 1)
        violated("%u crunds lead at the end", n);
    else if (w.n_terms != w.n_terms_settled)
        violated("%" PRIu64 " terms begin when nothing fails any more", w.n_terms - w.n_terms_settled);
    else if (w.now_ns - w.last_told_ns > TELL_S * S)
        violated("nothing has been told for %.1f s at the end", (double)(w.now_ns - w.last_told_ns) / 1e9);
}

/* ---- a run ---- */

static void tick(unsigned who, uint64_t life)
{
    struct crund *c = &w.crunds[who];

    if (!c->alive || c->life != life || w.now_ns < c->timer_ns)
        return; /* another one follows */
    if (w.now_ns < c->paused_until_ns) {
        c->timer_ns = c->paused_until_ns;
        schedule_add_last(&w.schedule, c->paused_until_ns, TICK, who, life);
        return;
    }
    run_crund(who);
}

static void happen(const struct moment *m)
{
    switch ((enum moment_kind)m->kind) {
    case APPLY:
        etcd_link_apply(&w.etcd, w.now_ns, (size_t)m->detail);
        break;
    case ANSWER:
        answer(m->who, (size_t)m->detail);
        break;
    case TICK:
        tick(m->who, m->detail);
        break;
    case DECIDE:
        decide(m->who);
        break;
    case FAULT:
        inflict();
        break;
    case BOOT:
        boot(m->who);
        break;
    case EXPIRE:
        if (!w.etcd.is_down)
            etcd_model_expire(&w.etcd.model, w.now_ns);
        later(random_between(&w.random, 50, 500) * MS, EXPIRE, 0, 0);
        break;
    case CALM:
        calm_down();
        break;
    case SETTLED:
        w.n_terms_settled = w.n_terms;
        break;
    case CHECK_END:
        check_end();
        break;
    }
}

static void finish_world(void)
{
    for (unsigned i = 0; i < w.n_crunds; i++)
        if (w.crunds[i].alive)
            etcd_leader_finish(&w.crunds[i].core);
    etcd_link_finish(&w.etcd);
    schedule_finish(&w.schedule);
}

static bool run_seed(uint64_t seed, bool trace)
{
    struct moment m;

    w = (struct world){.seed = seed, .random = {.state = seed}, .trace = trace};
    etcd_link_init(&w.etcd, &w.random, &w.schedule, APPLY, ANSWER);
    w.n_crunds = (unsigned)random_between(&w.random, 2, CRUNDS_MAX);
    w.has_large = random_percent(&w.random, 4);
    w.has_suspends = random_percent(&w.random, 30);
    w.etcd.fault_percent = (unsigned)random_between(&w.random, 0, 8);
    for (unsigned i = 0; i < w.n_crunds; i++) {
        later(random_between(&w.random, 0, 2000) * MS, BOOT, i, 0);
        later(random_between(&w.random, 0, 500) * MS, DECIDE, i, 0);
    }
    later(S, FAULT, 0, 0);
    later(0, EXPIRE, 0, 0);
    schedule_add(&w.schedule, CALM_S * S, CALM, 0, 0);
    schedule_add(&w.schedule, (CALM_S + SETTLE_S) * S, SETTLED, 0, 0);
    schedule_add(&w.schedule, END_S * S, CHECK_END, 0, 0);
    while (!w.failed && schedule_next(&w.schedule, &m) && m.at_ns <= END_S * S) {
        w.now_ns = m.at_ns;
        w.n_events++;
        happen(&m);
    }
    if (w.failed)
        printf("seed %" PRIu64 ": %s\n", seed, w.failure);
    finish_world();
    return !w.failed;
}

int main(int argc, char **argv)
{
    uint64_t first = 0, last = 299, n_events = 0, n_terms = 0, n_tells = 0;
    bool is_quiet = false, trace = false;

    for (int i = 1; i < argc; i++) {
        is_quiet = is_quiet || strcmp(argv[i], "--quiet") == 0;
        trace = trace || strcmp(argv[i], "--trace") == 0;
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc)
            if (sscanf(argv[++i], "%" SCNu64 "..%" SCNu64, &first, &last) == 1)
                last = first;
    }
    for (uint64_t seed = first; seed <= last; seed++) {
        if (!run_seed(seed, trace))
            return 1;
        n_events += w.n_events;
        n_terms += w.n_terms;
        n_tells += w.n_tells;
    }
    if (!is_quiet)
        printf("%" PRIu64 " seeds, %" PRIu64 " events, %" PRIu64 " terms, %" PRIu64 " decisions told\n",
               last - first + 1, n_events, n_terms, n_tells);
    return 0;
}
