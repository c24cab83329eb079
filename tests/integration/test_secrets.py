"""Secrets and keys show nowhere: not in core files, not in the memory that others can read, not in what a job writes or sends."""

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

import fabric as fabrics
import jobs
import nodes as lib
import strict
from job_secret import write_secret

SECRET = "a-secret-that-no-core-file-contains"
NOBODY = 65534


@pytest.fixture
def folder():
    """That every user may enter; tmp_path is closed to them."""
    with tempfile.TemporaryDirectory(prefix="crun-cores-") as name:
        os.chmod(name, 0o777)
        yield pathlib.Path(name)


def start(program, folder, has_secret, user=None):
    """A program that waits, with a secret or without, in a folder in which core files may be written."""
    port = lib.free_port()
    secret = write_secret(folder / "secret", SECRET)
    command = {"crun": [jobs.crun(), "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=cores"],
               "crund": [jobs.build_folder() / "rendezvous" / "crund", "--listen", f"127.0.0.1:{port}", "--sandbox=off"]}[program]
    if user:
        os.chown(secret, user, user)
    if has_secret:
        command.append(f"--secret-file={secret}")
    elif program == "crun":
        command.append("--security=open")
    if program == "crun":
        command += ["--no-python", "true"]

    def prepare():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
    p = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}, preexec_fn=prepare)
    jobs.wait_for(lambda: lib.can_connect(port) or p.poll() is not None)
    assert p.poll() is None
    return p


@pytest.mark.parametrize("program", ["crun", "crund"])
def test_core_files(folder, program):
    """A crash leaves a core file of a program that has no secret, and none of one that has."""
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if "/" in pattern or pattern.startswith("|") or not pattern:
        pytest.skip(f"core files go elsewhere: {pattern}")
    if jobs.is_sanitized():
        pytest.skip("AddressSanitizer writes no core files")
    for has_secret in (False, True):
        p = start(program, folder, has_secret)
        p.send_signal(signal.SIGABRT)
        assert p.wait(60) == -signal.SIGABRT
        cores = list(folder.glob(pattern.partition("%")[0] + "*"))
        assert (cores == []) == has_secret, cores
        for core in cores:
            core.unlink()


READ_MEMORY = "import sys; open(f'/proc/{sys.argv[1]}/mem', 'rb', 0)"


@pytest.mark.parametrize("program", ["crun", "crund"])
def test_memory_is_closed_to_processes_of_the_same_user(folder, program):
    """Workers, say: they have the user of crun, and no secret."""
    if os.geteuid() != 0:
        strict.skip("needs another user")
    yama = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
    if yama.exists() and yama.read_text().strip() != "0":
        pytest.skip("Yama closes every memory")
    for has_secret in (False, True):
        p = start(program, folder, has_secret, NOBODY)
        got = subprocess.run(["/usr/bin/python3", "-c", READ_MEMORY, str(p.pid)], capture_output=True, text=True, timeout=60, cwd="/",
                             user=NOBODY, group=NOBODY, extra_groups=[])
        p.kill()
        p.wait()
        assert (got.returncode != 0) == has_secret, got.stderr
        assert not has_secret or "PermissionError" in got.stderr


def test_root_s_core_has_no_secret(folder):
    """gcore by root, which nothing hinders: the secret itself is in memory that belongs to no core file."""
    gcore = subprocess.run(["which", "gcore"], capture_output=True, text=True).stdout.strip()
    if not gcore or os.geteuid() != 0 or jobs.is_sanitized():
        pytest.skip("needs gdb, root, and a program without a sanitizer")
    for program in ("crun", "crund"):
        p = start(program, folder, True)
        subprocess.run([gcore, "-o", str(folder / "root"), str(p.pid)], capture_output=True, timeout=120, check=True)
        p.kill()
        p.wait()
        core = (folder / f"root.{p.pid}").read_bytes()
        assert b"--secret-file" in core and SECRET.encode() not in core


@pytest.mark.parametrize("plant", [False, True], ids=["search", "planted"])
def test_secrets_of_a_sealed_job(plant):
    """The soak test secrets; one that was put into an environment has to be found."""
    strict.skip_if(fabrics.missing())
    p = jobs.run_soak("secret_search.py", *(["--plant"] if plant else []))
    assert p.returncode == (1 if plant else 0), p.stdout + p.stderr
    assert ("found: secret, in environ of crun" in p.stdout) == plant, p.stdout
    if shutil.which("gdb"):
        assert "core of job-guardian" in p.stdout and ("found: secret, in core of crun" in p.stdout) == plant, p.stdout
    print(p.stdout)
