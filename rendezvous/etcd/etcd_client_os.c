#include "rendezvous/etcd/etcd_client_os.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock_os.h"
#include "base/thread_os.h"
#include "base/time.h"
#include "rendezvous/etcd/curl_os.h"
#include "rendezvous/etcd/etcd_json.h"
#include "rendezvous/etcd/etcd_members.h"

enum { HTTP_OK = 200 };

/* One thread. `request` and `reply` are the thread's while it is busy. */
struct lane {
    struct etcd_client *client;
    pthread_t thread;
    bool started, busy, has_reply;
    struct etcd_request request;
    struct etcd_reply reply;
    /* The thread's alone. */
    struct curl_easy *easy;
    struct etcd_members members;
    struct buf body, answer;
    bool too_long;
    char token[ETCD_TOKEN_SIZE]; /* "": not logged in */
};

struct etcd_client {
    struct etcd_client_config config;
    const struct curl *curl;
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    atomic_bool is_closing;
    struct lane lanes[ETCD_LANE_COUNT];
};

/* ---- one exchange, in the thread ---- */

static size_t on_answer(char *data, size_t size, size_t n, void *to)
{
    struct lane *l = to;

    if (buf_size(&l->answer) + size * n > ETCD_REPLY_MAX || buf_append(&l->answer, data, size * n) < 0) {
        l->too_long = true;
        return 0; /* ends the transfer */
    }
    return size * n;
}

static int on_transfer(void *data, int64_t down_all, int64_t down, int64_t up_all, int64_t up)
{
    struct lane *l = data;

    return atomic_load(&l->client->is_closing); /* other than 0 ends the transfer */
}

static void set_failure(struct etcd_reply *reply, enum etcd_outcome outcome, const char *text)
{
    *reply = (struct etcd_reply){.outcome = outcome};
    (void)snprintf(reply->error, sizeof(reply->error), "%s", text);
}

/* Before the request could be sent. */
static bool is_unsent(struct lane *l, int result)
{
    double seconds = 1;

    if (result == CURL_NO_RESOLVE || result == CURL_NO_CONNECT || result == CURL_NO_TLS ||
        result == CURL_TLS_UNVERIFIED)
        return true;
    return result == CURL_TIMED_OUT &&
           l->client->curl->easy_getinfo(l->easy, CURL_INFO_SEND_TIME, &seconds) == CURL_OK && seconds <= 0;
}

static struct curl_list *request_headers(struct lane *l)
{
    const struct curl *curl = l->client->curl;
    char line[ETCD_TOKEN_SIZE + 32];
    struct curl_list *list = curl->slist_append(NULL, "Content-Type: application/json"), *more;

    if (list)
        list = (more = curl->slist_append(list, "Expect:")) ? more : list; /* no round trip before the body */
    if (l->token[0] == '\0' || !list)
        return list;
    (void)snprintf(line, sizeof(line), "Authorization: %s", l->token);
    return (more = curl->slist_append(list, line)) ? more : list;
}

static void set_target(struct lane *l, const char *path, char url[static ETCD_HOST_SIZE + 64])
{
    const struct etcd_client *c = l->client;

    (void)snprintf(url, ETCD_HOST_SIZE + 64, "%s://%s%s", c->config.access.ca_file ? "https" : "http",
                   c->config.url.endpoints[l->members.at], path);
}

/* Sends the body to the present member. */
static void exchange(struct lane *l, const struct etcd_request *request, uint64_t until_ns)
{
    const struct curl *curl = l->client->curl;
    char url[ETCD_HOST_SIZE + 64];
    struct curl_list *headers = request_headers(l);
    uint64_t at_ns = now_ns();
    long status = 0, left_ms = until_ns > at_ns ? (long)((until_ns - at_ns) / 1000000) : 0;

    set_target(l, etcd_json_path(request), url);
    buf_reset(&l->answer);
    l->too_long = false;
    /* Options cannot fail but for memory, and then the exchange does. */
    (void)curl->easy_setopt(l->easy, CURL_OPT_URL, url);
    (void)curl->easy_setopt(l->easy, CURL_OPT_HEADERS, headers);
    /* libcurl sends a request again by itself where a connection that it has used before breaks. */
    (void)curl->easy_setopt(l->easy, CURL_OPT_FRESH, request->kind == ETCD_TXN ? 1L : 0L);
    (void)curl->easy_setopt(l->easy, CURL_OPT_TIMEOUT_MS, left_ms > 0 ? left_ms : 1L);
    (void)curl->easy_setopt(l->easy, CURL_OPT_POST_SIZE, (long)buf_size(&l->body));
    (void)curl->easy_setopt(l->easy, CURL_OPT_POST_BYTES, buf_bytes(&l->body));
    int r = headers ? curl->easy_perform(l->easy) : CURL_NO_CONNECT;
    (void)curl->easy_setopt(l->easy, CURL_OPT_HEADERS, NULL);
    curl->slist_free_all(headers);
    if (r == CURL_OK && curl->easy_getinfo(l->easy, CURL_INFO_STATUS, &status) == CURL_OK)
        etcd_json_get(request->kind, (int)status, buf_bytes(&l->answer), buf_size(&l->answer), &l->reply);
    else if (l->too_long)
        set_failure(&l->reply, ETCD_UNKNOWN, "its answer is too long, or memory is out");
    else
        set_failure(&l->reply, is_unsent(l, r) ? ETCD_NOT_SENT : ETCD_UNKNOWN, curl->easy_strerror(r));
    buf_reset(&l->answer);
}

