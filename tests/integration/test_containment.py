"""The cgroup of a generation: where it is made, what it contains, and that nothing of it stays."""

import ctypes
import errno
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import time

import pytest

import cgroups
import jobs
import launches
import strict
from system_calls import refuse_system_call

CLONE3 = 435
KCMP = {"x86_64": 312, "aarch64": 272}
KCMP_VM = 1
NO_CGROUP_KILL = {"LD_PRELOAD": str(jobs.build_folder() / "tests/fakes/libno_cgroup_kill.so")}
UNCONTAINED = ["unshare", "-m", "sh", "-c", 'umount -l /sys/fs/cgroup/unified 2>/dev/null || umount -l /sys/fs/cgroup; exec "$@"', "-"]


@pytest.fixture
def group():
    if not cgroups.can_delegate():
        strict.skip("no cgroup (v2) can be made here")
    with cgroups.delegated() as path:
        yield path


def start(group, *args, environment=None, refused=None, **more):
    def prepare():
        cgroups.enter(group)
        if refused:
            refuse_system_call(refused, 38)
    return launches.start(["--standalone", *args], environment, preexec_fn=prepare, stderr=subprocess.PIPE, text=True, **more)


def script(tmp_path, text):
    path = tmp_path / "worker.sh"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def cgroup_of(pid):
    return re.search(r"^0::(.*)$", pathlib.Path(f"/proc/{pid}/cgroup").read_text(), re.M).group(1)


@pytest.mark.sanitize
def test_each_generation_has_a_cgroup_that_goes_with_it(group, tmp_path):
    worker = script(tmp_path, "grep ^0:: /proc/self/cgroup >>cgroups\n[ $TORCHELASTIC_RESTART_COUNT = 1 ]\n")
    p = start(group, "--nproc-per-node=2", "--max-restarts=1", worker, cwd=tmp_path)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    names = [line.rpartition("/")[2] for line in (tmp_path / "cgroups").read_text().splitlines()]
    assert 2 <= len(names) <= 4 and len(set(names)) == 2, names
    assert all(re.fullmatch("crun-[0-9a-f]{16}", name) for name in names), names
    assert cgroups.below(group) == []
    assert launches.living(p.tag) == {}


def run_family(group, **more):
    """A job whose ranks have relatives, and all processes of it."""
    p = start(group, "--nproc-per-node=2", "--no-python", launches.family(), **more)
    jobs.wait_for(lambda: list(launches.living(p.tag).values()).count("relative") >= 6 and p.poll() is None)
    return p, launches.guardian(p.pid)


def assert_nothing_stays(p, group):
    assert launches.wait_until_gone(p.tag, 30) == {}
    jobs.wait_for(lambda: cgroups.below(group) == [])


HOW = {"clone3 and cgroup.kill": {}, "no clone3": {"refused": CLONE3}, "no cgroup.kill": {"environment": NO_CGROUP_KILL},
       "no close_range": {"refused": 436}}


@pytest.mark.parametrize("how", HOW)
def test_double_kill_of_each_kind_of_kernel(group, how):
    if jobs.is_sanitized() and "environment" in HOW[how]:
        pytest.skip("AddressSanitizer is to be the first library")
    p, guardian = run_family(group, **HOW[how])
    ranks = [pid for pid, name in launches.living(p.tag).items() if name in ("family", "relative")]
    assert {cgroup_of(pid) for pid in ranks if launches.state(pid)} == {f"{cgroup_of(p.pid)}/{cgroups.below(group)[0]}"}
    for pid in (p.pid, guardian):
        os.kill(pid, signal.SIGSTOP)
    for pid in (p.pid, guardian):
        os.kill(pid, signal.SIGKILL)
    p.communicate()
    assert_nothing_stays(p, group)


def test_double_kills():
    """The short form of the soak test double-kill."""
    p = jobs.run_soak("double_kill.py", "--rounds=12", "--patience=30")
    if p.returncode == 2:
        strict.skip(p.stdout)
    assert p.returncode == 0, p.stdout + p.stderr


@pytest.mark.skipif(jobs.is_sanitized(), reason="AddressSanitizer is to be the first library")
@pytest.mark.parametrize("memory_max", ["max", "1073741824"])
def test_worker_reads_the_limits_in_its_cgroup(group, tmp_path, memory_max):
    """A cgroup whose files show no limit is not made below one that has a limit: programs size their pools by these files."""
    (tmp_path / "memory.max").write_text(memory_max + "\n")
    p = start(group, "--no-python", "sh", "-c", "cat /proc/self/cgroup; sleep 600 & setsid sleep 600 & exit 0",
              environment={"LD_PRELOAD": str(jobs.build_folder() / "tests/fakes/liblimited_cgroup.so"),
                           "FAKE_MEMORY_MAX": str(tmp_path / "memory.max")}, stdout=subprocess.PIPE)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    own = re.search(r"^0::(.*)$", out, re.M).group(1).rpartition("/")[2]
    assert re.fullmatch("crun-[0-9a-f]{16}" if memory_max == "max" else group.name, own), out
    assert_nothing_stays(p, group)


