#include "proto/certificates_openssl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/format.h"
#include "proto/openssl_os.h"
#include "proto/secret_os.h"

/* From OpenSSL's headers, where they are macros. */
enum { CTRL_CHAIN_CERT = 89, ADD_REFERENCE = 1, SUBJECT_ALT_NAME = 85 };

struct installing {
    const struct openssl *o;
    struct openssl_ctx *ctx;
    bool is_server;
    char *error;
};

static int __attribute__((format(printf, 2, 3))) fail_install(struct installing *i, const char *format, ...)
{
    (void)format_arguments(i->error, CERTIFICATE_ERROR_SIZE, format); /* truncated if long */
    i->o->ERR_clear_error();
    return -EINVAL;
}

static void format_day(const struct installing *i, const struct openssl_time *t, char ret[32])
{
    struct tm tm;

    if (!i->o->ASN1_TIME_to_tm(t, &tm) || strftime(ret, 32, "%Y-%m-%d %H:%M UTC", &tm) == 0)
        (void)snprintf(ret, 32, "an unknown day");
}

/* 0, or -EINVAL after a sentence. */
static int check_validity(struct installing *i, const struct openssl_x509 *x, const char *path)
{
    const struct openssl_time *from = i->o->X509_get0_notBefore(x), *to = i->o->X509_get0_notAfter(x);
    char day[32];

    if (i->o->X509_cmp_current_time(to) < 0) {
        format_day(i, to, day);
        return fail_install(i, "the certificate in %.300s has expired on %s: renew it", path, day);
    }
    if (i->o->X509_cmp_current_time(from) > 0) {
        format_day(i, from, day);
        return fail_install(i, "the certificate in %.300s is valid from %s on: look at this machine's clock",
                            path, day);
    }
    return 0;
}

/* ---- the own certificate ---- */

static int use_chain(struct installing *i, struct openssl_bio *pem, const char *path)
{
    const struct openssl *o = i->o;
    struct openssl_x509 *x = o->PEM_read_bio_X509(pem, NULL, NULL, NULL);

    if (!x)
        return fail_install(i, "there is no certificate in %.300s: it has to be in PEM format", path);
    int r = check_validity(i, x, path);
    if (r == 0 && !o->SSL_CTX_use_certificate(i->ctx, x))
        r = fail_install(i, "OpenSSL refuses the certificate in %.300s: %s", path, openssl_reason(i->o));
    o->X509_free(x);
    while (r == 0 && (x = o->PEM_read_bio_X509(pem, NULL, NULL, NULL))) {
        if (!o->SSL_CTX_ctrl(i->ctx, CTRL_CHAIN_CERT, ADD_REFERENCE, x))
            r = fail_install(i, "OpenSSL refuses an intermediate certificate in %.300s: %s", path,
                             openssl_reason(i->o));
        o->X509_free(x);
    }
    return r;
}

/* OpenSSL would ask for it on the terminal. */
static int give_no_passphrase(char *ret, int size, int is_writing, void *data)
{
    *(bool *)data = true;
    return 0;
}

static int use_key(struct installing *i, struct openssl_bio *pem, const struct certificate_paths *paths)
{
    const struct openssl *o = i->o;
    bool is_encrypted = false;

    secret_hide_process();
    struct openssl_pkey *key = o->PEM_read_bio_PrivateKey(pem, NULL, give_no_passphrase, &is_encrypted);
    bool fits = key && o->SSL_CTX_use_PrivateKey(i->ctx, key) && o->SSL_CTX_check_private_key(i->ctx);

    if (key)
        o->EVP_PKEY_free(key);
    if (is_encrypted)
        return fail_install(i, "the private key in %.300s has a passphrase: \"openssl pkey\" removes it",
                            paths->key);
    if (!key)
        return fail_install(i, "there is no private key in %.300s: it has to be in PEM format", paths->key);
    if (!fits)
        return fail_install(i, "the private key in %.200s does not belong to the certificate in %.200s",
                            paths->key, paths->cert);
    return 0;
}

