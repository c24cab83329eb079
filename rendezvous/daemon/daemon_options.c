/*
 * A table holds name, meaning, bounds and default of each option: the source of the parser, --help and the completions.
 */

#include "rendezvous/daemon/daemon_options.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/decimal.h"
#include "base/err.h"
#include "proto/address.h"
#include "rendezvous/session/session_message.h"

#define DEFAULT_HOST "127.0.0.1"
#define DEFAULT_PORT_TEXT "29400"
enum { DEFAULT_PORT = 29400 };

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

static const char *add_address(struct daemon_options *options, const struct daemon_address *address)
{
    if (options->n_addresses == DAEMON_LISTEN_MAX)
        return "one more: there are 64 addresses to listen on at most";
    options->addresses[options->n_addresses++] = *address;
    return NULL;
}
static_assert(DAEMON_LISTEN_MAX == 64, "the sentence above");

static const char *take_listen(void *to, const char *text)
{
    struct daemon_address address = {0};

    if (!split_address(text, &address))
        return "HOST:PORT or [IPV6]:PORT";
    if (address.host[0] == '\0')
        (void)strcpy(address.host, "::");
    else if (strcmp(address.host, "localhost") == 0)
        (void)strcpy(address.host, DEFAULT_HOST);
    if (!address_is_numeric(address.host))
        return "numeric, and names are never looked up; give the address of an interface, 0.0.0.0, or [::] for all";
    return add_address(to, &address);
}

static const char *take_listen_unix(void *to, const char *text)
{
    const struct daemon_address address = {.unix_path = text};

    return add_address(to, &address);
}

static const char *check_metrics_addr(void *member, const char *text)
{
    char host[64];
    uint16_t port;

    return address_parse_listener(text, host, &port) ? NULL : "PORT, HOST:PORT or [IPV6]:PORT, numeric";
}

/* Checks the address for other crunds and agents: dialled as given. */
static const char *check_advertise(void *member, const char *text)
{
    struct daemon_address address = {0};
    const char *end = text[0] == '[' ? strchr(text, ']') : strchr(text, ':');
    bool ok = end && split_address(text, &address) && address_is_numeric(address.host) && address.port > 0;

    return ok && strchr(end, ':') ? NULL : "HOST:PORT or [IPV6]:PORT, numeric";
}

/* ---- the table ---- */

#define AT(member) OPTION_AT(struct daemon_options, member)

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)
#define GIB(n) ((uint64_t)(n) << 30)
enum { COUNT_MAX = 10000000 };

