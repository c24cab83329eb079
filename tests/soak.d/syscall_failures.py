"""Every system call of crun, its guardian, its output thread and crund fails once, each in a run of its own.

A run without failures lists the calls: which process made them, from which function, how often (tests/fakes/
failing_call.c). Then, for each of these kinds of call and each error that the system may answer it with, the program is
run again and that call fails: the first one of the kind, the second, and the last. Whatever happens then,

  - the program ends within BOUND_S seconds, and so do the other nodes of its job once they are asked to,
  - it is not ended by a signal, and no process of it is,
  - no process is left, and no file in the folder for temporary files,
  - either the job has succeeded, and every worker has done its work, or the exit code is that of a failure and a message
    names the cause.

Usage: syscall_failures.py [--sample SECONDS] [--seed N] [--at-once N] [--scenario NAME] [--only SCENARIO,ROLE,CALL,SITE,N,ERRNO]
"""

import argparse
import contextlib
import errno
import functools
import multiprocessing
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import jobs
import launches
import nodes

BOUND_S = 12
LEFT_S = 5  # for processes to be reaped, and ports to be free

# What the system answers these calls with, beside those that mean a wrong argument. A call that is not here is not
# failed. EINTR: without handlers that return, a call is interrupted when the process is stopped and continued.
ERRORS = {
    "read@file": "EIO", "read@proc": "EIO ENOMEM", "write@file": "ENOSPC EIO", "openat": "EMFILE EIO", "open": "EMFILE EIO",
    "openat+": "ENOSPC EACCES", "open+": "ENOSPC EACCES", "fstat": "EIO", "newfstatat": "EIO ENOMEM", "stat": "EIO",
    "statx": "EIO", "poll": "ENOMEM EINTR", "mmap": "ENOMEM", "mprotect": "ENOMEM", "pread64": "EIO",
    "pwrite64": "ENOSPC", "writev@file": "ENOSPC", "readv@file": "EIO", "write@socket": "ENOBUFS EPIPE", "writev@socket": "ENOBUFS EPIPE",
    "read@socket": "ENOMEM ECONNRESET", "access": "EIO", "pipe2": "EMFILE ENFILE", "mremap": "ENOMEM",
    "dup": "EMFILE", "dup2": "EMFILE", "dup3": "EMFILE", "nanosleep": "EINTR", "clock_nanosleep": "EINTR",
    "socket": "EMFILE ENOBUFS", "connect": "ECONNREFUSED EADDRNOTAVAIL", "accept4": "EMFILE ECONNABORTED",
    "sendto": "ENOBUFS EPIPE", "recvfrom": "ENOMEM ECONNRESET", "sendmsg": "ENOBUFS EPIPE", "recvmsg": "ENOMEM ECONNRESET",
    "bind": "EADDRINUSE EACCES", "listen": "EADDRINUSE", "getsockname": "ENOBUFS", "getpeername": "ENOTCONN",
    "socketpair": "EMFILE ENFILE", "setsockopt": "ENOPROTOOPT ENOMEM", "getsockopt": "ENOPROTOOPT",
    "clone": "EAGAIN ENOMEM", "clone3": "EAGAIN ENOMEM", "fork": "EAGAIN ENOMEM", "vfork": "EAGAIN ENOMEM",
    "execve": "ENOMEM ETXTBSY ESTALE", "wait4": "EINTR", "waitid": "EINTR", "kill": "EPERM", "flock": "EINTR ENOLCK",
    "fsync": "EIO ENOSPC", "fdatasync": "EIO", "ftruncate": "ENOSPC", "getdents64": "EIO", "getcwd": "ENOENT",
    "rename": "ENOSPC EIO", "renameat": "EIO", "renameat2": "EIO", "mkdir": "ENOSPC EACCES", "mkdirat": "ENOSPC",
    "rmdir": "EIO", "unlink": "EIO", "unlinkat": "EIO", "readlink": "EIO", "readlinkat": "EIO", "prctl": "EPERM",
    "setrlimit": "EPERM", "prlimit64": "EPERM", "sched_setaffinity": "EINVAL", "sched_getaffinity": "EINVAL",
    "epoll_create1": "EMFILE", "epoll_ctl": "ENOMEM ENOSPC", "epoll_wait": "EINTR", "epoll_pwait": "EINTR",
    "eventfd2": "EMFILE", "signalfd4": "EMFILE", "timerfd_create": "EMFILE", "inotify_init1": "EMFILE",
    "inotify_add_watch": "ENOSPC", "memfd_create": "EMFILE ENOSYS", "getrandom": "ENOSYS EINTR", "pidfd_open": "EMFILE ENOSYS",
    "close_range": "ENOSYS ENOMEM", "setsid": "EPERM", "sysinfo": "EFAULT", "io_uring_setup": "ENOSYS",
    f"fcntl:{1030}": "EMFILE",
}

