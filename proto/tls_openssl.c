/*
 * A link is an SSL object between two memory BIOs: bytes that arrived are written into one, and what OpenSSL has put into
 * the other is taken out after each call. OpenSSL never sees a socket.
 *
 * OpenSSL describes a PSK by a session object: the key, TLS 1.3, and a cipher that fixes the hash. Whatever suite is
 * negotiated has to have the same hash, so only suites with SHA-256 are allowed.
 */

#include "proto/tls_openssl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/address.h"
#include "proto/certificates_openssl.h"
#include "proto/key_memory_os.h"
#include "proto/openssl_os.h"
#include "proto/sealed_link_openssl.h"

/* From OpenSSL's headers, where they are macros. */
enum {
    CTRL_SET_MIN_PROTO_VERSION = 123,
    CTRL_MODE = 33,
    CTRL_SET_GROUPS_LIST = 92,
    MODE_RELEASE_BUFFERS = 0x10,
    VERSION_TLS1_3 = 0x0304,
    CTRL_SET_SESS_CACHE_MODE = 44,
    VERIFY_PEER = 1,
    VERIFY_FAIL_IF_NO_PEER_CERT = 2,
    HOST_NO_SUBJECT = 0x20,         /* of SSL_set_hostflags(): names are in subjectAltName alone */
    HOST_NO_PARTIAL_WILDCARD = 0x4, /* "*.example.org", not "n*.example.org" */
    ALPN_OK = 0,
    ALPN_ALERT = 2,
    VERIFY_OK = 0,
    VERIFY_NOT_YET_VALID = 9,
    VERIFY_EXPIRED = 10,
    VERIFY_HOST_MISMATCH = 62,
    VERIFY_ADDRESS_MISMATCH = 64,
    ERROR_NONE = 0,
    ERROR_WANT_READ = 2,
    ERROR_ZERO_RETURN = 6,
    LINK_INDEX = 0, /* of the ex_data that OpenSSL reserves for applications */
};

enum {
    READ_SIZE = 16384,
    WRITE_MAX = 1 << 20,
    ENDING_MAX = 64, /* an alert in TLS 1.3 has 24 bytes */
    /* Bytes that may have arrived before a handshake is done: of a peer with certificates, and of any other client. */
    HANDSHAKE_MAX = 96 * 1024,
    HELLO_MAX = 8 * 1024, /* a ClientHello has 1 KiB */
};

/* AES-128-GCM with SHA-256, by its number in a handshake. */
static const uint8_t psk_cipher[2] = {0x13, 0x01};
static const char identity_start[] = "crun1:";
static const char protocol_start[] = "crun1-";

enum { PROTOCOL_SIZE = 32, HOST_SIZE = 300, PATH_SHOWN = 128 };

struct tls_context {
    const struct openssl *o;
    struct openssl_ctx *ssl;
    unsigned n_owners;
    bool server;
    bool certified;
    bool has_cas;               /* certified server: clients have to have a certificate */
    enum key_purpose purpose;   /* client */
    char host[HOST_SIZE];       /* certified client: of the server's certificate; "": any */
    char cert_path[PATH_SHOWN]; /* of certificates, for messages, cut off */
    char ca_path[PATH_SHOWN];
    secret_key_find *find_key;
    void *data;
    struct secret_key *key;           /* client: what it proves; in key_memory_new()'s memory */
    char identity[TLS_JOB_SIZE + 32]; /* client */
};

struct tls_link {
    struct tls_context *context;
    const char *host; /* certified client: of the server's certificate; "": any */
    struct openssl_ssl *ssl;
    struct openssl_bio *in, *out; /* owned by ssl */
    struct openssl_session *psk;  /* own reference; client: what ssl was given last */
    struct sealed_link *sealed;   /* of a node's store, once established */
    bool established, finished, failed;
    size_t ending_size;    /* bytes that have come behind the sealed records */
    bool has_received;     /* plaintext */
    size_t handshake_size; /* bytes that have arrived before it was established */
    uint8_t start[8];      /* server: the first of these, as far as they have come */
    bool known;            /* server: the identity has a key, or the protocol is one of ours */
    enum key_purpose purpose;
    char job[TLS_JOB_SIZE];
    char names[CERTIFICATE_NAMES_SIZE]; /* client: of the server's certificate, where they do not fit */
    char error[TLS_ERROR_SIZE];
};

