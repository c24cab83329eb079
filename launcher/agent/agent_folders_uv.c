#include "launcher/agent/agent_folders_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "launcher/output/logs_os.h"
#include "launcher/util/side_thread_uv.h"

enum { REMOVE_LIMIT_MS = 2000 };

struct agent_folders {
    uv_loop_t *loop;
    const struct logs *logs;
    bool all;
    bool has_begun, has_failed;
};

static void remove_folders(void *data)
{
    const struct agent_folders *f = data;

    if (f->all)
        logs_remove_temporary(f->logs);
    else
        logs_remove_empty(f->logs);
}

/* The folders belong to the agent. While the thread uses them, the process ends by _exit(). */
static void leave_folders(void *data)
{
}

static void on_removed(void *owner, void *data)
{
    struct agent_folders *f = owner;

    f->has_failed = !data;
}

void agent_folders_remove(struct agent_folders *f, bool all)
{
    const struct side_task task = {.run = remove_folders,
                                   .drop = leave_folders,
                                   .done = on_removed,
                                   .data = f,
                                   .owner = f,
                                   .limit_ms = REMOVE_LIMIT_MS};
    struct side_call *call;

    if (f->has_begun)
        return;
    f->has_begun = true;
    f->all = all;
    int r = f->logs->is_temporary ? side_thread_submit(&call, f->loop, &task) : 0;
    f->has_failed = r == -EBUSY;
    if (r && r != -EBUSY) /* there is no thread */
        remove_folders(f);
}

bool agent_folders_await(struct agent_folders *f)
{
    (void)uv_run(f->loop, UV_RUN_DEFAULT); /* ends when the last handle is closed */
    return !f->has_failed;
}

int agent_folders_create(struct agent_folders **ret, uv_loop_t *loop, const struct logs *logs)
{
    struct agent_folders *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->loop = loop;
    f->logs = logs;
    *ret = f;
    return 0;
}
