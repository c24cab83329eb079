#pragma once

/*
 * Where the rounds' state is kept: one interface in front of a directory (rounds_disk_uv.h) and of etcd
 * (rounds_etcd_uv.h).
 *
 * The write-ahead rule: the core's action "save" is passed to rounds_state_save(), and what is sent to the agents of a job
 * is held until everything that was saved of it before is durable. Marks say when that is: each save gets the next number,
 * rounds_state_mark() is what a view of a job has to wait for, and rounds_state_done() how far the writes have come. After
 * rounds_state_write() rounds_shell_saved() is called for each progress.
 *
 * All functions take a state that is NULL where nothing is kept, and then do nothing.
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
    void (*save)(struct rounds_state *s, const struct rounds_job *job);
    void (*forget)(struct rounds_state *s, const struct rounds_job *job);
    void (*write)(struct rounds_state *s);
    uint64_t (*mark)(struct rounds_state *s, const struct rounds_job *job);
    uint64_t (*done)(const struct rounds_state *s);
    uint64_t (*unsaved)(const struct rounds_state *s);
    /* Of a state that several crunds share; NULL: it is this one's alone, and these are not called. */
    int (*advertise)(struct rounds_state *s, const char *address);
    uint64_t (*term)(const struct rounds_state *s);
    const char *(*leader)(const struct rounds_state *s);
    bool (*holds)(const struct rounds_state *s, uint64_t now_ns);
};

/* The first member of each implementation. */
struct rounds_state {
    const struct rounds_state_kind *kind;
    struct rounds_shell *shell;
};

static inline void rounds_state_start(struct rounds_state *s)
{
    if (s)
        s->kind->start(s);
}

static inline void rounds_state_stop(struct rounds_state *s)
{
    if (s)
        s->kind->stop(s);
}

static inline void rounds_state_close(struct rounds_state *s)
{
    if (s)
        s->kind->close(s);
}

static inline int rounds_state_load(struct rounds_state *s, struct rounds *rounds, uint64_t now_ns)
{
    return s ? s->kind->load(s, rounds, now_ns) : 0;
}

/* To be written with the next rounds_state_write(). */
static inline void rounds_state_save(struct rounds_state *s, const struct rounds_job *job)
{
    if (s)
        s->kind->save(s, job);
}

/* The same for its removal. */
static inline void rounds_state_forget(struct rounds_state *s, const struct rounds_job *job)
{
    if (s)
        s->kind->forget(s, job);
}

/* Begins to write what has changed. */
static inline void rounds_state_write(struct rounds_state *s)
{
    if (s)
        s->kind->write(s);
}

/* The mark that has to be done before what is known of the job now may be sent; 0: it may. */
static inline uint64_t rounds_state_mark(struct rounds_state *s, const struct rounds_job *job)
{
    return s ? s->kind->mark(s, job) : 0;
}

/* Whether several crunds share it: then rounds_shell_lead() and rounds_shell_depose() are called as this one leads or does not. */
static inline bool rounds_state_is_shared(const struct rounds_state *s)
{
    return s && s->kind->leader;
}

/* This crund takes part from now on; agents reach it at that address. 0 or -errno; a sentence was logged. */
static inline int rounds_state_advertise(struct rounds_state *s, const char *address)
{
    return rounds_state_is_shared(s) ? s->kind->advertise(s, address) : 0;
}

/* Of the views that are sent now, see session_view. */
static inline uint64_t rounds_state_term(const struct rounds_state *s)
{
    return rounds_state_is_shared(s) ? s->kind->term(s) : 0;
}

/* Whether this crund may decide at that time, if it leads: rounds_shell_depose() may be due. */
static inline bool rounds_state_holds(const struct rounds_state *s, uint64_t now_ns)
{
    return !rounds_state_is_shared(s) || s->kind->holds(s, now_ns);
}

/* Where the crund that leads is, HOST:PORT; "": it is not known. */
static inline const char *rounds_state_leader(const struct rounds_state *s)
{
    return rounds_state_is_shared(s) ? s->kind->leader(s) : "";
}

/* Since when (boot_ns()) a batch is being written; 0: none is. */
static inline uint64_t rounds_state_unsaved(const struct rounds_state *s)
{
    return s ? s->kind->unsaved(s) : 0;
}

static inline uint64_t rounds_state_done(const struct rounds_state *s)
{
    return s ? s->kind->done(s) : UINT64_MAX;
}
