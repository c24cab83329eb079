#include "rendezvous/etcd/curl_os.h"

#include <dlfcn.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/symbols_os.h"

static struct curl table;
static bool opened;

static const struct library_function functions[] = {
    {"curl_global_init", &table.global_init},       {"curl_easy_init", &table.easy_init},
    {"curl_easy_setopt", &table.easy_setopt},       {"curl_easy_perform", &table.easy_perform},
    {"curl_easy_getinfo", &table.easy_getinfo},     {"curl_easy_cleanup", &table.easy_cleanup},
    {"curl_easy_strerror", &table.easy_strerror},   {"curl_slist_append", &table.slist_append},
    {"curl_slist_free_all", &table.slist_free_all},
};

/* The names under which distributions have it. */
static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};

const struct curl *curl_open(const char **ret_why)
{
    void *library = NULL;

    if (opened)
        return &table;
    for (size_t i = 0; !library && i < ARRAY_SIZE(names); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    *ret_why = "libcurl is not installed: install libcurl4, or keep the state in a directory";
    if (library && !library_find(library, functions, ARRAY_SIZE(functions))) {
        *ret_why = "libcurl is too old: 7.32 or newer is needed";
        return NULL;
    }
    if (library && table.global_init(CURL_GLOBAL_EVERYTHING) != CURL_OK) {
        *ret_why = "libcurl cannot be used";
        return NULL;
    }
    opened = library != NULL;
    return library ? &table : NULL;
}
