#include "rendezvous/server/job_stores_uv.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "base/random_os.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server/relay_shell_uv.h"
#include "rendezvous/relay/replica.h"
#include "rendezvous/relay/replica_state.h"
#include "rendezvous/relay/replica_stream.h"
#include "rendezvous/server/replica_uv.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/server/rounds_keys_uv.h"
#include "rendezvous/server/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/session/session_message.h"

/* Of a state, TURN_PIECES are written in a turn: half a millisecond, with their encryption. */
enum { LARGE_BYTES = 1 << 20, PAUSE_MS = 60000, COPY_AGAIN_MS = 5000, TURN_PIECES = 4 };

/* Where else the keys of a store are, if it has a replica. */
enum job_store_copy {
    COPY_NONE,    /* nowhere */
    COPY_SENDING, /* the backup gets its state, and the entries behind that; this crund goes on alone */
    COPY_CATCHING, /* the backup has the state, and lacks entries that this crund has executed; no further ones are */
    COPY_BACKUP,  /* the backup has them, and gets each entry; what is saved names it, or will */
    COPY_LEAVING, /* the backup is lost, and what was saved may still name it */
    COPY_HELD,    /* another crund serves them, and this one is its backup */
};

struct job_store {
    struct job_stores *owner;
    struct list link;   /* in job_stores.stores; unlinked: it ends */
    struct list active; /* in job_stores.active, while there is work */
    char job[SESSION_JOB_SIZE];
    uint64_t instance;
    uint32_t key_space;
    struct store store;
    uint64_t bytes; /* counted in job_stores.bytes */
    bool is_orphan;
    struct relay_shell *nodes;

    /* With replicas. */
    struct replica *replica; /* NULL: without */
    uint64_t
        number; /* in the stream to the backup, or from the crund that serves it; 0: a copy from before what the leader of now has sent */
    enum job_store_copy copy;
    uint64_t mark;      /* it is not served before that is saved; 0: it is */
    uint64_t paused_ms; /* since when `mark` cannot be saved, as this crund does not lead; 0: it can */
    uint64_t told;      /* COPY_HELD: entries that were confirmed */
    uint64_t passed;    /* the backup was sent all entries up to this number */
    uint64_t again_ms;  /* it is not copied before */
    struct replica_state_reader *reader; /* COPY_HELD: its state is not whole; NULL: it is */
};

struct job_stores {
    struct server *server;
    struct relay_shell *lobby; /* connections that have not named their keys yet */
    struct list stores, active;
    size_t n_stores;      /* whose memory is not freed yet */
    uint64_t bytes;       /* of all stores */
    uint64_t last_number; /* of a store with a replica */

    struct job_store *copying; /* to the backup: nothing of it is begun meanwhile; NULL: none */
    bool is_writing;   /* its state, and behind that its log; else it is waited for the end of an entry */
    bool is_confirmed; /* the backup has all of the state, before all of the log was sent */
    struct replica_state_writer writer;
    size_t log_offset;
};

/* ---- accounts ---- */

/* A job may use what the others leave of the server's limit, up to its own. */
static void account(struct job_store *st)
{
    const struct server_limits *limits = &st->owner->server->limits;
    uint64_t now = st->store.account.bytes, free_bytes;

    st->owner->bytes += now;
    st->owner->bytes -= st->bytes;
    st->bytes = now;
    free_bytes = limits->store.bytes_max > st->owner->bytes ? limits->store.bytes_max - st->owner->bytes : 0;
    uint64_t *bytes_max = st->replica ? &st->replica->bytes_max : &st->store.limits.bytes_max;
    *bytes_max = limits->job_store.bytes_max;
    if (now + free_bytes < *bytes_max)
        *bytes_max = now + free_bytes;
}

/* ---- replicas ---- */

static void end_store(struct job_store *st);

