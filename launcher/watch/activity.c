#include "launcher/watch/activity.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"

bool activity_is_compiler(const char *name)
{
    static const char *const names[] = {"cc1",  "cc1plus", "g++",   "gcc", "clang", "clang++",
                                        "nvcc", "cicc",    "ptxas", "ld",  "as"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* ---- the decision ---- */

static bool is_share(uint64_t ran_ns, uint64_t elapsed_ns)
{
    return ran_ns > 0 && ran_ns >= elapsed_ns / ACTIVITY_BUSY_SHARE;
}

static enum activity judge_call(const struct activity_facts *f)
{
    static const enum activity of_calls[] = {
        [ACTIVITY_CALL_OTHER] = ACTIVITY_UNKNOWN, [ACTIVITY_CALL_RUNS] = ACTIVITY_COMPUTES,
        [ACTIVITY_CALL_WAITS] = ACTIVITY_WAITS,   [ACTIVITY_CALL_READS] = ACTIVITY_READS,
        [ACTIVITY_CALL_WRITES] = ACTIVITY_WRITES, [ACTIVITY_CALL_SLEEPS] = ACTIVITY_SLEEPS,
        [ACTIVITY_CALL_REAPS] = ACTIVITY_CHILD,   [ACTIVITY_CALL_OPENS] = ACTIVITY_NO_INPUT,
    };
    bool transfers = f->call == ACTIVITY_CALL_READS || f->call == ACTIVITY_CALL_WRITES;
    bool of_pipe = transfers && f->target == ACTIVITY_TARGET_PIPE;

    if (transfers && f->target == ACTIVITY_TARGET_SOCKET)
        return ACTIVITY_WAITS;
    if ((of_pipe || f->call == ACTIVITY_CALL_WAITS) && is_share(f->child_ran_ns, f->elapsed_ns))
        return ACTIVITY_CHILD;
    if (of_pipe)
        return f->call == ACTIVITY_CALL_WRITES ? ACTIVITY_FULL_PIPE : ACTIVITY_NO_INPUT;
    return of_calls[f->call];
}

uint64_t activity_rate(const struct activity_facts *f)
{
    double bytes = (double)(f->read > f->written ? f->read : f->written);

    return f->elapsed_ns ? (uint64_t)(bytes * 1e9 / (double)f->elapsed_ns) : 0;
}

enum activity activity_judge(const struct activity_facts *f)
{
    if (f->has_ended)
        return ACTIVITY_ENDED;
    if (f->state == 'T' || f->state == 't')
        return ACTIVITY_STOPPED;
    if (f->state == 'D')
        return ACTIVITY_BLOCKED;
    if (f->child_compiles)
        return ACTIVITY_COMPILES;
    if (activity_rate(f) >= ACTIVITY_BYTES_MIN)
        return f->read >= f->written ? ACTIVITY_READS : ACTIVITY_WRITES;
    if (is_share(f->ran_ns, f->elapsed_ns))
        return ACTIVITY_COMPUTES;
    return judge_call(f);
}

bool activity_waits_now(const struct activity_facts *f)
{
    bool is_transfer = f->call == ACTIVITY_CALL_READS || f->call == ACTIVITY_CALL_WRITES;
    uint64_t threads_ns = f->ran_ns > f->main_ran_ns ? f->ran_ns - f->main_ran_ns : 0;

    if (f->has_ended || f->state != 'S' || f->child_runs ||
        threads_ns > f->elapsed_ns / ACTIVITY_THREADS_SHARE)
        return false;
    return f->call == ACTIVITY_CALL_WAITS || (is_transfer && f->target == ACTIVITY_TARGET_SOCKET);
}

/* ---- words ---- */

/* The text is the verb, the object, and the end. */
static const struct {
    const char *name, *verb, *object, *end; /* object: where it is not known */
} words_of[ACTIVITY_COUNT] = {
    [ACTIVITY_UNKNOWN] = {"unknown", "is in a system call"},
    [ACTIVITY_WAITS] = {"waits", "waits for a lock or a peer"},
    [ACTIVITY_COMPUTES] = {"computes", "computes (no tool for its stack)"},
    [ACTIVITY_COMPILES] = {"compiles", "compiles in ", "a process of its own"},
    [ACTIVITY_READS] = {"reads", "reads ", "a file"},
    [ACTIVITY_WRITES] = {"writes", "writes ", "a file"},
    [ACTIVITY_SLEEPS] = {"sleeps", "sleeps"},
    [ACTIVITY_NO_INPUT] = {"no_input", "waits for input of ", "a pipe"},
    [ACTIVITY_FULL_PIPE] = {"full_pipe", "cannot write to ", "a pipe", ", which is full"},
    [ACTIVITY_CHILD] = {"child", "waits for ", "a process of its own"},
    [ACTIVITY_STOPPED] = {"stopped", "is stopped by a signal"},
    [ACTIVITY_BLOCKED] = {"blocked", "is blocked in the kernel (state D)"},
    [ACTIVITY_ENDED] = {"ended", "has ended with success"},
};

const char *activity_name(enum activity activity)
{
    return words_of[activity < ACTIVITY_COUNT ? activity : ACTIVITY_UNKNOWN].name;
}

/* Cut parts fit into STACK_TEXT_SIZE. */
static void put_activity(const struct activity_words *w, char *out, size_t size)
{
    enum activity activity = w->activity < ACTIVITY_COUNT ? w->activity : ACTIVITY_UNKNOWN;
    const char *object = words_of[activity].object, *end = words_of[activity].end;
    bool is_child = activity == ACTIVITY_COMPILES || activity == ACTIVITY_CHILD;
    char text[120] = "";

    if (is_child && w->child)
        (void)snprintf(text, sizeof(text), "its process %lld (%.32s)", (long long)w->child,
                       w->name ? w->name : "?");
    else if (activity == ACTIVITY_BLOCKED && w->place && strcmp(w->place, "0") != 0)
        (void)snprintf(text, sizeof(text), " at %.64s", w->place);
    else if (object)
        (void)snprintf(text, sizeof(text), "%.100s", w->path && !is_child ? w->path : object);
    int n = snprintf(out, size, "%s%s%s", words_of[activity].verb, text, end ? end : "");
    if ((activity == ACTIVITY_READS || activity == ACTIVITY_WRITES) && n > 0 && (size_t)n < size)
        (void)snprintf(out + n, size - (size_t)n, " at %.1f MB/s", (double)w->bytes_per_s / 1e6);
}

/* A worker may give a file or a process any name. */
void activity_text(const struct activity_words *w, char *out, size_t size)
{
    put_activity(w, out, size);
    text_clean(out);
}

void activity_add_place(char *text, size_t size, const char *place)
{
    static const char in[] = ", in ";
    char *former = strstr(text, in);
    size_t n = former ? (size_t)(former - text) : strlen(text);

    (void)snprintf(text + n, size - n, "%s%s", in, place); /* may be cut */
}
