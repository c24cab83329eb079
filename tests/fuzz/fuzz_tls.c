/*
 * Bytes of a peer without the key, or without a certificate, against both ends of TLS: the input is cut into slices, and neither end may crash, read
 * outside its memory, deliver plaintext or take itself for established. What is under test is our code around OpenSSL, and
 * that its errors end the link.
 *
 * Input: one byte chooses the end and the kind of proof, one the size of the slices, the rest arrives.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "proto/tls_openssl.h"
#include "tests/support/c/test_certificates.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int find_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    memset(ret->bytes, (int)purpose + 1, KEY_SIZE);
    return strlen(job) % 2 == 0;
}

static int open_keyed(struct tls_context **ret, bool server)
{
    const struct secret_key key = {{7}};
    char why[TLS_ERROR_SIZE];

    return server ? tls_context_server(ret, find_key, NULL, why)
                  : tls_context_client(ret, KEY_AGENT, "job", &key, why);
}

static int open_certified(struct tls_context **ret, bool server)
{
    char cert[TEST_PATH_SIZE], key[TEST_PATH_SIZE], ca[TEST_PATH_SIZE], error[CERTIFICATE_ERROR_SIZE];
    struct certificate_files files;

    make_test_certificates();
    const struct certificate_paths paths = {.cert = test_certificate_path(cert, "node", ".pem"),
                                            .key = test_certificate_path(key, "node", ".key"),
                                            .ca = test_certificate_path(ca, "ca", ".pem")};
    int r = certificate_files_read(&files, &paths, error);
    if (r == 0)
        r = server ? tls_context_server_certified(ret, &files, error)
                   : tls_context_client_certified(ret, KEY_AGENT, "localhost", &files, error);
    certificate_files_finish(&files);
    return r;
}

static struct tls_context *context_of(bool server, bool certified)
{
    static struct tls_context *contexts[4];
    struct tls_context **c = &contexts[2 * certified + server];

    if (!*c && (certified ? open_certified(c, server) : open_keyed(c, server)) < 0)
        abort();
    return *c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf plain = {0}, out = {0};
    struct tls_link *l;
    int r;

    if (n < 2)
        return 0;
    if (tls_link_create(&l, context_of(data[0] % 2, data[0] / 2 % 2), NULL) < 0)
        abort();
    r = tls_link_receive(l, NULL, 0, &plain, &out);
    for (size_t at = 2, slice = data[1] + 1u; at < n && r == 0; at += slice)
        r = tls_link_receive(l, data + at, n - at < slice ? n - at : slice, &plain, &out);
    if (tls_link_is_established(l) || buf_size(&plain) > 0)
        abort();
    tls_link_free(l);
    buf_finish(&plain);
    buf_finish(&out);
    return 0;
}
