"""A job with a secret: nodes that have it join over TLS; all others are refused, and nothing of the secret shows."""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import struct
import subprocess

import pytest

import jobs
import nodes as lib
from crund import Crund
from fabric import FaultProxy
from job_secret import write_secret
from session_agent import Agent

pytestmark = pytest.mark.sanitize

BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
SECRET = "the-secret-" + secrets.token_hex(16)


def secret_file(folder, text=SECRET, name="secret", mode=0o600):
    path = write_secret(folder / name, text + "\n")
    path.chmod(mode)
    return path


def options(port, *more, job="job", nnodes=2, conf="last_call_timeout=60,join_timeout=30"):
    return [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={job}",
            f"--rdzv-conf={conf}", *more]


def program(script):
    return ["--no-python", "sh", "-c", script]


def open_files(pid):
    files = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            files.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass  # closed since
    return files


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Without a secret of the user who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "CRUN_SECRET_FILE", "CRUN_SECRET_FD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def give_by_option(folder, home):
    return [f"--secret-file={secret_file(folder)}"], {}


def give_by_mounted_file(folder, home):
    return [], {"CRUN_SECRET_FILE": str(secret_file(folder, mode=0o644))}


def give_by_home(folder, home):
    (home / ".config" / "crun").mkdir(parents=True)
    secret_file(home / ".config" / "crun")
    return [], {}


@pytest.mark.parametrize("give", [give_by_option, give_by_mounted_file, give_by_home])
def test_nodes_with_the_secret_meet(tmp_path, home, give):
    port = lib.free_port()
    arguments, environment = give(tmp_path, home)
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun(*options(port, "--max-restarts=1", "--security=require", *arguments),
                       *program("[ $CRUN_GENERATION = 1 -o $RANK = 0 ] && echo RANK $RANK OF $WORLD_SIZE"),
                       env=environment)
        assert nodes.codes() == [0, 0], nodes.texts()
        text = nodes.texts()
        assert "RANK 0 OF 2" in text and "RANK 1 OF 2" in text
        assert "this job is open" not in text and "worker store" not in text


def test_secret_from_a_descriptor(tmp_path, home):
    """The worker does not inherit the descriptor."""
    port = lib.free_port()
    script = tmp_path / "start.sh"
    script.write_text(f'exec 9<{secret_file(tmp_path)}; CRUN_SECRET_FD=9 exec "$@"\n')
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.start(["sh", script, jobs.crun(), *options(port, "--security=require"),
                         *program("ls -l /proc/self/fd; echo DONE")])
        assert nodes.codes() == [0, 0], nodes.texts()
        assert "DONE" in nodes.texts() and str(tmp_path / "secret") not in nodes.texts()


def test_secret_from_a_pipe_of_the_shell(tmp_path, home):
    port = lib.free_port()
    script = f'exec "$0" "$@" --secret-file=<(sleep 0.3; cat {secret_file(tmp_path)}) --no-python true'
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.start(["bash", "-c", script, jobs.crun(), *options(port, "--security=require")])
        assert nodes.codes() == [0, 0], nodes.texts()


def test_user_s_secret_that_cannot_be_read_is_an_error(tmp_path, home):
    (home / ".config" / "crun").mkdir(parents=True)
    (home / ".config" / "crun" / "secret").symlink_to("secret")  # to itself
    got = subprocess.run([jobs.crun(), *options(lib.free_port()), *program("true")], capture_output=True, text=True,
                         timeout=60)
    assert got.returncode == 1 and ".config/crun/secret" in got.stderr, got.stderr


def test_open_job_is_named(tmp_path, home):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port), *program("true"))
        nodes.crun(*options(port, "--security=open"), *program("true"))
        assert nodes.codes() == [0, 0], nodes.texts()
        assert nodes[0].text().count("this job is open") == 1 and "--secret-file" in nodes[0].text()
        assert "this job is open" not in nodes[1].text()


def test_one_node_needs_none(tmp_path, home):
    got = subprocess.run([jobs.crun(), "--standalone", "--security=require", *program("true")], capture_output=True,
                         text=True, timeout=60)
    assert (got.returncode, got.stderr) == (0, "")


