/* The text of --help, written from the table of options. */

#include <stdlib.h>
#include <string.h>

#include "launcher/cli/options.h"
#include "launcher/util/strbuf.h"

enum { HELP_COLUMN = 30, HELP_WIDTH = 100 };

/* Appends words of text, broken before HELP_WIDTH, each line starting at HELP_COLUMN. */
static void add_wrapped_help(struct strbuf *out, const char *text)
{
    int column = HELP_COLUMN;

    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column + n > HELP_WIDTH) {
            strbuf_add(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        strbuf_add(out, "%s%.*s", column > HELP_COLUMN ? " " : "", n, text);
        column += n + 1;
        text += n + (text[n] == ' ');
    }
}

static void add_option_help(struct strbuf *out, const struct option_spec *spec)
{
    struct strbuf left = {0}, right = {0};

    if (spec->letter)
        strbuf_add(&left, "  -%c, --%s", spec->letter, spec->name);
    else
        strbuf_add(&left, "  --%s", spec->name);
    if (spec->placeholder)
        strbuf_add(&left, spec->optional_value ? "[=%s]" : " %s", spec->placeholder);
    size_t n = buf_size(&left.buf);
    strbuf_add(out, "%.*s", (int)n, (const char *)buf_bytes(&left.buf));
    if (n + 2 > HELP_COLUMN)
        strbuf_add(out, "\n%*s", HELP_COLUMN, "");
    else
        strbuf_add(out, "%*s", HELP_COLUMN - (int)n, "");
    bool has_default = spec->fallback && *spec->fallback;
    strbuf_add(&right, "%s%s%s%s", spec->help, has_default ? " (" : "", has_default ? spec->fallback : "",
               has_default ? ")" : "");
    char *description = strbuf_steal(&right);
    add_wrapped_help(out, description ? description : spec->help);
    strbuf_add(out, "\n");
    free(description);
    strbuf_finish(&left);
}

char *options_help(void)
{
    struct strbuf out = {0};

    strbuf_add(
        &out,
        "%s\nStarts the workers of a training job on this node, watches over them and restarts them.\n\n"
        "options:\n",
        options_usage);
    for (enum option_id id = 0; id < OPTION_COUNT; id++)
        add_option_help(&out, &options_table[id]);
    strbuf_add(
        &out,
        "\nOptions take dashes or underscores, \"--name value\" or \"--name=value\", and defaults from\n"
        "PET_<NAME> in the environment. A program that is an ELF file or begins with \"#!\" runs as itself,\n"
        "another is given to Python. See crun(1).\n");
    return strbuf_steal(&out);
}
