#include "rendezvous/etcd/leader_silence.h"

#include "base/err.h"

void leader_silence_begin(struct leader_silence *s)
{
    *s = (struct leader_silence){0};
}

void leader_silence_reopened(struct leader_silence *s)
{
    s->is_answered = false;
    s->n_silent_connection = 0;
    s->is_sound = s->has_etcd_answered;
    s->has_etcd_answered = false;
}

void leader_silence_answered(struct leader_silence *s)
{
    *s = (struct leader_silence){.is_answered = true, .n_closed = s->n_closed};
}

enum leader_step leader_silence_tick(struct leader_silence *s)
{
    if (s->is_answered) {
        leader_silence_begin(s);
        return LEADER_STEP_PING;
    }
    s->n_silent++;
    s->n_silent_connection++;
    /* The answer of etcd that makes it certain comes within a tick. */
    return s->n_silent_connection >= SILENT_TICKS + (s->is_sound ? 1 : 0) ? LEADER_STEP_REOPEN
                                                                          : LEADER_STEP_NONE;
}

/* No local port is free, or none in the kernel's table: a shortage, too. */
static bool is_own_lack(int r)
{
    return err_is_shortage(r) || r == -EADDRNOTAVAIL || r == -EAGAIN;
}

bool leader_silence_ended(struct leader_silence *s, int r)
{
    if (r == 0)
        s->n_closed++;
    else if (r != -ECONNREFUSED && !is_own_lack(r))
        (void)leader_silence_tick(s); /* another connection is opened in any case */
    return r == -ECONNREFUSED;
}

unsigned leader_silence_pause_ms(const struct leader_silence *s, int r)
{
    unsigned ms = LEADER_PAUSE_MIN_MS;

    if (r < 0)
        return LEADER_TICK_MS;
    for (unsigned i = 2; i < s->n_closed && ms < LEADER_TICK_MS; i++)
        ms *= 2;
    return s->n_closed <= 1 ? 0 : ms < LEADER_TICK_MS ? ms : LEADER_TICK_MS;
}

enum leader_step leader_silence_etcd_answered(struct leader_silence *s)
{
    /* An answer that was on its way when this host was cut off proves nothing. */
    if (s->n_silent < SILENT_TICKS - 1)
        return LEADER_STEP_NONE;
    s->has_etcd_answered = true;
    if (s->is_sound)
        return s->n_silent >= LOST_TICKS && s->n_silent_connection > 0 ? LEADER_STEP_REPLACE
                                                                       : LEADER_STEP_NONE;
    return s->n_silent >= SILENT_TICKS ? LEADER_STEP_REOPEN : LEADER_STEP_NONE;
}