@pytest.mark.parametrize("arguments, words", [
    (["--security=require"], "there is no secret"),
    (["--secret-file=/nonexistent/secret"], "No such file"),
    (["--secret-file={tmp}/short"], "fewer than 16 bytes"),
    (["--secret-file={tmp}/public"], "chmod o="),
    (["--secret-file={tmp}/secret", "--security=open"], "leave one of them out"),
    (["--secret-file="], "names no file"),
])
def test_refusals_at_the_start(tmp_path, home, arguments, words):
    secret_file(tmp_path, "fifteen bytes..", "short")
    secret_file(tmp_path, name="public", mode=0o644)
    secret_file(tmp_path)
    arguments = [a.format(tmp=tmp_path) for a in arguments]
    got = subprocess.run([jobs.crun(), *options(lib.free_port()), *arguments, *program("true")], capture_output=True,
                         text=True, timeout=60)
    assert got.returncode == 1 and words in got.stderr and SECRET not in got.stderr, got.stderr


def test_static_rendezvous_cannot_prove_one(tmp_path, home):
    got = subprocess.run([jobs.crun(), "--nnodes=2", "--node-rank=0", "--security=require", *program("true")],
                         capture_output=True, text=True, timeout=60)
    assert got.returncode == 1 and "--rdzv-backend=c10d" in got.stderr


@pytest.mark.parametrize("intruder", ["none", "another"])
def test_node_without_the_secret_is_refused(tmp_path, home, intruder):
    """The job of the others goes on: the intruder is neither a member nor the cause of an end."""
    port = lib.free_port()
    good = secret_file(tmp_path)
    bad = secret_file(tmp_path, "another secret of that length", "bad")
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, f"--secret-file={good}"), *program("true"))
        jobs.wait_for(lambda: lib.can_connect(port))
        more = ["--security=open"] if intruder == "none" else [f"--secret-file={bad}"]
        node = nodes.crun(*options(port, *more, conf="join_timeout=3,is_host=false"), *program("echo STOLEN"))
        if intruder == "none":
            assert node.wait() == 1
            assert "this job has a secret, and this crun has none" in node.text()
        else:
            assert node.wait() == 1
            assert "does the rendezvous have the same secret?" in node.text()
        assert "STOLEN" not in node.text()
        nodes.crun(*options(port, f"--secret-file={good}"), *program("true"))
        assert [nodes[0].wait(), nodes[2].wait()] == [0, 0], nodes.texts()


def test_agent_with_a_secret_joins_nothing_else(tmp_path, home):
    """A rendezvous without secrets, and one that answers in the clear: the agent goes no further than its first record."""
    with Crund(BUILD) as crund, lib.Nodes(tmp_path) as nodes:
        node = nodes.crun(*options(crund.port, f"--secret-file={secret_file(tmp_path)}", nnodes="1:2",
                                   conf="join_timeout=3,last_call_timeout=1"), *program("echo STARTED"))
        assert node.wait() == 1
        assert "it has no secret, or is no rendezvous of crun" in node.text() and "STARTED" not in node.text()


def test_jobs_of_a_daemon_have_their_own(tmp_path, home):
    folder = tmp_path / "secrets"
    folder.mkdir()
    secret_file(folder, SECRET + "a", "alpha")
    secret_file(folder, SECRET + "b", "beta")
    conf = "join_timeout=3,last_call_timeout=1"
    with Crund(BUILD, "--secrets", str(folder)) as crund, lib.Nodes(tmp_path) as nodes:
        def run(job, *arguments):
            node = nodes.crun(*options(crund.port, *arguments, job=job, nnodes="1:2", conf=conf), *program("echo STARTED"))
            return node.wait(), node.text()

        assert run("alpha", f"--secret-file={folder}/alpha")[0] == 0
        code, text = run("alpha", f"--secret-file={folder}/beta")
        assert code == 1 and "same secret" in text
        code, text = run("beta", "--security=open")
        assert code == 1 and "this job has a secret" in text
        code, text = run("delta", "--security=open")
        assert code == 0, text

        secret_file(folder, SECRET + "c", "gamma")
        crund.process.send_signal(signal.SIGHUP)
        jobs.wait_for(lambda: "3 secrets read" in crund.log())
        code, text = run("gamma", "--security=open")
        assert code == 1 and "this job has a secret" in text
        code, text = run("gamma", f"--secret-file={folder}/gamma")
        assert code == 0, text + crund.log()

        (folder / "gamma").chmod(0o644)
        crund.process.send_signal(signal.SIGHUP)
        jobs.wait_for(lambda: "the secrets stay as they were" in crund.log())
        code, text = run("beta", f"--secret-file={folder}/beta")
        assert code == 0, text + crund.log()
        assert crund.stop() == 0, crund.log()
        assert SECRET not in crund.log()


