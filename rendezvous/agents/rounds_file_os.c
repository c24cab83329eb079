#include "rendezvous/agents/rounds_file_os.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/rounds/rounds_json.h"
#include "base/siphash.h"

/* Of fixed length, so that it can be filled in when the rest is there. */
#define HEAD_FORMAT "crun-rounds 1 %016" PRIx64 " %08x\n"
enum { HEAD_SIZE = 14 + 16 + 1 + 8 + 1 };

static uint64_t checksum(const void *data, size_t n)
{
    static const uint8_t seed[SIPHASH_SEED_SIZE] = "crun-rounds";

    return siphash13(seed, data, n);
}

static void write_head(char head[HEAD_SIZE + 1], const uint8_t *rest, size_t n)
{
    (void)snprintf(head, HEAD_SIZE + 1, HEAD_FORMAT, checksum(rest, n), (unsigned)n);
}

void rounds_file_name(uint64_t instance, char name[ROUNDS_FILE_NAME_SIZE])
{
    (void)snprintf(name, ROUNDS_FILE_NAME_SIZE, "job-%016" PRIx64 ".json", instance);
}

bool rounds_file_is_name(const char *name)
{
    char digits[17], rest[8];

    return strlen(name) == strlen("job-0123456789abcdef.json") &&
           sscanf(name, "job-%16[0-9a-f]%7s", digits, rest) == 2 && strlen(digits) == 16 &&
           strcmp(rest, ".json") == 0;
}

int rounds_file_put(struct buf *out, const struct rounds_job *job)
{
    char head[HEAD_SIZE + 1] = "";
    size_t at = buf_size(out);

    TRY(buf_append(out, head, HEAD_SIZE));
    TRY(rounds_json_save(out, job));
    if (buf_size(out) - at > ROUNDS_FILE_MAX)
        return -EMSGSIZE; /* reading it would be refused */
    write_head(head, buf_bytes(out) + at + HEAD_SIZE, buf_size(out) - at - HEAD_SIZE);
    memcpy(buf_bytes(out) + at, head, HEAD_SIZE);
    return 0;
}

const uint8_t *rounds_file_check(const uint8_t *data, size_t n, size_t *ret_size)
{
    char head[HEAD_SIZE + 1];

    if (n < HEAD_SIZE)
        return NULL;
    write_head(head, data + HEAD_SIZE, n - HEAD_SIZE);
    if (memcmp(data, head, HEAD_SIZE) != 0)
        return NULL;
    *ret_size = n - HEAD_SIZE;
    return data + HEAD_SIZE;
}