static void confirm_entries(struct job_store *st)
{
    uint64_t n = replica_confirmable(st->replica);

    if (st->reader || st->number == 0)
        return;
    if (n > st->told)
        replica_shell_confirm(st->owner->server->replicas, st->number, n);
    st->told = n;
}

/* What the two crunds have is not equal any more. */
static void fail_replica(struct job_store *st, int r)
{
    server_log(st->owner->server, NULL, "%s of job '%.64s' are lost: %s",
               st->copy == COPY_HELD ? "the copies of the keys" : "the keys", st->job, strerror(-r));
    if (st->copy == COPY_HELD)
        replica_shell_leave(st->owner->server->replicas); /* the crund that serves them goes on alone */
    end_store(st);
}

static void send_entry(struct job_store *st, struct wire_span entry)
{
    replica_shell_send_entry(st->owner->server->replicas, st->number, entry);
    st->passed++;
}

/* Does the backup have, or get, the entries of the store? */
static bool is_copied(const struct job_store *st)
{
    return st->copy == COPY_SENDING || st->copy == COPY_CATCHING || st->copy == COPY_BACKUP;
}

/* Those that come while the state is written follow it from the log. */
static void pass_entry_on(void *data, struct wire_span entry)
{
    struct job_store *st = data;

    if (is_copied(st) && st->owner->copying != st)
        send_entry(st, entry);
}

static void set_alone(struct job_store *st)
{
    st->replica->is_alone = st->copy == COPY_NONE || st->copy == COPY_SENDING;
}

static void activate(struct job_store *st)
{
    if (list_is_empty(&st->active))
        list_append(&st->owner->active, &st->active);
}

/* ---- replicas: a copy of a store that has keys ---- */

static bool needs_copy(const struct job_store *st)
{
    return st->copy == COPY_NONE && st->mark == 0 && st->paused_ms == 0 && !st->is_orphan &&
           uv_now(st->owner->server->loop) >= st->again_ms;
}

static void release_hold(struct job_stores *j)
{
    struct job_store *st = j->copying;

    j->copying = NULL;
    j->is_writing = false;
    st->replica->is_held = false;
    activate(st);
}

void job_stores_want_copies(struct job_stores *j)
{
    if (!j || j->copying || !rounds_shell_leads(j->server->rounds))
        return;
    list_for_each(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (!needs_copy(st))
            continue;
        j->copying = st;
        st->replica->is_held = true;
        server_want_turn(j->server);
        return;
    }
}

/* What its nodes have in common with the copy of it; it may have been another crund's. */
static struct replica_begin describe_store(const struct job_store *st)
{
    uint64_t bytes_max = st->owner->server->limits.job_store.bytes_max;
    struct replica_begin begin = {.space = {.instance = st->instance, .key_space = st->key_space},
                                  .limits = st->store.limits,
                                  .wire = *relay_shell_wire(st->nodes)};

    begin.limits.bytes_max = bytes_max > st->store.account.bytes ? bytes_max : st->store.account.bytes;
    memcpy(begin.seed, st->store.names.seed, sizeof(begin.seed));
    text_copy(begin.space.job, sizeof(begin.space.job), st->job);
    return begin;
}

/* False: not now, or the backup is about to be lost. */
static bool begin_copy(struct job_stores *j, struct job_store *st)
{
    struct replica_begin begin = describe_store(st);

    if (!replica_state_is_quiet(st->replica))
        return false; /* the next call of job_stores_want_copies() tries again */
    begin.is_copy = true;
    if (!replica_shell_send_begin(j->server->replicas, ++j->last_number, &begin))
        return false;
    st->number = j->last_number;
    st->copy = COPY_SENDING;
    st->passed = st->replica->executed;
    replica_state_writer_init(&j->writer, st->replica);
    j->log_offset = 0;
    j->is_writing = true;
    j->is_confirmed = false;
    return true;
}

