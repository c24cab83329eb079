#include "launcher/cli/numa.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"

int numa_refuse(char error[NUMA_ERROR_SIZE], const char *format, ...)
{
    (void)format_arguments(error, NUMA_ERROR_SIZE, format); /* a cut sentence is still the best we have */
    return NUMA_E_IMPOSSIBLE;
}

void numa_finish(struct numa_topology *t)
{
    free(t->node_cpus);
    free(t->cpus);
    free(t->places);
    *t = (struct numa_topology){0};
}

/* ---- sets ---- */

bool numa_cpus_has(const struct numa_cpus *cpus, int cpu)
{
    return cpu >= 0 && cpu < NUMA_CPUS_MAX && cpus->bits[cpu / 64] >> (cpu % 64) & 1;
}

void numa_cpus_add(struct numa_cpus *cpus, int cpu)
{
    cpus->bits[cpu / 64] |= UINT64_C(1) << (cpu % 64);
}

int numa_cpus_count(const struct numa_cpus *cpus)
{
    int n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(cpus->bits); i++)
        n += __builtin_popcountll(cpus->bits[i]);
    return n;
}

int numa_cpus_lowest(const struct numa_cpus *cpus)
{
    for (int cpu = 0; cpu < NUMA_CPUS_MAX; cpu++)
        if (numa_cpus_has(cpus, cpu))
            return cpu;
    return -1;
}

/* A number below NUMA_CPUS_MAX at *s; moves behind it. */
static bool take_number(const char **s, int *ret)
{
    int value = 0;

    if (**s < '0' || **s > '9')
        return false;
    for (; **s >= '0' && **s <= '9'; (*s)++)
        if ((value = value * 10 + (**s - '0')) >= NUMA_CPUS_MAX)
            return false;
    *ret = value;
    return true;
}

bool numa_cpus_parse(const char *list, struct numa_cpus *ret)
{
    struct numa_cpus cpus = {0};
    const char *s = list + strspn(list, " \n");

    while (*s) {
        int from, to;

        if (!take_number(&s, &from))
            return false;
        to = from;
        if (*s == '-' && (s++, !take_number(&s, &to)))
            return false;
        for (int cpu = from; cpu <= to; cpu++)
            numa_cpus_add(&cpus, cpu);
        s += strspn(s, " \n");
        if (*s && *s++ != ',')
            return false;
        s += strspn(s, " \n");
    }
    *ret = cpus;
    return true;
}

/* ---- modes ---- */

/* The CPUs of a node that this process may use. */
static struct numa_cpus allowed_of(const struct numa_topology *t, int node)
{
    struct numa_cpus cpus = {0};

    for (size_t i = 0; node < t->n_nodes && i < ARRAY_SIZE(cpus.bits); i++)
        cpus.bits[i] = t->node_cpus[node].bits[i] & t->allowed.bits[i];
    return cpus;
}

static int bind_socket(const struct numa_topology *t, const struct numa_cpus *own, struct numa_cpus *out)
{
    int package = t->cpus[numa_cpus_lowest(own)].package;

    *out = (struct numa_cpus){0};
    for (int node = 0; node < t->n_nodes; node++) {
        struct numa_cpus cpus = allowed_of(t, node);
        int first = numa_cpus_lowest(
            &cpus); /* stands for its node; a node without one belongs to no socket of ours */
        if (first < 0 || t->cpus[first].package != package)
            continue;
        for (size_t i = 0; i < ARRAY_SIZE(cpus.bits); i++)
            out->bits[i] |= cpus.bits[i];
    }
    return 0;
}

/* How many places the node of this one has, and which of them it is. */
static int places_of_node(const struct numa_topology *t, int place, int *ret_index)
{
    int n = 0;

    for (int i = 0; i < t->n_places; i++) {
        if (i == place)
            *ret_index = n;
        n += t->places[i] == t->places[place];
    }
    return n;
}

/* A group of CPUs: those with the same core, or the same cache. */
struct group_of_cpus {
    int name, n_cpus;
};

struct grouping {
    struct group_of_cpus *groups; /* ascending by name at first */
    int n_groups;
};

static int group_name_of(const struct numa_topology *t, int cpu, bool by_cache)
{
    return by_cache ? t->cpus[cpu].cache : t->cpus[cpu].core;
}

static int compare_names(const void *a, const void *b)
{
    const struct group_of_cpus *x = a, *y = b;

    return (x->name > y->name) - (x->name < y->name);
}

/* The largest first, then the one with the lowest name. */
static int compare_sizes(const void *a, const void *b)
{
    const struct group_of_cpus *x = a, *y = b;

    return x->n_cpus != y->n_cpus ? y->n_cpus - x->n_cpus : compare_names(a, b);
}

/* The caller frees groups. Without memory there are none. */
static struct grouping group_cpus(const struct numa_topology *t, const struct numa_cpus *cpus, bool by_cache)
{
    struct group_of_cpus *groups = calloc((size_t)numa_cpus_count(cpus), sizeof(*groups));
    int n = 0, n_members = 0;

