#pragma once

/* Shared by the files that implement job.h. */

#include "launcher/cli/job.h"
#include "base/strbuf.h"

enum conf_backend { CONF_C10D, CONF_STATIC };

struct job_builder {
    struct job *job;
    const struct options *options;
    char *const *environment;
    const struct job_machine *machine;
    struct strbuf warnings;
    char conf_fault[2][160]; /* of the settings of each enum conf_backend; "": none */
    char *error;
};

/* Writes the sentence and returns 1. */
__attribute__((format(printf, 2, 3))) int job_refuse(struct job_builder *b, const char *format, ...);

static inline const struct option_value *job_value(const struct job_builder *b, enum option_id id)
{
    return &b->options->value[id];
}

static inline const char *job_text(const struct job_builder *b, enum option_id id)
{
    return b->options->value[id].text;
}

/* An empty text is none, as Python's "or" has it; NULL then. */
static inline const char *job_text_or_none(const struct job_builder *b, enum option_id id)
{
    const char *text = job_text(b, id);

    return text && *text ? text : NULL;
}

/* The place of the value among the choices of the option; -1: it has none. */
static inline int job_choice(const struct job_builder *b, enum option_id id)
{
    const char *text = job_text(b, id);

    return text ? option_choice(options_table[id].choices, text, strlen(text)) : -1;
}

static inline bool job_flag(const struct job_builder *b, enum option_id id)
{
    return b->options->value[id].flag;
}

/* [*from, *to) without the white space at its ends: a file with CRLF ends and a block of YAML leave some there. */
static inline void job_trim(const char **from, const char **to)
{
    while (*from < *to && options_is_space(**from))
        (*from)++;
    while (*to > *from && options_is_space((*to)[-1]))
        (*to)--;
}

/* Steps of job_init() that are in job_rendezvous.c; each 0, or 1 with the sentence written. */
int job_check_nodes(struct job_builder *b);
int job_take_conf(struct job_builder *b);
int job_take_rendezvous(struct job_builder *b);
