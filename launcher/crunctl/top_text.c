/*
 * Composed once from top to bottom with a count of the lines left, so a thousand ranks cost as much as the ranks
 * shown.
 */

#include "launcher/crunctl/top_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "launcher/ctl/job_status.h"
#include "launcher/crunctl/status_text.h"
#include "launcher/crunctl/text_page.h"

enum { CELL_SIZE = 24, PAGE = 10, LINES_MIN = 6 };

struct rank_row {
    const struct node_status *node;
    const struct worker_status *worker;
};

struct top_page {
    const struct top_view *view;
    struct text_page text;
};

/* Sums over the workers of a node, or of a job. */
struct worker_sums {
    size_t n_workers, n_running, n_failed, n_hang, n_straggler;
    int64_t rss_kib, cpu_percent, gpu_percent, gpu_used_mib, gpu_total_mib;
    size_t n_gpus;
    double slowest, fastest; /* steps per second; -1: not known */
    int32_t slowest_rank;
    bool has_cpu;
};

/* ---- cells ---- */

static void format_percent(bool is_known, int64_t percent, char out[CELL_SIZE])
{
    (void)snprintf(out, CELL_SIZE, is_known ? "%lld%%" : "-", (long long)percent);
}

static void format_rate(double steps_per_s, char out[CELL_SIZE])
{
    (void)snprintf(out, CELL_SIZE, steps_per_s < 0 ? "-" : steps_per_s < 10 ? "%.2f" : "%.1f", steps_per_s);
}

/* ---- sums ---- */

static bool has_state(const struct worker_status *w, const char *state)
{
    return strcmp(w->state, state) == 0;
}

static bool has_mark(const struct worker_status *w)
{
    return w->hang || w->straggler || has_state(w, "failed");
}

static void add_rate(struct worker_sums *sums, const struct worker_status *w)
{
    if (w->steps_per_s < 0)
        return;
    if (sums->slowest < 0 || w->steps_per_s < sums->slowest) {
        sums->slowest = w->steps_per_s;
        sums->slowest_rank = w->rank;
    }
    if (w->steps_per_s > sums->fastest)
        sums->fastest = w->steps_per_s;
}

static void add_to_sums(struct worker_sums *sums, const struct worker_status *w)
{
    sums->n_workers++;
    sums->n_running += has_state(w, "running");
    sums->n_failed += has_state(w, "failed");
    sums->n_hang += w->hang;
    sums->n_straggler += w->straggler;
    sums->rss_kib += w->has_usage ? w->rss_kib : 0;
    sums->cpu_percent += w->cpu_percent > 0 ? w->cpu_percent : 0;
    sums->has_cpu = sums->has_cpu || w->cpu_percent >= 0;
    add_rate(sums, w);
}

static void sum_node(struct worker_sums *sums, const struct node_status *node)
{
    for (size_t i = 0; i < node->n_workers; i++)
        add_to_sums(sums, &node->workers[i]);
    for (size_t i = 0; i < node->n_gpus; i++) {
        sums->n_gpus++;
        sums->gpu_percent += node->gpus[i].percent;
        sums->gpu_used_mib += node->gpus[i].used_mib;
        sums->gpu_total_mib += node->gpus[i].total_mib;
    }
}

static struct worker_sums empty_sums(void)
{
    return (struct worker_sums){.slowest = -1, .fastest = -1};
}

static struct worker_sums sums_of_job(const struct job_status *job)
{
    struct worker_sums sums = empty_sums();

    for (size_t n = 0; n < job->n_nodes_known; n++)
        sum_node(&sums, &job->nodes[n]);
    return sums;
}

/* "97% 70/80 GiB", or "-". */
static void format_gpus(const struct worker_sums *sums, char out[CELL_SIZE * 2])
{
    if (sums->n_gpus == 0)
        (void)snprintf(out, CELL_SIZE * 2, "-");
    else
        (void)snprintf(out, CELL_SIZE * 2, "%lld%% %lld/%lld GiB",
                       (long long)sums->gpu_percent / (long long)sums->n_gpus,
                       (long long)sums->gpu_used_mib >> 10, (long long)sums->gpu_total_mib >> 10);
}

