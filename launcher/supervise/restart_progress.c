#include "launcher/supervise/restart_progress.h"

#include <stdio.h>

void restart_progress_note(struct restart_progress *p, int64_t step, bool is_restart)
{
    bool is_higher = step >= 0 && (!p->has_best || step > p->best);

    if (is_higher) {
        p->has_best = true;
        p->best = step;
        p->n_without = 0;
    } else if (is_restart && p->n_without < INT32_MAX) {
        p->n_without++;
    }
}

bool restart_progress_is_used_up(const struct restart_progress *p)
{
    return p->limit > 0 && p->n_without >= p->limit;
}

void restart_progress_describe(const struct restart_progress *p, char *out, size_t out_size)
{
    int n = p->n_without == 1 ? snprintf(out, out_size, "the last restart has")
                              : snprintf(out, out_size, "the last %d restarts have", p->n_without);

    if (n < 0 || (size_t)n >= out_size)
        return;
    if (p->has_best) /* cut when it is long */
        (void)snprintf(out + n, out_size - (size_t)n, " not got beyond step %lld", (long long)p->best);
    else
        (void)snprintf(out + n, out_size - (size_t)n, " reached no step");
}
