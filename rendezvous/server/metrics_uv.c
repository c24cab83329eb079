#include "rendezvous/server/metrics_uv.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/address.h"
#include "base/cond_os.h"
#include "base/lock_os.h"
#include "base/time.h"
#include "rendezvous/store/metrics_text.h"
#include "rendezvous/server/microhttpd_os.h"
#include "rendezvous/server/server_uv.h"

enum { HTTP_OK = 200, HTTP_NOT_FOUND = 404, HTTP_NOT_ALLOWED = 405, HTTP_UNAVAILABLE = 503 };

enum { CONNECTION_MEMORY = 16 << 10 };

struct metrics {
    struct metrics_host host;
    const struct microhttpd *http;
    struct MHD_Daemon *daemon;
    uv_async_t asked;

    pthread_mutex_t lock;
    pthread_cond_t answered;
    struct metrics_text text; /* composed, if has_text */
    bool wants_text, has_text, is_closing;
};

/* ---- the loop ---- */

static void on_metrics_asked(uv_async_t *asked)
{
    struct metrics *m = asked->data;

    hold_lock(&m->lock);
    if (m->wants_text) {
        m->host.compose(m->host.data, &m->text);
        metrics_end(&m->text);
        m->has_text = true;
        m->wants_text = false;
        (void)pthread_cond_signal(&m->answered);
    }
}

/* ---- the thread of libmicrohttpd ---- */

static void wait_for_text(struct metrics *m)
{
    uint64_t until_ns = now_ns() + METRICS_WAIT_MS * UINT64_C(1000000);

    for (int r = 0; !m->has_text && !m->is_closing && r == 0;)
        r = cond_wait_until(&m->answered, &m->lock, until_ns);
}

/* The text, which the caller frees, or NULL. */
static char *ask_loop(struct metrics *m, bool is_open, size_t *ret_size)
{
    char *bytes = NULL;

    hold_lock(&m->lock);
    m->text = (struct metrics_text){.is_open_metrics = is_open};
    m->has_text = false;
    m->wants_text = !m->is_closing;
    if (m->wants_text)
        (void)uv_async_send(&m->asked); /* cannot fail */
    wait_for_text(m);
    m->wants_text = false;
    *ret_size = buf_size(&m->text.bytes);
    if (m->has_text && !m->text.failed)
        bytes = malloc(*ret_size + 1);
    if (bytes && *ret_size > 0)
        memcpy(bytes, buf_bytes(&m->text.bytes), *ret_size);
    buf_finish(&m->text.bytes);
    return bytes;
}

static int send_answer(struct metrics *m, struct MHD_Connection *connection, unsigned status, char *bytes,
                       size_t n, const char *type)
{
    struct MHD_Response *response =
        bytes ? m->http->create_response_from_buffer(n, bytes, MICROHTTPD_MUST_FREE) : NULL;

    if (!response) {
        free(bytes);
        return 0; /* closes the connection */
    }
    int r = m->http->add_response_header(response, "Content-Type", type);
    if (r == MICROHTTPD_YES)
        r = m->http->queue_response(connection, status, response);
    m->http->destroy_response(response);
    return r;
}

static int send_refusal(struct metrics *m, struct MHD_Connection *connection, unsigned status,
                        const char *text)
{
    return send_answer(m, connection, status, strdup(text), strlen(text), "text/plain; charset=utf-8");
}

static int on_request(void *data, struct MHD_Connection *connection, const char *url, const char *method,
                      const char *version, const char *upload, size_t *upload_size, void **request)
{
    struct metrics *m = data;
    size_t size;

    (void)version, (void)upload, (void)upload_size, (void)request;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return send_refusal(m, connection, HTTP_NOT_ALLOWED, "only GET\n");
    if (strcmp(url, "/metrics") != 0)
        return send_refusal(m, connection, HTTP_NOT_FOUND, "the metrics are at /metrics\n");
    bool is_open =
        metrics_wants_open(m->http->lookup_connection_value(connection, MICROHTTPD_HEADER, "Accept"));
    char *bytes = ask_loop(m, is_open, &size);
    if (!bytes)
        return send_refusal(m, connection, HTTP_UNAVAILABLE, "the event loop does not answer\n");
    return send_answer(m, connection, HTTP_OK, bytes, size, metrics_content_type(is_open));
}

