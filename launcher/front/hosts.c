#include "launcher/front/hosts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "launcher/cli/hostlist.h"
#include "launcher/util/envp.h"
#include "proto/address.h"

struct host_mention {
    struct host_entry entry; /* slots: at least 1 */
    size_t place;            /* in the text */
    bool is_open;            /* one mention without slots */
};

struct host_reader {
    struct host_mention *mentions;
    size_t n, capacity;
    size_t line; /* number for messages; 0: not a file */
    char *error;
};

__attribute__((format(printf, 2, 3))) static int hosts_fail(struct host_reader *r, const char *format, ...)
{
    int n = r->line ? snprintf(r->error, HOSTS_ERROR_SIZE, "line %zu: ", r->line) : 0;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(r->error + n, HOSTS_ERROR_SIZE - (size_t)n, format, args); /* a cut sentence will do */
    va_end(args);
    return -EINVAL;
}

static int hosts_fail_memory(struct host_reader *r)
{
    (void)hosts_fail(r, "out of memory");
    return -ENOMEM;
}

/* ---- mentions ---- */

static int append_mention(struct host_reader *r)
{
    if (r->n == HOSTS_MENTIONS_MAX)
        return hosts_fail(r, "more than %d hosts are named", HOSTS_MENTIONS_MAX);
    if (r->n == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 64;
        struct host_mention *mentions = reallocarray(r->mentions, capacity, sizeof(*mentions));
        if (!mentions)
            return hosts_fail_memory(r);
        r->mentions = mentions;
        r->capacity = capacity;
    }
    r->mentions[r->n] = (struct host_mention){.place = r->n};
    r->n++;
    return 0;
}

/* slots: 0: not given. */
static int add_mention(struct host_reader *r, const char *user, const char *name, int slots)
{
    if (name[0] == '-')
        return hosts_fail(r, "'%.60s' begins with a dash: no host does", name);
    int result = append_mention(r);
    if (result)
        return result;
    struct host_mention *m = &r->mentions[r->n - 1];
    m->is_open = slots == 0;
    m->entry = (struct host_entry){
        .name = strdup(name), .user = user ? strdup(user) : NULL, .slots = slots ? slots : 1};
    return m->entry.name && (m->entry.user || !user) ? 0 : hosts_fail_memory(r);
}

static int order_by_name(const void *a, const void *b)
{
    const struct host_mention *x = a, *y = b;
    int c = strcmp(x->entry.name, y->entry.name);

    return c ? c : (x->place > y->place) - (x->place < y->place);
}

static int order_by_place(const void *a, const void *b)
{
    const struct host_mention *x = a, *y = b;

    return (x->place > y->place) - (x->place < y->place);
}

static void free_entry(struct host_entry *entry)
{
    free(entry->name);
    free(entry->user);
}

/* Adds a later mention of the host, which loses its strings. */
static int add_to_mention(struct host_reader *r, struct host_mention *to, struct host_mention *later)
{
    _cleanup_free_ char *name = later->entry.name, *user = later->entry.user;

    to->entry.slots += later->entry.slots;
    to->is_open = false;
    if (to->entry.slots > HOSTS_SLOTS_MAX)
        return hosts_fail(r, "%s has more than %d slots", name, HOSTS_SLOTS_MAX);
    if (user && to->entry.user && strcmp(user, to->entry.user) != 0)
        return hosts_fail(r, "%s is named with two users, %s and %s", name, to->entry.user, user);
    if (!to->entry.user)
        to->entry.user = steal_ptr(user);
    return 0;
}

/* Adds all mentions of a host up into its first mention. After a failure each mention left is whole. */
static int merge_mentions(struct host_reader *r)
{
    size_t n = 0;
    int result = 0;

    qsort(r->mentions, r->n, sizeof(*r->mentions), order_by_name);
    for (size_t i = 0; i < r->n; i++) {
        struct host_mention *m = &r->mentions[i];
        if (!result && n > 0 && strcmp(r->mentions[n - 1].entry.name, m->entry.name) == 0)
            result = add_to_mention(r, &r->mentions[n - 1], m);
        else
            r->mentions[n++] = *m;
    }
    r->n = n;
    qsort(r->mentions, n, sizeof(*r->mentions), order_by_place);
    return result;
}

