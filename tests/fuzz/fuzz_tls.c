/*
 * Bytes of a peer without the key, against both ends of TLS: the input is cut into slices, and neither end may crash, read
 * outside its memory, deliver plaintext or take itself for established. What is under test is our code around OpenSSL, and
 * that its errors end the link.
 *
 * Input: one byte chooses the end, one the size of the slices, the rest arrives.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "proto/tls_openssl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int find_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    memset(ret->bytes, (int)purpose + 1, KEY_SIZE);
    return strlen(job) % 2 == 0;
}

static struct tls_context *context_of(bool server)
{
    static struct tls_context *contexts[2];
    const struct secret_key key = {{7}};
    char why[TLS_ERROR_SIZE];

    if (!contexts[server] &&
        (server ? tls_context_server(&contexts[server], find_key, NULL, why)
                : tls_context_client(&contexts[server], KEY_AGENT, "job", &key, why)) < 0)
        abort();
    return contexts[server];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf plain = {0}, out = {0};
    struct tls_link *l;
    int r;

    if (n < 2)
        return 0;
    if (tls_link_create(&l, context_of(data[0] % 2)) < 0)
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