/* ---- keys ---- */

static struct openssl_session *session_of_key(const struct openssl *o, struct openssl_ssl *ssl,
                                              const struct secret_key *key)
{
    struct openssl_session *s = o->SSL_SESSION_new();

    if (s && o->SSL_SESSION_set1_master_key(s, key->bytes, KEY_SIZE) &&
        o->SSL_SESSION_set_cipher(s, o->SSL_CIPHER_find(ssl, psk_cipher)) &&
        o->SSL_SESSION_set_protocol_version(s, VERSION_TLS1_3))
        return s;
    if (s)
        o->SSL_SESSION_free(s);
    return NULL;
}

/* OpenSSL asks a client for its PSK, a second time with the hash that a HelloRetryRequest chose: ours is the only one that
 * the suites have. */
static int use_psk(struct openssl_ssl *ssl, const struct openssl_md *md, const uint8_t **identity,
                   size_t *size, struct openssl_session **session)
{
    const char *why;
    const struct openssl *o = openssl_get(&why);
    struct tls_link *l = o->SSL_get_ex_data(ssl, LINK_INDEX);

    *session = session_of_key(o, ssl, l->context->key);
    if (*session) {
        if (l->psk)
            o->SSL_SESSION_free(l->psk);
        l->psk = *session;
        (void)o->SSL_SESSION_up_ref(l->psk); /* fails only for a session that nothing owns */
    }
    *identity = (const uint8_t *)l->context->identity;
    *size = strlen(l->context->identity);
    return *session ? 1 : 0;
}

/* "crun1:PURPOSE:JOB", of any bytes. */
static bool parse_identity(const uint8_t *identity, size_t size, enum key_purpose *ret_purpose,
                           char job[TLS_JOB_SIZE])
{
    size_t at = sizeof(identity_start) - 1;

    if (size < at || memcmp(identity, identity_start, at) != 0 || memchr(identity, 0, size))
        return false;
    for (enum key_purpose p = 0; p < KEY_PURPOSE_COUNT; p++) {
        const char *name = key_purpose_name(p);
        size_t n = strlen(name);

        if (size - at <= n || memcmp(identity + at, name, n) != 0 || identity[at + n] != ':')
            continue;
        at += n + 1;
        if (size - at >= TLS_JOB_SIZE)
            return false;
        memcpy(job, identity + at, size - at);
        job[size - at] = '\0';
        *ret_purpose = p;
        return true;
    }
    return false;
}

/* An unknown identity is no error to OpenSSL: it goes on to certificates, of which there are none. */
static int find_psk(struct openssl_ssl *ssl, const uint8_t *identity, size_t size,
                    struct openssl_session **session)
{
    const char *why;
    const struct openssl *o = openssl_get(&why);
    struct tls_link *l = o->SSL_get_ex_data(ssl, LINK_INDEX);
    struct tls_context *c = l->context;
    struct secret_key key;

    *session = NULL;
    l->known =
        parse_identity(identity, size, &l->purpose, l->job) && c->find_key(c->data, l->purpose, l->job, &key);
    if (!l->known)
        return 1;
    *session = session_of_key(o, ssl, &key);
    key_erase(&key, sizeof(key));
    return *session ? 1 : 0;
}

/* ---- protocols ---- */

/* Its length in a byte, and the name. */
static size_t put_protocol(enum key_purpose purpose, uint8_t ret[PROTOCOL_SIZE])
{
    int n = snprintf((char *)ret + 1, PROTOCOL_SIZE - 1, "%s%s", protocol_start, key_purpose_name(purpose));

    ret[0] = (uint8_t)n; /* far below PROTOCOL_SIZE */
    return 1 + (size_t)n;
}

static bool is_protocol(enum key_purpose purpose, const uint8_t *name, size_t n)
{
    uint8_t expected[PROTOCOL_SIZE];
    size_t size = put_protocol(purpose, expected);

    return n == size - 1 && memcmp(name, expected + 1, n) == 0;
}

