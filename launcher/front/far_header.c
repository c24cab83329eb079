#include "launcher/front/far_header.h"

#include <errno.h>
#include <string.h>

static int take_text(struct strlist *list, const struct channel_frame *frame)
{
    strlist_add_owned(list, strndup((const char *)frame->bytes, frame->n));
    return list->failed ? -ENOMEM : 0;
}

int far_header_take(struct far_header *h, const struct channel_frame *frame)
{
    h->n_bytes += CHANNEL_HEAD + frame->n;
    if (h->has_secret == (frame->kind == CHANNEL_SECRET))
        return -EBADMSG;
    if (h->n_bytes > CHANNEL_HEADER_MAX)
        return -E2BIG;
    switch (frame->kind) {
    case CHANNEL_SECRET:
        memcpy(h->secret, frame->bytes, frame->n);
        h->n_secret = frame->n;
        h->has_secret = true;
        return 0;
    case CHANNEL_DIRECTORY:
        return h->directory.n_items ? -EBADMSG : take_text(&h->directory, frame);
    case CHANNEL_VARIABLE:
        return take_text(&h->variables, frame);
    case CHANNEL_ARGUMENT:
        return take_text(&h->arguments, frame);
    case CHANNEL_START:
        h->start = frame->start;
        return 1;
    default:
        return -EBADMSG;
    }
}

void far_header_finish(struct far_header *h)
{
    explicit_bzero(h->secret, sizeof(h->secret));
    strlist_finish(&h->directory);
    strlist_finish(&h->variables);
    strlist_finish(&h->arguments);
    *h = (struct far_header){.start = h->start};
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
