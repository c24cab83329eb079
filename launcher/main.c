/*
 * crun: starts and supervises the workers of a training job on this node. See crun(1).
 *
 * main() blocks signals first of all: from then on they are read from a descriptor when it suits us, so
 * there is no instant in which one could end crun with workers half started.
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/agent/agent_uv.h"
#include "launcher/util/envp.h"
#include "launcher/cli/job.h"
#include "launcher/host/gpu_count_os.h"
#include "launcher/host/machine_os.h"
#include "launcher/host/numa_os.h"
#include "launcher/cli/options.h"
#include "launcher/cli/plan.h"
#include "launcher/host/program_os.h"
#include "launcher/util/log_os.h"
#include "launcher/supervise/spawn_os.h"
#include "base/cleanup.h"

enum { OPEN_FILES_MIN = 32 };

extern char **environ;

/* Everything but what the kernel sends for our own mistakes; what turns out not to be handled is unblocked.
 */
static void block_signals(sigset_t *ret_before)
{
    static const int own_mistakes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t all;

    (void)sigfillset(&all); /* none of these can fail with such arguments */
    for (size_t i = 0; i < sizeof(own_mistakes) / sizeof(own_mistakes[0]); i++)
        (void)sigdelset(&all, own_mistakes[i]);
    (void)sigprocmask(SIG_SETMASK, &all, ret_before);
}

/* A process may be started without some of its first three descriptors. A socket that got such a number
 * would be taken for stdout by a worker. */
static int open_missing_stdio(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return -errno;
    return 0;
}

/*
 * Settles dispositions and returns a descriptor that tells of the handled signals and of children, or
 * -errno. An ignored SIGHUP stays ignored: that is what nohup is for. Other signals get back the mask crun
 * was started with.
 */
static int open_signals(const struct job *job, const sigset_t *before)
{
    const struct sigaction fresh = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
    struct sigaction was;
    sigset_t handled, blocked = *before;

    (void)sigemptyset(&handled); /* as above, none of these calls can fail */
    for (int s = 1; s < 32; s++) {
        if (!(job->signals & UINT64_C(1) << (s - 1)))
            continue;
        (void)sigaction(s, NULL, &was);
        if (s == SIGHUP && was.sa_handler == SIG_IGN)
            continue;
        (void)sigaction(s, &fresh, NULL);
        (void)sigaddset(&handled, s);
        (void)sigaddset(&blocked, s);
    }
    /* Inherited as ignored, children would vanish without a word. */
    (void)sigaction(SIGCHLD, &fresh, NULL);
    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)sigaddset(&handled, SIGCHLD);
    (void)sigaddset(&blocked, SIGCHLD);
    (void)sigprocmask(SIG_SETMASK, &blocked, NULL);
    int fd = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

/* --numa-binding: where each worker runs. 0 with a malloc'ed array, NULL without the option. */
static int find_bindings(const struct job *job, struct numa_cpus **ret)
{
    char error[NUMA_ERROR_SIZE];

    *ret = NULL;
    if (job->numa == NUMA_NONE)
        return 0;
    const struct numa_machine machine = {.root = "",
                                         .visible_devices = envp_get(environ, "CUDA_VISIBLE_DEVICES"),
                                         .n_workers = job->n_workers,
                                         .n_gpus_counted = gpu_count(environ)};
    int r = numa_read_bindings(&machine, job->numa, ret, error);
    if (r)
        log_line("%s", error);
    return r;
}

static int run(const struct job *job, const sigset_t *before)
{
    _cleanup_free_ struct numa_cpus *bindings = NULL;
    char error[PROGRAM_ERROR_SIZE];
    struct plan_command command;
    _cleanup_free_ char *file = NULL;

    if (program_find(job, environ, &command, &file, error) != 0) {
        log_line("%s", error);
        return 1;
    }
    if (find_bindings(job, &bindings) != 0) {
        strlist_finish(&command.head);
        return 1;
    }
    int signal_fd = open_signals(job, before);
    if (signal_fd < 0) {
        log_line("cannot watch for signals: %s", strerror(-signal_fd));
        strlist_finish(&command.head);
        return 1;
    }
    const struct agent_config config = {.job = job,
                                        .command = &command,
                                        .file = file,
                                        .environment = environ,
                                        .bindings = bindings,
                                        .signal_fd = signal_fd};
    int code = agent_run(&config);
    (void)close(signal_fd);
    strlist_finish(&command.head);
    return code;
}

static int count_gpus(void *environment)
{
    return gpu_count(environment);
}

static int run_options(const struct options *options, const sigset_t *before)
{
    _cleanup_free_ char *slurm_conf = machine_slurm_conf(environ);
    char uuid[37], error[JOB_ERROR_SIZE];
    struct job_machine machine = {.count_cpus = machine_count_cpus,
                                  .count_gpus = count_gpus,
                                  .data = environ,
                                  .slurm_conf = slurm_conf,
                                  .random_id = uuid};
    char *warnings = NULL;
    struct job job;

    machine_uuid(uuid);
    if (job_init(&job, options, environ, &machine, &warnings, error) != 0) {
        log_line("%s", error);
        return 1;
    }
    if (warnings)
        log_lines(warnings);
    free(warnings);
    int code = run(&job, before);
    job_finish(&job);
    return code;
}

static int print(const char *text)
{
    if (text && fputs(text, stdout) >= 0 && fflush(stdout) == 0)
        return 0;
    log_line("cannot write to standard output: %s", strerror(errno));
    return 1;
}

/* Below this, libuv aborts the process for want of a descriptor instead of saying so. */
static bool has_descriptors(void)
{
    size_t limit;

    if (spawn_raise_open_files(&limit) < 0 || limit >= OPEN_FILES_MIN)
        return true;
    log_line("the limit of open files is %zu, crun needs at least %d; raise it (ulimit -n)", limit,
             OPEN_FILES_MIN);
    return false;
}

int main(int argc, char **argv)
{
    struct options options;
    char error[OPTIONS_ERROR_SIZE];
    sigset_t before;

    block_signals(&before);
    if (open_missing_stdio() < 0)
        return 1; /* there is not even a place to say so */
    switch (options_parse(argv + (argc > 0), environ, &options, error)) {
    case 0:
        return has_descriptors() ? run_options(&options, &before) : 1;
    case OPTIONS_E_HELP: {
        _cleanup_free_ char *help = options_help();
        return print(help);
    }
    case OPTIONS_E_VERSION:
        return print("crun " CRUN_VERSION "\n");
    case OPTIONS_E_PET:
        log_line("%s", error);
        return 1;
    default:
        log_lines(options_usage);
        log_line("error: %s", error);
        return 2;
    }
}
