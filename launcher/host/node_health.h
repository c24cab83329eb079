#pragma once

/*
 * What the built-in health check (crun --check-node) finds out about a node, and whether that is fit for workers. Pure.
 */

#include <stdbool.h>
#include <stdint.h>

/* The check's environment. */
#define NODE_HEALTH_GPUS "CRUN_CHECK_GPUS" /* as many GPUs as there have to be */
#define NODE_HEALTH_DIR "CRUN_CHECK_DIR"   /* the folder of the logs */

enum {
    NODE_HEALTH_GPUS_MAX = 64,
    NODE_HEALTH_DISKS_MAX = 2,
    NODE_HEALTH_TEXT_SIZE = 512,
    NODE_HEALTH_XIDS_MAX = 16,
};

/* nvmlDeviceGetGpuRecoveryAction's numbers. */
enum node_health_recovery {
    NODE_HEALTH_RECOVERY_NONE,
    NODE_HEALTH_RECOVERY_RESET,
    NODE_HEALTH_RECOVERY_REBOOT,
    NODE_HEALTH_RECOVERY_DRAIN_P2P,
    NODE_HEALTH_RECOVERY_DRAIN_AND_RESET,
};

/* A fact that the driver does not report has the value that is fit. */
struct node_gpu {
    int index;       /* the driver's */
    bool is_visible; /* CUDA_VISIBLE_DEVICES leaves it to the workers */
    bool is_unreachable;
    bool remap_pending, remap_failed; /* of rows of its memory */
    int recovery;
    uint64_t free_bytes, total_bytes; /* total 0: not known */
};

struct node_disk {
    const char *path, *purpose;
    uint64_t free_bytes; /* for this user */
    int error;           /* errno; 0: free_bytes is known */
};

struct node_health {
    int n_gpus;          /* that the driver lists */
    int n_gpus_expected; /* -1: any number */
    struct node_gpu gpus[NODE_HEALTH_GPUS_MAX];
    struct node_disk disks[NODE_HEALTH_DISKS_MAX];
    int n_disks;
    int xids[NODE_HEALTH_XIDS_MAX]; /* errors that the driver reported while the check ran */
    int n_xids;
};

/* What is asked of a node. */
struct node_health_limits {
    int gpu_free_percent; /* of the memory of each visible GPU */
    uint64_t disk_free_bytes;
};

/* Parses CRUN_CHECK_GPU_FREE (percent) and CRUN_CHECK_DISK_FREE (MiB); NULL: the default. False: text is not a number. */
bool node_health_limits_parse(const char *gpu_free, const char *disk_free, struct node_health_limits *ret);

/* Whether some visible GPU has less free memory than the limit: what a killed process had may still be on its way back. */
bool node_health_lacks_memory(const struct node_health *h, const struct node_health_limits *limits);

/* True: the node is fit, and text describes it. False: text is what is wrong first. */
bool node_health_judge(const struct node_health *h, const struct node_health_limits *limits,
                       char text[NODE_HEALTH_TEXT_SIZE]);

/* The number of GPUs in a text of a fit node. */
bool node_health_read_gpus(const char *text, int *ret);