/* ---- a request, in the thread ---- */

static int compose_body(struct lane *l, const struct etcd_request *request)
{
    buf_reset(&l->body);
    return etcd_json_put(&l->body, request);
}

static bool log_in(struct lane *l, uint64_t until_ns)
{
    const struct etcd_access *a = &l->client->config.access;
    struct etcd_request login = {.kind = ETCD_AUTHENTICATE};

    l->token[0] = '\0';
    (void)snprintf(login.key, sizeof(login.key), "%s", a->user);
    (void)snprintf(login.end, sizeof(login.end), "%s", a->password);
    if (compose_body(l, &login) < 0) {
        set_failure(&l->reply, ETCD_NOT_SENT, "memory is out");
        return false;
    }
    exchange(l, &login, until_ns);
    if (l->reply.outcome == ETCD_OK)
        (void)strcpy(l->token, l->reply.token);
    else if (l->reply.outcome == ETCD_UNKNOWN)
        l->reply.outcome = ETCD_NOT_SENT; /* what was wanted was not sent */
    return l->reply.outcome == ETCD_OK;
}

/* Also one of an older revision of the users and roles: any change of these makes all tokens (JWT) that old. */
static bool is_token_refused(const struct etcd_reply *reply)
{
    return reply->outcome == ETCD_REFUSED &&
           (reply->code == ETCD_CODE_UNAUTHENTICATED || strstr(reply->error, "auth token") ||
            strstr(reply->error, "revision of auth store"));
}

/* To one member, with a login where that is needed. */
static void ask_member(struct lane *l, uint64_t until_ns)
{
    const char *user = l->client->config.access.user;

    for (int attempt = 0; attempt < 2; attempt++) {
        if (user && l->token[0] == '\0' && !log_in(l, until_ns))
            return;
        if (compose_body(l, &l->request) < 0) {
            set_failure(&l->reply, ETCD_NOT_SENT, "memory is out");
            return;
        }
        etcd_reply_finish(&l->reply);
        exchange(l, &l->request, until_ns);
        if (!user || !is_token_refused(&l->reply))
            return;
        l->token[0] = '\0';
    }
}

/* Another member may do better, and nothing can happen twice by that. */
static bool may_ask_next(const struct lane *l)
{
    return l->reply.outcome == ETCD_NOT_SENT ||
           (l->reply.outcome == ETCD_UNKNOWN && l->request.kind != ETCD_TXN);
}

static void ask_members(struct lane *l)
{
    bool was_unknown = false;
    uint64_t until_ns;

    etcd_members_begin(&l->members, etcd_request_is_brief(&l->request), now_ns());
    while (etcd_members_next(&l->members, now_ns(), &until_ns) && !atomic_load(&l->client->is_closing)) {
        etcd_reply_finish(&l->reply);
        ask_member(l, until_ns);
        if (l->reply.outcome != ETCD_OK && l->reply.outcome != ETCD_REFUSED)
            etcd_members_fail(&l->members, l->reply.outcome == ETCD_NOT_SENT, now_ns());
        was_unknown = was_unknown || l->reply.outcome == ETCD_UNKNOWN;
        if (!may_ask_next(l))
            break;
    }
    if (was_unknown && l->reply.outcome == ETCD_NOT_SENT)
        l->reply.outcome = ETCD_UNKNOWN;
    buf_reset(&l->body);
}

