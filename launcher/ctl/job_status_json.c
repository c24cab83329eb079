#include "launcher/ctl/job_status_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/ctl/job_status.h"
#include "launcher/report/events.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"
#include "base/err.h"

#define WORKER_TEXT(member, bytes)                                                                           \
    .type = FIELD_TEXT, .offset = offsetof(struct worker_status, member), .size = (bytes)
#define JOB_TEXT(member, bytes)                                                                              \
    .type = FIELD_TEXT, .offset = offsetof(struct job_status, member), .size = (bytes)
#define I64_AT(structure, member)                                                                            \
    .type = FIELD_I64, .offset = offsetof(structure, member), .min = -1, .max = FIELD_EXACT_MAX
#define I32_AT(structure, member)                                                                            \
    .type = FIELD_I32, .offset = offsetof(structure, member), .min = INT32_MIN, .max = INT32_MAX

/* Of any origin, and so not written by the table: see events_add_text(). */
static const struct field name_fields[] = {
    {"job", JOB_TEXT(job, JOB_STATUS_NAME_SIZE), .required = true},
    {"program", JOB_TEXT(program, JOB_STATUS_NAME_SIZE)},
    {"rendezvous", JOB_TEXT(rendezvous, JOB_STATUS_ENDPOINT_SIZE)},
};

static const struct field job_fields[] = {
    {"state", JOB_TEXT(state, JOB_STATUS_WORD_SIZE), .required = true},
    {"containment", JOB_TEXT(containment, JOB_STATUS_WORD_SIZE)},
    {"crun_pid", I64_AT(struct job_status, crun_pid), .required = true},
    {"generation", I64_AT(struct job_status, generation), .required = true},
    {"restarts", I32_AT(struct job_status, restarts), .required = true},
    {"max_restarts", I32_AT(struct job_status, max_restarts), .required = true},
    {"n_nodes", I32_AT(struct job_status, n_nodes), .required = true},
    {"started", I64_AT(struct job_status, started_s), .required = true},
};

static const struct field worker_fields[] = {
    {"rank", I32_AT(struct worker_status, rank), .required = true},
    {"local_rank", I32_AT(struct worker_status, local_rank), .required = true},
    {"pid", I64_AT(struct worker_status, pid), .required = true},
    {"state", WORKER_TEXT(state, JOB_STATUS_WORD_SIZE), .required = true},
    {"exit_code", I32_AT(struct worker_status, exit_code)},
    {"started", I64_AT(struct worker_status, started_s)},
    {"hang", FIELD_BOOL, offsetof(struct worker_status, hang), .required = true},
    {"straggler", FIELD_BOOL, offsetof(struct worker_status, straggler), .always = true},
};

/* Of any origin, as above. */
static const struct field line_fields[] = {
    {"log", WORKER_TEXT(log, JOB_STATUS_NAME_SIZE)},
    {"last_line", WORKER_TEXT(last_line, JOB_STATUS_LINE_SIZE)},
};

static const struct field gpu_fields[] = {
    {"index", I32_AT(struct gpu_status, index), .required = true},
    {"percent", I32_AT(struct gpu_status, percent), .required = true},
    {"used_mib", I64_AT(struct gpu_status, used_mib), .required = true},
    {"total_mib", I64_AT(struct gpu_status, total_mib), .required = true},
};

/* What crunctl adds, or the agent of another node. */
static const struct field usage_fields[] = {
    {"cpu_ms", I64_AT(struct worker_status, cpu_ms), .required = true},
    {"rss_kib", I64_AT(struct worker_status, rss_kib), .required = true},
    {"cpu_percent", I32_AT(struct worker_status, cpu_percent), .missing = -1},
};

/* Steps and ages in ms that are compared: their sums and products are far from the end of int64_t. */
#define BEAT_NUMBER_MAX (INT64_C(1) << 40)

/* ---- writing ---- */

static int append_number(cJSON *list, double number)
{
    cJSON *item = cJSON_CreateNumber(number);

    if (!item || !cJSON_AddItemToArray(list, item)) {
        cJSON_Delete(item);
        return -ENOMEM;
    }
    return 0;
}

static int add_worker_lines(cJSON *object, const struct worker_status *w)
{
    if (w->log[0])
        events_add_text(object, "log", w->log);
    if (w->last_line[0])
        events_add_text(object, "last_line", w->last_line);
    if (w->steps_per_s >= 0 && !cJSON_AddNumberToObject(object, "steps_per_s", w->steps_per_s))
        return -ENOMEM;
    return w->has_usage ? fields_write(object, usage_fields, ARRAY_SIZE(usage_fields), w) : 0;
}