# (call, function of ours that led to it): libuv answers a failure with abort(), for this reason. What has to hold then is
# that nothing is left.
LIBUV_ABORTS = {
    ("pipe2", None): "uv_loop_init() opens the pipe of its signals; crun has just seen that descriptors are free",
    ("clone3", "start_state_thread"): "the only thread of the pool, started by crund before it serves; it has just seen that threads can be had",
    ("mmap", "start_state_thread"): "its stack",
    ("mprotect", "start_state_thread"): "its stack",
    ("epoll_ctl", None): "uv__io_poll() cannot go on without a descriptor that it was asked to watch",
}

# Between nodes these mean a broken connection, which is made again where the protocol can: torchrun's static rendezvous
# cannot, and waits for the other nodes until it is stopped. So the program gets SIGTERM after a while, and has to end.
OF_CONNECTIONS = ("write@socket", "writev@socket", "read@socket", "connect", "accept4", "getsockopt", "sendto", "recvfrom", "sendmsg",
                  "recvmsg")
# What the removal of a temporary folder calls: where one of them fails, the folder stays.
OF_REMOVAL = ("rmdir", "unlink", "getdents64", "openat")
# Errors that the other side causes, where it cannot: the process there is alive.
IMPOSSIBLE = {("child", "sendto", "EPIPE"), ("child", "recvmsg", "ECONNRESET")}
# pthread_create(3) turns the error of these calls into EAGAIN.
OF_THREADS = ("mmap", "mprotect", "clone", "clone3")


# ---- scenarios: each yields what it has started; the program under test is the first

WORKER = """\
echo out $RANK $TORCHELASTIC_RESTART_COUNT; echo err $RANK >&2
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || [ $RANK = 1 ] || { echo '{"message":"boom"}' >"$TORCHELASTIC_ERROR_FILE"; exit 3; }
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 20
touch done.$RANK
"""
QUICK = "echo out $RANK; touch done.$RANK\n"
STOPPED = "trap 'touch done.$RANK; exit 0' TERM; touch up.$RANK; while :; do sleep 0.02; done\n"
GROUP = ("--shutdown-timeout=2", "--restart-pause=0", "--no-python")


class Run:
    """One run of a scenario in a folder of its own."""

    def __init__(self, folder, failure):
        self.folder = pathlib.Path(folder)
        self.failure = failure
        self.started = []
        self.list = self.folder / "calls"
        (self.folder / "tmp").mkdir()

    def start(self, command, name, wrapped):
        tool = jobs.build_folder() / "tests/fakes/failing_call"
        prefix = [tool, self.list, *(self.failure or ()), "--"] if wrapped else []
        process = subprocess.Popen([*map(str, prefix), *map(str, command)], stdin=subprocess.DEVNULL, cwd=self.folder,
                                   stdout=open(self.folder / f"{name}.out", "wb"), stderr=open(self.folder / f"{name}.err", "wb"),
                                   env={**os.environ, launches.TAG: str(self.folder), "TMPDIR": str(self.folder / "tmp"),
                                        "OMP_NUM_THREADS": "1"})
        process.name = name
        self.started.append(process)
        return process

    def crun(self, *args, name="crun", worker=WORKER, wrapped=True):
        return self.start([jobs.crun(), *args, *GROUP, "sh", "-c", worker], name, wrapped)

    def text(self, name):
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_line(self, process, name, what):
        jobs.wait_until(lambda: what in self.text(name) or process.poll() is not None, BOUND_S)
        return what in self.text(name)


def alone(run):
    run.crun("--standalone", "--nproc-per-node=2", "--max-restarts=1", "-t3", f"--log-dir={run.folder}/logs",
             f"--event-log={run.folder}/events")


def pipes(run):
    run.crun("--standalone", "--nproc-per-node=2", "--max-restarts=1", "-t3", "--log-dir=/dev/null")


def temporary(run):
    run.crun("--standalone", "--nproc-per-node=2", "--duplicate-stdout-filters=out", worker=QUICK)


def stopped(run):
    p = run.crun("--standalone", "--nproc-per-node=2", "-r3", f"--log-dir={run.folder}/logs", worker=STOPPED)
    jobs.wait_until(lambda: all((run.folder / f"up.{i}").exists() for i in range(2)) or p.poll() is not None, BOUND_S)
    jobs.kill(p.pid, signal.SIGTERM)


ROUNDS = "--rdzv-conf=join_timeout=8,last_call_timeout=1,node_timeout_ms=2000"


def node(run, rank, port, name, wrapped, *more):
    return run.crun("--nnodes=2", f"--node-rank={rank}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                    "--rdzv-id=calls", f"--rdzv-conf=is_host={int(rank == 0)},{ROUNDS.partition('=')[2]}", "--max-restarts=1", "-t3",
                    f"--log-dir={run.folder}/logs{rank}", *more, name=name, wrapped=wrapped)


