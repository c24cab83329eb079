#include "proto/openssl_os.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

struct library_pair {
    const char *ssl, *crypto;
};

/* The newest first. */
static const struct library_pair versions[] = {
    {"libssl.so.3", "libcrypto.so.3"},
    {"libssl.so.1.1", "libcrypto.so.1.1"},
};

static struct openssl table;
static char why_not[256];
static bool opened;

static bool find_function(void *library, const char *name, void *ret)
{
    void *found = dlsym(library, name);

    *(void **)ret = found;
    if (!found)
        (void)snprintf(why_not, sizeof(why_not), "OpenSSL lacks %s: install OpenSSL 3 or 1.1.1", name);
    return found;
}

static bool fill_table(void *ssl, void *crypto)
{
    bool ok = true;

#define OPENSSL_FIND_SSL(result, name, parameters) ok = ok && find_function(ssl, #name, &table.name);
#define OPENSSL_FIND_CRYPTO(result, name, parameters) ok = ok && find_function(crypto, #name, &table.name);
    OPENSSL_SSL_FUNCTIONS(OPENSSL_FIND_SSL)
    OPENSSL_CRYPTO_FUNCTIONS(OPENSSL_FIND_CRYPTO)
    return ok;
}

static bool open_version(const struct library_pair *v)
{
    void *crypto = dlopen(v->crypto, RTLD_NOW | RTLD_LOCAL);
    void *ssl = crypto ? dlopen(v->ssl, RTLD_NOW | RTLD_LOCAL) : NULL;

    if (ssl && fill_table(ssl, crypto))
        return true;
    if (!ssl)
        (void)snprintf(why_not, sizeof(why_not),
                       "OpenSSL is not installed (%s): install libssl3, or run without a secret", v->ssl);
    if (ssl)
        (void)dlclose(ssl); /* nothing of it was called */
    if (crypto)
        (void)dlclose(crypto);
    return false;
}

const struct openssl *openssl_get(const char **ret_why)
{
    for (size_t i = 0; i < ARRAY_SIZE(versions) && !opened; i++)
        opened = open_version(&versions[i]);
    *ret_why = opened ? NULL : why_not;
    return opened ? &table : NULL;
}

const char *openssl_reason(const struct openssl *o)
{
    const char *reason = o->ERR_reason_error_string(o->ERR_get_error());

    return reason ? reason : "no reason given";
}
