#include "launcher/watch/store_hint.h"

bool store_hint_step(struct store_hint *h, uint64_t now_ns, uint32_t generation, bool is_at_work,
                     bool is_unused)
{
    if (h->generation != generation)
        *h = (struct store_hint){.generation = generation};
    h->is_over |= is_at_work && !is_unused;
    if (!is_at_work || h->since_ns == 0)
        h->since_ns = is_at_work ? now_ns : 0;
    if (h->is_over || !is_at_work || h->n_looks == STORE_HINT_LOOKS ||
        now_ns - h->since_ns < (h->n_looks + 1) * STORE_HINT_NS)
        return false;
    h->n_looks++;
    return true;
}
