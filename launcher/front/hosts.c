#include "launcher/front/hosts.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/decimal.h"
#include "base/err.h"
#include "base/format.h"
#include "base/strbuf.h"
#include "launcher/cli/hostlist.h"
#include "launcher/util/envp.h"
#include "proto/address.h"

struct host_reader;

/* Where hosts are named, and how: pieces between the separators, each read by take(). */
struct host_source {
    const char *scheduler; /* NULL: an option */
    const char *name;      /* of the option or variable */
    const char *separators;
    int (*take)(struct host_reader *r, char *piece);
    bool is_file; /* the value names a file */
};

struct host_reader {
    const struct host_source *source;
    const char *path;      /* of the source's file, for messages; NULL: none */
    size_t line;           /* number for messages; 0: not in a line */
    struct host_list list; /* an entry for each mention, until all are read */
    char *error;
};

static const char blanks[] = " \t\n\v\f\r";

__attribute__((format(printf, 2, 3))) static int hosts_fail(struct host_reader *r, const char *format, ...)
{
    int n = snprintf(r->error, HOSTS_ERROR_SIZE, "%s%s%.200s: ", r->source->name, r->path ? "=" : "",
                     r->path ? r->path : ""); /* fits */

    if (r->line)
        n += snprintf(r->error + n, HOSTS_ERROR_SIZE - (size_t)n, "line %zu: ", r->line); /* fits */
    (void)format_arguments(r->error + n, HOSTS_ERROR_SIZE - (size_t)n, format); /* a cut sentence will do */
    return -EINVAL;
}

/* ---- mentions ---- */

/* slots: 0: not given. */
static int add_mention(struct host_reader *r, const char *user, const char *name, int slots)
{
    struct host_list *list = &r->list;
    size_t n = list->n;
    bool is_full = (n & (n - 1)) == 0; /* the capacity is the next power of two */

    if (name[0] == '-')
        return hosts_fail(r, "'%.60s' begins with a dash: no host does", name);
    if (n == HOSTS_MENTIONS_MAX)
        return hosts_fail(r, "more than %d hosts are named", HOSTS_MENTIONS_MAX);
    if (is_full && !array_resize(list->hosts, n ? 2 * n : 1))
        return hosts_fail(r, "out of memory");
    struct host_entry *h = &list->hosts[list->n++];
    *h = (struct host_entry){
        .name = strdup(name), .user = user ? strdup(user) : NULL, .slots = slots, .place = n};
    return h->name && (h->user || !user) ? 0 : hosts_fail(r, "out of memory");
}

static int order_by_place(const void *a, const void *b)
{
    const struct host_entry *x = a, *y = b;

    return (x->place > y->place) - (x->place < y->place);
}

static int order_by_name(const void *a, const void *b)
{
    int c = strcmp(((const struct host_entry *)a)->name, ((const struct host_entry *)b)->name);

    return c ? c : order_by_place(a, b);
}

/* Adds a later mention of the host, which loses its strings. */
static int add_to_mention(struct host_reader *r, struct host_entry *to, struct host_entry *later)
{
    int slots = (to->slots ? to->slots : 1) + (later->slots ? later->slots : 1);

    if (slots > HOSTS_SLOTS_MAX)
        return hosts_fail(r, "%s has more than %d slots", to->name, HOSTS_SLOTS_MAX);
    if (later->user && to->user && strcmp(later->user, to->user) != 0)
        return hosts_fail(r, "%s is named with two users, %s and %s", to->name, to->user, later->user);
    to->slots = slots;
    if (!to->user)
        to->user = steal_ptr(later->user);
    free(later->name);
    free(later->user);
    return 0;
}

/* Adds all mentions of a host up into its first mention. */
static int merge_mentions(struct host_reader *r)
{
    struct host_entry *hosts = r->list.hosts;
    size_t n = 0;
    int result = 0;

    qsort(hosts, r->list.n, sizeof(*hosts), order_by_name);
    for (size_t i = 0; i < r->list.n; i++) {
        bool is_later = n > 0 && strcmp(hosts[n - 1].name, hosts[i].name) == 0;
        if (!result && is_later)
            result = add_to_mention(r, &hosts[n - 1], &hosts[i]);
        if (result || !is_later)
            hosts[n++] = hosts[i];
    }
    r->list.n = n;
    qsort(hosts, n, sizeof(*hosts), order_by_place);
    return result;
}