/* Turns the mentions into *ret, or frees them after a failure. */
static int finish_reading(struct host_reader *r, int result, struct host_list *ret)
{
    r->line = 0;
    if (!result)
        result = r->n ? merge_mentions(r) : hosts_fail(r, "no host is named");
    if (!result && r->n > HOSTS_MAX)
        result = hosts_fail(r, "%zu hosts are named, and %d are the most", r->n, HOSTS_MAX);
    *ret = (struct host_list){.hosts = result ? NULL : calloc(r->n, sizeof(*ret->hosts))};
    if (!result && !ret->hosts)
        result = hosts_fail_memory(r);
    for (size_t i = 0; i < r->n; i++) {
        struct host_mention *m = &r->mentions[i];
        m->entry.slots = m->is_open ? 0 : m->entry.slots;
        if (result)
            free_entry(&m->entry);
        else
            ret->hosts[ret->n++] = m->entry;
    }
    free(r->mentions);
    return result;
}

static int read_copy(struct host_list *ret, const char *text, int (*read)(struct host_reader *, char *),
                     char *error)
{
    struct host_reader r = {.error = error};
    _cleanup_free_ char *copy = strdup(text);

    return finish_reading(&r, copy ? read(&r, copy) : hosts_fail_memory(&r), ret);
}

/* ---- one entry: [USER@]NAMES[:SLOTS] ---- */

static int read_slots(struct host_reader *r, const char *text, int *ret)
{
    size_t n = strspn(text, "0123456789");
    int value = n > 0 && n < 9 && !text[n] ? atoi(text) : 0;

    if (value < 1 || value > HOSTS_SLOTS_MAX)
        return hosts_fail(r, "'%.60s' is no number of slots from 1 to %d", text, HOSTS_SLOTS_MAX);
    *ret = value;
    return 0;
}

