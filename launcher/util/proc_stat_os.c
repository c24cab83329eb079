#include "launcher/util/proc_stat_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/util/read_file_os.h"
#include "base/format.h"

/* The numbers of proc_pid_stat(5). */
enum {
    PARENT = 4,
    MINOR_FAULTS = 10,
    MAJOR_FAULTS = 12,
    USER_TICKS = 14,
    SYSTEM_TICKS = 15,
    START = 22,
    RSS = 24
};

bool proc_file_read(pid_t pid, char out[PROC_FILE_SIZE], const char *name, ...)
{
    char whole[64];

    (void)format_arguments(whole, sizeof(whole), name); /* fits */
    return read_file_text(out, PROC_FILE_SIZE, "/proc/%d/%s", (int)pid, whole);
}

uint64_t proc_file_number(const char *text, const char *label, int base)
{
    const char *at = strstr(text, label);

    return at ? strtoull(at + strlen(label), NULL, base) : 0;
}

bool proc_stat_parse(const char *text, struct proc_stat *ret)
{
    const char *at = strrchr(text, ')'), *name = strchr(text, '('); /* the name may have anything in it */
    uint64_t fields[RSS + 1];

    if (!at || at[1] != ' ' || !at[2] || !name || name > at)
        return false;
    int n_name = (int)(at - name - 1);
    char state = at[2];
    at += 3;
    for (int i = PARENT; i <= RSS; i++) {
        char *end;

        fields[i] = strtoull(at, &end, 10);
        if (end == at)
            return false;
        at = end;
    }
    *ret = (struct proc_stat){.state = state,
                              .has_ended = state == 'Z' || state == 'X',
                              .parent = (pid_t)fields[PARENT],
                              .faults = fields[MINOR_FAULTS] + fields[MAJOR_FAULTS],
                              .cpu_ticks = fields[USER_TICKS] + fields[SYSTEM_TICKS],
                              .start_ticks = fields[START],
                              .rss_pages = fields[RSS]};
    (void)snprintf(ret->name, sizeof(ret->name), "%.*s", n_name, name + 1); /* may be cut */
    return true;
}

bool proc_stat_read(pid_t pid, struct proc_stat *ret)
{
    char text[PROC_FILE_SIZE];

    return proc_file_read(pid, text, "stat") && proc_stat_parse(text, ret);
}

bool proc_stat_read_thread(pid_t pid, pid_t thread, struct proc_stat *ret)
{
    char text[PROC_FILE_SIZE];

    return proc_file_read(pid, text, "task/%d/stat", (int)thread) && proc_stat_parse(text, ret);
}

uint64_t proc_stat_ns(uint64_t ticks)
{
    long per_second = sysconf(_SC_CLK_TCK);

    return per_second > 0 ? ticks * (1000000000u / (uint64_t)per_second) : 0;
}
