#include "rendezvous/rounds/rounds_json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "rendezvous/rounds/rounds_impl.h"
#include "rendezvous/session/session_json.h"

enum { LINE_MAX_SIZE = 16384 };

static const struct field job_fields[] = {
    {"job", FIELD_TEXT, offsetof(struct rounds_job, id), .size = SESSION_JOB_SIZE, .required = true},
    {"instance", FIELD_HEX, offsetof(struct rounds_job, instance), .required = true},
    {"sequence", FIELD_U64, offsetof(struct rounds_job, sequence), 0, FIELD_EXACT_MAX},
    {"state", FIELD_WORD_AT(struct rounds_job, state, rounds_job_state_names), .required = true},
    {"generation", FIELD_I64, offsetof(struct rounds_job, generation), -1, INT32_MAX, .missing = -1},
    {"floor", FIELD_I64, offsetof(struct rounds_job, floor), -1, INT32_MAX, .missing = -1},
    {"restarts", FIELD_U32_AT(struct rounds_job, restarts, 0, SESSION_COUNT_MAX)},
    {"changes", FIELD_U32_AT(struct rounds_job, changes, 0, SESSION_COUNT_MAX)},
    {"drain", FIELD_BOOL, offsetof(struct rounds_job, drain)},
    {"members", FIELD_U32_AT(struct rounds_job, n_members, 0, SESSION_NODES_MAX)},
    {"done_left", FIELD_U32_AT(struct rounds_job, n_done_left, 0, SESSION_NODES_MAX)},
    {"world_size", FIELD_U32_AT(struct rounds_job, world_size, 0, INT32_MAX)},
    {"master_addr", FIELD_TEXT, offsetof(struct rounds_job, master_addr), .size = SESSION_ADDR_SIZE},
    {"master_port", FIELD_U16, offsetof(struct rounds_job, master_port), 0, UINT16_MAX},
    {"key_space", FIELD_U32_AT(struct rounds_job, key_space, 0, INT32_MAX)},
    {"verdict", FIELD_WORD_AT(struct rounds_job, verdict, session_verdict_names)},
    {"stop_signal", FIELD_U32_AT(struct rounds_job, stop_signal, 0, SESSION_SIGNAL_MAX)},
    {"lease_ms", FIELD_U32_AT(struct rounds_job, lease_ms, 0, SESSION_TIMEOUT_MS_MAX)},
    {"replaced", FIELD_BOOL, offsetof(struct rounds_job, replaced)}, /* see is_tombstone() */
};

static const struct field node_fields[] = {
    {"nonce_high", FIELD_HEX, offsetof(struct rounds_node, nonce.high), .required = true},
    {"nonce_low", FIELD_HEX, offsetof(struct rounds_node, nonce.low), .required = true},
    {"host", FIELD_TEXT, offsetof(struct rounds_node, host), .size = SESSION_HOST_SIZE},
    {"addr", FIELD_TEXT, offsetof(struct rounds_node, addr), .size = SESSION_ADDR_SIZE},
    {"peer", FIELD_TEXT, offsetof(struct rounds_node, peer), .size = SESSION_ADDR_SIZE},
    {"local", FIELD_TEXT, offsetof(struct rounds_node, local), .size = SESSION_ADDR_SIZE},
    {"own", FIELD_TEXT, offsetof(struct rounds_node, own), .size = SESSION_NUMERIC_SIZE},
    {"role", FIELD_TEXT, offsetof(struct rounds_node, role), .size = SESSION_ROLE_SIZE},
    {"workers", FIELD_U32_AT(struct rounds_node, n_workers, 1, SESSION_WORKERS_MAX), .required = true},
    {"node_rank", FIELD_I32, offsetof(struct rounds_node, node_rank), -1, SESSION_NODES_MAX - 1,
     .missing = -1},
    {"member", FIELD_BOOL, offsetof(struct rounds_node, member)},
    {"previous_member", FIELD_BOOL, offsetof(struct rounds_node, previous_member)},
    {"lost", FIELD_BOOL, offsetof(struct rounds_node, lost)},
    {"group_rank", FIELD_I32, offsetof(struct rounds_node, group_rank), -1, INT32_MAX, .missing = -1},
    {"rank_base", FIELD_U32_AT(struct rounds_node, rank_base, 0, INT32_MAX)},
    {"role_rank_base", FIELD_U32_AT(struct rounds_node, role_rank_base, 0, INT32_MAX)},
    {"role_world_size", FIELD_U32_AT(struct rounds_node, role_world_size, 0, INT32_MAX)},
};

/* ---- saving ---- */

/* The object printed into one line; open_end: without the last brace. */
static int put_line(struct buf *out, cJSON *object, bool open_end)
{
    char line[LINE_MAX_SIZE];

    if (!cJSON_PrintPreallocated(object, line, sizeof(line), false))
        return -EMSGSIZE;
    size_t n = strlen(line) - (open_end ? 1 : 0);
    return buf_append(out, line, n);
}

