/*
 * The part of a run before it was resumed, from the metrics file that it appended to: so that the drawing
 * shows all of it.
 *
 * The lines are those that report.c writes, looked at one by one for the numbers that matter; lines of
 * others, and half a line that a full disk left, give none. A step that was taken again after a kill has
 * the same loss again, and counts once.
 */

#include "worker-runtime/programs/plot_os.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_SIZE = 1024 };

/* The number behind "key": in a line of JSON; NAN when there is none, as for null. */
static double metric_number(const char *line, const char *key)
{
    char quoted[32], *end;
    const char *at;
    double value;

    (void)snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
    at = strstr(line, quoted);
    if (!at)
        return NAN;
    at += strlen(quoted);
    value = strtod(at, &end);
    return end == at ? NAN : value;
}

struct recalled {
    double step, epoch_step; /* of the last ones that were taken */
    bool has_steps;
};

static void recall_line(struct plot *p, const char *line, double until, struct recalled *r)
{
    double step = metric_number(line, "step"), step_loss = metric_number(line, "step_loss");
    double loss = metric_number(line, "loss_all");

    if (!(step >= 1 && step <= until))
        return;
    if (isfinite(step_loss) && step > r->step) {
        plot_step(p, (uint64_t)step, step_loss);
        r->step = step;
        r->has_steps = true;
    }
    if (!isfinite(loss) || step <= r->epoch_step)
        return;
    if (!r->has_steps) /* the means of the epochs are better than nothing */
        plot_step(p, (uint64_t)step, loss);
    plot_epoch(p, (uint64_t)step, metric_number(line, "test_accuracy"));
    r->epoch_step = step;
}

int plot_recall(struct plot *p, const char *metrics, uint64_t until)
{
    struct recalled recalled = {0};
    char line[LINE_MAX_SIZE];
    FILE *file;

    if (!p->path || !metrics)
        return 0;
    file = fopen(metrics, "re");
    if (!file)
        return -errno;
    while (fgets(line, sizeof(line), file))
        recall_line(p, line, (double)until, &recalled);
    (void)fclose(file); /* only read */
    return 0;
}