def test_daemon_that_requires_secrets(tmp_path, home):
    folder = tmp_path / "secrets"
    folder.mkdir()
    secret_file(folder, name="alpha")
    with Crund(BUILD, "--secrets", str(folder), "--security", "require") as crund:
        for job, words in (("alpha", "this job has a secret"), ("beta", "has none for this job")):
            with Agent(crund.port, job=job) as agent:
                view = agent.join().view()
            assert view["view"] == "refused" and words in json.dumps(view), view


def test_killed_crun_is_reported_by_its_guardian(tmp_path, home):
    """The death notice is in the clear, and believed because of the nonce."""
    port = lib.free_port()
    good = secret_file(tmp_path)
    script = "echo UP $RANK; [ $CRUN_GENERATION = 0 ] && exec sleep 600; echo AGAIN"
    arguments = options(port, f"--secret-file={good}", "--max-restarts=1", nnodes="1:2")
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*arguments, *program(script))
        jobs.wait_for(lambda: lib.can_connect(port))
        nodes.crun(*arguments, *program(script))
        for node in nodes:
            node.wait_for("UP")
        nodes[1].process.kill()
        assert nodes[0].wait() == 0, nodes.texts()
        assert "ended without" in nodes[0].text()  # not: silent for 10 s


def test_death_notice_without_the_nonce_is_refused(tmp_path, home):
    with Crund(BUILD, "--secret-file", str(secret_file(tmp_path))) as crund:
        with Agent(crund.port, job="job") as agent:
            agent.report = {"phase": "left"}
            assert agent.join().view()["view"] == "refused"


def test_nothing_of_the_secret_shows(tmp_path, home):
    """In arguments, environments and open files of crun, its guardian and its workers, and in what they print."""
    port = lib.free_port()
    good = secret_file(tmp_path)
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun(*options(port, f"--secret-file={good}", f"--debug={tmp_path}/debug", f"--event-log={tmp_path}/events"),
                       *program("echo UP; exec sleep 600"))
        for node in nodes:
            node.wait_for("UP")
        found = []
        for node in nodes:
            for pid in [node.pid, *jobs.descendants(node.pid)]:
                for name in ("cmdline", "environ"):
                    found.append(pathlib.Path(f"/proc/{pid}/{name}").read_bytes())
                assert str(good) not in open_files(pid)
        for node in nodes:  # only now: the end of one ends the workers of the other
            node.signal(signal.SIGTERM)
        nodes.codes()
        found += [(tmp_path / name).read_bytes() for name in ("debug", "events")] + [nodes.texts().encode()]
        assert not any(SECRET.encode() in f for f in found)


def test_session_is_encrypted(tmp_path, home):
    """What goes through a relay between two nodes has no text of the session in it."""
    port = lib.free_port()
    good = secret_file(tmp_path)
    with FaultProxy(("127.0.0.1", port)) as relay, lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, f"--secret-file={good}", job="nameofjob"), *program("true"))
        jobs.wait_for(lambda: lib.can_connect(port))
        nodes.crun(*options(relay.port, f"--secret-file={good}", job="nameofjob",
                           conf="last_call_timeout=60,join_timeout=30,is_host=false"),
                   *program("true"))
        assert nodes.codes() == [0, 0], nodes.texts()
        for text in (b"nonce", b"node_timeout", b"127.0.0.1"):
            assert text not in relay.upward + relay.downward
        assert len(relay.upward) > 1000 and relay.upward.startswith(b"\x16\x03")


@pytest.mark.parametrize("n_bytes", (7000, 60000))
def test_handshakes_that_never_end_hold_little_memory(tmp_path, n_bytes):
    """A ClientHello of nearly 128 KiB that stays incomplete, from 400 connections: each held what it sent, beside --max-input."""
    if jobs.is_sanitized():
        pytest.skip("a sanitizer keeps what is freed")
    hello = b"\x01\x01\xf0\x00" + b"\0" * n_bytes
    records = b"".join(b"\x16\x03\x01" + struct.pack(">H", len(part)) + part
                       for part in (hello[i : i + 16000] for i in range(0, n_bytes, 16000)))
    with Crund(BUILD, f"--secret-file={secret_file(tmp_path)}", "--max-input=8M") as crund, contextlib.ExitStack() as stack:
        before = crund.rss_kib()
        for _ in range(400):
            c = stack.enter_context(socket.create_connection(("127.0.0.1", crund.port), timeout=20))
            with contextlib.suppress(OSError):  # it may be closed already
                c.sendall(records)
        with crund.client() as client:
            assert client.ping(1) == 1
        grown = crund.rss_kib() - before
        print(f"{n_bytes} bytes: {grown} KiB more")
        assert grown < 12 * 1024
