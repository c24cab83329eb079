#include "launcher/cli/line_rules.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

const char *line_action_name(unsigned action)
{
    static const char *const names[LINE_ACTION_COUNT] = {
        [LINE_MARK] = "mark",
        [LINE_STACKS] = "stacks",
        [LINE_RESTART] = "restart",
        [LINE_STOP] = "stop",
    };

    return action < LINE_ACTION_COUNT ? names[action] : NULL;
}

/* LINE_ACTION_COUNT: there is none of that name. */
static enum line_action action_of(const char *name)
{
    enum line_action action = 0;

    while (action < LINE_ACTION_COUNT && strcmp(line_action_name(action), name) != 0)
        action++;
    return action;
}

bool line_rules_add(struct line_rules *rules, const char *text, char error[LINE_RULE_ERROR_SIZE])
{
    const char *equals = strrchr(text, '=');
    char why[LINE_PATTERN_ERROR_SIZE];

    if (rules->n_items == LINE_RULES_MAX) {
        (void)snprintf(error, LINE_RULE_ERROR_SIZE, "--on-line: there are more than %d rules",
                       LINE_RULES_MAX); /* fits */
        return false;
    }
    struct line_rule *rule = &rules->items[rules->n_items];
    rule->text = text;
    rule->action = equals && equals > text ? action_of(equals + 1) : LINE_ACTION_COUNT;
    if (rule->action == LINE_ACTION_COUNT) {
        (void)snprintf(error, LINE_RULE_ERROR_SIZE,
                       "--on-line=%.300s: a rule is REGEX=stop, REGEX=restart, REGEX=stacks or REGEX=mark",
                       text); /* fits */
        return false;
    }
    if (!line_pattern_parse(&rule->pattern, text, (size_t)(equals - text), why)) {
        (void)snprintf(error, LINE_RULE_ERROR_SIZE, "--on-line=%.300s: %s", text, why); /* fits */
        return false;
    }
    rules->n_items++;
    return true;
}

int line_rules_find(const struct line_rules *rules, int first, const char *line, size_t n_bytes)
{
    for (int i = first; i < rules->n_items; i++)
        if (line_pattern_matches(&rules->items[i].pattern, line, n_bytes))
            return i;
    return -1;
}

bool line_rules_have(const struct line_rules *rules, enum line_action action)
{
    for (int i = 0; i < rules->n_items; i++)
        if (rules->items[i].action == action)
            return true;
    return false;
}

bool line_action_is_failure(enum line_action action)
{
    return action == LINE_RESTART || action == LINE_STOP;
}

void line_quote(char out[LINE_QUOTE_SIZE], const char *line, size_t n_bytes)
{
    char cut[LINE_QUOTE_SIZE];

    while (n_bytes > 0 && (*line == ' ' || *line == '\t')) {
        line++;
        n_bytes--;
    }
    while (n_bytes > 0 && (line[n_bytes - 1] == ' ' || line[n_bytes - 1] == '\t'))
        n_bytes--;
    size_t n = n_bytes < LINE_QUOTE_SIZE - 1 ? n_bytes : LINE_QUOTE_SIZE - 1;
    for (size_t i = 0; i < n; i++)
        cut[i] = line[i] ? line[i] : '?';
    cut[n] = 0;
    text_copy(out, LINE_QUOTE_SIZE, cut);
    text_clean(out);
}
