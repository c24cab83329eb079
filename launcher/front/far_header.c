#include "launcher/front/far_header.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int take_directory(struct far_header *h, const struct channel_frame *frame)
{
    if (h->directory)
        return -EBADMSG;
    h->directory = strndup((const char *)frame->bytes, frame->n);
    return h->directory ? 0 : -ENOMEM;
}

static int take_text(struct strlist *list, const struct channel_frame *frame)
{
    strlist_add_owned(list, strndup((const char *)frame->bytes, frame->n));
    return list->failed ? -ENOMEM : 0;
}

static int take_secret(struct far_header *h, const struct channel_frame *frame)
{
    memcpy(h->secret, frame->bytes, frame->n);
    h->n_secret = frame->n;
    h->has_secret = true;
    return 0;
}

int far_header_take(struct far_header *h, const struct channel_frame *frame)
{
    const char *equals = frame->n > 0 ? memchr(frame->bytes, '=', frame->n) : NULL;

    h->n_bytes += CHANNEL_HEAD + frame->n;
    if (h->has_secret == (frame->kind == CHANNEL_SECRET))
        return -EBADMSG;
    if (h->n_bytes > CHANNEL_HEADER_MAX)
        return -E2BIG;
    switch (frame->kind) {
    case CHANNEL_SECRET:
        return take_secret(h, frame);
    case CHANNEL_DIRECTORY:
        return take_directory(h, frame);
    case CHANNEL_VARIABLE:
        return equals && equals != (const char *)frame->bytes ? take_text(&h->variables, frame) : -EBADMSG;
    case CHANNEL_ARGUMENT:
        return take_text(&h->arguments, frame);
    default:
        return frame->kind == CHANNEL_START ? 1 : -EBADMSG;
    }
}

void far_header_finish(struct far_header *h)
{
    explicit_bzero(h->secret, sizeof(h->secret));
    free(h->directory);
    strlist_finish(&h->variables);
    strlist_finish(&h->arguments);
    *h = (struct far_header){0};
}

void far_header_arguments(const struct far_header *h, const char *local_addr, const char *endpoint,
                          struct strlist *ret)
{
    strlist_add_copy(ret, "crun");
    strlist_add(ret, "--local-addr=%s", local_addr);
    strlist_add(ret, "--rdzv-endpoint=%s", endpoint);
    for (size_t i = 0; i < h->arguments.n_items; i++)
        strlist_add_copy(ret, h->arguments.items[i]);
}

static bool has_name_of(char *const *list, const char *variable)
{
    const size_t n = strcspn(variable, "=") + 1;

    for (; list && *list; list++)
        if (strncmp(*list, variable, n) == 0)
            return true;
    return false;
}

void far_header_environment(const struct far_header *h, char *const *own, char *const *base,
                            struct strlist *ret)
{
    char *const *const lists[] = {own, h->variables.items, base};

    for (size_t l = 0; l < 3; l++)
        for (char *const *v = lists[l]; v && *v; v++)
            if ((l < 1 || !has_name_of(lists[0], *v)) && (l < 2 || !has_name_of(lists[1], *v)))
                strlist_add_borrowed(ret, *v);
}
