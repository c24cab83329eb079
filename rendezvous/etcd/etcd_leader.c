#include "rendezvous/etcd/etcd_leader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/siphash.h"

#define MS UINT64_C(1000000)

enum {
    FOLLOW_MS = 200, /* FOLLOWING: between two looks at the leader's key */
    LOOK_MS = 400,   /* LEADING: the same */
    RETRY_MS = 50,   /* after an unsent request */
    REFUSED_MS = 500,
    RETIRED_MS = 60000,
    LEASE_PARTS = 6, /* renewals during a lease */
    MARGIN_PART = 8, /* of the lease: margin before its end, as clocks differ */
    LOAD_KEYS = 64,
    HEAD_OPS = 3,
};

/* ---- keys ---- */

static void leader_key(const struct etcd_leader *l, char key[ETCD_KEY_SIZE])
{
    (void)snprintf(key, ETCD_KEY_SIZE, "%s/leader", l->config.prefix);
}

static void job_key(const struct etcd_leader *l, uint64_t instance, const char *rest, char key[ETCD_KEY_SIZE])
{
    (void)snprintf(key, ETCD_KEY_SIZE, "%s/jobs/%016" PRIx64 "%s", l->config.prefix, instance, rest);
}

/* rest: "-" and "." are the first and the last text behind a version; no character is between "-" and ".". */
static void nodes_key(const struct etcd_leader *l, uint64_t instance, uint64_t version, const char *rest,
                      char key[ETCD_KEY_SIZE])
{
    (void)snprintf(key, ETCD_KEY_SIZE, "%s/jobs/%016" PRIx64 "/nodes-%016" PRIx64 "%s", l->config.prefix,
                   instance, version, rest);
}

static uint64_t checksum(const void *head, size_t n_head, const void *nodes, size_t n_nodes)
{
    static const uint8_t seed[SIPHASH_SEED_SIZE] = "crun-etcd-jobs";
    uint64_t sums[] = {siphash13(seed, head, n_head), siphash13(seed, nodes, n_nodes)};

    return siphash13(seed, sums, sizeof(sums));
}

static uint64_t nodes_hash(const struct buf *nodes)
{
    return checksum("", 0, buf_bytes(nodes), buf_size(nodes));
}

static size_t count_chunks(size_t n)
{
    return (n + ETCD_CHUNK_SIZE - 1) / ETCD_CHUNK_SIZE;
}

/* ---- jobs ---- */

static void etcd_job_free(struct etcd_job *job)
{
    list_unlink(&job->link);
    buf_finish(&job->head);
    buf_finish(&job->nodes);
    buf_finish(&job->head_writing);
    buf_finish(&job->nodes_writing);
    free(job);
}

static void drop_jobs(struct etcd_leader *l)
{
    list_for_each_safe(i, &l->jobs) etcd_job_free(list_entry(i, struct etcd_job, link));
}

static void drop_pairs(struct etcd_leader *l)
{
    for (size_t i = 0; i < l->n_pairs; i++)
        buf_finish(&l->pairs[i].value);
    free(l->pairs);
    l->pairs = NULL;
    l->n_pairs = l->pairs_capacity = l->load_bytes = 0;
}

/* NULL: memory is out. */
static struct etcd_job *want_job(struct etcd_leader *l, uint64_t instance)
{
    struct etcd_job *job;

    list_for_each_entry(struct etcd_job, known, &l->jobs, link)
    {
        if (known->instance == instance)
            return known;
    }
    job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    job->instance = instance;
    list_append(&l->jobs, &job->link);
    return job;
}

/* ---- life ---- */

void etcd_leader_init(struct etcd_leader *l, const struct etcd_leader_config *config)
{
    *l = (struct etcd_leader){.config = *config};
    list_init(&l->jobs);
}

void etcd_leader_finish(struct etcd_leader *l)
{
    drop_jobs(l);
    drop_pairs(l);
}

/* why: NULL: no news. */
static void depose(struct etcd_leader *l, const char *why, uint64_t now_ns)
{
    if (l->role == ETCD_LEADING) {
        l->change = l->change == ETCD_ELECTED ? ETCD_NO_CHANGE : ETCD_DEPOSED;
        (void)snprintf(l->why, sizeof(l->why), "%s", why);
    }
    l->role = ETCD_FOLLOWING;
    l->term = 0;
    l->has_seen = l->wants_campaign = l->is_batch = l->wants_check = false;
    l->work_due_ns = now_ns;
    drop_jobs(l);
    drop_pairs(l);
}

