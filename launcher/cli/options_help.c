/* The texts of crun --help around the table of options. */

#include "launcher/cli/options.h"

const char options_usage[] = "usage: crun [options] program [argument ...]\n";

static const struct option_heading headings[] = {
    {"nnodes", "Size of the job"},  {"hosts", "Hosts"},
    {"rdzv-backend", "Rendezvous"}, {"max-restarts", "Supervision"},
    {"role", "What runs"},          {"log-dir", "Output"},
    {"agent-fd", "Other"},          {0},
};

const struct option_table crun_option_table = {
    .commands = "crun crun-launch",
    .page = "crun(1)",
    .specs = options_table,
    .n = OPTION_COUNT,
    .ends_at_word = true,
    .usage = options_usage,
    .about = "Starts the workers of a training job on this node, watches over them and restarts them.",
    .headings = headings,
    .examples =
        "Examples:\n"
        "  crun --nproc-per-node=gpu train.py --lr 0.1\n"
        "  crun --nproc-per-node=4 --max-restarts=3 ./train\n"
        "  crun --hosts=n1,n2 --nproc-per-node=gpu train.py\n"
        "  crun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1 train.py\n",
    .ending =
        "Options take dashes or underscores, \"--name value\" or \"--name=value\", and defaults from PET_<NAME> in "
        "the environment. A program that is an ELF file or begins with \"#!\" runs as itself, another is given to "
        "Python. See crun(1).",
};

char *options_help(int width)
{
    return option_table_help(&crun_option_table, width);
}
