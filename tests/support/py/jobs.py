"""Running `crun ... train ...` and looking at what it left: shared by tests and soak tests."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

# Tests compare lines of crun as they are without the time; test_crun_output.py has the one on it.
os.environ.setdefault("PET_TIMESTAMPS", "no")

# The history of the jobs that tests start is not the user's.
os.environ.setdefault("XDG_STATE_HOME", f"/tmp/crun-tests-{os.getuid()}/state")

ROOT = pathlib.Path(__file__).resolve().parents[3]
SUPPORT = ROOT / "tests/support/py"
SOAK = ROOT / "tests/soak.d"
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
               "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def within(seconds):
    """A fixture's body: a test that hangs fails, instead of all that come behind it."""
    def give_up(*_):
        raise TimeoutError(f"the test has not ended within {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def build_folder():
    return pathlib.Path(os.environ.get("CRUN_BUILD", ROOT / "build")).resolve()


def crun():
    return str(build_folder() / "launcher" / "crun")


def train():
    return str(build_folder() / "worker-runtime" / "train")


def collectives():
    return str(build_folder() / "tests" / "bench" / "collectives")


def train_job(n_workers, *train_args, program="mnist", crun_args=()):
    return [crun(), "--standalone", f"--nproc-per-node={n_workers}", *crun_args, train(), program,
            *map(str, train_args)]


def torch_job(n_workers, *train_args, program="mnist"):
    """The same recipe in PyTorch DDP, started by crun, too."""
    return [crun(), "--standalone", f"--nproc-per-node={n_workers}", str(ROOT / f"tests/workers/torch_{program}.py"),
            *map(str, train_args)]


def run(args, timeout=300, **more):
    return subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=timeout, **more)


def run_soak(name, *args, **more):
    """Runs a soak test's program by its file name."""
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
    return run([sys.executable, str(SOAK / name), *map(str, args)],
               env={**os.environ, "CRUN_BUILD": str(build_folder()), "PYTHONPATH": path}, **more)


def is_stop_notice(line):
    """What crun prints when it begins to stop the workers, before the report."""
    return line.startswith("crun: ") and ("; stopping the other worker" in line or "; stopping the workers" in line or " s to end; " in line)


def assert_one_sentence(p, code, *words):
    """Exactly one line on stderr, with these words in it, and this exit code."""
    lines = [line for line in p.stderr.splitlines() if line.strip()]
    assert p.returncode == code, p.stderr
    assert len(lines) == 1, p.stderr
    for word in words:
        assert word in lines[0], lines[0]


def whole_lines(path):
    """The JSON lines of a file that somebody may be writing; none where there is no file yet."""
    path = pathlib.Path(path)
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def read_metrics(path):
    """(epoch lines, resume lines)"""
    lines = whole_lines(path)
    return [m for m in lines if "param_crc32c" in m and "epoch" in m], [m for m in lines if "resumed" in m]


def read_lines(path, field):
    """Metrics lines that have this field."""
    return [m for m in whole_lines(path) if field in m]


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def is_sanitized(program=None):
    """True for a program with a sanitizer, which has memory and processes of its own and reads its options from /proc."""
    code = pathlib.Path(program or crun()).read_bytes()
    return b"__asan_init" in code or b"__tsan_init" in code


def preload(name, **environment):
    """The environment of a program that runs with one of tests/fakes. Skips the test of a program with a sanitizer."""
    if is_sanitized():
        import pytest  # soak tests run without it
        pytest.skip("a sanitizer has to be the first library that is loaded")
    return {"LD_PRELOAD": str(build_folder() / f"tests/fakes/lib{name}.so"), **{k: str(v) for k, v in environment.items()}}


def descendants(pid):
    found = []
    for child in children(pid):
        found.append(child)
        found += descendants(child)
    return found


def environment(pid):
    """Waits a moment for one that is just executing another program: it shows none."""
    try:
        for _ in range(100):
            raw = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            if raw or pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                break
            time.sleep(0.001)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return dict(e.split("=", 1) for e in raw.decode(errors="replace").split("\0") if "=" in e)


def workers(crun_pid):
    """rank -> pid of the workers below crun that run now."""
    found = {}
    for pid in descendants(crun_pid):
        rank = environment(pid).get("RANK")
        if rank is not None:
            found.setdefault(int(rank), pid)
    return found


def workers_named(crun_pid, name):
    """rank -> pid of the processes below crun that run this program."""
    found = {}
    for pid in descendants(crun_pid):
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found[int(environment(pid)["RANK"])] = pid
        except (OSError, KeyError):
            pass  # it has ended meanwhile
    return found


def wait_until(condition, timeout=60, interval=0.01):
    """What the condition returned at last: False or the like where it never held."""
    deadline = time.monotonic() + timeout
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(interval)
    return value


def wait_for(condition, timeout=60, interval=0.002):
    if value := wait_until(condition, timeout, interval):
        return value
    raise AssertionError(f"waited for {timeout} s")


def name(pid):
    """The name of a process; "" when it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
        return True
    except ProcessLookupError:
        return False


def ranks_in(report):
    """All ranks in a report of stacks. A tool that is not ready in time leaves its rank in a group of its own."""
    listed = [part.split("-") for group in re.findall(r"\branks? (\d[\d, -]*) on ", report) for part in group.split(", ")]
    return sorted(rank for part in listed for rank in range(int(part[0]), int(part[-1]) + 1))