enum etcd_change etcd_leader_change(struct etcd_leader *l)
{
    enum etcd_change change = l->change;

    l->change = ETCD_NO_CHANGE;
    return change;
}

const char *etcd_leader_address(const struct etcd_leader *l)
{
    return l->has_seen && l->seen_revision > 0 && l->seen_id != l->config.id ? l->seen_address : "";
}

/* ---- the lease ---- */

static bool has_lease(const struct etcd_leader *l, uint64_t now_ns)
{
    return l->lease != 0 && now_ns < l->lease_until_ns;
}

static void lose_lease(struct etcd_leader *l, uint64_t now_ns)
{
    l->lease = 0;
    l->lease_due_ns = now_ns;
    if (l->role != ETCD_FOLLOWING)
        depose(l, "its lease in etcd has run out", now_ns);
}

bool etcd_leader_next_lease(struct etcd_leader *l, uint64_t now_ns, struct etcd_request *ret)
{
    if (l->lease_pending || now_ns < l->lease_due_ns || now_ns < l->retired_until_ns)
        return false;
    *ret = (struct etcd_request){
        .kind = l->lease ? ETCD_KEEPALIVE : ETCD_GRANT, .lease = l->lease, .ttl_s = ETCD_LEASE_S};
    l->lease_pending = true;
    l->lease_asked_ns = now_ns;
    return true;
}

static void renew_lease(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    uint64_t ttl_ns = (uint64_t)reply->ttl_s * 1000 * MS;

    l->lease = reply->lease;
    l->lease_until_ns = l->lease_asked_ns + ttl_ns - ttl_ns / MARGIN_PART;
    l->lease_due_ns = now_ns + ttl_ns / LEASE_PARTS;
    if (now_ns >= l->lease_until_ns)
        lose_lease(l, now_ns);
}

void etcd_leader_take_lease(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    bool is_grant = l->lease == 0;

    l->lease_pending = false;
    if (reply->outcome == ETCD_OK && reply->ttl_s > 0 && (is_grant || reply->lease == l->lease))
        renew_lease(l, reply, now_ns);
    else if (!is_grant && (reply->outcome == ETCD_OK || reply->code == ETCD_CODE_NOT_FOUND))
        lose_lease(l, now_ns);
    else
        l->lease_due_ns = now_ns + RETRY_MS * MS;
}

/* ---- the leader's key ---- */

/* No crund can lead with the present key. Only a single process can listen at the own address, so an earlier leader at the
 * address has ended. The address counts at the first look only: two crunds with the same address by mistake would depose
 * each other without end. */
static bool is_vacant(struct etcd_leader *l, bool is_first)
{
    if (is_first && l->seen_revision > 0 && strcmp(l->seen_address, l->config.address) == 0)
        l->predecessor_revision = l->seen_revision;
    return l->seen_revision == 0 || l->seen_revision == l->predecessor_revision || l->seen_id == l->config.id;
}

/* After a read of the key, or after a transaction with another revision. */
static void see_leader(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    const struct etcd_pair *pair = reply->n_pairs > 0 ? &reply->pairs[0] : NULL;
    char text[ETCD_ADDRESS_SIZE + 64] = "";
    bool is_first = !l->has_looked;

    l->has_seen = l->has_looked = true;
    l->seen_revision = pair ? pair->mod_revision : 0;
    l->seen_id = 0;
    l->seen_address[0] = '\0';
    if (pair && buf_size(&pair->value) > 0 && buf_size(&pair->value) < sizeof(text))
        memcpy(text, buf_bytes(&pair->value), buf_size(&pair->value));
    if (sscanf(text, "crund 1 %16" SCNx64 " %279s", &l->seen_id, l->seen_address) != 2)
        l->seen_address[0] = '\0';
    l->wants_campaign = is_vacant(l, is_first) && now_ns >= l->retired_until_ns;
}

