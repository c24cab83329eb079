/*
 * One table holds name, meaning and bounds of each option; the help text and the parser both come from it.
 */

#include "rendezvous/daemon/daemon_options.h"
#include "rendezvous/store/metrics_text.h"

#include <assert.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"
#include "base/err.h"
#include "proto/address.h"
#include "rendezvous/server/server_rounds.h"
#include "rendezvous/session/session_message.h"

#define DEFAULT_HOST "127.0.0.1"
#define DEFAULT_PORT_TEXT "29400"
enum { DEFAULT_PORT = 29400 };

enum kind { KIND_COUNT, KIND_SIZE, KIND_SECONDS };

struct number_option {
    const char *name;
    enum kind kind;
    uint64_t value; /* default */
    uint64_t min;
    uint64_t max;
    const char *help;
};

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)
#define GIB(n) ((uint64_t)(n) << 30)

static const struct number_option numbers[] = {
    [DAEMON_MAX_CONNECTIONS] = {"max-connections", KIND_COUNT, 100000, 1, 10000000, "clients at a time"},
    [DAEMON_MAX_CONNECTIONS_EACH] = {"max-connections-each", KIND_COUNT, 50000, 1, 10000000,
                                     "clients of one address, or user of this machine"},
    [DAEMON_MAX_KEYS] = {"max-keys", KIND_COUNT, 10000000, 0, UINT32_MAX, "keys in the store"},
    [DAEMON_MAX_BYTES] = {"max-bytes", KIND_SIZE, GIB(4), KIB(64), UINT64_MAX / 4,
                          "what names, values and waits may take together"},
    [DAEMON_MAX_JOB_BYTES] = {"max-job-bytes", KIND_SIZE, GIB(1), KIB(64), UINT64_MAX / 4,
                              "memory of the keys of one job's workers"},
    [DAEMON_MAX_WAITERS] = {"max-waiters", KIND_COUNT, 1000000, 1, UINT32_MAX, "clients waiting for one key"},
    [DAEMON_MAX_KEY_LENGTH] = {"max-key-length", KIND_SIZE, KIB(8), 1, MIB(16), "one key"},
    [DAEMON_MAX_VALUE_LENGTH] = {"max-value-length", KIND_SIZE, MIB(8), 1, GIB(1), "one value in a message"},
    [DAEMON_MAX_LIST] = {"max-list", KIND_COUNT, 131072, 1, 10000000, "keys in one message"},
    [DAEMON_MAX_MESSAGE] = {"max-message", KIND_SIZE, MIB(128), KIB(16), GIB(4), "one whole message"},
    [DAEMON_MAX_OUTPUT] = {"max-output", KIND_SIZE, KIB(64), 1, GIB(1),
                           "unread replies of a client before its requests wait"},
    [DAEMON_MAX_OUTPUT_ALL] = {"max-output-all", KIND_SIZE, MIB(256), 1, UINT64_MAX / 4,
                               "unread replies of all clients before large requests wait"},
    [DAEMON_MAX_INPUT_ALL] = {"max-input", KIND_SIZE, GIB(1), KIB(64), UINT64_MAX / 4,
                              "incomplete messages of all clients"},
    [DAEMON_HANDSHAKE_MS] = {"handshake-timeout", KIND_SECONDS, 5000, 1, INT_MAX, "for a client's greeting"},
    [DAEMON_MESSAGE_MS] = {"message-timeout", KIND_SECONDS, 30000, 1, INT_MAX,
                           "for each MiB of an incomplete message"},
    [DAEMON_DRAIN_MS] = {"drain-timeout", KIND_SECONDS, 5000, 0, INT_MAX,
                         "for unread replies after SIGTERM or SIGINT"},
    [DAEMON_MAX_JOBS] = {"max-jobs", KIND_COUNT, 1024, 1, 1000000, "jobs of crun's agents"},
    [DAEMON_MAX_JOBS_EACH] = {"max-jobs-each", KIND_COUNT, 512, 1, 1000000,
                              "jobs without a secret of one address, or user of this machine"},
    [DAEMON_MAX_NODE_TIMEOUT_MS] = {"max-node-timeout", KIND_SECONDS, 600000, 100, INT_MAX,
                                    "node timeout of a job without a secret"},
    [DAEMON_MAX_WAIT_MS] = {"max-wait", KIND_SECONDS, 86400000, 1000, INT_MAX,
                            "join and last call timeout of a job without a secret"},
    [DAEMON_MAX_NODES] = {"max-nodes", KIND_COUNT, SESSION_NODES_MAX, 1, SESSION_NODES_MAX,
                          "nodes of one job"},
    [DAEMON_MAX_AGENTS] = {"max-agents", KIND_COUNT, 4 * SESSION_NODES_MAX, 1, 10000000,
                           "nodes of all jobs together"},
    [DAEMON_GRACE_MS] = {"grace", KIND_SECONDS, 5000, 1, INT_MAX,
                         "for agents to return after a restart with --state"},
};
static_assert(ARRAY_SIZE(numbers) == DAEMON_NUMBER_COUNT, "every number has its option");