/* The latest step and its age; then of each one before it how much lower and how much older it is. */
static int add_beats(cJSON *object, const struct worker_status *w)
{
    struct step_status last = {0};

    cJSON *list = w->n_beats > 0 ? cJSON_AddArrayToObject(object, "beats") : NULL;
    if (w->n_beats > 0 && !list)
        return -ENOMEM;
    for (size_t i = 0; i < w->n_beats; i++) {
        const struct step_status *b = &w->beats[i];
        int64_t step = i == 0 ? b->step : last.step - b->step;

        if (append_number(list, (double)step) != 0 ||
            append_number(list, (double)(b->age_ms - last.age_ms)) != 0)
            return -ENOMEM;
        last = *b;
    }
    return 0;
}

static int add_worker(cJSON *list, const struct worker_status *w)
{
    cJSON *object = fields_append_object(list);
    int r = object ? fields_write(object, worker_fields, ARRAY_SIZE(worker_fields), w) : -ENOMEM;

    if (!r && w->last_step >= 0)
        r = cJSON_AddNumberToObject(object, "last_step", (double)w->last_step) ? 0 : -ENOMEM;
    else if (!r)
        r = cJSON_AddNullToObject(object, "last_step") ? 0 : -ENOMEM;
    if (!r)
        r = add_beats(object, w);
    return r ? r : add_worker_lines(object, w);
}

static int add_gpus(cJSON *node, const struct node_status *n)
{
    cJSON *list = n->n_gpus > 0 ? cJSON_AddArrayToObject(node, "gpus") : NULL;
    int r = n->n_gpus > 0 && !list ? -ENOMEM : 0;

    for (size_t i = 0; !r && i < n->n_gpus; i++) {
        cJSON *object = fields_append_object(list);

        r = object ? fields_write(object, gpu_fields, ARRAY_SIZE(gpu_fields), &n->gpus[i]) : -ENOMEM;
    }
    return r;
}

/* The node with some of its workers. */
static int fill_node(cJSON *object, const struct node_status *n, size_t first, size_t n_workers)
{
    events_add_text(object, "host", n->host);
    if (n->state[0])
        events_add_text(object, "state", n->state);
    if (n->taken_ms > 0 && !cJSON_AddNumberToObject(object, "taken_ms", (double)n->taken_ms))
        return -ENOMEM;
    if (n->generation >= 0 && !cJSON_AddNumberToObject(object, "generation", (double)n->generation))
        return -ENOMEM;
    cJSON *workers = cJSON_AddNumberToObject(object, "group_rank", n->group_rank)
                         ? cJSON_AddArrayToObject(object, "workers")
                         : NULL;
    int r = workers ? add_gpus(object, n) : -ENOMEM;
    for (size_t i = first; !r && i < first + n_workers; i++)
        r = add_worker(workers, &n->workers[i]);
    return r;
}

char *job_status_node_to_json(const struct node_status *n, size_t first, size_t n_workers)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();

    return json && fill_node(json, n, first, n_workers) == 0 ? cJSON_PrintUnformatted(json) : NULL;
}

static int add_node(cJSON *list, const struct node_status *n)
{
    cJSON *object = fields_append_object(list);

    return object ? fill_node(object, n, 0, n->n_workers) : -ENOMEM;
}

char *job_status_to_json(const struct job_status *s)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    cJSON *nodes;

    if (!json || !cJSON_AddNumberToObject(json, "version", JOB_STATUS_VERSION))
        return NULL;
    events_add_text(json, "job", s->job);
    events_add_text(json, "program", s->program);
    if (s->rendezvous[0])
        events_add_text(json, "rendezvous", s->rendezvous);
    if (fields_write(json, job_fields, ARRAY_SIZE(job_fields), s) != 0)
        return NULL;
    nodes = cJSON_AddArrayToObject(json, "nodes");
    for (size_t i = 0; nodes && i < s->n_nodes_known; i++)
        if (add_node(nodes, &s->nodes[i]) != 0)
            return NULL;
    return nodes ? cJSON_PrintUnformatted(json) : NULL;
}

/* ---- reading ---- */

static bool read_small(const cJSON *item, int64_t *ret)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < (double)BEAT_NUMBER_MAX))
        return false;
    *ret = (int64_t)item->valuedouble;
    return true;
}

/* Up to the first one that is not in order: without them the worker is compared with those of its own node alone. */
static void read_beats(const cJSON *list, struct worker_status *w)
{
    const cJSON *item = cJSON_IsArray(list) ? list->child : NULL;
    struct step_status last = {0}, read;

    for (; item && item->next && w->n_beats < JOB_STATUS_BEATS_MAX; item = item->next->next) {
        if (!read_small(item, &read.step) || !read_small(item->next, &read.age_ms))
            return;
        read.step = w->n_beats == 0 ? read.step : last.step - read.step;
        read.age_ms += last.age_ms;
        if (read.step < 0)
            return;
        last = w->beats[w->n_beats++] = read;
    }
}

