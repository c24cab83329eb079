"""What one address or user may take of a crund, beside others that get theirs."""

import contextlib
import os
import pathlib
import secrets
import socket
import subprocess
import sys

import pytest

import fabric as fabrics
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


@contextlib.contextmanager
def support_for_others():
    """A folder that other users reach, with what their programs import."""
    folder = pathlib.Path("/tmp") / f"crun-quota-{secrets.token_hex(6)}"
    folder.mkdir(mode=0o755)
    try:
        (folder / "support").mkdir()
        for name in ("session_agent.py", "crund.py"):
            (folder / "support" / name).write_text((SUPPORT / name).read_text())
        yield folder
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_jobs_of_a_user(transport):
    """Another user of this machine has a quota of its own, however it connects; jobs with a secret are not counted."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(support_for_others())
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


# Takes all that it is given, by many connections, of which each goes on until it is refused.
FILL = """
import sys
sys.path.insert(0, sys.argv[1])
from crund import Client, Closed, message
requests = {"keys": lambda i: message("SET", f"k{i}", "v"), "values": lambda i: message("SET", f"v{i}", bytes(9000)),
            "items": lambda i: message("QUEUE_PUSH", "queue", bytes(900)), "longer": lambda i: message("APPEND", "longer", bytes(900)),
            "waits": lambda i: message("WAIT", [f"w{i}.{n}" for n in range(50)])}
path, host, port, kind = sys.argv[2], *sys.argv[3:]
held, n = [], 0
for turn in range(400 if kind == "waits" else 4):
    client = Client(host, int(port), path=path or None)
    held.append(client)
    try:
        for _ in range(1 if kind == "waits" else 10000):
            client.send(requests[kind](n))
            n += 1
        client.ping()
    except Closed:
        pass
print("FULL", n, flush=True)
sys.stdin.read()
"""

USE = """
import sys
sys.path.insert(0, sys.argv[1])
from crund import Client, message
path, host, port = sys.argv[2:]
with Client(host, int(port), path=path or None) as client, Client(host, int(port), path=path or None) as other:
    client.set("mine", b"v" * 2000)
    client.send(message("WAIT", ["awaited"]))
    other.add("awaited", 1)
    assert client.read(1) == b"\\0" and client.get("mine") == b"v" * 2000
    client.send(message("QUEUE_PUSH", "my queue", b"item"))
    assert client.ping()
print("SERVED")
"""


@contextlib.contextmanager
def filled(where, kind, prefix=(), **options):
    with subprocess.Popen([*prefix, "/usr/bin/python3", "-c", FILL, *where, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, **options) as p:
        assert p.stdout.readline().startswith("FULL")
        yield
        p.stdin.close()


def use(where, prefix=(), **options):
    """What went wrong, or nothing."""
    got = subprocess.run([*prefix, "/usr/bin/python3", "-c", USE, *where], capture_output=True, text=True, timeout=60, **options)
    return "" if got.stdout == "SERVED\n" else got.stderr or got.stdout


def use_all_but_one(where, *others):
    """One owner of 4,095 has the counter of the one that takes all, and with it that one's quota (address_quota.h): not two."""
    faults = list(filter(None, (use(where, **options) for options in others)))
    assert len(faults) < 2, "\n".join(faults)


STORE_LIMITS = ("--max-keys=4000", "--max-bytes=2M")
KINDS = ["keys", "values", "items", "longer", "waits"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_user_does_not_fill_the_store(transport, kind):
    """Two users take what they can; others and crund's own are served. What is deleted is given back."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(support_for_others())
        crund = stack.enter_context(Crund(BUILD, *STORE_LIMITS, f"--listen-unix={folder}/socket"))
        (folder / "socket").chmod(0o777)
        where = [folder / "support", *(["", "127.0.0.1", str(crund.port)] if transport == "tcp" else [folder / "socket", "", "0"])]
        for user in (OTHER_USER, OTHER_USER - 1):
            stack.enter_context(filled(where, kind, user=user))
        assert "or than its share" in crund.log(), crund.log()
        use_all_but_one(where, {"user": OTHER_USER - 2}, {"user": OTHER_USER - 3})
        assert not use(where)


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_does_not_fill_the_store(kind):
    if fabrics.missing():
        pytest.skip(fabrics.missing())
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(fabrics.Fabric(4))
        crund = stack.enter_context(Crund(BUILD, *STORE_LIMITS, listen=(f"{fabric.address(0)}:0",), wrapper=fabric.prefix(0)))
        where = [SUPPORT, "", fabric.address(0), str(crund.port)]
        stack.enter_context(filled(where, kind, prefix=fabric.prefix(1)))
        assert "or than its share" in crund.log(), crund.log()
        use_all_but_one(where, *({"prefix": fabric.prefix(host)} for host in (0, 2, 3)))


FILL_FROM_PORT = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from crund import VALIDATE, message
host, port, source, name = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
n = 0
with socket.create_connection((host, port), timeout=60, source_address=("::", source)) as s:
    s.sendall(VALIDATE)
    try:
        for n in range(1000):
            s.sendall(message("SET", f"{name}{n}", b"v") + message("CHECK", [f"{name}{n}"]))
            if s.recv(1) == b"":
                break
    except ConnectionError:
        pass
print(n)
"""


def test_a_port_makes_no_owner():
    """A client in the same IPv6 network that comes from the port at which crund listens is not taken for crund's user."""
    if fabrics.missing():
        pytest.skip(fabrics.missing())
    with fabrics.Fabric(2) as fabric:
        for host in (0, 1):
            fabrics.sh(f"ip -n {fabric.space(host)} addr add fd00:77::{host + 1}/64 dev eth0 nodad")
        with Crund(BUILD, "--max-keys=1000", listen=("[::]:0",), wrapper=fabric.prefix(0)) as crund:
            def fill(source, name):
                got = subprocess.run([*fabric.prefix(1), sys.executable, "-c", FILL_FROM_PORT, SUPPORT, "fd00:77::1", str(crund.port),
                                      str(source), name], capture_output=True, text=True, timeout=60, check=True)
                return int(got.stdout)
            assert fill(0, "first") == 500
            assert fill(crund.port, "second") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_connections_of_a_user():
    """Another user's connections are not counted for others of this machine."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(support_for_others())
        crund = stack.enter_context(Crund(BUILD, "--max-connections-each=30", *STORE_LIMITS))
        where = [folder / "support", "", "127.0.0.1", str(crund.port)]
        stack.enter_context(filled(where, "waits", user=OTHER_USER))
        assert "its address or user has 30 connections" in crund.log()
        use_all_but_one(where, {"user": OTHER_USER - 1}, {"user": OTHER_USER - 2})
        assert not use(where)


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
