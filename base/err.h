#pragma once

/*
 * Results of functions in this project, unless a header states otherwise:
 *   0            done
 *   negative     -errno: fatal for the operation, forwarded unchanged
 *   positive     a documented result of the module (STORE_E_..., WIRE_E_...): the caller handles it
 *                and never forwards it
 */

#include <errno.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