enum {
    OPT_LISTEN = DAEMON_NUMBER_COUNT,
    OPT_LISTEN_UNIX,
    OPT_STATE,
    OPT_METRICS_ADDR,
    OPT_SECRET_FILE,
    OPT_SECRETS,
    OPT_SECURITY,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TLS_CA,
    OPT_SANDBOX,
    OPT_ADVERTISE,
    OPT_ETCD_CA,
    OPT_ETCD_CERT,
    OPT_ETCD_KEY,
    OPT_ETCD_LOGIN,
    OPT_STORE_REPLICAS,
    OPT_ANNOUNCE_FD,
    OPT_DEBUG,
    OPT_HELP,
    OPT_VERSION,
    OPT_COUNT
};

/* getopt_long() values: behind every character, so that none is taken for a short option. */
enum { VALUE_BASE = 256 };

/* ---- numbers ---- */

/* Digits, perhaps a fraction that is rounded to milliseconds, perhaps an "s". */
static bool parse_limit_seconds(const char *text, uint64_t *ret_ms)
{
    uint64_t seconds, tenths_of_ms = 0;

    if (!decimal_scan(&text, INT_MAX / 1000, &seconds))
        return false;
    if (*text == '.') {
        text++;
        for (unsigned unit = 1000; *text >= '0' && *text <= '9'; text++, unit /= 10)
            tenths_of_ms += (uint64_t)(*text - '0') * unit;
    }
    if (*text == 's')
        text++;
    *ret_ms = seconds * 1000 + (tenths_of_ms + 5) / 10;
    return *text == '\0';
}

static bool parse_limit(const char *text, bool size, uint64_t *ret)
{
    static const char units[] = "KMG";
    const char *unit;
    unsigned shift = 0;

    if (!decimal_scan(&text, UINT64_MAX, ret))
        return false;
    unit = size && *text != '\0' ? strchr(units, *text) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        text++;
    }
    if (*text != '\0' || *ret > UINT64_MAX >> shift)
        return false;
    *ret <<= shift;
    return true;
}

/* In the largest unit that divides it. */
static void format_number(const struct number_option *o, uint64_t value, char *text, size_t n)
{
    unsigned unit = 0;

    if (o->kind == KIND_SECONDS) {
        (void)snprintf(text, n, "%g", (double)value / 1000);
        return;
    }
    while (o->kind == KIND_SIZE && unit < 3 && value > 0 && value % 1024 == 0) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(text, n, "%llu%.*s", (unsigned long long)value, unit > 0, &" KMG"[unit]);
}

static int parse_limit_number(struct daemon_options *options, unsigned which, const char *text, char *error,
                              size_t error_size)
{
    const struct number_option *o = &numbers[which];
    char min[32], max[32];
    uint64_t value;
    bool ok = o->kind == KIND_SECONDS ? parse_limit_seconds(text, &value)
                                      : parse_limit(text, o->kind == KIND_SIZE, &value);

    if (ok && value >= o->min && value <= o->max) {
        options->numbers[which] = value;
        return 0;
    }
    format_number(o, o->min, min, sizeof(min));
    format_number(o, o->max, max, sizeof(max));
    (void)snprintf(error, error_size, "--%s %s: not a %s from %s to %s", o->name, text,
                   o->kind == KIND_SECONDS ? "time in seconds"
                   : o->kind == KIND_SIZE  ? "size (K, M, G are allowed)"
                                           : "number",
                   min, max);
    return DAEMON_E_USAGE;
}

/* ---- addresses ---- */

