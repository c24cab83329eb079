/*
 * Completions for four shells. With ends_at_word options end at the first other word, the program: for its arguments the shell
 * completes as for any command. Values are offered where an option has a fixed choice of words (its choices, or the words in small
 * letters of its placeholder), or wants a file or a folder.
 */

#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/options.h"
#include "base/strbuf.h"

static const char head[] = "# Completion of %s for %s. Made from its table of options: do not edit.\n\n";

static bool is_in_small_letters(const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((word[i] >= 'a' && word[i] <= 'z') ||
              (i > 0 && (word[i] == '-' || (word[i] >= '0' && word[i] <= '9')))))
            return false;
    return n > 0;
}

/* The words an option's value may be, each with `before` in front but for the first. */
static void add_values(struct strbuf *out, const struct option_spec *spec)
{
    const char *from = spec->choices ? spec->choices : spec->placeholder ? spec->placeholder : "";
    bool is_first = true;

    while (*from) {
        size_t n = strcspn(from, " |");
        if (n > 0 && (spec->choices || is_in_small_letters(from, n))) {
            strbuf_add(out, "%s%.*s", is_first ? "" : " ", (int)n, from);
            is_first = false;
        }
        from += n + (from[n] != '\0');
    }
}

static bool has_values(const struct option_spec *spec)
{
    _cleanup_(strbuf_finish) struct strbuf values = {0};

    add_values(&values, spec);
    return buf_size(&values.buf) > 0;
}

static bool wants(const struct option_spec *spec, const char *placeholder)
{
    return spec->placeholder && strcmp(spec->placeholder, placeholder) == 0;
}

/* The name, with another character for its dashes. */
static void add_name(struct strbuf *out, const struct option_spec *spec, char dash)
{
    strbuf_add(out, "--");
    for (const char *c = spec->name; *c; c++)
        strbuf_add(out, "%c", *c == '-' ? dash : *c);
}

/* text with a backslash before each character of `special`, and single quotes as `quote`. */
static void add_quoted(struct strbuf *out, const char *text, const char *special, const char *quote)
{
    for (; *text; text++) {
        if (*text == '\'')
            strbuf_add(out, "%s", quote);
        else
            strbuf_add(out, "%s%c", strchr(special, *text) ? "\\" : "", *text);
    }
}

/* ---- bash ---- */

/* Names of the options that take a value, or of all, in one spelling. */
static void add_names(struct strbuf *out, const struct option_table *t, char dash, bool with_value_only)
{
    bool is_first = true;

    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec)) {
        if (with_value_only && spec->kind == OPTION_FLAG)
            continue;
        strbuf_add(out, "%s", is_first ? "" : " ");
        add_name(out, spec, dash);
        is_first = false;
    }
}

static void add_letters(struct strbuf *out, const struct option_table *t, bool with_value_only,
                        const char *before)
{
    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec))
        if (spec->letter && (!with_value_only || spec->kind != OPTION_FLAG))
            strbuf_add(out, "%s%c", before, spec->letter);
}

static void add_bash_values(struct strbuf *out, const struct option_table *t)
{
    strbuf_add(
        out,
        "# What may stand behind an option: words, or a kind of file.\n_%.*s_values()\n{\n    case $1 in\n",
        (int)strcspn(t->commands, " "), t->commands);
    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec)) {
        bool is_folder = wants(spec, "DIR"), is_file = wants(spec, "FILE");
        if (!has_values(spec) && !is_folder && !is_file)
            continue;
        strbuf_add(out, "    --%s)\n        ", spec->name);
        if (is_folder || is_file) {
            strbuf_add(out, "compgen -%c -- \"$2\" ;;\n", is_folder ? 'd' : 'f');
            continue;
        }
        strbuf_add(out, "compgen -W '");
        add_values(out, spec);
        strbuf_add(out, "' -- \"$2\" ;;\n");
    }
    strbuf_add(out, "    esac\n}\n\n");
}

