/*
 * Fuzz target: the bytes of a worker's start. What is taken for one has a file, arguments and an environment, the descriptors that came with
 * it, and makes the same bytes again.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/supervise/worker_start.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_same(const struct worker_start *s, const uint8_t *bytes, size_t size)
{
    const size_t texts_at = ((const struct worker_start_head *)(const void *)bytes)->texts_at;
    uint8_t *again = malloc(size);

    require(again && worker_start_size(s) == size);
    worker_start_put(s, again);
    require(memcmp(again, bytes, offsetof(struct worker_start_head, attributes)) == 0 &&
            memcmp(again + texts_at, bytes + texts_at, size - texts_at) == 0);
    require(memcmp(&((const struct worker_start_head *)(const void *)again)->attributes.cpus,
                   &s->attributes->cpus, sizeof(s->attributes->cpus)) == 0);
    free(again);
}

/* The first byte: how many descriptors came with the others. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int numbers[SPAWN_FD_END] = {10, 11, 12, 13, 14, 15, 16, 17};
    struct worker_start s;
    int fds[SPAWN_FD_END];

    if (size < 2)
        return 0;
    const int n = data[0] % (SPAWN_FD_END + 1);
    uint8_t *bytes = malloc(size - 1);
    require(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    int r = worker_start_take(bytes, size - 1, numbers, n, &s);
    require(r == 0 || r == -EBADMSG || r == -EMFILE);
    if (r == 0) {
        require(s.argv[0] != NULL && worker_start_list_fds(&s, fds) == n &&
                memcmp(fds, numbers, (size_t)n * sizeof(*fds)) == 0);
        require_same(&s, bytes, size - 1);
    }
    free(bytes);
    return 0;
}
