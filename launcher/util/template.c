#include "launcher/util/template.h"

#include <string.h>

#include "base/strbuf.h"

static size_t identifier_size(const char *s)
{
    size_t n = 0;

    while (s[n] == '_' || (s[n] >= 'a' && s[n] <= 'z') || (s[n] >= 'A' && s[n] <= 'Z') ||
           (n > 0 && s[n] >= '0' && s[n] <= '9'))
        n++;
    return n;
}

static const char *find_variable(const struct template_variable *variables, size_t n_variables,
                                 const char *name, size_t n)
{
    for (size_t i = 0; i < n_variables; i++)
        if (strlen(variables[i].name) == n && strncmp(variables[i].name, name, n) == 0)
            return variables[i].text;
    return NULL;
}

/* Appends the replacement of the text behind a "$" and returns the length of what it replaces. */
static size_t substitute_one(struct strbuf *out, const char *s, const struct template_variable *variables,
                             size_t n_variables)
{
    if (*s == '$') {
        strbuf_add(out, "$");
        return 1;
    }
    size_t braces = *s == '{';
    size_t n = identifier_size(s + braces);
    const char *value = find_variable(variables, n_variables, s + braces, n);
    if (value && (!braces || s[1 + n] == '}')) {
        strbuf_add(out, "%s", value);
        return n + 2 * braces;
    }
    strbuf_add(out, "$");
    return 0;
}

char *template_substitute(const char *text, const struct template_variable *variables, size_t n_variables)
{
    struct strbuf out = {0};

    while (*text) {
        size_t n = strcspn(text, "$");
        strbuf_add(&out, "%.*s", (int)n, text);
        text += n;
        if (*text)
            text += 1 + substitute_one(&out, text + 1, variables, n_variables);
    }
    return strbuf_steal(&out);
}
