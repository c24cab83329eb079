/*
 * Reads a command line as Python's argparse reads torchrun's: values behind "=" or in the next word, unique
 * prefixes, grouped letters, everything from the first other word on for the program.
 *
 * Happy path: defaults, then PET_*, then the words from left to right; the last occurrence wins.
 * Ways it fails: a word before the program that is no option, a missing or malformed value, an ambiguous
 * prefix, no program. Each is one sentence, naming the option with all its spellings as argparse does.
 *
 * Intended difference: argparse also judges the words *after* the program (a script's own "--nproc" stops
 * torchrun). crun leaves them to the program.
 */

#include "launcher/cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/util/envp.h"
#include "launcher/util/strlist.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/format.h"
#include "base/strbuf.h"

enum { NAME_SIZE = OPTION_NAME_SIZE };

struct parser {
    struct options *options;
    char *const *next; /* word to look at */
    char *error;
    struct strbuf unknown; /* unknown options, for one message at the end */
    enum option_id hint;   /* nearest to the first of them, or OPTION_COUNT */
};

__attribute__((format(printf, 3, 4))) static int options_fail(char *error, int result, const char *format,
                                                              ...)
{
    (void)format_arguments(error, OPTIONS_ERROR_SIZE, format); /* a cut sentence is still the best we have */
    return result;
}

/* "--nproc-per-node" or, with underscores, "--nproc_per_node". */
static void spell_option(const struct option_spec *spec, char separator, char out[NAME_SIZE])
{
    (void)snprintf(out, NAME_SIZE, "--%s", spec->name); /* names in the table are short */
    for (char *p = out + 2; *p; p++)
        if (*p == '-')
            *p = separator;
}

/* All spellings, joined by "/", the way argparse names an option in its errors. */
static const char *all_spellings(enum option_id id, char out[3 * NAME_SIZE])
{
    const struct option_spec *spec = &options_table[id];
    char dashes[NAME_SIZE], underscores[NAME_SIZE], letter[4] = "";

    spell_option(spec, '-', dashes);
    spell_option(spec, '_', underscores);
    if (spec->letter)
        (void)snprintf(letter, sizeof(letter), "-%c/", spec->letter);
    bool two = strcmp(dashes, underscores) != 0;
    (void)snprintf(out, 3 * NAME_SIZE, "%s%s%s%s", letter, dashes, two ? "/" : "", two ? underscores : "");
    return out;
}

static int fail_for_option(struct parser *p, enum option_id id, const char *what, const char *value)
{
    char names[3 * NAME_SIZE];

    return options_fail(p->error, OPTIONS_E_USAGE, "argument %s: %s%s%s%s", all_spellings(id, names), what,
                        value ? "'" : "", value ? value : "", value ? "'" : "");
}

/* ---- values ---- */

static const char *skip_space(const char *s)
{
    while (*s == ' ' || (*s >= '\t' && *s <= '\r'))
        s++;
    return s;
}

const char *options_note_on_end(const char *text)
{
    size_t n = strlen(text);

    if (n == 0 || !options_is_space(text[n - 1]))
        return "";
    return text[n - 1] == '\r' ? " It ends in a carriage return: has the script line ends of Windows (CRLF)?"
           : text[n - 1] == '\n' ? " It ends in a newline."
                                 : " It ends in white space.";
}

bool options_int(const char *text, long long *ret)
{
    const char *s = skip_space(text);
    bool negative = *s == '-';
    long long value = 0;

    s += *s == '-' || *s == '+';
    if (*s < '0' || *s > '9')
        return false;
    for (; (*s >= '0' && *s <= '9') || (*s == '_' && s[1] >= '0' && s[1] <= '9'); s++)
        if (*s != '_' &&
            (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *s - '0', &value)))
            return false;
    if (*skip_space(s))
        return false;
    *ret = negative ? -value : value;
    return true;
}

bool options_seconds(const char *text, double *ret)
{
    char *end;

    text = skip_space(text);
    double value = strtod(text, &end);
    if (end == text || *skip_space(end))
        return false;
    *ret = value;
    return true;
}

/* Converts text for the option. NULL, or what is wrong with it. */
static const char *value_set(struct option_value *value, enum option_id id, const char *text)
{
    value->text = text;
    switch (options_table[id].kind) {
    case OPTION_INT:
        return options_int(text, &value->number) ? NULL : "invalid int value: ";
    case OPTION_SECONDS:
        return options_seconds(text, &value->seconds) ? NULL : "invalid float value: ";
    default:
        return NULL;
    }
}