/* ---- parts ---- */

static void add_job(struct top_page *p, const struct job_status *j)
{
    struct worker_sums sums = sums_of_job(j);
    char up[32], memory[24], cpu[CELL_SIZE], gpus[CELL_SIZE * 2], slow[CELL_SIZE], fast[CELL_SIZE];

    status_format_duration(p->view->now_s - j->started_s, up);
    status_format_memory(sums.rss_kib, memory);
    format_percent(sums.has_cpu, sums.cpu_percent, cpu);
    format_gpus(&sums, gpus);
    format_rate(sums.slowest, slow);
    format_rate(sums.fastest, fast);
    if (j->crun_pid == 0) /* the rendezvous knows no more */
        text_page_add(&p->text, STYLE_TITLE, "%s: %s, generation %lld, %d/%d restarts", j->job, j->state,
                      (long long)j->generation, (int)j->restarts, (int)j->max_restarts);
    else
        text_page_add(&p->text, STYLE_TITLE, "%s: %s, %s for %s, generation %lld, %d/%d restarts", j->job,
                      j->program, j->state, up, (long long)j->generation, (int)j->restarts,
                      (int)j->max_restarts);
    text_page_add(&p->text, sums.n_failed + sums.n_hang > 0 ? STYLE_BAD : STYLE_PLAIN,
                  "%zu/%d nodes, ranks: %zu running, %zu failed, %zu hang, %zu slow, %zu in all",
                  j->n_nodes_known, (int)j->n_nodes, sums.n_running, sums.n_failed, sums.n_hang,
                  sums.n_straggler, sums.n_workers);
    if (sums.slowest >= 0)
        text_page_add(&p->text, STYLE_PLAIN, "CPU %s, memory %s, GPU %s, %s to %s steps/s, slowest rank %d",
                      cpu, memory, gpus, slow, fast, (int)sums.slowest_rank);
    else
        text_page_add(&p->text, STYLE_PLAIN, "CPU %s, memory %s, GPU %s", cpu, memory, gpus);
}

static void add_node(struct top_page *p, const struct node_status *n)
{
    struct worker_sums sums = empty_sums();
    char rank[16], memory[24], cpu[CELL_SIZE], gpus[CELL_SIZE * 2], slow[CELL_SIZE];

    sum_node(&sums, n);
    status_format_rank(n->group_rank, rank);
    status_format_memory(sums.rss_kib, memory);
    format_percent(sums.has_cpu, sums.cpu_percent, cpu);
    format_gpus(&sums, gpus);
    format_rate(sums.slowest, slow);
    text_page_add(&p->text, sums.n_failed + sums.n_hang > 0 ? STYLE_BAD : STYLE_PLAIN,
                  "%5s %-16.16s %7zu %7zu %8s %9s %9s  %s", rank, n->host, sums.n_workers, sums.n_running,
                  slow, cpu, memory, gpus);
}

/* A third of the picture at most: the picture is for the ranks. */
static void add_nodes(struct top_page *p, const struct job_status *j)
{
    size_t n_max = p->text.n_left == SIZE_MAX ? SIZE_MAX : p->text.n_left / 3;

    if (p->view->hides_nodes || n_max < 3 ||
        (j->n_nodes_known < 2 && (j->n_nodes_known == 0 || j->nodes[0].n_gpus == 0)))
        return;
    size_t n_shown = j->n_nodes_known <= n_max - 1 ? j->n_nodes_known : n_max - 2;
    text_page_add(&p->text, STYLE_HEAD, "%5s %-16s %7s %7s %8s %9s %9s  %s", "NODE", "HOST", "WORKERS",
                  "RUNNING", "STEPS/S", "CPU", "MEMORY", "GPU");
    for (size_t i = 0; i < n_shown; i++)
        add_node(p, &j->nodes[i]);
    if (n_shown < j->n_nodes_known)
        text_page_add(&p->text, STYLE_DIM, "... %zu more nodes", j->n_nodes_known - n_shown);
}