static bool parse_port(const char *text, uint16_t *ret)
{
    uint64_t port;

    if (!decimal_parse(text, 0, UINT16_MAX, &port))
        return false;
    *ret = (uint16_t)port;
    return true;
}

/* HOST, HOST:PORT, [HOST], [HOST]:PORT, :PORT; a bare address with two colons is IPv6 without a port. */
static bool split_address(const char *text, struct daemon_address *ret)
{
    const char *begin = text, *end, *port;

    if (text[0] == '[') {
        begin = text + 1;
        end = strchr(text, ']');
        if (!end || (end[1] != '\0' && end[1] != ':'))
            return false;
        port = end[1] == ':' ? end + 2 : NULL;
    } else {
        end = strchr(text, ':');
        if (!end || strchr(end + 1, ':'))
            end = text + strlen(text);
        port = *end == ':' ? end + 1 : NULL;
    }
    if ((size_t)(end - begin) >= sizeof(ret->host))
        return false;
    memcpy(ret->host, begin, (size_t)(end - begin));
    ret->host[end - begin] = '\0';
    ret->port = DEFAULT_PORT;
    return !port || parse_port(port, &ret->port);
}

static int add_address(struct daemon_options *options, const struct daemon_address *address, char *error,
                       size_t error_size)
{
    if (options->n_addresses == DAEMON_LISTEN_MAX) {
        (void)snprintf(error, error_size, "more than %d addresses to listen on", DAEMON_LISTEN_MAX);
        return DAEMON_E_USAGE;
    }
    options->addresses[options->n_addresses++] = *address;
    return 0;
}

static int parse_listen(struct daemon_options *options, const char *text, char *error, size_t error_size)
{
    struct daemon_address address = {0};

    if (!split_address(text, &address)) {
        (void)snprintf(error, error_size, "--listen %s: not HOST:PORT or [IPV6]:PORT", text);
        return DAEMON_E_USAGE;
    }
    if (address.host[0] == '\0')
        (void)strcpy(address.host, "::");
    else if (strcmp(address.host, "localhost") == 0)
        (void)strcpy(address.host, DEFAULT_HOST);
    if (!address_is_numeric(address.host)) {
        (void)snprintf(error, error_size,
                       "--listen %s: names are never looked up; give the address of an interface, "
                       "0.0.0.0, or [::] for all",
                       text);
        return DAEMON_E_USAGE;
    }
    return add_address(options, &address, error, error_size);
}

static int parse_listen_unix(struct daemon_options *options, const char *text, char *error, size_t error_size)
{
    const struct daemon_address address = {.unix_path = text};

    return add_address(options, &address, error, error_size);
}

static int parse_metrics_addr(struct daemon_options *options, const char *text, char *error,
                              size_t error_size)
{
    char host[64];
    uint16_t port;

    if (address_parse_listener(text, host, &port))
        return 0;
    (void)snprintf(error, error_size, "--metrics-addr %s: not PORT, HOST:PORT or [IPV6]:PORT, numeric", text);
    return DAEMON_E_USAGE;
}

/* ---- state ---- */

static int parse_state(struct daemon_options *options, const char *text, char *error, size_t error_size)
{
    struct etcd_url url;
    const char *why = etcd_url_is(text) ? etcd_url_parse(text, &url) : NULL;

    if (!why)
        return 0;
    (void)snprintf(error, error_size, "--state %s: %s; it is etcd://HOST:PORT,.../PREFIX", text, why);
    return DAEMON_E_USAGE;
}

/* Others dial it as it is. */
static int parse_advertise(struct daemon_options *options, const char *text, char *error, size_t error_size)
{
    struct daemon_address address = {0};
    const char *end = text[0] == '[' ? strchr(text, ']') : strchr(text, ':');

    if (end && split_address(text, &address) && address_is_numeric(address.host) && address.port > 0 &&
        strchr(end, ':'))
        return 0;
    (void)snprintf(error, error_size, "--advertise %s: not HOST:PORT or [IPV6]:PORT, numeric", text);
    return DAEMON_E_USAGE;
}

static bool is_any_address(const char *host)
{
    return strcmp(host, "::") == 0 || strcmp(host, "0.0.0.0") == 0;
}

