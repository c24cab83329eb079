#pragma once

/*
 * The start of a front (crun --hosts): everything that reads disks before the loop runs: the list of hosts, the builds that may
 * travel, the job's secret.
 */

#include "launcher/cli/job.h"
#include "launcher/front/front_copy_openssl.h"
#include "launcher/front/front_plan.h"
#include "proto/secret_os.h"

struct front_start {
    const struct options *options;
    char *const *environment;
    const char *version;
    struct job job; /* settings of output and signals alone */
    struct front_copies copies;
    struct front_plan plan;
    struct secret secret;
    char *launch_file; /* path of the launch command */
    char *python;      /* interpreter of the job's program here; NULL: none was found, or none is needed */
    char executable[4096], directory[4096], random_id[37];
};

/* For the calling thread of main(): 0; -1: a sentence was printed. */
int front_start_init(struct front_start *s, const struct options *options, char *const *environment,
                     const char *version);

/* Reads disks. 0; -1: a sentence was printed. */
int front_start_find(struct front_start *s);

/* The exit code. */
int front_start_run(struct front_start *s, int signal_fd);

void front_start_finish(struct front_start *s);