/* bash splits words at "=", unless COMP_WORDBREAKS was changed; both cases are handled. The first %s: what another word does. */
static const char bash_walk[] =
    "    local word name=\"\" prefix=\"\" i=1\n"
    "    COMPREPLY=()\n"
    "    while [ \"$i\" -lt \"$COMP_CWORD\" ]; do\n"
    "        word=${COMP_WORDS[i]}\n"
    "        name=\"\"\n"
    "        case $word in\n"
    "        --) return ;;\n"
    "        --*=*) ;;\n"
    "        --*)\n"
    "            if [[ \" $with_value \" == *\" ${word//_/-} \"* ]]; then\n"
    "                name=${word//_/-}\n"
    "                [ \"${COMP_WORDS[i + 1]}\" = \"=\" ] && i=$((i + 1))\n"
    "                i=$((i + 1))\n"
    "            fi ;;\n"
    "        -*[$letters_with_value]) name=letter i=$((i + 1)) ;;\n"
    "        -*) ;;\n"
    "        *) %s\n"
    "        esac\n"
    "        [ \"$i\" -lt \"$COMP_CWORD\" ] && name=\"\"\n"
    "        i=$((i + 1))\n"
    "    done\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]}\n"
    "    if [ -z \"$name\" ] && [[ $cur == --*=* ]]; then\n"
    "        prefix=${cur%%%%=*} cur=${cur#*=}\n"
    "        name=${prefix//_/-} prefix=$prefix=\n"
    "    fi\n"
    "    [ -n \"$name\" ] && [ \"$cur\" = \"=\" ] && cur=\"\"\n"
    "    if [ -n \"$name\" ]; then\n"
    "        mapfile -t COMPREPLY < <(_%.*s_values \"$name\" \"$cur\")\n"
    "        COMPREPLY=(\"${COMPREPLY[@]/#/$prefix}\")\n"
    "    elif [[ $cur == -*_* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$underscored\" -- \"$cur\")\n"
    "    elif [[ $cur == -* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$dashed\" -- \"$cur\")\n"
    "%s"
    "    fi\n"
    "}\n\n";

static const char bash_words[] =
    "    else\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n";

static void make_bash(struct strbuf *out, const struct option_table *t)
{
    int n = (int)strcspn(t->commands, " ");

    add_bash_values(out, t);
    strbuf_add(out, "_%.*s()\n{\n    local with_value='", n, t->commands);
    add_names(out, t, '-', true);
    strbuf_add(out, "'\n    local letters_with_value='");
    add_letters(out, t, true, "");
    strbuf_add(out, "'\n    local dashed='");
    add_names(out, t, '-', false);
    add_letters(out, t, false, " -");
    strbuf_add(out, "'\n    local underscored='");
    add_names(out, t, '_', false);
    if (t->words)
        strbuf_add(out, "'\n    local words='%s", t->words);
    strbuf_add(out, "'\n");
    strbuf_add(out, bash_walk,
               t->ends_at_word ? "return ;; # the program: the rest is its own, files are offered" : ";;", n,
               t->commands, t->words ? bash_words : "");
    strbuf_add(out, "complete -o default -o bashdefault -F _%.*s %s\n", n, t->commands, t->commands);
}

/* ---- zsh ---- */

static void add_zsh_value(struct strbuf *out, const struct option_spec *spec)
{
    strbuf_add(out, ":");
    add_quoted(out, spec->placeholder ? spec->placeholder : "value", ":\\", "'\\''");
    strbuf_add(out, ":");
    if (wants(spec, "DIR"))
        strbuf_add(out, "_files -/");
    else if (wants(spec, "FILE"))
        strbuf_add(out, "_files");
    else if (has_values(spec)) {
        strbuf_add(out, "(");
        add_values(out, spec);
        strbuf_add(out, ")");
    } else {
        strbuf_add(out, " ");
    }
}

static void add_zsh_option(struct strbuf *out, const struct option_spec *spec)
{
    bool takes_value = spec->kind != OPTION_FLAG;

    strbuf_add(out, "    ");
    if (spec->letter)
        strbuf_add(out, "'(-%c --%s)'{-%c%s,--%s%s}'[", spec->letter, spec->name, spec->letter,
                   takes_value ? "+" : "", spec->name, takes_value ? "=" : "");
    else
        strbuf_add(out, "'--%s%s[", spec->name, takes_value ? "=" : "");
    add_quoted(out, spec->help, "[]:\\", "'\\''");
    strbuf_add(out, "]");
    if (takes_value)
        add_zsh_value(out, spec);
    strbuf_add(out, "' \\\n");
}

static void make_zsh(struct strbuf *out, const struct option_table *t)
{
    strbuf_add(out, "_arguments -s -S : \\\n");
    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec))
        add_zsh_option(out, spec);
    if (t->ends_at_word)
        strbuf_add(out, "    '(-):program:_files' \\\n    '*::argument:_default'\n");
    else
        strbuf_add(out, "    '*:word:(%s)'\n", t->words ? t->words : "");
}

/* ---- tcsh ---- */

/*
 * tcsh completes by patterns of words and cannot know where the program stands: options are offered for every word that
 * begins with a dash, values behind their option.
 */
static void add_tcsh_values(struct strbuf *out, const struct option_spec *spec)
{
    strbuf_add(out, "  'n/");
    add_name(out, spec, '-');
    if (wants(spec, "DIR") || wants(spec, "FILE")) {
        strbuf_add(out, "/%c/' \\\n", wants(spec, "DIR") ? 'd' : 'f');
        return;
    }
    strbuf_add(out, "/(");
    add_values(out, spec);
    strbuf_add(out, ")/' \\\n");
}