/* A password that is sent in the clear to another host. */
static bool shows_password(const struct daemon_options *options)
{
    struct etcd_url url;

    return options->etcd_login && !options->etcd.ca_file && !etcd_url_parse(options->state, &url) &&
           !etcd_url_is_local(&url);
}

static int check_etcd(const struct daemon_options *options, char *error, size_t error_size)
{
    bool is_etcd = options->state && etcd_url_is(options->state);
    const struct daemon_address *first = &options->addresses[0];
    const struct etcd_access *a = &options->etcd;

    if (!is_etcd && (options->advertise || options->etcd_login || a->ca_file || a->cert_file || a->key_file))
        (void)snprintf(error, error_size, "--advertise and --etcd-... are for --state etcd://...");
    else if (!a->cert_file != !a->key_file || (a->cert_file && !a->ca_file))
        (void)snprintf(error, error_size,
                       "--etcd-cert and --etcd-key are given together, and with --etcd-ca");
    else if (shows_password(options))
        (void)snprintf(
            error, error_size,
            "--etcd-login would send the password in the clear to another host: it needs --etcd-ca FILE, "
            "which makes the connections TLS");
    else if (is_etcd && !options->advertise &&
             (options->n_addresses == 0 || first->unix_path || is_any_address(first->host)))
        (void)snprintf(
            error, error_size,
            "--state etcd://... needs --advertise HOST:PORT, or a first --listen with the address at "
            "which the nodes and the other crunds reach this one");
    else
        return 0;
    return DAEMON_E_USAGE;
}

/* ---- security ---- */

static int parse_security(struct daemon_options *options, const char *text, char *error, size_t error_size)
{
    options->require_secrets = strcmp(text, "require") == 0;
    if (options->require_secrets || strcmp(text, "prefer") == 0)
        return 0;
    (void)snprintf(error, error_size,
                   "--security %s: prefer (jobs without a secret are open) or require (they are refused)",
                   text);
    return DAEMON_E_USAGE;
}

static const char *security_fault(const struct daemon_options *options)
{
    const struct certificate_paths *c = &options->certificates;
    bool has_secrets = options->secret_file || options->secrets;

    if (!c->cert != !c->key)
        return "--tls-cert and --tls-key: a certificate and its private key are needed together";
    if (c->ca && !c->cert)
        return "--tls-ca: needs --tls-cert FILE and --tls-key FILE";
    if (c->cert && has_secrets)
        return "--tls-cert: certificates are in place of secrets: leave --secret-file and --secrets out, or the "
               "certificates";
    if (options->require_secrets && !has_secrets && !c->cert)
        return "--security require: needs --secret-file FILE, --secrets DIR, or --tls-cert FILE";
    if (options->require_secrets && c->cert && !c->ca)
        return "--security require: needs --tls-ca FILE, or each agent is served, whatever its certificate";
    return NULL;
}

static int check_security(const struct daemon_options *options, char *error, size_t error_size)
{
    const char *fault = security_fault(options);

    if (!fault)
        return 0;
    (void)snprintf(error, error_size, "%s", fault);
    return DAEMON_E_USAGE;
}

static int parse_sandbox(struct daemon_options *options, const char *text, char *error, size_t error_size)
{
    static const char *const modes[] = {
        [DAEMON_SANDBOX_AUTO] = "auto", [DAEMON_SANDBOX_REQUIRE] = "require", [DAEMON_SANDBOX_OFF] = "off"};

    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        if (strcmp(text, modes[i]) == 0) {
            options->sandbox = (enum daemon_sandbox)i;
            return 0;
        }
    (void)snprintf(error, error_size,
                   "--sandbox %s: auto (what the kernel has), require (else it does not start) or off", text);
    return DAEMON_E_USAGE;
}

/* ---- the command line ---- */

static int parse_announce_fd(struct daemon_options *options, const char *text, char *error, size_t error_size)
{
    uint64_t fd;

    if (!decimal_parse(text, 3, INT_MAX, &fd)) {
        (void)snprintf(error, error_size, "--announce-fd %s: not the number of a descriptor above 2", text);
        return DAEMON_E_USAGE;
    }
    options->announce_fd = (int)fd;
    return 0;
}

struct other_option {
    const char *name;
    size_t text; /* offset of the member that keeps the value; 0: none does */
    int (*parse)(struct daemon_options *options, const char *text, char *error,
                 size_t error_size); /* NULL: any value will do */
    const char *gone;                /* the option is refused: what there is instead; NULL: it is not */
};