static const char *mark_of(const struct worker_status *w)
{
    return w->hang ? "HANG" : w->straggler ? "SLOW" : "";
}

static void add_rank(struct top_page *p, const struct rank_row *row)
{
    const struct worker_status *w = row->worker;
    char rank[16], end[64], memory[24] = "-", cpu[CELL_SIZE], step[CELL_SIZE] = "-", rate[CELL_SIZE],
                            waits[CELL_SIZE];
    const char *style = w->hang || has_state(w, "failed") ? STYLE_BAD
                        : w->straggler                    ? STYLE_WARN
                                                          : STYLE_PLAIN;

    status_format_end(w, end);
    if (w->has_usage)
        status_format_memory(w->rss_kib, memory);
    format_percent(w->cpu_percent >= 0, w->cpu_percent, cpu);
    if (w->last_step >= 0)
        (void)snprintf(step, sizeof(step), "%lld", (long long)w->last_step);
    format_rate(w->steps_per_s, rate);
    format_percent(w->waits_percent >= 0, w->waits_percent, waits);
    status_format_rank(w->rank, rank);
    text_page_add(&p->text, style, "%5s %-9.9s %7lld %-10.10s%-4s %7s %6s %5s %5s %8s  %s", rank,
                  row->node->host, (long long)w->pid, end, mark_of(w), step, rate, waits, cpu, memory,
                  w->last_line);
}

/* ---- ranks ---- */

static int compare_rows(const void *a, const void *b)
{
    const struct rank_row *x = a, *y = b;

    return x->worker->rank != y->worker->rank ? (x->worker->rank > y->worker->rank ? 1 : -1)
                                              : (x->worker > y->worker) - (x->worker < y->worker);
}

static int compare_marked_rows(const void *a, const void *b)
{
    bool x = has_mark(((const struct rank_row *)a)->worker),
         y = has_mark(((const struct rank_row *)b)->worker);

    return x != y ? (int)y - (int)x : compare_rows(a, b);
}

/* NULL: no memory, or no ranks. */
static struct rank_row *rows_of_job(const struct job_status *j, bool marks_first, size_t *ret_n)
{
    size_t n = 0, at = 0;

    for (size_t i = 0; i < j->n_nodes_known; i++)
        n += j->nodes[i].n_workers;
    struct rank_row *rows = n > 0 ? calloc(n, sizeof(*rows)) : NULL;
    *ret_n = rows ? n : 0;
    for (size_t i = 0; rows && i < j->n_nodes_known; i++)
        for (size_t w = 0; w < j->nodes[i].n_workers; w++)
            rows[at++] = (struct rank_row){.node = &j->nodes[i], .worker = &j->nodes[i].workers[w]};
    if (rows)
        qsort(rows, n, sizeof(*rows), marks_first ? compare_marked_rows : compare_rows);
    return rows;
}

/* The last line counts the ranks not shown. */
static void add_ranks(struct top_page *p, const struct job_status *j, size_t *first)
{
    size_t n, skipped, n_shown;
    struct rank_row *rows = rows_of_job(j, p->view->has_marks_first, &n);

    skipped = *first < n ? *first : n;
    *first -= skipped;
    if (skipped < n || n == 0)
        text_page_add(&p->text, STYLE_HEAD, "%5s %-9s %7s %-14s %7s %6s %5s %5s %8s  %s", "RANK", "HOST",
                      "PID", "STATE", "STEP", "STEP/S", "WAITS", "CPU", "MEMORY", "LAST LINE");
    n_shown = n - skipped;
    if (p->text.n_left != SIZE_MAX && n_shown > p->text.n_left)
        n_shown = p->text.n_left > 0 ? p->text.n_left - 1 : 0;
    for (size_t i = 0; i < n_shown; i++)
        add_rank(p, &rows[skipped + i]);
    if (skipped + n_shown < n)
        text_page_add(&p->text, STYLE_DIM, "... %zu more ranks", n - skipped - n_shown);
    free(rows);
}

