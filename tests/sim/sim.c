/*
 * One run: takes moments off the schedule and gives them to whom they concern.
 *
 * The cores assert their invariants (rendezvous/rounds/rounds_check.c). A failed assertion is a violation of this run: it takes the place
 * of the C library's, which would end the program without the seed and without a trace.
 */

#include "tests/sim/sim.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void *sim_allocate(size_t size)
{
    void *p = calloc(1, size);

    if (!p) {
        fputs("sim: no memory\n", stderr);
        exit(2);
    }
    return p;
}

void sim_trace(struct sim *sim, const char *format, ...)
{
    va_list arguments;

    if (!sim->trace)
        return;
    printf("%12.6f  ", (double)sim->now_ns / 1e9);
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

/* ---- failed assertions ---- */

static struct sim *running; /* NULL: none */
static jmp_buf end_of_run;

#ifndef NDEBUG
/* Leaves the core where it is: what it had half done is only freed, by sim_finish(). */
void __assert_fail(const char *assertion, const char *file, unsigned line, const char *function)
{
    if (!running) {
        (void)fprintf(stderr, "%s:%u: %s: assertion failed: %s\n", file, line, function, assertion);
        abort();
    }
    violated(running, "%s() asserts %s", function, assertion);
    longjmp(end_of_run, 1);
}
#endif

/* ---- moments ---- */

static const struct sim_connection *connection_of(const struct sim *sim, const struct moment *m)
{
    return sim->connections[m->who];
}

/* Whoever is paused does not notice anything before it goes on. 0: runs. */
static uint64_t postponed_ns(const struct sim *sim, const struct moment *m)
{
    uint64_t until_ns = 0;

    switch (m->kind) {
    case SIM_BREAK:
        until_ns = m->detail == SIM_DAEMON_END ? sim->daemons[connection_of(sim, m)->daemon].paused_until_ns
                                               : sim->agents[connection_of(sim, m)->agent].paused_until_ns;
        break;
    case SIM_CONNECTED:
    case SIM_REFUSED:
        until_ns = sim->agents[connection_of(sim, m)->agent].paused_until_ns;
        break;
    case SIM_AGENT_TIMER:
    case SIM_AGENT_READY:
    case SIM_GROUP_TIMER:
    case SIM_START_FILES:
    case SIM_GUARDIAN_IDLE:
    case SIM_GUARDIAN_LOST:
    case SIM_ORPHANS_END:
    case SIM_WORKER_STARTED:
    case SIM_WORKER_JOINING:
    case SIM_WORKER_READY:
    case SIM_WORKER_FAIL:
    case SIM_WORKER_DONE:
    case SIM_WORKER_DIE:
    case SIM_CUT_NOTICE:
    case SIM_CUT_FAIL:
    case SIM_AGENT_EXIT:
        until_ns = sim->agents[m->who].paused_until_ns;
        break;
    case SIM_DAEMON_TIMER:
    case SIM_DISK:
    case SIM_ETCD_TICK:
    case SIM_ETCD_ANSWER:
        until_ns = sim->daemons[m->who].paused_until_ns;
        break;
    default:
        break;
    }
    return until_ns > sim->now_ns ? until_ns : 0;
}

static void connected(struct sim *sim, unsigned connection, bool accepted)
{
    struct sim_connection *c = sim->connections[connection];

    if (!c->open[SIM_AGENT_END])
        return; /* it did not wait */
    if (accepted && sim->daemons[c->daemon].alive) {
        c->open[SIM_DAEMON_END] = true;
        c->death_notice ? network_send_death_notice(sim, connection) : agent_connected(sim, connection);
    } else {
        c->open[SIM_AGENT_END] = false;
        if (!c->death_notice)
            agent_lost(sim, connection, "connection refused");
    }
}

static void agent_moment(struct sim *sim, const struct moment *m)
{
    struct sim_agent *a = &sim->agents[m->who];

    if (!a->alive || a->life != m->detail)
        return;
    if (m->kind == SIM_AGENT_TIMER) {
        agent_timer(sim, m->who);
    } else if (m->kind == SIM_AGENT_READY) {
        agent_ready(sim, m->who);
    } else {
        agent_exit(sim, m->who);
    }
}

static void daemon_moment(struct sim *sim, const struct moment *m)
{
    struct sim_daemon *d = &sim->daemons[m->who];

    if (m->kind == SIM_DAEMON_BOOT)
        daemon_boot(sim, d);
    else if (!d->alive || d->life != m->detail)
        return;
    else if (m->kind == SIM_DAEMON_TIMER)
        daemon_timer(sim, d);
    else
        daemon_disk_written(sim, d);
}

static void happen(struct sim *sim, const struct moment *m)
{
    switch ((enum sim_moment)m->kind) {
    case SIM_PUMP:
        network_pump(sim, m->who, (enum sim_end)m->detail);
        break;
    case SIM_BREAK:
        network_break(sim, m->who, (enum sim_end)m->detail);
        break;
    case SIM_CONNECTED:
    case SIM_REFUSED:
        connected(sim, m->who, m->kind == SIM_CONNECTED);
        break;
    case SIM_AGENT_TIMER:
    case SIM_AGENT_READY:
    case SIM_AGENT_EXIT:
        agent_moment(sim, m);
        break;
    case SIM_AGENT_BOOT:
        agent_boot(sim, m->who);
        break;
    case SIM_GROUP_TIMER:
    case SIM_START_FILES:
    case SIM_GUARDIAN_IDLE:
    case SIM_GUARDIAN_LOST:
    case SIM_ORPHANS_END:
    case SIM_WORKER_STARTED:
    case SIM_WORKER_JOINING:
    case SIM_WORKER_READY:
    case SIM_WORKER_FAIL:
    case SIM_WORKER_DONE:
    case SIM_WORKER_DIE:
        workers_moment(sim, m);
        break;
    case SIM_LEASE:
        if (sim->agents[m->who].alive && sim->agents[m->who].life == m->detail)
            workers_fence(sim, m->who);
        break;
    case SIM_DAEMON_TIMER:
    case SIM_DAEMON_BOOT:
    case SIM_DISK:
        daemon_moment(sim, m);
        break;
    case SIM_ETCD_TICK:
    case SIM_ETCD_APPLY:
    case SIM_ETCD_ANSWER:
    case SIM_ETCD_EXPIRE:
        daemon_etcd_moment(sim, m);
        break;
    case SIM_FAULT:
        scenario_fault(sim);
        break;
    case SIM_HOST_CUT:
    case SIM_CUT_NOTICE:
    case SIM_CUT_FAIL:
        host_cut_moment(sim, m);
        break;
    case SIM_CHECK_NOTICE:
        check_notice(sim, m->who, (unsigned)m->detail);
        break;
    case SIM_CHECK_EXCLUSION:
        check_exclusion(sim, (unsigned)m->detail);
        break;
    case SIM_CHECK_CALM:
        check_calm(sim);
        break;
    case SIM_MOMENT_COUNT:
        break;
    }
}

static bool anybody_there(const struct sim *sim)
{
    for (unsigned i = 0; i < sim->scenario.n_agents; i++)
        if (sim->agents[i].alive)
            return true;
    return false;
}

/* A loop that goes on reads its sockets before its timers run. */
static bool waits_for_reads(uint32_t kind)
{
    return kind == SIM_DAEMON_TIMER || kind == SIM_ETCD_TICK;
}

static void run_schedule(struct sim *sim)
{
    struct moment m;

    while (!sim->failed && schedule_next(&sim->schedule, &m)) {
        uint64_t later_ns;

        if (m.at_ns > sim->scenario.end_ns)
            break;
        sim->now_ns = m.at_ns;
        sim->n_events++;
        later_ns = postponed_ns(sim, &m);
        if (later_ns > 0)
            (waits_for_reads(m.kind) ? schedule_add_last : schedule_add)(&sim->schedule, later_ns, m.kind,
                                                                         m.who, m.detail);
        else
            happen(sim, &m);
        if (m.kind == SIM_AGENT_EXIT && sim->now_ns > sim->scenario.finish_ns && !anybody_there(sim))
            break;
    }
    if (!sim->failed)
        check_all_ended(sim);
}

bool sim_run(struct sim *sim, uint64_t seed, unsigned n_agents, bool has_etcd, bool trace)
{
    *sim =
        (struct sim){.seed = seed, .trace = trace, .random = {.state = seed * UINT64_C(0x9E3779B97F4A7C15)}};
    scenario_choose(sim, n_agents, has_etcd);
    sim->agents = sim_allocate(sim->scenario.n_agents * sizeof(*sim->agents));
    for (unsigned i = 0; i < sim->scenario.n_agents; i++)
        sim->agents[i].connection = -1;
    running = sim;
    if (setjmp(end_of_run) == 0) {
        scenario_begin(sim);
        run_schedule(sim);
    }
    running = NULL;
    return !sim->failed;
}

void sim_finish(struct sim *sim)
{
    daemon_finish(sim);
    network_finish(sim);
    check_finish(sim);
    schedule_finish(&sim->schedule);
    for (unsigned i = 0; i < sim->scenario.n_agents; i++)
        workers_end(&sim->agents[i]);
    free(sim->agents);
}
