/* The text of --help, written from the table of options. */

#include <stdlib.h>
#include <string.h>

#include "launcher/cli/options.h"
#include "base/strbuf.h"
#include "base/err.h"

enum { HELP_COLUMN = 30, HELP_WIDTH_MIN = 60, HELP_WIDTH_MAX = 110 };

/* A heading stands before the option that its part of the table begins with. */
static const struct {
    enum option_id first;
    const char *title;
} headings[] = {
    {OPTION_NNODES, "Size of the job"},   {OPTION_RDZV_BACKEND, "Rendezvous"},
    {OPTION_MAX_RESTARTS, "Supervision"}, {OPTION_ROLE, "What runs"},
    {OPTION_LOG_DIR, "Output"},           {OPTION_AGENT_FD, "Other"},
};

/* Appends the words of text, broken before width, with lines after the first beginning at `indent`. column: of the first word. */
static void add_wrapped_help(struct strbuf *out, const char *text, int column, int indent, int width)
{
    int first = column;

    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > first && column + n > width) {
            strbuf_add(out, "\n%*s", indent, "");
            column = first = indent;
        }
        strbuf_add(out, "%s%.*s", column > first ? " " : "", n, text);
        column += n + 1;
        text += n + (text[n] == ' ');
    }
}

static void add_option_help(struct strbuf *out, const struct option_spec *spec, int width)
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
    add_wrapped_help(out, description ? description : spec->help, HELP_COLUMN, HELP_COLUMN, width);
    strbuf_add(out, "\n");
    free(description);
    strbuf_finish(&left);
}

static void add_heading(struct strbuf *out, enum option_id id)
{
    for (size_t i = 0; i < ARRAY_SIZE(headings); i++)
        if (headings[i].first == id)
            strbuf_add(out, "\n%s:\n", headings[i].title);
}

static void add_paragraph(struct strbuf *out, const char *text, int width)
{
    strbuf_add(out, "\n");
    add_wrapped_help(out, text, 0, 0, width);
    strbuf_add(out, "\n");
}

char *options_help(int width)
{
    struct strbuf out = {0};

    width = width < HELP_WIDTH_MIN ? HELP_WIDTH_MIN : width > HELP_WIDTH_MAX ? HELP_WIDTH_MAX : width;
    strbuf_add(&out, "%s", options_usage);
    add_paragraph(&out,
                  "Starts the workers of a training job on this node, watches over them and restarts them.",
                  width);
    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        add_heading(&out, id);
        if (!options_table[id].has_no_effect)
            add_option_help(&out, &options_table[id], width);
    }
    strbuf_add(&out, "\nWithout effect, for compatibility with torchrun:\n");
    for (enum option_id id = 0; id < OPTION_COUNT; id++)
        if (options_table[id].has_no_effect)
            add_option_help(&out, &options_table[id], width);
    strbuf_add(&out,
               "\nExamples:\n"
               "  crun --nproc-per-node=gpu train.py --lr 0.1\n"
               "  crun --nproc-per-node=4 --max-restarts=3 ./train\n"
               "  crun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1 train.py\n");
    add_paragraph(
        &out,
        "Options take dashes or underscores, \"--name value\" or \"--name=value\", and defaults from PET_<NAME> in "
        "the environment. A program that is an ELF file or begins with \"#!\" runs as itself, another is given to "
        "Python. See crun(1).",
        width);
    return strbuf_steal(&out);
}
