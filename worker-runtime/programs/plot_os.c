#include "worker-runtime/programs/plot_os.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of the drawing, in its own units. */
enum {
    WIDTH = 800,
    LEFT = 70,
    RIGHT = 30,
    TOP = 50,
    PANEL_HEIGHT = 240,
    BETWEEN = 60, /* panels */
    TICKS = 5,
    TEXT_DOWN = 4, /* from the middle of a letter to its foot */
};

/* ---- what is kept ---- */

void plot_open(struct plot *p, const char *path)
{
    *p = (struct plot){.path = path, .loss.per_point = 1, .accuracy.per_point = 1};
}

/* Two and two become one, so that there is room again. */
static void halve(struct plot_curve *c)
{
    for (size_t i = 0; i < c->n / 2; i++) {
        c->points[i].x = (c->points[2 * i].x + c->points[2 * i + 1].x) / 2;
        c->points[i].y = (c->points[2 * i].y + c->points[2 * i + 1].y) / 2;
    }
    c->n /= 2;
    c->per_point *= 2;
}

static void add(struct plot_curve *c, double x, double y)
{
    c->sums.x += x;
    c->sums.y += y;
    if (++c->n_gathered == c->per_point && c->n == PLOT_POINTS)
        halve(c);
    if (c->n_gathered < c->per_point)
        return;
    c->points[c->n++] =
        (struct plot_point){c->sums.x / (double)c->n_gathered, c->sums.y / (double)c->n_gathered};
    c->n_gathered = 0;
    c->sums = (struct plot_point){0};
}

void plot_step(struct plot *p, uint64_t step, double loss)
{
    if (p->path)
        add(&p->loss, (double)step, loss);
}

void plot_epoch(struct plot *p, uint64_t step, double accuracy)
{
    if (p->path && !isnan(accuracy))
        add(&p->accuracy, (double)step, 100 * accuracy);
}

/* ---- what is drawn ---- */

/* An axis from low to high, both multiples of tick. */
struct axis {
    double low, high, tick;
};

/* 1, 2 or 5 times a power of ten, so that about TICKS of them make up the range. */
static double nice_tick(double range)
{
    double rough = range / TICKS, power = pow(10, floor(log10(rough)));
    double times = rough / power;

    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

static struct axis make_axis(double low, double high)
{
    struct axis a;

    if (!(high > low)) { /* one value, or none */
        low -= 0.5;
        high = low + 1;
    }
    a.tick = nice_tick(high - low);
    a.low = floor(low / a.tick) * a.tick;
    a.high = ceil(high / a.tick) * a.tick;
    return a;
}

static struct axis axis_of_y(const struct plot_curve *c)
{
    double low = c->points[0].y, high = c->points[0].y;

    for (size_t i = 1; i < c->n; i++) {
        low = fmin(low, c->points[i].y);
        high = fmax(high, c->points[i].y);
    }
    return make_axis(low, high);
}

struct panel {
    FILE *file;
    int top;
    struct axis x, y;
};

static double at_x(const struct panel *p, double x)
{
    return LEFT + (x - p->x.low) / (p->x.high - p->x.low) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct panel *p, double y)
{
    return p->top + (p->y.high - y) / (p->y.high - p->y.low) * PANEL_HEIGHT;
}

static int count_ticks(const struct axis *a)
{
    return (int)lround((a->high - a->low) / a->tick);
}

static void draw_grid(const struct panel *p)
{
    for (int i = 0; i <= count_ticks(&p->y); i++) {
        double value = p->y.low + i * p->y.tick, y = at_y(p, value);

        fprintf(p->file, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LEFT, y,
                WIDTH - RIGHT, y);
        fprintf(p->file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", LEFT - 8,
                y + TEXT_DOWN, fabs(value) < p->y.tick / 2 ? 0 : value);
    }
    for (int i = 0; i <= count_ticks(&p->x); i++) {
        double value = p->x.low + i * p->x.tick, x = at_x(p, value);

        fprintf(p->file, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", x, p->top, x,
                p->top + PANEL_HEIGHT);
        fprintf(p->file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.7g</text>\n", x,
                p->top + PANEL_HEIGHT + 16, value);
    }
    fprintf(p->file, "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT, p->top,
            WIDTH - LEFT - RIGHT, PANEL_HEIGHT);
}

static void draw_curve(const struct panel *p, const struct plot_curve *c, const char *color, bool dots)
{
    fprintf(p->file, "<polyline stroke=\"%s\" points=\"", color);
    for (size_t i = 0; i < c->n; i++)
        fprintf(p->file, "%s%.1f,%.1f", i ? " " : "", at_x(p, c->points[i].x), at_y(p, c->points[i].y));
    fprintf(p->file, "\"/>\n");
    for (size_t i = 0; dots && i < c->n; i++)
        fprintf(p->file, "<circle fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", color,
                at_x(p, c->points[i].x), at_y(p, c->points[i].y));
}

static void draw_panel(struct panel *p, const struct plot_curve *c, const char *name, const char *color,
                       bool dots)
{
    p->y = axis_of_y(c);
    draw_grid(p);
    draw_curve(p, c, color, dots);
    fprintf(p->file, "<text class=\"name\" x=\"%d\" y=\"%d\">%s</text>\n", LEFT, p->top - 8, name);
    p->top += PANEL_HEIGHT + BETWEEN;
}

static void draw(FILE *file, const struct plot *plot, const char *title)
{
    int n_panels = plot->accuracy.n > 0 ? 2 : 1;
    int height = TOP + n_panels * (PANEL_HEIGHT + BETWEEN);
    struct panel panel = {.file = file, .top = TOP};

    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
            "<style>text { font: 12px sans-serif; fill: #444 } .title { font-size: 16px; fill: #000 }\n"
            ".name { font-weight: bold } .grid { stroke: #e4e4e4 } .frame { fill: none; stroke: #888 }\n"
            "polyline { fill: none; stroke-width: 1.5; stroke-linejoin: round }</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text class=\"title\" x=\"%d\" y=\"22\">%s</text>\n",
            WIDTH, height, WIDTH, height, LEFT, title);
    if (plot->loss.n == 0) {
        fprintf(file, "<text x=\"%d\" y=\"%d\">no step was taken</text>\n", LEFT, TOP);
    } else {
        panel.x = make_axis(plot->loss.points[0].x - 1, plot->loss.points[plot->loss.n - 1].x);
        draw_panel(&panel, &plot->loss, "loss by step, mean over all workers", "#1f6fb4", false);
        if (n_panels == 2)
            draw_panel(&panel, &plot->accuracy, "test accuracy after each epoch, %", "#c2571a", true);
    }
    fprintf(file, "</svg>\n");
}

int plot_write(const struct plot *p, const char *title)
{
    FILE *file;
    bool bad;

    if (!p->path)
        return 0;
    file = fopen(p->path, "we");
    if (!file)
        return -errno;
    draw(file, p, title);
    bad = ferror(file) != 0;
    if (fclose(file) != 0)
        return -errno;
    return bad ? -EIO : 0;
}