/* It goes on alone, as if none had been begun. */
static void cancel_copy(struct job_store *st)
{
    if (st->owner->copying == st)
        release_hold(st->owner);
    if (st->copy != COPY_SENDING && st->copy != COPY_CATCHING)
        return;
    st->copy = COPY_NONE;
    st->again_ms = uv_now(st->owner->server->loop) + COPY_AGAIN_MS;
    set_alone(st);
    activate(st);
}

static void send_end(struct job_store *st)
{
    replica_shell_send_end(st->owner->server->replicas, st->number, st->passed - st->replica->confirmed);
}

/* Nothing is executed any more that the backup lacks, and it lacks nothing that was: it may be named. */
static void note_confirmed(struct job_store *st)
{
    if (st->copy == COPY_SENDING) {
        st->copy = COPY_CATCHING;
        replica_join(st->replica);
    }
    if (st->copy != COPY_CATCHING || !replica_has_joined(st->replica))
        return;
    st->copy = COPY_BACKUP;
    st->mark = UINT64_MAX;
    rounds_keys_gain_backup(st->owner->server->rounds);
}

/* As many bytes of the log as a piece has. False: all is sent. */
static bool send_log(struct job_stores *j, struct job_store *st)
{
    struct wire_span entry;

    for (size_t n = 0; n < REPLICA_STATE_PIECE_MAX; n += entry.size) {
        if (!replica_next_entry(st->replica, &j->log_offset, &entry))
            return false;
        send_entry(st, entry);
    }
    return true;
}

/* 0 or -ENOMEM. */
static int send_state(struct job_stores *j, struct job_store *st)
{
    struct buf piece = {0};
    int r = replica_state_write(&j->writer, &piece);

    if (r == 0 && buf_size(&piece) > 0 &&
        !replica_shell_send_state(j->server->replicas, st->number,
                                  wire_span(buf_bytes(&piece), buf_size(&piece))))
        r = -ENOMEM;
    buf_finish(&piece);
    return r;
}

/* A piece of the state, or of the log behind it. */
static void send_piece(struct job_stores *j, struct job_store *st)
{
    if (j->writer.stage == REPLICA_WRITE_DONE) {
        if (send_log(j, st))
            return;
        release_hold(j);
        if (j->is_confirmed)
            note_confirmed(st);
    } else if (send_state(j, st) < 0) {
        send_end(st);
        cancel_copy(st);
    }
}

static bool can_copy_on(const struct job_stores *j)
{
    return j->copying && (j->is_writing ? replica_shell_has_room(j->server->replicas)
                                        : j->copying->replica->stage == REPLICA_IDLE);
}

static void run_copy(struct job_stores *j)
{
    struct job_store *st = j->copying;

    if (!can_copy_on(j))
        return;
    if (!j->is_writing && !begin_copy(j, st)) {
        release_hold(j);
        list_unlink(&st->link); /* others are tried first */
        list_append(&j->stores, &st->link);
        return;
    }
    for (int i = 0; i < TURN_PIECES && j->copying && replica_shell_has_room(j->server->replicas); i++)
        send_piece(j, st);
    replica_shell_flush(j->server->replicas);
}

/* ---- turns ---- */

static bool is_work_left(struct job_store *st)
{
    if (st->replica)
        return relay_shell_is_busy(st->nodes);
    return !list_is_empty(&st->store.released) || relay_shell_is_busy(st->nodes) ||
           store_clean(&st->store, 0);
}

static void release_clients(struct job_store *st, unsigned max)
{
    while (!st->replica && !list_is_empty(&st->store.released) && max-- > 0) {
        struct list *entry = st->store.released.next;

        list_unlink(entry);
        relay_shell_release(st->nodes, list_entry(entry, struct store_client, released));
    }
    relay_shell_flush(st->nodes);
}

void job_stores_release(struct job_stores *j, unsigned max)
{
    if (!j)
        return;
    list_for_each_safe(i, &j->active)
    {
        struct job_store *st = list_entry(i, struct job_store, active);

        release_clients(st, max);
        account(st);
        if (!is_work_left(st))
            list_unlink(&st->active);
    }
}

