#pragma once

/* Whether the crun of a run still runs. */

#include "launcher/crunctl/history.h"

/* Of this host: a process that has got its number since then is another one. Of other hosts: HISTORY_LIFE_UNKNOWN. */
enum history_life run_life_find(const struct history_run *run);
