#include "rendezvous/daemon/sandbox_filter.h"

#include <assert.h>
#include <asm/unistd.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>

#include "base/err.h"

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#endif

/* From headers that a core does not include, or that differ between C libraries. */
enum {
    FAMILY_UNIX = 1,
    FAMILY_IPV4 = 2,
    FAMILY_IPV6 = 10,
    PAGE_WRITE = 2,
    PAGE_EXECUTE = 4,
    THREAD_FLAG = 0x10000,        /* CLONE_THREAD */
    NAMESPACE_FLAGS = 0x7e020080, /* CLONE_NEW*: USER, PID, NET, IPC, UTS, CGROUP, NS, TIME */
    NAME_OF_THREAD = 15,          /* PR_SET_NAME */
    NO_WAIT = 0x5421,             /* FIONBIO */
    BYTES_WAITING = 0x541b,       /* FIONREAD */
    BYTES_UNSENT = 0x5411,        /* TIOCOUTQ */
    TERMINAL = 0x5401,            /* TCGETS, of isatty() */
    CLOSE_AT_EXEC = 0x5451,       /* FIOCLEX */
    STREAM = 1,                   /* SOCK_STREAM */
    TYPE_MASK = 0xf,              /* of a socket, without its flags */
    FOREIGN_ABI = 0x40000000,     /* numbers of x32 */
};

#ifdef NATIVE_ARCH

/* The most frequent first. */
static const int allowed[] = {
    __NR_read,
    __NR_write,
    __NR_writev,
    __NR_epoll_pwait,
    __NR_recvfrom,
    __NR_futex,
    __NR_clock_gettime,
    __NR_epoll_ctl,
    __NR_accept4,
    __NR_close,
    __NR_getpeername,
    __NR_getsockname,
    __NR_getsockopt,
    __NR_setsockopt,
    __NR_shutdown,
    __NR_recvmsg,
    __NR_accept,
    __NR_readv,
    __NR_pread64,
    __NR_pwrite64,
    __NR_ppoll,
    __NR_pselect6,
    __NR_epoll_create1,
    __NR_eventfd2,
    __NR_pipe2,
    __NR_dup,
    __NR_dup3,
    __NR_fcntl,
    __NR_flock,
    __NR_lseek,
    __NR_fsync,
    __NR_fdatasync,
    __NR_ftruncate,
    __NR_fallocate,
    __NR_fstat,
    __NR_newfstatat,
    __NR_statx,
    __NR_statfs,
    __NR_fstatfs,
    __NR_openat,
    __NR_faccessat,
    __NR_readlinkat,
    __NR_getdents64,
    __NR_mkdirat,
    __NR_unlinkat,
    __NR_renameat,
    __NR_fchmod,
    __NR_fchmodat,
    __NR_getcwd,
    __NR_umask,
    __NR_munmap,
    __NR_mremap,
    __NR_madvise,
    __NR_brk,
    __NR_mincore,
    __NR_membarrier,
    __NR_rt_sigaction,
    __NR_rt_sigprocmask,
    __NR_rt_sigreturn,
    __NR_rt_sigtimedwait,
    __NR_rt_sigpending,
    __NR_sigaltstack,
    __NR_restart_syscall,
    __NR_nanosleep,
    __NR_clock_nanosleep,
    __NR_clock_getres,
    __NR_gettimeofday,
    __NR_times,
    __NR_getrusage,
    __NR_getpid,
    __NR_gettid,
    __NR_getppid,
    __NR_getuid,
    __NR_geteuid,
    __NR_getgid,
    __NR_getegid,
    __NR_getrandom,
    __NR_sysinfo,
    __NR_uname,
    __NR_getcpu,
    __NR_sched_yield,
    __NR_sched_getaffinity,
    __NR_set_robust_list,
    __NR_get_robust_list,
    __NR_set_tid_address,
    __NR_exit,
    __NR_exit_group,
    __NR_getrlimit,
#ifdef __NR_rseq
    __NR_rseq,
#endif
#ifdef __NR_faccessat2
    __NR_faccessat2,
#endif
#ifdef __NR_renameat2
    __NR_renameat2,
#endif
#ifdef __NR_close_range
    __NR_close_range,
#endif
#ifdef __NR_epoll_pwait2
    __NR_epoll_pwait2,
#endif
#ifdef __x86_64__ /* calls that newer architectures have in the form above alone */
    __NR_epoll_wait,
    __NR_poll,
    __NR_select,
    __NR_open,
    __NR_stat,
    __NR_lstat,
    __NR_access,
    __NR_readlink,
    __NR_unlink,
    __NR_rename,
    __NR_mkdir,
    __NR_dup2,
    __NR_pipe,
    __NR_eventfd,
    __NR_epoll_create,
    __NR_getdents,
    __NR_chmod,
    __NR_time,
    __NR_arch_prctl,
#endif
};

/* No code of the daemon comes here: whatever does is not its own. */
static const int deadly[] = {
    __NR_execve, __NR_execveat, __NR_ptrace, __NR_process_vm_readv, __NR_process_vm_writev,
};

/* Glibc uses the older call where these do not exist; their arguments are in memory, where no filter sees them. */
static const int missing[] = {
#ifdef __NR_clone3
    __NR_clone3,
#endif
#ifdef __NR_openat2
    __NR_openat2,
#endif
};

enum { VALUES_MAX = 5 };

/* Allowed if an argument's bits under the mask are one of the values. */
struct call_rule {
    int number;
    unsigned argument;
    uint32_t mask;
    uint32_t values[VALUES_MAX];
    unsigned n_values;
};

