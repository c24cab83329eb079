/*
 * The command line of crw-perf. All ranks read it and come to the same result; all complain of a wrong one,
 * because none knows yet which it is.
 */

#include "base/decimal.h"
#include "worker-runtime/perf/perf.h"

#include <getopt.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITERS_MAX = 1000000000, RANKS_MAX = 4096 };

/* More than any machine has, and no sum of them overflows. */
#define BYTES_MAX ((uint64_t)1 << 40)

static const char help[] =
    "Usage: crw-perf COLLECTIVE [options]\n"
    "\n"
    "Measures a collective of libcrw and checks what it gives. Start it under crun,\n"
    "or with --ranks.\n"
    "\n"
    "  COLLECTIVE                one of allreduce, broadcast, allgather, gather,\n"
    "                            reduce, reducescatter, scatter, sendrecv, pingpong,\n"
    "                            barrier; or copy: what the memory can do\n"
    "      --bytes LIST          sizes, with commas between; K, M and G mean 1024 and\n"
    "                            so on (4,1K,64K,900904,26000000)\n"
    "      --iters N             calls for each size (as many as fit into 0.3 s)\n"
    "      --warmup N            calls before them that do not count (5)\n"
    "      --memory KIND         buffers that ranks share (shared) or not (private)\n"
    "      --ranks N             start N ranks; not under crun\n"
    "      --json                one JSON object a line instead of the table\n"
    "  -h, --help\n"
    "      --version\n"
    "\n"
    "See crw-perf(1).\n";

enum perf_option_id { OPT_BYTES = 256, OPT_ITERS, OPT_WARMUP, OPT_MEMORY, OPT_RANKS, OPT_JSON, OPT_VERSION };

static const struct option long_options[] = {
    {"bytes", required_argument, NULL, OPT_BYTES},
    {"iters", required_argument, NULL, OPT_ITERS},
    {"warmup", required_argument, NULL, OPT_WARMUP},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static bool parse_int_option(const char *text, int min, int max, int *ret)
{
    uint64_t value;

    if (!decimal_parse(text, (uint64_t)min, (uint64_t)max, &value))
        return false;
    *ret = (int)value;
    return true;
}

/* Leaves *text behind the size. */
static bool parse_size(const char **text, size_t *ret)
{
    static const char suffixes[] = "KMG";
    const char *suffix;
    uint64_t value;

    if (!decimal_scan(text, BYTES_MAX, &value))
        return false;
    suffix = **text ? strchr(suffixes, **text) : NULL;
    if (suffix) {
        int shift = 10 * ((int)(suffix - suffixes) + 1);

        if (value > BYTES_MAX >> shift)
            return false;
        value <<= shift;
        (*text)++;
    }
    *ret = (size_t)value;
    return true;
}

static bool parse_sizes(const char *text, struct perf_options *o)
{
    o->n_sizes = 0;
    for (;;) {
        if (o->n_sizes == PERF_SIZES_MAX || !parse_size(&text, &o->bytes[o->n_sizes]))
            return false;
        o->n_sizes++;
        if (*text == '\0')
            return true;
        if (*text++ != ',')
            return false;
    }
}

static bool parse_memory(const char *text, bool *ret_private)
{
    *ret_private = strcmp(text, "private") == 0;
    return *ret_private || strcmp(text, "shared") == 0;
}

static enum perf_options_result refuse_value(const char *option, const char *value, const char *wanted)
{
    fprintf(stderr, "crw-perf: %s is \"%s\"; it must be %s\n", option, value, wanted);
    return PERF_USAGE;
}

static enum perf_options_result parse_perf_option(int id, struct perf_options *o)
{
    switch (id) {
    case OPT_BYTES:
        return parse_sizes(optarg, o)
                   ? PERF_RUN
                   : refuse_value("--bytes", optarg, "up to 64 sizes like 4,64K,26000000, at most 1024G");
    case OPT_ITERS:
        return parse_int_option(optarg, 1, ITERS_MAX, &o->iters)
                   ? PERF_RUN
                   : refuse_value("--iters", optarg, "from 1 to 1000000000");
    case OPT_WARMUP:
        return parse_int_option(optarg, 0, ITERS_MAX, &o->warmup)
                   ? PERF_RUN
                   : refuse_value("--warmup", optarg, "from 0 to 1000000000");
    case OPT_MEMORY:
        return parse_memory(optarg, &o->private_memory)
                   ? PERF_RUN
                   : refuse_value("--memory", optarg, "shared or private");
    case OPT_RANKS:
        return parse_int_option(optarg, 1, RANKS_MAX, &o->n_ranks)
                   ? PERF_RUN
                   : refuse_value("--ranks", optarg, "from 1 to 4096");
    case OPT_JSON:
        o->json = true;
        return PERF_RUN;
    case OPT_VERSION:
        printf("crw-perf %s\n", crw_version());
        return PERF_DONE;
    case 'h':
        fputs(help, stdout);
        return PERF_DONE;
    default:
        fprintf(stderr, "Try crw-perf --help.\n");
        return PERF_USAGE;
    }
}

static enum perf_options_result take_collective(int argc, char **argv, struct perf_options *o)
{
    if (optind + 1 != argc) {
        fprintf(stderr, "crw-perf: name one collective: %s\n", perf_collective_names);
        return PERF_USAGE;
    }
    o->collective = perf_collective_find(argv[optind]);
    if (!o->collective) {
        fprintf(stderr, "crw-perf: there is no collective \"%s\"; there are %s\n", argv[optind],
                perf_collective_names);
        return PERF_USAGE;
    }
    return PERF_RUN;
}

enum perf_options_result perf_options_parse(int argc, char **argv, struct perf_options *ret)
{
    enum perf_options_result result = PERF_RUN;
    struct perf_options o = {
        .bytes = {4, 1024, 64 * 1024, 900904, 26000000},
        .n_sizes = 5,
        .warmup = 5,
    };
    int id;

    while (result == PERF_RUN && (id = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
        result = parse_perf_option(id, &o);
    if (result == PERF_RUN)
        result = take_collective(argc, argv, &o);
    if (result == PERF_RUN && o.collective->unit == 0)
        o.n_sizes = 1;
    *ret = o;
    return result;
}
