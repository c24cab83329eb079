#include "launcher/front/channel_frame.h"

#include <stdio.h>
#include <stdlib.h>
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

/* ---- the greeting ---- */

static const char greeting_mark[] = "\nCRUN-CHANNEL ";
enum { MARK_SIZE = sizeof(greeting_mark) - 1 };

static int print_greeting(char line[GREETING_MAX], const struct channel_greeting *g)
{
    return snprintf(line, GREETING_MAX, "%s%d %s %s %s\n", greeting_mark, GREETING_PROTOCOL, g->version,
                    g->machine, g->nonce);
}

int channel_greeting_append(struct buf *out, const struct channel_greeting *g)
{
    char line[GREETING_MAX];
    int n = print_greeting(line, g);

    return n < 0 || n >= GREETING_MAX ? -EINVAL : buf_append(out, line, (size_t)n);
}

/* line: from the mark to the newline. sscanf() is not strict about blanks, so the greeting is printed again and compared. */
static int parse_greeting(const char *line, struct channel_greeting *ret)
{
    char again[GREETING_MAX], digits[3];

    if (sscanf(line + MARK_SIZE, "%2[0-9] ", digits) == 1 && atoi(digits) != GREETING_PROTOCOL)
        return -EPROTO;
    int n =
        sscanf(line + MARK_SIZE, "%*u %64[!-~] %64[!-~] %16[0-9a-f]", ret->version, ret->machine, ret->nonce);
    if (n != 3 || strlen(ret->nonce) != GREETING_NONCE_SIZE - 1)
        return -EBADMSG;
    (void)print_greeting(again, ret); /* fits, as the words are bounded */
    return strcmp(again, line) == 0 ? 0 : -EBADMSG;
}

/* Bytes in front of the mark, or of the part of a mark with which the bytes end. */
static size_t find_mark(const uint8_t *bytes, size_t n)
{
    size_t i = 0;

    while (i < n && memcmp(bytes + i, greeting_mark, n - i < MARK_SIZE ? n - i : MARK_SIZE) != 0)
        i++;
    return i;
}

int channel_greeting_take(const uint8_t *bytes, size_t n, struct channel_greeting *ret, size_t *ret_size)
{
    const size_t at = find_mark(bytes, n);
    char line[GREETING_MAX] = "";

    *ret_size = at;
    if (n - at < MARK_SIZE)
        return 0;
    const uint8_t *mark = bytes + at, *end = memchr(mark + 1, '\n', n - at - 1);
    const size_t n_line = end ? (size_t)(end - mark) + 1 : n - at;
    if (n_line >= sizeof(line))
        return -EBADMSG;
    if (!end)
        return 0;
    memcpy(line, mark, n_line);
    *ret_size = at + n_line;
    int r = parse_greeting(line, ret);
    return r < 0 ? r : 1;
}