static bool read_worker(const cJSON *json, struct worker_status *w)
{
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "last_step");
    const cJSON *rate = cJSON_GetObjectItemCaseSensitive(json, "steps_per_s");
    char error[FIELDS_ERROR_SIZE];

    if (!fields_read(json, worker_fields, ARRAY_SIZE(worker_fields), w, error) ||
        !fields_read(json, line_fields, ARRAY_SIZE(line_fields), w, error))
        return false;
    w->has_usage = cJSON_HasObjectItem(json, "cpu_ms");
    if (w->has_usage && !fields_read(json, usage_fields, ARRAY_SIZE(usage_fields), w, error))
        return false;
    w->steps_per_s = cJSON_IsNumber(rate) && rate->valuedouble >= 0 ? rate->valuedouble : -1;
    read_beats(cJSON_GetObjectItemCaseSensitive(json, "beats"), w);
    w->last_step =
        cJSON_IsNumber(step) && step->valuedouble >= 0 && step->valuedouble < (double)FIELD_EXACT_MAX
            ? (int64_t)step->valuedouble
            : -1;
    return true;
}

/* More than JOB_STATUS_GPUS_MAX are left out. */
static bool read_gpus(const cJSON *list, struct node_status *n)
{
    char error[FIELDS_ERROR_SIZE];
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        if (n->n_gpus < JOB_STATUS_GPUS_MAX &&
            !fields_read(item, gpu_fields, ARRAY_SIZE(gpu_fields), &n->gpus[n->n_gpus++], error))
            return false;
    }
    return true;
}

static int read_workers(const cJSON *list, struct job_status *s)
{
    struct node_status *node = &s->nodes[s->n_nodes_known - 1];
    size_t i = node->n_workers, n = (size_t)cJSON_GetArraySize(list);
    const cJSON *item;

    int r = i + n > JOB_STATUS_WORKERS_MAX ? -EBADMSG : job_status_add_workers(s, n);
    if (r)
        return r;
    cJSON_ArrayForEach(item, list)
    {
        if (!read_worker(item, &node->workers[i++]))
            return -EBADMSG;
    }
    return 0;
}

static void read_generation(const cJSON *node, struct node_status *ret)
{
    int64_t generation;

    if (read_small(cJSON_GetObjectItemCaseSensitive(node, "generation"), &generation))
        ret->generation = generation;
}

int job_status_read_piece(const uint8_t *body, size_t n, struct job_status *s)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const cJSON *status = cJSON_GetObjectItemCaseSensitive(json, "status"),
                *node = cJSON_GetObjectItemCaseSensitive(status, "node"),
                *workers = cJSON_GetObjectItemCaseSensitive(node, "workers");

    const cJSON *taken = cJSON_GetObjectItemCaseSensitive(node, "taken_ms");
    if (!cJSON_IsArray(workers) || s->n_nodes_known == 0)
        return -EBADMSG;
    if (cJSON_IsNumber(taken) && taken->valuedouble > 0 && taken->valuedouble < (double)FIELD_EXACT_MAX)
        s->nodes[s->n_nodes_known - 1].taken_ms = (int64_t)taken->valuedouble;
    read_generation(node, &s->nodes[s->n_nodes_known - 1]);
    return read_workers(workers, s);
}

static int read_node(const cJSON *json, struct job_status *s)
{
    const cJSON *host = cJSON_GetObjectItemCaseSensitive(json, "host");
    const cJSON *group_rank = cJSON_GetObjectItemCaseSensitive(json, "group_rank");
    const cJSON *workers = cJSON_GetObjectItemCaseSensitive(json, "workers");
    const char *state = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "state"));

    if (!cJSON_IsString(host) || !cJSON_IsNumber(group_rank) || !cJSON_IsArray(workers) ||
        cJSON_GetArraySize(workers) > JOB_STATUS_WORKERS_MAX)
        return -EBADMSG;
    int r = job_status_add_node(s, host->valuestring, group_rank->valueint, 0);
    if (r)
        return r;
    read_generation(json, &s->nodes[s->n_nodes_known - 1]);
    text_copy(s->nodes[s->n_nodes_known - 1].state, JOB_STATUS_WORD_SIZE, state ? state : "");
    if (!read_gpus(cJSON_GetObjectItemCaseSensitive(json, "gpus"), &s->nodes[s->n_nodes_known - 1]))
        return -EBADMSG;
    return read_workers(workers, s);
}

static int read_job(const cJSON *json, struct job_status *s)
{
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(json, "version");
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(json, "nodes"), *item;
    char error[FIELDS_ERROR_SIZE];

    if (!cJSON_IsNumber(version) || version->valueint != JOB_STATUS_VERSION || !cJSON_IsArray(nodes) ||
        !fields_read(json, name_fields, ARRAY_SIZE(name_fields), s, error) ||
        !fields_read(json, job_fields, ARRAY_SIZE(job_fields), s, error))
        return -EBADMSG;
    cJSON_ArrayForEach(item, nodes)
    {
        int r = read_node(item, s);
        if (r)
            return r;
    }
    return 0;
}

int job_status_from_json(const char *bytes, size_t n, struct job_status *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength(bytes, n);

    *ret = (struct job_status){0};
    int r = json ? read_job(json, ret) : -EBADMSG;
    if (r)
        job_status_finish(ret);
    return r;
}
