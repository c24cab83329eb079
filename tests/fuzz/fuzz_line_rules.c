/*
 * Fuzz target: --on-line. The first line is a rule, the second a line of output: no rule may read or write where it must
 * not, and a match is the same when it is looked for again.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/cli/line_rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct line_rules rules;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, '\n', size);
    char rule[512], error[LINE_RULE_ERROR_SIZE], quote[LINE_QUOTE_SIZE];
    size_t n = end ? (size_t)(end - data) : size;

    if (n >= sizeof(rule))
        return 0;
    memcpy(rule, data, n);
    rule[n] = 0;
    rules.n_items = 0;
    bool is_rule = line_rules_add(&rules, rule, error);
    if (is_rule == (rules.n_items == 0) || (!is_rule && strlen(error) >= sizeof(error)))
        abort();
    const char *line = end ? (const char *)end + 1 : "";
    size_t n_line = end ? size - n - 1 : 0;
    if (is_rule && line_rules_find(&rules, 0, line, n_line) != line_rules_find(&rules, 0, line, n_line))
        abort();
    line_quote(quote, line, n_line);
    if (strlen(quote) >= sizeof(quote))
        abort();
    return 0;
}