static const struct call_rule rules[] = {
    {__NR_clone, 0, THREAD_FLAG | NAMESPACE_FLAGS, {THREAD_FLAG}, 1},
    {__NR_mmap, 2, PAGE_WRITE | PAGE_EXECUTE, {0, PAGE_WRITE}, 2},
    {__NR_mprotect, 2, PAGE_EXECUTE, {0}, 1},
    {__NR_socketpair, 1, TYPE_MASK, {STREAM}, 1}, /* a pair of datagram sockets could send to others */
    {__NR_ioctl, 1, UINT32_MAX, {NO_WAIT, BYTES_WAITING, BYTES_UNSENT, TERMINAL, CLOSE_AT_EXEC}, 5},
    {__NR_prctl, 0, UINT32_MAX, {NAME_OF_THREAD}, 1},
};

static const struct call_rule dialling_rules[] = {
    {__NR_socket, 0, UINT32_MAX, {FAMILY_UNIX, FAMILY_IPV4, FAMILY_IPV6}, 3},
    {__NR_connect, 0, 0, {0}, 1},  /* any */
    {__NR_sendto, 0, 0, {0}, 1},   /* the same */
    {__NR_sendmmsg, 0, 0, {0}, 1}, /* of the resolver, which asks for both families at once */
    /* Libraries of the resolver are loaded with the first lookup. Such a daemon has no folder to write to. */
    {__NR_mmap, 2, PAGE_WRITE | PAGE_EXECUTE, {PAGE_EXECUTE}, 1},
};

/* Of libmicrohttpd and the resolver. The address is in memory, where no filter sees it. */
static const struct call_rule message_rules[] = {
    {__NR_sendmsg, 0, 0, {0}, 1},
};

struct writer {
    struct sock_filter *to;
    size_t n;
};

static void put(struct writer *w, uint16_t code, uint8_t if_true, uint8_t if_false, uint32_t k)
{
    assert(w->n < SANDBOX_FILTER_MAX);
    w->to[w->n++] = (struct sock_filter){code, if_true, if_false, k};
}

static void load(struct writer *w, size_t offset)
{
    put(w, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

static void answer(struct writer *w, uint32_t action)
{
    put(w, BPF_RET | BPF_K, 0, 0, action);
}

/* The accumulator has the call's number. */
static void put_list(struct writer *w, const int *numbers, size_t n, uint32_t action)
{
    for (size_t i = 0; i < n; i++) {
        put(w, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)numbers[i]);
        answer(w, action);
    }
}

/* The low half of an argument: both architectures are little endian. */
static void put_rule(struct writer *w, const struct call_rule *rule)
{
    put(w, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(2 * rule->n_values + 3), (uint32_t)rule->number);
    load(w, offsetof(struct seccomp_data, args) + rule->argument * sizeof(uint64_t));
    put(w, BPF_ALU | BPF_AND | BPF_K, 0, 0, rule->mask);
    for (unsigned i = 0; i < rule->n_values; i++) {
        put(w, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, rule->values[i]);
        answer(w, SECCOMP_RET_ALLOW);
    }
    load(w, offsetof(struct seccomp_data, nr));
}

static void put_rules(struct writer *w, const struct call_rule *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_rule(w, &list[i]);
}

/* send(): sendto() without an address, in both halves of the pointer. */
static void put_send(struct writer *w)
{
    const size_t address = offsetof(struct seccomp_data, args) + 4 * sizeof(uint64_t);

    put(w, BPF_JMP | BPF_JEQ | BPF_K, 0, 6, __NR_sendto);
    load(w, address);
    put(w, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0);
    load(w, address + sizeof(uint32_t));
    put(w, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    answer(w, SECCOMP_RET_ALLOW);
    load(w, offsetof(struct seccomp_data, nr));
}

/* raise() and abort(), and getrlimit(). */
static void put_own_process(struct writer *w, uint32_t pid)
{
    const struct call_rule own[] = {
        {__NR_tgkill, 0, UINT32_MAX, {pid}, 1},
        {__NR_kill, 0, UINT32_MAX, {pid}, 1},
        {__NR_prlimit64, 0, UINT32_MAX, {0, pid}, 2},
    };

    put_rules(w, own, ARRAY_SIZE(own));
}

size_t sandbox_filter_write(struct sock_filter to[SANDBOX_FILTER_MAX], const struct sandbox_calls *calls)
{
    struct writer w = {.to = to};

    load(&w, offsetof(struct seccomp_data, arch));
    put(&w, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, NATIVE_ARCH);
    answer(&w, SECCOMP_RET_KILL_PROCESS);
    load(&w, offsetof(struct seccomp_data, nr));
    put(&w, BPF_JMP | BPF_JGE | BPF_K, 0, 1, FOREIGN_ABI);
    answer(&w, SECCOMP_RET_KILL_PROCESS);
    put_list(&w, allowed, ARRAY_SIZE(allowed), SECCOMP_RET_ALLOW);
    put_list(&w, deadly, ARRAY_SIZE(deadly), SECCOMP_RET_KILL_PROCESS);
    put_list(&w, missing, ARRAY_SIZE(missing), SECCOMP_RET_ERRNO | ENOSYS);
    put_send(&w);
    put_rules(&w, rules, ARRAY_SIZE(rules));
    if (calls->dials)
        put_rules(&w, dialling_rules, ARRAY_SIZE(dialling_rules));
    if (calls->dials || calls->has_metrics)
        put_rules(&w, message_rules, ARRAY_SIZE(message_rules));
    put_own_process(&w, (uint32_t)calls->pid);
    answer(&w, SECCOMP_RET_ERRNO | EPERM);
    return w.n;
}

#else

size_t sandbox_filter_write(struct sock_filter to[SANDBOX_FILTER_MAX], const struct sandbox_calls *calls)
{
    return 0;
}

#endif
