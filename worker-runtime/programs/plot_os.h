#pragma once

/*
 * Loss and accuracy of a run, as a drawing that a browser shows (SVG). Memory is bounded: however many steps
 * a run has, a curve has at most PLOT_POINTS points, each the mean of as many steps as it takes.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLOT_POINTS = 512 };

struct plot_point {
    double x, y;
};

struct plot_curve {
    struct plot_point points[PLOT_POINTS];
    size_t n;
    uint64_t per_point;     /* values of a point */
    uint64_t n_gathered;    /* of the next point's values */
    struct plot_point sums; /* of them */
};

struct plot {
    const char *path; /* NULL: nothing is kept and nothing drawn */
    struct plot_curve loss, accuracy;
};

/* Borrows path, which may be NULL. */
void plot_open(struct plot *p, const char *path);

/* A step's loss; a test's accuracy, 0 to 1 (NAN is left out). */
void plot_step(struct plot *p, uint64_t step, double loss);
void plot_epoch(struct plot *p, uint64_t step, double accuracy);

/* Reads the points of the steps up to `until` from a metrics file, before this process goes on from
 * there. Without path or metrics nothing. 0 or -errno. */
int plot_recall(struct plot *p, const char *metrics, uint64_t until);

/* Draws what there is into the file. 0 or -errno. */
int plot_write(const struct plot *p, const char *title);
