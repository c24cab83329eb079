/*
 * Where a stream of a worker goes:
 *
 *   -r             the worker writes its log file; crun has no part in the file
 *   -t             the same, and the output thread follows the file and shows its lines
 *   -t, no files   a pipe that the output thread reads
 *   no files       -r redirects nothing
 *   CRUN_OUTPUT_FD a pipe that the process around crun reads; -r and -t have no effect
 *   filtered out   (--local-ranks-filter) the file alone, /dev/null without files
 *   other hosts'   the output thread of a front writes the log file, and follows the file with -t; without files it shows
 *                  the bytes, without -t without prefix
 *
 * The file is opened with O_APPEND, so that a file that is truncated while the worker runs goes on at its new end.
 */

#include "launcher/output/output_stream_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/cli/job.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/output/output_handover_sock.h"
#include "launcher/util/envp.h"
#include "launcher/util/log_os.h"
#include "base/cleanup.h"
#include "base/strbuf.h"

enum { PIPE_SIZE = 256 << 10 }; /* output of a worker while the console is busy */

static const char default_template[] = "[${role_name}${local_rank}]:";
static const char *const stream_names[2] = {"stdout", "stderr"};

static struct output_stream *new_stream(int local_rank, int which)
{
    struct output_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    *s = (struct output_stream){
        .local_rank = local_rank, .which = which, .file = -1, .watch = -1, .pipe = -1, .filtered = -1};
    list_init(&s->entry);
    return s;
}

struct output_stream *output_stream_sentence(const char *text)
{
    struct output_stream *s = new_stream(-1, 1);

    if (!s)
        return NULL;
    s->is_sentence = s->ended = true;
    if (buf_append(&s->tail, text, strlen(text)) == 0)
        return s;
    output_stream_free(s);
    return NULL;
}

void output_stream_free(struct output_stream *s)
{
    if (!s)
        return;
    close_fd(&s->pipe);
    close_fd(&s->file);
    close_fd(&s->filtered); /* each write was checked */
    if (s->feed) {
        list_unlink(&s->feed->news);
        list_unlink(&s->feed->reports);
        close_fd(&s->feed->log); /* as above */
        buf_finish(&s->feed->given);
        buf_finish(&s->feed->taken);
        free(s->feed);
    }
    buf_finish(&s->tail);
    free(s->prefix);
    free(s->prefix_plain);
    list_unlink(&s->entry);
    free(s);
}

/* ---- prefixes ---- */

static bool wants_colour(char *const *environment, int which)
{
    const char *no_colour = envp_get(environment, "NO_COLOR");
    const char *term = envp_get(environment, "TERM");

    return isatty(which == 0 ? STDOUT_FILENO : STDERR_FILENO) && !(no_colour && *no_colour) && term &&
           strcmp(term, "dumb") != 0;
}

/* Last digits of the colours' numbers: red, the colour of errors, comes last. */
static const char colours[] = "632541";

/* host_name NULL: this node. */
static int make_prefixes(struct output_stream *s, const struct output_place *place, const char *host_name)
{
    const struct job *job = place->job;
    const char *template = job->line_prefix ? job->line_prefix : default_template;
    char host[256];

    if (!host_name)
        proc_info_host_name(host, sizeof(host));
    s->prefix_plain =
        line_prefix_prefix(template, job->role, s->local_rank, s->rank, host_name ? host_name : host);
    if (!s->prefix_plain)
        return -ENOMEM;
    if (!wants_colour(place->environment, s->which))
        s->prefix = strdup(s->prefix_plain);
    else
        s->prefix = strbuf_format("\033[3%cm%s\033[0m", colours[s->local_rank % (int)strlen(colours)],
                                  s->prefix_plain);
    return s->prefix ? 0 : -ENOMEM;
}

/* ---- files and pipes ---- */

static int open_log(const struct output_place *place, const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC | O_NOCTTY, 0666);

    if (fd >= 0)
        return fd;
    int r = -errno;
    (void)snprintf(place->error, place->error_size, "cannot open the log file %s: %s%s", path, strerror(-r),
                   log_remedy(r)); /* cut if long */
    return r;
}

static int open_filtered(struct output_stream *s, const struct output_place *place)
{
    s->filter = &place->job->filters[s->which];
    if (s->filter->n_items == 0)
        return 0;
    _cleanup_free_ char *path =
        strbuf_format("%s/filtered_%s.log", place->attempt_dir, stream_names[s->which]);
    if (!path)
        return -ENOMEM;
    s->filtered = open_log(place, path, O_WRONLY | O_CREAT | O_APPEND);
    return s->filtered < 0 ? s->filtered : 0;
}

/* The worker's end in *ret_fd; with a stream (not NULL) crun's own in there. */
static int open_stream_file(struct output_stream *s, const struct output_place *place, int local_rank,
                            int which, int *ret_fd)
{
    _cleanup_free_ char *path =
        strbuf_format("%s/%d/%s.log", place->attempt_dir, local_rank, stream_names[which]);
    _cleanup_close_ int fd = path ? open_log(place, path, O_WRONLY | O_CREAT | O_APPEND | O_TRUNC) : -ENOMEM;
    int r = 0;

    if (fd < 0)
        return fd;
    if (s) {
        s->file = open_log(place, path, O_RDONLY);
        r = s->file < 0 ? s->file : open_filtered(s, place);
    }
    if (!r)
        *ret_fd = steal_fd(&fd);
    return r;
}

