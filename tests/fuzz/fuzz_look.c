/*
 * What crunctl reads: a crun's status, the frames of a rendezvous' answer, lines of the history; and what an agent reads of a
 * rendezvous. What was read is shown, on a terminal of any size that the first bytes choose.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/ctl/hang_message_json.h"
#include "launcher/crunctl/history.h"
#include "launcher/crunctl/history_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/crunctl/last_line.h"
#include "launcher/crunctl/query_answer_json.h"
#include "launcher/crunctl/status_text.h"
#include "launcher/crunctl/top_text.h"
#include "launcher/watch/hang_collect.h"
#include "launcher/watch/slow.h"
#include "rendezvous/session/look_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void show(const struct job_status *jobs, size_t n_jobs, int width, int height)
{
    const struct top_view top = {
        .width = width, .height = height, .now_s = 1000, .is_live = height & 1, .has_marks_first = width & 1};

    free(status_text(jobs, n_jobs, width, 1000));
    free(top_text(jobs, n_jobs, &top));
    for (size_t i = 0; i < n_jobs; i++)
        free(job_status_to_json(&jobs[i]));
}

static void read_job_text(const char *text, size_t n, int width, int height)
{
    struct job_status job;

    if (job_status_from_json(text, n, &job) != 0)
        return;
    job_status_compare(&job, &job, 1000);
    show(&job, 1, width, height);
    job_status_finish(&job);
}

static void judge_slowness(const struct hang_collect *c)
{
    struct slow slow = {.n_slow = 0};
    char text[80];

    for (uint64_t i = 1; i <= SLOW_TIMES; i++) {
        const struct hang_rank *rank = slow_step(&slow, i * SLOW_CHECK_NS, c->ranks, c->n_ranks);

        if (rank)
            slow_text(&slow, rank, text, sizeof(text));
    }
}

/* What other agents send about a hang. */
static void read_hang(const uint8_t *data, size_t n)
{
    static struct hang_message message;
    static char text[HANG_TEXT_SIZE];
    struct hang_collect c = {0};

    if (!hang_message_get(data, n, &message) || !message.has_ranks || hang_collect_begin(&c, 4, 12) != 0)
        return;
    hang_collect_add(&c, &message.piece);
    judge_slowness(&c);
    (void)hang_collect_report(&c, text);
    hang_collect_finish(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct history_line line;
    struct query_answer looked = {0};
    char last[32];
    struct look_watch watch;

    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    int width = data[0], height = data[1];

    read_job_text(text, n, width, height);
    if (query_answer_take_frames(&looked, data + 2, n) == 0) {
        for (size_t i = 0; i < looked.n_jobs; i++)
            job_status_mark_slow(&looked.jobs[i]);
        show(looked.jobs, looked.n_jobs, width, height);
    }
    query_answer_finish(&looked);
    (void)look_get_watch(data + 2, n, &watch);
    read_hang(data + 2, n);
    (void)history_line_from_json(text, n, &line);
    last_line_of(text, n, last, sizeof(last));
    return 0;
}