/* ---- life ---- */

/* Its thread takes no signals: they are for the loop's. */
static struct MHD_Daemon *start_thread(struct metrics *m, int fd)
{
    sigset_t all, before;

    (void)sigfillset(&all); /* these three cannot fail */
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    struct MHD_Daemon *daemon = m->http->start_daemon(
        MICROHTTPD_THREAD | MICROHTTPD_AUTO | MICROHTTPD_ITC, 0, NULL, NULL, on_request, m,
        MICROHTTPD_OPTION_LISTEN_FD, fd, MICROHTTPD_OPTION_CONNECTIONS, (unsigned)METRICS_CONNECTIONS,
        MICROHTTPD_OPTION_TIMEOUT_S, (unsigned)METRICS_TIMEOUT_S, MICROHTTPD_OPTION_MEMORY,
        (size_t)CONNECTION_MEMORY, MICROHTTPD_OPTION_END);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

static int begin_to_serve(struct metrics *m, const char *address, uint16_t *ret_port,
                          char why[METRICS_ERROR_SIZE])
{
    const char *reason;
    char host[64];
    uint16_t port;
    int fd = -1;

    m->http = microhttpd_open(&reason);
    if (!m->http) {
        (void)snprintf(why, METRICS_ERROR_SIZE, "%s", reason);
        return -ENOSYS;
    }
    int r =
        address_parse_listener(address, host, &port) ? server_open_tcp(host, port, &fd, ret_port) : -EINVAL;
    if (r) {
        (void)snprintf(why, METRICS_ERROR_SIZE, "cannot serve metrics at %.100s: %s", address, strerror(-r));
        return r;
    }
    m->daemon = start_thread(m, fd);
    if (!m->daemon) {
        (void)close(fd); /* unused */
        (void)snprintf(why, METRICS_ERROR_SIZE, "cannot serve metrics at %.100s: no thread", address);
    }
    return m->daemon ? 0 : -EAGAIN;
}

static void on_metrics_closed(uv_handle_t *handle)
{
    struct metrics *m = handle->data;

    (void)pthread_cond_destroy(&m->answered);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

int metrics_create(struct metrics **ret, const struct metrics_host *host, const char *address,
                   uint16_t *ret_port, char why[METRICS_ERROR_SIZE])
{
    struct metrics *m = calloc(1, sizeof(*m));

    (void)snprintf(why, METRICS_ERROR_SIZE, "%s", strerror(ENOMEM));
    int r = m ? uv_async_init(host->loop, &m->asked, on_metrics_asked) : -ENOMEM;
    if (r) {
        free(m);
        return r;
    }
    m->host = *host;
    m->asked.data = m;
    uv_unref((uv_handle_t *)&m->asked);
    (void)pthread_mutex_init(&m->lock, NULL); /* does not fail on Linux */
    cond_init(&m->answered);
    r = begin_to_serve(m, address, ret_port, why);
    if (r)
        uv_close((uv_handle_t *)&m->asked, on_metrics_closed);
    else
        *ret = m;
    return r;
}

void metrics_destroy(struct metrics *m)
{
    if (!m)
        return;
    (void)pthread_mutex_lock(&m->lock);
    m->is_closing = true;
    (void)pthread_cond_signal(&m->answered);
    (void)pthread_mutex_unlock(&m->lock);
    m->http->stop_daemon(m->daemon); /* closes the listening socket, too */
    uv_close((uv_handle_t *)&m->asked, on_metrics_closed);
}
