#include "launcher/util/line_pattern.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

enum step_kind { STEP_BYTE, STEP_ANY, STEP_SET, STEP_SPLIT, STEP_BEGIN, STEP_END, STEP_MATCH };

enum { REPEATS_MAX = 64 };

/* ---- parsing ---- */

struct pattern_parser {
    struct line_pattern *p;
    const char *at, *end;
    char *error;
    int depth;
};

static bool refuse_pattern(struct pattern_parser *s, const char *why)
{
    (void)snprintf(s->error, LINE_PATTERN_ERROR_SIZE, "%s", why); /* the texts below fit */
    return false;
}

static bool add_step(struct pattern_parser *s, struct line_pattern_step step)
{
    if (s->p->n_steps == LINE_PATTERN_STEPS)
        return refuse_pattern(s, "the expression is too long");
    s->p->steps[s->p->n_steps++] = step;
    return true;
}

/* Puts a step in front of the part that begins at `first`: targets are relative, so that part moves as it is. */
static bool insert_step(struct pattern_parser *s, int first, struct line_pattern_step step)
{
    struct line_pattern_step *steps = s->p->steps;

    if (!add_step(s, step))
        return false;
    memmove(steps + first + 1, steps + first, (size_t)(s->p->n_steps - 1 - first) * sizeof(*steps));
    steps[first] = step;
    return true;
}

static struct line_pattern_step split(int next, int other)
{
    return (struct line_pattern_step){.kind = STEP_SPLIT, .next = (int16_t)next, .other = (int16_t)other};
}

static void set_add(uint8_t set[32], int from, int to)
{
    for (int c = from; c <= to; c++)
        set[c / 8] |= (uint8_t)(1u << c % 8);
}

static bool set_add_class(uint8_t set[32], const char *name, size_t n)
{
    static const struct {
        const char *name;
        struct {
            uint8_t from, to;
        } ranges[4];
    } classes[] = {
        {"alpha", {{'a', 'z'}, {'A', 'Z'}}},
        {"digit", {{'0', '9'}}},
        {"alnum", {{'a', 'z'}, {'A', 'Z'}, {'0', '9'}}},
        {"upper", {{'A', 'Z'}}},
        {"lower", {{'a', 'z'}}},
        {"space", {{'\t', '\r'}, {' ', ' '}}},
        {"blank", {{'\t', '\t'}, {' ', ' '}}},
        {"xdigit", {{'0', '9'}, {'a', 'f'}, {'A', 'F'}}},
        {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(classes); i++) {
        if (strlen(classes[i].name) != n || memcmp(classes[i].name, name, n) != 0)
            continue;
        for (int j = 0; j < 4 && classes[i].ranges[j].from; j++)
            set_add(set, classes[i].ranges[j].from, classes[i].ranges[j].to);
        return true;
    }
    return false;
}

/* [:name:] at s->at, which stands on the inner "[". */
static bool parse_class(struct pattern_parser *s, uint8_t set[32])
{
    const char *name = s->at + 2, *end = name;

    while (end < s->end && *end >= 'a' && *end <= 'z')
        end++;
    if (end + 1 >= s->end || end[0] != ':' || end[1] != ']' ||
        !set_add_class(set, name, (size_t)(end - name)))
        return refuse_pattern(s, "there is no such class of characters");
    s->at = end + 2;
    return true;
}

static bool parse_range(struct pattern_parser *s, uint8_t set[32])
{
    int from = (unsigned char)*s->at++, to = from;

    if (s->at + 1 < s->end && s->at[0] == '-' && s->at[1] != ']') {
        to = (unsigned char)s->at[1];
        s->at += 2;
    }
    if (to < from)
        return refuse_pattern(s, "a range in [] is the wrong way round");
    set_add(set, from, to);
    return true;
}

/* Behind the "[". */
static bool parse_set(struct pattern_parser *s)
{
    uint8_t set[32] = {0};

    if (s->p->n_sets == LINE_PATTERN_SETS)
        return refuse_pattern(s, "the expression has too many []");
    bool is_negated = s->at < s->end && *s->at == '^';
    s->at += is_negated;
    for (bool is_first = true; s->at < s->end && (is_first || *s->at != ']'); is_first = false) {
        bool is_class = s->at + 1 < s->end && s->at[0] == '[' && s->at[1] == ':';
        if (!(is_class ? parse_class(s, set) : parse_range(s, set)))
            return false;
    }
    if (s->at == s->end)
        return refuse_pattern(s, "a [ has no ]");
    s->at++;
    for (int i = 0; i < 32; i++)
        s->p->sets[s->p->n_sets][i] = is_negated ? (uint8_t)~set[i] : set[i];
    return add_step(s,
                    (struct line_pattern_step){.kind = STEP_SET, .byte = (uint8_t)s->p->n_sets++, .next = 1});
}

static bool parse_alternatives(struct pattern_parser *s);

static bool parse_group(struct pattern_parser *s)
{
    if (++s->depth > LINE_PATTERN_DEPTH)
        return refuse_pattern(s, "the expression has too many () within each other");
    if (!parse_alternatives(s))
        return false;
    if (s->at == s->end)
        return refuse_pattern(s, "a ( has no )");
    s->at++;
    s->depth--;
    return true;
}

static bool parse_atom(struct pattern_parser *s)
{
    char c = *s->at++;

    switch (c) {
    case '(':
        return parse_group(s);
    case '[':
        return parse_set(s);
    case '.':
        return add_step(s, (struct line_pattern_step){.kind = STEP_ANY, .next = 1});
    case '^':
        return add_step(s, (struct line_pattern_step){.kind = STEP_BEGIN, .next = 1});
    case '$':
        return add_step(s, (struct line_pattern_step){.kind = STEP_END, .next = 1});
    case '*':
    case '+':
    case '?':
    case '{':
        return refuse_pattern(s, "there is nothing in front of a *, +, ? or {");
    case '\\':
        if (s->at == s->end)
            return refuse_pattern(s, "there is nothing behind the last \\");
        c = *s->at++;
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
            return refuse_pattern(s, "\\ with a letter or digit is no extended regular expression");
        break;
    default:
        break;
    }
    return add_step(s, (struct line_pattern_step){.kind = STEP_BYTE, .byte = (uint8_t)c, .next = 1});
}

/* -1: none. */
static int parse_number(struct pattern_parser *s)
{
    int n = -1;

    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++)
        n = n > REPEATS_MAX ? n : (n < 0 ? 0 : 10 * n) + (*s->at - '0');
    return n;
}

