"""The worker store of a job with a secret: workers on its hosts use it, and nothing that comes from another address does."""

import hashlib
import hmac
import pathlib
import re
import subprocess
import sys
import time

import pytest

import fabric as fabrics
import nodes as lib
from job_secret import write_secret
from strict import skip_if

SECRET = b"a secret of the tests, long enough"
SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support" / "py"


def key(purpose, job):
    extracted = hmac.digest(b"crun secret, version 1", SECRET, "sha256")
    return hmac.digest(extracted, purpose.encode() + b"\0" + job.encode() + b"\1", hashlib.sha256)


WORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from crund import Client
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.set(f"rank{rank}", "here")
    while client.add("arrived", 0 if client.check(f"counted{rank}") else 1) < size:
        client.set(f"counted{rank}", "")
        time.sleep(0.05)
    sys.stdout.write(f"STORE {os.environ['MASTER_ADDR']} {os.environ['MASTER_PORT']}\\n")  # one write: the ranks share a pipe
    sys.stdout.flush()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(3) as made:
        yield made


@pytest.fixture
def job(fabric, tmp_path):
    """Two of three hosts run it; yields (address of its store, port, file whose presence ends it, nodes)."""
    secret, worker, end = tmp_path / "secret", tmp_path / "worker.py", tmp_path / "end"
    write_secret(secret, SECRET)
    worker.write_text(WORKER)
    with lib.Nodes(tmp_path) as nodes:
        for host in (0, 1):
            nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                       "--rdzv-id=fenced", f"--secret-file={secret}", worker, SUPPORT, end, prefix=fabric.prefix(host),
                       env={"PYTHON_EXEC": sys.executable})
        address, port = [node.wait_for_match(r"STORE (\S+) (\d+)\n") for node in nodes][0].groups()
        yield address, int(port), end, nodes


def on_host(fabric, host, code, *args, timeout=60):
    """Runs Python there, with the tests' modules; its output."""
    code = f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n" + code
    got = subprocess.run([*fabric.prefix(host), sys.executable, "-c", code, *map(str, args)], capture_output=True,
                         text=True, timeout=timeout)
    assert got.returncode == 0, got.stderr
    return got.stdout.strip()


READ_A_KEY = """
import time
from crund import Client, Closed
began = time.monotonic()
try:
    with Client(sys.argv[1], int(sys.argv[2])) as client:
        print("READ", client.get("rank0"))
except (Closed, OSError) as e:
    print("CLOSED after", round(time.monotonic() - began))
"""


def test_other_hosts_get_nothing(fabric, job):
    address, port, end, nodes = job
    assert "READ" in on_host(fabric, 1, READ_A_KEY, address, port)  # a host of the job
    assert re.fullmatch(r"CLOSED after [3-8]", on_host(fabric, 2, READ_A_KEY, address, port))
    assert "from which an agent of this job has proved" in "".join(n.text() for n in nodes)
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()


PROVE = ["openssl", "s_client", "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-quiet"]


def prove(fabric, host, address, port, identity, psk):
    command = [*fabric.prefix(host), *PROVE, "-connect", f"{address}:{port}", "-psk_identity", identity, "-psk", psk.hex()]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


PROVE_BEHIND_ANOTHER = """
import socket, subprocess
silent = socket.create_connection((sys.argv[1], int(sys.argv[2])))
subprocess.run(sys.argv[3:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
silent.sendall(bytes([0x16, 3, 1]))  # how a proof begins
silent.settimeout(1)
try:
    print("CLOSED", silent.recv(1))
except TimeoutError:
    print("WAITS")
"""


def test_second_proof_from_an_address(fabric, job):
    """An agent has connected, and sends nothing before another of its address has proved the key: the server waits for its proof."""
    address, port, end, nodes = job
    command = [*PROVE, "-connect", f"{address}:{port}", "-psk_identity", "crun1:store:fenced", "-psk", key("store", "fenced").hex()]
    assert on_host(fabric, 2, PROVE_BEHIND_ANOTHER, address, port, *command) == "WAITS"
    assert "READ" in on_host(fabric, 2, READ_A_KEY, address, port)
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()
    assert "is not a TCPStore client" not in "".join(n.text() for n in nodes)


def test_proof_of_another_key_opens_nothing(fabric, job):
    address, port, end, nodes = job
    for identity, purpose in (("crun1:store:fenced", "agent"), ("crun1:agent:fenced", "agent"),
                              ("crun1:worker:fenced", "worker"), ("crun1:store:another", "store")):
        prove(fabric, 2, address, port, identity, key(purpose, identity.rsplit(":", 1)[1]))
    assert "CLOSED" in on_host(fabric, 2, READ_A_KEY, address, port)


def test_client_that_comes_before_the_proof_is_served(fabric, job):
    """As a worker that is faster than its agent: it waits, and then its greeting is answered."""
    address, port, end, nodes = job
    client = subprocess.Popen([*fabric.prefix(2), sys.executable, "-c",
                               f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n" + READ_A_KEY, address, str(port)],
                              stdout=subprocess.PIPE, text=True)
    time.sleep(1)
    assert client.poll() is None
    prove(fabric, 2, address, port, "crun1:store:fenced", key("store", "fenced"))
    assert "READ b'here'" in client.communicate(timeout=60)[0]
    prove(fabric, 2, address, port, "crun1:store:fenced", key("store", "fenced"))  # a second agent at that address
    assert "READ b'here'" in on_host(fabric, 2, READ_A_KEY, address, port)
    assert "is not a TCPStore client" not in nodes.texts() and "proof failed" not in nodes.texts()
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()


FLOOD = """
import socket
held = []
for i in range(3000):
    s = socket.socket()
    s.settimeout(20)
    s.connect((sys.argv[1], int(sys.argv[2])))
    s.sendall([bytes.fromhex("00cef7853c"), b"\\x16\\x03\\x01", b""][i % 3])
    held.append(s)
print("HELD", len(held))
"""


def test_flood_from_elsewhere_keeps_no_node_out(fabric, job):
    address, port, end, nodes = job
    assert "HELD 3000" in on_host(fabric, 2, "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))\n" + FLOOD,
                                  address, port)
    assert "READ" in on_host(fabric, 1, READ_A_KEY, address, port)
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()
