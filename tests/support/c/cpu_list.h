#pragma once

/* A set of CPUs as a list as in /sys, "0-2,4,6-7", which numa_cpus_parse() reads. */

#include <stdio.h>

#include "launcher/cli/numa.h"

/* out: large enough for the list, or the list is cut. */
static inline void cpu_list_format(const struct numa_cpus *cpus, char *out, size_t out_size)
{
    size_t n = 0;

    *out = '\0';
    for (int from = 0; from < NUMA_CPUS_MAX && n < out_size; from++) {
        int to = from;

        if (!numa_cpus_has(cpus, from))
            continue;
        while (numa_cpus_has(cpus, to + 1))
            to++;
        n += (size_t)snprintf(out + n, out_size - n, "%s%d", n ? "," : "", from);
        if (to > from && n < out_size)
            n += (size_t)snprintf(out + n, out_size - n, "-%d", to);
        from = to;
    }
}