static bool make_optional(struct pattern_parser *s, int first)
{
    return insert_step(s, first, split(1, s->p->n_steps - first + 1));
}

static bool make_star(struct pattern_parser *s, int first)
{
    int n = s->p->n_steps - first;

    return insert_step(s, first, split(1, n + 2)) && add_step(s, split(-n - 1, -n - 1));
}

/* Appends another copy of a part. */
static bool copy_part(struct pattern_parser *s, const struct line_pattern_step *part, int n)
{
    for (int i = 0; i < n; i++)
        if (!add_step(s, part[i]))
            return false;
    return true;
}

/* {min,max}; max -1: without end. */
static bool repeat_part(struct pattern_parser *s, int first, int min, int max)
{
    struct line_pattern_step part[LINE_PATTERN_STEPS];
    int n = s->p->n_steps - first;

    memcpy(part, s->p->steps + first, (size_t)n * sizeof(*part));
    s->p->n_steps = first;
    for (int i = 0; i < min; i++)
        if (!copy_part(s, part, n))
            return false;
    int rest = s->p->n_steps;
    if (max < 0)
        return copy_part(s, part, n) && make_star(s, rest);
    for (int i = min; i < max; i++) { /* each one is optional by itself: the same lines match */
        int begin = s->p->n_steps;
        if (!copy_part(s, part, n) || !make_optional(s, begin))
            return false;
    }
    return true;
}

/* Behind the "{". */
static bool parse_bounds(struct pattern_parser *s, int first)
{
    int min = parse_number(s), max = min;

    if (s->at < s->end && *s->at == ',') {
        s->at++;
        max = parse_number(s);
    }
    if (min < 0 || s->at == s->end || *s->at != '}' || (max >= 0 && max < min))
        return refuse_pattern(s, "what stands between { and } is not N, N, or N,M");
    if (min > REPEATS_MAX || max > REPEATS_MAX)
        return refuse_pattern(s, "a number in {} is larger than 64");
    s->at++;
    return repeat_part(s, first, min, max);
}

