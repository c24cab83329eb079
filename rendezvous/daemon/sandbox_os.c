#include "rendezvous/daemon/sandbox_os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER true
#elif defined(__has_feature)
#define HAS_SANITIZER                                                                                        \
    (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer))
#else
#define HAS_SANITIZER false
#endif

/* Of linux/landlock.h and io_uring, which are newer than other headers that this builds with. Numbers of calls are those of all
 * architectures. */
enum {
    MAKE_RING = 425,
    CREATE_RULESET = 444,
    ADD_RULE = 445,
    RESTRICT_SELF = 446,
    ASK_VERSION = 1, /* a flag of CREATE_RULESET */
    RULE_BELOW_PATH = 1,
};

enum access {
    ACCESS_WRITE_FILE = 1 << 1,
    ACCESS_READ_FILE = 1 << 2,
    ACCESS_READ_FOLDER = 1 << 3,
    ACCESS_REMOVE_FILE = 1 << 5,
    ACCESS_MAKE_FILE = 1 << 8,
    ACCESS_MAKE_SOCKET = 1 << 9,
    ACCESS_FIRST_VERSION = (1 << 13) - 1,
    ACCESS_REFER = 1 << 13,    /* to link or rename into another folder: version 2 */
    ACCESS_TRUNCATE = 1 << 14, /* version 3 */
    ACCESS_DEVICE = 1 << 15,   /* ioctl() of devices: version 5 */
};

struct ruleset {
    uint64_t handled;
};

struct rule_below_path {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

enum {
    READING = ACCESS_READ_FILE | ACCESS_READ_FOLDER,
    CHANGING = READING | ACCESS_WRITE_FILE | ACCESS_REMOVE_FILE | ACCESS_MAKE_FILE | ACCESS_TRUNCATE,
    MAKING_SOCKETS = ACCESS_MAKE_SOCKET | ACCESS_REMOVE_FILE,
    OF_FILES = ACCESS_READ_FILE | ACCESS_WRITE_FILE | ACCESS_TRUNCATE,
};

bool sandbox_is_possible(void)
{
    return !HAS_SANITIZER;
}

static int fail_sandbox(const char *what, int error, char why[SANDBOX_ERROR_SIZE])
{
    (void)snprintf(why, SANDBOX_ERROR_SIZE, "%.150s: %s", what, strerror(-error));
    return error;
}

/* ---- files ---- */

/* All that this kernel knows: what no rule allows is refused. */
static uint64_t handled_accesses(long version)
{
    uint64_t all = ACCESS_FIRST_VERSION;

    if (version >= 2)
        all |= ACCESS_REFER;
    if (version >= 3)
        all |= ACCESS_TRUNCATE;
    if (version >= 5)
        all |= ACCESS_DEVICE;
    return all;
}

static int allow_path(int rules, const struct sandbox_path *p, uint64_t handled)
{
    static const uint64_t of_use[] = {
        [SANDBOX_READ] = READING, [SANDBOX_WRITE] = CHANGING, [SANDBOX_SOCKETS] = MAKING_SOCKETS};
    _cleanup_close_ int fd = open(p->path, O_PATH | O_CLOEXEC);
    struct rule_below_path rule = {.allowed = of_use[p->use] & handled, .parent_fd = fd};
    struct stat st;

    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode))
        rule.allowed &= OF_FILES;
    return syscall(ADD_RULE, rules, RULE_BELOW_PATH, &rule, 0) < 0 ? -errno : 0;
}

int sandbox_limit_files(const struct sandbox_path *paths, size_t n, char why[SANDBOX_ERROR_SIZE])
{
    long version = syscall(CREATE_RULESET, NULL, 0, ASK_VERSION);
    struct ruleset attributes = {.handled = handled_accesses(version)};

    if (version < 0)
        return fail_sandbox("the kernel has no Landlock", -errno, why);
    _cleanup_close_ int rules = (int)syscall(CREATE_RULESET, &attributes, sizeof(attributes), 0);
    if (rules < 0)
        return fail_sandbox("Landlock takes no rules", -errno, why);
    for (size_t i = 0; i < n; i++) {
        int r = allow_path(rules, &paths[i], attributes.handled);
        if (r < 0)
            return fail_sandbox(paths[i].path, r, why);
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(RESTRICT_SELF, rules, 0) < 0)
        return fail_sandbox("Landlock cannot be begun", -errno, why);
    return 0;
}

/* ---- calls ---- */

static int install_filter(struct sock_filter *filter, size_t n, char why[SANDBOX_ERROR_SIZE])
{
    const struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return fail_sandbox("privileges cannot be given up", -errno, why);
    long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (r < 0)
        return fail_sandbox("the kernel takes no filter of system calls", -errno, why);
    return r > 0 ? fail_sandbox("a thread has another filter of system calls", -EBUSY, why) : 0;
}

/* The number is that of all architectures, so that it need not be asked for which one. */
int sandbox_refuse_rings(char why[SANDBOX_ERROR_SIZE])
{
    struct sock_filter filter[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, MAKE_RING},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };

    return install_filter(filter, ARRAY_SIZE(filter), why);
}

int sandbox_limit_calls(const struct sandbox_calls *calls, char why[SANDBOX_ERROR_SIZE])
{
    struct sock_filter filter[SANDBOX_FILTER_MAX];
    size_t n = sandbox_filter_write(filter, calls);

    if (n == 0)
        return fail_sandbox("there is no list of calls for this architecture", -EOPNOTSUPP, why);
    return install_filter(filter, n, why);
}