static const struct option_spec specs[] = {
    {"listen", OPTION_OWN, .placeholder = "HOST:PORT", .take = take_listen,
     .help = "numeric address, [::]:PORT for all interfaces, port 0 takes a free one; repeatable "
             "(default " DEFAULT_HOST ":" DEFAULT_PORT_TEXT ")"},
    {"listen-unix", OPTION_OWN, .placeholder = "PATH", .take = take_listen_unix,
     .help = "unix socket; repeatable"},
    {"announce-fd", OPTION_NUMBER, AT(announce_fd), 3, INT_MAX, "N", NULL,
     "write the addresses to this descriptor, and end when its other end is closed"},
    {"state", OPTION_TEXT, AT(state), .placeholder = "DIR|etcd://HOST:PORT,.../PREFIX",
     .help =
         "keep the jobs' rounds and budgets over a restart in a folder, or in etcd, which several crunds may share: "
         "one leads, and another one does when it ends"},
    {"advertise", OPTION_TEXT, AT(advertise), .placeholder = "HOST:PORT", .take = check_advertise,
     .help = "where others reach this crund (default: the first --listen)"},
    {"etcd-ca", OPTION_TEXT, AT(etcd.ca_file), .placeholder = "FILE",
     .help = "TLS to etcd: the accepted CAs (PEM)"},
    {"etcd-cert", OPTION_TEXT, AT(etcd.cert_file), .placeholder = "FILE",
     .help = "TLS to etcd: this crund's certificate, with --etcd-key"},
    {"etcd-key", OPTION_TEXT, AT(etcd.key_file), .placeholder = "FILE",
     .help = "TLS to etcd: its private key"},
    {"etcd-login", OPTION_TEXT, AT(etcd_login), .placeholder = "FILE", .help = "USER:PASSWORD for etcd"},
    {"store-replicas", OPTION_GONE,
     .help = "leave it out; a job restarts once, within --max-restarts, when the crund with its keys ends"},
    {"metrics-addr", OPTION_TEXT, AT(metrics_addr), .placeholder = "[HOST:]PORT", .take = check_metrics_addr,
     .help = "serve metrics for Prometheus there (HOST: default 127.0.0.1)"},
    {"secret-file", OPTION_TEXT, AT(secret_file), .placeholder = "FILE",
     .help = "agents have to prove this secret"},
    {"secrets", OPTION_TEXT, AT(secrets), .placeholder = "DIR",
     .help = "agents of job ID have to prove the secret in DIR/ID; SIGHUP reads both again"},
    {"security", OPTION_CHOICE, AT(require_secrets), .placeholder = "prefer|require", .fallback = "prefer",
     .choices = "prefer require", .help = "jobs without a secret are open, or refused"},
    {"tls-cert", OPTION_TEXT, AT(certificates.cert), .placeholder = "FILE",
     .help =
         "in place of secrets: certificate, PEM, with --tls-key; agents without TLS are refused, and SIGHUP reads "
         "both again"},
    {"tls-key", OPTION_TEXT, AT(certificates.key), .placeholder = "FILE", .help = "its private key, PEM"},
    {"tls-ca", OPTION_TEXT, AT(certificates.ca), .placeholder = "FILE",
     .help = "agents have to present a certificate that a CA in it signed"},
    {"sandbox", OPTION_CHOICE, AT(sandbox), .placeholder = "auto|require|off", .fallback = "auto",
     .choices = "auto require off",
     .help =
         "limit files and system calls of crund: as far as the kernel can, completely (else it does not start), or "
         "not at all"},
    {"debug", OPTION_FLAG, AT(debug),
     .help = "a line for each event and action of the rounds, on standard error"},
    {"max-connections", OPTION_NUMBER, AT(limits.connections_max), 1, COUNT_MAX, "N", "100000",
     "clients at a time"},
    {"max-connections-each", OPTION_NUMBER, AT(limits.connections_each_max), 1, COUNT_MAX, "N", "50000",
     "clients of one address, or user of this machine"},
    {"max-keys", OPTION_NUMBER, AT(limits.store.keys_max), 0, UINT32_MAX, "N", "10000000",
     "keys in the store"},
    {"max-bytes", OPTION_SIZE, AT(limits.store.bytes_max), KIB(64), UINT64_MAX / 4, "SIZE", "4G",
     "what names, values and waits may take together"},
    {"max-job-bytes", OPTION_SIZE, AT(limits.job_store.bytes_max), KIB(64), UINT64_MAX / 4, "SIZE", "1G",
     "memory of the keys of one job's workers"},
    {"max-waiters", OPTION_NUMBER, AT(limits.store.waiters_max), 1, UINT32_MAX, "N", "1000000",
     "clients waiting for one key"},
    {"max-key-length", OPTION_SIZE, AT(limits.wire.key_max), 1, MIB(16), "SIZE", "8K", "one key"},
    {"max-value-length", OPTION_SIZE, AT(limits.wire.value_max), 1, GIB(1), "SIZE", "8M",
     "one value in a message"},
    {"max-list", OPTION_NUMBER, AT(limits.wire.keys_max), 1, COUNT_MAX, "N", "131072", "keys in one message"},
    {"max-message", OPTION_SIZE, AT(limits.wire.message_max), KIB(16), GIB(4), "SIZE", "128M",
     "one whole message"},
    {"max-output", OPTION_SIZE, AT(limits.output_max), 1, GIB(1), "SIZE", "64K",
     "unread replies of a client before its requests wait"},
    {"max-output-all", OPTION_SIZE, AT(limits.output_all_max), 1, UINT64_MAX / 4, "SIZE", "256M",
     "unread replies of all clients before large requests wait"},
    {"max-input", OPTION_SIZE, AT(limits.input_all_max), KIB(64), UINT64_MAX / 4, "SIZE", "1G",
     "incomplete messages of all clients"},
    {"handshake-timeout", OPTION_SECONDS, AT(limits.handshake_ms), 1, INT_MAX, "SECONDS", "5",
     "for a client's greeting"},
    {"message-timeout", OPTION_SECONDS, AT(limits.frame_ms), 1, INT_MAX, "SECONDS", "30",
     "for each MiB of an incomplete message"},
    {"drain-timeout", OPTION_SECONDS, AT(drain_ms), 0, INT_MAX, "SECONDS", "5",
     "for unread replies after SIGTERM or SIGINT"},
    {"max-jobs", OPTION_NUMBER, AT(rounds.max_jobs), 1, 1000000, "N", "1024", "jobs of crun's agents"},
    {"max-jobs-each", OPTION_NUMBER, AT(rounds.max_jobs_each), 1, 1000000, "N", "512",
     "jobs without a secret of one address, or user of this machine"},
    {"max-node-timeout", OPTION_SECONDS, AT(rounds.max_node_timeout_ms), 100, INT_MAX, "SECONDS", "600",
     "node timeout of a job without a secret"},
    {"max-wait", OPTION_SECONDS, AT(rounds.max_wait_ms), 1000, INT_MAX, "SECONDS", "86400",
     "join and last call timeout of a job without a secret"},
    {"max-nodes", OPTION_NUMBER, AT(rounds.max_nodes), 1, SESSION_NODES_MAX, "N", "16384",
     "nodes of one job"},
    {"max-agents", OPTION_NUMBER, AT(rounds.max_agents), 1, COUNT_MAX, "N", "65536",
     "nodes of all jobs together"},
    {"grace", OPTION_SECONDS, AT(rounds.grace_ms), 1, INT_MAX, "SECONDS", "5",
     "for agents to return after a restart with --state"},
    OPTION_ROWS_OF_ALL,
};
static_assert(SESSION_NODES_MAX == 16384, "the default of --max-nodes");

