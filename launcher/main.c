/*
 * crun: starts and supervises the workers of a training job on the node. See crun(1).
 *
 * main() blocks signals first, and the event loop reads signals from a descriptor: at no moment a signal can end crun with
 * only some workers started.
 */

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "launcher/agent/agent_uv.h"
#include "launcher/agent/foreign_agent_uv.h"
#include "launcher/front/front_start_os.h"
#include "launcher/front/far_uv.h"
#include "launcher/front/front_plan.h"
#include "launcher/front/host_files_os.h"
#include "launcher/util/envp.h"
#include "launcher/cli/job.h"
#include "launcher/host/gpu_count_os.h"
#include "launcher/host/gpu_sysfs_os.h"
#include "launcher/host/job_secret_os.h"
#include "launcher/host/munge_os.h"
#include "launcher/host/local_address_os.h"
#include "launcher/host/machine_os.h"
#include "launcher/host/node_check_os.h"
#include "launcher/host/numa_os.h"
#include "launcher/cli/oci_call.h"
#include "launcher/cli/options.h"
#include "launcher/cli/plan.h"
#include "launcher/host/program_os.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/report/failures_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_os.h"
#include "launcher/util/trace_os.h"
#include "launcher/supervise/close_descriptors_os.h"
#include "launcher/supervise/guardian_os.h"
#include "launcher/supervise/guardian_release_os.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "base/cleanup.h"
#include "base/err.h"

enum {
    OPEN_FILES_MIN = 32,
    KERNEL_MAJOR = 3,
    KERNEL_MINOR = 17,
    LOOKUP_MS = 50, /* between two looks at signals */
    SIGNAL_PATIENCE_MS = 1000,
    SILENT_MS = 5000,
};

extern char **environ;

/* Blocks every signal except synchronous faults (SIGSEGV, SIGBUS, ...). open_signals() restores the inherited mask for
 * signals without a handler in crun. */
static void block_signals(sigset_t *ret_before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t all;

    (void)sigfillset(&all); /* none of the calls can fail with such arguments */
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++)
        (void)sigdelset(&all, faults[i]);
    (void)sigprocmask(SIG_SETMASK, &all, ret_before);
}

/* A process may be started without some of its first three descriptors. A socket with such a number would be the stdout
 * of a worker. */
static int open_missing_stdio(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return -errno;
    return 0;
}

/* Passed on to the workers, unless among the signals that end the job. */
static const int passed_signals[] = {SIGUSR1, SIGUSR2};

static void handle_signal(int signal, sigset_t *handled, sigset_t *blocked)
{
    const struct sigaction fresh = {.sa_handler = SIG_DFL};

    (void)sigaction(signal, &fresh, NULL); /* none of the calls can fail */
    (void)sigaddset(handled, signal);
    (void)sigaddset(blocked, signal);
}

static bool is_ignored(int signal)
{
    struct sigaction was;

    return sigaction(signal, NULL, &was) == 0 && was.sa_handler == SIG_IGN;
}

/*
 * Sets the actions of all signals and returns a signalfd of the handled ones and of SIGCHLD, or -errno. An ignored SIGHUP
 * stays ignored: the purpose of nohup. An ignored SIGUSR1 stays ignored, too. Other signals get back the mask from the
 * start of crun.
 */
