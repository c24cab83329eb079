#include "launcher/supervise/suspend.h"

bool suspend_will_stop(const struct suspend_process *line, size_t n)
{
    if (line[0].pid == 1)
        return false;
    for (size_t i = 1; i < n; i++) {
        if (line[i].session != line[0].session)
            return false;
        if (line[i].group != line[0].group)
            return true; /* a shell with job control, or what a shell has started in another group */
    }
    return true; /* the end of the line is not known: the caller finds out by the signal itself */
}
