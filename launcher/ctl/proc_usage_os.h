#pragma once

/* What /proc has about a process: crunctl reads it, so that crun need not. */

#include <stdbool.h>
#include <stdint.h>

struct proc_usage {
    int64_t cpu_ms, rss_kib;
};

/* False: there is no such process, or it is a zombie. */
bool proc_usage_read(int64_t pid, struct proc_usage *ret);
