/* The output of a stack tool: any bytes give a line that a terminal can show, and grouping takes it. */

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
    struct hang_rank ranks[2] = {{.rank = 0, .host = "a", .pid = 1, .state = 'S'},
                                 {.rank = 1, .host = "b", .pid = 2}};

    bool found = stack_summarize((const char *)data, size, 7, &summary);
    (void)found; /* without assertions */
    assert(found == (summary.kind != STACK_UNKNOWN));
    assert(memchr(summary.text, '\0', sizeof(summary.text)));
    for (const char *at = summary.text; *at; at++)
        assert(*at >= ' ' && *at < 0x7f);
    ranks[0].kind = summary.kind;
    memcpy(ranks[0].text, summary.text, sizeof(ranks[0].text));
    free(hang_text(ranks, 2, hang_sort(ranks, 2)));
    return 0;
}