static int put_head(struct buf *out, const struct rounds_job *job)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();

    if (!json || !cJSON_AddNumberToObject(json, "crun_rounds", ROUNDS_JSON_VERSION))
        return -ENOMEM;
    TRY(fields_write(json, FIELDS_OF(job_fields), job));
    TRY(session_json_add_params(json, &job->params));
    TRY(session_json_add_cause(json, &job->cause));
    return put_line(out, json, true);
}

static int put_node(struct buf *out, const struct rounds_node *n)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();

    TRY(json ? fields_write(json, FIELDS_OF(node_fields), n) : -ENOMEM);
    return put_line(out, json, false);
}

int rounds_json_save(struct buf *out, const struct rounds_job *job)
{
    const char *separator = ",\"nodes\":[\n";
    int r = put_head(out, job);

    job_each_node(n, job)
    {
        if (r == 0)
            r = buf_append(out, separator, strlen(separator));
        if (r == 0)
            r = put_node(out, n);
        separator = ",\n";
    }
    if (r == 0 && !list_is_empty(&job->nodes))
        r = buf_append(out, "]", 1);
    return r < 0 ? r : buf_append(out, "}\n", 2);
}

/* ---- loading ---- */

static bool load_error(char error[ROUNDS_JSON_ERROR_SIZE], const char *what, const char *part)
{
    (void)snprintf(error, ROUNDS_JSON_ERROR_SIZE, "the saved state of a job cannot be used: %s%s", what,
                   part);
    return false;
}

/* The rank assignment for the node has to be consistent. */
static bool has_place(const struct rounds_job *job, const struct rounds_node *n)
{
    return n->group_rank >= 0 && (uint32_t)n->group_rank < job->n_members &&
           (uint64_t)n->rank_base + n->n_workers <= job->world_size &&
           (uint64_t)n->role_rank_base + n->n_workers <= n->role_world_size &&
           n->role_world_size <= job->world_size;
}

static bool load_node(struct rounds_job *job, const cJSON *json, char error[ROUNDS_JSON_ERROR_SIZE])
{
    struct rounds_node saved = {0}, *n;
    char part[FIELDS_ERROR_SIZE];

    if (!fields_read(json, FIELDS_OF(node_fields), &saved, part))
        return load_error(error, "in a node, ", part);
    if (node_find(job, saved.nonce))
        return load_error(error, "a node is there twice", "");
    if (rounds_job_n_nodes(job) >= job->rounds->config.max_nodes)
        return load_error(error, "it has more nodes than the limit for one job allows", "");
    if (job->rounds->n_nodes >= job->rounds->config.max_nodes_all)
        return load_error(error, "there are more nodes in all jobs than the limit allows", "");
    n = node_create(job, saved.nonce);
    if (!n)
        return load_error(error, "memory is out", "");
    (void)fields_read(json, FIELDS_OF(node_fields), n, part); /* did not fail above */
    n->member = false;                                        /* as counted by the job so far */
    node_set_traits(n, saved.member && (job->state == ROUNDS_RUNNING || job->state == ROUNDS_ENDING), false);
    n->lost = saved.lost && !n->member && job->lease_ms > 0 && job->state != ROUNDS_CLOSED;
    n->phase = SESSION_STOPPING; /* until the next hello */
    if (n->member && !has_place(job, n))
        return load_error(error, "a node has no place in the world that it is in", "");
    return true;
}

static bool load_nodes(struct rounds_job *job, const cJSON *json, char error[ROUNDS_JSON_ERROR_SIZE])
{
    const cJSON *item, *nodes = cJSON_GetObjectItemCaseSensitive(json, "nodes");

    cJSON_ArrayForEach(item, nodes) if (!load_node(job, item, error)) return false;
    return true;
}

/* All members have different group ranks. */
static bool has_distinct_ranks(const struct rounds_job *job)
{
    uint8_t taken[(SESSION_NODES_MAX + 7) / 8] = {0};

    job_each_node(n, job)
    {
        uint32_t rank = (uint32_t)n->group_rank; /* of a member: below n_members, see has_place() */
        uint8_t bit = (uint8_t)(1u << rank % 8);

        if (!n->member)
            continue;
        if (taken[rank / 8] & bit)
            return false;
        taken[rank / 8] |= bit;
    }
    return true;
}

/* Members that are there, or were done when they left. */
static uint32_t count_members(const struct rounds_job *job)
{
    uint32_t n = job->n_done_left;

    job_each_node(node, job) n += node->member;
    return n;
}

