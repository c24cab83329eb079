/*
 * How the nodes of a job find each other, from the command line (docs/torchrun-contract.md, sections 1.4 and 5.1). The result is
 * one of three ways to meet: alone, static, rounds.
 */

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "launcher/util/envp.h"
#include "launcher/cli/job_impl.h"
#include "launcher/cli/slurm.h"
#include "base/err.h"
#include "base/format.h"
#include "proto/address.h"

enum { DEFAULT_MASTER_PORT = 29500, DEFAULT_ROUNDS_PORT = 29400, DEFAULT_STATIC_TIMEOUT_S = 900 };

/* ---- nodes ---- */

static bool parse_nnodes(const char *text, long long *ret_min, long long *ret_max)
{
    const char *colon = strchr(text, ':');
    char min[32];

    if (!colon)
        return options_int(text, ret_min) && (*ret_max = *ret_min, true);
    if ((size_t)(colon - text) >= sizeof(min))
        return false;
    (void)snprintf(min, sizeof(min), "%.*s", (int)(colon - text), text); /* fits, see above */
    return options_int(min, ret_min) && options_int(colon + 1, ret_max);
}

int job_check_nodes(struct job_builder *b)
{
    const char *text = job_text(b, OPTION_NNODES);
    long long min, max;

    if (!parse_nnodes(text, &min, &max))
        return job_refuse(b, "--nnodes: nnodes=%s is not in \"MIN:MAX\" format", text);
    if (min <= 0 || min > max)
        return job_refuse(
            b, "--nnodes: min_nodes must be > 0 and <= max_nodes, got min_nodes=%lld, max_nodes=%lld", min,
            max);
    if (max > SESSION_NODES_MAX)
        return job_refuse(b, "--nnodes=%s: a job has at most %d nodes", text, SESSION_NODES_MAX);
    b->job->min_nodes = (int)min;
    b->job->max_nodes = (int)max;
    return 0;
}

/* The node number: an assignment with static rendezvous, a preference with rounds. */
static int take_node_rank(struct job_builder *b)
{
    const struct option_value *option = job_value(b, OPTION_NODE_RANK);
    long long rank = option->number;
    struct job *job = b->job;

    if (job->meeting == JOB_ALONE && rank != 0 && strcmp(job_text(b, OPTION_RDZV_BACKEND), "static") == 0)
        return job_refuse(b, "--node-rank=%lld: a job of one node has only node 0", rank);
    if (job->meeting == JOB_ALONE && rank != 0)
        strbuf_add(&b->warnings, "crun: --node-rank has no effect on a job of one node\n");
    if (job->meeting != JOB_ALONE && (rank < 0 || rank >= job->max_nodes))
        return job_refuse(b, "--node-rank=%lld: the nodes of a job with --nnodes=%s are 0 to %d", rank,
                          job_text(b, OPTION_NNODES), job->max_nodes - 1);
    job->node_rank = job->meeting == JOB_ROUNDS && !option->set ? -1 : (int)rank;
    return 0;
}

/* ---- --rdzv-conf ---- */

enum conf_kind {
    CONF_SECONDS, /* positive; kept in ms */
    CONF_NUMBER,  /* from min */
    CONF_BOOL,
    /* settings of torchrun that have no effect here; torchrun checks the values, and so does crun */
    CONF_ACCEPTED_POSITIVE,
    CONF_ACCEPTED_NUMBER,
    CONF_ACCEPTED_SECONDS, /* from 0, with a fraction */
    CONF_ACCEPTED_STORE,
    CONF_ACCEPTED_ANY,
};

struct conf_key {
    const char *name;
    enum conf_kind kind;
    size_t offset; /* in struct job: uint32_t, or enum job_hosting for CONF_BOOL */
    long long min;
    const char *title;   /* what the value is, in a sentence */
    const char *instead; /* CONF_ACCEPTED_*: what crun does */
};

#define PARAM(member) offsetof(struct job, params.member)

