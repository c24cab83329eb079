#include "launcher/ctl/node_ranks_json.h"

#include <cjson/cJSON.h>
#include <errno.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/minmax.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "launcher/ctl/job_status.h"
#include "launcher/watch/hang_collect.h"
#include "rendezvous/session/agent_message_json.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/look_json.h"
#include "rendezvous/session/session_message.h"

enum {
    WORKERS_OF_A_PIECE = 24, /* at most 600 bytes each fill a frame; workers with places: HANG_PIECE_RANKS */
    PIECES_MAX = (SESSION_WORKERS_MAX + HANG_PIECE_RANKS - 1) / HANG_PIECE_RANKS,
};

static const struct field worker_fields[] = {
    {"rank", FIELD_I32_AT(struct worker_status, rank), .required = true},
    {"local_rank", FIELD_I32_AT(struct worker_status, local_rank), .required = true},
    {"pid", FIELD_I64_AT(struct worker_status, pid), .required = true},
    {"state", FIELD_TEXT_AT(struct worker_status, state), .required = true},
    {"exit_code", FIELD_I32_AT(struct worker_status, exit_code)},
    {"started", FIELD_I64_AT(struct worker_status, started_s)},
    {"hang", FIELD_BOOL, offsetof(struct worker_status, hang), .required = true},
    {"straggler", FIELD_BOOL, offsetof(struct worker_status, straggler), .always = true},
    {"awaited", FIELD_BOOL, offsetof(struct worker_status, awaited), .always = true},
    {"waits_percent", FIELD_I32, offsetof(struct worker_status, waits_percent), -1, 100, .missing = -1},
    {"awaited_percent", FIELD_I32, offsetof(struct worker_status, awaited_percent), -1, 100, .missing = -1},
    {"last_step", FIELD_I64_AT(struct worker_status, last_step), .missing = -1, .null = true},
};

/* Optional texts of a worker. */
static const struct field line_fields[] = {
    {"log", FIELD_TEXT_AT(struct worker_status, log), .clean = true},
    {"last_line", FIELD_TEXT_AT(struct worker_status, last_line), .clean = true},
};

static const struct field gpu_fields[] = {
    {"index", FIELD_I32_AT(struct gpu_status, index), .required = true},
    {"percent", FIELD_I32_AT(struct gpu_status, percent), .required = true},
    {"used_mib", FIELD_I64_AT(struct gpu_status, used_mib), .required = true},
    {"total_mib", FIELD_I64_AT(struct gpu_status, total_mib), .required = true},
};

/* Resource usage of a worker, added by crunctl or by the agent of another node. */
static const struct field usage_fields[] = {
    {"cpu_ms", FIELD_I64_AT(struct worker_status, cpu_ms), .required = true},
    {"rss_kib", FIELD_I64_AT(struct worker_status, rss_kib), .required = true},
    {"cpu_percent", FIELD_I32_AT(struct worker_status, cpu_percent), .missing = -1},
};

static const struct field collective_fields[] = {
    {"group", FIELD_HEX, offsetof(struct hang_collective, group), .required = true},
    {"number", FIELD_HEX, offsetof(struct hang_collective, number)},
    {"kind", FIELD_U32_AT(struct hang_collective, kind, 0, WORKER_COLLECTIVE_KIND_COUNT - 1)},
    {"n_ranks", FIELD_U32_AT(struct hang_collective, n_ranks, 0, UINT32_MAX)},
    {"is_world", FIELD_BOOL, offsetof(struct hang_collective, is_world)},
};

/* Where a rank is, for a report on a hang. */
static const struct field place_fields[] = {
    {"pid", FIELD_I64, offsetof(struct hang_rank, pid), 0, FIELD_EXACT_MAX}, /* a worker may be a shell */
    {"state", FIELD_U32_AT(struct hang_rank, state, 0, 127)},
    {"child_pid", FIELD_I64, offsetof(struct hang_rank, child_pid), 0, FIELD_EXACT_MAX},
    {"child_state", FIELD_U32_AT(struct hang_rank, child_state, 0, 127)},
    {"child_name", FIELD_TEXT_AT(struct hang_rank, child_name)},
    {"has_ended", FIELD_BOOL, offsetof(struct hang_rank, has_ended)},
    {"kind", FIELD_U32_AT(struct hang_rank, kind, 0, STACK_DESTROY)},
    {"text", FIELD_TEXT_AT(struct hang_rank, text)},
    {"activity", FIELD_U32_AT(struct hang_rank, activity, 0, ACTIVITY_COUNT - 1)},
    {"wait_known", FIELD_BOOL, offsetof(struct hang_rank, is_wait_known)},
    {"waits_ms", FIELD_U32_AT(struct hang_rank, waits_ms, 0, UINT32_MAX)},
    {"limit_ms", FIELD_U32_AT(struct hang_rank, limit_ms, 0, UINT32_MAX)},
    {"store_client", FIELD_HEX, offsetof(struct hang_rank, store_clients[0])},
    {"store_client2", FIELD_HEX, offsetof(struct hang_rank, store_clients[1])},
    {"store_client3", FIELD_HEX, offsetof(struct hang_rank, store_clients[2])},
    {"store_client4", FIELD_HEX, offsetof(struct hang_rank, store_clients[3])},
    {"bytes_per_s", FIELD_U64, offsetof(struct hang_rank, bytes_per_s), 0, FIELD_EXACT_MAX},
    {"waits_percent", FIELD_I32, offsetof(struct hang_rank, waits_percent), -1, 100, .missing = -1},
    {"n_waits", FIELD_U32_AT(struct hang_rank, n_waits, 0, UINT32_MAX)},
    {"collectives", FIELD_LIST_AT(struct hang_rank, collectives, n_collectives, collective_fields)},
};