const struct option_table daemon_option_table = {
    .commands = "crund",
    .page = "crund(8)",
    .specs = specs,
    .n = ARRAY_SIZE(specs),
    .usage = "usage: crund [options]\n",
    .about =
        "Rendezvous daemon: where the agents of crun meet, and a key-value store that PyTorch's TCPStore clients can "
        "use.",
    .ending = "See crund(8).",
};

/* ---- conflicting options ---- */

static bool is_any_address(const char *host)
{
    return strcmp(host, "::") == 0 || strcmp(host, "0.0.0.0") == 0;
}

/* True: a password would go to another host in the clear. */
static bool shows_password(const struct daemon_options *options)
{
    struct etcd_url url;

    return options->etcd_login && !options->etcd.ca_file && !etcd_url_parse(options->state, &url) &&
           !etcd_url_is_local(&url);
}

static const char *etcd_fault(const struct daemon_options *options)
{
    const struct daemon_address *first = &options->addresses[0];
    const struct etcd_access *a = &options->etcd;
    bool is_etcd = options->state && etcd_url_is(options->state);

    if (!is_etcd && (options->advertise || options->etcd_login || a->ca_file || a->cert_file || a->key_file))
        return "--advertise and --etcd-... are for --state etcd://...";
    if (!a->cert_file != !a->key_file || (a->cert_file && !a->ca_file))
        return "--etcd-cert and --etcd-key are given together, and with --etcd-ca";
    if (shows_password(options))
        return "--etcd-login would send the password in the clear to another host: it needs --etcd-ca FILE, which "
               "makes the connections TLS";
    if (is_etcd && !options->advertise &&
        (options->n_addresses == 0 || first->unix_path || is_any_address(first->host)))
        return "--state etcd://... needs --advertise HOST:PORT, or a first --listen with the address at which the "
               "nodes and the other crunds reach this one";
    return NULL;
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

int daemon_options_parse(struct daemon_options *ret, char *const argv[], char *error, size_t error_size)
{
    struct etcd_url url;

    *ret = (struct daemon_options){.announce_fd = -1};
    TRY(option_table_parse(&daemon_option_table, argv, ret, error, error_size));
    ret->limits.job_store.keys_max = ret->limits.store.keys_max;
    ret->limits.job_store.waiters_max = ret->limits.store.waiters_max;
    ret->is_default_address = ret->n_addresses == 0;
    if (ret->is_default_address)
        (void)take_listen(ret, DEFAULT_HOST); /* DEFAULT_HOST is an address */
    const char *fault = security_fault(ret);
    const char *url_fault = ret->state && etcd_url_is(ret->state) ? etcd_url_parse(ret->state, &url) : NULL;
    if (!fault && url_fault)
        (void)snprintf(error, error_size, "--state %s: %s; it is etcd://HOST:PORT,.../PREFIX", ret->state,
                       url_fault);
    else if (!fault)
        fault = etcd_fault(ret);
    if (fault)
        (void)snprintf(error, error_size, "%s", fault);
    return fault || url_fault ? OPTIONS_E_USAGE : 0;
}
