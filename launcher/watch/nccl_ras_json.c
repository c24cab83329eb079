#include "launcher/watch/nccl_ras_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "launcher/util/digest.h"
#include "launcher/watch/stack_tool_os.h"
#include "rendezvous/session/fields_json.h"

enum { VALUES_MAX = 1 << 19 }; /* of JSON, about 20 a rank: bounds the memory */

/* Copies the text, with a comma in front of each member in a new line behind a number. */
static int add_commas(const char *text, size_t n_bytes, struct buf *json)
{
    size_t n_values = 0;
    char last = '\0'; /* but for white space */
    bool is_new_line = false;
    int r = 0;

    for (size_t i = 0; i < n_bytes && r == 0; i++) {
        char c = text[i];

        if (c == '"' && is_new_line && last >= '0' && last <= '9')
            r = buf_append(json, ",", 1);
        n_values += c == ',' || c == '[' || c == '{';
        if (r == 0)
            r = n_values > VALUES_MAX ? -EBADMSG : buf_append(json, &c, 1);
        is_new_line = c == '\n' || (is_new_line && c == ' ');
        last = c == ' ' || c == '\n' ? last : c;
    }
    return r;
}

/* ---- ranks ---- */

struct ras_rank {
    const cJSON *communicator, *item;
    enum ras_condition { RAS_EVEN, RAS_BEHIND, RAS_SILENT, RAS_CONDITION_COUNT } condition;
    bool waits; /* its process, in any communicator */
    uint64_t pid;
    const char *host;
    uint64_t launched, digest; /* collectives; of their counts by kind */
    uint64_t deficit;          /* RAS_BEHIND: missing collectives, ... */
    const cJSON *most;         /* ... and the first count of an even rank */
    size_t n_like;             /* ranks of the communicator in the same condition */
};

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static uint64_t number_of(const cJSON *item)
{
    bool fits = cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < (double)FIELD_EXACT_MAX;

    return fits ? (uint64_t)item->valuedouble : 0;
}