def host(run):
    port = nodes.free_port()
    node(run, 0, port, "crun", True)
    node(run, 1, port, "peer", False)


def guest(run):
    port = nodes.free_port()
    node(run, 1, port, "crun", True)
    node(run, 0, port, "peer", False)


def static_node(run, rank, port, name, wrapped):
    run.crun("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-conf=join_timeout=8",
             "-r3", f"--log-dir={run.folder}/logs{rank}", name=name, worker=QUICK, wrapped=wrapped)


def static_host(run):
    port = nodes.free_port()
    static_node(run, 0, port, "crun", True)
    static_node(run, 1, port, "peer", False)


def static_guest(run):
    port = nodes.free_port()
    static_node(run, 1, port, "crun", True)
    static_node(run, 0, port, "peer", False)


def daemon(run):
    crund = run.start([jobs.build_folder() / "rendezvous/crund", "--listen", "127.0.0.1:0", "--state", run.folder / "state"],
                      "crund", True)
    if not run.wait_for_line(crund, "crund.out", "\n"):
        return
    port = run.text("crund.out").split()[-1].rpartition(":")[2]
    pair = [run.crun("--nnodes=2", f"--node-rank={i}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=calls",
                     f"--rdzv-conf=is_host=0,{ROUNDS.partition('=')[2]}", "--max-restarts=1", name=f"peer{i}", wrapped=False)
            for i in range(2)]
    jobs.wait_until(lambda: crund.poll() is not None or all(p.poll() is not None for p in pair), BOUND_S)
    jobs.kill(crund.pid, signal.SIGTERM)


SCENARIOS = {s.__name__: s for s in (alone, pipes, temporary, stopped, host, guest, static_host, static_guest, daemon)}
EXPECTED = {"stopped": 1}
N_DONE = {"static_host": 2, "static_guest": 2}


# ---- one run

def ends_within(process, seconds):
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False


def wait_for_program(run, may_wait):
    """The exit code of the program, and what was wrong with how it and its peers ended."""
    wrong = []
    program, *peers = run.started
    deadline = time.monotonic() + BOUND_S
    if not ends_within(program, BOUND_S) and may_wait:
        program.terminate()
    if not ends_within(program, BOUND_S if may_wait else 0):
        wrong.append("it hangs: " + " ".join(launches.living(str(run.folder)).values()))
        program.kill()
        program.wait()
    has_failed = program.returncode != 0
    for peer in peers:
        if ends_within(peer, max(0.1, 1 if has_failed else deadline - time.monotonic())):
            continue
        peer.terminate()
        if not ends_within(peer, BOUND_S):
            wrong.append(f"{peer.name} ignores SIGTERM")
            peer.kill()
            peer.wait()
        elif not has_failed and not may_wait:
            wrong.append(f"{peer.name} hangs")
    return program.returncode, wrong


