#pragma once

/*
 * The functions of libcurl that etcd_client_os.c uses, and their constants as in curl.h: its ABI has been the same since 7.17.
 * The library is opened when crund keeps its state in etcd: a program without that neither loads nor depends on it.
 */

#include <stddef.h>

struct curl_easy;
struct curl_list;

enum {
    CURL_GLOBAL_EVERYTHING = 3,
    CURL_OK = 0,
    CURL_NO_RESOLVE = 6,
    CURL_NO_CONNECT = 7,
    CURL_TIMED_OUT = 28,
    CURL_NO_TLS = 35,
    CURL_TLS_UNVERIFIED = 60,
    CURL_OPT_TIMEOUT_MS = 155, /* long */
    CURL_OPT_CONNECT_TIMEOUT_MS = 156,
    CURL_OPT_FRESH = 74,
    CURL_OPT_NO_SIGNAL = 99,
    CURL_OPT_NO_PROGRESS = 43,
    CURL_OPT_PROTOCOLS = 181,
    CURL_OPT_POST_SIZE = 60,
    CURL_OPT_WRITE_DATA = 10001, /* pointers */
    CURL_OPT_URL = 10002,
    CURL_OPT_POST_BYTES = 10015,
    CURL_OPT_HEADERS = 10023,
    CURL_OPT_CERT = 10025,
    CURL_OPT_PROGRESS_DATA = 10057,
    CURL_OPT_CA = 10065,
    CURL_OPT_KEY = 10087,
    CURL_OPT_NO_PROXY = 10177,
    CURL_OPT_WRITE = 20011, /* functions */
    CURL_OPT_PROGRESS = 20219,
    CURL_PROTOCOL_HTTP = 1,
    CURL_PROTOCOL_HTTPS = 2,
    CURL_INFO_STATUS = 0x200002,    /* long */
    CURL_INFO_SEND_TIME = 0x300006, /* double: seconds until the request could be sent */
};

struct curl {
    int (*global_init)(long flags);
    struct curl_easy *(*easy_init)(void);
    int (*easy_setopt)(struct curl_easy *e, int option, ...);
    int (*easy_perform)(struct curl_easy *e);
    int (*easy_getinfo)(struct curl_easy *e, int info, ...);
    void (*easy_cleanup)(struct curl_easy *e);
    const char *(*easy_strerror)(int code);
    struct curl_list *(*slist_append)(struct curl_list *list, const char *text);
    void (*slist_free_all)(struct curl_list *list);
};

/* NULL: it is not installed, or too old; *ret_why is a part of a sentence. For one thread at a time; it stays open. */
const struct curl *curl_open(const char **ret_why);
