#include "worker-runtime/programs/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/decimal.h"
#include "worker-runtime/programs/numbers.h"

static const uint64_t EPOCHS_MAX = 1000000;

static const char *const kind_names[SCHEDULE_KIND_COUNT] = {
    [SCHEDULE_CONSTANT] = "constant",
    [SCHEDULE_STEP] = "step",
    [SCHEDULE_COSINE] = "cosine",
};
static const int n_values[SCHEDULE_KIND_COUNT] = {[SCHEDULE_STEP] = 2, [SCHEDULE_COSINE] = 1};

/* Cuts text at its first two colons; returns how many values follow what comes before them. */
static int split_fields(char *text, char *values[2])
{
    (void)strsep(&text, ":");
    values[0] = strsep(&text, ":");
    values[1] = text;
    return (values[0] != NULL) + (values[1] != NULL);
}

int schedule_parse(const char *text, struct schedule *ret)
{
    struct schedule s = {.gamma = 0.7};
    char kind[64], *values[2];

    if (strlen(text) >= sizeof(kind))
        return -1;
    int n = split_fields(strcpy(kind, text), values);
    while (s.kind < SCHEDULE_KIND_COUNT && strcmp(kind, kind_names[s.kind]) != 0)
        s.kind++;
    if (s.kind == SCHEDULE_KIND_COUNT || n > n_values[s.kind])
        return -1;
    s.epochs = s.kind == SCHEDULE_STEP ? 1 : 0;
    if (n > 0 && !decimal_parse(values[0], 1, EPOCHS_MAX, &s.epochs))
        return -1;
    if (n > 1 && !number_parse_positive(values[1], &s.gamma))
        return -1;
    *ret = s;
    return 0;
}

/* Multiplied again and again, as PyTorch does it: pow() may differ in the last bit. */
static double stepped(double lr, double gamma, uint64_t times)
{
    for (uint64_t i = 0; i < times && lr > 0; i++)
        lr *= gamma;
    return lr;
}

double schedule_lr(const struct schedule *s, double base, uint64_t epoch)
{
    switch (s->kind) {
    case SCHEDULE_STEP:
        return stepped(base, s->gamma, epoch / s->epochs);
    case SCHEDULE_COSINE:
        return epoch >= s->epochs ? 0 : base * (1 + cos(M_PI * (double)epoch / (double)s->epochs)) / 2;
    case SCHEDULE_CONSTANT:
    case SCHEDULE_KIND_COUNT:
        break;
    }
    return base;
}

struct schedule_text schedule_describe(const struct schedule *s)
{
    struct schedule_text t;

    if (s->kind == SCHEDULE_STEP)
        snprintf(t.text, sizeof(t.text), "step:%" PRIu64 ":%.17g", s->epochs, s->gamma);
    else if (s->kind == SCHEDULE_COSINE)
        snprintf(t.text, sizeof(t.text), "cosine:%" PRIu64, s->epochs);
    else
        snprintf(t.text, sizeof(t.text), "constant");
    return t;
}
