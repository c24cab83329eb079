#include "launcher/snapshots/snapshots_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/snapshots/block_requests_uv.h"
#include "launcher/snapshots/snapshot_round.h"
#include "launcher/snapshots/snapshot_saver_uv.h"
#include "launcher/snapshots/state_memory_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"

enum {
    REPEAT_MIN_MS = 200,
    REPEAT_MAX_MS = 3200,
    LOG_MS = 10000,
    CALLS_MAX = 4, /* of a worker at once */
    N_SLOTS = 2,
    MEBIBYTE = 1 << 20,
};

enum verdict { VERDICT_NONE, VERDICT_GOOD, VERDICT_BAD };

/* A worker of this node. */
struct keeper {
    struct state_memory *memory;   /* NULL: no worker of the local rank has asked yet */
    struct block_channel *waiting; /* for the choice, or for the end of an attempt; NULL: no */
    struct blocks_record request;  /* of .waiting */
    enum verdict verdict;          /* on the choice of the attempt */
    bool has_reject;
    uint64_t reject; /* steps from here on are bad */
};

struct snapshots {
    struct snapshots_host host;
    struct block_requests *requests;
    struct snapshot_saver *saver;
    struct list calls;
    uv_timer_t timer;
    struct snapshot_place place;
    bool has_place;
    bool has_round; /* of the generation, from the first worker or node on that asks */
    bool has_sent;  /* the HAVE of the node */
    uint64_t pause_ms, sent_ms;
    struct snapshot_round round;
    int n_keepers;
    struct keeper keepers[];
};

/* ---- requests that take time ---- */

/* A request that a thread carries out. */
struct slow_request {
    struct list siblings; /* of snapshots.calls */
    struct side_call *call;
    struct block_channel *channel; /* where the answer goes */
};

/* The part of the thread. */
struct slow_work {
    struct state_memory *memory;
    struct blocks_record answer; /* the request at first */
    uint32_t slot;
    struct state_block block;
    int fd; /* of a copied block; -1: none */
};

static void free_work(void *data)
{
    struct slow_work *w = data;

    if (!w)
        return;
    state_memory_unref(w->memory);
    close_fd(&w->fd);
    free(w);
}

static void answer_request(const struct block_channel *channel, const struct blocks_record *request,
                           int status, struct blocks_record answer)
{
    answer.kind = request->kind;
    answer.id = request->id;
    answer.status = (uint32_t)-status;
    block_channel_answer(channel, &answer, -1);
}

static void on_work_done(void *owner, void *data)
{
    struct slow_request *request = owner;
    struct slow_work *w = data;

    block_channel_answer(request->channel, &w->answer, w->fd);
    free_work(w);
    list_unlink(&request->siblings);
    free(request);
}

static int count_requests(const struct snapshots *s, const struct block_channel *channel)
{
    int n = 0;

    list_for_each_entry(struct slow_request, request, &s->calls, siblings) n += request->channel == channel;
    return n;
}

static int submit(struct snapshots *s, struct block_channel *channel, const struct blocks_record *record,
                  struct slow_work *w, void (*run)(void *data))
{
    struct slow_request *request =
        count_requests(s, channel) < CALLS_MAX ? calloc(1, sizeof(*request)) : NULL;
    const struct side_task task = {
        .kind = SIDE_OTHER, .run = run, .drop = free_work, .done = on_work_done, .data = w, .owner = request};

    if (!request)
        return -EAGAIN;
    w->answer = (struct blocks_record){.kind = record->kind,
                                       .id = record->id,
                                       .step = record->step,
                                       .rank = record->rank,
                                       .bytes = record->bytes};
    *request = (struct slow_request){.channel = channel};
    int r = side_thread_submit(&request->call, s->host.loop, &task);
    if (r) {
        free(request);
        return r;
    }
    list_append(&s->calls, &request->siblings);
    return 0;
}

/* Starts the work on a memory, or answers with the error. */
static void start_work(struct snapshots *s, struct block_channel *channel, const struct blocks_record *record,
                       const struct slow_work *work, void (*run)(void *data))
{
    struct slow_work *w = malloc(sizeof(*w));
    int r = -ENOMEM;

    if (w) {
        *w = *work;
        w->memory = state_memory_ref(work->memory);
        r = submit(s, channel, record, w, run);
    }
    if (r) {
        free_work(w);
        answer_request(channel, record, r, (struct blocks_record){0});
    }
}