    for (int cpu = 0; groups && cpu < t->n_cpus; cpu++)
        if (numa_cpus_has(cpus, cpu))
            groups[n_members++].name = group_name_of(t, cpu, by_cache);
    if (groups)
        qsort(groups, (size_t)n_members, sizeof(*groups), compare_names);
    for (int i = 0; i < n_members; i++) { /* equal entries, which are adjacent, become one */
        if (n == 0 || groups[n - 1].name != groups[i].name)
            groups[n++] = (struct group_of_cpus){.name = groups[i].name};
        groups[n - 1].n_cpus++;
    }
    return (struct grouping){.groups = groups, .n_groups = n};
}

/* Of cpus, those in groups [from, to). */
static void take_groups(const struct numa_topology *t, const struct numa_cpus *cpus, const struct grouping *g,
                        bool by_cache, int from, int to, struct numa_cpus *out)
{
    *out = (struct numa_cpus){0};
    for (int cpu = 0; cpu < t->n_cpus; cpu++)
        for (int i = from; numa_cpus_has(cpus, cpu) && i < to; i++)
            if (g->groups[i].name == group_name_of(t, cpu, by_cache))
                numa_cpus_add(out, cpu);
}

/* Equal shares of the physical cores; those left over go one each to the first places. */
static int bind_exclusive(const struct numa_topology *t, const struct numa_cpus *own, int place,
                          struct numa_cpus *out, char *error)
{
    struct grouping cores = group_cpus(t, own, false);
    int index = 0, n_places = places_of_node(t, place, &index);

    assert(n_places > 0); /* its own at least */
    int share = cores.n_groups / n_places, rest = cores.n_groups % n_places;
    int from = index * share + (index < rest ? index : rest);

    if (!cores.groups)
        return numa_refuse(error, "--numa-binding: out of memory");
    if (share > 0)
        take_groups(t, own, &cores, false, from, from + share + (index < rest), out);
    free(cores.groups);
    if (share > 0)
        return 0;
    return numa_refuse(
        error,
        "--numa-binding=exclusive: NUMA node %d has %d physical core%s that crun may use, and %d "
        "%s to share them; use node or core-complex",
        t->places[place], cores.n_groups, cores.n_groups == 1 ? "" : "s", n_places,
        t->has_gpus ? "GPUs" : "workers");
}

static int bind_core_complex(const struct numa_topology *t, const struct numa_cpus *own, int place,
                             struct numa_cpus *out, char *error)
{
    struct grouping caches = group_cpus(t, own, true);
    int index = 0;

    (void)places_of_node(t, place, &index); /* only which one of them this is matters */
    if (caches.n_groups == 0) {
        free(caches.groups);
        return numa_refuse(error, "--numa-binding: out of memory");
    }
    qsort(caches.groups, (size_t)caches.n_groups, sizeof(*caches.groups), compare_sizes);
    int chosen = index % caches.n_groups;
    take_groups(t, own, &caches, true, chosen, chosen + 1, out);
    free(caches.groups);
    return 0;
}

int numa_bind(const struct numa_topology *t, enum numa_mode mode, int local_rank, struct numa_cpus *ret_cpus,
              char error[NUMA_ERROR_SIZE])
{
    struct numa_cpus cpus;
    int r = 0;

    if (local_rank >= t->n_places)
        return numa_refuse(
            error,
            "--numa-binding: there is no GPU for local rank %d, only %d can be used here; start at "
            "most one worker for each",
            local_rank, t->n_places);
    int node = t->places[local_rank];
    struct numa_cpus own = allowed_of(t, node);
    if (numa_cpus_count(&own) == 0)
        return numa_refuse(
            error,
            "--numa-binding: crun may use no CPU of NUMA node %d, where the GPU of local rank %d "
            "is; look at the CPUs crun itself is bound to (taskset -cp $$)",
            node, local_rank);
    if (mode == NUMA_SOCKET)
        r = bind_socket(t, &own, &cpus);
    else if (mode == NUMA_EXCLUSIVE)
        r = bind_exclusive(t, &own, local_rank, &cpus, error);
    else if (mode == NUMA_CORE_COMPLEX)
        r = bind_core_complex(t, &own, local_rank, &cpus, error);
    else
        cpus = own;
    if (!r)
        *ret_cpus = cpus;
    return r;
}

int numa_spread(struct numa_topology *t, int n_workers)
{
    int n_usable = 0, usable[NUMA_NODES_MAX];

    for (int node = 0; node < t->n_nodes && node < NUMA_NODES_MAX; node++) {
        struct numa_cpus cpus = allowed_of(t, node);
        if (numa_cpus_count(&cpus) > 0)
            usable[n_usable++] = node;
    }
    t->places = calloc((size_t)n_workers, sizeof(*t->places));
    if (!t->places)
        return -ENOMEM;
    for (int i = 0; i < n_workers; i++)
        t->places[i] = n_usable > 0 ? usable[(int64_t)i * n_usable / n_workers] : 0;
    t->n_places = n_workers;
    return 0;
}