static int open_signals(const struct job *job, const sigset_t *before)
{
    sigset_t handled, blocked = *before;

    (void)sigemptyset(&handled); /* cannot fail */
    for (int s = 1; s < 32; s++)
        if (job->signals & UINT64_C(1) << (s - 1) && !(s == SIGHUP && is_ignored(s)))
            handle_signal(s, &handled, &blocked);
    for (size_t i = 0; i < ARRAY_SIZE(passed_signals); i++)
        if (sigismember(&handled, passed_signals[i]) == 0 && !is_ignored(passed_signals[i]))
            handle_signal(passed_signals[i], &handled, &blocked);
    if (!is_ignored(SIGTSTP)) {
        handle_signal(SIGTSTP, &handled, &blocked);
        handle_signal(SIGCONT, &handled, &blocked);
    }
    handle_signal(SIGCHLD, &handled,
                  &blocked); /* with an inherited SIG_IGN the kernel would reap children itself */
    spawn_ignore_signal(SIGPIPE, true);
    spawn_ignore_signal(SIGXFSZ, false); /* at the limit of file size a write fails, and crun goes on */
    guardian_release_on_signals(&handled);
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

static const char open_job[] =
    "this job is open: any process that reaches its rendezvous can join it; give all its nodes one secret "
    "(--secret-file, CRUN_SECRET_FILE or ~/.config/crun/secret), or accept this with --security=open";

/* Makes the keys of the job from a secret or from certificates: either is present. 0; -1: a sentence was printed. */
static int init_keys(const struct job *job, struct job_keys *ret, const struct secret *secret)
{
    bool has_files = job->certificates.cert && !job->is_admitted;
    struct certificate_files files;
    char why[CERTIFICATE_ERROR_SIZE];

    if (has_files && certificate_files_read(&files, &job->certificates, why) < 0) {
        log_line("%s", why);
        return -1;
    }
    int r = job->is_admitted ? job_keys_init_workers(ret, secret, job->run_id_text, why)
                             : job_keys_init(ret, secret, has_files ? &files : NULL, job->run_id_text,
                                             job->endpoints[0].host, why);
    if (has_files)
        certificate_files_finish(&files);
    if (r < 0)
        log_line("cannot use the %s: %s", has_files ? "certificate" : "secret", why);
    return r < 0 ? -1 : 0;
}

/* 1: the nodes of the job agree on a secret by munge; 0: no munge on the node; -1: a sentence was printed. A munged without
 * answer is an error: a slow munged must not make a job open. */
static int find_munge(const struct job *job, struct job_keys *ret)
{
    char error[MUNGE_ERROR_SIZE] = "", why[CERTIFICATE_ERROR_SIZE];

    if (!job->may_use_munge || munge_find(error) < 0 || !munge_is_there(job->munge_socket))
        return 0;
    if (munge_check(job->munge_socket, error) < 0) {
        log_line(
            "munge, by which the nodes of a step of Slurm agree on a secret, does not work on this node: %s; repair it, give "
            "all nodes a secret (--secret-file), or accept an open job with --security=open",
            error);
        return -1;
    }
    int r = job_keys_init_munge(ret, job->munge_socket, job->run_id_text, why);
    if (r < 0)
        log_line("cannot use a secret by munge: %s", why);
    return r < 0 ? -1 : 1;
}

/* The keys of a job of several nodes; without keys ret->kept stays NULL. 0; -1: a sentence was printed. */
static int find_keys(const struct job *job, struct job_keys *ret)
{
    bool requires = job->security == JOB_SECURITY_REQUIRE;
    char error[SECRET_ERROR_SIZE];
    struct secret secret;
    int r = 0;

    if (job->meeting == JOB_ALONE || job->security == JOB_SECURITY_OPEN)
        return 0;
    if (job_secret_find(&secret, job->secret_file, environ, error) < 0) {
        log_line("%s", error);
        return -1;
    }
    bool is_closed = secret.bytes || job->certificates.cert;
    int by_munge = is_closed ? 0 : find_munge(job, ret);
    if (by_munge != 0)
        return by_munge > 0 ? 0 : -1;
    if (is_closed && job->meeting == JOB_ROUNDS) {
        r = init_keys(job, ret, &secret);
    } else if (!is_closed && (requires || job->local_store)) {
        log_line(
            "%s: give one with --secret-file or CRUN_SECRET_FILE, or put one into ~/.config/crun/secret",
            requires
                ? "--security=require: there is no secret"
                : "--worker-store=local: there is no secret, by which the stores of nodes know each other");
        r = -1;
    } else {
        log_line("%s", open_job);
    }
    secret_finish(&secret);
    return r;
}

/* A search on disks before the event loop runs. A disk may hang, so a thread searches. */
struct lookup {
    const struct job *job;
    void (*find)(struct lookup *l);
    _Atomic bool is_found; /* find() has returned */
    struct plan_command command;
    char *file;
    struct job_keys keys;
    bool lacks_program;
    char *note;      /* for the console, as soon as the job can start; or NULL */
    bool has_failed; /* a sentence was printed */
    const char *what;
    struct front_start *front;
};

static char *note_on_threads(const struct job *job)
{
    const struct plan plan = {.local_world_size = job->n_workers, .environment = environ};

    if (!plan_limits_threads(&plan))
        return NULL;
    return log_prepare("OMP_NUM_THREADS is not set; each of the %d workers gets OMP_NUM_THREADS=1",
                       job->n_workers);
}

static void find_program_and_keys(struct lookup *l)
{
    char error[PROGRAM_ERROR_SIZE];

    l->lacks_program = program_find(l->job, environ, &l->command, &l->file, error) != 0;
    if (l->lacks_program)
        log_line("%s", error);
    l->has_failed = l->lacks_program || find_keys(l->job, &l->keys) != 0;
    if (l->has_failed)
        return;
    if (l->job->has_timestamps)
        log_with_times();
    l->note = note_on_threads(l->job);
}

static void find_keys_alone(struct lookup *l)
{
    l->has_failed = find_keys(l->job, &l->keys) != 0;
}

/* The signals that end crun, handled or not: all are blocked during the start of crun. */
static void ending_signals(const struct job *job, sigset_t *ret)
{
    static const int unhandled[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

    (void)sigemptyset(ret); /* none of the calls can fail */
    for (int s = 1; s < 32; s++)
        if (job->signals & UINT64_C(1) << (s - 1))
            (void)sigaddset(ret, s);
    for (size_t i = 0; i < ARRAY_SIZE(unhandled); i++)
        (void)sigaddset(ret, unhandled[i]);
    if (is_ignored(SIGHUP))
        (void)sigdelset(ret, SIGHUP);
}

static bool is_one_pending(const sigset_t *signals)
{
    sigset_t pending;

    (void)sigpending(&pending); /* cannot fail */
    for (int s = 1; s < SIGRTMIN; s++)
        if (sigismember(&pending, s) == 1 && sigismember(signals, s) == 1)
            return true;
    return false;
}

/* In the thread. The job starts before the console has taken the note. */
static void look_up_in_thread(void *data)
{
    struct lookup *l = data;

    l->find(l);
    l->is_found = true;
    if (l->note)
        log_write_prepared(l->note);
}

/* Waits without limit for everything that crun needs at the start, and a moment for the console. False: a signal of the
 * set has been pending for a second (the signals stay blocked): on a busy machine the disk answers within the second. */
static bool await_lookup(const struct lookup *l, struct side_work *work, const sigset_t *signals)
{
    unsigned pending_ms = 0;

    for (unsigned waited_ms = 0; pending_ms < SIGNAL_PATIENCE_MS; waited_ms += LOOKUP_MS) {
        bool was_found = l->is_found;
        if (side_work_wait(work, LOOKUP_MS) || was_found)
            return true;
        pending_ms += is_one_pending(signals) ? LOOKUP_MS : 0;
        if (waited_ms == SILENT_MS && !l->is_found)
            log_line("%sthe disk of %s does not answer", l->job->may_use_munge ? "munge or " : "", l->what);
    }
    return l->is_found;
}

/* Does not return when crun is asked to end meanwhile. 0, or -1 after a sentence. */
static int look_up(struct lookup *l)
{
    const struct side_order order = {.kind = SIDE_CONSOLE, .run = look_up_in_thread, .data = l};
    struct side_work *work;
    sigset_t signals;

    ending_signals(l->job, &signals);
    if (side_work_start(&work, &order) != 0) {
        look_up_in_thread(l); /* there is no thread */
        return l->has_failed ? -1 : 0;
    }
    bool is_found = await_lookup(l, work, &signals);
    (void)side_work_take(work);
    if (!is_found) {
        log_line("stopped by a signal before %sthe disk of %s had answered",
                 l->job->may_use_munge ? "munge or " : "", l->what);
        trace_close();
        _exit(1); /* the thread still uses memory that would be freed */
    }
    return l->has_failed ? -1 : 0;
}

/* The reason was logged. */
static int fail_to_start(int code)
{
    failures_record_own(environ, 0, NULL);
    return code;
}

static int run_found(const struct job *job, struct lookup *l, const sigset_t *before)
{
    _cleanup_free_ struct numa_cpus *bindings = NULL;

    if (find_bindings(job, &bindings) != 0)
        return fail_to_start(1);
    _cleanup_close_ int signal_fd = open_signals(job, before);
    if (signal_fd < 0) {
        log_line("cannot open a signalfd: %s", strerror(-signal_fd));
        return fail_to_start(1);
    }
    const struct agent_config config = {.job = job,
                                        .command = &l->command,
                                        .file = l->file,
                                        .environment = environ,
                                        .bindings = bindings,
                                        .keys = l->keys.kept ? &l->keys : NULL,
                                        .signal_fd = signal_fd};
    return agent_run(&config);
}

static int run_job(const struct job *job, const sigset_t *before)
{
    static struct lookup lookup; /* the thread of a hanging console uses the note on */
    int code;

    lookup = (struct lookup){.job = job, .find = find_program_and_keys, .what = job->program_name};
    if (look_up(&lookup) == 0)
        code = run_found(job, &lookup, before);
    else
        code = fail_to_start(lookup.lacks_program && job->no_requeue_code ? job->no_requeue_code : 1);
    free(lookup.file);
    job_keys_finish(&lookup.keys);
    strlist_finish(&lookup.command.head);
    return code;
}

static int run_foreign(const struct job *job)
{
    static struct lookup lookup; /* as in run_job() */

    lookup = (struct lookup){.job = job, .find = find_keys_alone, .what = "the secret"};
    if (look_up(&lookup) < 0)
        return 1;
    int code = foreign_agent_run(job, lookup.keys.kept ? &lookup.keys : NULL);
    job_keys_finish(&lookup.keys);
    return code;
}

static void find_front(struct lookup *l)
{
    l->has_failed = front_start_find(l->front) != 0;
}

/* --hosts: this process starts agents on other hosts, and is none. */
static int run_front(const struct options *options, const sigset_t *before)
{
    static struct lookup lookup; /* as in run_job() */
    static struct front_start front;
    int code = 1;

    if (front_start_init(&front, options, environ, CRUN_VERSION) < 0)
        return 1;
    lookup =
        (struct lookup){.job = &front.job, .front = &front, .find = find_front, .what = "the list of hosts"};
    if (look_up(&lookup) == 0) {
        _cleanup_close_ int signal_fd = open_signals(&front.job, before);
        if (signal_fd < 0)
            log_line("cannot open a signalfd: %s", strerror(-signal_fd));
        else
            code = front_start_run(&front, signal_fd);
    }
    front_start_finish(&front);
    return code;
}

static int count_gpus(void *environment)
{
    int n = gpu_count(environment);

    return n > 0 ? n : gpu_count_amd("", environment);
}

static int count_xpus(void *environment)
{
    return gpu_count_intel("", environment);
}

static int open_trace(const struct job *job)
{
    int r = job->debug ? trace_open(job->debug_file) : 0;

    if (r)
        log_line("--debug=%s: cannot open the file: %s", job->debug_file, strerror(-r));
    return r;
}

/* No worker inherits the descriptor. 0; -1 after a sentence. */
static int keep_output_fd(const struct job *job)
{
    if (!job->output_fd || fcntl(job->output_fd, F_SETFD, FD_CLOEXEC) == 0)
        return 0;
    log_line("CRUN_OUTPUT_FD=%d: %s", job->output_fd, strerror(errno));
    return -1;
}

/* One host of an allocation of several: perhaps all were meant. */
static void hint_at_hosts(const struct options *options, const struct job *job)
{
    const struct host_files files = {.read = host_file_read};
    _cleanup_free_ char *hint = NULL;

    if (job->meeting == JOB_ALONE && !options->value[OPTION_NNODES].set &&
        !options->value[OPTION_STANDALONE].flag)
        hint = host_list_hint(environ, &files);
    if (hint)
        log_line("%s", hint);
}

static int run_options(const struct options *options, const sigset_t *before)
{
    _cleanup_free_ char *slurm_conf = machine_slurm_conf(environ);
    char uuid[37], error[JOB_ERROR_SIZE];
    struct job_machine machine = {.count_cpus = machine_count_cpus,
                                  .count_gpus = count_gpus,
                                  .count_xpus = count_xpus,
                                  .data = environ,
                                  .find_address = local_address_in,
                                  .slurm_conf = slurm_conf,
                                  .random_id = uuid};
    _cleanup_free_ char *warnings = NULL;
    struct job job;

    if (front_plan_is_wanted(options))
        return run_front(options, before);
    if (options->value[OPTION_CHECK_NODE].flag)
        return node_check_run(environ);
    machine_uuid(uuid);
    if (job_init(&job, options, environ, &machine, &warnings, error) != 0) {
        log_line("%s", error);
        return fail_to_start(1);
    }
    if (warnings)
        log_lines(warnings);
    hint_at_hosts(options, &job);
    int code = 1;
    if (keep_output_fd(&job) == 0 && open_trace(&job) == 0)
        code = job.agent_fd >= 0 ? run_foreign(&job) : run_job(&job, before);
    trace_close();
    job_finish(&job);
    return code;
}

static int terminal_width(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

static int print_stdout(const char *text)
{
    if (text && fputs(text, stdout) >= 0 && fflush(stdout) == 0)
        return 0;
    log_line("cannot write to standard output: %s", strerror(errno));
    return 1;
}

/* crun uses close_range(2), pidfd_open(2) and /proc/.../children if present, but always memfd_create(2), getrandom(2) and
 * /proc/thread-self, all present since KERNEL_MAJOR.KERNEL_MINOR. */
static bool is_kernel_new_enough(void)
{
    struct utsname name;
    int major = 0, minor = 0;

    if (uname(&name) < 0 || sscanf(name.release, "%d.%d", &major, &minor) != 2)
        return true; /* a version without numbers; a missing call is reported at its use */
    if (major > KERNEL_MAJOR || (major == KERNEL_MAJOR && minor >= KERNEL_MINOR))
        return true;
    log_line("Linux %d.%d or newer is needed, and this is %s", KERNEL_MAJOR, KERNEL_MINOR, name.release);
    return false;
}

/* Closes descriptors with consecutive numbers in a single call, for a quick start of crun. */
static void close_in_runs(const int *fds, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && fds[end] == fds[end - 1] + 1;)
            end++;
        (void)close_descriptors(fds[i], fds[end - 1]); /* cannot fail for open descriptors */
    }
}

/* Opens as many descriptors as crun needs before its first worker, and closes them. Returns 0 or -errno. */
static int try_descriptors(void)
{
    int fds[OPEN_FILES_MIN / 2];
    size_t n = 0;
    int r = 0;

    for (; !r && n < ARRAY_SIZE(fds); n++) {
        fds[n] = eventfd(0, EFD_CLOEXEC); /* of the system's table as well: a duplicate would not be */
        r = fds[n] < 0 ? -errno : 0;
    }
    close_in_runs(fds, n - (r != 0)); /* the last open failed */
    return r;
}

/* Without free descriptors libuv aborts the process. */
static bool can_open_descriptors(void)
{
    int r = try_descriptors();

    if (r)
        log_line("cannot open descriptors: %s; close some, or raise the limit of open files (ulimit -n)",
                 strerror(-r));
    return !r;
}

static bool has_descriptors(void)
{
    size_t limit;

    bool is_too_low = spawn_raise_open_files(&limit) == 0 && limit < OPEN_FILES_MIN;
    if (is_too_low)
        log_line("the limit of open files is %zu, crun needs at least %d; raise it (ulimit -n)", limit,
                 OPEN_FILES_MIN);
    return !is_too_low && can_open_descriptors();
}

int main(int argc, char **argv)
{
    struct options options;
    char error[OPTIONS_ERROR_SIZE];
    sigset_t before;

    /* Threads of crun allocate little. An arena for each thread costs two mappings and page faults at every start. */
    (void)mallopt(M_ARENA_MAX, 1);
    block_signals(&before);
    guardian_set_command_line(argv);
    if (open_missing_stdio() < 0)
        return 1; /* there is no stderr for a report */
    if (argc > 1 && oci_call_is(argv + 1, access(argv[1], F_OK) == 0)) {
        log_line("%s", oci_call_answer);
        return 2;
    }
    if (argc == 2 && strcmp(argv[1], "--front-channel") == 0)
        return is_kernel_new_enough() && can_open_descriptors() ? far_run(&before) : 1;
    switch (options_parse(argv + (argc > 0), environ, &options, error)) {
    case 0:
        return is_kernel_new_enough() && has_descriptors() ? run_options(&options, &before)
                                                           : fail_to_start(1);
    case OPTIONS_E_HELP: {
        _cleanup_free_ char *help = options_help(terminal_width());
        return print_stdout(help);
    }
    case OPTIONS_E_COMPLETION: {
        _cleanup_free_ char *script =
            option_table_completion(&crun_option_table, options.value[OPTION_PRINT_COMPLETION].text);
        return print_stdout(script);
    }
    case OPTIONS_E_VERSION:
        return print_stdout("crun " CRUN_VERSION "\n");
    case OPTIONS_E_PET:
        log_line("%s", error);
        return fail_to_start(1);
    default:
        log_lines(options_usage);
        log_line("error: %s", error);
        return 2;
    }
}