bool job_stores_are_busy(const struct job_stores *j)
{
    return j && (!list_is_empty(&j->active) || can_copy_on(j));
}

void job_stores_run_turn(struct job_stores *j)
{
    struct job_store *st;

    if (!j)
        return;
    run_copy(j);
    if (list_is_empty(&j->active))
        return;
    st = list_entry(j->active.next, struct job_store, active);
    list_unlink(&st->active);
    list_append(&j->active, &st->active);
    if (!st->replica)
        (void)store_clean(&st->store, STORE_TURN_UNITS); /* is_work_left() asks again */
    int r = relay_shell_run_turn(st->nodes);
    if (r < 0)
        fail_replica(st, r);
    else if (st->copy == COPY_HELD)
        confirm_entries(st);
}

/* ---- stores ---- */

/* What a job's values have taken goes back to the system: glibc keeps it otherwise. */
static void free_job_store(void *data)
{
    struct job_store *st = data;

    store_finish(&st->store);
    free(st);
#ifdef __GLIBC__
    (void)malloc_trim(0); /* returns whether there was anything */
#endif
}

/* The last connection is closed. */
static void on_nodes_closed(void *data)
{
    struct job_store *st = data;

    bool is_large = st->bytes > LARGE_BYTES;

    st->owner->bytes -= st->bytes;
    st->owner->n_stores--;
    server_free_beside_the_loop(free_job_store, st, is_large ? UINT64_MAX : st->store.names.used);
}

static void end_store(struct job_store *st)
{
    if (is_copied(st))
        send_end(st);
    cancel_copy(st);
    if (st->reader)
        replica_state_reader_finish(st->reader);
    free(st->reader);
    st->reader = NULL;
    list_unlink(&st->link);
    list_unlink(&st->active);
    relay_shell_stop(st->nodes);
}

/* Nodes have not found their keys for longer than they look for them. */
static bool is_given_up(const struct job_store *st)
{
    return st->paused_ms > 0 && uv_now(st->owner->server->loop) - st->paused_ms >= PAUSE_MS;
}

/* Also after each sweep of the nodes, so an orphan ends some time after the last one of them. */
static void on_nodes_worked(void *data)
{
    struct job_store *st = data;

    if (list_is_empty(&st->link))
        return; /* it ends */
    account(st);
    if (st->replica)
        replica_shell_flush(st->owner->server->replicas);
    if (st->is_orphan && (!relay_shell_has_nodes(st->nodes) || is_given_up(st)))
        end_store(st);
    else
        activate(st);
}

static struct job_store *find_store(struct job_stores *j, const char *job, uint64_t instance,
                                    uint32_t key_space)
{
    list_for_each(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->instance == instance && st->key_space == key_space && strcmp(st->job, job) == 0)
            return st;
    }
    return NULL;
}

static void drop_others(struct job_stores *j, const char *job, uint64_t instance, uint32_t key_space)
{
    list_for_each_safe(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->instance == instance && st->key_space != key_space && st->copy != COPY_HELD &&
            strcmp(st->job, job) == 0)
            end_store(st);
    }
}

