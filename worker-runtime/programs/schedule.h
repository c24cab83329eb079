#pragma once

/*
 * How the learning rate changes from epoch to epoch. Pure.
 *
 *   constant                 not at all
 *   step[:EVERY[:GAMMA]]     times GAMMA (0.7) after every EVERY (1) epochs, torch.optim.lr_scheduler.StepLR
 *   cosine[:EPOCHS]          half a cosine down to 0 over EPOCHS epochs (--epochs), CosineAnnealingLR
 */

#include <stdint.h>

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_COSINE, SCHEDULE_KIND_COUNT };

struct schedule {
    enum schedule_kind kind;
    uint64_t epochs; /* between two steps; of the half cosine, 0: all of them */
    double gamma;
};

/* 0, or -1 when the text is none of the above. */
int schedule_parse(const char *text, struct schedule *ret);

/* The learning rate of an epoch, counted from 0. */
double schedule_lr(const struct schedule *s, double base, uint64_t epoch);

/* The schedule as text that schedule_parse() reads, with no default left out. */
struct schedule_text {
    char text[64];
};
struct schedule_text schedule_describe(const struct schedule *s);
