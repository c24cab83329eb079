/*
 * The launch environment: the variables that crun and torchrun set for a worker, read strictly. A
 * launcher does not write " 3" or "3x", so neither means 3: it means that something else wrote the
 * variable.
 *
 * Without RANK no launcher started the process, and the other variables are ignored: a stray WORLD_SIZE
 * of the user's shell must not stop a program that runs alone. With RANK, ranks and sizes are required;
 * variables that only describe the job default to torchrun's values.
 */

#include "worker-runtime/base/env_os.h"
#include "base/decimal.h"
#include "proto/worker_memory.h"
#include "worker-runtime/base/error.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TIMEOUT_DEFAULT_MS = 30 * 60 * 1000 };

static bool parse_int(const char *text, int max, int *ret_value)
{
    uint64_t value;

    if (!decimal_parse(text, 0, (uint64_t)max, &value))
        return false;
    *ret_value = (int)value;
    return true;
}

static int read_env_number(const char *name, int min, int max, int *ret_value)
{
    const char *text = getenv(name);
    int value;

    if (!text)
        return crw_fail(CRW_E_ENVIRONMENT,
                        "RANK is set but %s is not; start the program by crun or torchrun, "
                        "or unset RANK to run it alone",
                        name);
    if (!parse_int(text, max, &value) || value < min)
        return crw_fail(CRW_E_ENVIRONMENT, "%s is \"%s\"; it must be a whole number from %d to %d", name,
                        text, min, max);
    *ret_value = value;
    return 0;
}

static int read_optional_env_number(const char *name, int min, int max, int *ret_value)
{
    return getenv(name) ? read_env_number(name, min, max, ret_value) : 0;
}

static int read_env_text(const char *name, char *ret_text, size_t capacity)
{
    const char *text = getenv(name);

    if (!text)
        return 0;
    if (strlen(text) >= capacity)
        return crw_fail(CRW_E_ENVIRONMENT, "%s is %zu bytes long; at most %zu are possible", name,
                        strlen(text), capacity - 1);
    memcpy(ret_text, text, strlen(text) + 1);
    return 0;
}

/* Sizes first: each bounds the rank that goes with it. */
static int read_ranks(struct crw_env *env)
{
    TRY(read_env_number("WORLD_SIZE", 1, INT_MAX, &env->world_size));
    TRY(read_env_number("RANK", 0, env->world_size - 1, &env->rank));
    TRY(read_env_number("LOCAL_WORLD_SIZE", 1, env->world_size, &env->local_world_size));
    TRY(read_env_number("LOCAL_RANK", 0, env->local_world_size - 1, &env->local_rank));
    TRY(read_optional_env_number("GROUP_WORLD_SIZE", 1, env->world_size, &env->group_world_size));
    return read_optional_env_number("GROUP_RANK", 0, env->group_world_size - 1, &env->group_rank);
}

/* With TORCH_DISABLE_SHARE_RDZV_TCP_STORE torchrun serves no store and expects rank 0 to, which libcrw
 * does not. */
static int check_served_store(void)
{
    const char *served = getenv("TORCHELASTIC_USE_AGENT_STORE");

    if (served && strcmp(served, "True") != 0)
        return crw_fail(CRW_E_ENVIRONMENT,
                        "TORCHELASTIC_USE_AGENT_STORE is \"%s\", so the launcher serves no store "
                        "and the ranks cannot meet; start the program by crun, or by torchrun "
                        "without TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
                        served);
    return 0;
}

/* A world of one needs no store: it has no peers to meet. */
static int read_store(struct crw_env *env)
{
    int port = 0;

    TRY(read_env_text("MASTER_ADDR", env->master_addr, sizeof(env->master_addr)));
    TRY(read_optional_env_number("MASTER_PORT", 1, UINT16_MAX, &port));
    env->master_port = (uint16_t)port;
    if (env->world_size > 1 && (!env->master_addr[0] || port == 0))
        return crw_fail(CRW_E_ENVIRONMENT,
                        "WORLD_SIZE is %d but %s is not set, so the ranks cannot meet; "
                        "start the program by crun or torchrun",
                        env->world_size, env->master_addr[0] ? "MASTER_PORT" : "MASTER_ADDR");
    return env->world_size > 1 ? check_served_store() : 0;
}