/* ---- the picture ---- */

char *top_text(const struct job_status *jobs, size_t n_jobs, const struct top_view *view)
{
    size_t first = view->first;
    struct top_page p = {.view = view,
                         .text = {.width = view->width, .is_live = view->is_live, .n_left = SIZE_MAX}};

    if (view->height > 0)
        p.text.n_left =
            (size_t)view->height - (view->is_live ? 1 : 0); /* a break in the last line would scroll */
    if (view->is_live)
        strbuf_add(&p.text.out, "\033[H");
    for (size_t i = 0; i < n_jobs; i++) {
        add_job(&p, &jobs[i]);
        add_nodes(&p, &jobs[i]);
        add_ranks(&p, &jobs[i], &first);
    }
    if (n_jobs == 0)
        text_page_add(&p.text, STYLE_PLAIN, "no job of yours runs on this node");
    if (view->is_live && view->height >= LINES_MIN) {
        static const char keys[] = "q ends, arrows and PgUp/PgDn scroll, m: marked ranks first, n: nodes";

        strbuf_add(&p.text.out, "\033[J\033[%d;1H\033[" STYLE_DIM "m%.*s\033[0m", view->height,
                   (int)text_page_bytes(&p.text, keys), keys);
    }
    return strbuf_steal(&p.text.out);
}

/* ---- keys ---- */

static const struct {
    const char *bytes;
    int key;
} sequences[] = {
    {"\033[A", TOP_KEY_UP},   {"\033OA", TOP_KEY_UP},       {"\033[B", TOP_KEY_DOWN},
    {"\033OB", TOP_KEY_DOWN}, {"\033[5~", TOP_KEY_PAGE_UP}, {"\033[6~", TOP_KEY_PAGE_DOWN},
};

int top_next_key(const char *bytes, size_t n, size_t *ret_n)
{
    *ret_n = n > 0;
    if (n == 0 || bytes[0] != '\033')
        return n > 0 ? (unsigned char)bytes[0] : 0;
    for (size_t i = 0; i < ARRAY_SIZE(sequences); i++) {
        size_t size = strlen(sequences[i].bytes);

        if (n >= size && memcmp(bytes, sequences[i].bytes, size) == 0) {
            *ret_n = size;
            return sequences[i].key;
        }
    }
    return '\033'; /* of a key without a meaning here; the other bytes follow */
}

static size_t scrolled(size_t first, long by, size_t n_ranks)
{
    size_t last = n_ranks > 0 ? n_ranks - 1 : 0;

    if (by < 0)
        return first > (size_t)-by ? first - (size_t)-by : 0;
    return first + (size_t)by < last ? first + (size_t)by : last;
}

bool top_press(struct top_view *view, int key, size_t n_ranks)
{
    if (key == 'm')
        view->has_marks_first = !view->has_marks_first;
    else if (key == 'n')
        view->hides_nodes = !view->hides_nodes;
    else if (key == 'k' || key == TOP_KEY_UP)
        view->first = scrolled(view->first, -1, n_ranks);
    else if (key == 'j' || key == TOP_KEY_DOWN)
        view->first = scrolled(view->first, 1, n_ranks);
    else if (key == TOP_KEY_PAGE_UP)
        view->first = scrolled(view->first, -PAGE, n_ranks);
    else if (key == TOP_KEY_PAGE_DOWN || key == ' ')
        view->first = scrolled(view->first, PAGE, n_ranks);
    return key != 'q' && key != 3; /* Ctrl-C where the terminal sends it as a byte */
}
