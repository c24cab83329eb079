/* The side of the event loop: opens streams, passes requests to the output thread and waits for its end. */

#include "launcher/output/output_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "launcher/output/output_pump_os.h"
#include "launcher/output/output_stream_os.h"

enum {
    LEAVE_AFTER_MS = 1000, /* how long output_abandon() waits for the thread */
    HURRIED_END_MS = 1000, /* how long output_end() waits before output_abandon() */
};

struct output {
    uv_loop_t *loop;
    struct output_callbacks callbacks;
    struct output_pump *pump; /* NULL before the first stream or sentence, and after its end */
    uv_async_t news;          /* sent by the output thread; open while there is a pump */
    uv_timer_t patience;
    uint64_t look; /* that is waited for; 0: none */
    bool has_console, is_ending, is_abandoned, is_hurried;
    bool is_left; /* the thread was left behind, and still refers to `news` */
};

static void end_output(struct output *o)
{
    o->pump = NULL;
    uv_close((uv_handle_t *)&o->news, NULL);
    uv_close((uv_handle_t *)&o->patience, NULL);
    o->callbacks.on_end(o->callbacks.data);
}

static void on_news(uv_async_t *async)
{
    struct output *o = async->data;
    struct output_report report;
    struct line_match match;

    while (o->pump && output_pump_next_report(o->pump, &report))
        o->callbacks.on_report(o->callbacks.data, &report);
    while (o->pump && !o->is_ending && output_pump_next_match(o->pump, &match))
        o->callbacks.on_match(o->callbacks.lines, &match);
    if (o->look && o->pump && output_pump_has_looked(o->pump, o->look)) {
        o->look = 0;
        o->callbacks.on_looked(o->callbacks.lines);
    }
    if (o->pump && output_pump_join(o->pump))
        end_output(o);
}

/* Called by the output thread. */
static void send_news(void *data)
{
    struct output *o = data;

    (void)uv_async_send(&o->news); /* fails on a closed handle only */
}

static void on_abandon_timeout(uv_timer_t *timer)
{
    struct output *o = timer->data;

    output_pump_leave(o->pump);
    o->is_left = true;
    end_output(o);
}

static int start_pump(struct output *o)
{
    if (o->pump)
        return 0;
    int r = output_pump_create(&o->pump, o->has_console, send_news, o);
    if (r)
        return r;
    /* Neither fails with memory of the caller and a loop that runs. The thread sends nothing before it is asked to
     * end, which takes another call from here. */
    (void)uv_async_init(o->loop, &o->news, on_news);
    (void)uv_timer_init(o->loop, &o->patience);
    o->news.data = o->patience.data = o;
    if (o->is_hurried)
        output_pump_hurry(o->pump);
    return 0;
}

int output_create(struct output **ret, uv_loop_t *loop, bool has_console,
                  const struct output_callbacks *callbacks)
{
    struct output *o = calloc(1, sizeof(*o));

    if (!o)
        return -ENOMEM;
    o->loop = loop;
    o->has_console = has_console;
    o->callbacks = *callbacks;
    *ret = o;
    return 0;
}

int output_add(struct output *o, struct output_stream **stream)
{
    int r = start_pump(o);

    if (r)
        return r;
    if ((*stream)->feed)
        (*stream)->feed->output = o;
    output_pump_add(o->pump, *stream);
    *stream = NULL;
    return 0;
}

bool output_look(struct output *o)
{
    if (!o->pump || o->is_ending)
        return false;
    o->look = output_pump_look(o->pump);
    return true;
}

int output_feed(struct output_stream *s, const void *bytes, size_t n)
{
    const struct output *o = s->feed->output;

    return o && o->pump ? output_pump_feed(o->pump, s, bytes, n) : -EPIPE;
}

void output_close(struct output_stream *s)
{
    struct output *o = s->feed->output;

    if (!o)
        output_stream_free(s);
    else if (o->pump)
        output_pump_close(o->pump, s);
}

size_t output_drop(struct output_stream *s)
{
    size_t n = s->feed->n_owed + buf_size(&s->feed->given);

    s->feed->output = NULL;
    buf_reset(&s->feed->given);
    if (s->feed->is_closing)
        output_stream_free(s);
    return n;
}

void output_flush(struct output *o)
{
    if (o->pump)
        output_pump_flush(o->pump);
}

bool output_say(struct output *o, const char *text)
{
    if (o->is_abandoned || o->is_left || (o->is_ending && !o->pump) || start_pump(o) != 0)
        return false;
    struct output_stream *sentence = output_stream_sentence(text);
    if (!sentence)
        return false;
    bool is_queued = output_pump_say(o->pump, sentence);
    if (!is_queued)
        output_stream_free(sentence);
    return is_queued;
}

static void on_hurried_end(uv_timer_t *timer)
{
    output_abandon(timer->data);
}

static void limit_end(struct output *o)
{
    if (o->pump && o->is_ending && o->is_hurried && !o->is_abandoned)
        (void)uv_timer_start(&o->patience, on_hurried_end, HURRIED_END_MS, 0); /* has a callback */
}

void output_hurry(struct output *o)
{
    o->is_hurried = true;
    if (o->pump)
        output_pump_hurry(o->pump);
    limit_end(o);
}

void output_end(struct output *o)
{
    if (o->is_ending)
        return;
    o->is_ending = true;
    limit_end(o);
    if (o->pump)
        output_pump_end(o->pump, false);
    else
        o->callbacks.on_end(o->callbacks.data);
}

void output_abandon(struct output *o)
{
    if (o->is_abandoned)
        return;
    o->is_abandoned = true;
    if (!o->pump) {
        output_end(o);
        return;
    }
    o->is_ending = true;
    output_pump_end(o->pump, true);
    (void)uv_timer_start(&o->patience, on_abandon_timeout, LEAVE_AFTER_MS,
                         0); /* fails only without a callback */
}

bool output_is_abandoned(const struct output *o)
{
    return o->is_abandoned;
}

bool output_is_left(const struct output *o)
{
    return o->is_left;
}

void output_destroy(struct output *o)
{
    if (o && !o->is_left)
        free(o);
}
