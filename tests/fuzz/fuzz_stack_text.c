/* The output of a stack tool, and a worker's records of its collectives: any bytes give a line that a terminal can show, and
 * grouping takes it. */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/watch/hang_report.h"
#include "launcher/watch/stack_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stack_summary summary;
    struct hang_rank ranks[2] = {{.rank = 0, .host = "a", .pid = 0x20202020, .state = 'S'},
                                 {.rank = 1, .host = "b", .pid = 0}};

    bool found = stack_summarize((const char *)data, size, 7, &summary);
    (void)found; /* without assertions */
    assert(found == (summary.kind != STACK_UNKNOWN));
    assert(memchr(summary.text, '\0', sizeof(summary.text)));
    for (const char *at = summary.text; *at; at++)
        assert(*at >= ' ' && *at < 0x7f);
    ranks[0].kind = summary.kind;
    memcpy(ranks[0].text, summary.text, sizeof(ranks[0].text));
    hang_add_collectives(&ranks[0], data, size / sizeof(struct worker_collective));
    hang_add_collectives(&ranks[1], data + size / 2, size / 2 / sizeof(struct worker_collective));
    assert(ranks[0].n_collectives <= HANG_COLLECTIVES_MAX);
    free(hang_text(ranks, 2, hang_sort(ranks, 2)));
    return 0;
}