/* False: memory is out. An empty transaction would succeed, and its revision would become a term without a fence. */
static bool compose_campaign(struct etcd_leader *l, uint64_t now_ns, struct etcd_request *ret)
{
    char key[ETCD_KEY_SIZE], value[ETCD_ADDRESS_SIZE + 64];
    int n = snprintf(value, sizeof(value), "crund 1 %016" PRIx64 " %s", l->config.id, l->config.address);

    leader_key(l, key);
    *ret = (struct etcd_request){.kind = ETCD_TXN, .revision = l->seen_revision};
    leader_key(l, ret->key);
    l->wants_campaign = false;
    if (!etcd_request_put(ret, key, value, (size_t)n, l->lease)) {
        etcd_request_finish(ret);
        l->work_due_ns = now_ns + RETRY_MS * MS;
        return false;
    }
    l->role = ETCD_CAMPAIGNING;
    return true;
}

static void take_campaign(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    if (l->role != ETCD_CAMPAIGNING) {
        l->work_due_ns = now_ns; /* the lease has run out meanwhile: look again */
        return;
    }
    l->role = ETCD_FOLLOWING;
    l->work_due_ns = now_ns + LOOK_MS * MS;
    if (reply->outcome == ETCD_OK && reply->succeeded) {
        l->role = ETCD_LOADING;
        l->term = reply->revision;
        l->has_seen = false;
        l->work_due_ns = now_ns;
        job_key(l, 0, "", l->load_from);
        l->load_from[strlen(l->load_from) - 16] = '\0';
        l->load_keys = LOAD_KEYS;
    } else if (reply->outcome == ETCD_OK) {
        see_leader(l, reply, now_ns);
    } else {
        l->has_seen = false;
        l->work_due_ns = now_ns + RETRY_MS * MS;
        if (reply->code == ETCD_CODE_NOT_FOUND)
            lose_lease(l, now_ns);
    }
}

static void compose_look(struct etcd_leader *l, struct etcd_request *ret)
{
    *ret = (struct etcd_request){.kind = ETCD_RANGE};
    leader_key(l, ret->key);
}

static void take_look(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    l->work_due_ns = now_ns + (reply->outcome == ETCD_OK ? FOLLOW_MS : RETRY_MS) * MS;
    if (l->role != ETCD_FOLLOWING)
        return;
    if (reply->outcome == ETCD_OK)
        see_leader(l, reply, now_ns);
    else
        l->has_seen = false; /* the leader's address is unknown now */
}

/* ---- loading ---- */

static void compose_load(struct etcd_leader *l, struct etcd_request *ret)
{
    *ret = (struct etcd_request){.kind = ETCD_RANGE, .limit = l->load_keys};
    (void)snprintf(ret->key, sizeof(ret->key), "%s", l->load_from);
    (void)snprintf(ret->end, sizeof(ret->end), "%s/jobs0", l->config.prefix); /* "0" follows "/" */
}

static bool keep_pair(struct etcd_leader *l, struct etcd_pair *pair)
{
    if (l->n_pairs == l->pairs_capacity) {
        size_t capacity = l->pairs_capacity ? 2 * l->pairs_capacity : LOAD_KEYS;
        struct etcd_pair *pairs = realloc(l->pairs, capacity * sizeof(*pairs));

        if (!pairs)
            return false;
        l->pairs = pairs;
        l->pairs_capacity = capacity;
    }
    l->load_bytes += buf_size(&pair->value);
    l->pairs[l->n_pairs++] = *pair;
    pair->value = (struct buf){0};
    return l->load_bytes <= ETCD_LOAD_MAX;
}

static void take_load(struct etcd_leader *l, struct etcd_reply *reply, uint64_t now_ns)
{
    if (reply->outcome != ETCD_OK) {
        /* The answer may have been too long for the time of a request. */
        if (reply->outcome == ETCD_UNKNOWN && l->load_keys > 1)
            l->load_keys /= 2;
        l->work_due_ns = now_ns + RETRY_MS * MS;
        return;
    }
    for (size_t i = 0; i < reply->n_pairs; i++)
        if (!keep_pair(l, &reply->pairs[i])) {
            (void)snprintf(l->trouble, sizeof(l->trouble), "the jobs there are too many, or memory is out");
            depose(l, l->trouble, now_ns);
            l->work_due_ns = now_ns + REFUSED_MS * MS;
            return;
        }
    if (reply->more && reply->n_pairs > 0) {
        /* Go on behind the last key: the key and the smallest byte of any own key. */
        (void)snprintf(l->load_from, sizeof(l->load_from), "%.298s ", reply->pairs[reply->n_pairs - 1].key);
        return;
    }
    l->role = ETCD_LEADING;
    l->change = ETCD_ELECTED;
    l->work_due_ns = now_ns + LOOK_MS * MS;
}