static int take_option_value(struct parser *p, enum option_id id, const char *text)
{
    struct option_value value = {.set = true};
    const struct option_spec *spec = &options_table[id];

    const char *wrong = value_set(&value, id, text);
    if (wrong)
        return fail_for_option(p, id, wrong, text);
    if (spec->choices && option_choice(spec->choices, text, strlen(text)) < 0) {
        char names[3 * NAME_SIZE];
        return options_fail(p->error, OPTIONS_E_USAGE, "argument %s: invalid choice: '%s' (choose from: %s)",
                            all_spellings(id, names), text, spec->choices);
    }
    if (spec->repeats) {
        if (p->options->n_repeated == OPTIONS_REPEATED_MAX)
            return fail_for_option(p, id, "is given too often", NULL);
        p->options->repeated[p->options->n_repeated++] = text;
    }
    p->options->value[id] = value;
    return id == OPTION_PRINT_COMPLETION ? OPTIONS_E_COMPLETION : 0;
}

/* ---- finding an option ---- */

struct match {
    enum option_id id;
    const char *value; /* behind "=", or NULL */
    bool is_one;       /* all that the word could mean are spellings of one option */
};

/* How a word reads as a long option. */
enum { MATCH_NONE, MATCH_ONE, MATCH_AMBIGUOUS };

static bool is_underscored(const struct option_spec *spec, char underscores[NAME_SIZE])
{
    spell_option(spec, '_', underscores);
    return strchr(spec->name, '-') != NULL;
}

/* Exact spellings first, then prefixes; like argparse, a prefix that fits both spellings of one option is
 * ambiguous. candidates (may be NULL) receives what an ambiguous word could mean. */
static int match_long(const char *word, struct match *ret, struct strbuf *candidates)
{
    size_t n = strcspn(word, "=");
    int n_found = 0;

    ret->value = word[n] ? word + n + 1 : NULL;
    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        char names[2][NAME_SIZE];

        spell_option(&options_table[id], '-', names[0]);
        int n_names = 1 + is_underscored(&options_table[id], names[1]);
        for (int i = 0; i < n_names; i++) {
            if (strncmp(names[i], word, n) != 0)
                continue;
            if (!names[i][n]) {
                ret->id = id;
                return MATCH_ONE;
            }
            if (options_table[id].ours)
                continue;
            ret->is_one = n_found == 0 || (ret->is_one && ret->id == id);
            ret->id = id;
            if (candidates)
                strbuf_add(candidates, "%s%s", n_found ? ", " : "", names[i]);
            n_found++;
        }
    }
    return n_found > 1 ? MATCH_AMBIGUOUS : n_found ? MATCH_ONE : MATCH_NONE;
}

static bool match_letter(char letter, enum option_id *ret)
{
    for (enum option_id id = 0; id < OPTION_COUNT; id++)
        if (options_table[id].letter && options_table[id].letter == letter) {
            *ret = id;
            return true;
        }
    return false;
}

/* -5, -0.5, -.5: words for argparse, no options. */
static bool is_negative_number(const char *word)
{
    const char *s = word + 1;

    s += strspn(s, "0123456789");
    if (!*s)
        return s > word + 1;
    size_t n_fraction = *s == '.' ? strspn(s + 1, "0123456789") : 0;
    return n_fraction > 0 && !s[1 + n_fraction];
}

/* Whether argparse would see an option (or a mistyped one) in this word. */
static bool looks_like_option(const char *word)
{
    struct match match;
    enum option_id id;

    if (word[0] != '-' || !word[1])
        return false;
    if (word[1] == '-' ? match_long(word, &match, NULL) != MATCH_NONE : match_letter(word[1], &id))
        return true;
    return !is_negative_number(word) && !strchr(word, ' ');
}

/* ---- did you mean ---- */

/* Options of other launchers, of which no spelling is near. */
static enum option_id counterpart_of(const char *word, size_t n)
{
    static const struct {
        const char *word;
        enum option_id id;
    } counterparts[] = {
        {"-n", OPTION_NPROC_PER_NODE},
        {"-np", OPTION_NPROC_PER_NODE},
        {"--gpus", OPTION_NPROC_PER_NODE},
        {"--num-gpus", OPTION_NPROC_PER_NODE},
        {"--num_gpus", OPTION_NPROC_PER_NODE},
        {"--num-processes", OPTION_NPROC_PER_NODE},
        {"--num_processes", OPTION_NPROC_PER_NODE},
        {"-N", OPTION_NNODES},
        {"--num-nodes", OPTION_NNODES},
        {"--num_nodes", OPTION_NNODES},
        {"-H", OPTION_HOSTS},
        {"--machinefile", OPTION_HOSTFILE},
        {"-v", OPTION_VERSION},
        {"-V", OPTION_VERSION},
    };

    for (size_t i = 0; i < ARRAY_SIZE(counterparts); i++)
        if (strlen(counterparts[i].word) == n && strncmp(counterparts[i].word, word, n) == 0)
            return counterparts[i].id;
    return OPTION_COUNT;
}

