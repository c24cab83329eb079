#include "launcher/rdzv/worker_store_uv.h"

#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "launcher/host/local_address_os.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/rdzv/resolver_uv.h"
#include "launcher/util/log_os.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/address.h"
#include "rendezvous/daemon/compose_uv.h"

int listen_on_loopback(struct server *server, uint16_t port, uint16_t *ret_port)
{
    int r = server_listen_tcp(server, "127.0.0.1", port, ret_port);

    if (!r)
        (void)server_listen_tcp(server, "::1", *ret_port, ret_port); /* without IPv6 no client uses it */
    return r;
}

static int listen_for_workers(struct server *server, const struct worker_store_options *options,
                              uint16_t *ret_port)
{
    const char *host = options->host;

    if (host && strcmp(host, "localhost") == 0)
        return listen_on_loopback(server, options->port, ret_port);
    if (options->is_narrow && !host) {
        *ret_port = options->port;
        return 0;
    }
    return server_listen_tcp(server, host && address_is_numeric(host) ? host : "::", options->port, ret_port);
}

int worker_store_listen_for(struct server *server, const char *master_addr, uint16_t port)
{
    struct resolver_addresses address;

    if (!resolver_numeric(master_addr, port, &address) || server_listens_at(server, master_addr) ||
        !local_address_is_own(&address.items[0].any))
        return 0;
    return server_listen_tcp(server, master_addr, port, &port);
}

static struct store_stats *worker_store_stats;

void worker_store_measure(struct store_stats *stats)
{
    worker_store_stats = stats;
}

struct store_stats *worker_store_measured(void)
{
    return worker_store_stats;
}

static void log_for_store(void *data, const char *line)
{
    log_line("worker store: %s", line);
}

static struct server_security security_of(const struct worker_store_options *options)
{
    if (options->keys)
        return job_keys_of_store(options->keys);
    return (struct server_security){
        .own_user =
            options->security != JOB_SECURITY_OPEN && options->host && address_is_loopback(options->host),
        .require = options->security == JOB_SECURITY_REQUIRE,
    };
}

static int create_store(struct server **ret, uv_loop_t *loop, const struct server_security *security)
{
    const struct server_config config = {
        .security = security, .log = log_for_store, .stats = worker_store_stats};

    return server_create(ret, loop, &config);
}

int worker_store_open(struct server **ret, uv_loop_t *loop, const struct worker_store_options *options,
                      uint16_t *ret_port)
{
    const struct server_security security = security_of(options);
    struct server *server;

    TRY(create_store(&server, loop, &security));
    int r = listen_for_workers(server, options, ret_port);
    if (r) {
        server_stop(server, NULL, NULL);
        return r;
    }
    *ret = server;
    return 0;
}

int worker_store_hold(int *ret_fd, uint16_t *ret_port)
{
    union address_endpoint at = {.v6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any}};
    socklen_t size = sizeof(at.v6);
    int on = 1;

    _cleanup_close_ int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 && errno == EAFNOSUPPORT) {
        at = (union address_endpoint){.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)}};
        size = sizeof(at.v4);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, &at.any, size) < 0 || getsockname(fd, &at.any, &size) < 0)
        return -errno;
    *ret_port = address_port(&at.any);
    *ret_fd = steal_fd(&fd);
    return 0;
}
