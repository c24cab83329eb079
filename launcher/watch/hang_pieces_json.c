#include "launcher/watch/hang_pieces_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/minmax.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

enum { PIECES_MAX = (SESSION_WORKERS_MAX + HANG_PIECE_RANKS - 1) / HANG_PIECE_RANKS };

/* Of hang_rank, with the characters as numbers. */
struct rank_facts {
    int32_t rank;
    int64_t pid, child_pid;
    bool has_ended;
    uint32_t state, child_state, kind;
    char text[STACK_TEXT_SIZE];
};

struct collective_facts {
    uint64_t group;
    uint64_t number;
    uint32_t kind, n_ranks;
    bool is_world;
};

struct piece_facts {
    uint32_t node, piece, pieces;
    bool asked;
    char host[HANG_HOST_SIZE];
};

#define FACT_U32(structure, member, high) FIELD_U32_AT(struct structure, member, 0, high)

static const struct field rank_fields[] = {
    {"rank", FIELD_I32, offsetof(struct rank_facts, rank), 0, INT32_MAX, .required = true},
    {"pid", FIELD_I64, offsetof(struct rank_facts, pid), 0, FIELD_EXACT_MAX},
    {"child_pid", FIELD_I64, offsetof(struct rank_facts, child_pid), 0, FIELD_EXACT_MAX},
    {"has_ended", FIELD_BOOL, offsetof(struct rank_facts, has_ended)},
    {"state", FACT_U32(rank_facts, state, 127)},
    {"child_state", FACT_U32(rank_facts, child_state, 127)},
    {"kind", FACT_U32(rank_facts, kind, STACK_DESTROY)},
    {"text", FIELD_TEXT, offsetof(struct rank_facts, text), .size = STACK_TEXT_SIZE},
};

static const struct field collective_fields[] = {
    {"group", FIELD_HEX, offsetof(struct collective_facts, group), .required = true},
    {"number", FIELD_HEX, offsetof(struct collective_facts, number)},
    {"kind", FACT_U32(collective_facts, kind, WORKER_COLLECTIVE_KIND_COUNT - 1)},
    {"n_ranks", FACT_U32(collective_facts, n_ranks, UINT32_MAX)},
    {"is_world", FIELD_BOOL, offsetof(struct collective_facts, is_world)},
};

static const struct field piece_fields[] = {
    {"node", FIELD_U32_AT(struct piece_facts, node, 0, SESSION_NODES_MAX - 1), .required = true},
    {"piece", FIELD_U32_AT(struct piece_facts, piece, 0, PIECES_MAX - 1)},
    {"pieces", FIELD_U32_AT(struct piece_facts, pieces, 1, PIECES_MAX), .required = true},
    {"asked", FIELD_BOOL, offsetof(struct piece_facts, asked)},
    {"host", FIELD_TEXT, offsetof(struct piece_facts, host), .size = HANG_HOST_SIZE},
};

static const struct field result_fields[] = {
    {"rank", FIELD_I32, offsetof(struct hang_result, rank), -1, INT32_MAX, .missing = -1},
    {"text", FIELD_TEXT, offsetof(struct hang_result, text), .size = HANG_TEXT_SIZE},
};

/* ---- writing ---- */

static int add_collective(cJSON *list, const struct hang_collective *c)
{
    const struct collective_facts facts = {.group = c->group,
                                           .number = c->number,
                                           .kind = (uint32_t)c->kind,
                                           .n_ranks = c->n_ranks,
                                           .is_world = c->is_world};
    cJSON *object = list ? fields_append_object(list) : NULL;

    return object ? fields_write(object, collective_fields, ARRAY_SIZE(collective_fields), &facts) : -ENOMEM;
}

static int add_rank_facts(cJSON *list, const struct hang_rank *r)
{
    struct rank_facts facts = {.rank = r->rank,
                               .pid = r->pid,
                               .child_pid = r->child_pid,
                               .has_ended = r->has_ended,
                               .state = (uint32_t)r->state & 127,
                               .child_state = (uint32_t)r->child_state & 127,
                               .kind = (uint32_t)r->kind};
    cJSON *object = list ? fields_append_object(list) : NULL;

    text_copy(facts.text, sizeof(facts.text), r->text);
    int error = object ? fields_write(object, rank_fields, ARRAY_SIZE(rank_fields), &facts) : -ENOMEM;
    cJSON *collectives =
        !error && r->n_collectives > 0 ? cJSON_AddArrayToObject(object, "collectives") : NULL;
    for (int i = 0; !error && i < r->n_collectives; i++)
        error = add_collective(collectives, &r->collectives[i]);
    return error;
}

static int put_message(struct buf *out, const struct agent_message *head, const char *name, const cJSON *json)
{
    _cleanup_free_ char *text = cJSON_PrintUnformatted(json);

    return text ? agent_message_put(out, head, name, text) : -ENOMEM;
}

static int put_piece(struct buf *out, const struct agent_message *head, const struct piece_facts *facts,
                     const struct hang_rank *ranks, size_t n_ranks)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    int r = json ? fields_write(json, piece_fields, ARRAY_SIZE(piece_fields), facts) : -ENOMEM;
    cJSON *list = r ? NULL : cJSON_AddArrayToObject(json, "list");

    for (size_t i = 0; !r && i < n_ranks; i++)
        r = add_rank_facts(list, &ranks[i]);
    return r ? r : put_message(out, head, "ranks", json);
}