/* A job's key: the instance, and the text behind; NULL: no key of a job. */
static const char *split_key(const struct etcd_leader *l, const char *key, uint64_t *ret_instance)
{
    size_t n = strlen(l->config.prefix) + strlen("/jobs/");
    int used = 0;

    if (strlen(key) < n || sscanf(key + n, "%16" SCNx64 "/%n", ret_instance, &used) != 1 || used != 17)
        return NULL;
    return key + n + used;
}

/* Appends the chunks of the job's version, behind the head at `at`, to text. 1, 0: chunks are missing, or -ENOMEM. */
static int gather_nodes(const struct etcd_leader *l, size_t at, const struct etcd_job *job, size_t n_chunks,
                        struct buf *text)
{
    char key[ETCD_KEY_SIZE], rest[24];
    size_t done = 0;

    for (size_t i = at; i < l->n_pairs && done < n_chunks; i++) {
        const struct buf *value = &l->pairs[i].value;

        (void)snprintf(rest, sizeof(rest), "-%05zu", done);
        nodes_key(l, job->instance, job->version, rest, key);
        if (strcmp(l->pairs[i].key, key) != 0)
            continue;
        TRY(buf_append(text, buf_bytes(value), buf_size(value)));
        done++;
    }
    return done == n_chunks;
}

/* The text of the job with the head at `at`: 1, 0: incomplete, or -ENOMEM. */
static int assemble_job(const struct etcd_leader *l, size_t at, struct etcd_job *job, struct buf *text)
{
    const struct buf *value = &l->pairs[at].value;
    const char *end = buf_size(value) > 0 ? memchr(buf_bytes(value), '\n', buf_size(value)) : NULL;
    char line[100] = "";
    size_t n_line = end ? (size_t)(end - (const char *)buf_bytes(value)) : 0, n_chunks, n_head;
    uint64_t sum;

    if (n_line == 0 || n_line >= sizeof(line))
        return 0;
    memcpy(line, buf_bytes(value), n_line);
    if (sscanf(line, "crun-job 1 %16" SCNx64 " %5zu %16" SCNx64, &job->version, &n_chunks, &sum) != 3)
        return 0;
    n_head = buf_size(value) - n_line - 1;
    TRY(buf_append(text, end + 1, n_head));
    int r = gather_nodes(l, at, job, n_chunks, text);
    if (r <= 0)
        return r;
    job->nodes_hash = checksum("", 0, buf_bytes(text) + n_head, buf_size(text) - n_head);
    return checksum(buf_bytes(text), n_head, buf_bytes(text) + n_head, buf_size(text) - n_head) == sum;
}

typedef void (*take_job_fn)(void *data, uint64_t instance, const uint8_t *text, size_t n);

/* 0 or -ENOMEM. */
static int load_job(const struct etcd_leader *l, size_t at, struct etcd_job *job, take_job_fn take,
                    void *data)
{
    _cleanup_(buf_finish) struct buf text = {0};
    int r = assemble_job(l, at, job, &text);

    if (r >= 0)
        take(data, job->instance, r > 0 ? buf_bytes(&text) : NULL, buf_size(&text));
    return r < 0 ? r : 0;
}

void etcd_leader_loaded(struct etcd_leader *l, take_job_fn take, void *data)
{
    uint64_t instance, last = 0;

    for (size_t i = 0; i < l->n_pairs; i++) {
        const char *rest = split_key(l, l->pairs[i].key, &instance);
        struct etcd_job *job = rest ? want_job(l, instance) : NULL;
        bool is_head = rest && strcmp(rest, "head") == 0;

        if (rest && (!job || (is_head && load_job(l, i, job, take, data) < 0))) {
            etcd_leader_resign(l);
            return;
        }
        if (is_head)
            last = instance;
        else if (job && last != instance)
            job->is_waiting = job->forget = true; /* chunks whose head was never written */
    }
    drop_pairs(l);
}

/* ---- saving ---- */

