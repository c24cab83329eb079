/* What a look at a job costs: status_bench [ranks]. Milliseconds for each part, the best of 20. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/crunctl/top_text.h"
#include "base/time.h"

enum { ROUNDS = 20, RANKS_OF_A_NODE = 8 };

static void fill_job(struct job_status *s, int n_ranks)
{
    *s = (struct job_status){.job = "train-7", .program = "train.py", .state = "running", .started_s = 1};
    for (int first = 0; first < n_ranks; first += RANKS_OF_A_NODE) {
        char host[32];

        (void)snprintf(host, sizeof(host), "node%d", first / RANKS_OF_A_NODE);
        if (job_status_add_node(s, host, first / RANKS_OF_A_NODE, RANKS_OF_A_NODE) != 0)
            abort();
        for (int i = 0; i < RANKS_OF_A_NODE; i++) {
            struct worker_status *w = &s->nodes[s->n_nodes_known - 1].workers[i];

            w->rank = first + i;
            w->pid = 10000 + first + i;
            w->has_usage = true;
            (void)strcpy(w->state, "running");
        }
    }
}

static void keep_best(double *best, uint64_t from_ns)
{
    double ms = (double)(now_ns() - from_ns) / 1e6;

    if (*best == 0 || ms < *best)
        *best = ms;
}

int main(int argc, char **argv)
{
    int n_ranks = argc > 1 ? atoi(argv[1]) : 1000;
    const struct top_view view = {
        .width = 80, .height = 24, .now_s = 1000000, .is_live = true, .has_marks_first = true};
    double write_ms = 0, read_ms = 0, text_ms = 0;
    struct job_status s, read;

    fill_job(&s, n_ranks);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t begin_ns = now_ns();
        char *json = job_status_to_json(&s);
        keep_best(&write_ms, begin_ns);
        begin_ns = now_ns();
        if (!json || job_status_from_json(json, strlen(json), &read) != 0)
            abort();
        keep_best(&read_ms, begin_ns);
        begin_ns = now_ns();
        char *text = top_text(&read, 1, &view);
        keep_best(&text_ms, begin_ns);
        free(text);
        free(json);
        job_status_finish(&read);
    }
    printf("%d ranks: JSON written %.2f ms, read %.2f ms, picture of 80 x 24 %.2f ms\n", n_ranks, write_ms,
           read_ms, text_ms);
    job_status_finish(&s);
    return 0;
}