/* begin: of the crund that serves it; NULL: this one does. */
static int create_store(struct job_stores *j, const struct relay_space *space,
                        const struct replica_begin *begin, struct job_store **ret)
{
    bool has_replica = j->server->replicas != NULL;
    struct job_store *st = calloc(1, sizeof(*st));
    uint8_t seed[SIPHASH_SEED_SIZE];
    int r = st ? random_fill(seed, sizeof(seed)) : -ENOMEM;

    if (r == 0)
        r = store_init(&st->store, begin ? &begin->limits : &j->server->limits.job_store,
                       begin ? begin->seed : seed);
    if (r < 0) {
        free(st);
        return r;
    }
    const struct relay_shell_config config = {.server = j->server,
                                              .store = &st->store,
                                              .worked = on_nodes_worked,
                                              .closed = on_nodes_closed,
                                              .entry = has_replica ? pass_entry_on : NULL,
                                              .is_backup = begin != NULL,
                                              .wire = begin ? &begin->wire : &j->server->limits.wire,
                                              .data = st};
    r = relay_shell_create(&st->nodes, &config);
    if (r < 0) {
        free_job_store(st);
        return r;
    }
    st->owner = j;
    st->reader = begin && begin->is_copy ? calloc(1, sizeof(*st->reader)) : NULL;
    j->n_stores++;
    st->replica = relay_shell_replica(st->nodes);
    st->copy = begin ? COPY_HELD : COPY_NONE;
    st->instance = space->instance;
    st->key_space = space->key_space;
    text_copy(st->job, sizeof(st->job), space->job);
    list_init(&st->active);
    list_append(&j->stores, &st->link);
    account(st);
    *ret = st;
    return 0;
}

/* A new store with a replica is not served before it is saved where its keys are. */
static void begin_replica(struct job_store *st)
{
    struct server *s = st->owner->server;
    struct replica_begin begin = describe_store(st);

    st->number = ++st->owner->last_number;
    st->mark = UINT64_MAX;
    st->replica->is_blocked = true;
    if (replica_shell_backup(s->replicas) != 0 && replica_shell_send_begin(s->replicas, st->number, &begin))
        st->copy = COPY_BACKUP;
    set_alone(st);
}

void job_stores_begin(struct job_stores *j, const char *job, uint64_t instance, uint32_t key_space)
{
    struct relay_space space = {.instance = instance, .key_space = key_space};
    struct job_store *st;

    if (!j)
        return;
    drop_others(j, job, instance, key_space);
    st = find_store(j, job, instance, key_space);
    if (st)
        st->is_orphan = false; /* this process leads again */
    if (key_space == 0 || st)
        return;
    text_copy(space.job, sizeof(space.job), job);
    int r = create_store(j, &space, NULL, &st);
    if (r < 0)
        server_log(j->server, NULL, "cannot keep the keys of job '%.64s': %s", job, strerror(-r));
    else if (st->replica)
        begin_replica(st);
}

void job_stores_end(struct job_stores *j, const char *job, uint64_t instance)
{
    if (j)
        drop_others(j, job, instance, 0);
}

/* What it waits for is not saved by this crund: its nodes look for the one that leads. */
static void pause_store(struct job_store *st)
{
    st->mark = UINT64_MAX;
    st->replica->is_blocked = true;
    st->paused_ms = uv_now(st->owner->server->loop);
    relay_shell_cut(st->nodes);
}

void job_stores_orphan(struct job_stores *j)
{
    if (!j)
        return;
    list_for_each_safe(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        st->is_orphan = st->copy != COPY_HELD;
        if (st->copy == COPY_SENDING || st->copy == COPY_CATCHING)
            send_end(st); /* it cannot be saved that the backup has it */
        cancel_copy(st);
        if (st->mark > 0)
            pause_store(st);
        if (st->is_orphan && !relay_shell_has_nodes(st->nodes))
            end_store(st);
    }
}

size_t job_stores_n_stores(const struct job_stores *j)
{
    return j ? j->n_stores : 0;
}

uint64_t job_stores_n_bytes(const struct job_stores *j)
{
    return j ? j->bytes : 0;
}

/* ---- replicas: which crund serves the keys ---- */

bool job_stores_is_marked(struct job_stores *j, const struct rounds_job *job, uint64_t *ret_backup)
{
    const struct job_store *st = j ? find_store(j, job->id, job->instance, job->key_space) : NULL;

    *ret_backup = st && st->copy == COPY_BACKUP ? replica_shell_backup(j->server->replicas) : 0;
    return st && st->mark > 0;
}

