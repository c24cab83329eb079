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
#include "base/err.h"
#include "proto/openssl_os.h"

/* From OpenSSL's headers, where they are macros. */
enum {
    CTRL_SET_MIN_PROTO_VERSION = 123,
    CTRL_MODE = 33,
    CTRL_SET_GROUPS_LIST = 92,
    MODE_RELEASE_BUFFERS = 0x10,
    VERSION_TLS1_3 = 0x0304,
    VERIFY_PEER = 1,
    ERROR_WANT_READ = 2,
    ERROR_ZERO_RETURN = 6,
    LINK_INDEX = 0, /* of the ex_data that OpenSSL reserves for applications */
};

enum {
    READ_SIZE = 16384,
    WRITE_MAX = 1 << 20,
    HANDSHAKE_MAX =
        96 * 1024, /* one read of a server, and far more than a handshake with the longest job id */
};

/* AES-128-GCM with SHA-256, by its number in a handshake. */
static const uint8_t psk_cipher[2] = {0x13, 0x01};
static const char identity_start[] = "crun1:";

struct tls_context {
    const struct openssl *o;
    struct openssl_ctx *ssl;
    bool server;
    secret_key_find *find_key;
    void *data;
    struct secret_key key;            /* client: what it proves */
    char identity[TLS_JOB_SIZE + 32]; /* client */
};

struct tls_link {
    struct tls_context *context;
    struct openssl_ssl *ssl;
    struct openssl_bio *in, *out; /* owned by ssl */
    bool established, finished, failed;
    size_t handshake_size; /* bytes that have arrived before it was established */
    bool known;            /* server: the identity has a key */
    enum key_purpose purpose;
    char job[TLS_JOB_SIZE];
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

