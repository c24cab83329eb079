#pragma once

/*
 * The output of `train`: lines on stdout, a progress bar on a terminal, JSON lines in the
 * metrics file. The primary rank reports; on the others every call does nothing.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct train_report {
    bool primary;
    bool bar;                 /* stderr is a terminal */
    bool bar_open;            /* a bar stands on the current line */
    const char *samples_name; /* "images" */
    FILE *metrics;
    const char *metrics_path;
    double bar_drawn_at;
};

struct epoch_report {
    uint64_t epoch, n_epochs, step; /* epoch counts from 1 */
    double loss, loss_all, samples_per_s, seconds;
    double test_accuracy; /* NAN: there was no test */
    uint32_t param_crc32c;
};

/* metrics_path may be NULL. 0 or -errno when the file cannot be opened for appending. */
int report_open(struct train_report *r, bool primary, const char *metrics_path, const char *samples_name);
void report_close(struct train_report *r);

/* One line for people. */
void report_say(struct train_report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Something went wrong and the training goes on: one line on stderr. */
void report_warn(struct train_report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Before something else goes to stderr: takes the bar off its line. */
void report_clear_bar(struct train_report *r);

/* False: report_progress() would do nothing. */
bool report_wants_progress(const struct train_report *r);
void report_progress(struct train_report *r, uint64_t epoch, uint64_t n_epochs, uint64_t done, uint64_t all,
                     double loss, double samples_per_s);
/* accuracy NAN: not measured. */
void report_step(struct train_report *r, uint64_t step, double loss, double accuracy);
void report_max_steps(struct train_report *r, uint64_t step, uint32_t param_crc32c);
void report_epoch(struct train_report *r, const struct epoch_report *e);
/* A snapshot that could not be saved: a line of metrics. */
void report_failed_save(struct train_report *r, const char *sentence);
/* from: "the snapshot", or whatever else holds the state; key: the same for the metrics. */
void report_resume(struct train_report *r, const char *from, const char *key, uint64_t step, uint64_t epoch,
                   uint64_t consumed, int restart_count);
/* The first step that was committed after ranks were replaced. */
void report_recommit(struct train_report *r, uint64_t step);

/* Seconds on a clock that only goes forward. */
double report_now(void);