/* A counterpart, or the nearest option; OPTION_COUNT when none is near. */
static enum option_id option_meant(const char *word)
{
    enum option_id id = counterpart_of(word, strcspn(word, "="));
    const struct option_spec *nearest = id == OPTION_COUNT ? option_nearest(&crun_option_table, word) : NULL;

    return nearest ? (enum option_id)(nearest - options_table) : id;
}

static int unknown_option(struct parser *p, const char *word)
{
    if (!buf_size(&p->unknown.buf))
        p->hint = option_meant(word);
    strbuf_add(&p->unknown, "%s%s", buf_size(&p->unknown.buf) ? " " : "", word);
    return 0;
}

static int fail_unknown(struct parser *p)
{
    _cleanup_free_ char *words = strbuf_steal(&p->unknown);
    bool is_use_env = words && (strcmp(words, "--use_env") == 0 || strcmp(words, "--use-env") == 0);
    char hint[NAME_SIZE + 32] = "";

    if (p->hint < OPTION_COUNT)
        (void)snprintf(hint, sizeof(hint), "; did you mean --%s?", options_table[p->hint].name);
    else if (is_use_env)
        (void)snprintf(hint, sizeof(hint), "; LOCAL_RANK is always in the environment");
    else if (p->options->program)
        (void)snprintf(hint, sizeof(hint), "; options of the program stand behind its name");
    return options_fail(p->error, OPTIONS_E_USAGE, "unrecognized arguments: %s%s", words ? words : "", hint);
}

/* ---- the words ---- */

static int take_flag(struct parser *p, enum option_id id)
{
    p->options->value[id] = (struct option_value){.set = true, .flag = true};
    return id == OPTION_HELP ? OPTIONS_E_HELP : id == OPTION_VERSION ? OPTIONS_E_VERSION : 0;
}

/* The option's value: given with it, or the next word. */
static int take_option(struct parser *p, enum option_id id, const char *value)
{
    if (value && options_table[id].optional_value) {
        p->options->value[id] = (struct option_value){.set = true, .flag = true, .text = value};
        return 0;
    }
    if (options_table[id].kind == OPTION_FLAG)
        return value ? fail_for_option(p, id, "ignored explicit argument ", value) : take_flag(p, id);
    if (!value) {
        if (!*p->next || looks_like_option(*p->next))
            return fail_for_option(p, id, "expected one argument", NULL);
        value = *p->next++;
    }
    return take_option_value(p, id, value);
}

/* -r3, -r=3, -r 3, -mt3 ... */
static int take_letters(struct parser *p, const char *word)
{
    enum option_id id;

    if (!match_letter(word[1], &id))
        return unknown_option(p, word);
    for (const char *rest = word + 2;; rest++) {
        if (options_table[id].kind != OPTION_FLAG)
            return take_option(p, id, *rest ? rest + (rest == word + 2 && *rest == '=') : NULL);
        if (*rest == '=' && rest == word + 2)
            return take_option(p, id, rest + 1);
        enum option_id next_id = OPTION_COUNT;
        if (*rest && !match_letter(*rest, &next_id))
            return take_option(p, id, rest); /* the complaint about an explicit argument */
        int r = take_flag(p, id);
        if (r || !*rest)
            return r;
        id = next_id;
    }
}

static int take_long(struct parser *p, const char *word)
{
    _cleanup_(strbuf_finish) struct strbuf candidates = {0};
    struct match match;

    switch (match_long(word, &match, &candidates)) {
    case MATCH_ONE:
        return take_option(p, match.id, match.value);
    case MATCH_AMBIGUOUS: {
        _cleanup_free_ char *list = strbuf_steal(&candidates);
        return options_fail(p->error, OPTIONS_E_USAGE, "ambiguous option: %s could match %s%s", word,
                            list ? list : "several",
                            match.is_one ? "; they are one option: write it out" : "");
    }
    default:
        return unknown_option(p, word);
    }
}

/* The sentence of torchrun, and a possible reason: a misspelled option. */
static int fail_without_program(struct parser *p)
{
    char unknown[OPTIONS_ERROR_SIZE] = "";

    if (buf_size(&p->unknown.buf)) {
        (void)fail_unknown(p);
        (void)snprintf(unknown, sizeof(unknown), "; %s", p->error); /* truncated when it is long */
    }
    return options_fail(
        p->error, OPTIONS_E_USAGE,
        "the following arguments are required: training_script, training_script_args (no program is given)%s",
        unknown);
}

static bool needs_no_program(const struct options *options)
{
    return options->value[OPTION_AGENT_FD].set || options->value[OPTION_CHECK_NODE].flag;
}

