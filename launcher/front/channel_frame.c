#include "launcher/front/channel_frame.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/wire.h"

enum { FROM_FRONT = 1, FROM_FAR = 2, BOTH_WAYS = 3, OPEN_SIZE = 13, RESULT_SIZE = 5 };

/* What each kind allows. */
static const struct frame_rule {
    uint8_t ways;
    bool has_stream; /* else the number of the stream is 0 */
    bool is_text;    /* has no NUL byte */
    uint32_t min, max;
} rules[CHANNEL_KIND_COUNT] = {
    [CHANNEL_SECRET] = {FROM_FRONT, false, false, 0, CHANNEL_SECRET_MAX},
    [CHANNEL_DIRECTORY] = {FROM_FRONT, false, true, 1, CHANNEL_TEXT_MAX},
    [CHANNEL_VARIABLE] = {FROM_FRONT, false, true, 2, CHANNEL_PAYLOAD_MAX},
    [CHANNEL_ARGUMENT] = {FROM_FRONT, false, true, 0, CHANNEL_PAYLOAD_MAX},
    [CHANNEL_START] = {FROM_FRONT, false, false, 0, 0},
    [CHANNEL_OPEN] = {FROM_FAR, true, false, OPEN_SIZE, OPEN_SIZE},
    [CHANNEL_STDIN_WANTED] = {FROM_FAR, false, false, 0, 0},
    [CHANNEL_DATA] = {BOTH_WAYS, true, false, 1, CHANNEL_PAYLOAD_MAX},
    [CHANNEL_END_OF_STREAM] = {BOTH_WAYS, true, false, 0, 0},
    [CHANNEL_WINDOW] = {BOTH_WAYS, true, false, 4, 4},
    [CHANNEL_PING] = {FROM_FRONT, false, false, 0, 0},
    [CHANNEL_PONG] = {FROM_FAR, false, false, 0, 0},
    [CHANNEL_SIGNAL] = {FROM_FRONT, false, false, 1, 1},
    [CHANNEL_NOTE] = {FROM_FAR, false, true, 1, CHANNEL_TEXT_MAX},
    [CHANNEL_RESULT] = {FROM_FAR, false, false, RESULT_SIZE, RESULT_SIZE},
};

static void store_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

int channel_frame_append(struct buf *out, enum channel_kind kind, uint32_t stream, const void *bytes,
                         size_t n)
{
    uint8_t *head = buf_reserve(out, CHANNEL_HEAD + n);

    if (!head)
        return -ENOMEM;
    memset(head, 0, CHANNEL_HEAD);
    head[0] = (uint8_t)kind;
    store_u32(head + 4, stream);
    store_u32(head + 8, (uint32_t)n);
    if (n > 0)
        memcpy(head + CHANNEL_HEAD, bytes, n);
    buf_commit(out, CHANNEL_HEAD + n);
    return 0;
}

static bool is_head_good(const uint8_t *head, bool from_far)
{
    const uint8_t kind = head[0];
    const uint32_t stream = wire_load_u32(head + 4), n = wire_load_u32(head + 8);

    if (kind >= CHANNEL_KIND_COUNT || head[1] || head[2] || head[3])
        return false;
    const struct frame_rule *rule = &rules[kind];
    return rule->ways & (from_far ? FROM_FAR : FROM_FRONT) && n >= rule->min && n <= rule->max &&
           (rule->has_stream || stream == 0);
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
    *ret = (struct channel_frame){bytes[0], wire_load_u32(bytes + 4), bytes + CHANNEL_HEAD, n_payload};
    *ret_size = CHANNEL_HEAD + n_payload;
    return rules[ret->kind].is_text && memchr(ret->bytes, 0, n_payload) ? -EBADMSG : 1;
}

int channel_open_append(struct buf *out, uint32_t stream, const struct channel_open *open)
{
    uint8_t bytes[OPEN_SIZE] = {(uint8_t)open->kind};

    store_u32(bytes + 1, open->rank);
    store_u32(bytes + 5, open->local_rank);
    store_u32(bytes + 9, open->attempt);
    return channel_frame_append(out, CHANNEL_OPEN, stream, bytes, sizeof(bytes));
}

int channel_open_take(const struct channel_frame *frame, struct channel_open *ret)
{
    const uint8_t *b = frame->bytes;

    if (b[0] == CHANNEL_STDIN || b[0] >= CHANNEL_STREAM_KIND_COUNT)
        return -EBADMSG;
    *ret = (struct channel_open){b[0], wire_load_u32(b + 1), wire_load_u32(b + 5), wire_load_u32(b + 9)};
    return 0;
}

int channel_result_append(struct buf *out, const struct channel_result *result)
{
    uint8_t bytes[RESULT_SIZE] = {result->has_exited};

    store_u32(bytes + 1, result->code);
    return channel_frame_append(out, CHANNEL_RESULT, 0, bytes, sizeof(bytes));
}

int channel_result_take(const struct channel_frame *frame, struct channel_result *ret)
{
    const uint32_t code = wire_load_u32(frame->bytes + 1);

    if (frame->bytes[0] > 1 || code > (frame->bytes[0] ? 255 : 64))
        return -EBADMSG;
    *ret = (struct channel_result){.has_exited = frame->bytes[0], .code = code};
    return 0;
}

/* ---- the greeting ---- */

static const char greeting_mark[] = "\nCRUN-CHANNEL ";
enum { MARK_SIZE = sizeof(greeting_mark) - 1 };

int channel_greeting_append(struct buf *out, const struct channel_greeting *g)
{
    char line[GREETING_MAX];
    int n = snprintf(line, sizeof(line), "%s%d %s %s %s\n", greeting_mark, GREETING_PROTOCOL, g->version,
                     g->machine, g->nonce);

    return n < 0 || (size_t)n >= sizeof(line) ? -EINVAL : buf_append(out, line, (size_t)n);
}

/* The next word of printable characters, and the one character behind the word. */
static bool take_word(const char **at, char *ret, size_t size, char end)
{
    size_t n = 0;

    while ((*at)[n] > ' ' && (*at)[n] <= '~' && n + 1 < size)
        n++;
    if (n == 0 || (*at)[n] != end)
        return false;
    memcpy(ret, *at, n);
    ret[n] = '\0';
    *at += n + 1;
    return true;
}

/* line: what follows the mark, with its newline. */
static int parse_greeting(const char *line, struct channel_greeting *ret)
{
    char protocol[8], expected[8];

    (void)snprintf(expected, sizeof(expected), "%d", GREETING_PROTOCOL); /* fits */
    if (!take_word(&line, protocol, sizeof(protocol), ' '))
        return -EBADMSG;
    if (strcmp(protocol, expected) != 0)
        return -EPROTO;
    if (!take_word(&line, ret->version, sizeof(ret->version), ' ') ||
        !take_word(&line, ret->machine, sizeof(ret->machine), ' ') ||
        !take_word(&line, ret->nonce, sizeof(ret->nonce), '\n') ||
        strspn(ret->nonce, "0123456789abcdef") != GREETING_NONCE_SIZE - 1)
        return -EBADMSG;
    return 0;
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
    const uint8_t *text = bytes + at + MARK_SIZE, *end = memchr(text, '\n', n - at - MARK_SIZE);
    const size_t n_line = end ? (size_t)(end - text) + 1 : n - at - MARK_SIZE;
    if (n_line >= sizeof(line))
        return -EBADMSG;
    if (!end)
        return 0;
    memcpy(line, text, n_line);
    *ret_size = at + MARK_SIZE + n_line;
    int r = parse_greeting(line, ret);
    return r < 0 ? r : 1;
}