/* The first broken invariant of a job; NULL: none. */
static const char *job_fault(const struct rounds_job *job, bool tombstone)
{
    uint32_t n_members = count_members(job);

    if ((job->state == ROUNDS_CLOSED) != (job->verdict != SESSION_VERDICT_NONE))
        return "it is closed without a result, or has one while it goes on";
    if (tombstone && job->state != ROUNDS_CLOSED)
        return "another job has its id, and it has not ended";
    if ((job->state == ROUNDS_RUNNING || job->state == ROUNDS_ENDING) && job->generation < 0)
        return "it runs no generation";
    if (job->state == ROUNDS_RUNNING && n_members != job->n_members)
        return "it has other members than it counts";
    if (job->state == ROUNDS_ENDING && n_members > job->n_members)
        return "it has more members than it counts";
    if (job->state == ROUNDS_ENDING && job->cause.kind == SESSION_CAUSE_NONE)
        return "its generation ends without a cause";
    if (!has_distinct_ranks(job))
        return "a node has no place in the world that it is in";
    return NULL;
}

static bool check_version(const cJSON *json, char error[ROUNDS_JSON_ERROR_SIZE])
{
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(json, "crun_rounds");
    char text[80];

    if (!cJSON_IsNumber(version))
        return load_error(error, "it has no version", "");
    (void)snprintf(text, sizeof(text), "its version is %g, and this release reads %d", version->valuedouble,
                   ROUNDS_JSON_VERSION);
    return version->valuedouble == ROUNDS_JSON_VERSION || load_error(error, text, "");
}

/* Everything but nodes; false: error is set. */
static bool read_head(const struct rounds *r, const cJSON *json, struct rounds_job *saved,
                      char error[ROUNDS_JSON_ERROR_SIZE])
{
    char part[FIELDS_ERROR_SIZE];

    if (!fields_read(json, FIELDS_OF(job_fields), saved, part) ||
        !session_json_read_params(json, &saved->params, part) ||
        !session_json_read_cause(json, &saved->cause, part))
        return load_error(error, "", part);
    if (session_params_fault(&saved->params))
        return load_error(error, session_params_fault(&saved->params), "");
    if (saved->restarts > saved->params.max_restarts || saved->changes > saved->params.max_changes)
        return load_error(error, "it has been restarted more often than it may be", "");
    return saved->replaced || r->n_jobs < r->config.max_jobs ||
           load_error(error, "there are more jobs than the limit allows", "");
}

/* NULL: error is set. */
static struct rounds_job *load_head(struct rounds *r, const cJSON *json, char error[ROUNDS_JSON_ERROR_SIZE])
{
    struct rounds_job saved = {0}, *job;
    char part[FIELDS_ERROR_SIZE];

    if (!read_head(r, json, &saved, error))
        return NULL;
    job = job_create(r, saved.id, &saved.params);
    if (!job) {
        (void)load_error(error, "memory is out", "");
        return NULL;
    }
    (void)fields_read(json, FIELDS_OF(job_fields), job, part); /* did not fail above */
    job->replaced = false; /* job_make_tombstone() sets the flag and counts */
    job->cause = saved.cause;
    return job;
}

static struct rounds_job *other_instance(struct rounds *r, const struct rounds_job *job)
{
    rounds_each_job(other, r)
    {
        if (other != job && !other->replaced && strcmp(other->id, job->id) == 0)
            return other;
    }
    return NULL;
}

/* Saved as rounds_job.replaced. Only job_make_tombstone() sets the flag. */
static bool is_tombstone(const cJSON *json)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "replaced"));
}

/* After a crash between the writes of two instances of an id, both instances seem to have the id: the later save has the id. The
 * older instance is a tombstone if ended, and out of date if not. Returns false when the job was discarded. */
static bool resolve_instances(struct rounds_job *job, struct rounds_job *other)
{
    struct rounds_job *older = job->sequence <= other->sequence ? job : other;

    if (older->state == ROUNDS_CLOSED) {
        job_make_tombstone(older);
        return true;
    }
    job->rounds->superseded = older->instance;
    job_discard(older);
    return older != job;
}

bool rounds_json_load(struct rounds *r, const uint8_t *text, size_t n, uint64_t now_ns,
                      char error[ROUNDS_JSON_ERROR_SIZE])
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)text, n);
    bool tombstone = is_tombstone(json);

    r->superseded = 0;
    if (!json)
        return load_error(error, "it is not JSON, or memory is out", "");
    struct rounds_job *job = check_version(json, error) ? load_head(r, json, error) : NULL;
    if (!job)
        return false;
    if (!load_nodes(job, json, error)) {
        job_discard(job);
        return false;
    }
    const char *fault = job_fault(job, tombstone);
    if (fault) {
        job_discard(job);
        return load_error(error, fault, "");
    }
    r->n_saving = r->n_saves = job->sequence > r->n_saves ? job->sequence : r->n_saves;
    struct rounds_job *other = tombstone ? NULL : other_instance(r, job);
    if (tombstone)
        job_make_tombstone(job);
    if (!other || resolve_instances(job, other))
        job_resume(job, now_ns);
    return true;
}
