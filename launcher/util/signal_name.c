#include "launcher/util/signal_name.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

const char *signal_name(int signal, char out[SIGNAL_NAME_SIZE])
{
    const char *abbreviation = sigabbrev_np(signal);

    if (abbreviation)
        (void)snprintf(out, SIGNAL_NAME_SIZE, "SIG%s", abbreviation); /* fits, as does the next */
    else if (signal >= SIGRTMIN && signal <= SIGRTMAX)
        (void)snprintf(out, SIGNAL_NAME_SIZE, "SIGRTMIN+%d", signal - SIGRTMIN);
    else
        return NULL;
    return out;
}

int signal_number(const char *text, size_t n)
{
    for (int s = 1; s < 32; s++) {
        char name[SIGNAL_NAME_SIZE];

        if (signal_name(s, name) && strlen(name) == n && strncmp(name, text, n) == 0)
            return s;
    }
    return 0;
}
