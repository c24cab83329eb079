#pragma once

/* Small files of /proc/PID, and a process or a thread in /proc/PID/stat (proc_pid_stat(5)). Never waits, and allocates nothing. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { PROC_FILE_SIZE = 4096 };

/* At most PROC_FILE_SIZE - 1 bytes of /proc/PID/NAME, with a formatted name below 64 bytes. False, with out set to "", when the file is
 * empty or unreadable. */
__attribute__((format(printf, 3, 4))) bool proc_file_read(pid_t pid, char out[PROC_FILE_SIZE],
                                                          const char *name, ...);

/* The number behind `label` in such a text; 0: there is none. */
uint64_t proc_file_number(const char *text, const char *label, int base);

struct proc_stat {
    char name[16];  /* of the program, as the kernel cuts it */
    char state;     /* 'R', 'S', 'D' ... */
    bool has_ended; /* a zombie, or about to vanish */
    pid_t parent;
    uint64_t faults;      /* minor and major ones */
    uint64_t cpu_ticks;   /* in user space and in the kernel, of sysconf(_SC_CLK_TCK) */
    uint64_t start_ticks; /* since the system's start, of sysconf(_SC_CLK_TCK) */
    uint64_t rss_pages;
};

/* False: the text is not one of the kernel. All three set *ret only when they return true. */
bool proc_stat_parse(const char *text, struct proc_stat *ret);

/* False: there is no such process or thread. What a process used is the sum over its threads. */
bool proc_stat_read(pid_t pid, struct proc_stat *ret);
bool proc_stat_read_thread(pid_t pid, pid_t thread, struct proc_stat *ret);

/* The time that so many cpu_ticks are. */
uint64_t proc_stat_ns(uint64_t ticks);
