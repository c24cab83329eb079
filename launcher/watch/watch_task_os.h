#pragma once

/*
 * What the watch's thread does: one look at the workers of the node, or their stacks, as files and as a report.
 *
 * The files are in FOLDER/stacks_N, for the user alone: rank_R.txt has each process of the rank, with what /proc and the tool
 * have about its threads; nccl_ras.txt and nccl_ras.json the answers of NCCL's RAS service where that listens. PyTorch's flight
 * recorder, where it has been given pipes (TORCH_NCCL_DEBUG_INFO_PIPE_FILE), gets the order to write its own files.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "launcher/watch/hang_report.h"
#include "launcher/watch/proc_sample_os.h"
#include "launcher/watch/progress.h"
#include "launcher/watch/stack_tool_os.h"
#include "launcher/watch/stall_look_os.h"

enum watch_work {
    WATCH_LOOK,
    WATCH_STACKS,
    WATCH_NATIVE, /* after WATCH_STACKS: native frames of Python programs, which take longer, are added to the files */
};

struct stack_set {
    struct stack_job *jobs;
    struct stack_process {
        int worker;        /* it belongs to */
        char state;        /* before any tool has paused it */
        char *description; /* the same; NULL: none */
    } * processes;         /* of each job */
    size_t n;
};

struct watch_task {
    char *const *environment;
    const char *python;
    int n_workers;
    const int *state_fds;
    struct stack_tools tools;
    bool has_tools;    /* they were looked for */
    bool lacks_py_spy; /* as of the last report; a worker is Python */
    struct proc_tree *trees, *old_trees;
    uint64_t *found_bytes; /* of the processes of each worker, when they were found */
    int n_looks;           /* the trees are from one before */
    bool was_late;         /* the tools did not end in time at the last look at places */
    /* The order. */
    enum watch_work work;
    bool lists;                      /* of WATCH_LOOK: looks for descendants of the workers now */
    bool with_progress, with_places; /* of WATCH_LOOK: samples for progress.h */
    bool with_waits, describes;      /* of WATCH_LOOK: samples for waits.h, and all ranks */
    bool takes_stacks;               /* for that description */
    bool may_pause;                  /* for those stacks: programs other than Python */
    uint64_t timeout_ns;             /* of --hang-timeout */
    int rank_base;
    uint16_t store_port; /* of the worker store; 0: not known */
    pid_t *pids;
    bool *have_succeeded;
    char folder[4096]; /* of the logs; the result: of the files */
    size_t n_hidden;   /* with `link`: bytes of `folder` in front of the name on other machines */
    int n_folder;      /* number of the folder of the files */
    uint32_t attempt;
    int link; /* for output_handover_file(), which gets the complete files; 0: files stay */
    /* The results. */
    struct progress_sample *samples;
    struct stall_look stall;
    char *text;
    char nccl[HANG_NCCL_SIZE];      /* a line of the text */
    bool folder_made, is_delivered; /* its name was reported */
    int first_worker;
    bool stands_out;
    struct hang_rank *ranks; /* as sorted for the text; NULL without memory */
    size_t n_ranks;
    char host[256];       /* of the ranks */
    struct stack_set set; /* from WATCH_STACKS to WATCH_NATIVE */
};

/* 0 or -ENOMEM; the arguments must live as long. */
int watch_task_init(struct watch_task *t, char *const *environment, const char *python, int n_workers,
                    const int *state_fds);

/* Removes the files of stacks that were not delivered. */
void watch_task_finish(struct watch_task *t);

/* NULL: no files. */
void watch_task_set_folder(struct watch_task *t, const char *folder);

/* task: struct watch_task. */
void watch_task_run(void *task);
