#pragma once

/*
 * TLS 1.3 between an agent and the rendezvous, as a transformation of bytes: no socket, no callback of a loop. The caller
 * passes what arrived and sends what comes out, so the event loops and the tests use the same code.
 *
 * Both ends prove that they have the key of one job and one purpose (an external PSK, bound to its identity), and agree on
 * fresh keys by ECDHE: a recorded conversation stays closed when the secret becomes known later. No session ticket, no
 * early data, no version below 1.3, no suite without AEAD: there is nothing to downgrade to.
 *
 *   agent                                      rendezvous
 *   ClientHello(identity, binder, key share) ->
 *                                            <- ServerHello(key share), Finished
 *   Finished, frames                         ->
 *                                            <- frames
 *
 * On a link of a node's store (KEY_RELAY) the frames are not in records of TLS but in sealed records (record_seal_openssl.h), because it
 * has many small messages for which a worker waits. Their secrets are exported from the handshake (RFC 8446, 7.5), as those of SRTP
 * are: label "EXPORTER-crun-relay", context "client" or "server" for the end that sends, 32 bytes. An alert or the notice of
 * the end is still TLS's; nothing else may follow them. That notice does not prove that no record was dropped before it, and
 * a record that was changed ends the link without an alert.
 *
 * Certificates are the alternative: a context has either keys or certificates, never both. The client checks the server's, also
 * its name; the server checks the client's where it has CAs. The purpose is the name of a protocol (ALPN, "crun1-agent"), so
 * that a certificate for another service of the same CA opens nothing. A certificate is good for every job. The client is established
 * before the server has seen its certificate; a refusal comes as an alert then.
 *
 * Ways it fails: the peer has no key for that identity, or another key (the binder does not fit); bytes that are not TLS;
 * a record that was changed. Each ends the link, with a sentence; what is to be sent then is an alert.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/certificate_files_os.h"
#include "proto/key_openssl.h"

struct buf;
struct tls_context;
struct tls_link;

enum {
    TLS_FIRST_BYTE = 0x16, /* of a handshake record; no operation of a TCPStore and no frame begins with it */
    TLS_JOB_SIZE = 512,    /* of a job's id in an identity, with its zero */
    TLS_ERROR_SIZE = 512,
};

/* The client's context: it presents this purpose and job, and proves the key. 0, -ENOMEM, or -ENOSYS: `why` has a
 * sentence. */
int tls_context_client(struct tls_context **ret, enum key_purpose purpose, const char *job,
                       const struct secret_key *key, char why[TLS_ERROR_SIZE]);

/* The server's context. find_key is called from tls_link_receive(). */
int tls_context_server(struct tls_context **ret, secret_key_find *find_key, void *data,
                       char why[TLS_ERROR_SIZE]);

/*
 * The same with certificates. host: the name or address that the server's certificate has to have; NULL: any that a CA of ours has
 * signed. These read no file, but take milliseconds. 0, -ENOMEM, or another -errno: `error` has a sentence.
 */
int tls_context_client_certified(struct tls_context **ret, enum key_purpose purpose, const char *host,
                                 const struct certificate_files *files, char error[CERTIFICATE_ERROR_SIZE]);
int tls_context_server_certified(struct tls_context **ret, const struct certificate_files *files,
                                 char error[CERTIFICATE_ERROR_SIZE]);

/* Another owner of it, as are its links. */
struct tls_context *tls_context_ref(struct tls_context *c);

/* One owner less; the last one frees it. NULL is fine. */
void tls_context_free(struct tls_context *c);

/* host: the name or address that the server's certificate has to have, instead of the context's, for a client with certificates;
 * NULL: the context's. The name lives until the link is established or has ended; without certificates it is not used. 0,
 * -ENAMETOOLONG or -ENOMEM. */
int tls_link_create(struct tls_link **ret, struct tls_context *c, const char *host);
void tls_link_free(struct tls_link *l);

/* Takes n bytes that arrived (0 begins a client's handshake), appends what the peer sent to plain and what is to be sent
 * to out. 0; -EPROTO: the link has ended by an error, tls_link_error() has a sentence, and out perhaps an alert; -ENOMEM. */
int tls_link_receive(struct tls_link *l, const void *bytes, size_t n, struct buf *plain, struct buf *out);

/* Encrypts n bytes and appends the records to out. Only while the link is established. 0; -EPROTO or -ENOMEM: the link is only
 * to be freed. */
int tls_link_send(struct tls_link *l, const void *bytes, size_t n, struct buf *out);

/* Appends the notice that nothing follows, by which the peer distinguishes an end from a cut (but see above). 0 or -ENOMEM. */
int tls_link_finish(struct tls_link *l, struct buf *out);

/* Both ends have proved that they have the key. */
bool tls_link_is_established(const struct tls_link *l);

/* The peer has sent its notice that nothing follows. */
bool tls_link_is_finished(const struct tls_link *l);

/* The peer has proved a certificate, not a key, and no job. */
bool tls_link_is_certified(const struct tls_link *l);

/* For which purpose and job the peer has proved the key: the server's view. Only when established. */
enum key_purpose tls_link_purpose(const struct tls_link *l);
const char *tls_link_job(const struct tls_link *l);

/* A part of a sentence: why the link has ended. */
const char *tls_link_error(const struct tls_link *l);