/* offered: names, each behind its length; OpenSSL has checked that they fit. The first that is ours counts. */
static int select_protocol(struct openssl_ssl *ssl, const uint8_t **ret, uint8_t *ret_size,
                           const uint8_t *offered, unsigned n, void *data)
{
    const struct tls_context *c = data;
    struct tls_link *l = c->o->SSL_get_ex_data(ssl, LINK_INDEX);

    for (unsigned at = 0; at < n; at += 1u + offered[at])
        for (enum key_purpose p = 0; p < KEY_PURPOSE_COUNT; p++)
            if (at + offered[at] < n && is_protocol(p, offered + at + 1, offered[at])) {
                l->known = true;
                l->purpose = p;
                *ret = offered + at + 1;
                *ret_size = offered[at];
                return ALPN_OK;
            }
    return ALPN_ALERT;
}

/* ---- contexts ---- */

static bool is_of_another_host(long result)
{
    return result == VERIFY_HOST_MISMATCH || result == VERIFY_ADDRESS_MISMATCH;
}

/* OpenSSL calls it for each certificate, and with !ok for a fault of one; what it has found is not changed. The certificate is freed
 * before the handshake fails. */
static int note_names(int ok, struct openssl_check *check)
{
    const char *why;
    const struct openssl *o = openssl_get(&why);

    if (!ok && is_of_another_host(o->X509_STORE_CTX_get_error(check))) {
        const struct openssl_ssl *ssl =
            o->X509_STORE_CTX_get_ex_data(check, o->SSL_get_ex_data_X509_STORE_CTX_idx());
        struct tls_link *l = o->SSL_get_ex_data(ssl, LINK_INDEX);

        certificates_list_names(o->X509_STORE_CTX_get0_cert(check), l->names);
    }
    return ok;
}

