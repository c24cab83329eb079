#pragma once

/*
 * OpenSSL, opened at run time when a job has a secret or certificates: a program that needs none does not load it and does
 * not depend on it. Both 3.x and 1.1.1 have the functions of this table with these types; nothing else of OpenSSL is used.
 *
 * openssl_get() may be called from one thread at a time until it has succeeded, and then from any. The libraries stay open
 * until the process ends.
 */

#include <stddef.h>
#include <stdint.h>

struct openssl_ctx;
struct openssl_ssl;
struct openssl_session;
struct openssl_bio;
struct openssl_method;
struct openssl_bio_method;
struct openssl_cipher;
struct openssl_aead;
struct openssl_aead_ctx;
struct openssl_engine;
struct openssl_md;
struct openssl_x509;
struct openssl_pkey;
struct openssl_store;
struct openssl_chain;
struct openssl_verify;
struct openssl_time;
struct openssl_check;
struct openssl_extension;
struct tm;

typedef int openssl_psk_use(struct openssl_ssl *ssl, const struct openssl_md *md, const uint8_t **identity,
                            size_t *identity_size, struct openssl_session **session);
typedef int openssl_psk_find(struct openssl_ssl *ssl, const uint8_t *identity, size_t identity_size,
                             struct openssl_session **session);
typedef int openssl_alpn_select(struct openssl_ssl *ssl, const uint8_t **ret, uint8_t *ret_size,
                                const uint8_t *offered, unsigned n, void *data);
typedef int openssl_passphrase(char *ret, int size, int is_writing, void *data);