static int take_program_words(struct parser *p, bool after_dashes)
{
    if (!*p->next && needs_no_program(p->options) && !buf_size(&p->unknown.buf)) {
        p->options->program = "torchrun"; /* in messages */
        p->options->program_args = p->next;
        return 0;
    }
    if (!*p->next)
        return fail_without_program(p);
    p->options->program = *p->next++;
    if (!after_dashes && *p->next && strcmp(*p->next, "--") == 0)
        p->next++;
    p->options->program_args = p->next;
    return buf_size(&p->unknown.buf) ? fail_unknown(p) : 0;
}

static int parse_words(struct parser *p)
{
    while (*p->next) {
        const char *word = *p->next;

        if (strcmp(word, "--") == 0) {
            p->next++;
            return take_program_words(p, true);
        }
        if (!looks_like_option(word))
            break;
        p->next++;
        TRY(word[1] == '-' ? take_long(p, word) : take_letters(p, word));
    }
    return take_program_words(p, false);
}

/* ---- defaults ---- */

void option_spell_pet(enum option_id id, char ret[OPTION_NAME_SIZE])
{
    (void)snprintf(ret, OPTION_NAME_SIZE, "PET_%s",
                   options_table[id].name); /* names in the table are short */
    for (char *p = ret + 4; *p; p++)
        *p = *p == '-' ? '_' : *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;
}

/* The value PET_<NAME> gives the option, or NULL. */
static const char *pet_value(enum option_id id, char *const *environment, char name[NAME_SIZE])
{
    const struct option_spec *spec = &options_table[id];
    if (spec->ours ? !spec->pet : spec->no_pet)
        return NULL;
    option_spell_pet(id, name);
    return envp_get(environment, name);
}

static int pet_flag(struct option_value *value, const char *name, const char *text, char *error)
{
    long long number;

    if (!options_int(text, &number))
        return options_fail(error, OPTIONS_E_PET, "%s='%s' in the environment is not a number; use 1 or 0",
                            name, text);
    *value = (struct option_value){.set = true, .pet = true, .flag = number != 0};
    return 0;
}

/* Flags are read at once. A text is noted, and converted after the words if no word has replaced the text. */
static int take_pet_defaults(struct parser *p, char *const *environment)
{
    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        struct option_value *value = &p->options->value[id];
        char name[NAME_SIZE];

        const char *pet = pet_value(id, environment, name);
        if (pet && options_table[id].kind == OPTION_FLAG) {
            TRY(pet_flag(value, name, pet, p->error));
            continue;
        }
        *value = (struct option_value){
            .text = pet ? pet : options_table[id].fallback, .set = pet != NULL, .pet = pet != NULL};
    }
    return 0;
}

/* Values of the command line have been converted before, and the table has correct values: only a PET_* can fail. */
static int convert_defaults(struct parser *p)
{
    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        struct option_value *value = &p->options->value[id];
        const char *wrong = value->text ? value_set(value, id, value->text) : NULL;
        char names[3 * NAME_SIZE], pet[NAME_SIZE];

        if (!wrong)
            continue;
        option_spell_pet(id, pet);
        return options_fail(p->error, OPTIONS_E_USAGE,
                            "argument %s: %s'%s'; it comes from %s in the environment",
                            all_spellings(id, names), wrong, value->text, pet);
    }
    return 0;
}

int options_parse(char *const *words, char *const *environment, struct options *ret_options,
                  char error[OPTIONS_ERROR_SIZE])
{
    struct parser p = {.options = ret_options, .next = words, .error = error, .hint = OPTION_COUNT};

    *ret_options = (struct options){0};
    int r = take_pet_defaults(&p, environment);
    if (!r)
        r = parse_words(&p);
    if (!r)
        r = convert_defaults(&p);
    strbuf_finish(&p.unknown);
    return r;
}

/* ---- words again ---- */

static void render_option(const struct options *options, enum option_id id, struct strlist *out)
{
    const struct option_value *value = &options->value[id];
    const char *name = options_table[id].name;

    for (int i = 0; options_table[id].repeats && i < options->n_repeated; i++)
        strlist_add(out, "--%s=%s", name, options->repeated[i]);
    if (value->text && !options_table[id].repeats)
        strlist_add(out, "--%s=%s", name, value->text);
    else if (value->flag)
        strlist_add(out, "--%s", name);
}

bool option_has_side(enum option_id id, enum option_side side)
{
    return options_table[id].side == side || options_table[id].side == OPTION_SIDE_BOTH;
}

void options_render(const struct options *options, struct strlist *out)
{
    for (enum option_id id = 0; id < OPTION_COUNT; id++)
        if (options->value[id].set && option_has_side(id, OPTION_SIDE_AGENTS))
            render_option(options, id, out);
}