static const char *text_of(const cJSON *item)
{
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* The first count; all ranks have them in the same order. */
static const cJSON *counts_of(const cJSON *rank)
{
    const cJSON *counts = member(rank, "collective_counts");

    return counts ? counts->child : NULL;
}

/* A missing rank within reach of RAS has left the communicator, or has not joined yet. */
static size_t take_ranks(const cJSON *communicator, const char *list, bool are_missing,
                         struct ras_rank *ranks)
{
    const cJSON *item;
    size_t n = 0;

    cJSON_ArrayForEach(item, member(communicator, list))
    {
        if (are_missing && !cJSON_IsTrue(member(member(item, "status"), "unresponsive")))
            continue;
        struct ras_rank *r = &ranks[n++];
        *r = (struct ras_rank){.communicator = communicator,
                               .item = item,
                               .condition = are_missing ? RAS_SILENT : RAS_EVEN,
                               .pid = number_of(member(item, "pid")),
                               .host = text_of(member(item, "host")),
                               .digest = DIGEST_EMPTY};
        for (const cJSON *count = counts_of(item); count; count = count->next) {
            uint64_t launched = number_of(count);

            r->launched += launched;
            r->digest = digest_add(r->digest, &launched, sizeof(launched));
        }
    }
    return n;
}

/* A rank with the highest number of collectives, and with the counts of most such ranks. */
static struct ras_rank find_leader(const struct ras_rank *ranks, size_t n)
{
    struct ras_rank leader = {.launched = 0};
    size_t lead = 0;

    for (size_t i = 0; i < n; i++) {
        if (ranks[i].condition != RAS_EVEN || ranks[i].launched < leader.launched)
            continue;
        if (lead == 0 || ranks[i].launched > leader.launched) {
            leader = ranks[i];
            lead = 1;
        } else {
            lead += ranks[i].digest == leader.digest ? 1 : (size_t)-1;
        }
    }
    return leader;
}

static void compare_ranks(struct ras_rank *ranks, size_t n)
{
    const struct ras_rank leader = find_leader(ranks, n);
    size_t n_in[RAS_CONDITION_COUNT] = {0};

    for (size_t i = 0; i < n; i++) {
        if (ranks[i].condition == RAS_EVEN && ranks[i].digest != leader.digest) {
            ranks[i].condition = RAS_BEHIND;
            ranks[i].deficit = leader.launched - ranks[i].launched;
            ranks[i].most = counts_of(leader.item);
        }
        n_in[ranks[i].condition]++;
    }
    for (size_t i = 0; i < n; i++) {
        ranks[i].n_like = n_in[ranks[i].condition];
        ranks[i].waits = ranks[i].condition == RAS_EVEN && ranks[i].pid && n_in[RAS_EVEN] < n;
    }
}

static int compare_processes(const void *a, const void *b)
{
    const struct ras_rank *x = a, *y = b;

    return x->pid != y->pid ? (x->pid > y->pid) - (x->pid < y->pid) : strcmp(x->host, y->host);
}

static uint64_t suspicion_of(const struct ras_rank *r)
{
    return r->condition == RAS_EVEN
               ? 0
               : (uint64_t)!r->waits << 63 | (uint64_t)r->condition << 60 | (r->deficit << 4 >> 4);
}

/* NULL: none is suspect, or the answer is of another job. */
static const struct ras_rank *find_culprit(struct ras_rank *ranks, size_t n, const struct stack_job *jobs,
                                           size_t n_jobs)
{
    const struct ras_rank *culprit = NULL;
    bool is_of_job = false;

    qsort(ranks, n, sizeof(*ranks), compare_processes);
    for (size_t i = 0, end; i < n; i = end) {
        bool waits = false;

        for (size_t k = 0; k < n_jobs; k++)
            is_of_job |= (uint64_t)jobs[k].pid == ranks[i].pid;
        for (end = i; end < n && compare_processes(&ranks[i], &ranks[end]) == 0; end++)
            waits |= ranks[end].waits;
        for (size_t k = i; k < end; k++) {
            ranks[k].waits = waits;
            if (suspicion_of(&ranks[k]) > (culprit ? suspicion_of(culprit) : 0))
                culprit = &ranks[k];
        }
    }
    return is_of_job ? culprit : NULL;
}

/* ---- the line ---- */

/* Names the first kind with a lower count than of an even rank. */
static void describe_counts(const struct ras_rank *r, char *out, size_t size)
{
    const cJSON *own = counts_of(r->item), *most = r->most;

    while (own && most && number_of(own) >= number_of(most)) {
        own = own->next;
        most = most->next;
    }
    bool is_known = own && most && own->string;
    (void)snprintf(out, size, "has launched %llu %.24s, others %llu",
                   (unsigned long long)(is_known ? number_of(own) : r->launched),
                   is_known ? own->string : "collectives",
                   (unsigned long long)(is_known ? number_of(most) : r->launched + r->deficit)); /* fits */
}

static void write_line(const struct ras_rank *r, char line[HANG_NCCL_SIZE])
{
    char does[100] = "does not answer NCCL's RAS";

    if (r->condition == RAS_BEHIND)
        describe_counts(r, does, sizeof(does));
    (void)snprintf(
        line, HANG_NCCL_SIZE - 1,
        "  NCCL: rank %llu (%.45s, pid %llu) of communicator %.24s of %llu ranks %s; likewise %zu more",
        (unsigned long long)number_of(member(r->item, "rank")), r->host, (unsigned long long)r->pid,
        text_of(member(r->communicator, "hash")),
        (unsigned long long)number_of(member(r->communicator, "size")), does, r->n_like - 1); /* fits */
    if (r->n_like == 1)
        *strrchr(line, ';') = '\0';
    size_t n = strlen(line);
    for (size_t i = 0; i < n; i++)
        line[i] = line[i] < ' ' || line[i] > '~' ? '?' : line[i];
    memcpy(line + n, "\n", 2);
}

static int find_line(const cJSON *communicators, const struct stack_job *jobs, size_t n_jobs,
                     char line[HANG_NCCL_SIZE])
{
    size_t n = 0;
    const cJSON *c;

    cJSON_ArrayForEach(c, communicators) n += (size_t)cJSON_GetArraySize(member(c, "ranks")) +
                                              (size_t)cJSON_GetArraySize(member(c, "missing_ranks"));
    if (!cJSON_IsArray(communicators))
        return -EBADMSG;
    _cleanup_free_ struct ras_rank *ranks = calloc(n + 1, sizeof(*ranks));
    if (!ranks)
        return -ENOMEM;
    n = 0;
    cJSON_ArrayForEach(c, communicators)
    {
        size_t first = n;

        n += take_ranks(c, "ranks", false, ranks + n);
        n += take_ranks(c, "missing_ranks", true, ranks + n);
        compare_ranks(ranks + first, n - first);
    }
    const struct ras_rank *culprit = find_culprit(ranks, n, jobs, n_jobs);
    if (culprit)
        write_line(culprit, line);
    return 0;
}

int nccl_ras_read(const char *text, size_t n_bytes, const struct stack_job *jobs, size_t n_jobs,
                  struct buf *json, char line[HANG_NCCL_SIZE])
{
    const char *begin = n_bytes ? memchr(text, '{', n_bytes) : NULL; /* behind "OK\n" */
    int r = begin ? add_commas(begin, n_bytes - (size_t)(begin - text), json) : -EBADMSG;

    line[0] = '\0';
    if (r == 0) {
        _cleanup_json_ cJSON *parsed = cJSON_ParseWithLength((const char *)buf_bytes(json), buf_size(json));

        r = find_line(member(parsed, "communicators"), jobs, n_jobs, line);
    }
    if (r != 0)
        buf_reset(json);
    return r;
}