/* X(result, name, parameters), by library. */
#define OPENSSL_SSL_FUNCTIONS(X)                                                                             \
    X(const struct openssl_method *, TLS_client_method, (void))                                              \
    X(const struct openssl_method *, TLS_server_method, (void))                                              \
    X(struct openssl_ctx *, SSL_CTX_new, (const struct openssl_method *method))                              \
    X(void, SSL_CTX_free, (struct openssl_ctx * c))                                                          \
    X(long, SSL_CTX_ctrl, (struct openssl_ctx * c, int what, long number, void *p))                          \
    X(int, SSL_CTX_set_ciphersuites, (struct openssl_ctx * c, const char *suites))                           \
    X(int, SSL_CTX_set_num_tickets, (struct openssl_ctx * c, size_t n))                                      \
    X(void, SSL_CTX_set_verify,                                                                              \
      (struct openssl_ctx * c, int mode, int (*check)(int ok, struct openssl_check *)))                      \
    X(void, SSL_CTX_set_psk_use_session_callback, (struct openssl_ctx * c, openssl_psk_use * use))           \
    X(void, SSL_CTX_set_psk_find_session_callback, (struct openssl_ctx * c, openssl_psk_find * find))        \
    X(struct openssl_ssl *, SSL_new, (struct openssl_ctx * c))                                               \
    X(void, SSL_free, (struct openssl_ssl * s))                                                              \
    X(int, SSL_set_ex_data, (struct openssl_ssl * s, int index, void *data))                                 \
    X(void *, SSL_get_ex_data, (const struct openssl_ssl *s, int index))                                     \
    X(void, SSL_set_accept_state, (struct openssl_ssl * s))                                                  \
    X(void, SSL_set_connect_state, (struct openssl_ssl * s))                                                 \
    X(void, SSL_set_bio, (struct openssl_ssl * s, struct openssl_bio * in, struct openssl_bio * out))        \
    X(int, SSL_do_handshake, (struct openssl_ssl * s))                                                       \
    X(int, SSL_read, (struct openssl_ssl * s, void *to, int n))                                              \
    X(int, SSL_write, (struct openssl_ssl * s, const void *from, int n))                                     \
    X(int, SSL_shutdown, (struct openssl_ssl * s))                                                           \
    X(int, SSL_get_error, (const struct openssl_ssl *s, int result))                                         \
    X(int, SSL_export_keying_material,                                                                       \
      (struct openssl_ssl * s, uint8_t * ret, size_t ret_size, const char *label, size_t label_size,         \
       const uint8_t *context, size_t context_size, int has_context))                                        \
    X(int, SSL_session_reused, (const struct openssl_ssl *s))                                                \
    X(const struct openssl_cipher *, SSL_CIPHER_find, (struct openssl_ssl * s, const uint8_t *id))           \
    X(struct openssl_session *, SSL_SESSION_new, (void))                                                     \
    X(int, SSL_SESSION_up_ref, (struct openssl_session * s))                                                 \
    X(struct openssl_session *, SSL_get_session, (const struct openssl_ssl *s))                              \
    X(void, SSL_SESSION_free, (struct openssl_session * s))                                                  \
    X(int, SSL_SESSION_set1_master_key, (struct openssl_session * s, const uint8_t *key, size_t n))          \
    X(int, SSL_SESSION_set_cipher, (struct openssl_session * s, const struct openssl_cipher *cipher))        \
    X(int, SSL_SESSION_set_protocol_version, (struct openssl_session * s, int version))                      \
    X(int, SSL_CTX_use_certificate, (struct openssl_ctx * c, struct openssl_x509 * x))                       \
    X(int, SSL_CTX_use_PrivateKey, (struct openssl_ctx * c, struct openssl_pkey * key))                      \
    X(int, SSL_CTX_check_private_key, (const struct openssl_ctx *c))                                         \
    X(struct openssl_store *, SSL_CTX_get_cert_store, (const struct openssl_ctx *c))                         \
    X(int, SSL_CTX_add_client_CA, (struct openssl_ctx * c, struct openssl_x509 * x))                         \
    X(int, SSL_CTX_set_alpn_protos, (struct openssl_ctx * c, const uint8_t *names, unsigned n))              \
    X(void, SSL_CTX_set_alpn_select_cb, (struct openssl_ctx * c, openssl_alpn_select * select, void *data))  \
    X(void, SSL_get0_alpn_selected, (const struct openssl_ssl *s, const uint8_t **ret, unsigned *ret_size))  \
    X(int, SSL_set1_host, (struct openssl_ssl * s, const char *name))                                        \
    X(void, SSL_set_hostflags, (struct openssl_ssl * s, unsigned flags))                                     \
    X(struct openssl_verify *, SSL_get0_param, (struct openssl_ssl * s))                                     \
    X(int, SSL_get_ex_data_X509_STORE_CTX_idx, (void))                                                       \
    X(long, SSL_get_verify_result, (const struct openssl_ssl *s))                                            \
    X(struct openssl_chain *, SSL_get0_verified_chain, (const struct openssl_ssl *s))

