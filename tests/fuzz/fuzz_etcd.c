/*
 * What etcd answers, as bytes of any kind: the first byte chooses the request and the HTTP status. A reply that is understood
 * must be within the bounds that its readers rely on.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd/etcd.h"
#include "rendezvous/etcd/etcd_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_reply(const struct etcd_reply *r)
{
    if ((r->outcome == ETCD_OK) != (r->error[0] == '\0'))
        abort();
    for (size_t i = 0; i < r->n_pairs; i++)
        if (r->pairs[i].key[0] == '\0' || strlen(r->pairs[i].key) >= ETCD_KEY_SIZE)
            abort();
    if (strpbrk(r->token, "\r\n") || strpbrk(r->error, "\r\n\x1b"))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct etcd_reply reply;

    if (size == 0)
        return 0;
    etcd_json_get(data[0] % ETCD_KIND_COUNT, data[0] & 0x80 ? 500 : 200, data + 1, size - 1, &reply);
    check_reply(&reply);
    etcd_reply_finish(&reply);
    return 0;
}
