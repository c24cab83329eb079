/*
 * Gradients averaged over the ranks while backward computes the rest of them.
 *
 * The array is cut into buckets once, from its end, because backward goes from the last layer to the
 * first. Cuts are the same on all ranks, so however finely each of them reports what is ready, all start
 * the same calls in the same order. Elements are combined one by one in rank order: buckets change no
 * bit.
 *
 * A bucket pays if its thread has a core and its share of the fixed cost is small. Both are measured at
 * creation: rank 0 counts cores and takes the time of a short call and of the whole array, and
 * broadcasts the result. With one bucket there is no thread: the array is reduced where the caller
 * waits.
 *
 * Ways it fails: a call that could not be started, or a peer's end. Everything that was started is
 * waited for in any case, and the first failure is the result.
 */

#include "base/cleanup.h"
#include "base/time.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUCKETS_MAX = 64,
    LINE = 16,           /* elements: cuts are at lines of the cache */
    PROBES = 5,          /* the fastest of so many counts */
    COST_SHARE_MAX = 10, /* a bucket's fixed cost is at most one part in so many of what it takes */
};

struct crw_reducer {
    struct crw_group *group;
    float *gradients;
    size_t count;
    size_t bucket; /* elements; the first of the array may be a smaller one */
    size_t n_buckets;
    size_t n_started; /* buckets, from the end */
    bool syncing;
    int result; /* of what could not be started */
    size_t n_works;
    struct crw_work *works[BUCKETS_MAX];
};

/* ---- cost ---- */

/* Started and waited for, as a bucket is. */
static int time_all_reduce(const struct crw_reducer *r, size_t count, double *ret_us)
{
    double fastest_us = 0;

    for (int i = 0; i < PROBES; i++) {
        struct crw_work *work;

        TRY(crw_barrier(r->group));
        double began_us = now_us();
        TRY(crw_all_reduce_start(r->group, r->gradients, count, CRW_F32, CRW_AVG, &work));
        TRY(crw_work_wait(work));
        double took_us = now_us() - began_us;
        if (i == 0 || took_us < fastest_us)
            fastest_us = took_us;
    }
    *ret_us = fastest_us;
    return 0;
}

/* Every rank computes on one core, and its thread needs another one. */
static bool has_spare_cores(const struct crw_group *group)
{
    return group->shm.n_cores >= 2 * group->shm.world_size;
}

/* Elements of a bucket: so many that the time is (share - 1) parts data and one part fixed cost. */
static size_t bucket_for(size_t count, double fixed_us, double all_us)
{
    double per_element_us = (all_us - fixed_us) / (double)count;

    if (per_element_us <= 0)
        return count; /* the data costs nothing beside the call */
    double wanted = (COST_SHARE_MAX - 1) * fixed_us / per_element_us;
    return wanted < (double)count ? (size_t)wanted : count;
}

/* Rank 0 decides. Times are taken by all, so that all call the same. */
static int choose_bucket(const struct crw_reducer *r, size_t *ret_bucket)
{
    uint64_t bucket = 0;
    double fixed_us, all_us;

    if (crw_is_primary(r->group))
        bucket = has_spare_cores(r->group) ? 0 : r->count;
    TRY(crw_broadcast(r->group, &bucket, sizeof(bucket), 0));
    if (bucket == 0) {
        TRY(time_all_reduce(r, r->count < LINE ? r->count : LINE, &fixed_us));
        TRY(time_all_reduce(r, r->count, &all_us));
        if (crw_is_primary(r->group))
            bucket = bucket_for(r->count, fixed_us, all_us);
        TRY(crw_broadcast(r->group, &bucket, sizeof(bucket), 0));
    }
    *ret_bucket = bucket;
    return 0;
}