#define OPENSSL_CRYPTO_FUNCTIONS(X)                                                                          \
    X(struct openssl_bio *, BIO_new, (const struct openssl_bio_method *kind))                                \
    X(const struct openssl_bio_method *, BIO_s_mem, (void))                                                  \
    X(int, BIO_free, (struct openssl_bio * b))                                                               \
    X(int, BIO_read, (struct openssl_bio * b, void *to, int n))                                              \
    X(int, BIO_write, (struct openssl_bio * b, const void *from, int n))                                     \
    X(size_t, BIO_ctrl_pending, (struct openssl_bio * b))                                                    \
    X(struct openssl_bio *, BIO_new_mem_buf, (const void *bytes, int n))                                     \
    X(struct openssl_x509 *, PEM_read_bio_X509,                                                              \
      (struct openssl_bio * b, struct openssl_x509 * *reused, openssl_passphrase * ask, void *data))         \
    X(struct openssl_pkey *, PEM_read_bio_PrivateKey,                                                        \
      (struct openssl_bio * b, struct openssl_pkey * *reused, openssl_passphrase * ask, void *data))         \
    X(void, X509_free, (struct openssl_x509 * x))                                                            \
    X(void, EVP_PKEY_free, (struct openssl_pkey * key))                                                      \
    X(const struct openssl_time *, X509_get0_notBefore, (const struct openssl_x509 *x))                      \
    X(const struct openssl_time *, X509_get0_notAfter, (const struct openssl_x509 *x))                       \
    X(int, X509_cmp_current_time, (const struct openssl_time *t))                                            \
    X(int, ASN1_TIME_to_tm, (const struct openssl_time *t, struct tm *ret))                                  \
    X(int, X509_STORE_add_cert, (struct openssl_store * s, struct openssl_x509 * x))                         \
    X(void *, X509_STORE_CTX_get_ex_data, (const struct openssl_check *check, int index))                    \
    X(int, X509_STORE_CTX_get_error, (const struct openssl_check *check))                                    \
    X(struct openssl_x509 *, X509_STORE_CTX_get0_cert, (const struct openssl_check *check))                  \
    X(int, X509_get_ext_by_NID, (const struct openssl_x509 *x, int kind, int behind))                        \
    X(struct openssl_extension *, X509_get_ext, (const struct openssl_x509 *x, int at))                      \
    X(int, X509V3_EXT_print,                                                                                 \
      (struct openssl_bio * b, struct openssl_extension * e, unsigned long flags, int indent))               \
    X(int, X509_VERIFY_PARAM_set1_ip_asc, (struct openssl_verify * v, const char *address))                  \
    X(const char *, X509_verify_cert_error_string, (long result))                                            \
    X(unsigned long, ERR_get_error, (void))                                                                  \
    X(void, ERR_clear_error, (void))                                                                         \
    X(void, OPENSSL_thread_stop, (void))                                                                     \
    X(const char *, ERR_reason_error_string, (unsigned long error))                                          \
    X(const struct openssl_md *, EVP_sha256, (void))                                                         \
    X(int, EVP_Digest,                                                                                       \
      (const void *data, size_t n, uint8_t *ret, unsigned *ret_size, const struct openssl_md *md,            \
       struct openssl_engine *engine))                                                                       \
    X(uint8_t *, HMAC,                                                                                       \
      (const struct openssl_md *md, const void *key, int key_size, const uint8_t *data, size_t n,            \
       uint8_t *ret, unsigned *ret_size))                                                                    \
    X(struct openssl_aead_ctx *, EVP_CIPHER_CTX_new, (void))                                                 \
    X(void, EVP_CIPHER_CTX_free, (struct openssl_aead_ctx * c))                                              \
    X(const struct openssl_aead *, EVP_aes_256_gcm, (void))                                                  \
    X(const struct openssl_aead *, EVP_chacha20_poly1305, (void))                                            \
    X(int, EVP_CipherInit_ex,                                                                                \
      (struct openssl_aead_ctx * c, const struct openssl_aead *cipher, struct openssl_engine *engine,        \
       const uint8_t *key, const uint8_t *iv, int encrypts))                                                 \
    X(int, EVP_CipherUpdate,                                                                                 \
      (struct openssl_aead_ctx * c, uint8_t * to, int *ret_size, const uint8_t *from, int n))                \
    X(int, EVP_CipherFinal_ex, (struct openssl_aead_ctx * c, uint8_t * to, int *ret_size))                   \
    X(int, EVP_CIPHER_CTX_ctrl, (struct openssl_aead_ctx * c, int what, int number, void *p))                \
    X(int, CRYPTO_memcmp, (const void *a, const void *b, size_t n))                                          \
    X(void, OPENSSL_cleanse, (void *p, size_t n))

struct openssl {
#define OPENSSL_MEMBER(result, name, parameters) result(*name) parameters;
    OPENSSL_SSL_FUNCTIONS(OPENSSL_MEMBER)
    OPENSSL_CRYPTO_FUNCTIONS(OPENSSL_MEMBER)
#undef OPENSSL_MEMBER
};

/* The table; NULL when no library is there or one lacks a function: *ret_why is then a sentence that names what to
 * install. */
const struct openssl *openssl_get(const char **ret_why);

/* The reason of the oldest error that OpenSSL still holds for this thread; the error is then forgotten. */
const char *openssl_reason(const struct openssl *o);
