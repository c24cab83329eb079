#pragma once

/*
 * The command line of crun: torchrun's options, spelled and defaulted as torchrun does, and a few of ours.
 * One table (options_table) drives parsing, PET_* defaults, --help and the completions.
 *
 * Pure: the words and the environment come in, a filled struct options or one sentence comes out. Whether
 * the values make sense together is for job.h.
 */

#include <stdbool.h>

#include "base/options.h"

struct strlist;

enum option_id {
    OPTION_NNODES,
    OPTION_NPROC_PER_NODE,
    OPTION_HOSTS,
    OPTION_HOSTFILE,
    OPTION_LAUNCH,
    OPTION_EXPORT,
    OPTION_CHDIR,
    OPTION_NO_COPY,
    OPTION_RDZV_BACKEND,
    OPTION_RDZV_ENDPOINT,
    OPTION_RDZV_ID,
    OPTION_RDZV_CONF,
    OPTION_STANDALONE,
    OPTION_NODE_RANK,
    OPTION_MASTER_ADDR,
    OPTION_MASTER_PORT,
    OPTION_LOCAL_ADDR,
    OPTION_SECRET_FILE,
    OPTION_SECURITY,
    OPTION_TLS_CERT,
    OPTION_TLS_KEY,
    OPTION_TLS_CA,
    OPTION_WORKER_STORE,
    OPTION_SEAL,
    OPTION_MAX_RESTARTS,
    OPTION_MAX_RESTARTS_WITHOUT_PROGRESS,
    OPTION_MONITOR_INTERVAL,
    OPTION_SIGNALS_TO_HANDLE,
    OPTION_SHUTDOWN_TIMEOUT,
    OPTION_SIGNAL_ORDER,
    OPTION_RESTART_POLICY,
    OPTION_REPLACE_TIMEOUT,
    OPTION_LEASE,
    OPTION_RESTART_PAUSE,
    OPTION_HANG_TIMEOUT,
    OPTION_HANG_ACTION,
    OPTION_EXIT_CODE,
    OPTION_NO_REQUEUE_CODE,
    OPTION_HEALTH_CHECK,
    OPTION_HEALTH_CHECK_TIMEOUT,
    OPTION_ROLE,
    OPTION_MODULE,
    OPTION_NO_PYTHON,
    OPTION_RUN_PATH,
    OPTION_START_METHOD,
    OPTION_WARM,
    OPTION_VIRTUAL_LOCAL_RANK,
    OPTION_NUMA_BINDING,
    OPTION_LOG_DIR,
    OPTION_REDIRECTS,
    OPTION_TEE,
    OPTION_LOG_LINE_PREFIX_TEMPLATE,
    OPTION_LINE_PREFIX,
    OPTION_FOLD_OUTPUT,
    OPTION_LOCAL_RANKS_FILTER,
    OPTION_DUPLICATE_STDOUT_FILTERS,
    OPTION_DUPLICATE_STDERR_FILTERS,
    OPTION_LOGS_SPECS,
    OPTION_ON_LINE,
    OPTION_EVENT_LOG,
    OPTION_METRICS_ADDR,
    OPTION_EVENT_LOG_HANDLER,
    OPTION_TIMESTAMPS,
    OPTION_DEBUG,
    OPTION_AGENT_FD,
    OPTION_CHECK_NODE,
    OPTION_PRINT_COMPLETION,
    OPTION_HELP,
    OPTION_VERSION,
    OPTION_COUNT
};

extern const struct option_spec options_table[OPTION_COUNT];
extern const struct option_table crun_option_table;

/* One option's value. `set`: on the command line or in PET_<NAME>; else the rest is the default. */
struct option_value {
    bool set;
    bool pet; /* in PET_<NAME> alone: a complaint about the value names that variable */
    bool flag;
    const char *text; /* NULL without default; lives as long as the words and the environment */
    long long number;
    double seconds;
};

enum { OPTIONS_REPEATED_MAX = 32 };

struct options {
    struct option_value value[OPTION_COUNT];
    const char *repeated[OPTIONS_REPEATED_MAX]; /* the texts of the option that repeats, in order */
    int n_repeated;
    const char *program;
    char *const *program_args; /* NULL-terminated tail of the words given to options_parse() */
};

#define OPTIONS_ERROR_SIZE 1024

/*
 * words: argv without the program's own name, NULL-terminated. 0, or a result of base/options.h. On OPTIONS_E_USAGE and OPTIONS_E_PET
 * error holds one sentence. ret_options points into words and environment.
 */
int options_parse(char *const *words, char *const *environment, struct options *ret_options,
                  char error[OPTIONS_ERROR_SIZE]);

/* Whether an option has its effect at agents, or at the front, of a job of --hosts. */
bool option_has_side(enum option_id id, enum option_side side);

/* Adds the options for agents that are set, also by PET_<NAME>, as words that options_parse() reads
 * alike. */
void options_render(const struct options *options, struct strlist *out);

/* PET_<NAME>. */
void option_spell_pet(enum option_id id, char ret[OPTION_NAME_SIZE]);

/* The text of --help in lines of at most width characters (at least 60 are taken). Malloc'ed, or NULL without memory. */
char *options_help(int width);

/* The usage line alone. */
extern const char options_usage[];

/* White space that Python's str.strip() removes from ASCII text; int() and float() accept less. */
static inline bool options_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

/* A sentence, with a blank in front, when the last character of text cannot be seen in a message; else "". */
const char *options_note_on_end(const char *text);

/* Python's int(): optional sign, digits with single underscores, white space around. */
bool options_int(const char *text, long long *ret);

/* Python's float(), but for underscores between digits; "inf" and "nan" are numbers. */
bool options_seconds(const char *text, double *ret);