static void open_store(struct job_store *st)
{
    st->mark = 0;
    st->paused_ms = 0;
    st->replica->is_blocked = false;
    if (st->copy == COPY_LEAVING)
        st->copy = COPY_NONE;
    set_alone(st);
    activate(st);
    if (st->copy == COPY_BACKUP)
        rounds_log(st->owner->server->rounds, "job '%.64s': its keys are at another crund, too", st->job);
}

void job_stores_set_mark(struct job_stores *j, const struct rounds_job *job, uint64_t mark)
{
    struct job_store *st = find_store(j, job->id, job->instance, job->key_space);

    if (!st)
        return;
    st->mark = mark;
    if (mark == 0)
        open_store(st); /* it is saved already */
}

void job_stores_saved(struct job_stores *j, uint64_t done)
{
    if (!j || !j->server->replicas)
        return;
    list_for_each(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->mark > 0 && st->mark <= done)
            open_store(st);
    }
    server_work_off(j->server);
}

bool job_stores_lose_backup(struct job_stores *j, bool leads)
{
    bool is_any = false;

    list_for_each(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        cancel_copy(st);
        if (st->copy != COPY_BACKUP)
            continue;
        st->copy = COPY_LEAVING;
        st->mark = UINT64_MAX;
        is_any = true;
        if (!leads)
            pause_store(st);
    }
    return is_any;
}

/* 0, or a copy that cannot be served. */
static int serve_copy(struct job_store *st)
{
    int r = replica_run_all(st->replica);

    st->copy = COPY_NONE;
    relay_shell_serve(st->nodes);
    return r;
}

/* By what is saved; an incomplete copy is never named there. */
static bool may_serve(const struct job_store *st, const struct rounds_job *job, uint64_t id)
{
    return st->replica && !st->reader && (st->copy == COPY_HELD ? job->keys_backup : job->keys_at) == id;
}

bool job_stores_serve(struct job_stores *j, const struct rounds_job *job, uint64_t id)
{
    struct job_store *st = find_store(j, job->id, job->instance, job->key_space);

    if (!st || !may_serve(st, job, id) || (st->copy == COPY_HELD && serve_copy(st) < 0))
        return false;
    st->is_orphan = false;
    st->paused_ms = 0;
    st->mark = UINT64_MAX;
    st->replica->is_blocked = true;
    return true;
}

void job_stores_end_rest(struct job_stores *j)
{
    list_for_each_safe(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->replica && (st->copy == COPY_HELD || st->mark == 0 || st->paused_ms > 0))
            end_store(st);
    }
}

/* ---- replicas: the copies of a backup ---- */

static struct job_store *find_copy(struct job_stores *j, uint64_t number)
{
    list_for_each(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->copy == COPY_HELD && st->number == number && number != 0)
            return st;
    }
    return NULL;
}

static void log_copy(const struct job_store *st)
{
    server_log(st->owner->server, NULL, "has the keys of job '%.64s', too", st->job);
}

int job_stores_copy_begin(struct job_stores *j, uint64_t number, const struct replica_begin *begin)
{
    const struct relay_space *space = &begin->space;
    struct job_store *st = find_store(j, space->job, space->instance, space->key_space);

    if (find_copy(j, number))
        return -EPROTO;
    if (st)
        end_store(st);
    int r = create_store(j, space, begin, &st);
    if (r < 0)
        return r;
    st->number = number;
    if (begin->is_copy && !st->reader) {
        end_store(st);
        return -ENOMEM;
    }
    if (begin->is_copy)
        replica_state_reader_init(st->reader, st->replica);
    else
        log_copy(st);
    return 0;
}

int job_stores_copy_state(struct job_stores *j, uint64_t number, struct wire_span piece)
{
    struct job_store *st = find_copy(j, number);
    int r = st && st->reader ? replica_state_read(st->reader, piece) : -EPROTO;

    if (r < 0)
        return r;
    account(st);
    if (!st->reader->is_done)
        return 0;
    replica_state_reader_finish(st->reader);
    free(st->reader);
    st->reader = NULL;
    st->told = replica_confirmable(st->replica);
    replica_shell_confirm(j->server->replicas, number, st->told);
    log_copy(st);
    return 0;
}