#define KEPT_IN(member) offsetof(struct daemon_options, member)

static const struct other_option other_options[] = {
    [OPT_LISTEN - DAEMON_NUMBER_COUNT] = {"listen", .parse = parse_listen},
    [OPT_LISTEN_UNIX - DAEMON_NUMBER_COUNT] = {"listen-unix", .parse = parse_listen_unix},
    [OPT_STATE - DAEMON_NUMBER_COUNT] = {"state", KEPT_IN(state), parse_state},
    [OPT_METRICS_ADDR - DAEMON_NUMBER_COUNT] = {"metrics-addr", KEPT_IN(metrics_addr), parse_metrics_addr},
    [OPT_SECRET_FILE - DAEMON_NUMBER_COUNT] = {"secret-file", KEPT_IN(secret_file)},
    [OPT_SECRETS - DAEMON_NUMBER_COUNT] = {"secrets", KEPT_IN(secrets)},
    [OPT_SECURITY - DAEMON_NUMBER_COUNT] = {"security", .parse = parse_security},
    [OPT_TLS_CERT - DAEMON_NUMBER_COUNT] = {"tls-cert", KEPT_IN(certificates.cert)},
    [OPT_TLS_KEY - DAEMON_NUMBER_COUNT] = {"tls-key", KEPT_IN(certificates.key)},
    [OPT_TLS_CA - DAEMON_NUMBER_COUNT] = {"tls-ca", KEPT_IN(certificates.ca)},
    [OPT_SANDBOX - DAEMON_NUMBER_COUNT] = {"sandbox", .parse = parse_sandbox},
    [OPT_ADVERTISE - DAEMON_NUMBER_COUNT] = {"advertise", KEPT_IN(advertise), parse_advertise},
    [OPT_ETCD_CA - DAEMON_NUMBER_COUNT] = {"etcd-ca", KEPT_IN(etcd.ca_file)},
    [OPT_ETCD_CERT - DAEMON_NUMBER_COUNT] = {"etcd-cert", KEPT_IN(etcd.cert_file)},
    [OPT_ETCD_KEY - DAEMON_NUMBER_COUNT] = {"etcd-key", KEPT_IN(etcd.key_file)},
    [OPT_ETCD_LOGIN - DAEMON_NUMBER_COUNT] = {"etcd-login", KEPT_IN(etcd_login)},
    [OPT_STORE_REPLICAS - DAEMON_NUMBER_COUNT] =
        {"store-replicas", .gone = "leave it out; a job restarts once, within --max-restarts, when the crund "
                                   "with its keys ends"},
    [OPT_ANNOUNCE_FD - DAEMON_NUMBER_COUNT] = {"announce-fd", .parse = parse_announce_fd},
    [OPT_DEBUG - DAEMON_NUMBER_COUNT] = {"debug"},
    [OPT_HELP - DAEMON_NUMBER_COUNT] = {"help"},
    [OPT_VERSION - DAEMON_NUMBER_COUNT] = {"version"},
};
static_assert(offsetof(struct daemon_options, addresses) == 0, "no text is at offset 0");

static void daemon_long_options(struct option *to)
{
    /* Those from OPT_DEBUG on take no value. */
    for (int i = 0; i < OPT_COUNT; i++) {
        bool is_number = i < DAEMON_NUMBER_COUNT;

        to[i] = (struct option){
            .name = is_number ? numbers[i].name : other_options[i - DAEMON_NUMBER_COUNT].name,
            .has_arg = i >= OPT_DEBUG ? no_argument : required_argument,
            .val = VALUE_BASE + i,
        };
    }
    to[OPT_COUNT] = (struct option){0};
}

static int take_other_option(struct daemon_options *options, const struct other_option *o, const char *text,
                             char *error, size_t error_size)
{
    if (o->gone) {
        (void)snprintf(error, error_size, "--%s is gone: %s", o->name, o->gone);
        return DAEMON_E_USAGE;
    }
    if (o->text > 0)
        memcpy((char *)options + o->text, &text, sizeof(text));
    return o->parse ? o->parse(options, text, error, error_size) : 0;
}