static const struct field head_fields[] = {
    {"piece", FIELD_I32, offsetof(struct hang_piece, piece), 0, PIECES_MAX - 1},
    {"pieces", FIELD_I32, offsetof(struct hang_piece, pieces), 1, PIECES_MAX, .required = true},
    {"purpose", FIELD_U32_AT(struct hang_piece, purpose, 0, HANG_PURPOSE_COUNT - 1)},
};

static const struct field node_fields[] = {
    {"host", FIELD_TEXT_AT(struct node_status, host), .clean = true},
    {"state", FIELD_TEXT_AT(struct node_status, state), .clean = true},
    {"taken_ms", FIELD_I64_AT(struct node_status, taken_ms)},
    {"generation", FIELD_I64_AT(struct node_status, generation), .missing = -1},
    {"group_rank", FIELD_I32_AT(struct node_status, group_rank), .missing = -1, .always = true},
    {"gpus", FIELD_LIST_AT(struct node_status, gpus, n_gpus, gpu_fields)},
};

/* ---- writing ---- */

static int add_place(cJSON *worker, const struct hang_rank *rank)
{
    cJSON *place = cJSON_AddObjectToObject(worker, "at");

    return place ? fields_write(place, FIELDS_OF(place_fields), rank) : -ENOMEM;
}

/* With a place, the lines (which make a worker's object long) are left out. */
static int add_worker(cJSON *list, const struct worker_status *w, const struct hang_rank *place)
{
    cJSON *object = fields_append_object(list);

    TRY(object ? fields_write(object, FIELDS_OF(worker_fields), w) : -ENOMEM);
    if (place)
        return add_place(object, place);
    TRY(fields_write(object, FIELDS_OF(line_fields), w));
    if (w->steps_per_s >= 0 && !cJSON_AddNumberToObject(object, "steps_per_s", w->steps_per_s))
        return -ENOMEM;
    return w->has_usage ? fields_write(object, FIELDS_OF(usage_fields), w) : 0;
}

/* Rank i of a message: its worker and, if there are places, its place. */
static int add_rank(cJSON *list, const struct node_ranks *ranks, size_t i)
{
    const struct node_status *n = ranks->node;
    const struct hang_rank *place = ranks->places ? &ranks->places[i] : NULL;
    int64_t worker = place && n->n_workers > 0 ? (int64_t)place->rank - n->workers[0].rank : (int64_t)i;

    if (worker < 0 || (size_t)worker >= n->n_workers)
        return -EINVAL;
    return add_worker(list, &n->workers[worker], place);
}

/* The node with some of its ranks. */
static int fill_node(cJSON *object, const struct node_ranks *ranks, size_t first, size_t n_ranks)
{
    int r = fields_write(object, FIELDS_OF(node_fields), ranks->node);
    cJSON *workers = r ? NULL : cJSON_AddArrayToObject(object, "workers");

    r = workers ? 0 : -ENOMEM;
    for (size_t i = first; !r && i < first + n_ranks; i++)
        r = add_rank(workers, ranks, i);
    return r;
}

int node_status_write(cJSON *object, const struct node_status *n)
{
    return fill_node(object, &(struct node_ranks){.node = n}, 0, n->n_workers);
}

char *node_ranks_to_json(const struct node_ranks *ranks, size_t first, size_t n_ranks)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    int r = json ? fill_node(json, ranks, first, n_ranks) : -ENOMEM;

    if (!r && n_ranks == 0 && ranks->stacks && !cJSON_AddRawToObject(json, "stacks", ranks->stacks))
        r = -ENOMEM;
    return r ? NULL : cJSON_PrintUnformatted(json);
}

static int put_piece(struct buf *out, const struct agent_message *to, const struct node_ranks *ranks,
                     const struct look_piece *piece, const char *node)
{
    if (!node)
        return -ENOMEM;
    if (!to)
        return look_put_status(out, piece, node);
    _cleanup_free_ char *json =
        strbuf_format("{\"piece\":%u,\"pieces\":%u,\"purpose\":%d,\"node\":%s}", (unsigned)piece->piece,
                      (unsigned)piece->pieces, ranks->purpose, node);
    return json ? agent_message_put(out, to, "ranks", json) : -ENOMEM;
}

