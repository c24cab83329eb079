#include "launcher/watch/stack_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "launcher/util/digest.h"

enum { LINE_MAX_SIZE = 512, FRAMES_MAX = 64, NAME_SIZE = 72 };

struct stack_frame {
    char function[NAME_SIZE];
    char file[NAME_SIZE]; /* without the folder; "": not known */
    int line;
    bool is_python, is_library, is_importer;
    bool is_torch_distributed;
};

struct stack_frames {
    struct stack_frame items[FRAMES_MAX]; /* the innermost first */
    int n;
    bool has_user, imports; /* an importer has been called by code of the user */
};

/* ---- one line ---- */

static bool contains(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static void copy_name(char *out, const char *from, size_t n)
{
    size_t size = n < NAME_SIZE - 1 ? n : NAME_SIZE - 1;

    for (size_t i = 0; i < size; i++)
        out[i] = (char)(from[i] >= ' ' && from[i] < 0x7f ? from[i] : '?'); /* for a terminal */
    out[size] = '\0';
}

/* "folder/train.py:88" */
static void take_place(struct stack_frame *f, const char *place, size_t n)
{
    const char *colon = memrchr(place, ':', n);
    size_t n_path = colon ? (size_t)(colon - place) : n;
    const char *slash = memrchr(place, '/', n_path);
    const char *name = slash ? slash + 1 : place;

    copy_name(f->file, name, (size_t)(place + n_path - name));
    f->line = colon ? (int)(strtoul(colon + 1, NULL, 10) & 0xffffff) : 0;
}

/* py-spy: "    all_reduce (/usr/lib/.../distributed_c10d.py:3120)"; native frames have a library in the brackets. */
static bool parse_python_frame(const char *line, struct stack_frame *f)
{
    const char *open = strstr(line, " ("), *end = strrchr(line, ')');

    if (strncmp(line, "    ", 4) != 0 || !open || !end || end < open + 2)
        return false;
    line += strspn(line, " ");
    if (open < line)
        return false;
    copy_name(f->function, line, (size_t)(open - line));
    take_place(f, open + 2, (size_t)(end - open - 2));
    f->is_python = contains(f->file, ".py") || f->file[0] == '<';
    f->is_library = contains(open, "/site-packages/") || contains(open, "/dist-packages/") ||
                    contains(open, "/lib/python3") || contains(open, "/lib64/python3") ||
                    contains(open, "(<frozen") || !f->is_python;
    f->is_importer = contains(open, "(<frozen importlib");
    f->is_torch_distributed = contains(open, "torch/distributed/");
    return true;
}

/* eu-stack: "#0  0x00007f0e epoll_wait"; gdb: "#1  0x000055 in main (argc=1) at train.c:12", "#0  main () at train.c:12". */
static bool parse_native_frame(const char *line, struct stack_frame *f)
{
    if (line[0] != '#' || line[1] < '0' || line[1] > '9')
        return false;
    line += 1 + strspn(line + 1, "0123456789");
    line += strspn(line, " ");
    if (strncmp(line, "0x", 2) == 0) {
        line += strcspn(line, " ");
        line += strspn(line, " ");
    }
    if (strncmp(line, "in ", 3) == 0)
        line += 3;
    copy_name(f->function, *line ? line : "?", *line ? strcspn(line, " (@") : 1);
    const char *at = strstr(line, " at ");
    if (at)
        take_place(f, at + 4, strlen(at + 4));
    return true;
}

/* Whether the line is the headline of a thread; then *ret_is_main. */
static bool is_thread_headline(const char *line, int pid, bool *ret_is_main)
{
    const char *lwp = strstr(line, "(LWP ");

    if (strncmp(line, "TID ", 4) == 0) {
        *ret_is_main = atoi(line + 4) == pid;
        return true;
    }
    if (strncmp(line, "Thread ", 7) != 0)
        return false;
    *ret_is_main = contains(line, "\"MainThread\"") || atoi(lwp ? lwp + 5 : line + 7) == pid ||
                   contains(line, "(process ");
    return true;
}

/* Nested imports are deep: frames of the importer are left out, and of too many frames the outermost is kept. */
static void add_frame(struct stack_frames *frames, const struct stack_frame *f)
{
    frames->imports |= f->is_importer && !frames->has_user;
    frames->has_user |= f->is_python && !f->is_library;
    if (f->is_importer && frames->n > 0)
        return;
    if (frames->n == FRAMES_MAX)
        frames->n--;
    frames->items[frames->n++] = *f;
}

static void take_line(const char *line, int pid, bool *in_main, struct stack_frames *frames)
{
    struct stack_frame f = {.line = 0};

    if (is_thread_headline(line, pid, in_main))
        return;
    if (*in_main && (parse_native_frame(line, &f) || parse_python_frame(line, &f)))
        add_frame(frames, &f);
}

static void parse(const char *bytes, size_t n_bytes, int pid, struct stack_frames *frames)
{
    char line[LINE_MAX_SIZE];
    bool in_main = false;

    while (n_bytes > 0) {
        const char *end = memchr(bytes, '\n', n_bytes);
        size_t n = end ? (size_t)(end - bytes) : n_bytes, kept = n < sizeof(line) - 1 ? n : sizeof(line) - 1;

        memcpy(line, bytes, kept);
        line[kept] = '\0';
        take_line(line, pid, &in_main, frames);
        n += end != NULL;
        bytes += n;
        n_bytes -= n;
    }
}

/* ---- what the frames mean ---- */

static bool starts_with_any(const char *text, const char *const *prefixes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static bool is_collective(const struct stack_frame *f)
{
    static const char *const operations[] = {
        "all_reduce",        "all_gather", "all_to_all", "reduce", "broadcast", "barrier",
        "monitored_barrier", "gather",     "scatter",    "send",   "recv",      "batch_isend_irecv",
    };
    static const char *const native[] = {"crw_all_",    "crw_barrier", "crw_broadcast", "crw_gather",
                                         "crw_scatter", "crw_reduce",  "crw_send",      "crw_recv",
                                         "crw_group_",  "crw_wait"};

    return f->is_torch_distributed
               ? starts_with_any(f->function, operations, ARRAY_SIZE(operations))
               : !f->is_python && starts_with_any(f->function, native, ARRAY_SIZE(native));
}

static enum stack_kind kind_of_frame(const struct stack_frame *f)
{
    if (strcmp(f->function, "destroy_process_group") == 0)
        return STACK_DESTROY;
    if (is_collective(f))
        return STACK_COLLECTIVE;
    if (f->is_library && strcmp(f->file, "dataloader.py") == 0)
        return STACK_DATA;
    return STACK_OTHER;
}

/* Waits of the C library, and their callers. */
static bool is_plumbing(const struct stack_frame *f)
{
    static const char *const names[] = {"_",      "?",       "futex",   "pthread_",  "poll",
                                        "ppoll",  "epoll_",  "read",    "write",     "recv",
                                        "send",   "select",  "syscall", "sem_",      "nanosleep",
                                        "clock_", "wrapper", "inner",   "decorate_", "wait"};

    return starts_with_any(f->function, names, ARRAY_SIZE(names));
}

static const struct stack_frame *find_user_frame(const struct stack_frames *frames)
{
    for (int i = 0; i < frames->n; i++)
        if (frames->items[i].is_python && !frames->items[i].is_library)
            return &frames->items[i];
    return NULL;
}

/* The frame that names the work of the thread: a known operation; else the function called by the user's code; else the user's
 * function. Of a program without Python the first function that is no wait of the C library. */
static const struct stack_frame *find_operation(const struct stack_frames *frames,
                                                const struct stack_frame *user)
{
    const struct stack_frame *called = NULL;

    for (const struct stack_frame *f = frames->items; f < frames->items + frames->n; f++) {
        if (f == user)
            break;
        if (kind_of_frame(f) != STACK_OTHER)
            return f;
        if (!is_plumbing(f) && (user ? f->is_python : !called))
            called = f;
    }
    return called ? called : user ? user : &frames->items[0];
}

static void describe(const struct stack_frames *frames, struct stack_summary *ret)
{
    const struct stack_frame *user = find_user_frame(frames), *operation = find_operation(frames, user);
    const struct stack_frame *place = user ? user : operation;

    ret->kind = kind_of_frame(operation);
    const char *name = ret->kind == STACK_DATA                       ? "data loader wait"
                       : frames->imports && ret->kind == STACK_OTHER ? "import"
                                                                     : operation->function;
    if (place->file[0])
        (void)snprintf(ret->text, sizeof(ret->text), place->line ? "%.70s at %.70s:%d" : "%.70s at %.70s",
                       name, place->file, place->line);
    else
        (void)snprintf(ret->text, sizeof(ret->text), "%.70s", name);
}

/* Without the line of the innermost frame: a loop that waits in its own function goes through several. */
static uint64_t digest_of(const struct stack_frames *frames)
{
    uint64_t digest = DIGEST_EMPTY;

    for (int i = 0; i < frames->n; i++) {
        const struct stack_frame *f = &frames->items[i];

        digest = digest_add(digest, f->function, strlen(f->function) + 1);
        if (i > 0)
            digest = digest_add(digest, &f->line, sizeof(f->line));
    }
    return digest;
}

bool stack_summarize(const char *bytes, size_t n_bytes, int pid, struct stack_summary *ret)
{
    static _Thread_local struct stack_frames frames;

    *ret = (struct stack_summary){.kind = STACK_UNKNOWN};
    frames.n = 0;
    frames.has_user = frames.imports = false;
    parse(bytes, n_bytes, pid, &frames);
    if (frames.n == 0)
        return false;
    describe(&frames, ret);
    for (int i = 0; i < frames.n; i++)
        ret->is_meeting |= frames.items[i].is_torch_distributed &&
                           strcmp(frames.items[i].function, "init_process_group") == 0;
    ret->digest = digest_of(&frames);
    return true;
}
