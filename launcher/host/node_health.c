#include "launcher/host/node_health.h"

#include <stdio.h>
#include <string.h>

#include "base/decimal.h"
#include "base/err.h"

enum { GPU_FREE_PERCENT = 90, DISK_FREE_MIB = 100 };

static const char fit_text[] = "this node is fit: ";

/* ---- limits ---- */

static bool parse_limit(const char *text, uint64_t fallback, uint64_t max, uint64_t *ret)
{
    *ret = fallback;
    return !text || !*text || decimal_parse(text, 0, max, ret);
}

bool node_health_limits_parse(const char *gpu_free, const char *disk_free, struct node_health_limits *ret)
{
    uint64_t percent, mib;
    bool is_valid = parse_limit(gpu_free, GPU_FREE_PERCENT, 100, &percent) &&
                    parse_limit(disk_free, DISK_FREE_MIB, UINT32_MAX, &mib);

    if (is_valid)
        *ret = (struct node_health_limits){.gpu_free_percent = (int)percent, .disk_free_bytes = mib << 20};
    return is_valid;
}

/* ---- GPUs ---- */

static bool lacks_memory(const struct node_gpu *gpu, const struct node_health_limits *limits)
{
    return gpu->is_visible && gpu->free_bytes < gpu->total_bytes / 100 * (uint64_t)limits->gpu_free_percent;
}

static int n_gpus_known(const struct node_health *h)
{
    return h->n_gpus < NODE_HEALTH_GPUS_MAX ? h->n_gpus : NODE_HEALTH_GPUS_MAX;
}

bool node_health_lacks_memory(const struct node_health *h, const struct node_health_limits *limits)
{
    for (int i = 0; i < n_gpus_known(h); i++)
        if (lacks_memory(&h->gpus[i], limits))
            return true;
    return false;
}

static const char *recovery_name(int recovery)
{
    static const char *const names[] = {
        [NODE_HEALTH_RECOVERY_RESET] = "a reset",
        [NODE_HEALTH_RECOVERY_REBOOT] = "a reboot of the node",
        [NODE_HEALTH_RECOVERY_DRAIN_P2P] = "an end of its peer-to-peer traffic",
        [NODE_HEALTH_RECOVERY_DRAIN_AND_RESET] = "a reset after its work has ended",
    };

    return recovery > 0 && recovery < (int)ARRAY_SIZE(names) ? names[recovery] : "an action";
}

/* False: it has a fault. */
static bool judge_gpu(const struct node_gpu *gpu, const struct node_health_limits *limits,
                      char text[NODE_HEALTH_TEXT_SIZE])
{
    if (gpu->is_unreachable)
        (void)snprintf(text, NODE_HEALTH_TEXT_SIZE, "GPU %d does not answer the driver", gpu->index);
    else if (gpu->recovery != NODE_HEALTH_RECOVERY_NONE)
        (void)snprintf(text, NODE_HEALTH_TEXT_SIZE, "GPU %d needs %s, as the driver reports", gpu->index,
                       recovery_name(gpu->recovery));
    else if (gpu->remap_failed)
        (void)snprintf(text, NODE_HEALTH_TEXT_SIZE,
                       "GPU %d has rows of memory that could not be remapped: replace it", gpu->index);
    else if (gpu->remap_pending)
        (void)snprintf(text, NODE_HEALTH_TEXT_SIZE,
                       "GPU %d has rows of memory to remap, which takes a reset (nvidia-smi -r)", gpu->index);
    else if (lacks_memory(gpu, limits))
        (void)snprintf(text, NODE_HEALTH_TEXT_SIZE,
                       "GPU %d has %.1f of %.1f GiB free, and %d %% are asked for: another process uses it",
                       gpu->index, (double)gpu->free_bytes / (1 << 30), (double)gpu->total_bytes / (1 << 30),
                       limits->gpu_free_percent);
    else
        return true;
    return false;
}

static bool judge_gpus(const struct node_health *h, const struct node_health_limits *limits,
                       char text[NODE_HEALTH_TEXT_SIZE])
{
    if (h->n_gpus_expected >= 0 && h->n_gpus < h->n_gpus_expected) {
        (void)snprintf(text, NODE_HEALTH_TEXT_SIZE, "%d GPU%s, and there were %d before", h->n_gpus,
                       h->n_gpus == 1 ? " is left" : "s are left", h->n_gpus_expected);
        return false;
    }
    for (int i = 0; i < n_gpus_known(h); i++)
        if (h->gpus[i].is_visible && !judge_gpu(&h->gpus[i], limits, text))
            return false;
    if (h->n_xids > 0)
        (void)snprintf(text, NODE_HEALTH_TEXT_SIZE,
                       "the driver reported error Xid %d while the check ran; see dmesg", h->xids[0]);
    return h->n_xids == 0;
}

/* ---- all ---- */

static bool judge_disks(const struct node_health *h, const struct node_health_limits *limits,
                        char text[NODE_HEALTH_TEXT_SIZE])
{
    for (int i = 0; i < h->n_disks; i++) {
        const struct node_disk *d = &h->disks[i];

        if (d->error)
            (void)snprintf(text, NODE_HEALTH_TEXT_SIZE, "%s %.300s cannot be used: %.80s", d->purpose,
                           d->path, strerror(d->error));
        else if (d->free_bytes < limits->disk_free_bytes)
            (void)snprintf(text, NODE_HEALTH_TEXT_SIZE, "%s %.300s has %.1f MiB free, and %.1f are asked for",
                           d->purpose, d->path, (double)d->free_bytes / (1 << 20),
                           (double)limits->disk_free_bytes / (1 << 20));
        else
            continue;
        return false;
    }
    return true;
}

bool node_health_judge(const struct node_health *h, const struct node_health_limits *limits,
                       char text[NODE_HEALTH_TEXT_SIZE])
{
    if (!judge_gpus(h, limits, text) || !judge_disks(h, limits, text))
        return false;
    (void)snprintf(text, NODE_HEALTH_TEXT_SIZE, "%s%d NVIDIA GPU%s", fit_text, h->n_gpus,
                   h->n_gpus == 1 ? "" : "s");
    for (int i = 0; i < h->n_disks; i++) {
        size_t n = strlen(text);
        (void)snprintf(text + n, NODE_HEALTH_TEXT_SIZE - n, ", %.1f GiB free in %.150s",
                       (double)h->disks[i].free_bytes / (1 << 30), h->disks[i].path);
    }
    return true;
}

bool node_health_read_gpus(const char *text, int *ret)
{
    return strncmp(text, fit_text, strlen(fit_text)) == 0 &&
           sscanf(text + strlen(fit_text), "%4d NVIDIA GPU", ret) == 1;
}
