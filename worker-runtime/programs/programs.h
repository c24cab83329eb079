#pragma once

/*
 * The training programs, one file each. A program brings what is particular to it; trainer.h has the rest.
 */

#include "worker-runtime/programs/trainer.h"

/* Each trains to the end, or until a failure or a signal, and returns an exit code of train. */
int toy_run(const struct train_options *options, const struct crw_env *env, struct crw_group *group);
int classifier_run(const struct train_options *options, const struct crw_env *env, struct crw_group *group);
int mnist_run(const struct train_options *options, const struct crw_env *env, struct crw_group *group);
