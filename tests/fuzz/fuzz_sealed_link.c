/*
 * Sealed records of which a process between the hosts changes, drops, repeats and inserts bytes: what is delivered is always
 * the beginning of what was sent, and nothing is delivered after a record that failed.
 *
 * Input: one byte is the size of the slices in which the records arrive; then come edits of four bytes: what is done, the
 * place (two bytes), and a value. Bytes at the end that are no whole edit are inserted at the front.
 */

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "proto/sealed_link_openssl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { EDIT_SIZE = 4, EDITS_MAX = 16 };

static const struct secret_key secrets[2] = {{{1}}, {{2}}};

static void require(int ok)
{
    if (!ok)
        abort();
}

/* Records of 1, 2, 4, ... bytes and one that is split into two. */
static void send_all(struct buf *sent, struct buf *wire)
{
    static uint8_t bytes[70000];
    struct sealed_link *l;

    require(sealed_link_create(&l, &secrets[0], &secrets[1]) == 0);
    for (size_t size = 1; size <= 64; size *= 2) {
        memset(bytes, (int)size, size);
        require(sealed_link_send(l, bytes, size, wire) == 0 && buf_append(sent, bytes, size) == 0);
    }
    memset(bytes, 7, sizeof(bytes));
    require(sealed_link_send(l, bytes, sizeof(bytes), wire) == 0 &&
            buf_append(sent, bytes, sizeof(bytes)) == 0);
    sealed_link_free(l);
}

static void put_pieces(struct buf *ret, const uint8_t *a, size_t n_a, const uint8_t *b, size_t n_b)
{
    require(n_a == 0 || buf_append(ret, a, n_a) == 0);
    require(n_b == 0 || buf_append(ret, b, n_b) == 0);
}

static void edit(struct buf *wire, const uint8_t e[EDIT_SIZE])
{
    uint8_t *bytes = buf_bytes(wire);
    size_t n = buf_size(wire), at = ((size_t)e[1] << 8 | e[2]) % n, size = e[3] < n - at ? e[3] : n - at;
    struct buf changed = {0};

    if (e[0] % 4 == 0) { /* of the first bytes often: the small records are there */
        bytes[at % 512 < n ? at % 512 : at] ^= e[3];
        return;
    }
    if (e[0] % 4 == 1) { /* drop */
        put_pieces(&changed, bytes, at, bytes + at + size, n - at - size);
    } else if (e[0] % 4 == 2) { /* repeat */
        put_pieces(&changed, bytes, at + size, bytes + at, size);
        put_pieces(&changed, bytes + at + size, n - at - size, NULL, 0);
    } else { /* cut off */
        put_pieces(&changed, bytes, at, NULL, 0);
    }
    buf_finish(wire);
    *wire = changed;
}

static void receive_all(const struct buf *wire, size_t slice, const struct buf *sent)
{
    struct buf plain = {0}, rest = {0};
    struct sealed_link *l;
    int r = 0;

    require(sealed_link_create(&l, &secrets[1], &secrets[0]) == 0);
    for (size_t at = 0; at < buf_size(wire) && r == 0 && buf_size(&rest) == 0; at += slice) {
        size_t left = buf_size(wire) - at;

        r = sealed_link_receive(l, buf_bytes(wire) + at, left < slice ? left : slice, &plain, &rest);
    }
    require(r == 0 || r == -EBADMSG);
    require(buf_size(&plain) <= buf_size(sent));
    require(buf_size(&plain) == 0 || memcmp(buf_bytes(&plain), buf_bytes(sent), buf_size(&plain)) == 0);
    sealed_link_free(l);
    buf_finish(&plain);
    buf_finish(&rest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf sent = {0}, wire = {0}, inserted = {0};

    if (n < 1)
        return 0;
    send_all(&sent, &wire);
    size_t at = 1, slice = data[0] + 1u;
    for (int i = 0; i < EDITS_MAX && n - at >= EDIT_SIZE && buf_size(&wire) > 0; i++, at += EDIT_SIZE)
        edit(&wire, data + at);
    put_pieces(&inserted, data + at, n - at, buf_bytes(&wire), buf_size(&wire));
    receive_all(&inserted, slice, &sent);
    buf_finish(&sent);
    buf_finish(&wire);
    buf_finish(&inserted);
    return 0;
}