static bool parse_repeated(struct pattern_parser *s)
{
    int first = s->p->n_steps;
    bool ok = parse_atom(s);

    while (ok && s->at < s->end && strchr("*+?{", *s->at)) {
        char c = *s->at++;
        int n = s->p->n_steps - first;
        ok = c == '*'   ? make_star(s, first)
             : c == '+' ? add_step(s, split(-n, 1))
             : c == '?' ? make_optional(s, first)
                        : parse_bounds(s, first);
    }
    return ok;
}

static bool parse_sequence(struct pattern_parser *s)
{
    while (s->at < s->end && *s->at != '|' && !(*s->at == ')' && s->depth > 0))
        if (!parse_repeated(s))
            return false;
    return true;
}

static bool parse_alternatives(struct pattern_parser *s)
{
    int first = s->p->n_steps;

    if (!parse_sequence(s))
        return false;
    while (s->at < s->end && *s->at == '|') {
        s->at++;
        if (!insert_step(s, first, split(1, s->p->n_steps - first + 2)) || !add_step(s, split(0, 0)))
            return false;
        int jump = s->p->n_steps - 1;
        if (!parse_sequence(s))
            return false;
        s->p->steps[jump] = split(s->p->n_steps - jump, s->p->n_steps - jump);
    }
    return true;
}

bool line_pattern_parse(struct line_pattern *p, const char *text, size_t n_bytes,
                        char error[LINE_PATTERN_ERROR_SIZE])
{
    struct pattern_parser s = {.p = p, .at = text, .end = text + n_bytes, .error = error};

    p->n_steps = p->n_sets = 0;
    if (memchr(text, 0, n_bytes))
        return refuse_pattern(&s, "it has a NUL");
    if (!parse_alternatives(&s))
        return false;
    p->steps[p->n_steps] = (struct line_pattern_step){.kind = STEP_MATCH};
    return true;
}

/* ---- matching ---- */

/* The steps that a line can be at, each once. */
struct place_list {
    int16_t places[LINE_PATTERN_STEPS + 1];
    bool has[LINE_PATTERN_STEPS + 1];
    int n;
};

/* Adds a step, and all that it leads to without a byte. True: the match is complete. */
static bool add_place(const struct line_pattern *p, struct place_list *list, int first, bool is_begin,
                      bool is_end)
{
    int16_t stack[2 * LINE_PATTERN_STEPS + 4];
    int n = 0;

    stack[n++] = (int16_t)first;
    while (n > 0) {
        int16_t at = stack[--n];
        const struct line_pattern_step *step = &p->steps[at];

        if (list->has[at])
            continue;
        list->has[at] = true;
        if (step->kind == STEP_MATCH)
            return true;
        if (step->kind == STEP_SPLIT) {
            stack[n++] = (int16_t)(at + step->other);
            stack[n++] = (int16_t)(at + step->next);
        } else if ((step->kind == STEP_BEGIN && is_begin) || (step->kind == STEP_END && is_end)) {
            stack[n++] = (int16_t)(at + step->next);
        } else if (step->kind == STEP_BYTE || step->kind == STEP_ANY || step->kind == STEP_SET) {
            list->places[list->n++] = at;
        }
    }
    return false;
}

static bool takes_byte(const struct line_pattern *p, const struct line_pattern_step *step, uint8_t byte)
{
    return step->kind == STEP_ANY || (step->kind == STEP_BYTE && step->byte == byte) ||
           (step->kind == STEP_SET && p->sets[step->byte][byte / 8] & 1u << byte % 8);
}

static void clear_places(struct place_list *list, int n_steps)
{
    list->n = 0;
    memset(list->has, 0, (size_t)n_steps + 1);
}

bool line_pattern_matches(const struct line_pattern *p, const char *line, size_t n_bytes)
{
    struct place_list lists[2], *now = &lists[0], *next = &lists[1];
    size_t n = n_bytes < LINE_PATTERN_LINE_MAX ? n_bytes : LINE_PATTERN_LINE_MAX;

    clear_places(now, p->n_steps);
    for (size_t i = 0;; i++) {
        if (add_place(p, now, 0, i == 0, i == n)) /* a match may begin at each byte */
            return true;
        if (i == n)
            return false;
        clear_places(next, p->n_steps);
        for (int j = 0; j < now->n; j++) {
            int at = now->places[j];
            const struct line_pattern_step *step = &p->steps[at];
            if (takes_byte(p, step, (uint8_t)line[i]) &&
                add_place(p, next, at + step->next, false, i + 1 == n))
                return true;
        }
        struct place_list *swap = now;
        now = next;
        next = swap;
    }
}
