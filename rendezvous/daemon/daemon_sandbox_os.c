#include "rendezvous/daemon/daemon_sandbox_os.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/openssl_os.h"
#include "rendezvous/daemon/credentials_uv.h"
#include "rendezvous/etcd/curl_os.h"
#include "rendezvous/daemon/daemon_options.h"
#include "rendezvous/server/microhttpd_os.h"
#include "rendezvous/daemon/sandbox_os.h"

enum { PATHS_MAX = 64 + DAEMON_LISTEN_MAX };

struct path_list {
    struct sandbox_path items[PATHS_MAX];
    char *owned[PATHS_MAX];
    size_t n, n_owned;
};

/* Libraries are loaded when they are needed, and OpenSSL reads its settings then. */
static const char *const system_paths[] = {
    "/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ssl",
};

/* Where names of other servers are looked up. */
static const char *const resolver_paths[] = {
    "/etc/resolv.conf",   "/etc/hosts",
    "/etc/nsswitch.conf", "/etc/host.conf",
    "/etc/gai.conf",      "/etc/services",
    "/etc/protocols",     "/run/systemd/resolve",
    "/run/resolvconf",    "/usr/share/ca-certificates",
};

static bool is_tolerant(const struct daemon_options *o)
{
    return o->sandbox == DAEMON_SANDBOX_AUTO;
}

static int report_gap(const struct daemon_options *o, int error, const char *why)
{
    if (is_tolerant(o)) {
        (void)fprintf(stderr, "crund: a part of the sandbox is missing: %s\n", why);
        return 0;
    }
    (void)fprintf(
        stderr, "crund: --sandbox require: %s; --sandbox auto uses what there is, and off is without\n", why);
    return error;
}

static bool dials(const struct daemon_options *o)
{
    return o->state && etcd_url_is(o->state);
}

/* ---- files ---- */

static void add_path(struct path_list *l, const char *path, enum sandbox_use use)
{
    if (path && l->n < PATHS_MAX)
        l->items[l->n++] = (struct sandbox_path){path, use};
}

/* Of the folder that has the file: it may be replaced by another one of that name. */
static void add_folder_of(struct path_list *l, char *copy, enum sandbox_use use)
{
    char *slash = copy ? strrchr(copy, '/') : NULL;

    if (!copy || l->n_owned == PATHS_MAX) {
        free(copy); /* without memory the file cannot be read later, which is reported then */
        return;
    }
    l->owned[l->n_owned++] = copy;
    if (slash == copy)
        slash[1] = '\0';
    else if (slash)
        *slash = '\0';
    add_path(l, slash ? copy : ".", use);
}

/* By its name, and where symbolic links lead. */
static void add_file(struct path_list *l, const char *path)
{
    if (!path)
        return;
    add_folder_of(l, strdup(path), SANDBOX_READ);
    add_folder_of(l, realpath(path, NULL), SANDBOX_READ);
}

static void collect_paths(struct path_list *l, const struct daemon_options *o)
{
    for (size_t i = 0; i < ARRAY_SIZE(system_paths); i++)
        add_path(l, system_paths[i], SANDBOX_READ);
    add_file(l, o->secret_file);
    add_path(l, o->secrets, SANDBOX_READ);
    add_file(l, o->certificates.cert);
    add_file(l, o->certificates.key);
    add_file(l, o->certificates.ca);
    for (size_t i = 0; i < o->n_addresses; i++)
        if (o->addresses[i].unix_path)
            add_folder_of(l, strdup(o->addresses[i].unix_path), SANDBOX_SOCKETS);
    if (!dials(o))
        add_path(l, o->state, SANDBOX_WRITE);
    for (size_t i = 0; dials(o) && i < ARRAY_SIZE(resolver_paths); i++)
        add_path(l, resolver_paths[i], SANDBOX_READ);
    if (dials(o))
        add_file(l, "/etc/resolv.conf");
    add_file(l, o->etcd_login);
    add_file(l, o->etcd.ca_file);
    add_file(l, o->etcd.cert_file);
    add_file(l, o->etcd.key_file);
}

static void free_paths(struct path_list *l)
{
    for (size_t i = 0; i < l->n_owned; i++)
        free(l->owned[i]);
}

/* From wherever they are installed. What is missing is reported when it is used. */
static void load_libraries(const struct daemon_options *o)
{
    const char *why;

    if (credentials_are_wanted(o))
        (void)openssl_get(&why);
    if (o->metrics_addr)
        (void)microhttpd_open(&why);
    if (dials(o))
        (void)curl_open(&why);
}

static int limit_daemon_files(const struct daemon_options *options)
{
    struct path_list paths = {.n = 0};
    char why[SANDBOX_ERROR_SIZE];

    if (options->sandbox == DAEMON_SANDBOX_OFF || (is_tolerant(options) && !sandbox_is_possible()))
        return 0;
    if (!sandbox_is_possible())
        return report_gap(options, -EOPNOTSUPP, "this build has a sanitizer, which needs more of the system");
    load_libraries(options);
    if (options->state && !dials(options) && mkdir(options->state, 0700) < 0 && errno != EEXIST) {
        /* Later, the sandbox refuses to make it, whatever the cause is now. */
        int error = errno;

        (void)fprintf(stderr, "crund: the state directory %s cannot be created: %s\n", options->state,
                      strerror(error));
        return -error;
    }
    collect_paths(&paths, options);
    int r = sandbox_limit_files(paths.items, paths.n, why);
    free_paths(&paths);
    return r < 0 ? report_gap(options, r, why) : 0;
}

/* ---- calls ---- */

static bool limits_calls(const struct daemon_options *o)
{
    return o->sandbox != DAEMON_SANDBOX_OFF && sandbox_is_possible();
}

int daemon_sandbox_around(const struct daemon_options *options, int (*open)(void *data),
                          int (*start)(void *data), void *data)
{
    const struct sandbox_calls calls = {
        .pid = getpid(), .dials = dials(options), .has_metrics = options->metrics_addr != NULL};
    char why[SANDBOX_ERROR_SIZE];
    int r = limits_calls(options) ? sandbox_refuse_rings(why) : 0;

    if (r < 0)
        r = report_gap(options, r, why);
    if (r == 0)
        r = open(data);
    if (r == 0)
        r = limit_daemon_files(options);
    if (r == 0)
        r = start(data);
    if (r < 0 || !limits_calls(options))
        return r;
    r = sandbox_limit_calls(&calls, why);
    return r < 0 ? report_gap(options, r, why) : 0;
}
