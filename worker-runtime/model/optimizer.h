#pragma once

/* What the rest of the library needs of an optimizer beside crw.h. */

#include "worker-runtime/crw.h"

/* As it steps now: crw_optimizer_set_lr() changes them. */
const struct crw_optimizer_options *optimizer_options(const struct crw_optimizer *o);
