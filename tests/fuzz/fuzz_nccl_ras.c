/*
 * Fuzz target: the answer of NCCL's RAS service. The line for the report is printable, bounded and ends with its newline; the JSON that
 * is kept has no need of more commas, and gives the same line again.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "launcher/watch/nccl_ras_json.h"
#include "launcher/watch/stack_tool_os.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_line(const char line[HANG_NCCL_SIZE])
{
    size_t n = strnlen(line, HANG_NCCL_SIZE);

    require(n < HANG_NCCL_SIZE);
    for (size_t i = 0; i + 1 < n; i++)
        require(line[i] >= ' ' && line[i] <= '~');
    require(n == 0 || line[n - 1] == '\n');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char line[HANG_NCCL_SIZE], again[HANG_NCCL_SIZE];
    struct buf json = {0}, kept = {0};
    const struct stack_job job = {.pid = 70};
    int r = nccl_ras_read((const char *)data, size, &job, 1, &json, line);

    check_line(line);
    require(r == 0 || (!json.data && !*line));
    if (r == 0) {
        require(nccl_ras_read((const char *)buf_bytes(&json), buf_size(&json), &job, 1, &kept, again) == 0);
        require(strcmp(line, again) == 0 && buf_size(&kept) == buf_size(&json));
    }
    buf_finish(&json);
    buf_finish(&kept);
    return 0;
}
