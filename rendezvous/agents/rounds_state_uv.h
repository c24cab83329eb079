#pragma once

/*
 * Where the rounds' state is kept: one interface in front of a directory (rounds_disk_uv.h) and of etcd
 * (rounds_etcd_uv.h).
 *
 * The write-ahead rule: the core's action "save" is passed to save(), and views of a job are held until all earlier saves of the job
 * are durable. Each save gets the next number as its mark. mark() is the mark that a view of a job waits for, done() the last
 * durable mark. After write() rounds_shell_saved() is called for each progress.
 *
 * rounds_shell.state is NULL where nothing is kept.
 */

#include <stdbool.h>
#include <stdint.h>

struct rounds;
struct rounds_job;
struct rounds_shell;
struct rounds_state;

struct rounds_state_kind {
    void (*start)(struct rounds_state *s); /* opens its handles, which server_handle_opened() counts */
    void (*stop)(struct rounds_state *s);  /* closes them */
    void (*close)(struct rounds_state *s); /* frees it: no handle is open, and nothing is being written */
    /* Restores the saved jobs. 0 or -errno; a sentence was logged. */
    int (*load)(struct rounds_state *s, struct rounds *rounds, uint64_t now_ns);
    /* The job is to be written, or to be removed, with the next write(). */
    void (*save)(struct rounds_state *s, const struct rounds_job *job);
    void (*forget)(struct rounds_state *s, const struct rounds_job *job);
    void (*write)(struct rounds_state *s); /* begins to write all changes */
    /* Has to be done before the present knowledge of the job may be sent; 0: none. */
    uint64_t (*mark)(struct rounds_state *s, const struct rounds_job *job);
    uint64_t (*done)(const struct rounds_state *s);
    uint64_t (*unsaved)(
        const struct rounds_state *s); /* since when (boot_ns()) a batch is being written; 0: none is */
    /* A state that several crunds share: rounds_shell_lead() and rounds_shell_depose() are called as the own crund leads or does
     * not. NULL and never called where the state belongs to a single crund. */
    /* The own crund takes part from now on; address: for agents. 0 or -errno; a sentence was logged. */
    int (*advertise)(struct rounds_state *s, const char *address);
    uint64_t (*term)(const struct rounds_state *s);      /* see session_view */
    const char *(*leader)(const struct rounds_state *s); /* HOST:PORT; "": not known */
    /* Whether the own crund may decide at now_ns if it leads: rounds_shell_depose() may be due. */
    bool (*holds)(const struct rounds_state *s, uint64_t now_ns);
};

/* The first member of each implementation. */
struct rounds_state {
    const struct rounds_state_kind *kind;
    struct rounds_shell *shell;
};

static inline bool rounds_state_is_shared(const struct rounds_state *s)
{
    return s && s->kind->leader;
}

/* Of the views that are sent now, see session_view. */
static inline uint64_t rounds_state_term(const struct rounds_state *s)
{
    return rounds_state_is_shared(s) ? s->kind->term(s) : 0;
}
