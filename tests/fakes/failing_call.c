/*
 * Runs a program and lets one of its system calls fail.
 *
 *   failing_call LIST [ROLE CALL SITE N ERRNO] -- PROGRAM [ARG...]
 *
 * The program keeps this process's number. Beside it runs a supervisor, a process of its own, which is notified of each
 * call of the program and of its threads and children (SECCOMP_RET_USER_NOTIF), lets it go on, and answers the N-th call
 * of one kind with ERRNO. Processes that have executed another program (the workers) are left alone, and so is the
 * dynamic linker. When the last process has ended, the supervisor writes the kinds of call that there were to the file
 * LIST, one per line: ROLE CALL SITE COUNT. CALL is the number of the system call, followed by "+" where it creates a
 * file, by the command for fcntl(2), and by what the descriptor is for reads and writes ("@file", "@pipe", "@socket",
 * "@eventfd" ...); SITE is the offset in the program's file of the innermost function of the program itself that led to
 * the call. With a failure asked for, LIST begins with "failed", or "never" when there was
 * no such call.
 *
 * The site is found as the first word on the stack behind a call instruction of the program: without frame pointers that
 * is a guess, but the same one each time.
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KINDS_MAX = 4096, STACK_WORDS = 2048, TEXT_SIZE = 64 };

/* Calls that can fail in a sound program. Those that fail only for wrong arguments are not among them, nor close(),
 * which closes the descriptor whatever it returns. */
static const int watched[] = {
    SYS_read,
    SYS_write,
    SYS_open,
    SYS_openat,
    SYS_stat,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_poll,
    SYS_mmap,
    SYS_mprotect,
    SYS_ioctl,
    SYS_pread64,
    SYS_pwrite64,
    SYS_readv,
    SYS_writev,
    SYS_access,
    SYS_pipe2,
    SYS_mremap,
    SYS_dup,
    SYS_dup2,
    SYS_dup3,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_socket,
    SYS_connect,
    SYS_accept4,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_bind,
    SYS_listen,
    SYS_getsockname,
    SYS_getpeername,
    SYS_socketpair,
    SYS_setsockopt,
    SYS_getsockopt,
    SYS_clone,
    SYS_clone3,
    SYS_fork,
    SYS_vfork,
    SYS_execve,
    SYS_wait4,
    SYS_waitid,
    SYS_kill,
    SYS_uname,
    SYS_fcntl,
    SYS_flock,
    SYS_fsync,
    SYS_fdatasync,
    SYS_ftruncate,
    SYS_getdents64,
    SYS_getcwd,
    SYS_rename,
    SYS_renameat,
    SYS_renameat2,
    SYS_mkdir,
    SYS_mkdirat,
    SYS_rmdir,
    SYS_unlink,
    SYS_unlinkat,
    SYS_readlink,
    SYS_readlinkat,
    SYS_prctl,
    SYS_setrlimit,
    SYS_prlimit64,
    SYS_getrlimit,
    SYS_sched_setaffinity,
    SYS_sched_getaffinity,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_signalfd4,
    SYS_timerfd_create,
    SYS_inotify_init1,
    SYS_inotify_add_watch,
    SYS_memfd_create,
    SYS_getrandom,
    SYS_pidfd_open,
    SYS_close_range,
    SYS_setsid,
    SYS_sysinfo,
    SYS_io_uring_setup,
};

struct kind {
    char role[16], call[TEXT_SIZE];
    uint64_t site;
    unsigned count;
};

struct supervisor {
    int listener;
    pid_t program;
    char exe[4096]; /* of the program */
    bool has_map;
    uint64_t text_begin, text_end, base; /* where the program's code is, and offset 0 of its file */
    uint64_t linker_begin, linker_end;   /* the dynamic linker */
    struct kind kinds[KINDS_MAX];
    size_t n_kinds;
    struct kind wanted; /* count: which one; 0: none */
    int error;
    bool has_failed;
};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "failing_call: %s: %s\n", what, strerror(errno));
    _exit(125);
}

/* ---- the filter ---- */

/* Returns the listener. */
static int install_filter(void)
{
    enum { N = sizeof(watched) / sizeof(watched[0]) };
    struct sock_filter code[2 * N + 2];
    size_t n = 0;

    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < N; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)watched[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        die("prctl");
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                        SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
}

/* ---- what a call is ---- */

static bool is_program(const struct supervisor *s, pid_t pid)
{
    char link[64], path[4096];

    (void)snprintf(link, sizeof(link), "/proc/%d/exe", pid);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    return strcmp(path, s->exe) == 0;
}

static long status_field(pid_t pid, const char *name)
{
    char path[64], line[256];
    long value = -1;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && value < 0 && fgets(line, sizeof(line), file))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    if (file)
        (void)fclose(file);
    return value;
}

static const char *role_of(const struct supervisor *s, pid_t thread)
{
    if (thread == s->program)
        return "main";
    if (status_field(thread, "Tgid:") == s->program)
        return "thread";
    return status_field(thread, "PPid:") == s->program ? "child" : "grandchild";
}