/* All but timeout are settings of c10d. */
static const struct conf_key conf_keys[] = {
    {"join_timeout", CONF_SECONDS, PARAM(join_timeout_ms), 0, "join timeout", NULL},
    {"last_call_timeout", CONF_SECONDS, PARAM(last_call_ms), 0, "last call timeout", NULL},
    {"timeout", CONF_SECONDS, offsetof(struct job, static_timeout_ms), 0, "timeout", NULL},
    {"node_timeout_ms", CONF_NUMBER, PARAM(node_timeout_ms), SESSION_NODE_TIMEOUT_MS_MIN, NULL, NULL},
    {"max_changes", CONF_NUMBER, PARAM(max_changes), 0, NULL, NULL},
    {"cutoff_ms", CONF_NUMBER, offsetof(struct job, cutoff_ms), 1, NULL, NULL},
    {"is_host", CONF_BOOL, offsetof(struct job, hosting), 0, NULL, NULL},
    {"close_timeout", CONF_ACCEPTED_POSITIVE, 0, 0, NULL, "closing needs no time"},
    {"read_timeout", CONF_ACCEPTED_POSITIVE, 0, 0, NULL, "join_timeout is the one limit for joining"},
    {"heartbeat_timeout", CONF_ACCEPTED_POSITIVE, 0, 0, NULL,
     "node_timeout_ms decides when a silent node is dead"},
    {"keep_alive_interval", CONF_ACCEPTED_NUMBER, 0, 0, NULL,
     "node_timeout_ms decides when a silent node is dead"},
    {"keep_alive_max_attempt", CONF_ACCEPTED_NUMBER, 0, 0, NULL,
     "node_timeout_ms decides when a silent node is dead"},
    {"cas_backoff_max_seconds", CONF_ACCEPTED_SECONDS, 0, 0, NULL,
     "the rendezvous writes its state in one place, so no write fails because of another"},
    {"store_type", CONF_ACCEPTED_STORE, 0, 0, NULL, "the store is always tcp"},
    {"rank", CONF_ACCEPTED_ANY, 0, 0, NULL, "--node-rank is"},
};

static const struct conf_key *find_conf_key(const char *key, size_t n)
{
    for (size_t i = 0; i < ARRAY_SIZE(conf_keys); i++)
        if (strlen(conf_keys[i].name) == n && strncmp(conf_keys[i].name, key, n) == 0)
            return &conf_keys[i];
    return NULL;
}

/* The setting meant by a misspelled name, or NULL. */
static const char *nearest_conf_key(const char *key, size_t n)
{
    for (size_t i = 0; i < ARRAY_SIZE(conf_keys); i++)
        if (n > 3 && option_edit_distance(key, n, conf_keys[i].name) <= 2)
            return conf_keys[i].name;
    return NULL;
}

static enum conf_backend backend_of(const struct conf_key *key)
{
    return key->offset == offsetof(struct job, static_timeout_ms) ? CONF_STATIC : CONF_C10D;
}

/* Keeps the first fault of the settings of each backend: which of them is chosen is decided later, and torchrun does not
 * look at the values of the other's settings. */
static void __attribute__((format(printf, 3, 4)))
note_conf_fault(struct job_builder *b, const struct conf_key *key, const char *format, ...)
{
    char *fault = b->conf_fault[backend_of(key)];

    if (fault[0])
        return;
    (void)format_arguments(fault, sizeof(b->conf_fault[0]), format); /* fits */
}

