"""The shell text that starts crun on a host: with each login shell, and what each failure leaves behind and prints.

A crun is a script here: it prints its version, or greets and copies its input.
"""

import hashlib
import os
import platform
import resource
import shutil
import signal
import subprocess
import threading

import pytest

import jobs

PRINT = jobs.build_folder() / "tests" / "unit" / "launcher" / "print-bootstrap"
SHELLS = ("sh", "bash", "zsh", "tcsh", "csh", "fish", "ksh", "mksh", "busybox")
MACHINE = platform.machine()


def fake_crun(name, version="1.2"):
    return (f'#!/bin/sh\nif [ "$1" = --version ]; then echo crun {version}; exit; fi\n'
            f'[ "$1" = --front-channel ] && echo "GREETING {name}" && exec cat\n').encode()


COPY = fake_crun("copy")
HASH = hashlib.sha256(COPY).hexdigest()


def line(*builds, executable="-", copy="copy"):
    return subprocess.run([PRINT, "1.2", executable, copy, *builds], check=True, capture_output=True, text=True, timeout=60).stdout


class Host:
    """A home, a folder of PATH, and the shell of a login there."""

    def __init__(self, folder):
        self.home, self.bin = folder / "home", folder / "bin"
        self.home.mkdir()
        self.bin.mkdir()
        self.env = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin"}

    def install(self, name, content):
        (self.bin / name).write_bytes(content)
        (self.bin / name).chmod(0o755)

    def login(self, command, shell="sh", **more):
        words = ["busybox", "sh"] if shell == "busybox" else [shell]
        return subprocess.Popen([*words, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.env, cwd=self.home, **more)

    def cache(self):
        folder = self.home / ".cache" / "crun" / "bin"
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def serve(p, content):
    """The front: sends the copy when it is asked for. All that the host printed, as (lines before the greeting, bytes behind it)."""
    printed = []
    while True:
        text = p.stdout.readline()
        if text.startswith(b"CRUN-NEEDS "):
            printed.append(text.decode().strip())
            try:
                p.stdin.write(b"%d\n" % len(content) + content)
                p.stdin.flush()
            except BrokenPipeError:
                pass
            continue
        if text:
            printed.append(text.decode().strip())
        if not text or text.startswith(b"GREETING "):
            break
    # Frames follow a greeting, and none of their bytes is lost.
    try:
        echoed, errors = p.communicate(b"\0frame\n" * 2000, timeout=60)
    except BrokenPipeError:
        echoed, errors = b"", b""
    assert not text or (echoed == b"\0frame\n" * 2000 and p.returncode == 0)
    return printed, errors.decode()


def start(host, command, content=COPY, **more):
    return serve(host.login(command, **more), content)


NEEDS = f"CRUN-NEEDS {MACHINE} {HASH}"


@pytest.mark.parametrize("shell", SHELLS)
def test_login_shells(host, shell):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    command = line(MACHINE, HASH)
    assert start(host, command, shell=shell) == ([NEEDS, "GREETING copy"], "")
    assert start(host, command, shell=shell) == (["GREETING copy"], "")
    host.install("crun", fake_crun("installed"))
    assert start(host, command, shell=shell) == (["GREETING installed"], "")
    assert host.cache() == [HASH]
    for folder in (".cache", ".cache/crun", ".cache/crun/bin"):
        assert (host.home / folder).stat().st_mode & 0o777 == 0o700
    assert (host.home / ".cache/crun/bin" / HASH).stat().st_mode & 0o777 == 0o700


def test_characters():
    for text in (line(MACHINE, HASH, "other", HASH), line(copy="no-copy"), line("bad'machine", HASH), line(executable="/a b'c")):
        assert text.startswith("exec /bin/sh -c '") and text.endswith("'") and text.count("'") == 2
        assert not set("\n\\!\r\t") & set(text)
    assert "bad" not in line("bad'machine", HASH) and "/a b" not in line(executable="/a b'c")


def test_which_crun(host):
    command = line(executable=str(host.home / "venv"), copy="no-copy")
    no_copy = ["CRUN-FAILED crun 1.2 is not on PATH there, and --no-copy forbids to copy it"]
    host.install("crun", b"#!/bin/sh\necho crun version 1.2; cat\n")
    assert start(host, command) == (no_copy, "")
    (host.home / "venv").write_bytes(fake_crun("path"))
    (host.home / "venv").chmod(0o755)
    assert start(host, command) == (["GREETING path"], "")
    host.install("crun-launch", fake_crun("second", "1.3"))
    assert start(host, command) == (["GREETING path"], "")
    host.install("crun-launch", fake_crun("second"))
    assert start(host, command) == (["GREETING second"], "")


@pytest.mark.skipif(os.getuid() != 0, reason="files of another user need root")
def test_path_of_another_user(host, tmp_path):
    """Any user may have made it, as below /tmp."""
    folder = tmp_path / "venv"
    folder.mkdir()
    (folder / "crun").write_bytes(fake_crun("evil"))
    (folder / "crun").chmod(0o755)
    command = line(executable=str(folder / "crun"), copy="no-copy")
    assert start(host, command)[0] == ["GREETING evil"]
    for path in (folder, folder / "crun"):
        os.chown(path, 1, 1)
        assert start(host, command)[0][0].startswith("CRUN-FAILED")
        os.chown(path, 0, 0)


def test_no_build(host):
    assert start(host, line("vax", HASH)) == (
        [f"CRUN-FAILED crun 1.2 is not on PATH there, and no build of it for a machine {MACHINE} is here to be copied"], "")
    assert start(host, line(MACHINE, HASH), b"") == (
        [NEEDS, f"CRUN-FAILED crun 1.2 is not on PATH there, and its build for a machine {MACHINE} cannot be read here"], "")
    assert host.cache() == []


def test_damaged_copy_is_replaced(host):
    command = line(MACHINE, HASH)
    start(host, command)
    copy = host.home / ".cache/crun/bin" / HASH
    copy.write_bytes(COPY + b"echo evil\n")
    assert start(host, command) == ([NEEDS, "GREETING copy"], "")
    assert copy.read_bytes() == COPY and host.cache() == [HASH]


def test_wrong_bytes(host):
    for content in (COPY + b"#", COPY[:-1], b"x" * 300000):
        printed, _ = start(host, line(MACHINE, HASH), content)
        assert printed == [NEEDS, "CRUN-FAILED the copy of crun arrived there with another checksum"]
        assert host.cache() == []


def test_end_of_input(host):
    for sent in (b"", b"100", b"100\n", b"100\nabc"):
        p = host.login(line(MACHINE, HASH))
        assert p.stdout.readline().decode().strip() == NEEDS
        printed, _ = p.communicate(sent, timeout=60)
        assert printed.startswith(b"CRUN-FAILED ") and p.returncode == 1 and host.cache() == []


def test_full_disk(host):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    printed, _ = start(host, line(MACHINE, HASH), restore_signals=False, preexec_fn=limit)
    assert len(printed) == 2 and printed[1].startswith("CRUN-FAILED cannot write a copy of crun into ")
    assert "File too large" in printed[1] and host.cache() == []


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_folder_of_another_user(host):
    """Its owner could replace the copy between the check and the start."""
    (host.home / ".cache/crun/bin").mkdir(parents=True)
    os.chown(host.home / ".cache/crun/bin", 65534, 65534)
    printed, _ = start(host, line(MACHINE, HASH))
    assert len(printed) == 1 and printed[0].startswith("CRUN-FAILED the folder for a copy of crun there, ")


def test_no_folder(host):
    (host.home / ".cache").write_text("")
    printed, _ = start(host, line(MACHINE, HASH))
    assert len(printed) == 1 and printed[0].startswith("CRUN-FAILED no folder for a copy of crun there: mkdir: ")
    host.env["XDG_CACHE_HOME"] = f"{host.home}/a b"
    assert start(host, line(MACHINE, HASH)) == ([NEEDS, "GREETING copy"], "")
    assert (host.home / "a b/crun/bin" / HASH).read_bytes() == COPY


def test_a_folder_in_the_place_of_the_copy(host):
    place = host.home / ".cache/crun/bin" / HASH
    place.mkdir(parents=True)
    assert start(host, line(MACHINE, HASH)) == ([f"CRUN-FAILED a folder is in the place of the copy of crun there: remove {place}"], "")
    assert host.cache() == [HASH] and list(place.iterdir()) == []


def test_copy_that_does_not_run(host):
    broken = b"#!/bin/sh\necho libx.so: cannot open >&2\necho 'two * lines' >&2\nexit 127\n"
    digest = hashlib.sha256(broken).hexdigest()
    (host.home / "a name for the pattern").write_text("")
    printed, _ = start(host, line(MACHINE, digest), broken)
    assert printed[1] == (f"CRUN-FAILED the copy of crun, {host.home}/.cache/crun/bin/{digest}, does not run there: "
                          "libx.so: cannot open two * lines")


def test_no_sha256sum(host):
    for name in ("uname", "mkdir", "chmod", "head", "mv", "rm"):
        host.install(name, b'#!/bin/sh\nexec /usr/bin/%s "$@"\n' % name.encode())
    host.env["PATH"] = str(host.bin)
    p = subprocess.Popen(["/bin/sh", "-c", line(MACHINE, HASH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env=host.env)
    assert serve(p, COPY)[0] == ["CRUN-FAILED sha256sum is missing there, by which a copy of crun is checked"]


def test_hosts_that_share_a_home(host):
    processes = [host.login(line(MACHINE, HASH)) for _ in range(8)]
    results = [None] * len(processes)

    def run(i):
        results[i] = serve(processes[i], COPY)[0][-1]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(processes))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == ["GREETING copy"] * len(processes) and host.cache() == [HASH]


def test_hangup_leaves_nothing(host):
    p = host.login(line(MACHINE, HASH))
    assert p.stdout.readline().decode().strip() == NEEDS
    p.stdin.write(b"100\nabc")
    p.stdin.flush()
    while not host.cache():
        assert p.poll() is None
        os.sched_yield()
    p.send_signal(signal.SIGHUP)
    p.stdin.close()
    assert p.wait(timeout=60) != 0 and host.cache() == []
    p.stdout.close()
    p.stderr.close()


@pytest.mark.parametrize("n_given", [0, 20])
def test_a_lost_connection_leaves_nothing(host, n_given):
    """sshd closes all pipes and sends no signal; the sentence about the copy has no reader."""
    p = host.login(line(MACHINE, HASH))
    assert p.stdout.readline().decode().strip() == NEEDS
    p.stdin.write(b"%d\n" % len(COPY) + COPY[:n_given])
    p.stdin.flush()
    assert jobs.wait_until(lambda: host.cache() != [], 30)
    p.stdout.close()
    p.stderr.close()
    p.stdin.close()
    p.wait(30)
    assert host.cache() == []