static void *run_lane(void *data)
{
    struct lane *l = data;
    struct etcd_client *c = l->client;

    hold_lock(&c->lock);
    while (!atomic_load(&c->is_closing)) {
        if (!l->busy) {
            (void)pthread_cond_wait(&c->wanted, &c->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&c->lock);
        ask_members(l);
        (void)pthread_mutex_lock(&c->lock);
        etcd_request_finish(&l->request);
        l->busy = false;
        l->has_reply = true;
        c->config.answered(c->config.data);
    }
    return NULL;
}

/* ---- the loop's side ---- */

void etcd_client_send(struct etcd_client *c, enum etcd_lane lane, struct etcd_request *request)
{
    struct lane *l = &c->lanes[lane];

    hold_lock(&c->lock);
    l->request = *request;
    *request = (struct etcd_request){0};
    l->busy = true;
    (void)pthread_cond_broadcast(&c->wanted);
}

bool etcd_client_take(struct etcd_client *c, enum etcd_lane lane, struct etcd_reply *ret)
{
    struct lane *l = &c->lanes[lane];

    hold_lock(&c->lock);
    bool has_reply = l->has_reply;
    if (has_reply) {
        *ret = l->reply;
        l->reply = (struct etcd_reply){0};
        l->has_reply = false;
    }
    return has_reply;
}

/* ---- life ---- */

static bool lane_open(struct lane *l)
{
    const struct curl *curl = l->client->curl;
    const struct etcd_access *a = &l->client->config.access;

    l->easy = curl->easy_init();
    if (!l->easy)
        return false;
    if (curl->easy_setopt(l->easy, CURL_OPT_NO_SIGNAL, 1L) != CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_CONNECT_TIMEOUT_MS, (long)ETCD_CONNECT_MS) != CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_PROTOCOLS, (long)(CURL_PROTOCOL_HTTP | CURL_PROTOCOL_HTTPS)) !=
            CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_NO_PROXY, "*") != CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_WRITE, on_answer) != CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_WRITE_DATA, l) != CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_PROGRESS, on_transfer) != CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_PROGRESS_DATA, l) != CURL_OK ||
        curl->easy_setopt(l->easy, CURL_OPT_NO_PROGRESS, 0L) != CURL_OK)
        return false;
    return (!a->ca_file || curl->easy_setopt(l->easy, CURL_OPT_CA, a->ca_file) == CURL_OK) &&
           (!a->cert_file || curl->easy_setopt(l->easy, CURL_OPT_CERT, a->cert_file) == CURL_OK) &&
           (!a->key_file || curl->easy_setopt(l->easy, CURL_OPT_KEY, a->key_file) == CURL_OK);
}

static int lane_start(struct lane *l)
{
    int r = lane_open(l) ? thread_start(&l->thread, run_lane, l) : -ENOMEM;

    l->started = r == 0;
    return r;
}

int etcd_client_create(struct etcd_client **ret, const struct etcd_client_config *config,
                       const char **ret_why)
{
    const struct curl *curl = curl_open(ret_why);
    struct etcd_client *c = curl ? calloc(1, sizeof(*c)) : NULL;
    int r = 0;

    if (!curl)
        return -ENOSYS;
    *ret_why = "memory is out, or no thread can be started";
    if (!c)
        return -ENOMEM;
    c->config = *config;
    c->curl = curl;
    (void)pthread_mutex_init(&c->lock, NULL); /* neither fails on Linux */
    (void)pthread_cond_init(&c->wanted, NULL);
    for (int i = 0; r == 0 && i < ETCD_LANE_COUNT; i++) {
        c->lanes[i].client = c;
        c->lanes[i].members.n = config->url.n_endpoints;
        r = lane_start(&c->lanes[i]);
    }
    if (r < 0) {
        etcd_client_destroy(c);
        return r;
    }
    *ret = c;
    return 0;
}

static void lane_close(struct lane *l)
{
    if (l->started)
        (void)pthread_join(l->thread, NULL);
    if (l->easy)
        l->client->curl->easy_cleanup(l->easy);
    etcd_request_finish(&l->request);
    etcd_reply_finish(&l->reply);
    buf_finish(&l->body);
    buf_finish(&l->answer);
}

void etcd_client_destroy(struct etcd_client *c)
{
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    atomic_store(&c->is_closing, true);
    (void)pthread_cond_broadcast(&c->wanted);
    (void)pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < ETCD_LANE_COUNT; i++)
        lane_close(&c->lanes[i]);
    (void)pthread_cond_destroy(&c->wanted);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}
