/*
 * The table of all options. Order here is the order of --help, whose headings are in options_help.c.
 *
 * To add an option: a row here, a member in enum option_id, a member of struct job (job.h) with the check of the value in
 * job.c, and a line in man/crun.1. Help and completions come from the row. base/options.h explains `ours`, `pet`, `no_pet` and `side`, for an
 * option that torchrun lacks.
 */

#include <assert.h>

#include "launcher/cli/options.h"

const struct option_spec options_table[OPTION_COUNT] = {
    /* Size of the job. */
    [OPTION_NNODES] = {"nnodes", .side = OPTION_SIDE_NEITHER, .fallback = "1:1", .placeholder = "N|MIN:MAX",
                       .help = "number of nodes"},
    [OPTION_NPROC_PER_NODE] =
        {"nproc-per-node", .side = OPTION_SIDE_NEITHER, .fallback = "1", .placeholder = "N|cpu|gpu|xpu|auto",
         .help = "workers on this node: a number, one per usable CPU, one per GPU of NVIDIA "
                 "or AMD, one per GPU of Intel (xpu), or per GPU where there are any and "
                 "else per CPU"},

    /* The front, which starts an agent on each host. */
    [OPTION_HOSTS] = {"hosts", .side = OPTION_SIDE_NEITHER, .ours = true, .placeholder = "LIST|auto",
                      .help =
                          "start crun on these hosts: a,n[01-16]:8,user@c, with the workers of a host behind "
                          "a colon; auto: the list of PBS, LSF, SGE or Slurm"},
    [OPTION_HOSTFILE] = {"hostfile", .side = OPTION_SIDE_NEITHER, .ours = true, .placeholder = "FILE",
                         .help = "the same from a file of Open MPI, MPICH, DeepSpeed or PBS"},
    [OPTION_LAUNCH] = {"launch", .side = OPTION_SIDE_NEITHER, .ours = true, .fallback = "ssh",
                       .placeholder = "ssh|srun|COMMAND",
                       .help =
                           "the command that starts crun on a host; in COMMAND {host} stands for the host"},
    [OPTION_EXPORT] = {"export", .side = OPTION_SIDE_NEITHER, .ours = true, .placeholder = "NAME[=VALUE],...",
                       .help = "further variables of the environment for the hosts"},
    [OPTION_CHDIR] = {"chdir", .side = OPTION_SIDE_NEITHER, .ours = true, .placeholder = "DIR",
                      .help = "working directory on the hosts, if not the one of this node"},
    [OPTION_NO_COPY] = {"no-copy", OPTION_FLAG, .side = OPTION_SIDE_NEITHER, .ours = true,
                        .help = "copy no crun to hosts that have none of this version on PATH"},

    /* How the nodes of a job find each other. */
    [OPTION_RDZV_BACKEND] = {"rdzv-backend", .side = OPTION_SIDE_NEITHER, .fallback = "static",
                             .placeholder = "c10d|static", .help = "rendezvous backend: c10d or static"},
    [OPTION_RDZV_ENDPOINT] = {"rdzv-endpoint", .side = OPTION_SIDE_NEITHER, .fallback = "",
                              .placeholder = "HOST[:PORT]", .help = "where the nodes meet"},
    [OPTION_RDZV_ID] = {"rdzv-id", .side = OPTION_SIDE_FRONT, .fallback = "none", .placeholder = "ID",
                        .help = "name of the job, the same on all its nodes"},
    [OPTION_RDZV_CONF] = {"rdzv-conf", .side = OPTION_SIDE_NEITHER, .fallback = "",
                          .placeholder = "KEY=VALUE,...", .help = "further settings of the rendezvous"},
    [OPTION_STANDALONE] = {"standalone", OPTION_FLAG,
                           .not_with_hosts = "a standalone job has one node, this one",
                           .side = OPTION_SIDE_NEITHER,
                           .help = "one node, a rendezvous of its own on a free loopback port; the rdzv "
                                   "options are ignored"},
    [OPTION_NODE_RANK] = {"node-rank", OPTION_INT,
                          .not_with_hosts = "hosts are numbered in the order of their list", .fallback = "0",
                          .placeholder = "N", .help = "number of this node (static rendezvous)"},
    [OPTION_MASTER_ADDR] = {"master-addr",
                            .not_with_hosts = "hosts meet at this crun, or at a crund (--rdzv-endpoint)",
                            .fallback = "127.0.0.1", .placeholder = "HOST",
                            .help = "address of node 0 (static rendezvous)"},
    [OPTION_MASTER_PORT] = {"master-port", OPTION_INT,
                            .not_with_hosts = "hosts meet at this crun, or at a crund (--rdzv-endpoint)",
                            .placeholder = "PORT", .help = "port on node 0 (static rendezvous; 29500)"},
    [OPTION_LOCAL_ADDR] =
        {"local-addr", .placeholder = "HOST|NETWORK/BITS",
         .help =
             "address at which other nodes reach this one, or the network of that address, as 10.1.0.0/16"},

    [OPTION_SECRET_FILE] = {"secret-file", .side = OPTION_SIDE_NEITHER, .ours = true, .placeholder = "FILE",
                            .help =
                                "the secret of the job, the same on all its nodes: only nodes that have it "
                                "can join, and their sessions are encrypted"},
    [OPTION_SECURITY] = {"security", .ours = true, .fallback = "prefer", .placeholder = "open|prefer|require",
                         .choices = "open prefer require",
                         .help =
                             "open: use no secret; prefer: use one if there is one; require: do not start "
                             "on several nodes without one"},
    [OPTION_TLS_CERT] =
        {"tls-cert", .ours = true, .placeholder = "FILE",
         .help = "certificate of this node, in place of a secret or beside it: sessions are encrypted, "
                 "and both ends prove a certificate; with --tls-key and --tls-ca"},
    [OPTION_TLS_KEY] = {"tls-key", .ours = true, .placeholder = "FILE",
                        .help = "private key of the certificate"},
    [OPTION_TLS_CA] = {"tls-ca", .ours = true, .placeholder = "FILE",
                       .help =
                           "CAs that have signed the certificates of the other nodes and of the rendezvous"},
    [OPTION_WORKER_STORE] = {"worker-store", .ours = true, .fallback = "shared",
                             .placeholder = "shared|local", .choices = "shared local",
                             .help =
                                 "local: on several nodes workers use a store on their own node's loopback, "
                                 "which forwards to node 0 over an encrypted connection; needs a secret "
                                 "or certificates"},
    [OPTION_SEAL] =
        {"seal", OPTION_FLAG, .ours = true,
         .help =
             "nothing of crun is open to the network without the secret or a certificate: --security=require "
             "and --worker-store=local; libcrw encrypts data between nodes"},

    /* Supervision. */
    [OPTION_MAX_RESTARTS] = {"max-restarts", OPTION_INT, .fallback = "0", .placeholder = "N",
                             .help = "how often the workers are started again after a failure"},
    [OPTION_MAX_RESTARTS_WITHOUT_PROGRESS] =
        {"max-restarts-without-progress", OPTION_INT, .ours = true, .placeholder = "N",
         .help =
             "end the job after N restarts in a row that reached no higher step, as workers report it with "
             "beat(step); unless given: restart all the same"},
    [OPTION_MONITOR_INTERVAL] = {"monitor-interval", OPTION_SECONDS, .has_no_effect = true, .fallback = "0.1",
                                 .placeholder = "SECONDS",
                                 .help =
                                     "accepted for compatibility; the kernel reports the end of a worker"},
    [OPTION_SIGNALS_TO_HANDLE] = {"signals-to-handle", .side = OPTION_SIDE_BOTH,
                                  .fallback = "SIGTERM,SIGINT,SIGHUP,SIGQUIT", .placeholder = "SIGNAL,...",
                                  .help = "signals that are passed to the workers and end the job"},
    [OPTION_SHUTDOWN_TIMEOUT] = {"shutdown-timeout", OPTION_INT, .side = OPTION_SIDE_BOTH,
                                 .placeholder = "SECONDS",
                                 .help = "time between asking workers to stop and killing them "
                                         "($TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)"},
    [OPTION_SIGNAL_ORDER] = {"signal-order", .ours = true, .fallback = "group",
                             .placeholder = "group|worker-first", .choices = "group worker-first",
                             .help =
                                 "a signal that ends workers goes to their process groups at once, or to the "
                                 "worker alone and to its group when it has ended or after half of "
                                 "--shutdown-timeout"},
    [OPTION_RESTART_POLICY] = {"restart-policy", .ours = true, .fallback = "all",
                               .placeholder = "all|replace", .choices = "all replace",
                               .help = "after a failure start all workers again, or only those that failed "
                                       "while the others go on (programs on libcrw that can; else all)"},
    [OPTION_REPLACE_TIMEOUT] = {"replace-timeout", OPTION_INT, .ours = true, .fallback = "30",
                                .placeholder = "SECONDS",
                                .help = "time for all workers to be together again after a replacement"},
    [OPTION_LEASE] = {"lease", OPTION_SECONDS, .ours = true, .placeholder = "SECONDS",
                      .help =
                          "several nodes: workers of a node that gets no answer from the rendezvous for so "
                          "long are stopped, before others start in their place (15 with "
                          "--restart-policy=replace or where the rendezvous wants it, else 0: they are not)"},
    [OPTION_RESTART_PAUSE] = {"restart-pause", OPTION_INT, .ours = true, .fallback = "30",
                              .placeholder = "SECONDS",
                              .help =
                                  "longest pause before a restart of workers that fail within 10 s of their "
                                  "start again and again; the first restart is at once, 0: all are"},
    [OPTION_HANG_TIMEOUT] =
        {"hang-timeout", OPTION_INT, .ours = true, .fallback = "300", .placeholder = "SECONDS",
         .help = "without progress of any rank for so long, report where each rank is; 0: never"},
    [OPTION_HANG_ACTION] = {"hang-action", .ours = true, .fallback = "report",
                            .placeholder = "report|restart|stop", .choices = "report restart stop",
                            .help = "what follows the report: nothing, a restart, or the end of the job"},
    [OPTION_EXIT_CODE] = {"exit-code", .side = OPTION_SIDE_BOTH, .ours = true, .fallback = "torchrun",
                          .placeholder = "torchrun|worker", .choices = "torchrun worker",
                          .help = "after a failure exit with 1, or with the code of the worker that failed "
                                  "first (128 + signal)"},
    [OPTION_NO_REQUEUE_CODE] = {"no-requeue-code", OPTION_INT, .ours = true, .pet = true, .placeholder = "N",
                                .help =
                                    "exit with this code after a failure against which a start elsewhere "
                                    "cannot help: no such program, a syntax or import error, a rule stop"},
    [OPTION_HEALTH_CHECK] =
        {"health-check", .ours = true, .pet = true, .placeholder = "CMD|builtin",
         .help = "run this in a shell on each node before each generation: a node on which it "
                 "fails takes no part; builtin: crun --check-node"},
    [OPTION_HEALTH_CHECK_TIMEOUT] = {"health-check-timeout", OPTION_INT, .ours = true, .pet = true,
                                     .fallback = "60", .placeholder = "SECONDS",
                                     .help = "the check has failed when it takes longer"},

    /* What runs. */
    [OPTION_ROLE] = {"role", .side = OPTION_SIDE_BOTH, .fallback = "default", .placeholder = "NAME",
                     .help = "role of the workers"},
    [OPTION_MODULE] = {"module", OPTION_FLAG, .side = OPTION_SIDE_BOTH, .letter = 'm',
                       .help = "the program is a Python module: python -m"},
    [OPTION_NO_PYTHON] = {"no-python", OPTION_FLAG, .side = OPTION_SIDE_BOTH,
                          .help = "run the program as it is, found on PATH"},
    [OPTION_RUN_PATH] = {"run-path", OPTION_FLAG, .side = OPTION_SIDE_BOTH,
                         .help = "run the Python script through runpy.run_path, with @record around it"},
    [OPTION_START_METHOD] = {"start-method", .has_no_effect = true, .fallback = "spawn",
                             .placeholder = "spawn|fork|forkserver", .choices = "spawn fork forkserver",
                             .help = "accepted for compatibility; each worker is a fresh process"},
    [OPTION_WARM] = {"warm", OPTION_FLAG, .ours = true,
                     .help = "fork the workers from an interpreter that has imported what earlier ones "
                             "imported ($CRUN_WARM=1)"},
    [OPTION_VIRTUAL_LOCAL_RANK] = {"virtual-local-rank", OPTION_FLAG,
                                   .help = "each worker sees one GPU as number 0, and LOCAL_RANK=0"},
    [OPTION_NUMA_BINDING] = {"numa-binding", .no_pet = true, .placeholder = "MODE",
                             .choices = "node socket exclusive core-complex",
                             .help = "bind each worker to the CPUs near its GPU: node, socket, exclusive or "
                                     "core-complex"},

    /* Output. */
    [OPTION_LOG_DIR] = {"log-dir", .side = OPTION_SIDE_FRONT, .placeholder = "DIR",
                        .help = "where the folders with the workers' output and error files go"},
    [OPTION_REDIRECTS] = {"redirects", .side = OPTION_SIDE_FRONT, .letter = 'r', .fallback = "0",
                          .placeholder = "N|RANK:N,...",
                          .help =
                              "write workers' output to files instead: 0 none, 1 stdout, 2 stderr, 3 both"},
    [OPTION_TEE] = {"tee", .side = OPTION_SIDE_FRONT, .letter = 't', .fallback = "0",
                    .placeholder = "N|RANK:N,...",
                    .help = "write workers' output to files as well; same numbers"},
    [OPTION_LOG_LINE_PREFIX_TEMPLATE] = {"log-line-prefix-template", .side = OPTION_SIDE_FRONT,
                                         .fallback = "", .placeholder = "TEXT",
                                         .help =
                                             "what stands before each line that -t shows, with ${role_name}, "
                                             "${local_rank}, ${rank} and ${hostname} replaced; empty: "
                                             "[${role_name}${local_rank}]:"},
    [OPTION_LINE_PREFIX] =
        {"line-prefix", .side = OPTION_SIDE_FRONT, .ours = true, .placeholder = "torchrun|host|TEXT",
         .help = "the same; torchrun stands for the text of torchrun, host for [role 0@host]: with "
                 "the rank in the whole job"},
    [OPTION_FOLD_OUTPUT] =
        {"fold-output", OPTION_FLAG, .side = OPTION_SIDE_FRONT, .ours = true,
         .help = "with -t: show lines that several workers of this node print alike within 0.2 s as one, "
                 "[ranks 0-7] TEXT"},
    [OPTION_LOCAL_RANKS_FILTER] = {"local-ranks-filter", .side = OPTION_SIDE_FRONT, .fallback = "",
                                   .placeholder = "RANK,...",
                                   .help = "show output of these local ranks only; files are unaffected"},
    [OPTION_DUPLICATE_STDOUT_FILTERS] = {"duplicate-stdout-filters", .side = OPTION_SIDE_FRONT,
                                         .fallback = "", .placeholder = "TEXT,...",
                                         .help = "copy tee'd stdout lines with one of these texts to "
                                                 "filtered_stdout.log"},
    [OPTION_DUPLICATE_STDERR_FILTERS] = {"duplicate-stderr-filters", .side = OPTION_SIDE_FRONT,
                                         .fallback = "", .placeholder = "TEXT,...",
                                         .help = "the same for stderr and filtered_stderr.log"},
    [OPTION_LOGS_SPECS] = {"logs-specs", .has_no_effect = true, .no_pet = true, .placeholder = "NAME",
                           .help = "a Python plug-in of torchrun: refused, but for default"},
    [OPTION_ON_LINE] = {"on-line",
                        .not_with_hosts =
                            "rules act where a worker's lines are read, which is not the worker's host",
                        .repeats = true, .ours = true, .placeholder = "REGEX=ACTION",
                        .help = "when a worker prints a line that matches, and that -t shows: stop, restart, "
                                "stacks or mark; may be given several times"},
    [OPTION_EVENT_LOG] = {"event-log", .ours = true, .placeholder = "FILE",
                          .help =
                              "append what happens to this file, one JSON object in a line: starts, ends, "
                              "failures and their causes"},
    [OPTION_METRICS_ADDR] = {"metrics-addr", .ours = true, .placeholder = "[HOST:]PORT",
                             .help = "serve metrics for Prometheus there; without HOST on loopback alone"},
    [OPTION_EVENT_LOG_HANDLER] =
        {"event-log-handler", .fallback = "null", .placeholder = "null|console",
         .help = "console prints torchrun's event records to stderr, one JSON object in a "
                 "line"},
    [OPTION_TIMESTAMPS] = {"timestamps", .side = OPTION_SIDE_BOTH, .ours = true, .pet = true,
                           .fallback = "yes", .placeholder = "yes|no", .choices = "yes no",
                           .help = "whether crun's own lines have the time, from the start of the job on"},
    [OPTION_DEBUG] = {"debug", OPTION_FLAG, .side = OPTION_SIDE_BOTH, .optional_value = true, .ours = true,
                      .placeholder = "FILE",
                      .help =
                          "write every event and action of the supervision to stderr or to the end of FILE"},

    [OPTION_AGENT_FD] = {"agent-fd", OPTION_INT,
                         .not_with_hosts = "an agent that is another program runs on its own host",
                         .ours = true, .placeholder = "N",
                         .help = "take part in the rendezvous for an agent that is another program, at the "
                                 "other end of the socket with this number; no program is started"},
    [OPTION_CHECK_NODE] = {"check-node", OPTION_FLAG,
                           .not_with_hosts =
                               "it checks this node; on the hosts --health-check=builtin checks",
                           .ours = true,
                           .help =
                               "check the GPUs of NVIDIA and the free disk space of this node, and exit: 0 "
                               "when it is fit"},
    [OPTION_PRINT_COMPLETION] =
        {"print-completion", .no_pet = true, .placeholder = "SHELL", .choices = "bash zsh tcsh fish",
         .help = "write a script of completions for bash, zsh, tcsh or fish to standard output "
                 "and exit"},
    [OPTION_HELP] = {"help", OPTION_FLAG, .letter = 'h', .no_pet = true, .help = "show this text and exit"},
    [OPTION_VERSION] = {"version", OPTION_FLAG, .ours = true, .help = "show the version and exit"},
};

static_assert(OPTION_VERSION + 1 == OPTION_COUNT, "--version closes the table");
