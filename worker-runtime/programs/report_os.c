#include "base/time.h"
#include "worker-runtime/programs/report_os.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

enum { BAR_WIDTH = 30 };
static const double BAR_INTERVAL_S = 0.1;

double report_now(void)
{
    return (double)now_ns() * 1e-9;
}

int report_open(struct train_report *r, bool primary, const char *metrics_path, const char *samples_name)
{
    *r =
        (struct train_report){.primary = primary, .metrics_path = metrics_path, .samples_name = samples_name};
    if (!primary)
        return 0;
    r->bar = isatty(STDERR_FILENO) == 1;
    /* Lines must be out when the process is killed: that is what this program demonstrates. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (metrics_path) {
        r->metrics = fopen(metrics_path, "ae");
        if (!r->metrics)
            return -errno;
    }
    return 0;
}

void report_close(struct train_report *r)
{
    if (r->bar_open)
        fputc('\n', stderr);
    if (r->metrics)
        fclose(r->metrics);
    *r = (struct train_report){0};
}

void report_clear_bar(struct train_report *r)
{
    if (r->bar_open)
        fputs("\r\033[K", stderr);
    r->bar_open = false;
}

void report_say(struct train_report *r, const char *format, ...)
{
    va_list args;

    if (!r->primary)
        return;
    report_clear_bar(r);
    va_start(args, format);
    vfprintf(stdout, format, args);
    va_end(args);
    fputc('\n', stdout);
}

void report_warn(struct train_report *r, const char *format, ...)
{
    va_list args;

    if (!r->primary)
        return;
    report_clear_bar(r);
    fputs("train: warning: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

bool report_wants_progress(const struct train_report *r)
{
    return r->bar;
}

void report_progress(struct train_report *r, uint64_t epoch, uint64_t n_epochs, uint64_t done, uint64_t all,
                     double loss, double samples_per_s)
{
    int filled = all ? (int)(done * BAR_WIDTH / all) : 0;

    if (!r->bar)
        return;
    double now = report_now();
    if (now - r->bar_drawn_at < BAR_INTERVAL_S)
        return;
    r->bar_drawn_at = now;
    r->bar_open = true;
    fprintf(stderr, "\repoch %llu/%llu [%.*s%*s] %3d %%  loss %.4f  %.0f %s/s\033[K",
            (unsigned long long)epoch, (unsigned long long)n_epochs, filled, "##############################",
            BAR_WIDTH - filled, "", all ? (int)(done * 100 / all) : 0, loss, samples_per_s, r->samples_name);
}

/* A whole line, shorter than stdio's buffer, and flushed: a reader never sees half a line, short of a full disk. */
__attribute__((format(printf, 2, 3))) static void write_metrics(struct train_report *r, const char *format,
                                                                ...)
{
    va_list args;

    if (!r->metrics)
        return;
    va_start(args, format);
    bool written = vfprintf(r->metrics, format, args) >= 0;
    va_end(args);
    if (!written || fflush(r->metrics) != 0) {
        report_warn(r, "cannot append to %s: %s; this line of metrics is lost", r->metrics_path,
                    strerror(errno));
        clearerr(r->metrics);
    }
}

struct json_number {
    char text[32];
};

/* JSON has no word for a number that is none. */
static struct json_number json_number(double v)
{
    struct json_number n = {"null"};

    if (isfinite(v))
        snprintf(n.text, sizeof(n.text), "%.9g", v);
    return n;
}

void report_step(struct train_report *r, uint64_t step, double loss, double accuracy)
{
    if (isnan(accuracy))
        report_say(r, "step %" PRIu64 "  loss %.6f", step, loss);
    else
        report_say(r, "step %" PRIu64 "  loss %.6f  accuracy %.2f %%", step, loss, accuracy * 100);
    write_metrics(r, "{\"step\": %" PRIu64 ", \"step_loss\": %s, \"step_accuracy\": %s}\n", step,
                  json_number(loss).text, json_number(accuracy).text);
}

void report_max_steps(struct train_report *r, uint64_t step, uint32_t param_crc32c)
{
    report_say(r, "step %" PRIu64 " is the last that --max-steps allows  parameters %08x", step,
               param_crc32c);
    write_metrics(r, "{\"max_steps\": true, \"step\": %" PRIu64 ", \"param_crc32c\": \"%08x\"}\n", step,
                  param_crc32c);
}

void report_epoch(struct train_report *r, const struct epoch_report *e)
{
    char accuracy_said[48] = "";

    if (!isnan(e->test_accuracy))
        snprintf(accuracy_said, sizeof(accuracy_said), "test accuracy %.2f %%  ", e->test_accuracy * 100);
    report_say(
        r, "epoch %" PRIu64 "/%" PRIu64 "  step %" PRIu64 "  loss %.4f  %s%.0f %s/s  %.1f s  parameters %08x",
        e->epoch, e->n_epochs, e->step, e->loss, accuracy_said, e->samples_per_s, r->samples_name, e->seconds,
        e->param_crc32c);
    write_metrics(r,
                  "{\"epoch\": %" PRIu64 ", \"step\": %" PRIu64
                  ", \"loss\": %s, \"loss_all\": %s, \"%s_per_s\": %.1f, "
                  "\"test_accuracy\": %s, \"param_crc32c\": \"%08x\", \"seconds\": %.3f}\n",
                  e->epoch, e->step, json_number(e->loss).text, json_number(e->loss_all).text,
                  r->samples_name, e->samples_per_s, json_number(e->test_accuracy).text, e->param_crc32c,
                  e->seconds);
}

/* As a string of JSON; what does not fit is cut. */
static void json_string(char *text, size_t n, const char *from)
{
    size_t at = 0;

    for (; *from && at + 7 < n; from++) {
        unsigned char c = (unsigned char)*from;

        if (c == '"' || c == '\\')
            text[at++] = '\\';
        if (c >= ' ')
            text[at++] = (char)c;
        else
            at += (size_t)snprintf(text + at, n - at, "\\u%04x", c);
    }
    text[at] = '\0';
}

void report_failed_save(struct train_report *r, const char *sentence)
{
    char text[1200];

    json_string(text, sizeof(text), sentence);
    write_metrics(r, "{\"snapshot_failed\": \"%s\"}\n", text);
}

void report_resume(struct train_report *r, const char *from, const char *key, uint64_t step, uint64_t epoch,
                   uint64_t consumed, int restart_count)
{
    report_say(r, "resumed from %s of step %" PRIu64 " (epoch %" PRIu64 ", %" PRIu64 " %s into it)", from,
               step, epoch + 1, consumed, r->samples_name);
    write_metrics(r,
                  "{\"resumed\": true, \"from\": \"%s\", \"step\": %" PRIu64 ", \"epoch\": %" PRIu64
                  ", \"consumed\": %" PRIu64 ", \"restart_count\": %d}\n",
                  key, step, epoch + 1, consumed, restart_count);
}

void report_recommit(struct train_report *r, uint64_t step)
{
    write_metrics(r, "{\"recommitted\": %" PRIu64 ", \"monotonic\": %.6f}\n", step, report_now());
}