def reap_orphans():
    """Adopted ones that have ended: thousands of them would slow down each look through /proc."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def what_is_left(run):
    left = launches.wait_until_gone(str(run.folder), LEFT_S)
    for pid in left:
        jobs.kill(pid, signal.SIGKILL)
    files = os.listdir(run.folder / "tmp")
    return [f"left: {left}"] * bool(left) + [f"files left: {files}"] * bool(files)


def is_libuv_abort(failure_name, function, code, text):
    known = (failure_name[0], function) in LIBUV_ABORTS or (failure_name[0], None) in LIBUV_ABORTS if failure_name else False
    return code == -signal.SIGABRT and known and "Assertion" not in text


def causes(call, error):
    return [getattr(errno, error)] + [errno.EAGAIN] * (call in OF_THREADS)


def judge(name, run, failure_name, function):
    """What is wrong, as texts."""
    call = failure_name[0] if failure_name else ""
    code, wrong = wait_for_program(run, call in OF_CONNECTIONS)
    left = [item for item in what_is_left(run) if not (item.startswith("files") and call in OF_REMOVAL)]
    program = run.started[0].name
    text = run.text(f"{program}.err")
    if is_libuv_abort(failure_name, function, code, text):
        return wrong + [item for item in left if not item.startswith("files left")]  # it had no chance to remove them
    wrong += left
    if code < 0:
        wrong.append(f"ended by signal {-code}")
    if re.search(r"killed from outside|Assertion|Sanitizer", text) and call != "kill":
        wrong.append("a process of it has crashed")
    n_done = sum((run.folder / f"done.{i}").exists() for i in range(2))
    if code == EXPECTED.get(name, 0):
        if name != "daemon" and n_done != 2 and code == 0:
            wrong.append(f"exit code 0, and {n_done} of 2 workers have done their work")
    elif code not in (1, 2) or not failure_name:
        wrong.append(f"exit code {code}")
    elif call not in OF_CONNECTIONS and not any(os.strerror(number) in text for number in causes(*failure_name)):
        wrong.append("the message does not name the cause")
    return wrong


def run_once(name, failure=None, failure_name=None, function=None):
    """(kinds of call, what is wrong, output)"""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Run(folder, failure)
        SCENARIOS[name](run)
        wrong = judge(name, run, failure_name, function)
        jobs.wait_until(run.list.exists, LEFT_S)
        reap_orphans()
        lines = run.text("calls").splitlines()
        output = "".join(f"  {p.name} {p.returncode}: {line}\n" for p in run.started
                         for line in (run.text(f"{p.name}.err") + run.text(f"{p.name}.out")[-500:]).splitlines())
    return lines, wrong, output


# ---- what fails

@functools.cache
def call_names():
    text = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    return {number: name for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}


def name_of(call):
    """"257+" is openat+, "72:1030" is fcntl:1030."""
    number = re.match(r"\d+", call)[0]
    return call_names()[number] + call[len(number):]


@functools.cache
def symbols(program):
    lines = subprocess.run(["nm", "-n", "--defined-only", program], capture_output=True, text=True, check=True).stdout.splitlines()
    return [(int(a, 16), n) for a, t, n in (line.split() for line in lines) if t in "tT"]


def function_at(name, site):
    import bisect
    table = symbols(str(jobs.build_folder() / "rendezvous/crund") if name == "daemon" else jobs.crun())
    at = bisect.bisect_right(table, (int(site, 16), "~")) - 1
    return table[at][1] if at >= 0 else "?"


def failures_of(name, lines):
    """All (role, call, site, n, errno name) of a run."""
    found = []
    for line in lines:
        role, call, site, count = line.split()
        for error in ERRORS.get(name_of(call), "").split():
            if (role, name_of(call), error) in IMPOSSIBLE:
                continue
            for n in sorted({1, min(2, int(count)), int(count)}):
                found.append((role, call, site, n, error))
    return found


def run_failure(name, item):
    """What is wrong, as text; or None."""
    role, call, site, n, error = item
    failure = [role, call, site, str(n), str(getattr(errno, error))]
    lines, wrong, output = run_once(name, failure, (name_of(call), error), function_at(name, site))
    if not wrong:
        return None, lines[:1] == ["failed"]
    return (f"--only {name},{','.join(map(str, item))}: {role} {name_of(call)} number {n} in {function_at(name, site)} fails with "
            f"{error}: {'; '.join(wrong)}\n{output}"), True


def run_failure_until(end, work):
    """The same; (None, None) after that time."""
    return run_failure(*work) if time.monotonic() < end else (None, None)


def take_turn(n_taken, n_turns):
    """At the start of each process that runs failures: it has orphans and ports of its own."""
    launches.adopt_orphans()
    with n_taken:
        nodes.share_ports(n_taken.value, n_turns)
        n_taken.value += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=float, help="seconds: scenarios and failures drawn by chance")
    parser.add_argument("--at-once", type=int, default=2 * os.cpu_count(), help="runs")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--scenario", action="append")
    parser.add_argument("--only")
    args = parser.parse_args()
    launches.adopt_orphans()
    if args.only:
        name, role, call, site, n, error = args.only.split(",")
        report, _ = run_failure(name, (role, call, site, int(n), error))
        print(report or "nothing is wrong")
        return bool(report)
    begin = time.monotonic()
    work = []
    draw = random.Random(args.seed)
    drawn = draw.sample(sorted(SCENARIOS), 4) if args.sample else SCENARIOS
    for name in args.scenario or drawn:
        lines, wrong, output = run_once(name)
        assert not wrong and lines, (name, wrong, output)
        items = failures_of(name, lines)
        print(f"{name}: {len(lines)} kinds of call, {len(items)} failures", flush=True)
        work += [(name, item) for item in items]
    if args.sample:
        print(f"seed {args.seed}")
        draw.shuffle(work)
    end = begin + args.sample if args.sample else float("inf")
    n_run = n_hit = n_wrong = 0
    turns = multiprocessing.get_context("fork")
    with turns.Pool(args.at_once, take_turn, (turns.Value("i"), args.at_once)) as pool:
        for report, hit in pool.imap_unordered(functools.partial(run_failure_until, end), work):
            n_run += hit is not None
            n_hit += bool(hit)
            if report:
                n_wrong += 1
                print(report, flush=True)
    print(f"{n_run} runs with one failed system call ({n_run - n_hit} in which that call was not made) in "
          f"{time.monotonic() - begin:.0f} s: {n_wrong} wrong")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
