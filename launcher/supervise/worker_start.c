#include "launcher/supervise/worker_start.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

static_assert(sizeof((struct worker_start){0}.fds) == sizeof((int[])WORKER_START_NO_FDS),
              "one for each number");
static_assert(sizeof(struct worker_start_head) % _Alignof(char *) == 0, "pointers follow");
static_assert(offsetof(struct worker_start_head, attributes) == 16, "HEAD_SIZE in zygote.py");
static_assert(SPAWN_FD_END == 8, "LAST_FD in zygote.py");

int worker_start_list_fds(const struct worker_start *s, int fds[SPAWN_FD_END])
{
    int n = 0;

    for (int i = 0; i < SPAWN_FD_END; i++)
        if (s->fds[i] >= 0)
            fds[n++] = s->fds[i];
    return n;
}

/* ---- put ---- */

static size_t count_strings(char *const *list, size_t *n_bytes)
{
    size_t n = 0;

    for (; list[n]; n++)
        *n_bytes += strlen(list[n]) + 1;
    return n;
}

/* Each list ends with a NULL. */
static size_t texts_offset(size_t n_arguments, size_t n_variables)
{
    return sizeof(struct worker_start_head) + (n_arguments + n_variables + 2) * sizeof(char *);
}

size_t worker_start_size(const struct worker_start *s)
{
    size_t n_bytes = strlen(s->file) + 1;
    size_t n_arguments = count_strings(s->argv, &n_bytes),
           n_variables = count_strings(s->environment, &n_bytes);

    return texts_offset(n_arguments, n_variables) + n_bytes;
}

static char *append_string(char *to, const char *text)
{
    size_t n = strlen(text) + 1;

    memcpy(to, text, n);
    return to + n;
}

static void describe(const struct worker_start *s, struct worker_start_head *ret)
{
    size_t unused = 0;

    *ret = (struct worker_start_head){.n_arguments = (uint32_t)count_strings(s->argv, &unused),
                                      .n_variables = (uint32_t)count_strings(s->environment, &unused)};
    ret->texts_at = (uint32_t)texts_offset(ret->n_arguments, ret->n_variables);
    for (int i = 0; i < SPAWN_FD_END; i++)
        ret->descriptors |= (uint32_t)(s->fds[i] >= 0) << i;
    if (s->attributes)
        ret->attributes = *s->attributes;
}

void worker_start_put(const struct worker_start *s, void *bytes)
{
    struct worker_start_head head;

    describe(s, &head);
    memset(bytes, 0, head.texts_at);
    memcpy(bytes, &head, sizeof(head));
    char *to = append_string((char *)bytes + head.texts_at, s->file);
    for (uint32_t i = 0; i < head.n_arguments; i++)
        to = append_string(to, s->argv[i]);
    for (uint32_t i = 0; i < head.n_variables; i++)
        to = append_string(to, s->environment[i]);
}

/* ---- take ---- */

/* The next string; NULL: none ends before the end. */
static char *take_string(char **at, const char *end)
{
    char *text = *at, *nul = memchr(text, '\0', (size_t)(end - text));

    *at = nul ? nul + 1 : text;
    return nul ? text : NULL;
}

/* Sets n pointers and the NULL behind them. False: there are fewer strings. */
static bool take_strings(char **pointers, uint32_t n, char **at, const char *end)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(pointers[i] = take_string(at, end)))
            return false;
    pointers[n] = NULL;
    return true;
}

static bool is_head_valid(const struct worker_start_head *head, size_t size)
{
    const size_t n_max = (size - sizeof(*head)) / sizeof(char *);

    return head->n_arguments > 0 && head->n_arguments < n_max && head->n_variables < n_max &&
           head->texts_at == texts_offset(head->n_arguments, head->n_variables) && head->texts_at < size &&
           head->descriptors >> SPAWN_FD_END == 0;
}

static int take_descriptors(uint32_t present, const int *fds, int n_fds, int ret[SPAWN_FD_END])
{
    const int n_named = __builtin_popcount(present);

    if (n_fds != n_named)
        return n_fds < n_named ? -EMFILE : -EBADMSG;
    for (int i = 0; i < SPAWN_FD_END; i++)
        ret[i] = present >> i & 1 ? *fds++ : -1;
    return 0;
}

int worker_start_take(void *bytes, size_t size, const int *fds, int n_fds, struct worker_start *ret)
{
    const struct worker_start_head *head = bytes;
    const char *end = (const char *)bytes + size;

    if (size < sizeof(*head) || !is_head_valid(head, size))
        return -EBADMSG;
    char **arguments = (char **)((char *)bytes + sizeof(*head)),
         **variables = arguments + head->n_arguments + 1;
    char *at = (char *)bytes + head->texts_at;
    *ret = (struct worker_start){.file = take_string(&at, end),
                                 .argv = arguments,
                                 .environment = variables,
                                 .fds = WORKER_START_NO_FDS,
                                 .attributes = &head->attributes};
    if (!ret->file || !take_strings(arguments, head->n_arguments, &at, end) ||
        !take_strings(variables, head->n_variables, &at, end) || at != end)
        return -EBADMSG;
    return take_descriptors(head->descriptors, fds, n_fds, ret->fds);
}
