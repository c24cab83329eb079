#include "launcher/rdzv/listen_uv.h"

#include "rendezvous/server/server_uv.h"

int listen_on_loopback(struct server *server, uint16_t port, uint16_t *ret_port)
{
    int r = server_listen_tcp(server, "127.0.0.1", port, ret_port);

    if (!r)
        (void)server_listen_tcp(server, "::1", *ret_port, ret_port); /* without IPv6 no client uses it */
    return r;
}
