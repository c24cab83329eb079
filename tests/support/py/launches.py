"""Launches of crun that a test can look into from outside: every process of one carries a tag in its environment."""

import ctypes
import os
import pathlib
import signal
import subprocess
import time
import uuid

import jobs

TAG = "TEST_LAUNCH"
_begun = []  # tags of the launches since end_all()


def family():
    return str(jobs.build_folder() / "tests" / "workers" / "family")


def new_tag():
    _begun.append(str(uuid.uuid4()))
    return _begun[-1]


def start(args, environment=None, **more):
    """Starts crun with args; the process has .tag."""
    tag = new_tag()
    process = subprocess.Popen([jobs.crun(), *map(str, args)], stdin=subprocess.DEVNULL,
                               env={**os.environ, **(environment or {}), TAG: tag}, **more)
    process.tag = tag
    return process


def run_in_background(command, environment=None, **more):
    """The same for any command that leads to crun."""
    tag = new_tag()
    process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **(environment or {}), TAG: tag}, **more)
    process.tag = tag
    return process


def run(command, environment=None, **more):
    """The same, to the end."""
    tag = str(uuid.uuid4())
    process = subprocess.run([*map(str, command)], stdin=subprocess.DEVNULL, timeout=120,
                             env={**os.environ, **(environment or {}), TAG: tag}, **more)
    process.tag = tag
    return process


def state(pid):
    """(name, state letter), or None when it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat[stat.index("(") + 1: stat.rindex(")")], stat[stat.rindex(")") + 2]


def living(*tags):
    """pid -> name of the processes with one of these tags that live; zombies do not."""
    wanted = {f"{TAG}={tag}".encode() for tag in tags}
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            raw = pathlib.Path(entry.path, "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        now = state(entry.name)
        if not wanted.isdisjoint(raw.split(b"\0")) and now and now[1] not in "ZX":
            found[int(entry.name)] = now[0]
    return found


def wait_until_gone(tag, timeout, also_fine=lambda name: False):
    """What is left of the launch after at most timeout seconds: {} is what one hopes for."""
    deadline = time.monotonic() + timeout
    while True:
        left = {pid: name for pid, name in living(tag).items() if not also_fine(name)}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.005)


def end_all():
    """Ends what a test that failed has left of its launches. The guardian of a killed crun ends the workers; what is left
    after five seconds is killed."""
    begin = time.monotonic()
    while _begun and (left := living(*_begun)) and time.monotonic() < begin + 10:
        is_late = time.monotonic() > begin + 5
        for pid, name in left.items():
            jobs.kill(pid, signal.SIGKILL if is_late or name == "crun" else signal.SIGCONT)
        time.sleep(0.01)
    _begun.clear()


def adopt_orphans():
    """Orphans become this process's children, not those of process 1, which may be slow to wait for many."""
    PR_SET_CHILD_SUBREAPER = 36
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def kill_all(process):
    """Ends what is left of a launch and waits for crun. With adopt_orphans() nothing escapes: whoever loses its
    parent becomes our child, and children are killed until there are none."""
    for pid in living(process.tag):
        jobs.kill(pid, signal.SIGKILL)
    code = process.wait()
    while True:
        for pid in jobs.children(os.getpid()):
            jobs.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return code


def request_trace(request, pid):
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(request, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def seize(pid):
    """Makes this process the tracer of pid, which runs on. Once it has ended, its parent cannot reap it before this
    process has waited for it."""
    PTRACE_SEIZE = 0x4206
    request_trace(PTRACE_SEIZE, pid)


def trace(pid):
    """Makes this process the tracer of pid, which stands still from then on, whatever signal but SIGKILL it gets."""
    PTRACE_INTERRUPT = 0x4207
    seize(pid)
    request_trace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, 0)


def untrace(pid):
    PTRACE_DETACH = 17
    request_trace(PTRACE_DETACH, pid)


def cpu_seconds(pid):
    """What the threads of a process have used so far, in user and kernel mode."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def guardian(crun_pid):
    children = jobs.children(crun_pid)
    return children[0] if children else None