int hang_pieces_put(struct buf *out, const struct agent_message *head, const struct hang_sender *sender,
                    const struct hang_rank *ranks, size_t n_ranks)
{
    size_t n_pieces = n_ranks ? (n_ranks + HANG_PIECE_RANKS - 1) / HANG_PIECE_RANKS : 1;
    struct piece_facts facts = {
        .node = (uint32_t)sender->node, .asked = sender->asked, .pieces = (uint32_t)n_pieces};
    int r = 0;

    text_copy(facts.host, sizeof(facts.host), sender->host);
    for (size_t i = 0; !r && i < n_pieces; i++) {
        size_t first = i * HANG_PIECE_RANKS;
        facts.piece = (uint32_t)i;
        r = put_piece(out, head, &facts, ranks + first, min_size(HANG_PIECE_RANKS, n_ranks - first));
    }
    return r;
}

int hang_result_put(struct buf *out, const struct agent_message *head, const struct hang_result *result)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    int r = json ? fields_write(json, result_fields, ARRAY_SIZE(result_fields), result) : -ENOMEM;

    return r ? r : put_message(out, head, "hang", json);
}

/* ---- reading ---- */

static bool read_collectives(const cJSON *json, struct hang_rank *ret)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "collectives"), *item;
    char error[FIELDS_ERROR_SIZE];
    struct collective_facts facts;

    cJSON_ArrayForEach(item, list)
    {
        if (ret->n_collectives == HANG_COLLECTIVES_MAX ||
            !fields_read(item, collective_fields, ARRAY_SIZE(collective_fields), &facts, error))
            return false;
        ret->collectives[ret->n_collectives++] =
            (struct hang_collective){.group = facts.group,
                                     .number = facts.number,
                                     .kind = (enum worker_collective_kind)facts.kind,
                                     .n_ranks = facts.n_ranks,
                                     .is_world = facts.is_world};
    }
    return true;
}

static bool read_rank(const cJSON *json, struct hang_rank *ret)
{
    char error[FIELDS_ERROR_SIZE];
    struct rank_facts facts;

    if (!fields_read(json, rank_fields, ARRAY_SIZE(rank_fields), &facts, error))
        return false;
    *ret = (struct hang_rank){.rank = facts.rank,
                              .pid = facts.pid,
                              .child_pid = facts.child_pid,
                              .has_ended = facts.has_ended,
                              .state = (char)facts.state,
                              .child_state = (char)facts.child_state,
                              .kind = (enum stack_kind)facts.kind};
    text_clean(facts.text);
    memcpy(ret->text, facts.text, sizeof(ret->text));
    return read_collectives(json, ret);
}

static bool read_piece(const cJSON *json, struct hang_piece *ret)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "list"), *item;
    char error[FIELDS_ERROR_SIZE];
    struct piece_facts facts;

    if (!fields_read(json, piece_fields, ARRAY_SIZE(piece_fields), &facts, error) ||
        facts.piece >= facts.pieces)
        return false;
    ret->node = (int)facts.node;
    ret->asked = facts.asked;
    ret->piece = (int)facts.piece;
    ret->pieces = (int)facts.pieces;
    text_clean(facts.host);
    memcpy(ret->host, facts.host, sizeof(ret->host));
    ret->n_ranks = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (ret->n_ranks == HANG_PIECE_RANKS || !read_rank(item, &ret->ranks[ret->n_ranks]))
            return false;
        ret->n_ranks++;
    }
    return true;
}

/* Lines stay lines. */
static void clean_lines(char *text)
{
    for (char *line = text; line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        text_clean(line);
        if (end)
            *end = '\n';
        line = end ? end + 1 : NULL;
    }
}

static bool read_result(const cJSON *json, struct hang_result *ret)
{
    char error[FIELDS_ERROR_SIZE];
    bool is_read = fields_read(json, result_fields, ARRAY_SIZE(result_fields), ret, error);

    if (is_read)
        clean_lines(ret->text);
    return is_read;
}

static bool read_take(const cJSON *json, int32_t *ret)
{
    const cJSON *to = cJSON_GetObjectItemCaseSensitive(json, "to");

    if (!cJSON_IsNumber(to) || !(to->valuedouble >= 0 && to->valuedouble < SESSION_NODES_MAX))
        return false;
    *ret = (int32_t)to->valuedouble;
    return true;
}

bool hang_message_get(const uint8_t *body, size_t n, struct hang_message *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(json, "ranks"),
                *hang = cJSON_GetObjectItemCaseSensitive(json, "hang"),
                *take = cJSON_GetObjectItemCaseSensitive(json, "take");

    *ret = (struct hang_message){.kind = hang   ? HANG_MESSAGE_RESULT
                                         : take ? HANG_MESSAGE_TAKE
                                                : HANG_MESSAGE_RANKS};
    if (!json || !agent_message_read(json, &ret->head))
        return false;
    if (hang)
        return read_result(hang, &ret->result);
    return take ? read_take(take, &ret->take_to) : ranks && read_piece(ranks, &ret->piece);
}
