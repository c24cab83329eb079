#pragma once

#include "worker-runtime/base/run_identity.h"

/* Of this process: CRUN_INSTANCE and CRUN_GENERATION, which crun sets in jobs of several nodes. */
void run_identity_read(struct run_identity *ret);

/* This process takes part in that generation from now on, without having been started again. */
void run_identity_set_generation(int generation);