@pytest.mark.parametrize("victim", ["crun", "guardian", "keeper"])
def test_single_kills(group, victim):
    """Without its keeper a job goes on and ends as ever."""
    p, guardian = run_family(group)
    keeper = next(pid for pid in jobs.children(guardian) if launches.state(pid)[0] == "job-keeper")
    os.kill({"crun": p.pid, "guardian": guardian, "keeper": keeper}[victim], signal.SIGKILL)
    if victim == "keeper":
        time.sleep(0.1)
        assert p.poll() is None
        p.terminate()
    p.communicate(timeout=60)
    assert p.returncode != 0
    assert_nothing_stays(p, group)


@pytest.mark.skipif(platform.machine() not in KCMP, reason="the number of kcmp() is not known here")
def test_keeper_has_memory_of_its_own(group):
    """The OOM killer ends every process that shares the memory of the one it has chosen."""
    p, guardian = run_family(group)
    keeper = next(pid for pid in jobs.children(guardian) if launches.state(pid)[0] == "job-keeper")
    compare = ctypes.CDLL(None, use_errno=True).syscall
    order = compare(KCMP[platform.machine()], guardian, keeper, KCMP_VM, 0, 0)
    if order < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
        strict.skip("the kernel does not compare processes (kcmp)")
    assert order > 0
    p.terminate()
    p.communicate(timeout=60)
    assert_nothing_stays(p, group)


def names_of(pid):
    """What `pkill` and `pkill -f` look at; empty for a process that has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text() + pathlib.Path(f"/proc/{pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_broad_kill(group):
    """`pkill -9 -f crun` finds crun alone, and so does one of the script's name with the workers."""
    p, _ = run_family(group)
    assert [pid for pid in launches.living(p.tag) if "crun" in names_of(pid)] == [p.pid]
    for pid in [pid for pid in launches.living(p.tag) if "family" in names_of(pid)]:
        jobs.kill(pid, signal.SIGKILL)  # some have ended by the end of another one
    p.communicate()
    assert_nothing_stays(p, group)


def test_cgroup_that_a_worker_has_made(group, tmp_path):
    """A nested crun, or a container runtime, is killed with everything in it."""
    worker = script(tmp_path, f"own=$(sed -n s,^0::,{cgroups.unified()},p /proc/self/cgroup)\n"
                    "mkdir $own/a $own/a/b\n"
                    "(echo 0 >$own/a/b/cgroup.procs; exec setsid sleep 600) &\n"
                    "until grep -q . $own/a/b/cgroup.procs; do sleep 0.01; done\ntouch up\nsleep 600\n")
    p = start(group, worker, cwd=tmp_path)
    jobs.wait_for((tmp_path / "up").exists)
    for pid in (launches.guardian(p.pid), p.pid):
        os.kill(pid, signal.SIGKILL)
    p.communicate()
    assert_nothing_stays(p, group)


def test_without_proc(group, tmp_path):
    """What left its session is found by the cgroup, and ended; crun has nothing to warn of."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0 or jobs.is_sanitized():
        strict.skip("needs a mount namespace, and a program without a sanitizer, which needs /proc")
    worker = script(tmp_path, "setsid sleep 600 &\nsleep 0.1\n")
    begin = time.monotonic()
    p = launches.run(["unshare", "-m", "sh", "-c", f'umount -l /proc; exec {jobs.crun()} "$@"', "-", "--standalone", "--shutdown-timeout=2", worker],
                     preexec_fn=lambda: cgroups.enter(group), capture_output=True, text=True)
    assert p.returncode == 0 and "/proc" not in p.stderr, p.stderr
    assert time.monotonic() - begin < 30
    assert_nothing_stays(p, group)


@pytest.mark.parametrize("contained", [True, False])
def test_status_names_the_containment(group, tmp_path, contained):
    if not contained and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        strict.skip("needs a mount namespace")
    worker = script(tmp_path, "touch up\nsleep 600\n")
    folder = f"/tmp/containment-{os.getpid()}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    p = launches.run_in_background([*([] if contained else UNCONTAINED), jobs.crun(), "--standalone", worker],
                                   {"XDG_RUNTIME_DIR": folder}, cwd=tmp_path, preexec_fn=lambda: cgroups.enter(group))
    jobs.wait_for((tmp_path / "up").exists)
    crunctl = [str(jobs.build_folder() / "launcher/crunctl")]
    environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
    wanted = "cgroup" if contained else "process tree"
    shown = jobs.wait_for(lambda: jobs.run([*crunctl, "--json", "status"], env=environment).stdout)
    assert json.loads(shown)["containment"] == wanted
    assert f"contained by its {wanted}" in jobs.run([*crunctl, "status"], env=environment).stdout
    p.terminate()
    p.communicate(timeout=60)
    subprocess.run(["rm", "-rf", folder], check=True)
    assert_nothing_stays(p, group)


def test_group_that_is_not_writable(group):
    """Another user's crun in root's group: the process tree contains the job, and nothing is printed about it."""
    if os.geteuid() != 0:
        strict.skip("needs another user")
    p = launches.run([jobs.crun(), "--standalone", "--no-python", "grep", "^0::", "/proc/self/cgroup"], cwd="/", capture_output=True,
                     text=True, environment={"HOME": "/nonexistent", "TMPDIR": "/tmp"},
                     preexec_fn=lambda: (cgroups.enter(group), os.setgid(65534), os.setuid(65534)))
    assert p.returncode == 0 and p.stderr == "", p.stderr
    assert p.stdout.strip().endswith(group.name)