static int read_job(struct crw_env *env)
{
    int r = read_optional_env_number("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, &env->restart_count);

    if (r == 0)
        r = read_optional_env_number("TORCHELASTIC_MAX_RESTARTS", 0, INT_MAX, &env->max_restarts);
    if (r == 0)
        r = read_env_text("TORCHELASTIC_RUN_ID", env->run_id, sizeof(env->run_id));
    if (r == 0)
        r = read_optional_env_number("CRUN_NOTICE_FD", 0, INT_MAX, &env->notice_fd);
    env->generation = env->restart_count;
    if (r == 0)
        r = read_optional_env_number("CRUN_GENERATION", 0, INT_MAX, &env->generation);
    return r;
}

static struct crw_env alone(void)
{
    return (struct crw_env){
        .world_size = 1,
        .local_world_size = 1,
        .group_world_size = 1,
        .run_id = "none",
        .notice_fd = -1,
    };
}

int crw_env_read(struct crw_env *ret_env)
{
    struct crw_env env = alone();
    int r = 0;

    NEED(ret_env, CRW_E_ARGUMENT);
    if (getenv("RANK")) {
        env.launched = true;
        r = read_ranks(&env);
        if (r == 0)
            r = read_store(&env);
        if (r == 0)
            r = read_job(&env);
    }
    if (r == 0)
        *ret_env = env;
    return r;
}

/* HOST, or [HOST] when it has colons in it. */
static bool parse_endpoint(const char *text, struct crw_env *env)
{
    const char *colon = strrchr(text, ':');
    bool brackets = text[0] == '[';
    int port;

    if (!colon || !parse_int(colon + 1, UINT16_MAX, &port) || port < 1)
        return false;
    size_t n = (size_t)(colon - text);
    if (brackets && (n < 3 || text[n - 1] != ']'))
        return false;
    text += brackets;
    n -= brackets ? 2 : 0;
    if (n == 0 || n >= sizeof(env->master_addr) || (!brackets && memchr(text, ':', n)))
        return false;
    memcpy(env->master_addr, text, n); /* zeroed before */
    env->master_port = (uint16_t)port;
    return true;
}

int env_from_address(const char *address, int rank, int world_size, struct crw_env *ret_env)
{
    static const char scheme[] = "tcp://";
    struct crw_env env = alone();

    if (strncmp(address, scheme, strlen(scheme)) != 0 || !parse_endpoint(address + strlen(scheme), &env))
        return crw_fail(CRW_E_ARGUMENT,
                        "\"%.300s\" is no address of a worker store; it has to be like "
                        "tcp://127.0.0.1:29500 or tcp://[::1]:29500",
                        address);
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return crw_fail(CRW_E_ARGUMENT, "rank %d of %d ranks is impossible", rank, world_size);
    env.rank = env.local_rank = rank;
    env.world_size = env.local_world_size = world_size;
    *ret_env = env;
    return 0;
}

int env_timeout_ms(int *ret_timeout_ms)
{
    const char *text = getenv("CRW_TIMEOUT_MS");
    int value = TIMEOUT_DEFAULT_MS;

    if (text && (!parse_int(text, INT_MAX, &value) || value < 1))
        return crw_fail(CRW_E_ENVIRONMENT,
                        "CRW_TIMEOUT_MS is \"%s\"; it must be a whole number of "
                        "milliseconds, at least 1",
                        text);
    *ret_timeout_ms = value;
    return 0;
}

int env_encrypt(bool *ret)
{
    const char *text = getenv("CRW_ENCRYPT");

    if (!text || !text[0]) {
        text = getenv(WORKER_MEMORY_SEAL_ENVIRONMENT);
        *ret = text && strcmp(text, "1") == 0;
        return 0;
    }
    *ret = strcmp(text, "1") == 0;
    if (!*ret && strcmp(text, "0") != 0)
        return crw_fail(CRW_E_ENVIRONMENT,
                        "CRW_ENCRYPT is \"%.32s\"; it must be 1 (data between hosts is encrypted) or 0",
                        text);
    return 0;
}

int env_inherited_fd(const char *name)
{
    const char *text = getenv(name);
    int fd;

    return text && parse_int(text, INT_MAX, &fd) && fcntl(fd, F_GETFD) >= 0 ? fd : -1;
}

int env_state_file(void)
{
    int fd = env_inherited_fd(WORKER_MEMORY_STATE_ENVIRONMENT);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 0)
        return -1;                        /* a number left over from a parent */
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* what this process starts has no use for it */
    return fd;
}

const char *env_text(const char *name)
{
    const char *text = getenv(name);

    return text && text[0] ? text : NULL;
}

void env_set_default(const char *name, const char *value)
{
    (void)setenv(name, value, 0); /* fails only without memory, and the default is only a convenience */
}
