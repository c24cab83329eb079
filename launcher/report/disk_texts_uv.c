#include "launcher/report/disk_texts_uv.h"

#include <stdlib.h>

#include "launcher/util/read_disk_os.h"
#include "launcher/util/side_thread_uv.h"
#include "base/cleanup.h"

enum { DISK_TEXT_LIMIT_MS = 250 };

struct disk_text {
    struct disk_text *next; /* that is asked for behind this one */
    struct file_part *part; /* asked for, then read; NULL: there is none, or its file is being read */
    unsigned generation;
    bool is_wanted, is_read;
    bool is_replaced; /* asked for again while its file was read: that result is dropped */
};

struct disk_texts {
    struct disk_texts_host host;
    struct disk_text *first, **end; /* asked for */
    struct side_call *call;         /* that reads `first`; NULL: none */
    struct disk_text items[];
};

static void read_next_text(struct disk_texts *t);

/* part NULL: there is nothing to read. */
static void append_text(struct disk_texts *t, struct disk_text *text, struct file_part *part)
{
    *text = (struct disk_text){.part = part, .generation = text->generation, .is_wanted = part};
    if (!part)
        return;
    *t->end = text;
    t->end = &text->next;
}

static void end_first_text(struct disk_texts *t, struct file_part *part)
{
    struct disk_text *text = t->first;

    t->call = NULL;
    t->first = text->next;
    if (!t->first)
        t->end = &t->first;
    if (text->is_replaced) {
        file_part_drop(part);
        append_text(t, text, text->part);
        return;
    }
    *text = (struct disk_text){.generation = text->generation, .part = part, .is_read = part && part->bytes};
}

static void on_text_read(void *owner, void *data)
{
    struct disk_texts *t = owner;
    size_t i = (size_t)(t->first - t->items);

    end_first_text(t, data);
    read_next_text(t);
    if (!t->items[i].is_wanted)
        t->host.on_read(t->host.data, i);
}

static void read_next_text(struct disk_texts *t)
{
    while (t->first && !t->call) {
        const struct side_task task = {.run = file_part_read,
                                       .drop = file_part_drop,
                                       .done = on_text_read,
                                       .data = steal_ptr(t->first->part),
                                       .owner = t,
                                       .limit_ms = DISK_TEXT_LIMIT_MS};

        if (side_thread_is_hung(SIDE_LOGS) || !task.data ||
            side_thread_submit(&t->call, t->host.loop, &task) != 0) {
            file_part_drop(task.data);
            end_first_text(t, NULL);
        }
    }
}

void disk_texts_want(struct disk_texts *t, size_t i, unsigned generation, struct file_part *part)
{
    struct disk_text *text = &t->items[i];

    file_part_drop(text->part);
    text->generation = generation;
    if (text->is_wanted) { /* a worker that has ended again before the file was read */
        text->part = part;
        text->is_replaced = text == t->first && t->call;
        return;
    }
    append_text(t, text, part);
    read_next_text(t);
}

const struct file_part *disk_texts_get(const struct disk_texts *t, size_t i, unsigned generation)
{
    const struct disk_text *text = &t->items[i];

    return text->is_read && text->generation == generation ? text->part : NULL;
}

bool disk_texts_await(const struct disk_texts *t, size_t i)
{
    return t->items[i].is_wanted;
}

bool disk_texts_await_any(const struct disk_texts *t)
{
    return t->first;
}

void disk_texts_give_up(struct disk_texts *t)
{
    file_part_drop(side_thread_cancel(t->call));
    while (t->first) {
        file_part_drop(steal_ptr(t->first->part));
        t->first->is_replaced = false;
        end_first_text(t, NULL);
    }
}

struct disk_texts *disk_texts_create(const struct disk_texts_host *host)
{
    struct disk_texts *t = calloc(1, sizeof(*t) + host->n * sizeof(t->items[0]));

    if (!t)
        return NULL;
    t->host = *host;
    t->end = &t->first;
    return t;
}

void disk_texts_destroy(struct disk_texts *t)
{
    for (size_t i = 0; t && i < t->host.n; i++)
        file_part_drop(t->items[i].part);
    free(t);
}
