#include "launcher/ctl/job_status_json.h"

#include <cjson/cJSON.h>
#include <errno.h>

#include "launcher/ctl/job_status.h"
#include "launcher/ctl/node_ranks_json.h"
#include "rendezvous/session/fields_json.h"
#include "base/err.h"

static const struct field job_fields[] = {
    {"job", FIELD_TEXT_AT(struct job_status, job), .required = true, .clean = true},
    {"program", FIELD_TEXT_AT(struct job_status, program), .always = true, .clean = true},
    {"rendezvous", FIELD_TEXT_AT(struct job_status, rendezvous), .clean = true},
    {"state", FIELD_TEXT_AT(struct job_status, state), .required = true},
    {"containment", FIELD_TEXT_AT(struct job_status, containment)},
    {"crun_pid", FIELD_I64_AT(struct job_status, crun_pid), .required = true},
    {"generation", FIELD_I64_AT(struct job_status, generation), .required = true},
    {"restarts", FIELD_I32_AT(struct job_status, restarts), .required = true},
    {"max_restarts", FIELD_I32_AT(struct job_status, max_restarts), .required = true},
    {"n_nodes", FIELD_I32_AT(struct job_status, n_nodes), .required = true},
    {"started", FIELD_I64_AT(struct job_status, started_s), .required = true},
};

/* ---- writing ---- */

static int add_node(cJSON *list, const struct node_status *n)
{
    cJSON *object = fields_append_object(list);

    return object ? node_status_write(object, n) : -ENOMEM;
}

char *job_status_to_json(const struct job_status *s)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    cJSON *nodes;

    if (!json || !cJSON_AddNumberToObject(json, "version", JOB_STATUS_VERSION))
        return NULL;
    if (fields_write(json, FIELDS_OF(job_fields), s) != 0)
        return NULL;
    nodes = cJSON_AddArrayToObject(json, "nodes");
    for (size_t i = 0; nodes && i < s->n_nodes_known; i++)
        if (add_node(nodes, &s->nodes[i]) != 0)
            return NULL;
    return nodes ? cJSON_PrintUnformatted(json) : NULL;
}

/* ---- reading ---- */

static int read_job(const cJSON *json, struct job_status *s)
{
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(json, "version");
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(json, "nodes"), *item;

    if (!cJSON_IsNumber(version) || version->valueint != JOB_STATUS_VERSION || !cJSON_IsArray(nodes) ||
        !fields_read(json, FIELDS_OF(job_fields), s, NULL))
        return -EBADMSG;
    cJSON_ArrayForEach(item, nodes) TRY(node_status_read(item, s));
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