void etcd_leader_resign(struct etcd_leader *l)
{
    if (l->role == ETCD_LEADING)
        depose(l, "memory is out", 0);
}

void etcd_leader_retire(struct etcd_leader *l, const char *why, uint64_t now_ns)
{
    l->retired_until_ns = now_ns + RETIRED_MS * MS;
    depose(l, why, now_ns);
}

/* NULL: the own crund does not lead, or not any more. */
static struct etcd_job *begin_change(struct etcd_leader *l, uint64_t instance, bool forget)
{
    struct etcd_job *job = l->role == ETCD_LEADING ? want_job(l, instance) : NULL;

    if (!job) {
        etcd_leader_resign(l);
        return NULL;
    }
    job->is_waiting = true;
    job->forget = forget;
    buf_reset(&job->head);
    buf_reset(&job->nodes);
    return job;
}

void etcd_leader_save(struct etcd_leader *l, uint64_t instance, const void *head, size_t n_head,
                      const void *nodes, size_t n_nodes)
{
    struct etcd_job *job = begin_change(l, instance, false);

    if (job && (buf_append(&job->head, head, n_head) < 0 || buf_append(&job->nodes, nodes, n_nodes) < 0))
        etcd_leader_resign(l);
}

void etcd_leader_forget(struct etcd_leader *l, uint64_t instance)
{
    (void)begin_change(l, instance, true);
}

uint64_t etcd_leader_want_mark(struct etcd_leader *l)
{
    l->wants_check = true;
    return l->mark + 1;
}

static void begin_writing(struct etcd_leader *l, struct etcd_job *job)
{
    buf_finish(&job->head_writing);
    buf_finish(&job->nodes_writing);
    job->head_writing = job->head;
    job->nodes_writing = job->nodes;
    job->head = job->nodes = (struct buf){0};
    job->forget_writing = job->forget;
    job->is_writing = true;
    job->is_waiting = job->is_complete = false;
    job->n_put = job->n_put_before = 0;
    job->version_writing = job->version;
    if (job->forget || (job->version != 0 && nodes_hash(&job->nodes_writing) == job->nodes_hash))
        job->n_put = buf_size(&job->nodes_writing); /* saved already */
    else
        job->version_writing = ((uint64_t)l->term << 24) + ++l->n_versions;
}

static void begin_batch(struct etcd_leader *l, uint64_t now_ns)
{
    l->is_batch = true;
    l->batch_ns = now_ns;
    l->wants_check = false;
    l->mark++;
    list_for_each_entry(struct etcd_job, job, &l->jobs, link)
    {
        if (job->is_waiting)
            begin_writing(l, job);
    }
}

static bool delete_range(struct etcd_request *r, const char *from, const char *to)
{
    struct etcd_op *op = etcd_request_add(r, ETCD_DELETE, from);

    if (op)
        (void)snprintf(op->end, sizeof(op->end), "%s", to);
    return op != NULL;
}

static bool put_chunks(const struct etcd_leader *l, struct etcd_job *job, struct etcd_request *r)
{
    char key[ETCD_KEY_SIZE], rest[24];

    while (job->n_put < buf_size(&job->nodes_writing)) {
        size_t n = buf_size(&job->nodes_writing) - job->n_put;

        n = n < ETCD_CHUNK_SIZE ? n : ETCD_CHUNK_SIZE;
        (void)snprintf(rest, sizeof(rest), "-%05zu", job->n_put / ETCD_CHUNK_SIZE);
        nodes_key(l, job->instance, job->version_writing, rest, key);
        if (!etcd_request_put(r, key, buf_bytes(&job->nodes_writing) + job->n_put, n, 0))
            return false;
        job->n_put += n;
    }
    return true;
}