static void drop_requests(struct snapshots *s, const struct block_channel *channel)
{
    list_for_each_entry_safe(struct slow_request, request, &s->calls, siblings)
    {
        if (channel && request->channel != channel)
            continue;
        list_unlink(&request->siblings);
        free_work(side_thread_cancel(request->call));
        free(request);
    }
}

static void size_in_thread(void *data)
{
    struct slow_work *w = data;
    uint64_t room = 0;
    int r = state_memory_size(w->memory, w->answer.bytes, &room);

    w->answer.status = (uint32_t)-r;
    w->answer.arg = r == -ENOMEM ? (uint32_t)(room / MEBIBYTE) : N_SLOTS;
}

static void copy_in_thread(void *data)
{
    struct slow_work *w = data;

    w->answer.status = (uint32_t)-state_memory_copy(w->memory, w->slot, &w->block, &w->fd);
    w->answer.bytes = w->block.bytes;
    w->answer.checksum = w->block.checksum;
    w->answer.checksum_kind = w->block.checksum_kind;
    w->answer.generation = w->block.generation;
    w->answer.tier = TIER_MEMORY;
}

static void on_size(struct snapshots *s, struct block_channel *channel, const struct blocks_record *request)
{
    const struct slow_work work = {.memory = s->keepers[channel->local_rank].memory, .fd = -1};

    start_work(s, channel, request, &work, size_in_thread);
}

static bool find_block(const struct snapshots *s, const struct blocks_record *request, uint32_t asker,
                       struct slow_work *ret)
{
    for (int i = 0; i < s->n_keepers; i++) {
        struct slow_work w = {.memory = s->keepers[i].memory, .fd = -1};
        bool is_own = (uint32_t)i == asker && request->arg == BLOCKS_NOT_OWN_MEMORY;
        if (w.memory && !is_own &&
            state_memory_find(w.memory, request->rank, request->step, request->generation, &w.slot,
                              &w.block)) {
            *ret = w;
            return true;
        }
    }
    return false;
}

static void on_block(struct snapshots *s, struct block_channel *channel, const struct blocks_record *request)
{
    struct slow_work work;

    if (find_block(s, request, channel->local_rank, &work))
        start_work(s, channel, request, &work, copy_in_thread);
    else
        answer_request(channel, request, -ENOENT, (struct blocks_record){0});
}

/* ---- the agreement ---- */

static size_t list_blocks(const struct snapshots *s, struct block_run runs[ROUND_RUNS_MAX])
{
    struct state_table table;
    size_t n = 0;

    for (int i = 0; i < s->n_keepers; i++) {
        if (!s->keepers[i].memory || state_memory_table(s->keepers[i].memory, &table) != 0)
            continue;
        for (uint32_t k = 0; k < table.n_slots; k++) {
            const struct state_block *b = &table.slots[k];
            const struct block_run run = {.step = b->number - 1,
                                          .generation = b->generation,
                                          .world_size = b->world_size,
                                          .first = b->rank,
                                          .n = 1,
                                          .tier = TIER_MEMORY,
                                          .node = s->place.node};
            if (b->number > 0)
                (void)block_runs_add(runs, &n, ROUND_RUNS_MAX,
                                     &run); /* no room: a block that is not offered */
        }
    }
    return n;
}

static void answer_choice(struct snapshots *s, struct keeper *k)
{
    const struct snapshot_choice *c = &s->round.choice;
    const struct blocks_record answer = {.bytes = c->exists ? c->step + 1 : 0,
                                         .step = c->step,
                                         .arg = c->world_size,
                                         .generation = c->generation};

    if (k->waiting)
        answer_request(k->waiting, &k->request, s->round.is_final ? 0 : -EAGAIN, answer);
    k->waiting = NULL;
}

/* Answers requests as far as the agreement allows. */
static void answer_waiting(struct snapshots *s)
{
    if (!s->has_sent || s->round.waits)
        return;
    if (s->round.is_final && s->round.choice.exists)
        snapshot_saver_continue(s->saver, s->round.choice.step, s->round.choice.generation);
    for (int i = 0; i < s->n_keepers; i++) {
        struct keeper *k = &s->keepers[i];
        bool has_result = k->request.kind == BLOCKS_STEP || s->round.is_final || k->verdict == VERDICT_NONE;
        if (k->waiting && has_result)
            answer_choice(s, k);
    }
}

static void on_repeat(uv_timer_t *timer);

static void repeat_later(struct snapshots *s)
{
    (void)uv_timer_start(&s->timer, on_repeat, s->pause_ms, 0); /* fails only without a callback */
}