static void set_conf_number(struct job_builder *b, const struct conf_key *key, const char *value)
{
    long long number, min = key->kind == CONF_SECONDS ? 1 : key->min;
    long long max = key->kind == CONF_SECONDS ? SESSION_TIMEOUT_MS_MAX / 1000 : SESSION_TIMEOUT_MS_MAX;

    if (!options_int(value, &number)) {
        note_conf_fault(b, key, "%s=%s is not a number", key->name, value);
    } else if (key->kind == CONF_SECONDS && number <= 0) {
        note_conf_fault(b, key, "The %s (%s) must be positive.", key->title, value);
    } else if (number < min || number > max) {
        note_conf_fault(b, key, "%s=%s must be between %lld and %lld", key->name, value, min, max);
    } else {
        uint32_t kept = (uint32_t)(key->kind == CONF_SECONDS ? number * 1000 : number);
        memcpy((char *)b->job + key->offset, &kept, sizeof(kept));
        if (key->offset == PARAM(node_timeout_ms))
            b->job->params.node_timeout_origin = SESSION_TIMEOUT_GIVEN;
    }
}

static bool is_word_in(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(word, *words) == 0)
            return true;
    return false;
}

static void set_conf_bool(struct job_builder *b, const struct conf_key *key, const char *value)
{
    static const char *const yes[] = {"1", "true", "t", "yes", "y", NULL};
    static const char *const no[] = {"0", "false", "f", "no", "n", NULL};
    enum job_hosting kept = is_word_in(value, yes) ? JOB_HOSTS : JOB_HOSTS_NOT;

    if (kept == JOB_HOSTS_NOT && !is_word_in(value, no))
        note_conf_fault(b, key, "%s=%s is neither yes nor no", key->name, value);
    else
        memcpy((char *)b->job + key->offset, &kept, sizeof(kept));
}

static const char *seconds_fault(const char *value)
{
    double seconds;

    if (!options_seconds(value, &seconds))
        return "is not a number";
    return isfinite(seconds) && seconds >= 0 ? NULL : "must be finite and not negative";
}

static void accept_conf(struct job_builder *b, const struct conf_key *key, const char *value)
{
    long long number = 1;
    bool is_number = options_int(value, &number);
    const char *fault = NULL;

    if (key->kind == CONF_ACCEPTED_STORE)
        fault = strcasecmp(value, "tcp") == 0 || strcasecmp(value, "file") == 0 ? NULL
                                                                                : "is neither tcp nor file";
    else if (key->kind == CONF_ACCEPTED_SECONDS)
        fault = seconds_fault(value);
    else if (key->kind != CONF_ACCEPTED_ANY && !is_number)
        fault = "is not a number";
    else if (key->kind == CONF_ACCEPTED_POSITIVE && number <= 0)
        fault = "must be positive";
    if (fault)
        note_conf_fault(b, key, "%s=%s %s", key->name, value, fault);
    else if (b->job->max_nodes > 1 && strcmp(value, "tcp") != 0)
        strbuf_add(&b->warnings, "crun: --rdzv-conf: %s has no effect: %s\n", key->name, key->instead);
}

static void set_conf(struct job_builder *b, const struct conf_key *key, const char *value)
{
    switch (key->kind) {
    case CONF_SECONDS:
    case CONF_NUMBER:
        set_conf_number(b, key, value);
        break;
    case CONF_BOOL:
        set_conf_bool(b, key, value);
        break;
    default:
        accept_conf(b, key, value);
        break;
    }
}

static int check_conf(struct job_builder *b)
{
    bool is_static = strcmp(b->job->rdzv_backend, "static") == 0;
    const char *fault = b->conf_fault[is_static ? CONF_STATIC : CONF_C10D];
    const char *unused = b->conf_fault[is_static ? CONF_C10D : CONF_STATIC];

    if (fault[0])
        return job_refuse(b, "--rdzv-conf: %s", fault);
    if (unused[0])
        strbuf_add(&b->warnings, "crun: --rdzv-conf: %s; ignored, as --rdzv-backend=%s does not use it\n",
                   unused, b->job->rdzv_backend);
    return 0;
}