/* Forked children have the same map. */
static void read_map(struct supervisor *s, pid_t pid)
{
    char path[64], line[4300];

    (void)snprintf(path, sizeof(path), "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        unsigned long begin, end, offset;
        char mode[8], name[4096] = "";

        if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %4095s", &begin, &end, mode, &offset, name) < 4)
            continue;
        if (strcmp(name, s->exe) == 0 && offset == 0)
            s->base = begin;
        if (strcmp(name, s->exe) == 0 && mode[2] == 'x') {
            s->text_begin = begin;
            s->text_end = end;
        }
        if (strstr(name, "/ld-linux") && mode[2] == 'x') {
            s->linker_begin = begin;
            s->linker_end = end;
        }
    }
    if (file)
        (void)fclose(file);
    s->has_map = s->text_end > 0;
}

static size_t read_memory(pid_t pid, uint64_t from, void *to, size_t size)
{
    struct iovec local = {.iov_base = to, .iov_len = size};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};

    ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    return n < 0 ? 0 : (size_t)n;
}

/* Whether a call instruction ends at this address. */
static bool is_behind_call(pid_t pid, uint64_t address)
{
    uint8_t code[7];

    if (read_memory(pid, address - sizeof(code), code, sizeof(code)) != sizeof(code))
        return false;
    if (code[2] == 0xe8)
        return true;
    for (size_t length = 2; length <= 7; length++)
        if (code[7 - length] == 0xff && (code[8 - length] & 0x38) == 0x10)
            return true;
    return false;
}

/* The stack may be shorter than what is asked for. */
static uint64_t find_site(const struct supervisor *s, pid_t pid, uint64_t stack)
{
    uint64_t words[STACK_WORDS];
    size_t n = 0;

    for (size_t size = sizeof(words); n == 0 && size >= 256; size /= 2)
        n = read_memory(pid, stack, words, size) / sizeof(words[0]);
    for (size_t i = 0; i < n; i++)
        if (words[i] > s->text_begin + 7 && words[i] < s->text_end && is_behind_call(pid, words[i]))
            return words[i] - s->base;
    return 0;
}

static bool read_registers(pid_t pid, uint64_t *stack, uint64_t *code)
{
    char path[64], text[512];

    (void)snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    return sscanf(text, "%*s %*s %*s %*s %*s %*s %*s %lx %lx", stack, code) == 2;
}

