#include "worker-runtime/programs/fault.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/decimal.h"

static const char *const kind_names[FAULT_KIND_COUNT] = {
    [FAULT_KILL] = "kill",
    [FAULT_EXIT] = "exit",
    [FAULT_HANG] = "hang",
    [FAULT_NAN] = "nan",
    [FAULT_KILL_EARLY] = "kill-early",
};

static bool parse_kind(const char *text, enum fault_kind *ret)
{
    *ret = FAULT_NONE + 1;
    while (*ret < FAULT_KIND_COUNT && strcmp(text, kind_names[*ret]) != 0)
        ++*ret;
    return *ret < FAULT_KIND_COUNT;
}

static bool parse_field(const char *field, struct fault *f, uint64_t *rank)
{
    if (strncmp(field, "rank=", 5) == 0)
        return decimal_parse(field + 5, 0, INT_MAX, rank);
    if (strncmp(field, "step=", 5) == 0)
        return decimal_parse(field + 5, 1, UINT64_MAX, &f->step);
    if (strncmp(field, "kind=", 5) == 0)
        return parse_kind(field + 5, &f->kind);
    return false;
}

int fault_parse(const char *text, struct fault *ret)
{
    struct fault f = {0};
    uint64_t rank = UINT64_MAX;
    char copy[128], *rest = copy, *field;

    if (strlen(text) >= sizeof(copy))
        return -1;
    strcpy(copy, text);
    while ((field = strsep(&rest, ","))) {
        if (!parse_field(field, &f, &rank))
            return -1;
    }
    if (f.kind == FAULT_NONE || f.step == 0 || rank == UINT64_MAX)
        return -1;
    f.rank = (int)rank;
    *ret = f;
    return 0;
}

bool fault_is_due(const struct fault *f, bool early, int restart_count, int rank, uint64_t step)
{
    return f->kind != FAULT_NONE && (f->kind == FAULT_KILL_EARLY) == early && f->step == step &&
           f->rank == rank && restart_count == 0;
}

void fault_happen(const struct fault *f)
{
    fprintf(stderr, "train: rank %d: step %" PRIu64 ": %s, as --fault asks\n", f->rank, f->step,
            kind_names[f->kind]);
    switch (f->kind) {
    case FAULT_KILL:
    case FAULT_KILL_EARLY:
        (void)raise(SIGKILL); /* does not return */
        break;
    case FAULT_EXIT:
        _exit(FAULT_EXIT_CODE);
    case FAULT_HANG:
        for (;;)
            pause();
    case FAULT_NAN:
    case FAULT_NONE:
    case FAULT_KIND_COUNT:
        break;
    }
}
