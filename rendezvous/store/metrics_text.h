#pragma once

/*
 * Metrics as Prometheus reads them: the text format 0.0.4, or OpenMetrics 1.0, which differ in the names of counters' families
 * and in the end. Pure.
 */

#include <stdbool.h>

#include "base/buf.h"

enum metric_kind { METRIC_GAUGE, METRIC_COUNTER, METRIC_HISTOGRAM };

struct metrics_text {
    struct buf bytes;
    bool is_open_metrics;
    bool failed; /* memory ran out */
};

/* One pair; a NULL name ends a list. */
struct metric_label {
    const char *name, *value; /* value: any bytes */
};

/* Begins a family: name without "_total". */
void metrics_family(struct metrics_text *m, const char *name, enum metric_kind kind, const char *help);

/* A sample: suffix "" or "_total", "_bucket", "_sum", "_count". labels: NULL, or a list. */
void metrics_sample(struct metrics_text *m, const char *name, const char *suffix,
                    const struct metric_label *labels, double value);

/* A family of one sample without labels. */
void metrics_one(struct metrics_text *m, const char *name, enum metric_kind kind, const char *help,
                 double value);

void metrics_end(struct metrics_text *m);

/* What Accept of a request asks for. NULL: nothing. */
bool metrics_wants_open(const char *accept);
const char *metrics_content_type(bool is_open_metrics);