/* "file", "pipe", "socket", "eventfd", "signalfd", "inotify", "null" ... */
static void name_descriptor(pid_t pid, int fd, char *out, size_t out_size)
{
    char link[64], path[4096];

    (void)snprintf(link, sizeof(link), "/proc/%d/fd/%d", pid, fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *name = path;
    if (strncmp(path, "anon_inode:", 11) == 0)
        name += 11 + (path[11] == '[');
    else if (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0)
        name = "proc";
    else if (strcmp(path, "/dev/null") == 0)
        name = "null";
    else if (*path == '/')
        name = "file";
    (void)snprintf(out, out_size, "%.*s", (int)strcspn(name, ":]"), name);
}

static bool moves_bytes(int call)
{
    static const int calls[] = {SYS_read, SYS_write, SYS_readv, SYS_writev};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (call == calls[i])
            return true;
    return false;
}

static void name_call(pid_t pid, const struct seccomp_data *data, char *out)
{
    char descriptor[32];

    bool creates = (data->nr == SYS_openat && (data->args[2] & O_CREAT)) ||
                   (data->nr == SYS_open && (data->args[1] & O_CREAT));

    if (data->nr == SYS_fcntl)
        (void)snprintf(out, TEXT_SIZE, "%d:%d", data->nr, (int)data->args[1]);
    if (data->nr == SYS_fcntl)
        return;
    if (moves_bytes(data->nr)) {
        name_descriptor(pid, (int)data->args[0], descriptor, sizeof(descriptor));
        (void)snprintf(out, TEXT_SIZE, "%d@%s", data->nr, descriptor);
    } else {
        (void)snprintf(out, TEXT_SIZE, "%d%s", data->nr, creates ? "+" : "");
    }
}

/* ---- supervising ---- */

static struct kind *count_call(struct supervisor *s, const struct kind *call)
{
    for (size_t i = 0; i < s->n_kinds; i++) {
        struct kind *k = &s->kinds[i];
        if (k->site == call->site && strcmp(k->call, call->call) == 0 && strcmp(k->role, call->role) == 0) {
            k->count++;
            return k;
        }
    }
    if (s->n_kinds == KINDS_MAX)
        return NULL;
    s->kinds[s->n_kinds] = *call;
    s->kinds[s->n_kinds].count = 1;
    return &s->kinds[s->n_kinds++];
}

/* Returns the error for this call, or 0. */
static int judge(struct supervisor *s, const struct seccomp_notif *n)
{
    pid_t pid = (pid_t)n->pid;
    struct kind call = {0};
    uint64_t stack, code;

    if (!is_program(s, pid) || !read_registers(pid, &stack, &code))
        return 0;
    if (!s->has_map)
        read_map(s, pid);
    if (code >= s->linker_begin && code < s->linker_end)
        return 0;
    (void)snprintf(call.role, sizeof(call.role), "%s", role_of(s, pid));
    name_call(pid, &n->data, call.call);
    call.site = find_site(s, pid, stack);
    const struct kind *k = count_call(s, &call);
    if (!k || s->has_failed || k->count != s->wanted.count || k->site != s->wanted.site ||
        strcmp(k->call, s->wanted.call) != 0 || strcmp(k->role, s->wanted.role) != 0)
        return 0;
    s->has_failed = true;
    return s->error;
}

static void answer(struct supervisor *s)
{
    struct seccomp_notif n = {0};

    if (ioctl(s->listener, SECCOMP_IOCTL_NOTIF_RECV, &n) < 0)
        return; /* the process has been killed meanwhile */
    int error = judge(s, &n);
    struct seccomp_notif_resp response = {
        .id = n.id, .error = -error, .flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    (void)ioctl(s->listener, SECCOMP_IOCTL_NOTIF_SEND, &response); /* the same */
}

static void write_list(const struct supervisor *s, const char *path)
{
    char temporary[4096];

    (void)snprintf(temporary, sizeof(temporary), "%s.new", path);
    FILE *file = fopen(temporary, "we");
    if (!file)
        die(temporary);
    if (s->wanted.count)
        (void)fprintf(file, "%s\n", s->has_failed ? "failed" : "never");
    for (size_t i = 0; i < s->n_kinds; i++)
        (void)fprintf(file, "%s %s %lx %u\n", s->kinds[i].role, s->kinds[i].call, s->kinds[i].site,
                      s->kinds[i].count);
    if (fclose(file) || rename(temporary, path))
        die(path);
}

static _Noreturn void supervise(struct supervisor *s, const char *list)
{
    (void)prctl(PR_SET_NAME, "supervisor");
    (void)setsid(); /* signals for the program's group are not meant for it */
    for (;;) {
        struct pollfd p = {.fd = s->listener, .events = POLLIN};

        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            die("poll");
        if (p.revents & POLLIN)
            answer(s);
        else if (p.revents)
            break; /* no process has the filter any more */
    }
    write_list(s, list);
    _exit(0);
}

/* ---- start ---- */

/* What program and supervisor share before the program begins. */
struct handshake {
    _Atomic int listener; /* its number in the program's process; -1: not yet */
    _Atomic bool is_taken;
};

/* A child of a child that has ended: not the program's. */
static void start_supervisor(struct supervisor *s, struct handshake *h, const char *list)
{
    pid_t program = getpid();
    pid_t middle = fork();

    if (middle < 0)
        die("fork");
    if (middle > 0) {
        (void)waitpid(middle, NULL, 0);
        return;
    }
    if (fork() != 0)
        _exit(0);
    while (h->listener < 0)
        (void)usleep(1000);
    s->program = program;
    int pidfd = (int)syscall(SYS_pidfd_open, program, 0u);
    s->listener = (int)syscall(SYS_pidfd_getfd, pidfd, h->listener, 0u);
    if (s->listener < 0)
        die("pidfd_getfd");
    (void)close(pidfd);
    for (int fd = 0; fd < 3; fd++)
        if (fd != s->listener)
            (void)close(fd); /* who reads the program's output waits for its end */
    h->is_taken = true;
    supervise(s, list);
}

int main(int argc, char **argv)
{
    static struct supervisor s;
    bool has_failure = argc > 8 && strcmp(argv[7], "--") == 0;
    char **command = argv + (has_failure ? 8 : 3);

    if (argc < 4 || strcmp(command[-1], "--") != 0 || !realpath(command[0], s.exe))
        die("usage: failing_call LIST [ROLE CALL SITE N ERRNO] -- PROGRAM [ARG...]");
    if (has_failure) {
        (void)snprintf(s.wanted.role, sizeof(s.wanted.role), "%s", argv[2]);
        (void)snprintf(s.wanted.call, sizeof(s.wanted.call), "%s", argv[3]);
        s.wanted.site = strtoull(argv[4], NULL, 16);
        s.wanted.count = (unsigned)atoi(argv[5]);
        s.error = atoi(argv[6]);
    }
    struct handshake *h = mmap(NULL, sizeof(*h), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (h == MAP_FAILED)
        die("mmap");
    h->listener = -1;
    start_supervisor(&s, h, argv[1]);
    int listener = install_filter();
    if (listener < 0)
        die("seccomp");
    h->listener = listener;
    while (!h->is_taken)
        continue;
    (void)close(listener);
    (void)execv(command[0], command);
    die(command[0]);
}
