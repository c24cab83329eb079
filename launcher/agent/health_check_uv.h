#pragma once

/*
 * The health check of this node before a generation: a program of the user's, or crun --check-node, in a process of its
 * own with a deadline. A driver or file system that hangs keeps that process, and nothing else.
 *
 * Its lines are shown with a prefix while it runs; what it printed is appended to health_check_HOST.log in --log-dir.
 */

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

struct health_check;
struct logs;

struct health_check_config {
    uv_loop_t *loop;
    const char *command; /* for /bin/sh -c; "builtin": crun --check-node */
    int timeout_s;
    char *const *environment;
    int group_rank; /* of this node, for GROUP_RANK; -1: it is not known yet */
    const struct logs *logs;
    /* Once: NULL when the node is fit, else why not, as a part of a sentence. The check has freed itself. */
    void (*on_end)(void *data, const char *why);
    void *data;
};

/* Starts the check. Returns 0, or -errno; then on_end() is not called. */
int health_check_start(struct health_check **ret, const struct health_check_config *config);

/* A child of crun has ended. True: it was the check's process, and on_end() has been called. */
bool health_check_reaped(struct health_check *c, pid_t pid, int status);

/* Ends the check without on_end(), and frees it. NULL is fine. */
void health_check_stop(struct health_check *c);
