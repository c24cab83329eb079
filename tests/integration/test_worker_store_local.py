"""A sealed job on two hosts: workers use a store on their own node, which forwards to the one on the node of rank 0."""

import pathlib
import re
import subprocess
import sys

import pytest

import fabric as fabrics
import nodes as lib
from strict import skip_if

SECRET = b"a secret of the tests, long enough"
SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support" / "py"

WORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from crund import Client
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.set(f"rank{rank}", f"value of {rank}")
    sums = client.add("arrived", 1)
    while client.add("arrived", 0) < size:
        time.sleep(0.05)
    print("READ", rank, [client.get(f"rank{r}") for r in range(size)], flush=True)
    large = client.get("large") if rank else client.set("large", b"x" * (8 << 20))
    print("STORE", rank, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], os.environ["CRUN_MASTER_HOST"], flush=True)
    client.add("left", 1)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
    print("SUM", client.add("arrived", 0), flush=True)
"""


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(3) as made:
        yield made


@pytest.fixture
def job(fabric, tmp_path):
    """Yields the nodes of a job, in which each worker has read what all have written, and the file that ends it."""
    secret, worker, end = tmp_path / "secret", tmp_path / "worker.py", tmp_path / "end"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    worker.write_text(WORKER)
    with lib.Nodes(tmp_path) as nodes:
        for host in (0, 1):
            nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                       "--rdzv-id=sealed", "--seal", f"--secret-file={secret}", worker, SUPPORT, end,
                       prefix=fabric.prefix(host), env={"PYTHON_EXEC": sys.executable})
        for node in nodes:
            node.wait_for("STORE")
        yield nodes, end


def listeners(fabric, host):
    text = subprocess.run([*fabric.prefix(host), "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    return {line.split()[3] for line in text.splitlines()}


def test_workers_of_both_nodes_share_one_store(fabric, job):
    nodes, end = job
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()
    text = "".join(nodes.texts())
    assert sorted(re.findall(r"READ (\d) ", text)) == ["0", "1", "2", "3"]
    for rank in range(4):
        assert text.count(f"value of {rank}") == 4
    assert re.findall(r"SUM (\d+)", text) == ["4"] * 4
    places = re.findall(r"STORE \d (\S+) (\d+) (\S+)", text)
    assert {place[0] for place in places} == {"127.0.0.1"}
    assert {place[2] for place in places} & {fabric.address(0), fabric.address(1)}
    assert len({place[2] for place in places}) == 1


def test_only_loopback_listens_beside_the_store(fabric, job):
    nodes, end = job
    found = [re.search(r"STORE \d (\S+) (\d+) (\S+)", node.text()).groups() for node in nodes]
    served = [fabric.address(host) == found[host][2] for host in (0, 1)]
    assert sorted(served) == [False, True]
    for host in (0, 1):
        port = found[host][1]
        ports = listeners(fabric, host)
        assert f"127.0.0.1:{port}" in ports
        assert {p for p in ports if p.rsplit(":", 1)[0] not in ("127.0.0.1", "[::1]") and
                not p.endswith(":29400")} == ({f"{fabric.address(host)}:{port}"} if served[host] else set())
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()


READ_A_KEY = """
import sys
sys.path.insert(0, sys.argv[1])
from crund import Client, Closed
try:
    with Client(sys.argv[2], int(sys.argv[3])) as client:
        print("READ", client.get("rank0"))
except (Closed, OSError):
    print("CLOSED")
"""


@pytest.mark.parametrize("host", [0, 1, 2])
WAITS = """
import os, time
print("STORE", os.environ["MASTER_PORT"], os.environ.get("CRUN_MASTER_HOST"), flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("mode, everywhere", [(["--security=open"], True), (["--security=require"], True), (["--seal"], False)],
                         ids=["open", "fenced", "sealed"])
def test_what_listens_in_each_mode(fabric, tmp_path, mode, everywhere):
    secret, worker = tmp_path / "secret", tmp_path / "worker.py"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    worker.write_text(WAITS)
    with_secret = [] if mode == ["--security=open"] else [f"--secret-file={secret}"]
    with lib.Nodes(tmp_path) as nodes:
        for host in (0, 1):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                       "--rdzv-id=modes", *mode, *with_secret, worker, prefix=fabric.prefix(host),
                       env={"PYTHON_EXEC": sys.executable})
        ports = []
        for node in nodes:
            node.wait_for("STORE")
            ports.append(re.search(r"STORE (\d+) (\S+)", node.text()).groups())
        outside = [{p for p in listeners(fabric, host) if p.rsplit(":", 1)[0] not in ("127.0.0.1", "[::1]") and
                    not p.endswith(":29400")} for host in (0, 1)]
        served = [host for host in (0, 1) if outside[host]]
        assert len(served) == 1, outside
        place = "*" if everywhere else fabric.address(served[0])
        assert outside[served[0]] == {f"{place}:{ports[served[0]][0]}"}
        assert {port[1] for port in ports} == ({"None"} if everywhere else {fabric.address(served[0])})


def test_a_name_as_local_address_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400", "--rdzv-id=name", "--seal",
                   f"--secret-file={secret}", "--local-addr=localhost", "true")
        assert nodes.codes() == [1]
        assert "--local-addr=localhost is a name" in nodes[0].text()


def test_no_host_reads_the_store_over_the_network(fabric, job, host):
    nodes, end = job
    groups = [re.search(r"STORE \d (\S+) (\d+) (\S+)", node.text()).groups() for node in nodes]
    port = [g[1] for i, g in enumerate(groups) if fabric.address(i) == g[2]][0]
    got = subprocess.run([*fabric.prefix(host), sys.executable, "-c", READ_A_KEY, SUPPORT, groups[0][2], port],
                         capture_output=True, text=True, timeout=60)
    assert got.stdout.strip() == "CLOSED", got.stdout + got.stderr
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()
