#include "base/time.h"
#include "worker-runtime/programs/report_os.h"

#include <errno.h>
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
    double now;
    int filled = all ? (int)(done * BAR_WIDTH / all) : 0;

    if (!r->bar)
        return;
    now = report_now();
    if (now - r->bar_drawn_at < BAR_INTERVAL_S)
        return;
    r->bar_drawn_at = now;
    r->bar_open = true;
    fprintf(stderr, "\repoch %llu/%llu [%.*s%*s] %3d %%  loss %.4f  %.0f %s/s\033[K",
            (unsigned long long)epoch, (unsigned long long)n_epochs, filled, "##############################",
            BAR_WIDTH - filled, "", all ? (int)(done * 100 / all) : 0, loss, samples_per_s, r->samples_name);
}

/* One fwrite of a whole line, flushed: a reader never sees half a line, short of a full disk. */
static void write_metrics(struct train_report *r, const char *line)
{
    if (!r->metrics)
        return;
    if (fwrite(line, 1, strlen(line), r->metrics) < strlen(line) || fflush(r->metrics) != 0) {
        report_warn(r, "cannot append to %s: %s; this line of metrics is lost", r->metrics_path,
                    strerror(errno));
        clearerr(r->metrics);
    }
}

/* JSON has no word for a number that is none. */
static const char *json_number(char *text, size_t n, double v)
{
    if (!isfinite(v))
        return "null";
    snprintf(text, n, "%.9g", v);
    return text;
}

void report_step(struct train_report *r, uint64_t step, double loss, double accuracy)
{
    char line[256], loss_text[32], accuracy_text[32];
    unsigned long long n = step;

    if (!r->primary)
        return;
    if (isnan(accuracy))
        report_say(r, "step %llu  loss %.6f", n, loss);
    else
        report_say(r, "step %llu  loss %.6f  accuracy %.2f %%", n, loss, accuracy * 100);
    snprintf(line, sizeof(line), "{\"step\": %llu, \"step_loss\": %s, \"step_accuracy\": %s}\n", n,
             json_number(loss_text, sizeof(loss_text), loss),
             json_number(accuracy_text, sizeof(accuracy_text), accuracy));
    write_metrics(r, line);
}

void report_max_steps(struct train_report *r, uint64_t step, uint32_t param_crc32c)
{
    char line[128];

    report_say(r, "step %llu is the last that --max-steps allows  parameters %08x", (unsigned long long)step,
               param_crc32c);
    snprintf(line, sizeof(line), "{\"max_steps\": true, \"step\": %llu, \"param_crc32c\": \"%08x\"}\n",
             (unsigned long long)step, param_crc32c);
    write_metrics(r, line);
}

void report_epoch(struct train_report *r, const struct epoch_report *e)
{
    char line[512], accuracy_said[48] = "", loss[32], loss_all[32], accuracy[32];
    unsigned long long epoch = e->epoch, n_epochs = e->n_epochs, step = e->step;

    if (!isnan(e->test_accuracy))
        snprintf(accuracy_said, sizeof(accuracy_said), "test accuracy %.2f %%  ", e->test_accuracy * 100);
    report_say(r, "epoch %llu/%llu  step %llu  loss %.4f  %s%.0f %s/s  %.1f s  parameters %08x", epoch,
               n_epochs, step, e->loss, accuracy_said, e->samples_per_s, r->samples_name, e->seconds,
               e->param_crc32c);
    snprintf(line, sizeof(line),
             "{\"epoch\": %llu, \"step\": %llu, \"loss\": %s, \"loss_all\": %s, \"%s_per_s\": %.1f, "
             "\"test_accuracy\": %s, \"param_crc32c\": \"%08x\", \"seconds\": %.3f}\n",
             epoch, step, json_number(loss, sizeof(loss), e->loss),
             json_number(loss_all, sizeof(loss_all), e->loss_all), r->samples_name, e->samples_per_s,
             json_number(accuracy, sizeof(accuracy), e->test_accuracy), e->param_crc32c, e->seconds);
    write_metrics(r, line);
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
    char text[1200], line[1280];

    json_string(text, sizeof(text), sentence);
    snprintf(line, sizeof(line), "{\"snapshot_failed\": \"%s\"}\n", text);
    write_metrics(r, line);
}

void report_resume(struct train_report *r, const char *from, const char *key, uint64_t step, uint64_t epoch,
                   uint64_t consumed, int restart_count)
{
    char line[256];

    report_say(r, "resumed from %s of step %llu (epoch %llu, %llu %s into it)", from,
               (unsigned long long)step, (unsigned long long)(epoch + 1), (unsigned long long)consumed,
               r->samples_name);
    snprintf(
        line, sizeof(line),
        "{\"resumed\": true, \"from\": \"%s\", \"step\": %llu, \"epoch\": %llu, \"consumed\": %llu, \"restart_count\": %d}\n",
        key, (unsigned long long)step, (unsigned long long)(epoch + 1), (unsigned long long)consumed,
        restart_count);
    write_metrics(r, line);
}

void report_recommit(struct train_report *r, uint64_t step)
{
    char line[128];

    if (!r->metrics)
        return;
    snprintf(line, sizeof(line), "{\"recommitted\": %llu, \"monotonic\": %.6f}\n", (unsigned long long)step,
             report_now());
    write_metrics(r, line);
}
