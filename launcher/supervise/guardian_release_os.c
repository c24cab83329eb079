#include "launcher/supervise/guardian_release_os.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/supervise/guardian_os.h"
#include "base/err.h"
#include "base/time.h"

enum { PATIENCE_MS = 1000 };

static volatile sig_atomic_t guardian_link = -1;

/* While workers are being started, the link is full of their orders: the guardian makes room within a few milliseconds.
 * Only a guardian that is stopped, or hangs, gets no order, and kills at once. */
static void send_release(int link)
{
    const struct guardian_order order = {.kind = GUARDIAN_RELEASE};

    for (int i = 0; i < PATIENCE_MS; i++) {
        if (send(link, &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno != EAGAIN)
            return;
        sleep_ns(1000000); /* a further signal only shortens the wait */
    }
}

/* SA_RESETHAND has restored the default action; the signal is unblocked on return. */
static void on_fatal_signal(int signal)
{
    int link = guardian_link;

    if (link >= 0)
        send_release(link);
    (void)kill(getpid(), signal);
}

static bool ends_a_process(int signal)
{
    static const int named[] = {SIGHUP,  SIGINT,    SIGQUIT, SIGTERM, SIGALRM, SIGUSR1,  SIGUSR2,
                                SIGXCPU, SIGVTALRM, SIGPROF, SIGPOLL, SIGPWR,  SIGSTKFLT};

    for (size_t i = 0; i < ARRAY_SIZE(named); i++)
        if (signal == named[i])
            return true;
    return signal >= SIGRTMIN && signal <= SIGRTMAX;
}

void guardian_release_on_signals(const sigset_t *except)
{
    const struct sigaction release = {.sa_handler = on_fatal_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction was;

    if (getpid() == 1)
        return; /* of a container: the kernel ignores a signal with the default action there */
    for (int s = 1; s <= SIGRTMAX; s++)
        if (ends_a_process(s) && sigismember(except, s) == 0 && sigaction(s, &release, &was) == 0 &&
            was.sa_handler != SIG_DFL)
            (void)sigaction(s, &was,
                            NULL); /* cannot fail, as it could be set; main() has blocked all of these */
}

void guardian_release_set_link(int link)
{
    guardian_link = link;
}
