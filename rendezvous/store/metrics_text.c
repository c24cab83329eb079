#include "rendezvous/store/metrics_text.h"

#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/utf8.h"

enum { PIECE_SIZE = 512 };

static void __attribute__((format(printf, 2, 3))) add_text(struct metrics_text *m, const char *format, ...)
{
    char piece[PIECE_SIZE];

    int n = format_arguments(piece, sizeof(piece), format);
    if (n < 0 || n >= PIECE_SIZE || buf_append(&m->bytes, piece, (size_t)n) != 0)
        m->failed = true; /* names and helps are ours, and shorter */
}

/* Backslash, quote and line feed are escaped; bytes that are no UTF-8 become "?". */
static void add_label_value(struct metrics_text *m, const char *value)
{
    for (const unsigned char *c = (const unsigned char *)value; *c;) {
        size_t n = utf8_sequence(c);

        if (*c == '\n')
            add_text(m, "\\n");
        else if (*c == '"' || *c == '\\')
            add_text(m, "\\%c", *c);
        else
            add_text(m, "%.*s", n ? (int)n : 1, n ? (const char *)c : "?");
        c += n ? n : 1;
    }
}

static void add_number(struct metrics_text *m, double value)
{
    if (value > -1e15 && value < 1e15 && value == (double)(int64_t)value)
        add_text(m, " %lld\n", (long long)value);
    else
        add_text(m, " %.9g\n", value);
}

void metrics_family(struct metrics_text *m, const char *name, enum metric_kind kind, const char *help)
{
    static const char *const kinds[] = {
        [METRIC_GAUGE] = "gauge", [METRIC_COUNTER] = "counter", [METRIC_HISTOGRAM] = "histogram"};
    const char *total = kind == METRIC_COUNTER && !m->is_open_metrics ? "_total" : "";

    add_text(m, "# HELP %s%s %s\n", name, total, help);
    add_text(m, "# TYPE %s%s %s\n", name, total, kinds[kind]);
}

void metrics_sample(struct metrics_text *m, const char *name, const char *suffix,
                    const struct metric_label *labels, double value)
{
    add_text(m, "%s%s", name, suffix);
    for (const struct metric_label *l = labels; l && l->name; l++) {
        add_text(m, "%s%s=\"", l == labels ? "{" : ",", l->name);
        add_label_value(m, l->value);
        add_text(m, "\"");
    }
    add_text(m, "%s", labels && labels->name ? "}" : "");
    add_number(m, value);
}

void metrics_one(struct metrics_text *m, const char *name, enum metric_kind kind, const char *help,
                 double value)
{
    metrics_family(m, name, kind, help);
    metrics_sample(m, name, kind == METRIC_COUNTER ? "_total" : "", NULL, value);
}

void metrics_end(struct metrics_text *m)
{
    if (m->is_open_metrics)
        add_text(m, "# EOF\n");
}

bool metrics_wants_open(const char *accept)
{
    return accept && strstr(accept, "application/openmetrics-text");
}

const char *metrics_content_type(bool is_open_metrics)
{
    return is_open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                           : "text/plain; version=0.0.4; charset=utf-8";
}
