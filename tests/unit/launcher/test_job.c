/* What command lines mean on one node, and which are refused with which sentence. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/cli/scheduler_grace.h"
#include "launcher/cli/job.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

struct conversation {
    const char *words[10];
    const char *environment[4];
    int n_gpus, n_xpus;
};

static int n_cpus(void *data)
{
    return 6;
}

static int n_gpus(void *data)
{
    return (*(const struct conversation **)data)->n_gpus;
}

static int n_xpus(void *data)
{
    return (*(const struct conversation **)data)->n_xpus;
}

static int find_address(const char *network, char *ret, size_t size)
{
    if (strcmp(network, "10.1.0.0/16") != 0)
        return strcmp(network, "10.2.0.0/16") == 0 ? -EADDRNOTAVAIL : -EINVAL;
    return snprintf(ret, size, "10.1.2.3") < (int)size ? 0 : -ENOBUFS;
}

struct outcome {
    struct job job;
    char *warnings;
    char error[JOB_ERROR_SIZE];
    int result;
    const struct conversation *said;
};

static void hold(const struct conversation *c, struct outcome *o)
{
    char *const *environment = (char *const *)(uintptr_t)c->environment;
    char usage[OPTIONS_ERROR_SIZE];
    struct options options;

    *o = (struct outcome){.said = c};
    const struct job_machine machine = {.count_cpus = n_cpus,
                                        .count_gpus = n_gpus,
                                        .count_xpus = n_xpus,
                                        .find_address = find_address,
                                        .data = &o->said,
                                        .random_id = "uuid"};
    assert_int_equal(options_parse((char *const *)(uintptr_t)c->words, environment, &options, usage), 0);
    o->result = job_init(&o->job, &options, environment, &machine, &o->warnings, o->error);
}

static void part(struct outcome *o)
{
    job_finish(&o->job);
    free(o->warnings);
}

/* ------------------------------------------------------------------ numbers of workers */

static void test_workers(void **state)
{
    static const struct {
        struct conversation said;
        int n_workers; /* 0: refused */
    } cases[] = {
        {{{"x"}}, 1},
        {{{"--nproc-per-node=3", "x"}}, 3},
        {{{"--nproc-per-node= 3 ", "x"}}, 3},
        {{{"--nproc-per-node=cpu", "x"}}, 6},
        {{{"--nproc-per-node=gpu", "x"}, .n_gpus = 2}, 2},
        {{{"--nproc-per-node=auto", "x"}, .n_gpus = 2}, 2},
        {{{"--nproc-per-node=auto", "x"}}, 6},
        {{{"--nproc-per-node=gpu", "x"}}, 0},
        {{{"--nproc-per-node=GPU", "x"}, .n_gpus = 2}, 0},
        {{{"--nproc-per-node=xpu", "x"}, .n_gpus = 2}, 0},
        {{{"--nproc-per-node=xpu", "x"}, .n_xpus = 4}, 4},
        {{{"--nproc-per-node=gpu", "x"}, .n_xpus = 4}, 0},
        {{{"--nproc-per-node=auto", "x"}, .n_xpus = 4}, 4},
        {{{"--nproc-per-node=auto", "x"}, .n_gpus = 2, .n_xpus = 4}, 2},
        {{{"--nproc-per-node=0", "x"}}, 0},
        {{{"--nproc-per-node=-2", "x"}}, 0},
        {{{"--nproc-per-node=1000000", "x"}}, 0},
        {{{"x"}, {"PET_NPROC_PER_NODE=2"}}, 2},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        if (o.job.n_workers != cases[i].n_workers || (o.result == 0) != (cases[i].n_workers > 0))
            fail_msg("case %zu: %d workers, %d '%s'", i, o.job.n_workers, o.result, o.error);
        part(&o);
    }
}

/* ------------------------------------------------------------------ rendezvous */