/* ---- one entry: [USER@]NAMES[:SLOTS] ---- */

static int read_slots(struct host_reader *r, const char *text, int *ret)
{
    uint64_t value;

    if (!decimal_parse(text, 1, HOSTS_SLOTS_MAX, &value))
        return hosts_fail(r, "'%.60s' is no number of slots from 1 to %d", text, HOSTS_SLOTS_MAX);
    *ret = (int)value;
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

/* Cuts names up, which are in front of :SLOTS. slots: given beside the entry; 0: none. */
static int add_names_with_slots(struct host_reader *r, const char *user, char *names, int slots)
{
    char *bracket = strchr(names, ']'), *end = strchrnul(names, ':');
    bool is_address = *names == '[' && bracket && end < bracket;

    if (is_address)
        end = bracket + 1;
    else if (*end && strchr(end + 1, ':'))
        return hosts_fail(
            r, "'%.100s' may be an IPv6 address or a host with slots: write [ADDRESS] or [ADDRESS]:SLOTS",
            names);
    if (*end && *end != ':')
        return hosts_fail(r, "'%.100s' follows an address, where only :SLOTS may stand", end);
    if (*end && slots)
        return hosts_fail(r, "'%.100s' has slots twice", names);
    if (*end && read_slots(r, end + 1, &slots) != 0)
        return -EINVAL;
    *(is_address ? bracket : end) = '\0';
    if (is_address && !address_is_numeric(names + 1))
        return hosts_fail(r, "'%.60s]' is no IPv6 address", names);
    return is_address ? add_mention(r, user, names + 1, slots) : add_names(r, user, names, slots);
}

static int add_entry(struct host_reader *r, char *text, int slots)
{
    char *at = strchr(text, '@');

    if (!at)
        return add_names_with_slots(r, NULL, text, slots);
    *at = '\0';
    if (!is_user(text))
        return hosts_fail(r, "'%.60s@' names no user", text);
    return add_names_with_slots(r, text, at + 1, slots);
}

/* ---- pieces of texts ---- */

/* Cuts the next word off; NULL: no word is left. */
static char *next_word(char **rest)
{
    char *word = *rest + strspn(*rest, blanks);

    *rest = word + strcspn(word, blanks);
    if (**rest)
        *(*rest)++ = '\0';
    return *word ? word : NULL;
}

/* An entry with blanks around. */
static int take_entry(struct host_reader *r, char *text)
{
    char *entry = text + strspn(text, blanks), *end = entry + strlen(entry);

    while (end > entry && strchr(blanks, end[-1]))
        end--;
    *end = '\0';
    return add_entry(r, entry, 0);
}

static int add_pair(struct host_reader *r, char *host, const char *number)
{
    int slots = 0;

    return read_slots(r, number ? number : "", &slots) == 0 ? add_entry(r, host, slots) : -EINVAL;
}

/* Hosts, each with its slots behind. */
static int take_pairs(struct host_reader *r, char *text)
{
    int result = 0;

    for (char *host; !result && (host = next_word(&text));)
        result = add_pair(r, host, next_word(&text));
    return result;
}

/* A host and its slots, perhaps with further words behind. */
static int take_columns(struct host_reader *r, char *line)
{
    char *host = next_word(&line);

    return host ? add_pair(r, host, next_word(&line)) : 0;
}

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

/* A host and its settings. As with Open MPI, a maximum alone is the number of slots. */
static int take_host_line(struct host_reader *r, char *line)
{
    int slots = 0, most = 0, result = 0;

    join_settings(line);
    char *entry = next_word(&line);
    for (char *word; !result && (word = next_word(&line));)
        result = read_setting(r, word, &slots, &most);
    if (!result && most && most < slots)
        result = hosts_fail(r, "max-slots=%d is less than slots=%d", most, slots);
    return result || !entry ? result : add_entry(r, entry, slots ? slots : most);
}

/* Cuts the next piece off *rest, which is NULL behind the last one. A comma in brackets separates nothing. */
static char *next_piece(char **rest, const char *separators)
{
    char *piece = *rest, *end = piece;

    for (bool is_inside = false; *end && (is_inside || !strchr(separators, *end)); end++)
        is_inside = *separators == ',' && (*end == '[' || (is_inside && *end != ']'));
    *rest = *end ? end + 1 : NULL;
    *end = '\0';
    return piece;
}

static int read_pieces(struct host_reader *r, char *text)
{
    const bool has_lines = *r->source->separators == '\n';
    int result = 0;

    for (size_t n = 1; !result && text; n++) {
        char *piece = next_piece(&text, r->source->separators);
        r->line = has_lines ? n : 0;
        if (has_lines)
            piece[strcspn(piece, "#")] = '\0'; /* a comment */
        result = r->source->take(r, piece);
    }
    r->line = 0;
    return result;
}

/* ---- sources ---- */

static const struct host_source of_list = {NULL, "--hosts", ",", take_entry},
                                of_file = {NULL, "--hostfile", "\n", take_host_line, true},
                                of_nothing = {NULL, "--hosts=auto", "", take_entry};

/* The first row with a variable in the environment counts. */
static const struct host_source of_schedulers[] = {
    {"PBS", "PBS_NODEFILE", "\n", take_host_line, true},
    {"LSF", "LSB_DJOB_HOSTFILE", "\n", take_host_line, true},
    {"LSF", "LSB_MCPU_HOSTS", "", take_pairs},
    {"LSF", "LSB_HOSTS", blanks, take_host_line},
    {"SGE", "PE_HOSTFILE", "\n", take_columns, true},
    {"Slurm", "SLURM_JOB_NODELIST", ",", take_entry},
};

/* *ret_value is NULL where the environment has no list. */
static const struct host_source *find_host_source(char *const *environment, const char **ret_value)
{
    for (size_t i = 0; i < ARRAY_SIZE(of_schedulers); i++) {
        *ret_value = envp_get(environment, of_schedulers[i].name);
        if (*ret_value && **ret_value)
            return &of_schedulers[i];
    }
    *ret_value = NULL;
    return &of_nothing;
}

static int read_text(struct host_reader *r, char *text)
{
    int result = text ? read_pieces(r, text) : hosts_fail(r, "out of memory");

    if (!result)
        result = r->list.n ? merge_mentions(r) : hosts_fail(r, "no host is named");
    if (!result && r->list.n > HOSTS_MAX)
        result = hosts_fail(r, "%zu hosts are named, and %d are the most", r->list.n, HOSTS_MAX);
    return result;
}

int host_list_read(struct host_list *ret, const char *hosts, const char *hostfile, char *const *environment,
                   const struct host_files *files, char error[HOSTS_ERROR_SIZE])
{
    struct host_reader r = {.source = hostfile ? &of_file : &of_list, .error = error};
    const char *value = hostfile ? hostfile : hosts;
    _cleanup_free_ char *text = NULL;
    int result = 0;

    *ret = (struct host_list){0};
    if (!hostfile && strcmp(hosts, "auto") == 0)
        r.source = find_host_source(environment, &value);
    r.path = r.source->is_file ? value : NULL;
    if (r.path)
        result = files->read(files->data, r.path, &text);
    else if (value)
        text = strdup(value);
    result = !value       ? hosts_fail(&r, "no list of PBS, LSF, SGE or Slurm is in the environment")
             : result < 0 ? hosts_fail(&r, "%s", strerror(-result))
                          : read_text(&r, text);
    if (result)
        host_list_finish(&r.list);
    *ret = r.list;
    return result;
}

/* Variables of processes that another launcher, or a step of Slurm, has started. */
static const char *const of_launchers[] = {
    "SLURM_STEP_ID=", "OMPI_COMM_WORLD_SIZE=", "PMI_SIZE=", "PMIX_RANK=", "PALS_RANKID=", NULL};

char *host_list_hint(char *const *environment, const struct host_files *files)
{
    char error[HOSTS_ERROR_SIZE], *hint = NULL;
    const char *value;
    const struct host_source *source = find_host_source(environment, &value);
    struct host_list list;

    for (char *const *e = environment; *e; e++)
        if (envp_begins_with(*e, of_launchers))
            return NULL;
    if (host_list_read(&list, "auto", NULL, environment, files, error) != 0)
        return NULL;
    if (list.n > 1)
        hint = strbuf_format(
            "%s gave this job %zu hosts, and this crun starts workers on one: --hosts=auto "
            "starts them on all (--nnodes=1 for one host alone)",
            source->scheduler, list.n);
    host_list_finish(&list);
    return hint;
}

void host_list_finish(struct host_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->hosts[i].name);
        free(list->hosts[i].user);
    }
    free(list->hosts);
    *list = (struct host_list){0};
}
