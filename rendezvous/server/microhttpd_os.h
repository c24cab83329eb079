#pragma once

/*
 * The functions of libmicrohttpd that metrics_uv.c uses, and their constants as in microhttpd.h of 0.9 and 1.0. The library is
 * opened when metrics are asked for: a program without them neither loads nor depends on it.
 */

#include <stddef.h>
#include <stdint.h>

struct MHD_Connection;
struct MHD_Daemon;
struct MHD_Response;

enum {
    MICROHTTPD_THREAD = 8,   /* MHD_USE_INTERNAL_POLLING_THREAD */
    MICROHTTPD_AUTO = 65536, /* MHD_USE_AUTO: epoll, else poll */
    MICROHTTPD_ITC = 1024,   /* MHD_USE_ITC: it can be stopped at once */
    MICROHTTPD_OPTION_END = 0,
    MICROHTTPD_OPTION_MEMORY = 1,      /* size_t: of a connection */
    MICROHTTPD_OPTION_CONNECTIONS = 2, /* unsigned */
    MICROHTTPD_OPTION_TIMEOUT_S = 3,   /* unsigned */
    MICROHTTPD_OPTION_LISTEN_FD = 12,
    MICROHTTPD_HEADER = 1,    /* MHD_HEADER_KIND */
    MICROHTTPD_MUST_FREE = 1, /* MHD_RESPMEM_MUST_FREE */
    MICROHTTPD_YES = 1,
};

typedef int microhttpd_handler(void *data, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_size, void **request);

struct microhttpd {
    struct MHD_Daemon *(*start_daemon)(unsigned flags, uint16_t port, void *accept, void *accept_data,
                                       microhttpd_handler *handler, void *data, ...);
    void (*stop_daemon)(struct MHD_Daemon *daemon);
    const char *(*lookup_connection_value)(struct MHD_Connection *connection, int kind, const char *key);
    struct MHD_Response *(*create_response_from_buffer)(size_t size, void *bytes, int mode);
    int (*add_response_header)(struct MHD_Response *response, const char *name, const char *value);
    int (*queue_response)(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response);
    void (*destroy_response)(struct MHD_Response *response);
};

/* NULL: it is not installed, or too old; *ret_why is a part of a sentence. */
const struct microhttpd *microhttpd_open(const char **ret_why);