/* Writes the head, and deletes the chunks of all other versions. */
static bool put_job_head(const struct etcd_leader *l, struct etcd_job *job, struct etcd_request *r)
{
    char key[ETCD_KEY_SIZE], from[ETCD_KEY_SIZE], to[ETCD_KEY_SIZE], line[100];
    _cleanup_(buf_finish) struct buf value = {0};
    int n = snprintf(line, sizeof(line), "crun-job 1 %016" PRIx64 " %05zu %016" PRIx64 "\n",
                     job->version_writing, count_chunks(buf_size(&job->nodes_writing)),
                     checksum(buf_bytes(&job->head_writing), buf_size(&job->head_writing),
                              buf_bytes(&job->nodes_writing), buf_size(&job->nodes_writing)));
    bool ok = r->n_ops + HEAD_OPS <= ETCD_OPS_MAX && buf_append(&value, line, (size_t)n) == 0 &&
              buf_append(&value, buf_bytes(&job->head_writing), buf_size(&job->head_writing)) == 0;

    job_key(l, job->instance, "/head", key);
    ok = ok && etcd_request_put(r, key, buf_bytes(&value), buf_size(&value), 0);
    if (!ok || job->version_writing == job->version)
        return ok;
    job_key(l, job->instance, "/nodes-", from);
    nodes_key(l, job->instance, job->version_writing, "-", to);
    ok = delete_range(r, from, to);
    nodes_key(l, job->instance, job->version_writing, ".", from);
    job_key(l, job->instance, "/nodes.", to);
    return ok && delete_range(r, from, to);
}

static bool put_removal(const struct etcd_leader *l, const struct etcd_job *job, struct etcd_request *r)
{
    char from[ETCD_KEY_SIZE], to[ETCD_KEY_SIZE];

    job_key(l, job->instance, "/", from);
    job_key(l, job->instance, "0", to);
    return r->n_ops + 1 <= ETCD_OPS_MAX && delete_range(r, from, to);
}

/* As much of the batch as fits into a transaction. */
static void compose_save(struct etcd_leader *l, struct etcd_request *ret)
{
    bool has_room = true;

    *ret = (struct etcd_request){.kind = ETCD_TXN, .revision = l->term};
    leader_key(l, ret->key);
    list_for_each_entry(struct etcd_job, job, &l->jobs, link)
    {
        job->n_put_before = job->n_put;
        if (!job->is_writing || !has_room)
            continue;
        has_room = job->forget_writing ? put_removal(l, job, ret)
                                       : put_chunks(l, job, ret) && put_job_head(l, job, ret);
        job->is_complete = has_room;
    }
    l->n_saves++;
}

static bool is_writing(const struct etcd_leader *l)
{
    list_for_each_entry(struct etcd_job, job, &l->jobs, link) if (job->is_writing) return true;
    return false;
}

static void end_batch(struct etcd_leader *l, uint64_t now_ns)
{
    l->is_batch = false;
    l->done = l->mark;
    l->work_due_ns = now_ns + LOOK_MS * MS;
}

static void complete_job(struct etcd_job *job)
{
    bool forgotten = job->forget_writing;

    job->is_writing = job->is_complete = false;
    job->version = forgotten ? 0 : job->version_writing;
    job->nodes_hash = nodes_hash(&job->nodes_writing);
    buf_reset(&job->head_writing);
    buf_reset(&job->nodes_writing);
    if (forgotten && !job->is_waiting)
        etcd_job_free(job);
}

/* The transaction was not carried out: the same is composed again. */
static void take_back(struct etcd_leader *l)
{
    list_for_each_entry(struct etcd_job, job, &l->jobs, link)
    {
        job->n_put = job->is_writing ? job->n_put_before : 0;
        job->is_complete = false;
    }
}

static void yield_to_leader(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    depose(l, "another crund leads", now_ns);
    see_leader(l, reply, now_ns);
}

static void take_save(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    if (reply->outcome == ETCD_UNKNOWN) {
        depose(l, "it is not known whether etcd has carried out a save", now_ns);
        return;
    }
    if (reply->outcome != ETCD_OK) {
        take_back(l);
        l->work_due_ns = now_ns + (reply->outcome == ETCD_REFUSED ? REFUSED_MS : RETRY_MS) * MS;
        return;
    }
    if (!reply->succeeded) {
        yield_to_leader(l, reply, now_ns);
        return;
    }
    list_for_each_safe(i, &l->jobs)
    {
        struct etcd_job *job = list_entry(i, struct etcd_job, link);

        if (job->is_writing && job->is_complete)
            complete_job(job);
    }
    l->work_due_ns = now_ns;
    if (!is_writing(l))
        end_batch(l, now_ns);
}

static void take_check(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns)
{
    if (reply->outcome != ETCD_OK) {
        l->work_due_ns = now_ns + RETRY_MS * MS;
        return;
    }
    if (reply->n_pairs == 1 && reply->pairs[0].mod_revision == l->term) {
        end_batch(l, now_ns);
        return;
    }
    yield_to_leader(l, reply, now_ns);
}

