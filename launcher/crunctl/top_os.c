#include "launcher/crunctl/top_os.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "launcher/crunctl/job_survey_os.h"
#include "launcher/crunctl/top_text.h"

enum { TOP_MS = 1000, KEYS_SIZE = 64, WIDTH_DEFAULT = 80, HEIGHT_DEFAULT = 24 };

struct top {
    struct job_survey look;
    struct top_view view;
    struct termios saved;
    bool has_saved, is_over;
    int signals;
};

/* ---- the terminal ---- */

static void read_size(struct top_view *view)
{
    struct winsize size;

    view->width = WIDTH_DEFAULT;
    view->height = HEIGHT_DEFAULT;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        view->width = size.ws_col;
        view->height = size.ws_row;
    }
}

/* All of it; a terminal takes its time. */
static int write_terminal(const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, bytes, n);

        if (done < 0 && errno == EAGAIN) {
            struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
            (void)poll(&out, 1, TOP_MS); /* whatever it returns, the next write decides */
        } else if (done < 0 && errno != EINTR) {
            return -errno;
        }
        bytes += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

/* The alternate screen, without cursor; keys without Enter. */
static void enter_terminal(struct top *t)
{
    static const char begin[] = "\033[?1049h\033[?25l";
    struct termios keys;

    t->has_saved = tcgetattr(STDIN_FILENO, &t->saved) == 0;
    if (t->has_saved) {
        keys = t->saved;
        keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &keys); /* without it keys need Enter */
    }
    (void)write_terminal(begin, sizeof(begin) - 1); /* the first picture fails, then */
}

static void leave_terminal(struct top *t)
{
    static const char end[] = "\033[?25h\033[?1049l";

    (void)write_terminal(end, sizeof(end) - 1); /* the terminal may have been closed */
    if (t->has_saved)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &t->saved);
}

static int open_top_signals(void)
{
    static const int numbers[] = {SIGWINCH, SIGINT, SIGTERM, SIGHUP};
    sigset_t set;

    (void)sigemptyset(&set); /* these three cannot fail */
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        (void)sigaddset(&set, numbers[i]);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* ---- the picture ---- */

static int draw(struct top *t)
{
    read_size(&t->view);
    t->view.now_s = (int64_t)time(NULL);
    _cleanup_free_ char *text = top_text(t->look.jobs, t->look.n_jobs, &t->view);
    int r = text ? write_terminal(text, strlen(text)) : -ENOMEM;
    if (r)
        (void)fprintf(stderr, "crunctl: cannot draw: %s\n", strerror(-r));
    return r ? 1 : 0;
}

static void take_keys(struct top *t)
{
    char keys[KEYS_SIZE];
    ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));
    size_t size;

    if (n <= 0) {
        t->is_over = n == 0 || errno != EINTR;
        return;
    }
    for (size_t at = 0; at < (size_t)n && !t->is_over; at += size) {
        int key = top_next_key(keys + at, (size_t)n - at, &size);
        t->is_over = !top_press(&t->view, key, job_survey_count_ranks(&t->look));
    }
}

static void take_signal(struct top *t)
{
    struct signalfd_siginfo info;

    while (read(t->signals, &info, sizeof(info)) == sizeof(info))
        t->is_over = t->is_over || info.ssi_signo != SIGWINCH;
}

/* Until the next look is due. Keys and a new size are drawn at once, from the same look. */
static int wait_for_look(struct top *t, uint64_t until_ns)
{
    int code = 0;

    for (uint64_t now = now_ns(); now < until_ns && !t->is_over && code == 0; now = now_ns()) {
        struct pollfd polls[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                 {.fd = t->signals, .events = POLLIN}};

        if (poll(polls, ARRAY_SIZE(polls), (int)((until_ns - now) / 1000000) + 1) <= 0)
            continue;
        if (polls[0].revents)
            take_keys(t);
        if (polls[1].revents)
            take_signal(t);
        if (!t->is_over)
            code = draw(t);
    }
    return code;
}

static int look_again(struct top *t, struct survey_options *request)
{
    struct job_survey next;

    int r = job_survey_take(&next, request);
    job_survey_compare(&next, &t->look);
    job_survey_finish(&t->look);
    t->look = next;
    return r ? 1 : draw(t);
}

int top_run(struct survey_options *request, struct job_survey *before)
{
    struct top t = {.look = *before, .view = {.is_live = true, .has_marks_first = true}, .signals = -1};
    int code = 0;

    *before = (struct job_survey){0};
    t.signals = open_top_signals();
    enter_terminal(&t);
    while (code == 0 && !t.is_over) {
        uint64_t began_ns = now_ns();

        code = look_again(&t, request);
        if (code == 0)
            code = wait_for_look(&t, began_ns + TOP_MS * UINT64_C(1000000));
    }
    leave_terminal(&t);
    job_survey_finish(&t.look);
    close_fd(&t.signals);
    return code;
}