/* Whole lines, and no more buckets than there is room for. */
static void cut_buckets(struct crw_reducer *r, size_t bucket)
{
    size_t smallest = (r->count + BUCKETS_MAX - 1) / BUCKETS_MAX;

    if (bucket < smallest)
        bucket = smallest;
    r->bucket = (bucket + LINE - 1) / LINE * LINE;
    r->n_buckets = (r->count + r->bucket - 1) / r->bucket;
}

/* ---- creation and end ---- */

int crw_reducer_create(struct crw_group *group, float *gradients, size_t count, size_t bucket_bytes,
                       struct crw_reducer **ret)
{
    _cleanup_free_ struct crw_reducer *r = NULL;
    size_t bucket = bucket_bytes / sizeof(float);

    NEED(group && ret && is_array(gradients, count, sizeof(*gradients)), CRW_E_ARGUMENT);
    if (count == 0)
        return crw_fail(CRW_E_ARGUMENT, "there are no gradients to reduce");
    r = calloc(1, sizeof(*r));
    TRY(group_agree(group, r ? 0 : crw_fail_errno(-ENOMEM, "cannot prepare the reduction of gradients")));
    assert(r); /* the ranks have agreed on that */
    *r = (struct crw_reducer){.group = group, .gradients = gradients, .count = count, .syncing = true};
    memset(gradients, 0, count * sizeof(*gradients));
    if (bucket_bytes == 0)
        TRY(choose_bucket(r, &bucket));
    cut_buckets(r, bucket);
    *ret = steal_ptr(r);
    return 0;
}

void crw_reducer_destroy(struct crw_reducer *r)
{
    if (!r)
        return;
    while (r->n_works > 0)
        (void)crw_work_wait(r->works[--r->n_works]); /* the result has no receiver */
    free(r);
}

size_t crw_reducer_n_buckets(const struct crw_reducer *r)
{
    return r ? r->n_buckets : 0;
}

void crw_reducer_set_sync(struct crw_reducer *r, bool sync)
{
    NEED(r);
    r->syncing = sync;
}

/* Where the buckets that are not started yet end. */
static size_t unstarted_end(const struct crw_reducer *r)
{
    size_t done = r->n_started * r->bucket;

    return done < r->count ? r->count - done : 0;
}

static size_t begin_of(const struct crw_reducer *r, size_t end)
{
    return end > r->bucket ? end - r->bucket : 0;
}

static int start_bucket(struct crw_reducer *r)
{
    size_t end = unstarted_end(r), begin = begin_of(r, end);
    int result = crw_all_reduce_start(r->group, r->gradients + begin, end - begin, CRW_F32, CRW_AVG,
                                      &r->works[r->n_works]);

    if (result == 0) {
        r->n_works++;
        r->n_started++;
    }
    return result;
}

/* A failure is kept for crw_reducer_finish(): backward cannot return it. */
void crw_reducer_ready(struct crw_reducer *r, size_t begin)
{
    NEED(r);
    if (!r->syncing || r->n_buckets == 1)
        return;
    while (r->result == 0 && unstarted_end(r) > 0 && begin_of(r, unstarted_end(r)) >= begin)
        r->result = start_bucket(r);
}

static int wait_for_buckets(struct crw_reducer *r)
{
    int result = 0;

    for (size_t i = 0; i < r->n_works; i++) {
        if (result == 0)
            result = crw_work_wait(r->works[i]);
        else
            (void)crw_work_wait(r->works[i]); /* the first one is returned */
    }
    r->n_works = r->n_started = 0;
    return result;
}

int crw_reducer_finish(struct crw_reducer *r)
{
    NEED(r, CRW_E_ARGUMENT);
    if (!r->syncing)
        return 0;
    if (r->n_buckets == 1)
        return crw_all_reduce(r->group, r->gradients, r->count, CRW_F32, CRW_AVG);
    crw_reducer_ready(r, 0);
    int started = r->result;
    r->result = 0;
    int waited = wait_for_buckets(r);
    return started != 0 ? started : waited;
}