static void on_repeat(uv_timer_t *timer)
{
    struct snapshots *s = timer->data;
    uint64_t waited_ms = uv_now(s->host.loop) - s->sent_ms;
    struct round_message m;
    int32_t to;

    if (!snapshot_round_repeat(&s->round, &m, &to))
        return;
    s->host.send(s->host.data, to, &m);
    if (waited_ms >= LOG_MS && waited_ms - s->pause_ms < LOG_MS)
        log_line(
            "the workers wait for a step to continue from, and node 0 has not answered for %u s: have the "
            "workers of all nodes asked for the step, and do all nodes run this version of crun?",
            (unsigned)(waited_ms / 1000));
    s->pause_ms = s->pause_ms * 2 < REPEAT_MAX_MS ? s->pause_ms * 2 : REPEAT_MAX_MS;
    repeat_later(s);
}

static void send_have(struct snapshots *s, bool is_good)
{
    struct block_run runs[ROUND_RUNS_MAX];
    size_t n = list_blocks(s, runs);
    struct round_message m;
    int32_t to;

    s->has_sent = true;
    s->pause_ms = REPEAT_MIN_MS;
    s->sent_ms = uv_now(s->host.loop);
    if (snapshot_round_have(&s->round, is_good, runs, n, &m, &to))
        s->host.send(s->host.data, to, &m);
    repeat_later(s);
    for (int i = 0; i < s->n_keepers; i++)
        s->keepers[i].verdict = VERDICT_NONE;
    answer_waiting(s);
}

static void take_verdict(struct snapshots *s, struct keeper *k, const struct blocks_record *request)
{
    bool is_good = true;
    uint32_t slot;
    struct state_block block;

    if (s->round.waits || s->round.is_final || request->step != s->round.choice.step ||
        request->generation != s->round.choice.generation)
        return; /* late: the answer has the present choice */
    k->verdict = request->status == 0 ? VERDICT_GOOD : VERDICT_BAD;
    if (request->status != 0 &&
        state_memory_find(k->memory, request->rank, request->step, request->generation, &slot, &block))
        state_memory_clear(k->memory, slot, &block);
    for (int i = 0; i < s->n_keepers; i++) {
        if (s->keepers[i].verdict == VERDICT_NONE)
            return;
        is_good = is_good && s->keepers[i].verdict == VERDICT_GOOD;
    }
    send_have(s, is_good);
}

/* A job without blocks never comes here: sends nothing, and has no timer. 0 or -ENOMEM. */
static int open_round(struct snapshots *s)
{
    int r = s->has_round ? 0 : snapshot_round_begin(&s->round, s->place.node, s->place.n_nodes);

    s->has_round = r == 0;
    return r;
}

static void take_wait(struct snapshots *s, struct keeper *k)
{
    int r = open_round(s);

    if (r) {
        answer_request(k->waiting, &k->request, r, (struct blocks_record){0});
        k->waiting = NULL;
        return;
    }
    if (!s->has_sent)
        send_have(s, true);
    else if (k->request.kind == BLOCKS_VERDICT)
        take_verdict(s, k, &k->request);
    answer_waiting(s);
}

/* A worker may be faster than the report of its start: then its request waits for snapshots_begin(). */
static void on_wait(struct snapshots *s, struct block_channel *channel, const struct blocks_record *request)
{
    struct keeper *k = &s->keepers[channel->local_rank];

    k->waiting = channel;
    k->request = *request;
    if (s->has_place && channel->generation <= s->place.generation)
        take_wait(s, k);
}

void snapshots_take(struct snapshots *s, const struct round_message *message)
{
    struct round_message answer;
    int32_t to;

    if (!s->has_place || open_round(s) < 0)
        return; /* the sender repeats */
    if (snapshot_round_take(&s->round, message, &answer, &to))
        s->host.send(s->host.data, to, &answer);
    answer_waiting(s);
}

/* ---- a generation ---- */

/* Blocks of rejected steps are no longer offered. */
static void clear_rejected(struct keeper *k)
{
    struct state_table table;

    if (!k->has_reject || !k->memory || state_memory_table(k->memory, &table) != 0)
        return;
    for (uint32_t i = 0; i < table.n_slots; i++)
        if (table.slots[i].number > k->reject)
            state_memory_clear(k->memory, i, &table.slots[i]);
    k->has_reject = false;
}

