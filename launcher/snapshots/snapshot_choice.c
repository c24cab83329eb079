#include "launcher/snapshots/snapshot_choice.h"

#include <stdlib.h>
#include <string.h>

/* Positive: a is of a newer state. */
static int compare_states(const struct block_run *a, const struct block_run *b)
{
    if (a->generation != b->generation)
        return a->generation > b->generation ? 1 : -1;
    if (a->step != b->step)
        return a->step > b->step ? 1 : -1;
    if (a->world_size != b->world_size)
        return a->world_size > b->world_size ? 1 : -1;
    return 0;
}

static int compare_runs(const void *left, const void *right)
{
    const struct block_run *a = left, *b = right;
    int r = compare_states(b, a);

    if (r != 0)
        return r;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    if (a->tier != b->tier)
        return a->tier < b->tier ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

void block_runs_sort(struct block_run *runs, size_t n)
{
    qsort(runs, n, sizeof(*runs), compare_runs);
}

/* The number of runs of the state of the first one. *ret_is_whole: together they have all ranks. */
static size_t walk_state(const struct block_run *runs, size_t n, bool *ret_is_whole)
{
    uint64_t covered = 0; /* ranks below this one are there */
    size_t i = 0;

    for (; i < n && compare_states(&runs[0], &runs[i]) == 0; i++) {
        uint64_t end = (uint64_t)runs[i].first + runs[i].n;
        if (runs[i].first <= covered && end > covered)
            covered = end;
    }
    *ret_is_whole = covered >= runs[0].world_size;
    return i;
}

struct snapshot_choice snapshot_choose(const struct block_run *runs, size_t n)
{
    bool is_whole;

    for (size_t i = 0; i < n;) {
        size_t n_state = walk_state(runs + i, n - i, &is_whole);
        if (is_whole)
            return (struct snapshot_choice){.exists = true,
                                            .step = runs[i].step,
                                            .generation = runs[i].generation,
                                            .world_size = runs[i].world_size};
        i += n_state;
    }
    return (struct snapshot_choice){0};
}

const struct block_run *snapshot_find(const struct block_run *runs, size_t n,
                                      const struct snapshot_choice *choice, uint32_t rank, int32_t node)
{
    const struct block_run state = {
        .step = choice->step, .generation = choice->generation, .world_size = choice->world_size};
    const struct block_run *found = NULL;

    for (size_t i = 0; i < n; i++) {
        const struct block_run *run = &runs[i];
        if (compare_states(run, &state) != 0 || rank < run->first || rank - run->first >= run->n)
            continue;
        bool is_nearer = found && run->node == node && found->node != node;
        if (!found || is_nearer || ((run->node == node) == (found->node == node) && run->tier < found->tier))
            found = run;
    }
    return found;
}

int32_t snapshot_partner(const char *const *domains, int32_t n, int32_t i)
{
    for (int32_t k = 1; k < n; k++) {
        int32_t other = (i + k) % n;
        if (!domains[i][0] || !domains[other][0] || strcmp(domains[i], domains[other]) != 0)
            return other;
    }
    return n > 1 ? (i + 1) % n : -1;
}

bool block_runs_add(struct block_run *runs, size_t *n, size_t n_max, const struct block_run *block)
{
    for (size_t i = *n; i-- > 0;) {
        struct block_run *run = &runs[i];
        if (compare_states(run, block) == 0 && run->tier == block->tier && run->node == block->node &&
            run->first + run->n == block->first) {
            run->n += block->n;
            return true;
        }
    }
    if (*n == n_max)
        return false;
    runs[(*n)++] = *block;
    return true;
}