    *session = session_of_key(o, ssl, &l->context->key);
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

/* ---- contexts ---- */

static bool configure(struct tls_context *c)
{
    const struct openssl *o = c->o;

    if (!o->SSL_CTX_ctrl(c->ssl, CTRL_SET_MIN_PROTO_VERSION, VERSION_TLS1_3, NULL) ||
        !o->SSL_CTX_set_ciphersuites(c->ssl, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") ||
        !o->SSL_CTX_ctrl(c->ssl, CTRL_SET_GROUPS_LIST, 0, (void *)(uintptr_t) "X25519:P-256") ||
        !o->SSL_CTX_set_num_tickets(c->ssl, 0))
        return false;
    (void)o->SSL_CTX_ctrl(c->ssl, CTRL_MODE, MODE_RELEASE_BUFFERS, NULL); /* returns the new mode */
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
    c->o = o;
    c->ssl = o->SSL_CTX_new(c->server ? o->TLS_server_method() : o->TLS_client_method());
    if (!c->ssl || !configure(c)) {
        (void)snprintf(why, TLS_ERROR_SIZE, "OpenSSL refuses TLS 1.3 with a pre-shared key: %s",
                       o->ERR_reason_error_string(o->ERR_get_error()));
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
    struct tls_context config = {.key = *key};
    int r;

    if (strlen(job) >= TLS_JOB_SIZE) {
        (void)snprintf(why, TLS_ERROR_SIZE, "the job's id is longer than %d bytes", TLS_JOB_SIZE - 1);
        return -EINVAL;
    }
    (void)snprintf(config.identity, sizeof(config.identity), "%s%s:%s", identity_start,
                   key_purpose_name(purpose), job); /* fits, see above */
    r = open_context(ret, &config, why);
    key_erase(&config.key, sizeof(config.key));
    return r;
}

int tls_context_server(struct tls_context **ret, secret_key_find *find_key, void *data,
                       char why[TLS_ERROR_SIZE])
{
    return open_context(ret, &(struct tls_context){.server = true, .find_key = find_key, .data = data}, why);
}

void tls_context_free(struct tls_context *c)
{
    if (!c)
        return;
    if (c->ssl)
        c->o->SSL_CTX_free(c->ssl);
    key_erase(&c->key, sizeof(c->key));
    free(c);
}

/* ---- links ---- */

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
    if (l->context->server)
        o->SSL_set_accept_state(l->ssl);
    else
        o->SSL_set_connect_state(l->ssl);
    return true;
}

int tls_link_create(struct tls_link **ret, struct tls_context *c)
{
    struct tls_link *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    l->context = c;
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
    free(l);
}

/* What OpenSSL wants sent. */
static int take_output(struct tls_link *l, struct buf *out)
{
    const struct openssl *o = l->context->o;
    size_t n = o->BIO_ctrl_pending(l->out);
    uint8_t *place = n > 0 ? buf_reserve(out, n) : NULL;

    if (n == 0)
        return 0;
    if (!place)
        return -ENOMEM;
    int taken = o->BIO_read(l->out, place, (int)n);
    buf_commit(out, taken > 0 ? (size_t)taken : 0);
    return 0;
}

static int end_by_error(struct tls_link *l, struct buf *out)
{
    const struct openssl *o = l->context->o;
    const char *reason = o->ERR_reason_error_string(o->ERR_get_error());
    const char *hint = "";

    if (!l->established && !l->context->server)
        hint = ": does the rendezvous have the same secret?";
    else if (!l->established && !l->known)
        hint = ": there is no secret for what it presents";
    else if (!l->established)
        hint = ": its secret is another one";
    if (!l->failed)
        (void)snprintf(l->error, sizeof(l->error), "TLS failed (%s)%s", reason ? reason : "no reason given",
                       hint);
    l->failed = true;
    o->ERR_clear_error();
    (void)take_output(l, out); /* an alert, which the peer can do without */
    return -EPROTO;
}

/* One step of the handshake, as far as the bytes go. */
static int shake_hands(struct tls_link *l)
{
    const struct openssl *o = l->context->o;
    int r = o->SSL_do_handshake(l->ssl);

    if (r != 1)
        return o->SSL_get_error(l->ssl, r) == ERROR_WANT_READ ? 0 : -EPROTO;
    /* Without the PSK nothing would have been proved. OpenSSL does not come here without one, as there are no
     * certificates; this is the line that holds if that changes. */
    if (!o->SSL_session_reused(l->ssl))
        return -EPROTO;
    l->established = true;
    return 0;
}

/* 0: all that is there was read. */
static int read_plain(struct tls_link *l, struct buf *plain)
{
    const struct openssl *o = l->context->o;

    for (;;) {
        uint8_t *place = buf_reserve(plain, READ_SIZE);

        if (!place)
            return -ENOMEM;
        int n = o->SSL_read(l->ssl, place, READ_SIZE);
        if (n > 0) {
            buf_commit(plain, (size_t)n);
            continue;
        }
        int error = o->SSL_get_error(l->ssl, n);
        l->finished = l->finished || error == ERROR_ZERO_RETURN;
        return error == ERROR_WANT_READ || error == ERROR_ZERO_RETURN ? 0 : -EPROTO;
    }
}

int tls_link_receive(struct tls_link *l, const void *bytes, size_t n, struct buf *plain, struct buf *out)
{
    const struct openssl *o = l->context->o;
    int r = 0;

    if (l->failed)
        return -EPROTO;
    if (l->finished)
        return 0; /* nothing may follow: it is dropped, and needs no memory */
    if (!l->established && (l->handshake_size += n) > HANDSHAKE_MAX)
        return end_by_error(l, out);
    if (n > 0 && o->BIO_write(l->in, bytes, (int)n) != (int)n)
        return -ENOMEM;
    if (!l->established)
        r = shake_hands(l);
    if (r == 0 && l->established)
        r = read_plain(l, plain);
    if (r == -EPROTO)
        return end_by_error(l, out);
    return r ? r : take_output(l, out);
}

int tls_link_send(struct tls_link *l, const void *bytes, size_t n, struct buf *out)
{
    const struct openssl *o = l->context->o;
    const uint8_t *p = bytes;

    if (l->failed || !l->established)
        return -EPROTO;
    while (n > 0) {
        int part = n < WRITE_MAX ? (int)n : WRITE_MAX;

        if (o->SSL_write(l->ssl, p, part) != part) /* a memory BIO takes all */
            return end_by_error(l, out);
        p += part;
        n -= (size_t)part;
    }
    return take_output(l, out);
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
