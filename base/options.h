#pragma once

/*
 * The command line of a program as one table: names, kinds, bounds, defaults and texts. The parser, --help, the completions of the
 * shells and the test of the manual page read the same rows. Pure.
 *
 * Words: "--NAME VALUE", "--NAME=VALUE", and "-L" where an option has a letter. A name is written out; underscores count as dashes.
 * Other words may stand before, between and behind the options, and "--" ends the options. The last occurrence wins.
 * Ways it fails: a sentence that names the option, the value and the accepted values, or the nearest option.
 *
 * crun reads words as argparse does (launcher/cli/options.h): crun's table shares the rows, the help and the completions.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_kind {
    OPTION_TEXT,    /* const char *, which points into argv */
    OPTION_FLAG,    /* no value; 1 is stored */
    OPTION_CHOICE,  /* a word of `choices`, stored as the index of the word */
    OPTION_NUMBER,  /* digits, from min to max */
    OPTION_SIZE,    /* digits from min to max, perhaps with K, M or G */
    OPTION_SECONDS, /* perhaps with a fraction, stored in milliseconds; of crun: as Python's float() */
    OPTION_INT,     /* of crun alone: as Python's int() */
    OPTION_OWN,     /* take() alone reads the value */
    OPTION_GONE,    /* refused; help: the replacement */
    OPTION_KIND_COUNT
};

/* Of crun alone: where an option has its effect in a job of --hosts. */
enum option_side {
    OPTION_SIDE_AGENTS,
    OPTION_SIDE_FRONT,
    OPTION_SIDE_BOTH,
    OPTION_SIDE_NEITHER, /* the front decides by the option what agents get */
};

struct option_spec {
    const char *name; /* long spelling with dashes; underscores are accepted as well */
    enum option_kind kind;
    size_t offset, size; /* of the member for the value, OPTION_AT(); size 0: no member */
    uint64_t min, max;
    const char *placeholder; /* name of the value in --help */
    const char *fallback;    /* default as text; NULL: none */
    const char *help;
    const char *
        choices; /* separated by single spaces, or NULL; after a leading space the first word is 1, and 0 is none */
    /* Reads or checks the value, already stored in *member. NULL, or the expected kind of value: "a positive number". */
    const char *(*take)(void *member, const char *text);
    int ends;    /* result of the parser, which ends at the option; or 0 */
    char letter; /* short spelling, or 0 */

    /* For crun's parser alone. */
    bool optional_value; /* OPTION_FLAG: "--name=TEXT" gives a text as well */
    bool
        ours; /* not torchrun's: must be spelled out, so that no torchrun prefix becomes ambiguous; no default from PET_<NAME> */
    bool pet; /* of ours: takes that default all the same */
    bool no_pet;                /* of torchrun's: takes none */
    bool repeats;               /* OPTION_TEXT: may be given several times; see options.repeated */
    bool has_no_effect;         /* parsed for compatibility alone; --help lists it last */
    enum option_side side;      /* with --hosts */
    const char *not_with_hosts; /* reason of the refusal beside --hosts; NULL: allowed */
};

#define OPTION_AT(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)

/* The last rows of a table. */
#define OPTION_ROWS_OF_ALL                                                                                   \
    {"print-completion",                                                                                     \
     OPTION_CHOICE,                                                                                          \
     .placeholder = "SHELL",                                                                                 \
     .ends = OPTIONS_E_COMPLETION,                                                                           \
     .choices = "bash zsh tcsh fish",                                                                        \
     .help = "write a script of completions for bash, zsh, tcsh or fish to standard output and exit"},       \
        {"help", OPTION_FLAG, .letter = 'h', .ends = OPTIONS_E_HELP, .help = "show this text and exit"},     \
    {                                                                                                        \
        "version", OPTION_FLAG, .ends = OPTIONS_E_VERSION, .help = "show the version and exit"               \
    }

struct option_table {
    const char *commands; /* names of the program; messages have the first name */
    const char *page;     /* the manual page, as "crund(8)" */
    const struct option_spec *specs;
    size_t n;
    const char *words; /* possible values of the other words, for completions; NULL: not known */
    bool ends_at_word; /* the first other word is a program, followed by words of the program */
    /* Takes another word. 0, or OPTIONS_E_USAGE with a sentence in error[0..n) (empty at the call). NULL: no other word is allowed. */
    int (*take_word)(void *to, const char *word, char *error, size_t n);

    /* Texts of --help; NULL: none. `about` and `ending` are broken between words, the others printed as they are. */
    const char *usage, *about, *examples, *ending;
    const struct option_word {
        const char *word, *help; /* a row of --help in front of the options */
    } * word_rows;               /* closed by a row without word, or NULL */
    const struct option_heading {
        const char *first, *title; /* option behind the heading, and the heading */
    } * headings;                  /* closed by a row without first, or NULL */
};

enum {
    OPTIONS_E_USAGE = 1, /* not a command line: exit code 2 */
    OPTIONS_E_HELP,      /* --help was asked for */
    OPTIONS_E_VERSION,   /* --version was asked for */
    OPTIONS_E_PET,       /* of crun alone: a PET_ flag is not a number: exit code 1, as in torchrun */
    OPTIONS_E_COMPLETION /* --print-completion: OPTIONS_E_COMPLETION + index of the shell in the choices */
};

/*
 * Stores the defaults of the rows in *to, then the words of argv behind the program's name. argv is NULL-terminated. 0, or a result
 * above; after OPTIONS_E_USAGE error[0..n) has a sentence.
 */
int option_table_parse(const struct option_table *t, char *const argv[], void *to, char *error, size_t n);

/* Text to print for a result above OPTIONS_E_USAGE; NULL without memory. version: of the program. */
char *option_table_answer(const struct option_table *t, int result, const char *version);

/* The text of --help in lines of at most width characters (at least 60 are taken). Malloc'ed, or NULL without memory. */
char *option_table_help(const struct option_table *t, int width);

/* The script of completions for a shell, or NULL without memory or for another shell. The caller frees it. */
char *option_table_completion(const struct option_table *t, const char *shell);

/* The next row after o with an option, the first option for o NULL; NULL: no more options. */
const struct option_spec *option_next(const struct option_table *t, const struct option_spec *o);

/* The place of a word of n bytes in choices; -1: not among them. */
int option_choice(const char *choices, const char *word, size_t n);

/* Digits and perhaps K, M or G, at most max; *text is behind them afterwards. */
bool option_scan_size(const char **text, uint64_t max, uint64_t *ret);

/* Edits (insert, delete, replace) between the first n characters of word and name, for "did you mean"; "_" and "-" are
 * equal. Large when one of them is too long to compare. */
int option_edit_distance(const char *word, size_t n, const char *name);

/* The option nearest to a word "--something[=...]"; NULL when none is near. */
const struct option_spec *option_nearest(const struct option_table *t, const char *word);

enum { OPTION_NAME_SIZE = 64 };
