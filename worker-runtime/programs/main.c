/*
 * train: options -> process group -> program -> exit code.
 */

#include <signal.h>
#include <stdio.h>

#include "base/option_answer_os.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/programs/options.h"
#include "worker-runtime/programs/programs.h"

static int (*const programs[TRAIN_PROGRAM_COUNT])(const struct train_options *, const struct crw_env *,
                                                  struct crw_group *) = {
    [TRAIN_TOY] = toy_run,
    [TRAIN_CLASSIFIER] = classifier_run,
    [TRAIN_MNIST] = mnist_run,
};

/* Every worker of a job gets the same command line: rank 0 prints what is wrong with it. No rank exits
 * before that: the launcher stops the others as soon as the first one has ended. */
static int usage_error(const struct crw_env *env, const char *error)
{
    struct crw_group *group = NULL;

    if (crw_group_create(env, &group) != 0 || crw_rank(group) == 0)
        fprintf(stderr, "train: %s\n", error);
    if (group)
        (void)crw_barrier(group);
    crw_group_destroy(group);
    return TRAIN_USAGE;
}

/* Output that could not be written is a failure, reported once. */
static int finish_output(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    fprintf(stderr, "train: some of the output could not be written\n");
    return exit_code == TRAIN_DONE ? TRAIN_FAILED : exit_code;
}

int main(int argc, char **argv)
{
    struct train_options options;
    struct crw_env env;
    struct crw_group *group;
    char error[512];

    (void)signal(SIGXFSZ, SIG_IGN); /* at the limit of file size a write fails, and that is reported */
    if (crw_env_read(&env) != 0) {
        fprintf(stderr, "train: %s\n", crw_error_message());
        (void)crw_error_record(NULL); /* best effort: the sentence is on stderr already */
        return TRAIN_FAILED;
    }
    int result = train_options_parse(argv, &options, error, sizeof(error));
    if (result == OPTIONS_E_USAGE)
        return usage_error(&env, error);
    if (result)
        return option_answer(&train_option_table, result, NULL, crw_version());
    result = crw_group_create(&env, &group);
    if (result == 0)
        result = crw_stop_enable(); /* not before: until there is a group, SIGTERM ends the process */
    if (result) {
        fprintf(stderr, "train: rank %d: %s\n", env.rank, crw_error_message());
        if (result != CRW_E_PEER)
            (void)crw_error_record(NULL);
        return TRAIN_FAILED;
    }
    int exit_code = programs[options.program](&options, &env, group);
    /* A rank that failed leaves the group by ending: its peers notice that, and end after it. */
    if (exit_code == TRAIN_DONE)
        crw_group_destroy(group);
    return finish_output(exit_code);
}