static void add_tcsh_command(struct strbuf *out, const struct option_table *t, const char *command, int n)
{
    strbuf_add(out, "complete %.*s \\\n", n, command);
    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec))
        if (has_values(spec) || wants(spec, "DIR") || wants(spec, "FILE"))
            add_tcsh_values(out, spec);
    strbuf_add(out, "  'c/--/(");
    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec))
        strbuf_add(out, "%s%s", spec == t->specs ? "" : " ", spec->name);
    strbuf_add(out, ")/' \\\n");
    if (t->words)
        strbuf_add(out, "  'n/*/(%s)/'\n", t->words);
    else
        strbuf_add(out, "  'n/*/f/'\n");
}

static void make_tcsh(struct strbuf *out, const struct option_table *t)
{
    for (const char *c = t->commands; *c; c += strcspn(c, " "), c += *c == ' ')
        add_tcsh_command(out, t, c, (int)strcspn(c, " "));
}

/* ---- fish ---- */

static void add_fish_walk(struct strbuf *out, const struct option_table *t)
{
    strbuf_add(out,
               "# Whether the program is still to come: behind it everything is the program's.\n"
               "function __crun_before_program\n"
               "    set -l words (commandline -opc)\n"
               "    set -l is_value 0\n"
               "    for word in $words[2..-1]\n"
               "        if test $is_value = 1\n"
               "            set is_value 0\n"
               "            continue\n"
               "        end\n"
               "        switch $word\n"
               "            case --\n"
               "                return 1\n"
               "            case ");
    add_names(out, t, '-', true);
    strbuf_add(out, " ");
    add_names(out, t, '_', true);
    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec))
        if (spec->letter && spec->kind != OPTION_FLAG)
            strbuf_add(out, " '-*%c'", spec->letter);
    strbuf_add(out,
               "\n"
               "                set is_value 1\n"
               "            case '-*'\n"
               "            case '*'\n"
               "                return 1\n"
               "        end\n"
               "    end\n"
               "    return 0\n"
               "end\n\n");
}

static void add_fish_command(struct strbuf *out, const struct option_table *t)
{
    strbuf_add(out, "complete");
    for (const char *c = t->commands; *c; c += strcspn(c, " "), c += *c == ' ')
        strbuf_add(out, " -c %.*s", (int)strcspn(c, " "), c);
    if (t->ends_at_word)
        strbuf_add(out, " -n __crun_before_program");
}

static void add_fish_option(struct strbuf *out, const struct option_table *t, const struct option_spec *spec)
{
    add_fish_command(out, t);
    if (spec->letter)
        strbuf_add(out, " -s %c", spec->letter);
    strbuf_add(out, " -l %s", spec->name);
    if (spec->kind != OPTION_FLAG)
        strbuf_add(out, wants(spec, "DIR") || wants(spec, "FILE") ? " -r -F" : " -x");
    if (wants(spec, "DIR"))
        strbuf_add(out, " -a '(__fish_complete_directories)'");
    if (has_values(spec)) {
        strbuf_add(out, " -a '");
        add_values(out, spec);
        strbuf_add(out, "'");
    }
    strbuf_add(out, " -d '");
    add_quoted(out, spec->help, "\\", "\\'");
    strbuf_add(out, "'\n");
}

static void make_fish(struct strbuf *out, const struct option_table *t)
{
    if (t->ends_at_word)
        add_fish_walk(out, t);
    for (const struct option_spec *spec = option_next(t, NULL); spec; spec = option_next(t, spec))
        add_fish_option(out, t, spec);
    if (!t->words)
        return;
    add_fish_command(out, t);
    strbuf_add(out, " -f -a '%s'\n", t->words);
}

/* ---- all ---- */

char *option_table_completion(const struct option_table *t, const char *shell)
{
    static const struct {
        const char *shell;
        void (*make)(struct strbuf *out, const struct option_table *t);
    } scripts[] = {{"bash", make_bash}, {"zsh", make_zsh}, {"tcsh", make_tcsh}, {"fish", make_fish}};
    struct strbuf out = {0};

    for (size_t i = 0; i < ARRAY_SIZE(scripts); i++)
        if (strcmp(scripts[i].shell, shell) == 0) {
            if (scripts[i].make == make_zsh)
                strbuf_add(&out, "#compdef %s\n", t->commands);
            strbuf_add(&out, head, t->page, shell);
            scripts[i].make(&out, t);
            return strbuf_steal(&out);
        }
    return NULL;
}