int job_stores_copy_entry(struct job_stores *j, uint64_t number, struct wire_span entry)
{
    struct job_store *st = find_copy(j, number);
    int r = st && !st->reader ? replica_receive(st->replica, entry.data, entry.size) : -EPROTO;

    if (r == 0)
        activate(st);
    return r;
}

void job_stores_copy_end(struct job_stores *j, uint64_t number)
{
    struct job_store *st = find_copy(j, number);

    if (st)
        end_store(st);
}

void job_stores_confirm_copies(struct job_stores *j)
{
    list_for_each(i, &j->active)
    {
        struct job_store *st = list_entry(i, struct job_store, active);

        if (st->copy == COPY_HELD)
            confirm_entries(st);
    }
    server_work_off(j->server);
}

void job_stores_age_copies(struct job_stores *j)
{
    list_for_each_safe(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->copy == COPY_HELD)
            st->number = 0;
        if (st->reader)
            end_store(st);
    }
}

void job_stores_drop_copies(struct job_stores *j)
{
    list_for_each_safe(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->copy == COPY_HELD && st->number == 0)
            end_store(st);
    }
}

bool job_stores_have_keys(const struct job_stores *j)
{
    list_for_each(i, &j->stores)
    {
        const struct job_store *st = list_entry(i, struct job_store, link);

        if (!st->reader && st->paused_ms == 0 && (st->copy != COPY_HELD || st->number > 0))
            return true;
    }
    return false;
}

uint64_t job_stores_confirm(struct job_stores *j, uint64_t number, uint64_t n)
{
    list_for_each(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (!is_copied(st) || st->number != number)
            continue;
        uint64_t before = st->replica->confirmed;
        replica_confirm(st->replica, n);
        if (j->copying != st)
            note_confirmed(st);
        else
            j->is_confirmed = j->writer.stage == REPLICA_WRITE_DONE;
        activate(st);
        return st->replica->confirmed - before;
    }
    return 0;
}

/* ---- connections ---- */

static struct relay_shell *find_nodes(void *data, const struct tls_link *tls, const struct relay_space *space,
                                      bool *ret_later)
{
    struct job_stores *j = data;
    bool may = tls_link_is_certified(tls) || strcmp(tls_link_job(tls), space->job) == 0;
    struct job_store *st = may ? find_store(j, space->job, space->instance, space->key_space) : NULL;

    /* A crund that does not lead may have them soon, or another one has. */
    *ret_later = may && (st ? st->copy == COPY_HELD || st->paused_ms > 0
                            : j->server->replicas && !rounds_shell_leads(j->server->rounds));
    return st && !*ret_later ? st->nodes : NULL;
}

void job_stores_adopt(struct job_stores *j, int fd, struct tls_link *tls, const struct buf *plain)
{
    int r = relay_conn_adopt(j->lobby, fd, tls, plain);

    if (r < 0)
        server_log(j->server, NULL, "refused a node's store: %s", strerror(-r));
}

/* ---- life ---- */

int job_stores_create(struct job_stores **ret, struct server *s)
{
    struct job_stores *j = calloc(1, sizeof(*j));
    const struct relay_shell_config config = {.server = s, .find = find_nodes, .data = j};

    if (!j || relay_shell_create(&j->lobby, &config) < 0) {
        free(j);
        return -ENOMEM;
    }
    j->server = s;
    list_init(&j->stores);
    list_init(&j->active);
    *ret = j;
    return 0;
}

void job_stores_stop(struct job_stores *j)
{
    if (!j)
        return;
    while (!list_is_empty(&j->stores))
        end_store(list_entry(j->stores.next, struct job_store, link));
    relay_shell_stop(j->lobby);
}

void job_stores_destroy(struct job_stores *j)
{
    free(j);
}