static int open_stream_pipe(struct output_stream *s, int *ret_fd)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(fds[0], F_SETPIPE_SZ, PIPE_SIZE); /* a smaller one works as well */
    s->pipe = fds[0];
    if (fcntl(fds[0], F_SETFL, O_NONBLOCK) < 0) {
        int r = -errno;
        (void)close(fds[1]);
        return r;
    }
    *ret_fd = fds[1];
    return 0;
}

static int make_no_prefixes(struct output_stream *s)
{
    s->prefix = strdup("");
    s->prefix_plain = strdup("");
    s->n_folded = 0;
    return s->prefix && s->prefix_plain ? 0 : -ENOMEM;
}

/* Without file and pipe. */
static struct output_stream *new_shown(const struct output_place *place, int local_rank, int which,
                                       bool is_tee, const char *host_name)
{
    struct output_stream *s = new_stream(local_rank, which);

    if (!s)
        return NULL;
    s->rank = place->rank_base + local_rank;
    s->n_folded = place->job->fold_output ? place->job->n_workers : 0;
    s->rules = place->job->line_rules;
    if ((is_tee ? make_prefixes(s, place, host_name) : make_no_prefixes(s)) == 0)
        return s;
    output_stream_free(s);
    return NULL;
}

static int open_shown(const struct output_place *place, int local_rank, int which, int *ret_fd,
                      struct output_stream **ret_stream)
{
    struct output_stream *s = new_shown(place, local_rank, which, true, NULL);
    int r = !s                   ? -ENOMEM
            : place->attempt_dir ? open_stream_file(s, place, local_rank, which, ret_fd)
                                 : open_stream_pipe(s, ret_fd);

    if (r)
        output_stream_free(s);
    else
        *ret_stream = s;
    return r;
}

static int hand_over(const struct output_place *place, int local_rank, int which, int *ret_fd)
{
    const struct output_handover handover = {.version = OUTPUT_HANDOVER_VERSION,
                                             .rank = (uint32_t)(place->rank_base + local_rank),
                                             .local_rank = (uint32_t)local_rank,
                                             .which = (uint32_t)which,
                                             .attempt = (uint32_t)place->attempt};
    int r = output_handover_open(place->job->output_fd, &handover, ret_fd);

    if (r)
        (void)snprintf(place->error, place->error_size, "cannot hand over the output of rank %u: %s%s",
                       handover.rank, strerror(-r), log_remedy(r)); /* cut if long */
    return r;
}

int output_stream_open(const struct output_place *place, int local_rank, int which, int *ret_fd,
                       struct output_stream **ret_stream)
{
    const struct job *job = place->job;
    int bit = which == 0 ? JOB_STDOUT : JOB_STDERR;
    bool is_listed = !job->listed || job->listed[local_rank];
    bool has_file = place->attempt_dir && ((job->redirects[local_rank] | job->tees[local_rank]) & bit);
    bool is_tee = job->tees[local_rank] & bit;

    *ret_stream = NULL;
    if (job->output_fd)
        return hand_over(place, local_rank, which, ret_fd);
    if (is_listed && is_tee)
        return open_shown(place, local_rank, which, ret_fd, ret_stream);
    if (has_file)
        return open_stream_file(NULL, place, local_rank, which, ret_fd);
    if (is_listed)
        return 0;
    *ret_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    return *ret_fd < 0 ? -errno : 0;
}

/* ---- of other hosts ---- */

int output_stream_of_host(struct output_stream **ret, const struct output_place *place,
                          const struct output_origin *origin, int which, int n_folded)
{
    const struct job *job = place->job;
    const uint32_t local_rank = origin->local_rank;
    bool is_tee = !origin->file && job->tees[local_rank] >> which & 1;
    bool is_listed = !origin->file && (!job->listed || job->listed[local_rank]);

    if (!is_listed && !origin->open_log)
        return -EPIPE;
    struct output_feed *feed = calloc(1, sizeof(*feed));
    struct output_stream *s =
        feed ? new_shown(place, (int)local_rank, which, is_tee, origin->host_name) : NULL;
    if (!s) {
        free(feed);
        return -ENOMEM;
    }
    *feed = (struct output_feed){.origin = *origin,
                                 .stream = s,
                                 .log = -1,
                                 .is_listed = is_listed,
                                 .is_shown = is_listed && (is_tee || !origin->open_log)};
    list_init(&feed->news);
    list_init(&feed->reports);
    s->feed = feed;
    s->n_folded = s->n_folded > 0 && feed->is_shown ? n_folded : 0;
    s->local_rank = s->rank; /* names the worker among all hosts */
    *ret = s;
    return 0;
}

int output_stream_open_log(struct output_stream *s, const struct output_place *place)
{
    return open_stream_file(s->feed->is_shown ? s : NULL, place, (int)s->feed->origin.local_rank, s->which,
                            &s->feed->log);
}

int output_stream_append_log(struct output_stream *s)
{
    struct buf *b = &s->feed->taken;

    while (buf_size(b) > 0) {
        ssize_t n = write(s->feed->log, buf_bytes(b), buf_size(b));

        if (n < 0 && errno != EINTR)
            return -errno;
        buf_consume(b, n > 0 ? (size_t)n : 0);
    }
    return 0;
}
