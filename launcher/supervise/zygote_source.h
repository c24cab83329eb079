#pragma once

/* python/crun_launch/zygote.py as a zip file: what the zygote's interpreter imports as sitecustomize. */

#include <stddef.h>

extern const unsigned char zygote_source[];
extern const size_t zygote_source_size;