/* ---- requests ---- */

static bool may_campaign(const struct etcd_leader *l, uint64_t now_ns)
{
    return l->wants_campaign && l->has_seen && has_lease(l, now_ns);
}

/* There is work that waits only for the request under way. */
static bool has_work(const struct etcd_leader *l, uint64_t now_ns)
{
    if (l->role == ETCD_FOLLOWING && may_campaign(l, now_ns))
        return true;
    if (l->role != ETCD_LEADING || l->is_batch)
        return false;
    list_for_each_entry(struct etcd_job, job, &l->jobs, link) if (job->is_waiting) return true;
    return l->wants_check;
}

static enum etcd_work choose_work(struct etcd_leader *l, uint64_t now_ns)
{
    switch (l->role) {
    case ETCD_FOLLOWING:
        return may_campaign(l, now_ns) ? ETCD_WORK_CAMPAIGN : ETCD_WORK_LOOK;
    case ETCD_LOADING:
        return ETCD_WORK_LOAD;
    case ETCD_LEADING:
        if (!l->is_batch)
            begin_batch(l, now_ns);
        return is_writing(l) ? ETCD_WORK_SAVE : ETCD_WORK_CHECK;
    default:
        return ETCD_WORK_NONE;
    }
}

bool etcd_leader_next_work(struct etcd_leader *l, uint64_t now_ns, struct etcd_request *ret)
{
    if (l->work != ETCD_WORK_NONE || (now_ns < l->work_due_ns && !has_work(l, now_ns)))
        return false;
    l->work = choose_work(l, now_ns);
    switch (l->work) {
    case ETCD_WORK_LOOK:
    case ETCD_WORK_CHECK:
        compose_look(l, ret);
        break;
    case ETCD_WORK_CAMPAIGN:
        if (compose_campaign(l, now_ns, ret))
            break;
        l->work = ETCD_WORK_NONE;
        return false;
    case ETCD_WORK_LOAD:
        compose_load(l, ret);
        break;
    case ETCD_WORK_SAVE:
        compose_save(l, ret);
        break;
    case ETCD_WORK_NONE:
        return false;
    }
    l->work_term = l->term;
    return true;
}

void etcd_leader_take_work(struct etcd_leader *l, struct etcd_reply *reply, uint64_t now_ns)
{
    enum etcd_work work = l->work;

    l->work = ETCD_WORK_NONE;
    (void)snprintf(l->trouble, sizeof(l->trouble), "%s", reply->outcome == ETCD_OK ? "" : reply->error);
    if (work == ETCD_WORK_LOOK)
        take_look(l, reply, now_ns);
    else if (work == ETCD_WORK_CAMPAIGN)
        take_campaign(l, reply, now_ns);
    else if (l->work_term != l->term)
        l->work_due_ns = now_ns; /* of an ended leadership */
    else if (work == ETCD_WORK_LOAD)
        take_load(l, reply, now_ns);
    else if (work == ETCD_WORK_SAVE)
        take_save(l, reply, now_ns);
    else if (work == ETCD_WORK_CHECK)
        take_check(l, reply, now_ns);
}

void etcd_leader_tick(struct etcd_leader *l, uint64_t now_ns)
{
    if (l->lease != 0 && now_ns >= l->lease_until_ns)
        lose_lease(l, now_ns);
}

bool etcd_leader_holds(const struct etcd_leader *l, uint64_t now_ns)
{
    return l->role == ETCD_LEADING && has_lease(l, now_ns);
}

static void lower(uint64_t *deadline_ns, uint64_t other_ns)
{
    if (other_ns < *deadline_ns)
        *deadline_ns = other_ns;
}

uint64_t etcd_leader_deadline(const struct etcd_leader *l)
{
    uint64_t deadline_ns = l->lease != 0 ? l->lease_until_ns : UINT64_MAX;

    if (!l->lease_pending)
        lower(&deadline_ns, l->lease_due_ns > l->retired_until_ns ? l->lease_due_ns : l->retired_until_ns);
    if (l->work == ETCD_WORK_NONE)
        lower(&deadline_ns, has_work(l, 0) ? 0 : l->work_due_ns);
    return deadline_ns;
}
