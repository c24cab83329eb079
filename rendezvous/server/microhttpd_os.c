#include "rendezvous/server/microhttpd_os.h"

#include <dlfcn.h>

#include "base/err.h"
#include "base/symbols_os.h"

static struct microhttpd table;

static const struct library_function functions[] = {
    {"MHD_start_daemon", &table.start_daemon},
    {"MHD_stop_daemon", &table.stop_daemon},
    {"MHD_lookup_connection_value", &table.lookup_connection_value},
    {"MHD_create_response_from_buffer", &table.create_response_from_buffer},
    {"MHD_add_response_header", &table.add_response_header},
    {"MHD_queue_response", &table.queue_response},
    {"MHD_destroy_response", &table.destroy_response},
};

const struct microhttpd *microhttpd_open(const char **ret_why)
{
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);

    if (!library)
        library = dlopen("libmicrohttpd.so.10", RTLD_NOW | RTLD_LOCAL);
    *ret_why = "libmicrohttpd is not installed: install libmicrohttpd12, or run without --metrics-addr";
    if (library && !library_find(library, functions, ARRAY_SIZE(functions))) {
        *ret_why = "libmicrohttpd is too old: 0.9.33 or newer is needed";
        return NULL;
    }
    return library ? &table : NULL;
}
