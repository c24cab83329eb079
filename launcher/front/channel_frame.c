#include "launcher/front/channel_frame.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/wire.h"

enum { FROM_FRONT = 1, FROM_FAR = 2, BOTH_WAYS = 3, SIGNAL_MAX = 64, EXIT_CODE_MAX = 255 };

/* Form of a payload. */
enum frame_form {
    FRAME_BYTES,
    FRAME_TEXT,    /* no NUL byte */
    FRAME_NUMBERS, /* u32 */
};

/* What each kind allows. */
static const struct frame_rule {
    uint8_t ways;
    bool has_stream; /* else the number of the stream is 0 */
    enum frame_form form;
    uint32_t min, max; /* bytes */
} rules[CHANNEL_KIND_COUNT] = {
    [CHANNEL_SECRET] = {FROM_FRONT, false, FRAME_BYTES, 0, CHANNEL_SECRET_MAX},
    [CHANNEL_DIRECTORY] = {FROM_FRONT, false, FRAME_TEXT, 1, CHANNEL_TEXT_MAX},
    [CHANNEL_VARIABLE] = {FROM_FRONT, false, FRAME_TEXT, 2, CHANNEL_PAYLOAD_MAX},
    [CHANNEL_ARGUMENT] = {FROM_FRONT, false, FRAME_TEXT, 0, CHANNEL_PAYLOAD_MAX},
    [CHANNEL_START] = {FROM_FRONT, false, FRAME_NUMBERS, 8, 8},
    [CHANNEL_OPEN] = {FROM_FAR, true, FRAME_NUMBERS, 16, 16},
    [CHANNEL_DATA] = {BOTH_WAYS, true, FRAME_BYTES, 1, CHANNEL_PAYLOAD_MAX},
    [CHANNEL_END_OF_STREAM] = {BOTH_WAYS, true, FRAME_BYTES, 0, 0},
    [CHANNEL_WINDOW] = {BOTH_WAYS, true, FRAME_NUMBERS, 4, 4},
    [CHANNEL_PING] = {FROM_FRONT, false, FRAME_BYTES, 0, 0},
    [CHANNEL_PONG] = {FROM_FAR, false, FRAME_BYTES, 0, 0},
    [CHANNEL_SIGNAL] = {FROM_FRONT, false, FRAME_NUMBERS, 4, 4},
    [CHANNEL_NOTE] = {FROM_FAR, false, FRAME_TEXT, 1, CHANNEL_TEXT_MAX},
    [CHANNEL_RESULT] = {FROM_FAR, false, FRAME_NUMBERS, 8, 8},
};

/* Also makes room for the payload. */
static int append_head(struct buf *out, enum channel_kind kind, uint32_t stream, size_t n)
{
    if (!buf_reserve(out, CHANNEL_HEAD + n))
        return -ENOMEM;
    (void)buf_append_u32(out, kind); /* none of these needs memory */
    (void)buf_append_u32(out, stream);
    return buf_append_u32(out, (uint32_t)n);
}

int channel_frame_append(struct buf *out, enum channel_kind kind, uint32_t stream, const void *bytes,
                         size_t n)
{
    int r = append_head(out, kind, stream, n);

    return r ? r : buf_append(out, bytes, n);
}

int channel_numbers_append(struct buf *out, enum channel_kind kind, uint32_t stream, const uint32_t *numbers,
                           size_t n)
{
    int r = append_head(out, kind, stream, 4 * n);

    for (size_t i = 0; i < n && !r; i++)
        r = buf_append_u32(out, numbers[i]);
    return r;
}

static bool is_head_good(const uint8_t *head, bool from_far)
{
    const uint32_t kind = wire_load_u32(head), stream = wire_load_u32(head + 4), n = wire_load_u32(head + 8);

    if (kind >= CHANNEL_KIND_COUNT) /* or one of the three bytes behind the kind is not 0 */
        return false;
    const struct frame_rule *rule = &rules[kind];
    return rule->ways & (from_far ? FROM_FAR : FROM_FRONT) && n >= rule->min && n <= rule->max &&
           (rule->has_stream || stream == 0);
}

static bool is_payload_good(const struct channel_frame *f)
{
    switch (f->kind) {
    case CHANNEL_VARIABLE:
        return *f->bytes != '=' && memchr(f->bytes, '=', f->n);
    case CHANNEL_OPEN:
        return f->open.kind < CHANNEL_STREAM_KIND_COUNT;
    case CHANNEL_SIGNAL:
        return f->signal > 0 && f->signal <= SIGNAL_MAX;
    case CHANNEL_RESULT:
        return f->result.has_exited <= 1 &&
               f->result.code <= (f->result.has_exited ? EXIT_CODE_MAX : SIGNAL_MAX);
    default:
        return true;
    }
}

int channel_frame_take(const uint8_t *bytes, size_t n, bool from_far, struct channel_frame *ret,
                       size_t *ret_size)
{
    if (n < CHANNEL_HEAD)
        return 0;
    if (!is_head_good(bytes, from_far))
        return -EBADMSG;
    const size_t n_payload = wire_load_u32(bytes + 8);
    if (n - CHANNEL_HEAD < n_payload)
        return 0;
    *ret = (struct channel_frame){
        .kind = bytes[0], .stream = wire_load_u32(bytes + 4), .bytes = bytes + CHANNEL_HEAD, .n = n_payload};
    *ret_size = CHANNEL_HEAD + n_payload;
    const enum frame_form form = rules[ret->kind].form;
    for (size_t i = 0; form == FRAME_NUMBERS && i < n_payload / 4; i++)
        ret->numbers[i] = wire_load_u32(ret->bytes + 4 * i);
    const bool has_nul = form == FRAME_TEXT && memchr(ret->bytes, 0, n_payload);
    return !has_nul && is_payload_good(ret) ? 1 : -EBADMSG;
}

int channel_greeting_check(const char *line)
{
    const size_t n_number = strlen("1 ");

    if (strncmp(line, CHANNEL_GREETING, strlen(CHANNEL_GREETING)) == 0)
        return 1;
    return strncmp(line, CHANNEL_GREETING, strlen(CHANNEL_GREETING) - n_number) == 0 ? -EPROTO : 0;
}
