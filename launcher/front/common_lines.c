#include "launcher/front/common_lines.h"

#include <string.h>

#include "base/siphash.h"

/* Whether the text has the form; a digit in the form stands for any. */
static bool has_form(const char *text, const char *form)
{
    for (; *form; form++, text++)
        if (*form == '0' ? *text < '0' || *text > '9' : *text != *form)
            return false;
    return true;
}

static const char *skip_head(const char *line, bool *ret_is_crun)
{
    static const char head[] = "crun: ", time[] = "0000-00-00 00:00:00 ";

    *ret_is_crun = strncmp(line, head, sizeof(head) - 1) == 0;
    if (!*ret_is_crun)
        return line;
    line += sizeof(head) - 1;
    return has_form(line, time) ? line + sizeof(time) - 1 : line;
}

static uint64_t hash_of(const char *text)
{
    static const uint8_t seed[SIPHASH_SEED_SIZE]; /* the agents belong to the user */

    return siphash13(seed, text, strlen(text));
}

static struct seen_line *find_seen(struct common_lines *a, uint64_t hash, uint64_t now_ms)
{
    for (size_t i = 0; i < a->n_seen && i < COMMON_LINES_SEEN; i++)
        if (a->seen[i].hash == hash && now_ms < a->seen[i].forget_ms)
            return &a->seen[i];
    return NULL;
}

static struct held_line *held_at(struct common_lines *a, size_t i)
{
    return &a->held[(a->begin + i) % COMMON_LINES_HELD];
}

static void note_common(struct common_lines *a, uint64_t hash)
{
    for (size_t i = 0; i < a->n_held; i++)
        if (held_at(a, i)->hash == hash)
            held_at(a, i)->is_common = true;
}

void common_lines_add(struct common_lines *a, unsigned host, const char *line, uint64_t now_ms)
{
    bool is_crun;
    const char *text = skip_head(line, &is_crun);
    uint64_t hash = hash_of(text);
    struct seen_line *seen = find_seen(a, hash, now_ms);

    if (seen && seen->host != host) {
        seen->is_common = true;
        note_common(a, hash);
        return;
    }
    if (!seen)
        a->seen[a->n_seen++ % COMMON_LINES_SEEN] =
            (struct seen_line){.hash = hash, .forget_ms = now_ms + COMMON_LINES_FORGET_MS, .host = host};
    char *copy = a->n_held < COMMON_LINES_HELD ? strdup(text) : NULL; /* full only if no due line was taken */
    if (!copy)
        return;
    *held_at(a, a->n_held++) = (struct held_line){.text = copy,
                                                  .hash = hash,
                                                  .host = host,
                                                  .is_crun = is_crun,
                                                  .is_common = seen && seen->is_common,
                                                  .due_ms = now_ms + COMMON_LINES_DELAY_MS};
}

bool common_lines_next(struct common_lines *a, uint64_t now_ms, struct held_line *ret)
{
    if (a->n_held == 0 || (a->n_held < COMMON_LINES_HELD && now_ms < held_at(a, 0)->due_ms))
        return false;
    *ret = *held_at(a, 0);
    a->begin = (a->begin + 1) % COMMON_LINES_HELD;
    a->n_held--;
    return true;
}