int node_ranks_put(struct buf *out, const struct agent_message *to, const struct node_ranks *ranks)
{
    size_t of_a_piece = ranks->places ? HANG_PIECE_RANKS : WORKERS_OF_A_PIECE;
    size_t n_ranks = ranks->places ? ranks->n_places : ranks->node->n_workers;
    size_t n_of_ranks = max_size(1, (n_ranks + of_a_piece - 1) / of_a_piece),
           n_stacks = ranks->stacks ? 1 : 0;
    struct look_piece piece = {0};
    int r = 0;

    if (!to)
        n_of_ranks = min_size(n_of_ranks, LOOK_PIECES_MAX - n_stacks); /* the first ranks */
    piece.pieces = (uint32_t)(n_of_ranks + n_stacks);
    for (; !r && piece.piece < piece.pieces; piece.piece++) {
        size_t first = piece.piece * of_a_piece;
        size_t n = piece.piece == n_of_ranks ? 0 : min_size(of_a_piece, n_ranks - first);
        _cleanup_free_ char *node = node_ranks_to_json(ranks, first, n);

        r = put_piece(out, to, ranks, &piece, node);
    }
    return r;
}

/* ---- reading ---- */

static bool read_worker(const cJSON *json, struct worker_status *w)
{
    const cJSON *rate = cJSON_GetObjectItemCaseSensitive(json, "steps_per_s");

    w->steps_per_s = cJSON_IsNumber(rate) && rate->valuedouble >= 0 ? rate->valuedouble : -1;
    w->has_usage = cJSON_HasObjectItem(json, "cpu_ms");
    return fields_read(json, FIELDS_OF(worker_fields), w, NULL) &&
           fields_read(json, FIELDS_OF(line_fields), w, NULL) &&
           (!w->has_usage || fields_read(json, FIELDS_OF(usage_fields), w, NULL));
}

static bool read_place(const cJSON *worker, const struct worker_status *w, struct hang_rank *ret)
{
    const cJSON *place = cJSON_GetObjectItemCaseSensitive(worker, "at");

    *ret = (struct hang_rank){.rank = w->rank};
    if (w->rank < 0 || w->pid < 0 || !fields_read(place, FIELDS_OF(place_fields), ret, NULL))
        return false;
    ret->pid = ret->pid ? ret->pid : w->pid;
    text_clean(ret->text);
    text_clean(ret->child_name);
    return true;
}

/* places: receives the place of each worker in list; NULL: workers without places. */
static int read_workers(const cJSON *list, struct job_status *s, struct hang_rank *places)
{
    struct node_status *node = &s->nodes[s->n_nodes_known - 1];
    size_t i = node->n_workers, n = (size_t)cJSON_GetArraySize(list);
    const cJSON *item;

    if (i + n > JOB_STATUS_WORKERS_MAX || (places && n > HANG_PIECE_RANKS))
        return -EBADMSG;
    TRY(job_status_add_workers(s, n));
    cJSON_ArrayForEach(item, list)
    {
        if (!read_worker(item, &node->workers[i]) ||
            (places && !read_place(item, &node->workers[i], places++)))
            return -EBADMSG;
        i++;
    }
    return 0;
}

int node_status_read(const cJSON *json, struct job_status *s)
{
    const cJSON *workers = cJSON_GetObjectItemCaseSensitive(json, "workers");

    TRY(cJSON_IsArray(workers) ? job_status_add_node(s, "", -1, 0) : -EBADMSG);
    struct node_status *node = &s->nodes[s->n_nodes_known - 1];
    bool is_read = fields_read(json, FIELDS_OF(node_fields), node, NULL) && node->host[0];
    return is_read ? read_workers(workers, s, NULL) : -EBADMSG;
}

int node_ranks_take(const cJSON *status, struct job_status *s, struct hang_piece *piece,
                    struct hang_rank *places)
{
    const cJSON *node = cJSON_GetObjectItemCaseSensitive(status, "node"),
                *workers = cJSON_GetObjectItemCaseSensitive(node, "workers");
    struct node_status *to = s->n_nodes_known > 0 ? &s->nodes[s->n_nodes_known - 1] : NULL, read;

    if (!to || !cJSON_IsArray(workers) || !fields_read(node, FIELDS_OF(node_fields), &read, NULL) ||
        (piece && (!read.host[0] || !fields_read(status, FIELDS_OF(head_fields), piece, NULL) ||
                   piece->piece >= piece->pieces)))
        return -EBADMSG;
    to->generation = read.generation;
    to->taken_ms = read.taken_ms;
    if (piece) {
        piece->node = read.group_rank;
        piece->ranks = places;
        piece->n_ranks = (size_t)cJSON_GetArraySize(workers);
        text_copy(piece->host, sizeof(piece->host), read.host);
        text_clean(piece->host);
    }
    return read_workers(workers, s, places);
}
