/*
 * Retention counts valid snapshots, not files: a folder whose newest files are all damaged keeps the valid
 * ones behind them, however many files that makes.
 */

#include "worker-runtime/checkpoint/snapshot_plan.h"

#include "base/decimal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "snap-"
#define SUFFIX ".safetensors"
#define TEMPORARY_PREFIX ".snap-"
#define TEMPORARY_SUFFIX ".tmp"

enum { STEP_DIGITS = 12 };

void snapshot_name(uint64_t step, char ret_name[SNAPSHOT_NAME_SIZE])
{
    (void)snprintf(ret_name, SNAPSHOT_NAME_SIZE, PREFIX "%0*" PRIu64 SUFFIX, STEP_DIGITS, step);
}

/* The number must be written as snapshot_name() writes it, or two names could mean one step. */
bool snapshot_name_parse(const char *name, uint64_t *ret_step)
{
    char canonical[SNAPSHOT_NAME_SIZE];
    uint64_t step;
    const char *at = name + strlen(PREFIX);

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || !decimal_scan(&at, UINT64_MAX, &step))
        return false;
    snapshot_name(step, canonical);
    if (strcmp(name, canonical) != 0)
        return false;
    *ret_step = step;
    return true;
}

void snapshot_temporary_name(uint64_t step, int process, char ret_name[SNAPSHOT_NAME_SIZE])
{
    (void)snprintf(ret_name, SNAPSHOT_NAME_SIZE, TEMPORARY_PREFIX "%0*" PRIu64 ".%d" TEMPORARY_SUFFIX,
                   STEP_DIGITS, step, process);
}

bool snapshot_name_is_temporary(const char *name)
{
    size_t n = strlen(name);

    return strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0 && n > strlen(TEMPORARY_SUFFIX) &&
           strcmp(name + n - strlen(TEMPORARY_SUFFIX), TEMPORARY_SUFFIX) == 0;
}

static int compare_newest_first(const void *a, const void *b)
{
    const struct snapshot_entry *x = a, *y = b;

    if (x->step == y->step)
        return 0;
    return x->step > y->step ? -1 : 1;
}

void snapshot_sort(struct snapshot_entry *entries, size_t n)
{
    if (n > 1)
        qsort(entries, n, sizeof(*entries), compare_newest_first);
}

size_t snapshot_plan(const struct snapshot_entry *entries, size_t n, int keep, size_t *ret_examine)
{
    int n_valid = 0;

    *ret_examine = n;
    for (size_t i = 0; i < n; i++) {
        if (entries[i].state == SNAPSHOT_UNKNOWN) {
            *ret_examine = i;
            return n;
        }
        if (entries[i].state == SNAPSHOT_VALID && ++n_valid == keep)
            return i + 1;
    }
    return n;
}
