"""What one address or user may take of a crund, beside others that get theirs."""

import contextlib
import os
import pathlib
import secrets
import socket
import subprocess
import sys

import pytest

import jobs
import nodes as lib
from crund import Client, Crund
from job_secret import write_secret
from session_agent import Agent

pytestmark = pytest.mark.sanitize

BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support" / "py"
OTHER_USER = 65534
JOIN = """
import sys
sys.path.insert(0, sys.argv[1])
from session_agent import Agent
where = sys.argv[2]
with Agent(int(where) if where.isdigit() else where, job=sys.argv[3], min_nodes=2, max_nodes=2) as agent:
    print(agent.join().view()["view"])
"""


def view_of_another_user(where, job, support):
    got = subprocess.run(["/usr/bin/python3", "-c", JOIN, support, str(where), job], user=OTHER_USER, capture_output=True,
                         text=True, timeout=60)
    assert got.returncode == 0, got.stderr
    return got.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_jobs_of_a_user(transport):
    """Another user of this machine has a quota of its own, however it connects; jobs with a secret are not counted."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path("/tmp") / f"crun-quota-{secrets.token_hex(6)}"  # that other users reach
        folder.mkdir(mode=0o755)
        stack.callback(subprocess.run, ["rm", "-rf", folder], check=True)
        (folder / "support").mkdir()
        for name in ("session_agent.py", "crund.py"):
            (folder / "support" / name).write_text((SUPPORT / name).read_text())
        crund = stack.enter_context(Crund(BUILD, "--max-jobs-each=2", f"--listen-unix={folder}/socket"))
        (folder / "socket").chmod(0o777)
        where = crund.port if transport == "tcp" else f"{folder}/socket"
        mine = [stack.enter_context(Agent(where, job=f"mine{i}", min_nodes=2, max_nodes=2)) for i in range(3)]
        views = [agent.join().view() for agent in mine]
        assert [v["view"] for v in views] == ["wait", "wait", "refused"], views
        assert "has 2 jobs without a secret at the rendezvous already" in views[2]["cause"]["text"]
        assert view_of_another_user(where, "theirs", folder / "support") == "wait"


def test_jobs_with_a_secret_are_not_counted(tmp_path):
    secret = tmp_path / "secrets" / "closed"
    secret.parent.mkdir()
    write_secret(secret)
    with Crund(BUILD, "--max-jobs-each=1", "--secrets", str(secret.parent)) as crund, lib.Nodes(tmp_path) as nodes:
        with Agent(crund.port, job="open", min_nodes=2, max_nodes=2) as agent, Agent(crund.port, job="more") as other:
            assert agent.join().view()["view"] == "wait"
            assert other.join().view()["view"] == "refused"
            node = nodes.crun("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{crund.port}",
                              "--rdzv-id=closed", f"--secret-file={secret}", "--rdzv-conf=last_call_timeout=1",
                              "--no-python", "true")
            assert node.wait() == 0, node.text()


def test_time_outs_are_bounded():
    fifteen_days = 15 * 24 * 3600 * 1000
    with Crund(BUILD) as crund:
        for i, name in enumerate(("node_timeout_ms", "join_timeout_ms", "last_call_ms")):
            with Agent(crund.port, job=f"job{i}", **{name: fifteen_days}) as agent:
                view = agent.join().view()
                assert view["view"] == "refused" and "crund --max-" in view["cause"]["text"], view
        assert "job 'job" not in crund.log()


def test_connections_of_an_address():
    """This machine is one address. Those that leave make room, whatever they were."""
    with Crund(BUILD, "--max-connections-each=6") as crund:
        for turn in range(3):
            with contextlib.ExitStack() as stack:
                for i in range(5):
                    stack.enter_context(Client("127.0.0.1", crund.port)).set(f"k{i}", b"v")
                agent = stack.enter_context(Agent(crund.port, job=f"job{turn}"))
                assert agent.join().view("start")
                with socket.create_connection(("127.0.0.1", crund.port), timeout=60) as more:
                    assert more.recv(1) == b""
                assert "its address or user has 6 connections" in crund.log()
            jobs.wait_for(lambda: can_talk(crund.port))


FLOOD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
message = b"\\1" + (1).to_bytes(8, "little") + b"k" + (60000).to_bytes(8, "little") + bytes(3000)
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60))
    held[-1].sendall(bytes.fromhex("00cef7853c") + message)
print("HELD", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(jobs.is_sanitized(), reason="a sanitizer's allocator keeps what was freed")
def test_memory_of_a_flood_is_given_back():
    """Thousands of incomplete messages. The client that stays has its memory behind theirs in the heap."""
    n = 3000
    with Crund(BUILD) as crund, contextlib.ExitStack() as stack:
        stack.enter_context(Client("127.0.0.1", crund.port)).set("before", b"v")
        before = crund.rss_kib()
        flood = stack.enter_context(subprocess.Popen([sys.executable, "-c", FLOOD, str(crund.port), str(n)], text=True,
                                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert flood.stdout.readline() == "HELD\n"
        jobs.wait_for(lambda: crund.rss_kib() > before + 2 * n)
        stays = stack.enter_context(Client("127.0.0.1", crund.port))
        stays.set("stays", b"v" * 3000)
        flood.communicate(timeout=60)
        jobs.wait_for(lambda: crund.rss_kib() < before + n)
        assert stays.get("stays") == b"v" * 3000


def can_talk(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        try:
            s.sendall(bytes.fromhex("00cef7853c0d01020304"))
            return s.recv(4) == bytes.fromhex("01020304")
        except (BrokenPipeError, ConnectionResetError):
            return False  # those that leave are still counted
