#pragma once

/*
 * Texts with variables in them, as Python's string.Template.safe_substitute() reads them: "${name}" and "$name" stand
 * for a value, "$$" for a dollar sign, and whatever else begins with a dollar sign stays as it is. Pure.
 */

#include <stddef.h>

struct template_variable {
    const char *name;
    const char *text;
};

/* text with the variables replaced; malloc'ed, or NULL without memory. */
char *template_substitute(const char *text, const struct template_variable *variables, size_t n_variables);
