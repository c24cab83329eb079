#include "rendezvous/store/store_stats.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/store/metrics_text.h"

enum { FIRST_BOUND_NS = 1000, BOUND_STEP = 4, NAME_SIZE = 32 };

void store_stats_time(struct store_stats *s, uint64_t n, uint64_t ns)
{
    uint64_t bound_ns = FIRST_BOUND_NS;
    size_t i = 0;

    if (n == 0)
        return;
    for (; i < STORE_STATS_BUCKETS - 1 && ns / n > bound_ns; i++)
        bound_ns *= BOUND_STEP;
    s->n_within[i] += n;
    s->seconds += (double)ns / 1e9;
}

static void write_operations(const struct store_stats *s, struct metrics_text *m)
{
    char name[NAME_SIZE];

    metrics_family(m, "crun_store_operations", METRIC_COUNTER, "Requests that the store has executed.");
    for (unsigned op = 0; op < WIRE_OP_COUNT; op++) {
        const char *text = wire_op_name((enum wire_op)op);

        if (op == WIRE_OP_VALIDATE || !text)
            continue;
        (void)snprintf(name, sizeof(name), "%s", text); /* fits */
        for (char *c = name; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        metrics_sample(m, "crun_store_operations", "_total",
                       (const struct metric_label[]){{"op", name}, {NULL, NULL}}, (double)s->n_done[op]);
    }
}

void store_stats_write(const struct store_stats *s, struct metrics_text *m)
{
    static const char name[] = "crun_store_operation_seconds";
    uint64_t n = 0, bound_ns = FIRST_BOUND_NS;
    char bound[NAME_SIZE];

    write_operations(s, m);
    metrics_family(m, name, METRIC_HISTOGRAM,
                   "Time to execute a request of the store, the mean of those that arrived in one read.");
    for (size_t i = 0; i < STORE_STATS_BUCKETS; i++, bound_ns *= BOUND_STEP) {
        n += s->n_within[i];
        (void)snprintf(bound, sizeof(bound), "%.9g", (double)bound_ns / 1e9); /* fits */
        metrics_sample(m, name, "_bucket",
                       (const struct metric_label[]){{"le", i == STORE_STATS_BUCKETS - 1 ? "+Inf" : bound},
                                                     {NULL, NULL}},
                       (double)n);
    }
    metrics_sample(m, name, "_sum", NULL, s->seconds);
    metrics_sample(m, name, "_count", NULL, (double)n);
}