static bool is_user(const char *user)
{
    return *user && *user != '-' &&
           !user[strspn(user, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")];
}

/* Names in the short form of Slurm. */
static int add_names(struct host_reader *r, const char *user, const char *names, int slots)
{
    struct hostlist_reader reader;
    char name[HOSTLIST_NAME_SIZE];
    int result = 0;

    if (!hostlist_begin(&reader, names))
        return hosts_fail(r, "'%.200s' is no name of a host, and no list such as n[01-16]", names);
    while (!result && hostlist_next(&reader, name))
        result = add_mention(r, user, name, slots);
    return result;
}

/* address: without the bracket in front. end: its other bracket. */
static int add_address(struct host_reader *r, const char *user, char *address, char *end, int slots)
{
    *end = '\0';
    if (!address_is_numeric(address))
        return hosts_fail(r, "'[%.60s]' is no IPv6 address", address);
    return add_mention(r, user, address, slots);
}

/* *ret_end: the end of the names at text, which is behind the bracket of an address. */
static int find_end_of_names(struct host_reader *r, char *text, char **ret_end, bool *ret_is_address)
{
    char *bracket = strchr(text, ']'), *colon = strchr(text, ':');

    *ret_is_address = *text == '[' && bracket && colon && colon < bracket;
    *ret_end = *ret_is_address ? bracket + 1 : colon ? colon : text + strlen(text);
    if (!*ret_is_address && colon && strchr(colon + 1, ':'))
        return hosts_fail(r,
                          "'%.100s' may be an IPv6 address or a host with slots: write [ADDRESS] or "
                          "[ADDRESS]:SLOTS",
                          text);
    if (**ret_end && **ret_end != ':')
        return hosts_fail(r, "'%.100s' follows an address, where only :SLOTS may stand", *ret_end);
    return 0;
}

/* Cuts text up. slots: given beside the entry; 0: none. */
static int add_entry(struct host_reader *r, char *text, int slots)
{
    char *names = strchr(text, '@'), *user = names ? text : NULL, *end;
    bool is_address;

    if (user)
        *names++ = '\0';
    else
        names = text;
    if (user && !is_user(user))
        return hosts_fail(r, "'%.60s@' names no user", user);
    if (find_end_of_names(r, names, &end, &is_address) != 0)
        return -EINVAL;
    if (*end && slots)
        return hosts_fail(r, "'%.100s' has slots twice", names);
    if (*end && read_slots(r, end + 1, &slots) != 0)
        return -EINVAL;
    *end = '\0';
    return is_address ? add_address(r, user, names + 1, end - 1, slots) : add_names(r, user, names, slots);
}

/* ---- lists ---- */

static const char blanks[] = " \t\n\v\f\r";

/* Cuts the next entry off *rest: up to a comma outside of brackets, without blanks around. *rest is NULL behind the last entry. */
static char *next_entry(char **rest)
{
    char *entry = *rest + strspn(*rest, blanks), *end = entry;

    for (bool is_inside = false; *end && (*end != ',' || is_inside); end++)
        is_inside = *end == '[' || (is_inside && *end != ']');
    *rest = *end ? end + 1 : NULL;
    while (end > entry && strchr(blanks, end[-1]))
        end--;
    *end = '\0';
    return entry;
}

static int read_list(struct host_reader *r, char *text)
{
    int result = 0;

    while (!result && text)
        result = add_entry(r, next_entry(&text), 0);
    return result;
}

/* ---- files ---- */

/* slots=N or max-slots=N. */
static int read_setting(struct host_reader *r, const char *word, int *slots, int *most)
{
    if (strncmp(word, "slots=", 6) == 0)
        return read_slots(r, word + 6, slots);
    if (strncmp(word, "max-slots=", 10) == 0 || strncmp(word, "max_slots=", 10) == 0)
        return read_slots(r, word + 10, most);
    return hosts_fail(r, "'%.60s' behind a host: slots=N and max-slots=N may stand there", word);
}

/* Takes the blanks around each "=" away. */
static void join_settings(char *line)
{
    char *to = line;

    for (char *at = line; *at; at++)
        if (!strchr(blanks, *at) || (at[strspn(at, blanks)] != '=' && (to == line || to[-1] != '=')))
            *to++ = *at;
    *to = '\0';
}

/* As with Open MPI, a maximum alone is the number of slots. */
static int read_host_line(struct host_reader *r, char *line)
{
    int slots = 0, most = 0, result = 0;
    char *rest, *entry, *word;

    join_settings(line);
    entry = strtok_r(line, blanks, &rest);
    while (!result && entry && (word = strtok_r(NULL, blanks, &rest)))
        result = read_setting(r, word, &slots, &most);
    if (!result && most && most < slots)
        result = hosts_fail(r, "max-slots=%d is less than slots=%d", most, slots);
    return result || !entry ? result : add_entry(r, entry, slots ? slots : most);
}

/* Calls take() with each line, or with each word if separators are blanks. */
static int read_pieces(struct host_reader *r, char *text, const char *separators,
                       int (*take)(struct host_reader *, char *))
{
    int result = 0;

    for (size_t n = 1; !result && text; n++) {
        char *piece = strsep(&text, separators);
        r->line = *separators == '\n' ? n : 0;
        piece[strcspn(piece, "#")] = '\0';
        result = take(r, piece);
    }
    return result;
}

static int read_lines(struct host_reader *r, char *text)
{
    return read_pieces(r, text, "\n", read_host_line);
}

static int read_words(struct host_reader *r, char *text)
{
    return read_pieces(r, text, blanks, read_host_line);
}

/* ---- schedulers ---- */

/* A host and its slots. */
static int add_pair(struct host_reader *r, char *host, const char *number)
{
    int slots = 0;

    return read_slots(r, number ? number : "", &slots) == 0 ? add_entry(r, host, slots) : -EINVAL;
}

static int read_pairs(struct host_reader *r, char *text)
{
    char *rest, *host = strtok_r(text, blanks, &rest);
    int result = 0;

    for (; !result && host; host = strtok_r(NULL, blanks, &rest))
        result = add_pair(r, host, strtok_r(NULL, blanks, &rest));
    return result;
}

static int read_columns_of_line(struct host_reader *r, char *line)
{
    char *rest, *host = strtok_r(line, blanks, &rest);

    return host ? add_pair(r, host, strtok_r(NULL, blanks, &rest)) : 0;
}

static int read_columns(struct host_reader *r, char *text)
{
    return read_pieces(r, text, "\n", read_columns_of_line);
}

/* The first row with a variable in the environment counts. */
static const struct host_source {
    const char *scheduler, *variable;
    int (*read)(struct host_reader *r, char *text);
    bool is_file; /* the variable names a file */
} host_sources[] = {
    {"PBS", "PBS_NODEFILE", read_lines, true},    {"LSF", "LSB_DJOB_HOSTFILE", read_lines, true},
    {"LSF", "LSB_MCPU_HOSTS", read_pairs, false}, {"LSF", "LSB_HOSTS", read_words, false},
    {"SGE", "PE_HOSTFILE", read_columns, true},   {"Slurm", "SLURM_JOB_NODELIST", read_list, false},
};

static const struct host_source *find_host_source(char *const *environment, const char **ret_value)
{
    for (size_t i = 0; i < ARRAY_SIZE(host_sources); i++) {
        *ret_value = envp_get(environment, host_sources[i].variable);
        if (*ret_value && **ret_value)
            return &host_sources[i];
    }
    return NULL;
}

const char *host_list_scheduler_name(char *const *environment)
{
    const char *value;
    const struct host_source *source = find_host_source(environment, &value);

    return source ? source->scheduler : NULL;
}

int host_list_parse(struct host_list *ret, const char *text, char error[HOSTS_ERROR_SIZE])
{
    return read_copy(ret, text, read_list, error);
}

int host_list_parse_file(struct host_list *ret, const char *text, char error[HOSTS_ERROR_SIZE])
{
    return read_copy(ret, text, read_lines, error);
}

int host_list_from_scheduler(struct host_list *ret, char *const *environment, const struct host_files *files,
                             char error[HOSTS_ERROR_SIZE])
{
    const char *value;
    const struct host_source *source = find_host_source(environment, &value);
    _cleanup_free_ char *text = NULL;
    char why[HOSTS_ERROR_SIZE];
    int result = -ENOENT;

    *ret = (struct host_list){0};
    if (!source) {
        (void)snprintf(error, HOSTS_ERROR_SIZE, "no list of PBS, LSF, SGE or Slurm is in the environment");
        return result;
    }
    result = source->is_file ? files->read(files->data, value, &text) : 0;
    if (result < 0)
        (void)snprintf(why, sizeof(why), "%.200s: %s", value, strerror(-result));
    else
        result = read_copy(ret, text ? text : value, source->read, why);
    if (result < 0)
        (void)snprintf(error, HOSTS_ERROR_SIZE, "%s: %.400s", source->variable, why);
    return result;
}

/* Whether another launcher, or a step of Slurm, has started this process. */
static bool is_started_by_launcher(char *const *environment)
{
    static const char *const names[] = {"SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                        "PALS_RANKID"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (envp_get(environment, names[i]))
            return true;
    return false;
}

char *host_list_hint(char *const *environment, const struct host_files *files)
{
    const char *scheduler = host_list_scheduler_name(environment);
    char error[HOSTS_ERROR_SIZE], *hint = NULL;
    struct host_list list;

    if (!scheduler || is_started_by_launcher(environment) ||
        host_list_from_scheduler(&list, environment, files, error) != 0)
        return NULL;
    if (list.n > 1 &&
        asprintf(
            &hint,
            "%s gave this job %zu hosts, and this crun starts workers on one: --hosts=auto starts them on all "
            "(--nnodes=1 for one host alone)",
            scheduler, list.n) < 0)
        hint = NULL;
    host_list_finish(&list);
    return hint;
}

void host_list_finish(struct host_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free_entry(&list->hosts[i]);
    free(list->hosts);
    *list = (struct host_list){0};
}