static int take_conf_pair(struct job_builder *b, const char *pair, const char *end)
{
    const char *equals = memchr(pair, '=', (size_t)(end - pair));
    const char *key = pair, *key_end = equals ? equals : end;
    const char *value = equals ? equals + 1 : end, *value_end = end;
    char text[64];

    job_trim(&key, &key_end);
    job_trim(&value, &value_end);
    if (key == key_end)
        return job_refuse(b,
                          "--rdzv-conf: the rendezvous configuration string must be in format "
                          "<key1>=<value1>,...,<keyN>=<valueN>");
    int n = (int)(key_end - key);
    if (value == value_end)
        return job_refuse(
            b, "--rdzv-conf: the rendezvous configuration option '%.*s' must have a value specified", n, key);
    const struct conf_key *known = find_conf_key(key, (size_t)n);
    if (!known) {
        const char *nearest = nearest_conf_key(key, (size_t)n);
        strbuf_add(&b->warnings, "crun: --rdzv-conf: no setting is called '%.*s'; ignored%s%s%s\n", n, key,
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
        return 0;
    }
    if ((size_t)(value_end - value) >= sizeof(text)) {
        note_conf_fault(b, known, "the value of %s has more than %zu characters", known->name,
                        sizeof(text) - 1);
        return 0;
    }
    (void)snprintf(text, sizeof(text), "%.*s", (int)(value_end - value), value); /* fits */
    set_conf(b, known, text);
    return 0;
}

int job_take_conf(struct job_builder *b)
{
    static const struct session_params defaults = SESSION_PARAMS_DEFAULT;
    const char *pair = job_text(b, OPTION_RDZV_CONF);

    b->job->params = defaults;
    b->job->params.min_nodes = (uint32_t)b->job->min_nodes;
    b->job->params.max_nodes = (uint32_t)b->job->max_nodes;
    b->job->params.max_restarts = (uint32_t)b->job->max_restarts;
    if (b->job->agent_fd >= 0) { /* the other program has a budget of its own */
        b->job->params.foreign = 1;
        b->job->params.max_restarts = SESSION_COUNT_MAX;
    }
    b->job->static_timeout_ms = DEFAULT_STATIC_TIMEOUT_S * 1000;
    const char *from = pair, *to = pair + strlen(pair);
    job_trim(&from, &to);
    if (from == to)
        return 0;
    for (;; pair++) {
        size_t n = strcspn(pair, ",");
        TRY(take_conf_pair(b, pair, pair + n));
        pair += n;
        if (!*pair)
            return 0;
    }
}

/* ---- endpoint ---- */

bool job_has_front_rendezvous(const struct job *job)
{
    return job->output_fd && job->hosting == JOB_HOSTS_NOT && address_is_loopback(job->endpoints[0].host);
}

/* The endpoint's port, with *ret_host_size set to the length of the host in front; -1: no port; -2: malformed. */
static long endpoint_port(const char *endpoint, size_t *ret_host_size)
{
    const char *colon = strrchr(endpoint, ':');
    const char *bracket = strrchr(endpoint, ']');

    *ret_host_size = strlen(endpoint);
    if (!colon || (bracket && colon < bracket))
        return -1;
    *ret_host_size = (size_t)(colon - endpoint);
    size_t n = strspn(colon + 1, "0123456789");
    if (n == 0 || n > 5 || colon[1 + n] || atol(colon + 1) > UINT16_MAX)
        return -2;
    return atol(colon + 1);
}

/* As in torchrun, but torchrun also takes a name with a colon, and waits for an impossible host. */
static bool is_host_text(const char *host)
{
    return *host && (!strchr(host, ':') || address_is_numeric(host)) &&
           host[strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")] == 0;
}

/* Takes the brackets of IPv6 off and checks what is left. endpoint is the text for the message. */
static int check_host(struct job_builder *b, enum option_id id, char *host, const char *endpoint)
{
    size_t n = strlen(host);

    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
        memmove(host, host + 1, n - 2);
        host[n - 2] = '\0';
    }
    if (is_host_text(host))
        return 0;
    return job_refuse(b,
                      "--%s: The hostname of the rendezvous endpoint '%s' must be a dot-separated "
                      "list of labels, an IPv4 address, or an IPv6 address.%s%s",
                      options_table[id].name, endpoint, *host ? "" : " Is a variable in the command not set?",
                      options_note_on_end(host));
}

/* Splits a part of the text of --rdzv-endpoint. *ret_port is fallback when it names none. */
static int split_endpoint_part(struct job_builder *b, const char *from, const char *to, long fallback,
                               char **ret_host, uint16_t *ret_port)
{
    size_t host_size;

    job_trim(&from, &to);
    char *host = strndup(from, (size_t)(to - from));
    *ret_host = host; /* the job's from here on */
    if (!host)
        return job_refuse(b, "out of memory");
    long number = endpoint_port(host, &host_size);
    if (number == -1)
        number = fallback;
    if (number == -1)
        return job_refuse(b, "--rdzv-endpoint: port is missing in endpoint: %s. Try to specify --master-port",
                          host);
    if (number < 0)
        return job_refuse(
            b,
            "--rdzv-endpoint: The port number of the rendezvous endpoint '%s' must be an integer "
            "between 0 and 65535.",
            host);
    *ret_port = (uint16_t)number;
    host[host_size] = '\0';
    return check_host(b, OPTION_RDZV_ENDPOINT, host, job_text(b, OPTION_RDZV_ENDPOINT));
}

/* An endpoint of white space is none for c10d, as in torchrun. */
static bool has_c10d_endpoint(const struct job_builder *b)
{
    const char *from = job_text(b, OPTION_RDZV_ENDPOINT), *to = from + strlen(from);

    job_trim(&from, &to);
    return from < to;
}

/* HOST[:PORT],HOST[:PORT],...: several rendezvous with one state, all on other nodes. */
static int split_endpoints(struct job_builder *b)
{
    struct job *job = b->job;
    const char *at = job_text(b, OPTION_RDZV_ENDPOINT);
    int r;

    do {
        size_t n = strcspn(at, ",");
        struct job_endpoint *e = &job->endpoints[job->n_endpoints];

        if (job->n_endpoints == JOB_ENDPOINTS_MAX)
            return job_refuse(b, "--rdzv-endpoint: at most %d endpoints", JOB_ENDPOINTS_MAX);
        r = split_endpoint_part(b, at, at + n, DEFAULT_ROUNDS_PORT, &e->host, &e->port);
        job->n_endpoints += e->host != NULL;
        at += n;
    } while (!r && *at++ == ',');
    return r;
}

/* Static rendezvous with an address of the user's choice: workers get exactly that. */
static int take_static(struct job_builder *b)
{
    const struct option_value *port = job_value(b, OPTION_MASTER_PORT);
    struct job *job = b->job;
    char endpoint[432];

    job->meeting = job->max_nodes > 1 ? JOB_STATIC : JOB_ALONE;
    const char *text = job_text(b, OPTION_RDZV_ENDPOINT);
    if (*text)
        return split_endpoint_part(b, text, text + strlen(text), -1, &job->master_addr, &job->master_port);
    long long number = port->text ? port->number : DEFAULT_MASTER_PORT;
    if (number < 0 || number > UINT16_MAX)
        return job_refuse(b, "--master-port=%lld: a port is a number from 0 to 65535", number);
    job->master_port = (uint16_t)number;
    const char *addr = job_text(b, OPTION_MASTER_ADDR);
    while (options_is_space(*addr)) /* torchrun strips ADDR:PORT as a whole */
        addr++;
    job->master_addr = strdup(addr);
    (void)snprintf(endpoint, sizeof(endpoint), "%.400s:%lld", addr, number);
    return job->master_addr ? check_host(b, OPTION_MASTER_ADDR, job->master_addr, endpoint)
                            : job_refuse(b, "out of memory");
}

static int check_static(struct job_builder *b)
{
    const struct job *job = b->job;

    if (job->meeting == JOB_STATIC && job->master_port == 0)
        return job_refuse(b,
                          "port 0: nodes that meet at a fixed address need a fixed port; give one with "
                          "--master-port or in --rdzv-endpoint");
    return 0;
}

/* Looks for a step of Slurm when the user gave no meeting point. A static address, also a part of one, counts as given. */
static int find_slurm_step(const struct job_builder *b, struct slurm *ret)
{
    const char *variable;

    if (b->job->max_nodes == 1 || *job_text(b, OPTION_RDZV_ENDPOINT) ||
        job_value(b, OPTION_MASTER_ADDR)->set || job_value(b, OPTION_MASTER_PORT)->set ||
        job_flag(b, OPTION_STANDALONE))
        return SLURM_E_NONE;
    if (job_value(b, OPTION_RDZV_BACKEND)->set && strcmp(job_text(b, OPTION_RDZV_BACKEND), "c10d") != 0)
        return SLURM_E_NONE;
    return slurm_find(b->environment, ret, &variable);
}

static int set_endpoint(struct job_builder *b, const char *host, uint16_t port)
{
    b->job->endpoints[0] = (struct job_endpoint){.host = strdup(host), .port = port};
    b->job->n_endpoints = 1;
    return b->job->endpoints[0].host ? 0 : job_refuse(b, "out of memory");
}

/* Meets at the first host of the step, under the step's id unless the user named the job. */
static int take_slurm_step(struct job_builder *b, const struct slurm *step)
{
    struct job *job = b->job;

    if (!job_value(b, OPTION_RDZV_ID)->set) {
        (void)snprintf(job->run_id, sizeof(job->run_id), "slurm-%.15s.%.15s", step->job_id, step->step_id);
        job->run_id_text = job->worker_run_id = job->run_id;
    }
    strbuf_add(&b->warnings, "crun: step %s.%s of Slurm: the nodes meet at %s:%u, its first host\n",
               step->job_id, step->step_id, step->host, step->port);
    return set_endpoint(b, step->host, step->port);
}

static int take_rounds(struct job_builder *b)
{
    struct slurm step;
    int r = find_slurm_step(b, &step);

    b->job->meeting = JOB_ROUNDS;
    if (has_c10d_endpoint(b))
        return split_endpoints(b);
    if (r == 0)
        return take_slurm_step(b, &step);
    if (r == SLURM_E_BAD)
        return job_refuse(
            b,
            "Slurm's list of this step's nodes (SLURM_STEP_NODELIST or SLURM_JOB_NODELIST) cannot be "
            "read; give their meeting point with --rdzv-endpoint=HOST:PORT");
    strbuf_add(&b->warnings,
               "crun: --rdzv-endpoint is not given, so the nodes of this job have to be on this machine "
               "(localhost:%d)\n",
               DEFAULT_ROUNDS_PORT);
    return set_endpoint(b, "localhost", DEFAULT_ROUNDS_PORT);
}

/* A rendezvous on several machines chooses a lease. */
static int take_lease(struct job_builder *b)
{
    const struct option_value *option = job_value(b, OPTION_LEASE);
    struct session_params *params = &b->job->params;
    uint32_t least_ms = 4 * params->node_timeout_ms;

    if (b->job->agent_fd >= 0 && option->set && option->seconds > 0)
        return job_refuse(b, "--lease: an agent that is another program stops its workers itself");
    if (option->set && !(option->seconds >= 0 && option->seconds <= SESSION_TIMEOUT_MS_MAX / 1000.0))
        return job_refuse(b, "--lease: a number of seconds from 1 to %u, or 0",
                          (unsigned)(SESSION_TIMEOUT_MS_MAX / 1000));
    if (option->set)
        params->lease_ms = (uint32_t)(option->seconds * 1000);
    else if (b->job->replace && b->job->agent_fd < 0)
        params->lease_ms = least_ms > SESSION_LEASE_MS_DEFAULT ? least_ms : SESSION_LEASE_MS_DEFAULT;
    else
        params->lease_auto = b->job->agent_fd < 0;
    if (params->node_timeout_origin == SESSION_TIMEOUT_DEFAULT && params->lease_ms >= SESSION_LEASE_MS_MIN)
        params->node_timeout_ms = session_default_node_timeout_ms(params->lease_ms);
    if (params->lease_ms == 0
            ? option->set && option->seconds > 0
            : params->lease_ms < SESSION_LEASE_MS_MIN || params->lease_ms < params->node_timeout_ms)
        return job_refuse(b, "--lease=%g: at least 1 s, and not shorter than node_timeout_ms (%u ms)",
                          option->seconds, (unsigned)params->node_timeout_ms);
    return 0;
}

static int check_rounds(struct job_builder *b)
{
    const struct job *job = b->job;
    const char *fault = session_params_fault(&job->params);

    if (job->n_endpoints > 1 && job->hosting == JOB_HOSTS)
        return job_refuse(b, "--rdzv-conf: is_host is for one endpoint, and --rdzv-endpoint names several");
    if (strlen(job->run_id_text) >= SESSION_JOB_SIZE)
        return job_refuse(b, "--rdzv-id: at most %d bytes", SESSION_JOB_SIZE - 1);
    if (strlen(job_text(b, OPTION_ROLE)) >= SESSION_ROLE_SIZE)
        return job_refuse(b, "--role: at most %d bytes in a job of several nodes", SESSION_ROLE_SIZE - 1);
    if (job->local_addr && strlen(job->local_addr) >= SESSION_ADDR_SIZE)
        return job_refuse(b, "--local-addr: at most %d bytes", SESSION_ADDR_SIZE - 1);
    return fault ? job_refuse(b, "--rdzv-conf: %s", fault) : 0;
}

/* Two nodes that both forget --nnodes would each train as a job of one node, and overwrite each other's snapshots. */
static void warn_of_unused_endpoint(struct job_builder *b)
{
    if (!address_is_loopback(b->job->endpoints[0].host))
        strbuf_add(
            &b->warnings,
            "crun: --nnodes is 1: this node is the whole job, and the rendezvous at %s is not used; give "
            "--nnodes on all nodes of a larger job\n",
            job_text(b, OPTION_RDZV_ENDPOINT));
}

/* One node: its workers meet on loopback, unless the user names an address. The endpoint is not used, but must be
 * well-formed, as it is with more nodes. */
static int take_alone(struct job_builder *b, bool has_endpoint)
{
    const char *local = b->job->local_addr;

    if (has_endpoint && split_endpoints(b) != 0)
        return 1;
    if (has_endpoint)
        warn_of_unused_endpoint(b);
    b->job->master_addr = strdup(local ? local : "127.0.0.1");
    return b->job->master_addr ? 0 : job_refuse(b, "out of memory");
}

static int take_meeting(struct job_builder *b, bool alone)
{
    const char *backend = b->job->rdzv_backend;

    if (!alone && strcmp(backend, "static") == 0)
        return take_static(b);
    if (!alone && strncmp(backend, "etcd", 4) == 0)
        return job_refuse(
            b,
            "--rdzv-backend: rendezvous backend '%s' is not registered: nodes of crun do not ask etcd "
            "themselves; start crund with --state=etcd://..., and the nodes with --rdzv-backend=c10d "
            "--rdzv-endpoint=CRUND:PORT,CRUND:PORT",
            backend);
    if (!alone && strcmp(backend, "c10d") != 0)
        return job_refuse(
            b, "--rdzv-backend: rendezvous backend '%s' is not registered; crun has c10d and static",
            backend);
    if (!alone && (b->job->max_nodes > 1 || b->job->agent_fd >= 0))
        return take_rounds(b);
    return take_alone(b, !alone && has_c10d_endpoint(b));
}

/* Whether the first worker opens the store, as torchrun has it but for static. */
static void take_worker_store(struct job_builder *b, bool may)
{
    const char *unshared = envp_get(b->environment, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE");

    if (!unshared || strcmp(unshared, "1") != 0)
        return;
    b->job->worker_has_store = may && b->job->meeting == JOB_ALONE;
    if (b->job->meeting == JOB_ROUNDS)
        strbuf_add(&b->warnings,
                   "crun: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 has no effect on several nodes: node 0 "
                   "serves an empty store for each generation\n");
}

/* The nodes of a step of Slurm can authenticate each other by munge, wherever they meet. */
static void look_for_munge(struct job_builder *b)
{
    const char *variable;
    struct slurm step;

    b->job->may_use_munge =
        b->job->meeting == JOB_ROUNDS && slurm_find(b->environment, &step, &variable) == 0;
    slurm_munge_socket(b->machine->slurm_conf, b->job->munge_socket);
}

/* A name, an address, or the network in which this node has its address. */
static int take_local_addr(struct job_builder *b)
{
    const char *text = job_text_or_none(b, OPTION_LOCAL_ADDR);
    char address[SESSION_ADDR_SIZE];

    b->job->local_addr = text;
    if (!text || !strchr(text, '/'))
        return 0;
    int r = b->machine->find_address ? b->machine->find_address(text, address, sizeof(address)) : -ENOSYS;
    if (r == -EINVAL)
        return job_refuse(b, "--local-addr=%s: a network is ADDRESS/BITS, as in 10.1.0.0/16", text);
    if (r == -EADDRNOTAVAIL)
        return job_refuse(b,
                          "--local-addr=%s: this node has no address in that network (`ip -brief address` "
                          "lists its addresses)",
                          text);
    if (r < 0)
        return job_refuse(b, "--local-addr=%s: the addresses of this node are not known: %s", text,
                          strerror(-r));
    b->job->local_addr = b->job->found_addr = strdup(address);
    return b->job->local_addr ? 0 : job_refuse(b, "out of memory");
}

/* The name of the job, and where its nodes meet (docs/torchrun-contract.md, 1.4). */
int job_take_rendezvous(struct job_builder *b)
{
    struct slurm step;
    bool in_step = find_slurm_step(b, &step) != SLURM_E_NONE;
    bool is_static = !in_step && strcmp(job_text(b, OPTION_RDZV_BACKEND), "static") == 0;
    bool has_endpoint = *job_text(b, OPTION_RDZV_ENDPOINT) != '\0';
    struct job *job = b->job;

    (void)snprintf(job->run_id, sizeof(job->run_id), "%s", b->machine->random_id); /* a UUID fits */
    job->run_id_text = job_text(b, OPTION_RDZV_ID);
    if (take_local_addr(b) != 0)
        return 1;
    bool alone =
        job_flag(b, OPTION_STANDALONE) ||
        (is_static && !has_endpoint && !job_value(b, OPTION_MASTER_PORT)->text && job->max_nodes == 1);
    if (job->agent_fd >= 0 && (alone || is_static || !has_endpoint))
        return job_refuse(b, "--agent-fd needs --rdzv-backend=c10d and --rdzv-endpoint");
    if (alone && job->min_nodes > 1)
        return job_refuse(b,
                          "--standalone is for one node, and --nnodes=%s asks for more; give --rdzv-endpoint "
                          "(or --master-addr and --master-port) instead of --standalone",
                          job_text(b, OPTION_NNODES));
    job->rdzv_backend = alone || in_step ? "c10d" : job_text(b, OPTION_RDZV_BACKEND);
    if (!*job->run_id_text || (alone && !job_value(b, OPTION_RDZV_ID)->set))
        job->run_id_text = job->run_id;
    job->worker_run_id = alone ? job->run_id : job->run_id_text;
    TRY(take_meeting(b, alone));
    take_worker_store(b, alone || !is_static);
    look_for_munge(b);
    TRY(take_node_rank(b));
    TRY(check_static(b));
    TRY(check_conf(b));
    if (job->meeting != JOB_ROUNDS)
        return 0;
    TRY(take_lease(b));
    return check_rounds(b);
}