void snapshots_begin(struct snapshots *s, const struct snapshot_place *place)
{
    s->place = *place;
    snapshot_saver_begin(s->saver, place);
    for (int i = 0; i < s->n_keepers; i++)
        clear_rejected(&s->keepers[i]);
    snapshot_round_finish(&s->round);
    s->round = (struct snapshot_round){0};
    s->has_place = true;
    s->has_round = s->has_sent = false;
    (void)uv_timer_stop(&s->timer); /* cannot fail on a timer that exists */
    for (int i = 0; i < s->n_keepers; i++) {
        struct keeper *k = &s->keepers[i];
        k->verdict = VERDICT_NONE;
        if (k->waiting && k->waiting->generation == place->generation)
            take_wait(s, k);
        else
            k->waiting = NULL;
    }
}

/* ---- workers ---- */

static void on_request(void *data, struct block_channel *channel, const struct blocks_record *request)
{
    struct snapshots *s = data;
    struct keeper *k = &s->keepers[channel->local_rank];

    if (!k->memory)
        k->memory = state_memory_open(s->host.memory->states[channel->local_rank]);
    if (!k->memory) {
        answer_request(channel, request, -errno, (struct blocks_record){0});
        return;
    }
    switch (request->kind) {
    case BLOCKS_SIZE:
        on_size(s, channel, request);
        break;
    case BLOCKS_STEP:
    case BLOCKS_VERDICT:
        on_wait(s, channel, request);
        break;
    case BLOCKS_BLOCK:
        on_block(s, channel, request);
        break;
    case BLOCKS_WHOLE:
        if (s->has_place && channel->generation == s->place.generation)
            snapshot_saver_take(s->saver, (int)channel->local_rank, k->memory, request->rank, request->step);
        break;
    case BLOCKS_FOLDER:
        snapshot_saver_set_folder(s->saver, request->text, request->arg);
        break;
    case BLOCKS_REJECT:
        k->reject = k->has_reject && k->reject < request->step ? k->reject : request->step;
        k->has_reject = true;
        answer_request(channel, request, 0, (struct blocks_record){0});
        break;
    default: /* of a later version */
        break;
    }
}

static void on_gone(void *data, struct block_channel *channel)
{
    struct snapshots *s = data;
    struct keeper *k = &s->keepers[channel->local_rank];

    if (k->waiting == channel)
        k->waiting = NULL;
    drop_requests(s, channel);
}

static void on_saved(void *data, uint64_t step)
{
    const struct snapshots *s = data;
    const struct blocks_record record = {.kind = BLOCKS_SAVED, .step = step};

    block_requests_tell(s->requests, &record);
}

/* ---- life ---- */

int snapshots_open(struct snapshots **ret, const struct snapshots_host *host)
{
    int n = host->memory->n_workers;
    _cleanup_free_ struct snapshots *s = calloc(1, sizeof(*s) + (size_t)n * sizeof(s->keepers[0]));

    if (host->memory->door[0] < 0)
        return -ENODEV;
    if (!s)
        return -ENOMEM;
    s->host = *host;
    s->n_keepers = n;
    list_init(&s->calls);
    const struct block_requests_host requests = {.loop = host->loop,
                                                 .door = host->memory->door[0],
                                                 .n_workers = (uint32_t)n,
                                                 .on_request = on_request,
                                                 .on_gone = on_gone,
                                                 .data = s};
    const struct saver_host saver = {.loop = host->loop, .n_workers = n, .on_saved = on_saved, .data = s};
    s->saver = snapshot_saver_create(&saver);
    if (!s->saver)
        return -ENOMEM;
    int r = block_requests_open(&s->requests, &requests);
    if (r) {
        snapshot_saver_end(s->saver, NULL, NULL);
        return r;
    }
    (void)uv_timer_init(host->loop, &s->timer); /* cannot fail */
    s->timer.data = s;
    *ret = steal_ptr(s);
    return 0;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct snapshots *s = handle->data;

    for (int i = 0; i < s->n_keepers; i++)
        state_memory_unref(s->keepers[i].memory);
    snapshot_round_finish(&s->round);
    free(s);
}

static struct state_memory *memory_of(const void *data, int worker)
{
    const struct snapshots *s = data;

    return s->keepers[worker].memory;
}

void snapshots_close(struct snapshots *s)
{
    if (!s)
        return;
    drop_requests(s, NULL);
    for (int i = 0; i < s->n_keepers; i++)
        clear_rejected(&s->keepers[i]);
    snapshot_saver_end(s->saver, memory_of, s);
    block_requests_close(s->requests);
    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}