static void test_rendezvous(void **state)
{
    static const struct {
        struct conversation said;
        const char *run_id, *addr;
        int port;
        const char *worker_run_id; /* NULL: the same */
    } cases[] = {
        {{{"x"}}, "uuid", "127.0.0.1", 0},
        {{{"--standalone", "x"}}, "uuid", "127.0.0.1", 0},
        {{{"--standalone", "--rdzv-id=a", "--rdzv-backend=etcd", "--rdzv-endpoint=h:1", "x"}},
         "a",
         "127.0.0.1",
         0,
         "uuid"},
        {{{"--rdzv-id=a", "x"}},
         "a",
         "127.0.0.1",
         0,
         "uuid"}, /* as torchrun: static without a port is standalone */
        {{{"--standalone", "x"}, {"PET_RDZV_ID=b"}}, "b", "127.0.0.1", 0, "uuid"},
        {{{"--standalone", "--rdzv-id=", "x"}}, "uuid", "127.0.0.1", 0},
        {{{"--master-addr=h", "x"}}, "uuid", "127.0.0.1", 0},
        {{{"--master-port=7", "x"}}, "none", "127.0.0.1", 7},
        {{{"x"}, {"PET_MASTER_PORT=8"}}, "none", "127.0.0.1", 8},
        {{{"--master-addr=h", "--master-port=7", "--rdzv-id=a", "x"}}, "a", "h", 7},
        {{{"--rdzv-endpoint=h:9", "x"}}, "none", "h", 9},
        {{{"--rdzv-endpoint=[::1]:9", "x"}}, "none", "::1", 9},
        {{{"--rdzv-endpoint=\t h:9\r\n", "x"}}, "none", "h", 9},
        {{{"--master-addr=\th", "--master-port=7", "x"}}, "none", "h", 7},
        {{{"--master-addr=[::1]", "--master-port=7", "x"}}, "none", "::1", 7},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint= \r", "x"}}, "none", "127.0.0.1", 0},
        {{{"--rdzv-backend=c10d", "x"}}, "none", "127.0.0.1", 0},
        {{{"--rdzv-backend=c10d", "--rdzv-id=", "x"}}, "uuid", "127.0.0.1", 0},
        {{{"--rdzv-backend=c10d", "--rdzv-id=b", "--rdzv-endpoint=other:29400", "x"}}, "b", "127.0.0.1", 0},
        {{{"--standalone", "--local-addr=10.0.0.7", "x"}}, "uuid", "10.0.0.7", 0},
        {{{"--standalone", "--local-addr=", "x"}}, "uuid", "127.0.0.1", 0},
        {{{"--standalone", "--local-addr=10.1.0.0/16", "x"}}, "uuid", "10.1.2.3", 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        if (o.result)
            fail_msg("case %zu: %s", i, o.error);
        assert_string_equal(o.job.run_id_text, cases[i].run_id);
        assert_string_equal(o.job.worker_run_id,
                            cases[i].worker_run_id ? cases[i].worker_run_id : cases[i].run_id);
        assert_string_equal(o.job.master_addr, cases[i].addr);
        assert_int_equal(o.job.master_port, cases[i].port);
        part(&o);
    }
}

static void test_meeting(void **state)
{
    static const struct {
        struct conversation said;
        enum job_meeting meeting;
        int min, max, node_rank;
        const char *addr; /* of the master or the endpoint */
        int port;
        unsigned join_ms, node_timeout_ms;
        enum job_hosting hosting;
    } cases[] = {
        {{{"--nnodes=2", "--master-port=7", "--node-rank=1", "x"}},
         JOB_STATIC,
         2,
         2,
         1,
         "127.0.0.1",
         7,
         600000,
         3000,
         JOB_HOSTS_IF_LOCAL},
        {{{"--nnodes=1:3", "--rdzv-endpoint=h:9", "x"}},
         JOB_STATIC,
         1,
         3,
         0,
         "h",
         9,
         600000,
         3000,
         JOB_HOSTS_IF_LOCAL},
        {{{"--nnodes=2", "x"}}, JOB_STATIC, 2, 2, 0, "127.0.0.1", 29500, 600000, 3000, JOB_HOSTS_IF_LOCAL},
        {{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "x"}},
         JOB_ROUNDS,
         2,
         2,
         -1,
         "h",
         29400,
         600000,
         3000,
         JOB_HOSTS_IF_LOCAL},
        {{{"--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=[fe80::1]:8", "--node-rank=3",
           "--rdzv-conf=join_timeout=5,node_timeout_ms=250,is_host=Yes", "x"}},
         JOB_ROUNDS,
         2,
         4,
         3,
         "fe80::1",
         8,
         5000,
         250,
         JOB_HOSTS},
        {{{"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint= h:0 ", "--rdzv-conf=is_host=0", "x"}},
         JOB_ROUNDS,
         1,
         4,
         -1,
         "h",
         0,
         600000,
         3000,
         JOB_HOSTS_NOT},
        {{{"--nnodes=1:4", "--standalone", "x"}},
         JOB_ALONE,
         1,
         4,
         0,
         "127.0.0.1",
         0,
         600000,
         3000,
         JOB_HOSTS_IF_LOCAL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        if (o.result)
            fail_msg("case %zu: %s", i, o.error);
        bool rounds = cases[i].meeting == JOB_ROUNDS;
        assert_int_equal(o.job.meeting, cases[i].meeting);
        assert_int_equal(o.job.min_nodes, cases[i].min);
        assert_int_equal(o.job.max_nodes, cases[i].max);
        assert_int_equal(o.job.node_rank, cases[i].node_rank);
        assert_string_equal(rounds ? o.job.endpoints[0].host : o.job.master_addr, cases[i].addr);
        assert_int_equal(rounds ? o.job.endpoints[0].port : o.job.master_port, cases[i].port);
        assert_int_equal(o.job.params.join_timeout_ms, cases[i].join_ms);
        assert_int_equal(o.job.params.node_timeout_ms, cases[i].node_timeout_ms);
        assert_int_equal(o.job.hosting, cases[i].hosting);
        part(&o);
    }
}

static void test_several_endpoints(void **state)
{
    static const struct conversation said = {
        {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h1, [::1]:7 ,h3:8", "x"}};
    struct outcome o;

    hold(&said, &o);
    assert_int_equal(o.result, 0);
    assert_string_equal(o.job.endpoints[0].host, "h1");
    assert_int_equal(o.job.endpoints[0].port, 29400);
    assert_int_equal(o.job.n_endpoints, 3);
    assert_string_equal(o.job.endpoints[1].host, "::1");
    assert_int_equal(o.job.endpoints[1].port, 7);
    assert_string_equal(o.job.endpoints[2].host, "h3");
    assert_int_equal(o.job.endpoints[2].port, 8);
    part(&o);
}

/* A shorter lease lowers the default, and what was given stays. */
static void test_node_timeout(void **state)
{
#define NODE "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"
    static const struct {
        struct conversation said;
        uint32_t ms, origin;
    } cases[] = {
        {{{NODE, "x"}}, 3000, SESSION_TIMEOUT_DEFAULT},
        {{{NODE, "--lease=1", "x"}}, 1000, SESSION_TIMEOUT_DEFAULT},
        {{{NODE, "--lease=2.5", "x"}}, 2500, SESSION_TIMEOUT_DEFAULT},
        {{{NODE, "--lease=15", "x"}}, 3000, SESSION_TIMEOUT_DEFAULT},
        {{{NODE, "--lease=0", "x"}}, 3000, SESSION_TIMEOUT_DEFAULT},
        {{{NODE, "--rdzv-conf=node_timeout_ms=3000", "x"}}, 3000, SESSION_TIMEOUT_GIVEN},
        {{{NODE, "--rdzv-conf=node_timeout_ms=700", "--lease=1", "x"}}, 700, SESSION_TIMEOUT_GIVEN},
    };
#undef NODE

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;

        hold(&cases[i].said, &o);
        if (o.result)
            fail_msg("case %zu: %s", i, o.error);
        assert_int_equal(o.job.params.node_timeout_ms, cases[i].ms);
        assert_int_equal(o.job.params.node_timeout_origin, cases[i].origin);
        part(&o);
    }
}

/* ------------------------------------------------------------------ refusals and warnings */

static void test_refused(void **state)
{
    static const struct {
        struct conversation said;
        const char *error;
    } cases[] = {
        {{{"--restart-pause=-1", "x"}}, "--restart-pause=-1: a number of seconds from 0 to 3600"},
        {{{"--restart-pause=3601", "x"}}, "--restart-pause=3601"},
        {{{"--debug=", "x"}}, "--debug= names no file"},
        {{{"--local-addr=10.2.0.0/16", "x"}},
         "--local-addr=10.2.0.0/16: this node has no address in that network"},
        {{{"--local-addr=x/16", "x"}}, "--local-addr=x/16: a network is ADDRESS/BITS"},
        {{{"--nnodes=2", "--rdzv-endpoint=h:1", "--rdzv-backend=c10d", "--tls-cert=c", "x"}},
         "--tls-cert, --tls-key and --tls-ca: all three are needed"},
        {{{"--nnodes=2", "--rdzv-endpoint=h:1", "--rdzv-backend=c10d", "--tls-cert=c", "--tls-key=k",
           "--tls-ca=", "x"}},
         "all three are needed"},
        {{{"--nnodes=2", "--rdzv-endpoint=h:1", "--rdzv-backend=c10d", "--tls-cert=c", "--tls-key=k",
           "--tls-ca=a", "--security=open", "x"}},
         "--security=open uses no certificate"},
        {{{"--nnodes=2", "--tls-cert=c", "--tls-key=k", "--tls-ca=a", "x"}},
         "cannot prove a certificate; use --rdzv-backend=c10d"},
        {{{"--nnodes=2", "--standalone", "x"}}, "--standalone is for one node"},
        {{{"--nnodes=20000", "x"}}, "at most 16384 nodes"},
        {{{"--nnodes=2", "--node-rank=2", "x"}}, "are 0 to 1"},
        {{{"--nnodes=2", "--node-rank=-1", "x"}}, "are 0 to 1"},
        {{{"--nnodes=2", "--master-port=0", "x"}}, "need a fixed port"},
        {{{"--rdzv-endpoint=tcp://h:1", "x"}}, "must be a dot-separated list of labels"},
        {{{"--rdzv-conf=join_timeout=0", "x"}}, "The join timeout (0) must be positive."},
        {{{"--rdzv-conf=join_timeout=soon", "x"}}, "is not a number"},
        {{{"--rdzv-conf=node_timeout_ms=5", "x"}}, "must be between 100 and"},
        {{{"--rdzv-conf=is_host=perhaps", "x"}}, "neither yes nor no"},
        {{{"--nnodes=2", "--rdzv-conf=timeout=900.0", "x"}}, "timeout=900.0 is not a number"},
        {{{"--nnodes=2", "--rdzv-conf=timeout=0", "x"}}, "The timeout (0) must be positive."},
        {{{"--rdzv-conf=close_timeout=soon", "x"}}, "close_timeout=soon is not a number"},
        {{{"--rdzv-conf=heartbeat_timeout=0", "x"}}, "heartbeat_timeout=0 must be positive"},
        {{{"--rdzv-conf=read_timeout=-1", "--rdzv-backend=c10d", "--nnodes=2", "x"}},
         "read_timeout=-1 must be positive"},
        {{{"--rdzv-conf=keep_alive_interval=5s", "x"}}, "keep_alive_interval=5s is not a number"},
        {{{"--rdzv-conf=cas_backoff_max_seconds=x", "x"}}, "cas_backoff_max_seconds=x is not a number"},
        {{{"--rdzv-conf=cas_backoff_max_seconds=-0.5", "x"}}, "must be finite and not negative"},
        {{{"--rdzv-conf=cas_backoff_max_seconds=inf", "x"}}, "must be finite and not negative"},
        {{{"--rdzv-conf=store_type=etcd", "x"}}, "store_type=etcd is neither tcp nor file"},
        {{{"--event-log=", "x"}}, "names no file"},
        {{{"--chdir=/", "x"}}, "--chdir is for a job with --hosts or --hostfile"},
        {{{"--launch=ssh", "x"}}, "--launch is for a job with --hosts"},
        {{{"--export=A", "x"}}, "--export is for a job with --hosts"},
        {{{"--no-copy", "x"}}, "--no-copy is for a job with --hosts"},
        {{{"--nnodes=0", "x"}}, "min_nodes must be > 0 and <= max_nodes"},
        {{{"--nnodes=2:1", "x"}}, "min_nodes must be > 0 and <= max_nodes"},
        {{{"--nnodes=1:1:1", "x"}}, "is not in \"MIN:MAX\" format"},
        {{{"--nnodes=a", "x"}}, "is not in \"MIN:MAX\" format"},
        {{{"x"}, {"PET_NNODES="}},
         "is not in \"MIN:MAX\" format; --nnodes comes from PET_NNODES in the environment"},
        {{{"x"}, {"PET_NPROC_PER_NODE=two"}}, "; --nproc-per-node comes from PET_NPROC_PER_NODE"},
        {{{"--node-rank=2", "x"}, {"PET_NNODES=2"}}, "are 0 to 1; --nnodes comes from PET_NNODES"},
        {{{"--nnodes=2", "x"}, {"PET_STANDALONE=1"}},
         "instead of --standalone; --standalone comes from PET_STANDALONE in the environment"},
        {{{"--rdzv-conf=a", "x"}, {"PET_RDZV_CONF=b"}}, "'a' must have a value specified"},
        {{{"--node-rank=1", "x"}}, "only node 0"},
        {{{"--max-restarts=-1", "x"}}, "max_restarts must be >= 0"},
        {{{"--monitor-interval=0", "x"}}, "must be greater than 0"},
        {{{"--monitor-interval=nan", "x"}}, "must be greater than 0"},
        {{{"--shutdown-timeout=-1", "x"}}, "must be non-negative"},
        {{{"x"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon"}}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
        {{{"x"}, {"CRUN_GRACE_SECONDS=soon"}}, "CRUN_GRACE_SECONDS='soon'"},
        {{{"x"}, {"CRUN_GRACE_SECONDS=0"}}, "greater than 0"},
        {{{"--rdzv-conf=a", "x"}}, "option 'a' must have a value specified"},
        {{{"--rdzv-conf=timeout=1,", "x"}}, "must be in format"},
        {{{"--rdzv-conf==1", "x"}}, "must be in format"},
        {{{"--rdzv-backend=etcd", "x"}}, "'etcd' is not registered"},
        {{{"--rdzv-backend=etcd-v2", "--rdzv-endpoint=h", "x"}}, "start crund with --state=etcd://"},
        {{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a,b", "--rdzv-conf=is_host=1", "x"}},
         "names several"},
        {{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a,b,c,d,e,f,g,h,i", "x"}},
         "at most 8 endpoints"},
        {{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a,", "x"}},
         "must be a dot-separated list of labels"},
        {{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a,b:x", "x"}},
         "must be an integer between 0 and 65535"},
        {{{"--nnodes=2", "--rdzv-endpoint=a:1,b:1", "x"}}, "must be a dot-separated list of labels"},
        {{{"--rdzv-endpoint=h", "x"}}, "port is missing in endpoint: h"},
        {{{"--rdzv-conf=join_timeout="
           "0000000000000000000000000000000000000000000000000000000000000000600",
           "x"}},
         "the value of join_timeout has more than 63 characters"},
        {{{"--rdzv-endpoint=h:70000", "x"}}, "must be an integer between 0 and 65535"},
        {{{"--rdzv-endpoint=h:x", "x"}}, "must be an integer between 0 and 65535"},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint=tcp://h:1", "x"}},
         "must be a dot-separated list of labels"},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint=h:x", "x"}}, "must be an integer between 0 and 65535"},
        {{{"--master-port=70000", "x"}}, "0 to 65535"},
        {{{"--master-addr=", "--master-port=7", "x"}},
         "--master-addr: The hostname of the rendezvous endpoint ':7' must be a dot-separated list of labels, an "
         "IPv4 address, or an IPv6 address. Is a variable in the command not set?"},
        {{{"--master-addr=h\r", "--master-port=7", "x"}}, "It ends in a carriage return"},
        {{{"--master-addr=h ", "--master-port=7", "x"}}, "It ends in white space"},
        {{{"--master-addr=a b", "--master-port=7", "x"}}, "must be a dot-separated list of labels"},
        {{{"--master-addr=h:7", "--master-port=7", "x"}}, "must be a dot-separated list of labels"},
        {{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:7:8", "x"}},
         "must be a dot-separated list of labels"},
        {{{"--nnodes=2", "--master-addr=", "x"}}, "must be a dot-separated list of labels"},
        {{{"x"}, {"PET_MASTER_ADDR=", "PET_MASTER_PORT=7"}}, "--master-addr comes from PET_MASTER_ADDR"},
        {{{"-m", "--no-python", "x"}}, "Don't use both"},
        {{{"--logs-specs=a", "x"}}, "plug-in"},
        {{{"--event-log-handler=file", "x"}}, "'file' is not registered"},
        {{{"-r4", "x"}}, "does not match"},
        {{{"-t", "0:1;1:2", "x"}}, "does not match"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        if (o.result != 1 || !strstr(o.error, cases[i].error))
            fail_msg("case %zu: %d '%s'", i, o.result, o.error);
        part(&o);
    }
}

static void test_warnings(void **state)
{
    static const struct {
        struct conversation said;
        const char *warning; /* NULL: none */
    } cases[] = {
        {{{"--rdzv-conf=timeout=5, join_timeout = 3", "x"}}, NULL},
        {{{"--rdzv-conf=heartbeat=5", "x"}}, "no setting is called 'heartbeat'"},
        {{{"--rdzv-conf=join_timout=3", "x"}}, "'join_timout'; ignored; did you mean join_timeout?\n"},
        {{{"x"}, {"PET_RDZV_CONF=join_timout=3"}},
         "did you mean join_timeout?\ncrun: --rdzv-conf comes from PET_RDZV_CONF in the environment\n"},
        {{{"--line-prefix=[${time} ${rank}]", "x"}},
         "--line-prefix: there is no variable ${time}; it stays as it is"},
        {{{"--line-prefix=[${role_name}${local_rank}/${rank}@${host}${", "x"}}, NULL},
        {{{"--rdzv-backend=c10d", "--node-rank=1", "x"}}, "--node-rank"},
        {{{"--rdzv-backend=c10d", "--nnodes=2", "x"}}, "have to be on this machine"},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:9", "x"}},
         "--nnodes is 1: this node is the whole job, and the rendezvous at 10.0.0.1:9 is not used"},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint=head", "x"}}, "--nnodes is 1"},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "x"}}, NULL},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:9", "x"}}, NULL},
        {{{"--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:9", "x"}}, NULL},
        {{{"--standalone", "--rdzv-endpoint=head", "x"}}, NULL},
        {{{"--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=h", "--rdzv-conf=read_timeout=5", "x"}},
         "read_timeout has no effect"},
        {{{"--rdzv-backend=static", "--master-port=1", "--rdzv-conf=close_timeout=soon", "x"}},
         "close_timeout=soon is not a number; ignored, as --rdzv-backend=static does not use it"},
        {{{"--master-port=1", "--rdzv-conf=join_timeout=0,is_host=perhaps,node_timeout_ms=1", "x"}},
         "The join timeout (0) must be positive.; ignored"},
        {{{"--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=h", "--rdzv-conf=timeout=900.0", "x"}},
         "timeout=900.0 is not a number; ignored, as --rdzv-backend=c10d does not use it"},
        {{{"--rdzv-backend=c10d", "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'", "x"}},
         "timeout=5' is not a number; ignored"},
        {{{"--logs-specs=default", "x"}}, NULL},
        {{{"--rdzv-conf=store_type=File,keep_alive_interval=0,rank=x", "x"}}, NULL},
        {{{"--nproc-per-node=2", "--local-ranks-filter=0,7", "x"}},
         "no local rank 7 on this node, only 0 to 1"},
        {{{"--local-ranks-filter=-1", "x"}}, "no local rank -1 on this node, only 0;"},
        {{{"--nproc-per-node=2", "-r", "1:3,2:1", "x"}},
         "--redirects: there is no local rank 2 on this node"},
        {{{"--nproc-per-node=2", "-t", "1:3,0:1", "x"}}, NULL},
        {{{"--signals-to-handle=", "x"}}, "--signals-to-handle is empty"},
        {{{"--restart-policy=replace", "--max-restarts=1", "--nnodes=2", "--rdzv-backend=c10d",
           "--rdzv-endpoint=h", "x"}},
         NULL},
        {{{"--restart-policy=replace", "--max-restarts=1", "--nnodes=2", "--node-rank=0", "--master-addr=h",
           "x"}},
         "replace does not work with a static rendezvous"},
        {{{"--restart-policy=replace", "--max-restarts=1", "x"}}, NULL},
        {{{"--restart-pause=0", "--debug", "x"}}, NULL},
        {{{"--signals-to-handle=SIGTERM,SIGFOO", "x"}}, "'SIGFOO'"},
        {{{"--signals-to-handle=SIGKILL", "x"}}, "'SIGKILL'"},
        {{{"x"}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}}, NULL},
        {{{"x"}, {"TORCHELASTIC_ENABLE_FILE_TIMER=1"}}, "TORCHELASTIC_ENABLE_FILE_TIMER=1 has no effect"},
        {{{"x"}, {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=5"}},
         "UNINTERRUPTIBLE_STATE_TIMEOUT=5 has no effect"},
        {{{"x"}, {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0"}}, NULL},
        {{{"--shutdown-timeout=60", "x"}, {"CRUN_GRACE_SECONDS=40"}}, "(40 s); 35 s are used"},
        {{{"x"}, {"CRUN_GRACE_SECONDS=20"}}, "(20 s); 15 s are used"},
        {{{"--shutdown-timeout=60", "x"}, {"KUBERNETES_SERVICE_HOST=10.0.0.1"}}, NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        assert_int_equal(o.result, 0);
        if (!cases[i].warning != !o.warnings || (o.warnings && !strstr(o.warnings, cases[i].warning)))
            fail_msg("case %zu: %s", i, o.warnings ? o.warnings : "(none)");
        part(&o);
    }
}

/* ------------------------------------------------------------------ details */

static void test_supervision(void **state)
{
    static const struct conversation said = {{"--signals-to-handle", "SIGUSR1, SIGTERM", "--max-restarts=3",
                                              "--shutdown-timeout=7", "--exit-code=worker", "x"},
                                             {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9"}};
    static const struct conversation from_environment = {{"x"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9"}};
    static const struct conversation defaults = {{"x"}};
    struct outcome o;

    hold(&said, &o);
    assert_int_equal(o.job.signals, UINT64_C(1) << (SIGUSR1 - 1) | UINT64_C(1) << (SIGTERM - 1));
    assert_string_equal(o.job.signals_text, "SIGUSR1, SIGTERM");
    assert_int_equal(o.job.max_restarts, 3);
    assert_int_equal(o.job.shutdown_timeout_s, 7);
    assert_true(o.job.exit_code_of_worker);
    part(&o);
    hold(&from_environment, &o);
    assert_int_equal(o.job.shutdown_timeout_s, 9);
    part(&o);
    hold(&defaults, &o);
    assert_int_equal(o.job.shutdown_timeout_s, 30);
    assert_false(o.job.exit_code_of_worker);
    part(&o);
}

static void test_timeout_fits_into_the_scheduler_s_grace(void **state)
{
    static const struct {
        struct conversation said;
        int timeout_s;
        bool is_reported; /* that it is shorter than it would be outside the scheduler */
    } cases[] = {
        {{{"x"}, {"SLURM_JOB_ID=1"}}, 25, false},
        {{{"x"}, {"KUBERNETES_SERVICE_HOST=10.0.0.1"}}, 25, false},
        {{{"x"}, {"CRUN_GRACE_SECONDS=90"}}, 30, false},
        {{{"x"}, {"CRUN_GRACE_SECONDS=12", "SLURM_JOB_ID=1"}}, 8, true},
        {{{"x"}, {"CRUN_GRACE_SECONDS=15"}}, 10, true},
        {{{"x"}, {"CRUN_GRACE_SECONDS=5"}}, 4, true},
        {{{"x"}, {"CRUN_GRACE_SECONDS=3"}}, 2, true},
        {{{"x"}, {"CRUN_GRACE_SECONDS=2"}}, 1, true},
        {{{"x"}, {"CRUN_GRACE_SECONDS=1"}}, 1, true},
        {{{"--shutdown-timeout=28", "x"}, {"SLURM_JOB_ID=1"}}, 28, false},
        {{{"--shutdown-timeout=28", "x"}, {"CRUN_GRACE_SECONDS=30"}}, 25, true},
        {{{"--shutdown-timeout=8", "x"}, {"CRUN_GRACE_SECONDS=30"}}, 8, false},
        {{{"x"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=50", "CRUN_GRACE_SECONDS=30"}}, 25, true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        bool is_reported = o.warnings && strstr(o.warnings, "does not fit into CRUN_GRACE_SECONDS");
        if (o.result != 0 || o.job.shutdown_timeout_s != cases[i].timeout_s ||
            is_reported != cases[i].is_reported)
            fail_msg("case %zu: %d s, %s", i, o.job.shutdown_timeout_s,
                     o.warnings ? o.warnings : "no warning");
        part(&o);
    }
}

static void test_slurm_s_configuration(void **state)
{
    static const struct {
        const char *conf;
        int seconds;
        bool is_certain;
    } cases[] = {
        {NULL, 30, false},
        {"", 30, false},
        {"ClusterName=a\nKillWait=60\n", 60, true},
        {"killwait=10 InactiveLimit=0", 10, true},
        {"#KillWait=60\nMinJobAge=1 # KillWait=5\n", 30, false},
        {"OverTimeLimit=1 KillWait=20\nKillWait=15", 15, true},
        {"UnKillWait=60\nKillWait=\nKillWait", 30, false},
    };
    static const char *const in_slurm[] = {"SLURM_JOB_ID=7", NULL};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct scheduler_grace grace;
        assert_int_equal(scheduler_grace_find((char *const *)(uintptr_t)in_slurm, cases[i].conf, &grace), 0);
        if (grace.seconds != cases[i].seconds || grace.is_certain != cases[i].is_certain)
            fail_msg("case %zu: %d", i, grace.seconds);
    }
}

static void test_who_has_the_store(void **state)
{
    static const struct {
        struct conversation said;
        bool worker_has_store;
    } cases[] = {
        {{{"x"}}, false},
        {{{"x"}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}}, true},
        {{{"x"}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=true"}}, false},
        {{{"--rdzv-backend=c10d", "x"}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}}, true},
        {{{"--master-port=29500", "x"}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}}, false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        assert_int_equal(o.result, 0);
        assert_int_equal(o.job.worker_has_store, cases[i].worker_has_store);
        part(&o);
    }
}

static void test_line_prefix(void **state)
{
    static const struct {
        struct conversation said;
        const char *prefix;
    } cases[] = {
        {{{"x"}}, NULL},
        {{{"x"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=${rank} "}}, "${rank} "},
        {{{"--line-prefix=torchrun", "x"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=${rank} "}}, NULL},
        {{{"--line-prefix=host", "x"}}, "[${role_name} ${rank}@${hostname}]: "},
        {{{"--line_prefix", "${rank}|", "x"}}, "${rank}|"},
        {{{"--log-line-prefix-template=${hostname} ", "x"}}, "${hostname} "},
        {{{"--log_line_prefix_template", "a", "x"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=b"}}, "a"},
        {{{"--log-line-prefix-template=", "x"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=b"}}, "b"},
        {{{"x"}, {"PET_LOG_LINE_PREFIX_TEMPLATE=c", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=b"}}, "c"},
        {{{"x"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="}}, NULL},
        {{{"--line-prefix=x", "--log-line-prefix-template=y", "x"}}, "x"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        assert_int_equal(o.result, 0);
        if (cases[i].prefix)
            assert_string_equal(o.job.line_prefix, cases[i].prefix);
        else
            assert_null(o.job.line_prefix);
        part(&o);
    }
}

static void test_streams(void **state)
{
    static const struct {
        const char *text;
        bool fine;
        uint8_t map[12];
    } cases[] = {
        {"0", true, {0}},
        {"3", true, {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}},
        {"0:1,1:2", true, {1, 2}},
        {"3\n", true, {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}},
        {"0:1,1:2\n", true, {1, 2}},
        {"3\n\n", false},
        {"3\r", false},
        {"0:1,0:2", true, {2}},
        {"10:1,11:3", true, {[10] = 1, [11] = 3}},
        {"99:1", true, {0}},
        {"", false},
        {"4", false},
        {"33", false},
        {"0:4", false},
        {"0:1,", false},
        {":1", false},
        {"0:1 ,1:1", false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint8_t map[12];
        bool fine = job_parse_streams(cases[i].text, map, 12);
        if (fine != cases[i].fine || (fine && memcmp(map, cases[i].map, sizeof(map)) != 0))
            fail_msg("'%s'", cases[i].text);
    }
}

static void test_filters(void **state)
{
    static const struct conversation said = {
        {"--nproc-per-node=3", "--local-ranks-filter=0, 2,7", "--duplicate-stdout-filters=a b,c,,d", "x"}};
    static const struct conversation bad = {{"--local-ranks-filter=0,x", "x"}};
    static const uint8_t listed[] = {1, 0, 1};
    struct outcome o;

    hold(&said, &o);
    assert_int_equal(o.result, 0);
    assert_memory_equal(o.job.listed, listed, sizeof(listed));
    assert_int_equal(o.job.filters[0].n_items, 2);
    assert_string_equal(o.job.filters[0].items[0], "a b");
    assert_string_equal(o.job.filters[0].items[1], "c,d");
    assert_int_equal(o.job.filters[1].n_items, 0);
    assert_false(job_has_logs(&o.job));
    part(&o);
    hold(&bad, &o);
    assert_int_equal(o.result, 1);
    assert_non_null(strstr(o.error, "comma-separated list of integers"));
    part(&o);
}

/* The process around crun shows the output. */
static void test_another_reader_of_output(void **state)
{
    static const struct {
        struct conversation said;
        int output_fd; /* -1: refused */
    } cases[] = {
        {{{"-t3", "-r1", "--nproc-per-node=2", "x"}, {"CRUN_OUTPUT_FD=4"}}, 4},
        {{{"x"}, {"CRUN_OUTPUT_FD="}}, 0},
        {{{"-t3", "--fold-output", "x"}, {"CRUN_OUTPUT_FD=3"}}, 3},
        {{{"x"}, {"CRUN_OUTPUT_FD=2"}}, -1},
        {{{"x"}, {"CRUN_OUTPUT_FD=4x"}}, -1},
        {{{"x"}, {"CRUN_OUTPUT_FD=99999999999"}}, -1},
        {{{"-t3", "--on-line=x:note", "x"}, {"CRUN_OUTPUT_FD=4"}}, -1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        if (o.result != (cases[i].output_fd < 0) || (o.result == 0 && o.job.output_fd != cases[i].output_fd))
            fail_msg("case %zu: %d, %d '%s'", i, o.result, o.job.output_fd, o.error);
        assert_true(o.result != 0 || (!o.job.redirects[0] && !o.job.tees[0]));
        part(&o);
    }
}

static void test_programs(void **state)
{
    static const struct {
        struct conversation said;
        enum job_program program;
    } cases[] = {
        {{{"x"}}, JOB_PROGRAM_FILE},
        {{{"-m", "x"}}, JOB_PROGRAM_MODULE},
        {{{"--no-python", "x"}}, JOB_PROGRAM_EXECUTABLE},
        {{{"--run-path", "x"}}, JOB_PROGRAM_RUN_PATH},
        {{{"--run-path", "-m", "--no-python", "x"}}, JOB_PROGRAM_RUN_PATH},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o;
        hold(&cases[i].said, &o);
        assert_int_equal(o.result, 0);
        assert_int_equal(o.job.program, cases[i].program);
        part(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers),
        cmocka_unit_test(test_rendezvous),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_supervision),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_another_reader_of_output),
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_line_prefix),
        cmocka_unit_test(test_timeout_fits_into_the_scheduler_s_grace),
        cmocka_unit_test(test_slurm_s_configuration),
        cmocka_unit_test(test_who_has_the_store),
        cmocka_unit_test(test_meeting),
        cmocka_unit_test(test_several_endpoints),
        cmocka_unit_test(test_node_timeout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
