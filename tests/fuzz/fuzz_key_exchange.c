/*
 * Fuzz target: what an agent without a secret and the rendezvous send each other. Input: one byte that chooses slices, and the rest
 * is a frame, and once more a payload. The frame is the same in whatever slices it comes, and put again has the same bytes; a
 * payload that counts has exactly the bytes that were asked for.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "proto/key_exchange.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* The result of the first slice that is not incomplete. */
static int decode_slices(const uint8_t *data, size_t n, size_t step, struct key_exchange_frame *ret,
                         size_t *ret_size)
{
    for (size_t end = 0; end < n; end += step) {
        int r = key_exchange_decode(data, end, ret, ret_size);

        if (r != KEY_EXCHANGE_E_MORE)
            return r;
    }
    return key_exchange_decode(data, n, ret, ret_size);
}

static void check_frame(const uint8_t *data, size_t n, size_t step)
{
    struct key_exchange_frame frame, again;
    struct buf out = {0};
    size_t size = 0, size_again = 0;
    int r = key_exchange_decode(data, n, &frame, &size);

    require(decode_slices(data, n, step, &again, &size_again) == r);
    if (r != 0)
        return;
    require(size == size_again && size <= n && size <= KEY_EXCHANGE_FRAME_MAX);
    require((const uint8_t *)frame.credential + frame.credential_size == data + size);
    require(key_exchange_put(&out, frame.code, frame.credential, frame.credential_size) == 0);
    require(buf_size(&out) == size && memcmp(buf_bytes(&out), data, size) == 0);
    buf_finish(&out);
}

static void check_payload(const uint8_t *data, size_t n)
{
    const struct key_exchange_payload payload = {.bytes = data, .n = n, .uid = 7};
    uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE], secret[KEY_EXCHANGE_SECRET_SIZE];
    struct buf out = {0};

    if (key_request_check(&payload, 7, "job", nonce) == KEY_EXCHANGE_CREDENTIAL) {
        require(key_request_put(&out, nonce, "job") == 0);
        require(buf_size(&out) == n && memcmp(buf_bytes(&out), data, n) == 0);
    }
    buf_reset(&out);
    for (size_t i = 0; i < sizeof(nonce); i++)
        nonce[i] = (uint8_t)i;
    if (!key_reply_check(&payload, 7, "job", nonce, secret)) {
        require(key_reply_put(&out, nonce, secret, "job") == 0);
        require(buf_size(&out) == n && memcmp(buf_bytes(&out), data, n) == 0);
    }
    buf_finish(&out);
    require(key_request_check(&payload, 8, "job", nonce) != KEY_EXCHANGE_CREDENTIAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    check_frame(data + 1, size - 1, 1 + (size_t)data[0] % 16);
    check_payload(data + 1, size - 1);
    return 0;
}