/* ---- CAs ---- */

static int trust(struct installing *i, struct openssl_x509 *ca, const char *path)
{
    const struct openssl *o = i->o;

    if (o->X509_STORE_add_cert(o->SSL_CTX_get_cert_store(i->ctx), ca) &&
        (!i->is_server || o->SSL_CTX_add_client_CA(i->ctx, ca)))
        return 0;
    return fail_install(i, "OpenSSL refuses a certificate in %.300s: %s", path, openssl_reason(i->o));
}

/* Bundles have expired ones among others. */
static int trust_cas(struct installing *i, struct openssl_bio *pem, const char *path)
{
    const struct openssl *o = i->o;
    struct openssl_x509 *ca;
    unsigned n = 0, n_valid = 0;
    int r = 0;

    while (r == 0 && (ca = o->PEM_read_bio_X509(pem, NULL, NULL, NULL))) {
        n++;
        n_valid += check_validity(i, ca, path) == 0;
        r = trust(i, ca, path);
        o->X509_free(ca);
    }
    if (r == 0 && n == 0)
        r = fail_install(i, "there is no certificate in %.300s: it has to be in PEM format", path);
    return r == 0 && n_valid == 0 ? -EINVAL : r; /* the sentence is that of the last one */
}

/* ---- all ---- */

int certificates_install(struct openssl_ctx *ctx, const struct certificate_files *files, bool is_server,
                         char error[CERTIFICATE_ERROR_SIZE])
{
    struct installing i = {.ctx = ctx, .is_server = is_server, .error = error};
    const char *why;
    int r = -ENOMEM;

    i.o = openssl_get(&why);
    (void)snprintf(error, CERTIFICATE_ERROR_SIZE, "%s", i.o ? "out of memory" : why);
    if (!i.o)
        return -ENOSYS;
    struct openssl_bio *cert = i.o->BIO_new_mem_buf(files->cert.bytes, (int)files->cert.size);
    struct openssl_bio *key = i.o->BIO_new_mem_buf(files->key.bytes, (int)files->key.size);
    struct openssl_bio *ca =
        files->paths.ca ? i.o->BIO_new_mem_buf(files->ca.bytes, (int)files->ca.size) : NULL;
    if (cert && key && (ca || !files->paths.ca))
        r = use_chain(&i, cert, files->paths.cert);
    if (r == 0)
        r = use_key(&i, key, &files->paths);
    if (r == 0 && ca)
        r = trust_cas(&i, ca, files->paths.ca);
    /* These fail only for NULL. */
    (void)i.o->BIO_free(cert);
    (void)i.o->BIO_free(key);
    (void)i.o->BIO_free(ca);
    /* The end of a text has left an error in the memory of this thread. A side thread that ends during exit() would leak the memory:
     * OpenSSL has removed its destructors by then. */
    i.o->OPENSSL_thread_stop();
    return r;
}

/* ---- names ---- */

static void make_printable(char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '?';
}

void certificates_list_names(const struct openssl_x509 *x, char ret[CERTIFICATE_NAMES_SIZE])
{
    static const char cut[] = " ...";
    const char *why;
    const struct openssl *o = openssl_get(&why);
    int at = o->X509_get_ext_by_NID(x, SUBJECT_ALT_NAME, -1), n = 0;
    struct openssl_bio *text = at >= 0 ? o->BIO_new(o->BIO_s_mem()) : NULL;

    if (text && o->X509V3_EXT_print(text, o->X509_get_ext(x, at), 0, 0) == 1)
        n = o->BIO_read(text, ret, CERTIFICATE_NAMES_SIZE - 1);
    n = n > 0 ? n : 0;
    make_printable(ret, (size_t)n);
    ret[n] = '\0';
    if (n == CERTIFICATE_NAMES_SIZE - 1 && o->BIO_ctrl_pending(text) > 0)
        memcpy(ret + n + 1 - sizeof(cut), cut, sizeof(cut));
    if (text)
        (void)o->BIO_free(text); /* as all BIOs here */
}
