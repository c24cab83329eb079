#pragma once

/*
 * TLS 1.3 between an agent and the rendezvous, as a transformation of bytes: no socket, no callback of a loop. The caller
 * passes what arrived and sends what comes out, so the event loops and the tests use the same code.
 *
 * Both ends prove that they have the key of one job and one purpose (an external PSK, bound to its identity), and agree on
 * fresh keys by ECDHE: a recorded conversation stays closed when the secret becomes known later. No certificate, no
 * session ticket, no early data, no version below 1.3, no suite without AEAD: there is nothing to downgrade to.
 *
 *   agent                                      rendezvous
 *   ClientHello(identity, binder, key share) ->
 *                                            <- ServerHello(key share), Finished
 *   Finished, frames                         ->
 *                                            <- frames
 *
 * Ways it fails: the peer has no key for that identity, or another key (the binder does not fit); bytes that are not TLS;
 * a record that was changed. Each ends the link, with a sentence; what is to be sent then is an alert.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/key_openssl.h"

struct buf;
struct tls_context;
struct tls_link;

enum {
    TLS_FIRST_BYTE = 0x16, /* of a handshake record; no operation of a TCPStore and no frame begins with it */
    TLS_JOB_SIZE = 512,    /* of a job's id in an identity, with its zero */
    TLS_ERROR_SIZE = 256,
};

/* The client's context: it presents this purpose and job, and proves the key. 0, -ENOMEM, or -ENOSYS: `why` has a
 * sentence. */
int tls_context_client(struct tls_context **ret, enum key_purpose purpose, const char *job,
                       const struct secret_key *key, char why[TLS_ERROR_SIZE]);

/* The server's context. find_key is called from tls_link_receive(). */
int tls_context_server(struct tls_context **ret, secret_key_find *find_key, void *data,
                       char why[TLS_ERROR_SIZE]);

/* After all links of it. NULL is fine. */
void tls_context_free(struct tls_context *c);

/* 0 or -ENOMEM. The context has to outlive the link. */
int tls_link_create(struct tls_link **ret, struct tls_context *c);
void tls_link_free(struct tls_link *l);

/* Takes n bytes that arrived (0 begins a client's handshake), appends what the peer sent to plain and what is to be sent
 * to out. 0; -EPROTO: the link has ended by an error, tls_link_error() has a sentence, and out perhaps an alert; -ENOMEM. */
int tls_link_receive(struct tls_link *l, const void *bytes, size_t n, struct buf *plain, struct buf *out);

/* Encrypts n bytes and appends the records to out. Only while the link is established. 0, -EPROTO or -ENOMEM. */
int tls_link_send(struct tls_link *l, const void *bytes, size_t n, struct buf *out);

/* Appends the notice that nothing follows, by which the peer distinguishes an end from a cut. 0 or -ENOMEM. */
int tls_link_finish(struct tls_link *l, struct buf *out);

/* Both ends have proved that they have the key. */
bool tls_link_is_established(const struct tls_link *l);

/* The peer has sent its notice that nothing follows. */
bool tls_link_is_finished(const struct tls_link *l);

/* For which purpose and job the peer has proved the key: the server's view. Only when established. */
enum key_purpose tls_link_purpose(const struct tls_link *l);
const char *tls_link_job(const struct tls_link *l);

/* A part of a sentence: why the link has ended. */
const char *tls_link_error(const struct tls_link *l);
