#pragma once

/*
 * The hosts of a job: from a list (--hosts), a file (--hostfile) or a scheduler's variables (--hosts=auto). Pure.
 *
 *   list   a,n[01-16]:8,user@c,[fd00::7]:4     names in the short form of Slurm (launcher/cli/hostlist.h), slots behind ":"
 *   file   one host in a line, "#" begins a comment:
 *            Open MPI, DeepSpeed   host slots=8 max-slots=16
 *            MPICH                 host:8
 *            PBS                   host, once for each slot
 *
 * Slots are workers of a host. Mentions of a host add up: a mention without slots counts 1 as soon as the host has a second
 * mention. A single mention without slots leaves the number of workers open. Order: first mentions. A user in one mention of a
 * host counts for all.
 *
 * Fails with one sentence. After a failure the list is empty.
 */

#include <stddef.h>

enum {
    HOSTS_MAX = 16384, /* in a list, spares included */
    HOSTS_MENTIONS_MAX = 1 << 20,
    HOSTS_SLOTS_MAX = 4096, /* of a host */
    HOSTS_ERROR_SIZE = 512,
};

struct host_entry {
    char *name;   /* IPv6 without brackets; never begins with "-" */
    char *user;   /* NULL: not given */
    int slots;    /* 0: not given */
    size_t place; /* of its first mention in the text */
};

struct host_list {
    struct host_entry *hosts;
    size_t n;
};

/* How to read a file: 0 with a malloc'ed text, or -errno. */
struct host_files {
    int (*read)(void *data, const char *path, char **ret_text);
    void *data;
};

/*
 * hosts: the value of --hosts, a list or "auto", which is the list of PBS, LSF, SGE or Slurm. hostfile: the value of --hostfile, or
 * NULL; then hosts may be NULL. 0, or -EINVAL with a sentence that begins with the option or variable.
 */
int host_list_read(struct host_list *ret, const char *hosts, const char *hostfile, char *const *environment,
                   const struct host_files *files, char error[HOSTS_ERROR_SIZE]);

/* A hint for a job that was started on one host of an allocation: "Slurm gave this job 4 hosts, ...". Malloc'ed; NULL: none fits. */
char *host_list_hint(char *const *environment, const struct host_files *files);

void host_list_finish(struct host_list *list);
