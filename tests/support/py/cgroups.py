"""Control groups of a test's own, where the machine lets it make them."""

import contextlib
import os
import pathlib
import time

ROOT = pathlib.Path("/sys/fs/cgroup")


def _v2_has(controller):
    try:
        return controller in (ROOT / "cgroup.controllers").read_text().split()
    except OSError:
        return False


@contextlib.contextmanager
def _made(path):
    path.mkdir()
    try:
        yield path
    finally:
        for _ in range(500):  # the last process may still be on its way out
            try:
                path.rmdir()
                break
            except OSError:
                time.sleep(0.01)


def can(what):
    """Whether "memory" or "freezer" groups can be made here."""
    base = ROOT / what if (ROOT / what).is_dir() else ROOT
    if base == ROOT and (what == "freezer" or not _v2_has(what)):
        return False
    probe = base / f"test-{os.getpid()}-probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return base != ROOT or what in (ROOT / "cgroup.subtree_control").read_text().split()


@contextlib.contextmanager
def memory(limit):
    """A group whose processes may use this many bytes; its path."""
    v1 = (ROOT / "memory").is_dir()
    with _made((ROOT / "memory" if v1 else ROOT) / f"test-{os.getpid()}") as path:
        (path / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit))
        for name, value in (("memory.memsw.limit_in_bytes", str(limit)), ("memory.swap.max", "0")):
            with contextlib.suppress(OSError):
                if (path / name).exists():
                    (path / name).write_text(value)
        yield path


@contextlib.contextmanager
def cpu(cores):
    """A group whose processes together get so many cores; its path."""
    v1 = (ROOT / "cpu").is_dir()
    period_us = 100000
    with _made((ROOT / "cpu" if v1 else ROOT) / f"test-{os.getpid()}") as path:
        quota_us = int(cores * period_us)
        if v1:
            (path / "cpu.cfs_period_us").write_text(str(period_us))
            (path / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (path / "cpu.max").write_text(f"{quota_us} {period_us}")
        yield path


@contextlib.contextmanager
def frozen(*pids):
    """As long as this lasts, not even SIGKILL ends these processes (the freezer of cgroup v1)."""
    with _made(ROOT / "freezer" / f"test-{os.getpid()}") as path:
        for pid in pids:
            (path / "cgroup.procs").write_text(str(pid))
        (path / "freezer.state").write_text("FROZEN")
        try:
            for _ in range(3000):
                if (path / "freezer.state").read_text().strip() == "FROZEN":
                    break
                time.sleep(0.01)
            yield
        finally:
            (path / "freezer.state").write_text("THAWED")


def unified():
    """Where cgroup v2 is mounted, perhaps beside v1; None: nowhere."""
    for path in (ROOT, ROOT / "unified"):
        if (path / "cgroup.controllers").exists():
            return path
    return None


def own():
    """The folder of this process in v2, or None."""
    name = next((line[3:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    path = name and unified() and unified() / name.lstrip("/")
    return path if path and path.is_dir() else None


def can_delegate():
    probe = own() and own() / f"test-{os.getpid()}-probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except (AttributeError, OSError):
        return False
    return True


@contextlib.contextmanager
def delegated():
    """A v2 group for crun and the groups that it makes below; its path."""
    with _made(own() / f"test-{os.getpid()}-{time.monotonic_ns()}") as path:
        yield path


def below(path):
    """The names of the groups in one."""
    return [entry.name for entry in path.iterdir() if entry.is_dir()]


def enter(path):
    """For preexec_fn: the process about to be executed becomes a member."""
    (path / "cgroup.procs").write_text(str(os.getpid()))
