#include "rendezvous/relay/replica_redial.h"

static bool was_refused(const struct replica_attempt *a)
{
    return a->is_connected && (a->is_broken || (!a->has_served && a->lasted_ms < REPLICA_REDIAL_STEADY_MS));
}

static uint64_t pause_ms(unsigned n_refused)
{
    uint64_t ms = REPLICA_REDIAL_MIN_MS;

    for (unsigned i = 1; i < n_refused && ms < REPLICA_REDIAL_MAX_MS; i++)
        ms *= 2;
    return ms < REPLICA_REDIAL_MAX_MS ? ms : REPLICA_REDIAL_MAX_MS;
}

bool replica_redial_ended(struct replica_redial *r, const struct replica_attempt *attempt, uint64_t now_ms)
{
    bool is_refusal = was_refused(attempt);

    if (is_refusal && r->n_refused < UINT32_MAX)
        r->n_refused++;
    else if (!is_refusal && attempt->is_connected)
        r->n_refused = 0;
    r->due_ms = now_ms + pause_ms(is_refusal ? r->n_refused : 0);
    return is_refusal && r->n_refused == REPLICA_REDIAL_LOGGED;
}

void replica_redial_reset(struct replica_redial *r)
{
    *r = (struct replica_redial){0};
}