static int take_daemon_option(struct daemon_options *options, int which, char *const argv[], char *error,
                              size_t error_size)
{
    switch (which) {
    case OPT_DEBUG:
        options->debug = true;
        return 0;
    case OPT_HELP:
        return DAEMON_E_HELP;
    case OPT_VERSION:
        return DAEMON_E_VERSION;
    }
    if (which >= 0 && which < DAEMON_NUMBER_COUNT)
        return parse_limit_number(options, (unsigned)which, optarg, error, error_size);
    if (which >= DAEMON_NUMBER_COUNT && which < OPT_DEBUG)
        return take_other_option(options, &other_options[which - DAEMON_NUMBER_COUNT], optarg, error,
                                 error_size);
    (void)snprintf(error, error_size, "%s: unknown option, or its value is missing", argv[optind - 1]);
    return DAEMON_E_USAGE;
}

static void set_defaults(struct daemon_options *options)
{
    *options = (struct daemon_options){.announce_fd = -1};
    for (int i = 0; i < DAEMON_NUMBER_COUNT; i++)
        options->numbers[i] = numbers[i].value;
}

int daemon_options_parse(struct daemon_options *ret, int argc, char *const argv[], char *error,
                         size_t error_size)
{
    struct option long_options[OPT_COUNT + 1];
    int value, r = 0;

    set_defaults(ret);
    daemon_long_options(long_options);
    opterr = 0;
    optind = 0; /* so that it may be called again */
    while (r == 0 && (value = getopt_long(argc, argv, "", long_options, NULL)) != -1)
        r = take_daemon_option(ret, value - VALUE_BASE, argv, error, error_size);
    if (r == 0 && optind < argc) {
        (void)snprintf(error, error_size, "%s: crund takes options only", argv[optind]);
        r = DAEMON_E_USAGE;
    }
    if (r == 0)
        r = check_security(ret, error, error_size);
    ret->is_default_address = ret->n_addresses == 0;
    if (r == 0 && ret->n_addresses == 0)
        r = parse_listen(ret, DEFAULT_HOST, error, error_size);
    if (r == 0)
        r = check_etcd(ret, error, error_size);
    return r;
}

struct server_limits daemon_options_limits(const struct daemon_options *options)
{
    const uint64_t *n = options->numbers;

    return (struct server_limits){
        .wire = {.key_max = n[DAEMON_MAX_KEY_LENGTH],
                 .value_max = n[DAEMON_MAX_VALUE_LENGTH],
                 .keys_max = n[DAEMON_MAX_LIST],
                 .message_max = n[DAEMON_MAX_MESSAGE]},
        .store = {.keys_max = n[DAEMON_MAX_KEYS],
                  .bytes_max = n[DAEMON_MAX_BYTES],
                  .waiters_max = n[DAEMON_MAX_WAITERS]},
        .job_store = {.keys_max = n[DAEMON_MAX_KEYS],
                      .bytes_max = n[DAEMON_MAX_JOB_BYTES],
                      .waiters_max = n[DAEMON_MAX_WAITERS]},
        .connections_max = (unsigned)n[DAEMON_MAX_CONNECTIONS],
        .connections_each_max = (unsigned)n[DAEMON_MAX_CONNECTIONS_EACH],
        .output_max = (size_t)n[DAEMON_MAX_OUTPUT],
        .output_all_max = n[DAEMON_MAX_OUTPUT_ALL],
        .input_all_max = n[DAEMON_MAX_INPUT_ALL],
        .handshake_ms = (unsigned)n[DAEMON_HANDSHAKE_MS],
        .frame_ms = (unsigned)n[DAEMON_MESSAGE_MS],
    };
}

struct server_rounds daemon_options_rounds(const struct daemon_options *options)
{
    const uint64_t *n = options->numbers;

    return (struct server_rounds){
        .max_jobs = (unsigned)n[DAEMON_MAX_JOBS],
        .max_jobs_each = (unsigned)n[DAEMON_MAX_JOBS_EACH],
        .max_node_timeout_ms = (unsigned)n[DAEMON_MAX_NODE_TIMEOUT_MS],
        .max_wait_ms = (unsigned)n[DAEMON_MAX_WAIT_MS],
        .max_nodes = (unsigned)n[DAEMON_MAX_NODES],
        .max_agents = (unsigned)n[DAEMON_MAX_AGENTS],
        .grace_ms = (unsigned)n[DAEMON_GRACE_MS],
        .state = options->state,
        .etcd = options->etcd,
    };
}

