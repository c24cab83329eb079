/*
 * Which samples this rank trains on, in which order: torch.utils.data.DistributedSampler that can go on
 * in the middle of an epoch, at another world size.
 *
 * An epoch has one permuted list. Ranks take turns, so that at every moment all ranks together have used
 * a prefix of it. The length of that prefix, `consumed`, is the whole position; which rank used which
 * sample does not matter. From there the rest of the list is dealt anew: rank r of W takes rest[r],
 * rest[r + W], ... Where the rest does not divide by W, the last turn is filled up from the start of the
 * list, as PyTorch does, or dropped.
 */

#include "worker-runtime/crw.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "worker-runtime/base/error.h"
#include "base/memory.h"

struct crw_sampler {
    struct crw_sampler_options options;
    uint32_t *list;    /* the epoch's permutation of all samples */
    uint64_t start;    /* consumed when the epoch was started */
    uint64_t per_rank; /* samples for each rank from there on */
    uint64_t taken;    /* of them by this rank */
};

int crw_sampler_create(const struct crw_sampler_options *options, struct crw_sampler **ret)
{
    NEED(options && ret, CRW_E_ARGUMENT);
    if (options->world_size < 1 || options->rank < 0 || options->rank >= options->world_size)
        return crw_fail(CRW_E_ARGUMENT, "a sampler cannot be rank %d of %d", options->rank,
                        options->world_size);

    _cleanup_free_ struct crw_sampler *s = calloc(1, sizeof(*s));
    if (!s)
        return crw_fail_errno(-ENOMEM, "cannot make a sampler");
    s->options = *options;
    if (memory_has_room(options->n_samples, sizeof(*s->list)))
        s->list = calloc(options->n_samples ? options->n_samples : 1, sizeof(*s->list));
    if (!s->list)
        return crw_fail_errno(-ENOMEM, "cannot make a sampler over %u samples", options->n_samples);
    *ret = steal_ptr(s);
    return 0;
}

void crw_sampler_destroy(struct crw_sampler *s)
{
    if (!s)
        return;
    free(s->list);
    free(s);
}

int crw_sampler_start(struct crw_sampler *s, uint64_t epoch, uint64_t consumed)
{
    NEED(s, CRW_E_ARGUMENT);
    uint32_t n = s->options.n_samples;
    uint64_t world_size = (uint64_t)s->options.world_size;

    if (consumed > n)
        return crw_fail(CRW_E_ARGUMENT, "cannot start an epoch of %u samples behind %llu consumed ones", n,
                        (unsigned long long)consumed);
    if (s->options.shuffle) {
        TRY(crw_randperm(s->options.seed + epoch, n, s->list));
    } else {
        for (uint32_t i = 0; i < n; i++)
            s->list[i] = i;
    }
    uint64_t left = n - consumed;
    s->start = consumed;
    s->per_rank = s->options.drop_last ? left / world_size : (left + world_size - 1) / world_size;
    s->taken = 0;
    return 0;
}

size_t crw_sampler_next(struct crw_sampler *s, uint32_t *indices, size_t batch_size)
{
    NEED(s && (indices || batch_size == 0), 0);
    uint64_t left = s->per_rank - s->taken;
    size_t count = left < batch_size ? (size_t)left : batch_size;

    for (size_t i = 0; i < count; i++) {
        uint64_t turn = s->taken + i;
        uint64_t at = s->start + turn * (uint64_t)s->options.world_size + (uint64_t)s->options.rank;
        /* Only the last turn can reach past the end; it wraps to the start of the list. */
        indices[i] = s->list[at % s->options.n_samples];
    }
    s->taken += count;
    return count;
}

uint64_t crw_sampler_consumed(const struct crw_sampler *s)
{
    NEED(s, 0);
    uint64_t all = s->start + s->taken * (uint64_t)s->options.world_size;
    return all < s->options.n_samples ? all : s->options.n_samples;
}

size_t crw_sampler_batches_left(const struct crw_sampler *s, size_t batch_size)
{
    uint64_t left = s ? s->per_rank - s->taken : 0;
    return batch_size ? (size_t)(left / batch_size + (left % batch_size != 0)) : 0;
}