static bool configure_certificates(struct tls_context *c)
{
    const struct openssl *o = c->o;
    uint8_t protocol[PROTOCOL_SIZE];

    if (!c->server) {
        o->SSL_CTX_set_verify(c->ssl, VERIFY_PEER, note_names);
        return o->SSL_CTX_set_alpn_protos(c->ssl, protocol, (unsigned)put_protocol(c->purpose, protocol)) ==
               0;
    }
    if (c->has_cas)
        o->SSL_CTX_set_verify(c->ssl, VERIFY_PEER | VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    o->SSL_CTX_set_alpn_select_cb(c->ssl, select_protocol, c);
    (void)o->SSL_CTX_ctrl(c->ssl, CTRL_SET_SESS_CACHE_MODE, 0, NULL); /* returns the mode before */
    return true;
}

static bool configure(struct tls_context *c)
{
    const struct openssl *o = c->o;

    if (!o->SSL_CTX_ctrl(c->ssl, CTRL_SET_MIN_PROTO_VERSION, VERSION_TLS1_3, NULL) ||
        !o->SSL_CTX_set_ciphersuites(c->ssl, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") ||
        !o->SSL_CTX_ctrl(c->ssl, CTRL_SET_GROUPS_LIST, 0, (void *)(uintptr_t) "X25519:P-256") ||
        !o->SSL_CTX_set_num_tickets(c->ssl, 0))
        return false;
    /* Thousands of links are silent most of the time: a buffer of a link exists only while bytes are in it. */
    (void)o->SSL_CTX_ctrl(c->ssl, CTRL_MODE, MODE_RELEASE_BUFFERS, NULL); /* returns the new mode */
    if (c->certified)
        return configure_certificates(c);
    /* A server that does not know the PSK would have to show a certificate, and the client trusts none. */
    if (!c->server)
        o->SSL_CTX_set_verify(c->ssl, VERIFY_PEER, NULL);
    if (c->server)
        o->SSL_CTX_set_psk_find_session_callback(c->ssl, find_psk);
    else
        o->SSL_CTX_set_psk_use_session_callback(c->ssl, use_psk);
    return true;
}

static int open_context(struct tls_context **ret, const struct tls_context *config, char why[TLS_ERROR_SIZE])
{
    const char *why_not;
    const struct openssl *o = openssl_get(&why_not);
    struct tls_context *c = o ? calloc(1, sizeof(*c)) : NULL;

    if (!c) {
        (void)snprintf(why, TLS_ERROR_SIZE, "%s", o ? "out of memory" : why_not);
        return o ? -ENOMEM : -ENOSYS;
    }
    *c = *config;
    c->n_owners = 1;
    c->o = o;
    c->ssl = o->SSL_CTX_new(c->server ? o->TLS_server_method() : o->TLS_client_method());
    if (!c->ssl || !configure(c)) {
        (void)snprintf(why, TLS_ERROR_SIZE, "OpenSSL refuses TLS 1.3 with %s: %s",
                       c->certified ? "certificates" : "a pre-shared key", openssl_reason(o));
        o->ERR_clear_error();
        tls_context_free(c);
        return -ENOSYS;
    }
    *ret = c;
    return 0;
}

int tls_context_client(struct tls_context **ret, enum key_purpose purpose, const char *job,
                       const struct secret_key *key, char why[TLS_ERROR_SIZE])
{
    struct tls_context config = {.purpose = purpose}, *c;

    if (strlen(job) >= TLS_JOB_SIZE) {
        (void)snprintf(why, TLS_ERROR_SIZE, "the job's id is longer than %d bytes", TLS_JOB_SIZE - 1);
        return -EINVAL;
    }
    (void)snprintf(config.identity, sizeof(config.identity), "%s%s:%s", identity_start,
                   key_purpose_name(purpose), job); /* fits, see above */
    TRY(open_context(&c, &config, why));
    c->key = key_memory_new(sizeof(*c->key));
    if (!c->key) {
        (void)snprintf(why, TLS_ERROR_SIZE, "out of memory");
        tls_context_free(c);
        return -ENOMEM;
    }
    *c->key = *key;
    *ret = c;
    return 0;
}

int tls_context_server(struct tls_context **ret, secret_key_find *find_key, void *data,
                       char why[TLS_ERROR_SIZE])
{
    return open_context(ret, &(struct tls_context){.server = true, .find_key = find_key, .data = data}, why);
}

static int open_certified(struct tls_context **ret, struct tls_context *config,
                          const struct certificate_files *files, char error[CERTIFICATE_ERROR_SIZE])
{
    struct tls_context *c;

    config->certified = true;
    config->has_cas = files->paths.ca;
    (void)snprintf(config->cert_path, PATH_SHOWN, "%s",
                   files->paths.cert); /* cut off if long, as the other */
    (void)snprintf(config->ca_path, PATH_SHOWN, "%s", files->paths.ca ? files->paths.ca : "");
    TRY(open_context(&c, config, error));
    int r = certificates_install(c->ssl, files, c->server, error);
    if (r < 0)
        tls_context_free(c);
    else
        *ret = c;
    return r;
}

int tls_context_client_certified(struct tls_context **ret, enum key_purpose purpose, const char *host,
                                 const struct certificate_files *files, char error[CERTIFICATE_ERROR_SIZE])
{
    struct tls_context config = {.purpose = purpose};

    if (host && strlen(host) >= HOST_SIZE) {
        (void)snprintf(error, CERTIFICATE_ERROR_SIZE, "the endpoint's name is longer than %d bytes",
                       HOST_SIZE - 1);
        return -ENAMETOOLONG;
    }
    (void)snprintf(config.host, HOST_SIZE, "%s", host ? host : ""); /* fits, see above */
    return open_certified(ret, &config, files, error);
}

int tls_context_server_certified(struct tls_context **ret, const struct certificate_files *files,
                                 char error[CERTIFICATE_ERROR_SIZE])
{
    struct tls_context config = {.server = true};

    return open_certified(ret, &config, files, error);
}

struct tls_context *tls_context_ref(struct tls_context *c)
{
    c->n_owners++;
    return c;
}

void tls_context_free(struct tls_context *c)
{
    if (!c || --c->n_owners > 0)
        return;
    if (c->ssl)
        c->o->SSL_CTX_free(c->ssl);
    key_memory_free(c->key, sizeof(*c->key));
    free(c);
}

/* ---- links ---- */

/* An address in the certificate is of another kind than a name that looks like one. */
static bool expect_host(struct tls_link *l)
{
    const struct openssl *o = l->context->o;
    const char *host = l->host;

    if (!l->context->certified || !host[0])
        return true;
    o->SSL_set_hostflags(l->ssl, HOST_NO_SUBJECT | HOST_NO_PARTIAL_WILDCARD);
    return address_is_numeric(host) ? o->X509_VERIFY_PARAM_set1_ip_asc(o->SSL_get0_param(l->ssl), host)
                                    : o->SSL_set1_host(l->ssl, host);
}

static bool open_link(struct tls_link *l)
{
    const struct openssl *o = l->context->o;

    l->ssl = o->SSL_new(l->context->ssl);
    l->in = o->BIO_new(o->BIO_s_mem());
    l->out = o->BIO_new(o->BIO_s_mem());
    if (!l->ssl || !l->in || !l->out || !o->SSL_set_ex_data(l->ssl, LINK_INDEX, l)) {
        if (l->in)
            (void)o->BIO_free(l->in); /* fails only for NULL */
        if (l->out)
            (void)o->BIO_free(l->out); /* as above */
        return false;
    }
    o->SSL_set_bio(l->ssl, l->in, l->out);
    if (!expect_host(l))
        return false;
    if (l->context->server)
        o->SSL_set_accept_state(l->ssl);
    else
        o->SSL_set_connect_state(l->ssl);
    return true;
}

int tls_link_create(struct tls_link **ret, struct tls_context *c, const char *host)
{
    if (host && strlen(host) >= HOST_SIZE)
        return -ENAMETOOLONG;

    struct tls_link *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    l->context = tls_context_ref(c);
    l->host = host ? host : c->host;
    if (!open_link(l)) {
        tls_link_free(l);
        return -ENOMEM;
    }
    *ret = l;
    return 0;
}

void tls_link_free(struct tls_link *l)
{
    if (!l)
        return;
    if (l->ssl)
        l->context->o->SSL_free(l->ssl);
    if (l->psk)
        l->context->o->SSL_SESSION_free(l->psk);
    sealed_link_free(l->sealed);
    tls_context_free(l->context);
    free(l);
}

/* Appends all bytes that are in one of OpenSSL's BIOs. 0 or -ENOMEM. */
static int drain(const struct tls_link *l, struct openssl_bio *from, struct buf *to)
{
    const struct openssl *o = l->context->o;
    size_t n = o->BIO_ctrl_pending(from);
    uint8_t *place = n > 0 ? buf_reserve(to, n) : NULL;

    if (n == 0)
        return 0;
    if (!place)
        return -ENOMEM;
    int taken = o->BIO_read(from, place, (int)n);
    buf_commit(to, taken > 0 ? (size_t)taken : 0);
    return 0;
}

/* What OpenSSL wants sent. */
static int take_output(struct tls_link *l, struct buf *out)
{
    return drain(l, l->out, out);
}

/* ---- errors ---- */

static const char *hint_of_key(const struct tls_link *l, const char *reason)
{
    if (l->established)
        return "";
    if (!l->context->server && strcmp(reason, "certificate verify failed") == 0)
        return ": it has a certificate, and this crun has none: give crun --tls-cert, --tls-key and --tls-ca";
    if (!l->context->server)
        return ": does the rendezvous have the same secret?";
    return l->known ? ": its secret is another one" : ": there is no secret for what it presents";
}

/* What is wrong with the server's certificate, and the remedy. */
static void describe_server(struct tls_link *l, long result)
{
    const struct tls_context *c = l->context;
    char *to = l->error;

    if (is_of_another_host(result))
        (void)snprintf(to, TLS_ERROR_SIZE,
                       "its certificate is not for %.100s%s%s: name the endpoint as the certificate's "
                       "subjectAltName does, or give it one for that name",
                       l->host, l->names[0] ? ", but for " : ", and for no host at all", l->names);
    else if (result == VERIFY_EXPIRED)
        (void)snprintf(to, TLS_ERROR_SIZE, "its certificate has expired: renew it, and send SIGHUP to crund");
    else if (result == VERIFY_NOT_YET_VALID)
        (void)snprintf(to, TLS_ERROR_SIZE, "its certificate is not valid yet: compare the clocks");
    else
        (void)snprintf(to, TLS_ERROR_SIZE, "no CA in %.100s (--tls-ca) stands for its certificate: %s",
                       c->ca_path, c->o->X509_verify_cert_error_string(result));
}

/* Alerts about a certificate: "tlsv1 alert unknown ca", "sslv3 alert certificate expired". */
static bool is_about_certificates(const char *reason)
{
    return strstr(reason, "alert") && (strstr(reason, "certificate") || strstr(reason, "unknown ca"));
}

static void describe_certified(struct tls_link *l, const char *reason)
{
    const struct tls_context *c = l->context;
    long result = c->o->SSL_get_verify_result(l->ssl);

    if (c->server && result != VERIFY_OK)
        (void)snprintf(l->error, TLS_ERROR_SIZE, "its certificate is not accepted: %s",
                       c->o->X509_verify_cert_error_string(result));
    else if (result != VERIFY_OK)
        describe_server(l, result);
    else if (!c->server && !l->has_received && is_about_certificates(reason))
        (void)snprintf(l->error, TLS_ERROR_SIZE,
                       "it does not accept the certificate %.100s (--tls-cert): %.60s", c->cert_path, reason);
    else
        (void)snprintf(l->error, TLS_ERROR_SIZE, "TLS failed (%s)%s", reason,
                       l->established ? ""
                       : c->server    ? ": it is no agent of crun with a certificate"
                                      : ": does the rendezvous have a certificate (--tls-cert)?");
}

static int end_by_error(struct tls_link *l, struct buf *out)
{
    const struct openssl *o = l->context->o;
    const char *reason = openssl_reason(o);

    if (!l->failed && l->context->certified)
        describe_certified(l, reason);
    else if (!l->failed)
        (void)snprintf(l->error, sizeof(l->error), "TLS failed (%s)%s", reason, hint_of_key(l, reason));
    l->failed = true;
    o->ERR_clear_error();
    (void)take_output(l, out); /* an alert, which the peer can do without */
    return -EPROTO;
}

/* ---- handshake and data ---- */

/* OpenSSL comes to the end of a handshake without a proof only if this file has configured it wrongly; these lines hold
 * then. */
static bool has_proof(const struct tls_link *l)
{
    const struct tls_context *c = l->context;
    const uint8_t *protocol;
    unsigned n;

    if (!c->certified)
        return c->o->SSL_session_reused(l->ssl); /* the PSK */
    if (c->has_cas &&
        (c->o->SSL_get_verify_result(l->ssl) != VERIFY_OK || !c->o->SSL_get0_verified_chain(l->ssl)))
        return false;
    if (c->server)
        return l->known;
    c->o->SSL_get0_alpn_selected(l->ssl, &protocol, &n);
    return is_protocol(c->purpose, protocol, n);
}

/* OpenSSL derives what it needs of the PSK where it gets it, and would keep it for as long as the connection lasts, to resume that, for
 * which there are no tickets here. So it is overwritten after each step: a process that is forked meanwhile has none. */
static void forget_psk(const struct tls_link *l)
{
    static const uint8_t zeros[KEY_SIZE];
    const struct openssl *o = l->context->o;
    struct openssl_session *s = l->context->server ? o->SSL_get_session(l->ssl) : l->psk;

    if (s && !l->context->certified)
        (void)o->SSL_SESSION_set1_master_key(s, zeros, sizeof(zeros)); /* of a valid size */
}

static enum key_purpose purpose_of(const struct tls_link *l)
{
    return l->context->server ? l->purpose : l->context->purpose;
}

/* ---- sealed records behind the handshake ---- */

/* Of the records that the client or the server sends (RFC 8446, 7.5): it has the freshness and the proof of the handshake. */
static bool export_secret(const struct tls_link *l, bool of_server, struct secret_key *ret)
{
    static const char label[] = "EXPORTER-crun-relay";
    const char *sender = of_server ? "server" : "client";

    return l->context->o->SSL_export_keying_material(l->ssl, ret->bytes, KEY_SIZE, label, sizeof(label) - 1,
                                                     (const uint8_t *)sender, strlen(sender), true) == 1;
}

/* 0, -ENOMEM or -EPROTO. */
static int start_sealing(struct tls_link *l)
{
    struct secret_key of_sent, of_received;
    bool server = l->context->server;
    int r = -EPROTO;

    if (export_secret(l, server, &of_sent) && export_secret(l, !server, &of_received))
        r = sealed_link_create(&l->sealed, &of_sent, &of_received);
    key_erase(&of_sent, sizeof(of_sent));
    key_erase(&of_received, sizeof(of_received));
    return r == -ENOMEM || r == 0 ? r : -EPROTO;
}

static void fail_link(struct tls_link *l, const char *why)
{
    (void)snprintf(l->error, sizeof(l->error), "%s", why); /* shorter */
    l->failed = true;
}

static const char other_version[] = "it sends records of TLS: is it another version of crun?";

/* Behind the sealed records only OpenSSL's end of the link can come, or its alert: one short record. OpenSSL would take others without
 * end, and reply to some. */
static int take_end(struct tls_link *l, const struct buf *rest)
{
    const struct openssl *o = l->context->o;
    uint8_t byte;

    l->ending_size += buf_size(rest);
    if (l->ending_size > ENDING_MAX) {
        fail_link(l, other_version);
        return -EPROTO;
    }
    if (o->BIO_write(l->in, buf_bytes(rest), (int)buf_size(rest)) != (int)buf_size(rest))
        return -ENOMEM;
    int n = o->SSL_read(l->ssl, &byte, 1);
    int error = n > 0 ? ERROR_NONE : o->SSL_get_error(l->ssl, n);
    if (n > 0)
        fail_link(l, other_version);
    l->finished = error == ERROR_ZERO_RETURN;
    return l->finished || error == ERROR_WANT_READ ? 0 : -EPROTO;
}

static int receive_sealed(struct tls_link *l, const void *bytes, size_t n, struct buf *plain)
{
    _cleanup_(buf_finish) struct buf rest = {0};
    size_t before = buf_size(plain);
    int r = l->ending_size > 0 ? buf_append(&rest, bytes, n)
                               : sealed_link_receive(l->sealed, bytes, n, plain, &rest);

    l->has_received = l->has_received || buf_size(plain) > before;
    if (r == -EBADMSG) {
        fail_link(l, "a record was changed on the way, or is not the next one");
        r = -EPROTO;
    }
    if (r == 0 && buf_size(&rest) > 0)
        r = take_end(l, &rest);
    return r;
}

/* What has come behind the handshake. OpenSSL has read whole records of it alone, and the rest is still in its BIO. */
static int receive_behind_handshake(struct tls_link *l, struct buf *plain)
{
    _cleanup_(buf_finish) struct buf bytes = {0};

    TRY(drain(l, l->in, &bytes));
    if (buf_size(&bytes) > 0)
        TRY(receive_sealed(l, buf_bytes(&bytes), buf_size(&bytes), plain));
    return 0;
}

/* One step of the handshake, as far as the bytes go. */
static int shake_hands(struct tls_link *l)
{
    const struct openssl *o = l->context->o;
    int r = o->SSL_do_handshake(l->ssl);

    forget_psk(l);
    if (r != 1)
        return o->SSL_get_error(l->ssl, r) == ERROR_WANT_READ ? 0 : -EPROTO;
    if (!has_proof(l))
        return -EPROTO;
    r = purpose_of(l) == KEY_RELAY ? start_sealing(l) : 0;
    l->established = r == 0;
    return r;
}

/* 0: all that is there was read. A small record needs neither the room of a large one nor a second call that finds nothing:
 * a record is longer than its content, so one that leaves room was read to its end. One that fills its room is a record
 * whose beginning OpenSSL has had before: the rest of it is read as a large one. */
static int read_plain(struct tls_link *l, struct buf *plain)
{
    const struct openssl *o = l->context->o;
    bool is_full = false;

    for (;;) {
        size_t pending = o->BIO_ctrl_pending(l->in);
        size_t room = pending < READ_SIZE && !is_full ? pending + 1 : READ_SIZE;
        uint8_t *place = buf_reserve(plain, room);

        if (!place)
            return -ENOMEM;
        int n = o->SSL_read(l->ssl, place, (int)room);
        if (n > 0) {
            buf_commit(plain, (size_t)n);
            l->has_received = true;
            is_full = (size_t)n == room;
            if (!is_full && o->BIO_ctrl_pending(l->in) == 0)
                return 0;
            continue;
        }
        int error = o->SSL_get_error(l->ssl, n);
        l->finished = l->finished || error == ERROR_ZERO_RETURN;
        return error == ERROR_WANT_READ || error == ERROR_ZERO_RETURN ? 0 : -EPROTO;
    }
}

/* The bytes are in OpenSSL's BIO. */
static int receive_tls(struct tls_link *l, struct buf *plain)
{
    int r = l->established ? 0 : shake_hands(l);

    if (r < 0 || !l->established)
        return r;
    return l->sealed ? receive_behind_handshake(l, plain) : read_plain(l, plain);
}

/* OpenSSL allocates a ClientHello by the size in its head, which may be 128 KiB: that has to be in the first record, and small. */
static bool is_start_acceptable(struct tls_link *l, const uint8_t *bytes, size_t n)
{
    const uint8_t *start = l->start; /* type, version[2], size[2] of a record, type, size[3] */

    for (size_t i = 0; i < n && l->handshake_size + i < sizeof(l->start); i++)
        l->start[l->handshake_size + i] = bytes[i];
    return l->handshake_size + n < sizeof(l->start) ||
           (start[3] * 256 + start[4] > 3 && start[6] == 0 && start[7] < HELLO_MAX / 256);
}

static size_t handshake_max(const struct tls_context *c)
{
    return c->server && !c->has_cas ? HELLO_MAX : HANDSHAKE_MAX;
}

int tls_link_receive(struct tls_link *l, const void *bytes, size_t n, struct buf *plain, struct buf *out)
{
    const struct openssl *o = l->context->o;
    bool is_sealed = l->sealed;
    int r;

    if (l->failed)
        return -EPROTO;
    if (l->finished)
        return 0; /* nothing may follow: it is dropped, and needs no memory */
    if (l->context->server && !l->established && !is_start_acceptable(l, bytes, n)) {
        (void)snprintf(l->error, sizeof(l->error),
                       "TLS failed (the first record has no ClientHello of at most %d bytes)", HELLO_MAX);
        l->failed = true;
        return -EPROTO;
    }
    if (is_sealed)
        r = n > 0 ? receive_sealed(l, bytes, n, plain) : 0;
    else if (n > 0 && o->BIO_write(l->in, bytes, (int)n) != (int)n)
        r = -ENOMEM;
    else
        r = receive_tls(l, plain);
    if (r == 0 && !l->established && (l->handshake_size += n) > handshake_max(l->context))
        r = -EPROTO;
    if (r == -EPROTO)
        return end_by_error(l, out);
    return r || is_sealed ? r : take_output(l, out);
}

static int send_tls(struct tls_link *l, const uint8_t *p, size_t n, struct buf *out)
{
    while (n > 0) {
        int part = n < WRITE_MAX ? (int)n : WRITE_MAX;

        if (l->context->o->SSL_write(l->ssl, p, part) != part) /* a memory BIO takes all */
            return end_by_error(l, out);
        p += part;
        n -= (size_t)part;
    }
    return take_output(l, out);
}

int tls_link_send(struct tls_link *l, const void *bytes, size_t n, struct buf *out)
{
    if (l->failed || !l->established)
        return -EPROTO;
    if (!l->sealed)
        return send_tls(l, bytes, n, out);
    int r = sealed_link_send(l->sealed, bytes, n, out);
    if (r < 0)
        fail_link(l, r == -ENOMEM ? "out of memory" : "OpenSSL cannot encrypt");
    return r == -EIO ? -EPROTO : r;
}

int tls_link_finish(struct tls_link *l, struct buf *out)
{
    if (l->failed || !l->established)
        return 0;
    (void)l->context->o->SSL_shutdown(l->ssl); /* 0: the peer's notice is still to come */
    return take_output(l, out);
}

bool tls_link_is_established(const struct tls_link *l)
{
    return l->established && !l->failed;
}

bool tls_link_is_certified(const struct tls_link *l)
{
    return l->context->certified;
}

bool tls_link_is_finished(const struct tls_link *l)
{
    return l->finished;
}

enum key_purpose tls_link_purpose(const struct tls_link *l)
{
    return l->purpose;
}

const char *tls_link_job(const struct tls_link *l)
{
    return l->job;
}

const char *tls_link_error(const struct tls_link *l)
{
    return l->error;
}
