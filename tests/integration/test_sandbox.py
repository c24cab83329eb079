"""crund under its sandbox: what the kernel reports of it, that everything still works, and what a kernel without it gets."""

import ctypes
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import urllib.request

import pytest

import jobs
import nodes as lib
from crund import Crund
from job_secret import write_secret

BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
MAKE = pathlib.Path(__file__).resolve().parents[1] / "support" / "make_certificates.sh"
LANDLOCK_CREATE_RULESET, SECCOMP = 444, {"x86_64": 317, "aarch64": 277}.get(os.uname().machine)


def probe():
    got = subprocess.run([BUILD / "rendezvous" / "crund", "--listen=127.0.0.1:0", "--sandbox=require", "--announce-fd=9"],
                         capture_output=True, text=True, timeout=60)
    return "sanitizer" not in got.stderr and "has no" not in got.stderr and "takes no" not in got.stderr, got.stderr


POSSIBLE, WHY = probe()
needs_sandbox = pytest.mark.skipif(not POSSIBLE, reason=f"no sandbox here: {WHY.strip()}")


def tasks(pid):
    for task in os.listdir(f"/proc/{pid}/task"):
        yield dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/task/{task}/status").read_text().splitlines()
                   if ":\t" in line)


@needs_sandbox
def test_every_thread_is_bound(tmp_path):
    """With all that starts a thread: state, secrets, metrics."""
    secret = write_secret(tmp_path / "secret")
    with Crund(BUILD, "--sandbox=require", "--state", str(tmp_path / "state"), "--secret-file", str(secret),
               "--metrics-addr=127.0.0.1:0") as crund:
        line = crund.process.stdout.readline()
        port = int(line.rsplit(" ", 1)[1])
        jobs.wait_for(lambda: all(t["Seccomp"] == "2" and t["NoNewPrivs"] == "1" for t in tasks(crund.pid)))
        assert len(list(tasks(crund.pid))) >= 3
        assert "crund: " not in crund.log()
        assert b"crun_connections" in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read()
        assert crund.stop() == 0, crund.log()


@needs_sandbox
def test_all_that_it_does_works(tmp_path):
    """Certificates that are replaced, by name and behind a link; state that is written, and read by the next one; a socket file."""
    made, used, real = tmp_path / "made", tmp_path / "used", tmp_path / "real"
    subprocess.run([MAKE, made], check=True, stdout=subprocess.DEVNULL, timeout=120)
    used.mkdir()
    real.mkdir()

    def install(name):
        for suffix in (".pem", ".key"):
            shutil.copy(made / (name + suffix), real / ("new" + suffix))
            (real / ("new" + suffix)).rename(real / ("crund" + suffix))

    install("node")
    for suffix in (".pem", ".key"):
        (used / ("crund" + suffix)).symlink_to(real / ("crund" + suffix))
    shutil.copy(made / "ca.pem", used / "ca.pem")
    options = ["--sandbox=require", f"--tls-cert={used}/crund.pem", f"--tls-key={used}/crund.key", f"--tls-ca={used}/ca.pem",
               "--state", str(tmp_path / "state"), f"--listen-unix={tmp_path}/socket"]
    agent = ["--nnodes=1", "--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-id=job", f"--tls-cert={made}/next.pem",
             f"--tls-key={made}/next.key", f"--tls-ca={made}/ca.pem", "--rdzv-conf=is_host=false"]
    port = lib.free_port()
    for _ in range(2):
        with Crund(BUILD, *options, listen=(f"127.0.0.1:{port}",)) as crund, lib.Nodes(tmp_path) as nodes:
            assert (tmp_path / "socket").is_socket()
            install("next")
            crund.process.send_signal(signal.SIGHUP)
            jobs.wait_for(lambda: "certificates read" in crund.log())
            nodes.crun(*agent, f"--rdzv-endpoint=localhost:{port}", "--no-python", "sh", "-c", "[ $CRUN_GENERATION = 1 ]")
            assert nodes.codes() == [0], nodes.texts() + crund.log()
            assert crund.stop() == 0, crund.log()
        assert not (tmp_path / "socket").exists()
        assert "cannot" not in crund.log(), crund.log()


def refuse_call(number):
    """For preexec_fn: the kernel answers this call with ENOSYS, as an older one would."""
    def install():
        errno_enosys = 0x00050000 | 38
        instructions = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, errno_enosys), (0x06, 0, 0, 0x7FFF0000)]
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in instructions))
        program = struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
        assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0  # PR_SET_SECCOMP
    return install


@needs_sandbox
@pytest.mark.parametrize("missing, words", [(LANDLOCK_CREATE_RULESET, "the kernel has no Landlock"),
                                            (SECCOMP, "the kernel takes no filter of system calls")])
def test_kernel_without_a_part(missing, words):
    with Crund(BUILD, preexec_fn=refuse_call(missing)) as crund:
        jobs.wait_for(lambda: f"a part of the sandbox is missing: {words}" in crund.log())  # after the line that it listens
        assert crund.stop() == 0
    got = subprocess.run([BUILD / "rendezvous" / "crund", "--listen=127.0.0.1:0", "--sandbox=require"],
                         preexec_fn=refuse_call(missing), capture_output=True, text=True, timeout=60)
    assert got.returncode == 1 and f"--sandbox require: {words}" in got.stderr, got.stderr


@needs_sandbox
def test_off_is_without():
    with Crund(BUILD, "--sandbox=off") as crund:
        assert {t["Seccomp"] for t in tasks(crund.pid)} == {"0"}
        assert crund.stop() == 0
