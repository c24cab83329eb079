/* The texts that a table of options answers with. */

#include <string.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "base/strbuf.h"

enum { HELP_COLUMN = 30, HELP_WIDTH_MIN = 60, HELP_WIDTH_MAX = 110 };

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

/* left, then the text in its column, or below when left is long. */
static void add_row(struct strbuf *out, const char *left, const char *text, int width)
{
    int n = (int)strlen(left);

    strbuf_add(out, "%s", left);
    if (n + 2 > HELP_COLUMN)
        strbuf_add(out, "\n%*s", HELP_COLUMN, "");
    else
        strbuf_add(out, "%*s", HELP_COLUMN - n, "");
    add_wrapped_help(out, text, HELP_COLUMN, HELP_COLUMN, width);
    strbuf_add(out, "\n");
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
    bool has_default = spec->fallback && *spec->fallback;
    strbuf_add(&right, "%s%s%s%s", spec->help, has_default ? " (" : "", has_default ? spec->fallback : "",
               has_default ? ")" : "");
    _cleanup_free_ char *option = strbuf_steal(&left), *description = strbuf_steal(&right);
    if (option && description)
        add_row(out, option, description, width);
    else
        out->failed = true;
}

static void add_heading(struct strbuf *out, const struct option_table *t, const struct option_spec *o)
{
    for (const struct option_heading *h = t->headings; h && h->first; h++)
        if (strcmp(h->first, o->name) == 0)
            strbuf_add(out, "\n%s:\n", h->title);
}

static void add_paragraph(struct strbuf *out, const char *text, int width)
{
    if (!text)
        return;
    strbuf_add(out, "\n");
    add_wrapped_help(out, text, 0, 0, width);
    strbuf_add(out, "\n");
}

char *option_table_help(const struct option_table *t, int width)
{
    struct strbuf out = {0};
    bool has_more = false;

    width = width < HELP_WIDTH_MIN ? HELP_WIDTH_MIN : width > HELP_WIDTH_MAX ? HELP_WIDTH_MAX : width;
    strbuf_add(&out, "%s", t->usage);
    add_paragraph(&out, t->about, width);
    strbuf_add(&out, t->word_rows ? "\n" : "");
    for (const struct option_word *w = t->word_rows; w && w->word; w++)
        add_row(&out, w->word, w->help, width);
    strbuf_add(&out, t->headings ? "" : "\n");
    for (const struct option_spec *o = option_next(t, NULL); o; o = option_next(t, o)) {
        add_heading(&out, t, o);
        has_more = has_more || o->has_no_effect;
        if (!o->has_no_effect)
            add_option_help(&out, o, width);
    }
    if (has_more)
        strbuf_add(&out, "\nWithout effect, for compatibility with torchrun:\n");
    for (const struct option_spec *o = option_next(t, NULL); o && has_more; o = option_next(t, o))
        if (o->has_no_effect)
            add_option_help(&out, o, width);
    if (t->examples)
        strbuf_add(&out, "\n%s", t->examples);
    add_paragraph(&out, t->ending, width);
    return strbuf_steal(&out);
}

char *option_table_answer(const struct option_table *t, int result, const char *version)
{
    static const char *const shells[] = {"bash", "zsh", "tcsh",
                                         "fish"}; /* the choices of OPTION_ROWS_OF_ALL */
    struct strbuf out = {0};

    if (result == OPTIONS_E_HELP)
        return option_table_help(t, 80);
    if (result >= OPTIONS_E_COMPLETION)
        return option_table_completion(t, shells[result - OPTIONS_E_COMPLETION]);
    strbuf_add(&out, "%.*s %s\n", (int)strcspn(t->commands, " "), t->commands, version);
    return strbuf_steal(&out);
}
