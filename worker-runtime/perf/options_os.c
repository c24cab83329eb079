/*
 * The command line of crw-perf. All ranks read it and come to the same result; all complain of a wrong one,
 * because none knows yet which it is.
 */

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/option_answer_os.h"
#include "worker-runtime/perf/perf.h"

enum { ITERS_MAX = 1000000000, RANKS_MAX = 4096 };

/* More than any machine has, and no sum of them overflows. */
#define BYTES_MAX ((uint64_t)1 << 40)

static const char *take_sizes(void *to, const char *text)
{
    static const char expected[] = "up to 64 sizes like 4,64K,26000000, at most 1024G";
    struct perf_options *o = to;

    o->n_sizes = 0;
    for (;;) {
        uint64_t bytes;

        if (o->n_sizes == PERF_SIZES_MAX || !option_scan_size(&text, BYTES_MAX, &bytes))
            return expected;
        o->bytes[o->n_sizes++] = (size_t)bytes;
        if (*text == '\0')
            return NULL;
        if (*text++ != ',')
            return expected;
    }
}

static int take_collective(void *to, const char *word, char *error, size_t n)
{
    struct perf_options *o = to;

    if (o->collective)
        snprintf(error, n, "name one collective: %s", perf_collective_names);
    else if (!(o->collective = perf_collective_find(word)))
        snprintf(error, n, "there is no collective \"%s\"; there are %s", word, perf_collective_names);
    else
        return 0;
    return OPTIONS_E_USAGE;
}

#define AT(member) OPTION_AT(struct perf_options, member)

static const struct option_spec specs[] = {
    {"bytes", OPTION_OWN, .placeholder = "LIST", .fallback = "4,1K,64K,900904,26000000", .take = take_sizes,
     .help = "sizes, with commas between; K, M and G mean 1024 and so on"},
    {"iters", OPTION_NUMBER, AT(iters), 1, ITERS_MAX, "N", NULL,
     "calls for each size (as many as fit into 0.3 s)"},
    {"warmup", OPTION_NUMBER, AT(warmup), 0, ITERS_MAX, "N", "5", "calls before them that do not count"},
    {"memory", OPTION_CHOICE, AT(private_memory), .placeholder = "shared|private", .fallback = "shared",
     .choices = "shared private", .help = "buffers that ranks share or not"},
    {"ranks", OPTION_NUMBER, AT(n_ranks), 1, RANKS_MAX, "N", NULL, "start N ranks; not under crun"},
    {"json", OPTION_FLAG, AT(json), .help = "one JSON object a line instead of the table"},
    OPTION_ROWS_OF_ALL,
};

#define COLLECTIVES                                                                                          \
    "allreduce broadcast allgather gather reduce reducescatter scatter sendrecv pingpong barrier"

static const struct option_word word_rows[] = {
    {"  COLLECTIVE", "one of " COLLECTIVES "; or copy: what the memory can do"},
    {0},
};

static const struct option_table table = {
    .commands = "crw-perf",
    .page = "crw-perf(1)",
    .specs = specs,
    .n = ARRAY_SIZE(specs),
    .words =
        "allreduce broadcast allgather gather reduce reducescatter scatter sendrecv pingpong barrier copy",
    .take_word = take_collective,
    .usage = "usage: crw-perf COLLECTIVE [options]\n",
    .about =
        "Measures a collective of libcrw and checks what it gives. Start it under crun, or with --ranks.",
    .word_rows = word_rows,
    .ending = "See crw-perf(1).",
};

int perf_options_parse(char *const argv[], struct perf_options *ret)
{
    struct perf_options o = {0};
    char error[512];
    int r = option_table_parse(&table, argv, &o, error, sizeof(error));

    if (r == 0 && !o.collective) {
        snprintf(error, sizeof(error), "name one collective: %s", perf_collective_names);
        r = OPTIONS_E_USAGE;
    }
    if (r)
        return option_answer(&table, r, error, crw_version());
    if (o.collective->unit == 0)
        o.n_sizes = 1;
    *ret = o;
    return -1;
}
