#pragma once

/* cmocka.h uses what these define, and does not include them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