/* ---- help ---- */

enum { HELP_WIDTH = 80, HELP_COLUMN = 30 };

static const struct {
    const char *option, *help;
} texts[] = {
    {"--listen HOST:PORT",
     "numeric address, [::]:PORT for all interfaces, port 0 takes a free one; repeatable "
     "(default " DEFAULT_HOST ":" DEFAULT_PORT_TEXT ")"},
    {"--listen-unix PATH", "unix socket; repeatable"},
    {"--announce-fd N", "write the addresses to this descriptor, and end when its other end is closed"},
    {"--state DIR", "keep the jobs' rounds and budgets there over a restart"},
    {"--state etcd://HOST:PORT,.../PREFIX",
     "keep them in etcd, which several crunds may share: one leads, and another one does when it ends"},
    {"--advertise HOST:PORT", "where others reach this crund (default: the first --listen)"},
    {"--etcd-ca FILE", "TLS to etcd: the accepted CAs (PEM)"},
    {"--etcd-cert FILE, --etcd-key FILE", "TLS to etcd: this crund's certificate"},
    {"--etcd-login FILE", "USER:PASSWORD for etcd"},
    {"--metrics-addr [HOST:]PORT", "serve metrics for Prometheus there (HOST: default 127.0.0.1)"},
    {"--secret-file FILE", "agents have to prove this secret"},
    {"--secrets DIR", "agents of job ID have to prove the secret in DIR/ID; SIGHUP reads both again"},
    {"--security prefer|require", "jobs without a secret are open (default), or refused"},
    {"--tls-cert FILE, --tls-key FILE",
     "in place of secrets: certificate and private key, PEM; agents without TLS are "
     "refused, and SIGHUP reads them again"},
    {"--tls-ca FILE", "agents have to present a certificate that a CA in it signed"},
    {"--sandbox auto|require|off",
     "limit files and system calls of crund: as far as the kernel can (default), completely, or not at all"},
    {"--debug", "a line for each event and action of the rounds, on standard error"},
};

/* The help begins behind the option, or below it, and is broken between words. */
static void print_option(FILE *out, const char *option, const char *help)
{
    int column = fprintf(out, "  %-*s", HELP_COLUMN - 3, option);
    const char *gap = " ";

    if (column >= HELP_COLUMN) {
        (void)fprintf(out, "\n%*s", HELP_COLUMN - 1, "");
        column = HELP_COLUMN - 1;
    }
    for (size_t n; *help; help += n + strspn(help + n, " ")) {
        n = strcspn(help, " ");
        if (column + 1 + (int)n > HELP_WIDTH) {
            (void)fprintf(out, "\n%*s", HELP_COLUMN - 1, "");
            column = HELP_COLUMN - 1;
        }
        column += fprintf(out, "%s%.*s", gap, (int)n, help);
    }
    (void)fputc('\n', out);
}

void daemon_options_help(FILE *out)
{
    static const char *const units[] = {[KIND_COUNT] = "N", [KIND_SIZE] = "SIZE", [KIND_SECONDS] = "SECONDS"};

    (void)fprintf(out,
                  "usage: crund [--listen HOST:PORT]... [--listen-unix PATH]... [--state DIR]\n"
                  "             [--secret-file FILE] [--secrets DIR] [--security prefer|require]\n"
                  "             [--tls-cert FILE --tls-key FILE [--tls-ca FILE]]\n"
                  "             [--sandbox auto|require|off] [--debug]\n"
                  "             [--metrics-addr [HOST:]PORT] [limits]\n"
                  "Rendezvous daemon: where the agents of crun meet, and a key-value store that\n"
                  "PyTorch's TCPStore clients can use.\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        print_option(out, texts[i].option, texts[i].help);
    for (int i = 0; i < DAEMON_NUMBER_COUNT; i++) {
        const struct number_option *o = &numbers[i];
        char left[64], value[32], help[160];

        format_number(o, o->value, value, sizeof(value));
        (void)snprintf(left, sizeof(left), "--%s %s", o->name, units[o->kind]);
        (void)snprintf(help, sizeof(help), "%s (default %s)", o->help, value); /* fits */
        print_option(out, left, help);
    }
    (void)fprintf(out, "  --help, --version\n\nSee crund(8).\n");
}
