"""A sealed job on two hosts: workers use a store on their own node, which forwards to the rendezvous, where the keys of the job are."""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

import fabric as fabrics
import jobs
import local_store
import nodes as lib
from crund import Client, Crund, message
from job_secret import write_secret
from strict import skip_if

SECRET = b"a secret of the tests, long enough"
SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support" / "py"

HEAD = """
import os, sys, time
def say(*words):  # in one piece: workers share the output
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
sys.path.insert(0, sys.argv[1])
from crund import Client
"""

WORKER = HEAD + """rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.set(f"rank{rank}", f"value of {rank}")
    sums = client.add("arrived", 1)
    while client.add("arrived", 0) < size:
        time.sleep(0.05)
    say("READ", rank, [client.get(f"rank{r}") for r in range(size)])
    large = client.get("large") if rank else client.set("large", b"x" * (8 << 20))
    say("STORE", rank, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], os.environ["CRUN_MASTER_HOST"])
    client.add("left", 1)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
    say("SUM", client.add("arrived", 0))
"""


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(3) as made:
        yield made


def start_sealed(nodes, fabric, host, endpoint, secret, *more):
    return nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                      "--rdzv-id=sealed", "--seal", f"--secret-file={secret}", *more, prefix=fabric.prefix(host),
                      env={"PYTHON_EXEC": sys.executable})


@pytest.fixture
def secret(tmp_path):
    return write_secret(tmp_path / "secret", SECRET)


@pytest.fixture
def job(fabric, tmp_path, secret):
    """Yields the nodes of a job, in which each worker has read what all have written, and the file that ends it."""
    worker, end = tmp_path / "worker.py", tmp_path / "end"
    worker.write_text(WORKER)
    with lib.Nodes(tmp_path) as nodes:
        for host in (0, 1):
            start_sealed(nodes, fabric, host, f"{fabric.address(0)}:29400", secret, worker, SUPPORT, end)
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


def of_network(ports):
    return {p for p in ports if p.rsplit(":", 1)[0] not in ("127.0.0.1", "[::1]")}


def test_only_loopback_listens_beside_the_rendezvous(fabric, job):
    nodes, end = job
    for host in (0, 1):
        port = re.search(r"STORE \d \S+ (\d+) \S+", nodes[host].text()).group(1)
        ports = listeners(fabric, host)
        assert f"127.0.0.1:{port}" in ports
        assert of_network(ports) == ({f"{fabric.address(0)}:29400"} if host == 0 else set())
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


WAITS = """
import os, time
print(f"STORE {os.environ['MASTER_PORT']} {os.environ.get('CRUN_MASTER_HOST')}\\n", end="", flush=True)
while True:
    time.sleep(1)
"""


def test_the_kernel_watches_the_connection_for_keys(fabric, job):
    """A host that is lost ends none of its connections: without its own timer a node's store would wait for a quarter of an hour."""
    def timers():
        """While a connection has bytes on their way, the timer of their retransmission is shown in this one's place."""
        text = subprocess.run([*fabric.prefix(1), "ss", "-Htno", "state", "established", "dport", "=", ":29400"], capture_output=True,
                              text=True, check=True).stdout
        return re.findall(r"timer:\(keepalive,([0-9.]+)(ms|sec)", text)
    (time_left, unit), *others = jobs.wait_for(timers, 30, 0.05)
    assert not others  # the other connection is the session's, which has signs of life
    assert unit == "ms" or float(time_left) <= 5, time_left


@pytest.mark.parametrize("mode, is_named, served_at",
                         [(["--security=open"], False, "*"), (["--security=open"], True, "address"),
                          (["--security=require"], False, "address"), (["--seal"], False, None)],
                         ids=["open", "open-at-an-address", "fenced", "sealed"])
def test_what_listens_in_each_mode(fabric, tmp_path, mode, is_named, served_at):
    secret, worker = tmp_path / "secret", tmp_path / "worker.py"
    write_secret(secret, SECRET)
    worker.write_text(WAITS)
    with_secret = [] if mode == ["--security=open"] else [f"--secret-file={secret}"]
    with lib.Nodes(tmp_path) as nodes:
        for host in (0, 1):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                       "--rdzv-id=modes", *mode, *with_secret, *([f"--local-addr={fabric.address(host)}"] if is_named else []), worker,
                       prefix=fabric.prefix(host),
                       env={"PYTHON_EXEC": sys.executable})
        ports = []
        for node in nodes:
            found = jobs.wait_for(lambda node=node: re.search(r"STORE (\d+) (\S+)\n", node.text()))
            ports.append(found.groups())
        outside = [{p for p in of_network(listeners(fabric, host)) if not p.endswith(":29400")} for host in (0, 1)]
        served = [host for host in (0, 1) if outside[host]]
        assert len(served) == (1 if served_at else 0), outside
        if served_at:
            address = "*" if served_at == "*" else fabric.address(served[0])
            assert outside[served[0]] == {f"{address}:{ports[served[0]][0]}"}
            assert {port[1] for port in ports} == {"None"}
        else:
            assert len({port[1] for port in ports}) == 1 and ports[0][1] in (fabric.address(0), fabric.address(1))


def test_nodes_with_different_stores_are_refused(tmp_path, secret):
    port = lib.free_port()
    options = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
               f"--secret-file={secret}", "--no-python", "true"]
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun("--seal", *options)
        jobs.wait_for(lambda: lib.can_connect(port))
        shared = nodes.crun(*options)
        assert shared.wait() == 1
        assert "the worker store (--worker-store, --seal) is local in the job and shared on this node" in shared.text()
        nodes.crun("--worker-store=local", *options)
        assert [nodes[0].wait(), nodes[2].wait()] == [0, 0], nodes.texts()


def test_a_name_as_local_address_is_refused(tmp_path):
    secret = write_secret(tmp_path / "secret", SECRET)
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400", "--rdzv-id=name", "--seal",
                   f"--secret-file={secret}", "--local-addr=localhost", "true")
        assert nodes.codes() == [1]
        assert "--local-addr=localhost is a name" in nodes[0].text()


@pytest.mark.parametrize("host", [0, 1, 2])
def test_no_host_reads_the_store_over_the_network(fabric, job, host):
    nodes, end = job
    groups = [re.search(r"STORE \d (\S+) (\d+) (\S+)", node.text()).groups() for node in nodes]
    # The stores of the nodes, and that of the rendezvous, which has none of the job's keys and waits in vain.
    for address, port in ((fabric.address(0), groups[0][1]), (fabric.address(1), groups[1][1])):
        got = subprocess.run([*fabric.prefix(host), sys.executable, "-c", READ_A_KEY, SUPPORT, address, port],
                             capture_output=True, text=True, timeout=60)
        assert got.stdout.strip() == "CLOSED", got.stdout + got.stderr
    with_keys = 'import sys; sys.path.insert(0, sys.argv[1]); from crund import Client; print(Client(sys.argv[2], 29400).count())'
    got = subprocess.run([*fabric.prefix(host), sys.executable, "-c", with_keys, SUPPORT, fabric.address(0)],
                         capture_output=True, text=True, timeout=60)
    assert got.stdout.strip() == "0", got.stdout + got.stderr
    end.touch()
    assert nodes.codes() == [0, 0], nodes.texts()


ADDS = HEAD + """size = int(os.environ["WORLD_SIZE"])
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.add("ready", 1)
    while client.add("ready", 0) < size:
        time.sleep(0.02)
    say("STORE", os.environ["GROUP_RANK"], os.environ["MASTER_PORT"])
    mine = 0
    while not os.path.exists(sys.argv[2]):
        client.add("sum", 1)
        client.set(f"of {os.environ['RANK']}", str(mine).encode())
        mine += 1
    client.add("claimed", mine)
    client.add("done", 1)
    while client.add("done", 0) < size:
        time.sleep(0.02)
    say("ENDED", mine, client.add("sum", 0), client.add("claimed", 0))
"""


def connections(fabric, host, condition, *kill):
    return subprocess.run([*fabric.prefix(host), "ss", "-Htn", *kill, *condition], capture_output=True, text=True,
                          check=True).stdout.splitlines()


def test_a_cut_connection_executes_each_request_once(fabric, tmp_path, secret):
    worker, end = tmp_path / "worker.py", tmp_path / "end"
    worker.write_text(ADDS)
    with lib.Nodes(tmp_path) as nodes:
        for host in (0, 1):
            start_sealed(nodes, fabric, host, f"{fabric.address(0)}:29400", secret, worker, SUPPORT, end)
        for node in nodes:
            node.wait_for("STORE")
        to_rendezvous = ["state", "established", "dst", fabric.address(0), "dport", "=", ":29400"]
        for _ in range(5):  # the session, and the store
            jobs.wait_for(lambda: len(connections(fabric, 1, to_rendezvous)) == 2, 20)
            assert len(connections(fabric, 1, to_rendezvous, "-K")) == 2
            time.sleep(0.5)
        jobs.wait_for(lambda: len(connections(fabric, 1, to_rendezvous)) == 2, 20)
        end.touch()
        assert nodes.codes() == [0, 0], nodes.texts()
        ends = [tuple(map(int, e)) for e in re.findall(r"ENDED (\d+) (\d+) (\d+)", "".join(nodes.texts()))]
        total = sum(e[0] for e in ends)
        assert len(ends) == 4 and min(e[0] for e in ends) > 0
        assert {e[1:] for e in ends} == {(total, total)}


AGAIN = HEAD + """size = int(os.environ["WORLD_SIZE"])
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.add("old", 100)
    client.add("ready", 1)
    while client.add("ready", 0) < size:
        time.sleep(0.02)
    say("STORE", os.environ["GROUP_RANK"], os.environ["CRUN_GENERATION"], client.add("old", 0))
    while os.environ["CRUN_GENERATION"] == "0":
        time.sleep(1)
"""


def test_the_node_of_rank_0_is_killed_and_comes_back(fabric, tmp_path, secret):
    worker = tmp_path / "worker.py"
    worker.write_text(AGAIN)
    with Crund(jobs.build_folder(), "--secret-file", str(secret), listen=(f"{fabric.address(2)}:0",),
               wrapper=fabric.prefix(2)) as crund, lib.Nodes(tmp_path) as nodes:
        endpoint = f"{fabric.address(2)}:{crund.port}"
        for host in (0, 1):
            start_sealed(nodes, fabric, host, endpoint, secret, "--max-restarts=3", worker, SUPPORT)
        for node in nodes:
            node.wait_for("STORE")
        first = [host for host, node in enumerate(nodes) if "STORE 0 0" in node.text()]
        assert len(first) == 1, nodes.texts()
        nodes[first[0]].signal(signal.SIGKILL)
        start_sealed(nodes, fabric, first[0], endpoint, secret, "--max-restarts=3", worker, SUPPORT)
        assert [nodes[1 - first[0]].wait(), nodes[2].wait()] == [0, 0], nodes.texts()
        found = re.findall(r"STORE (\d) (\d+) (\d+)", nodes[1 - first[0]].text() + nodes[2].text())
        later = [f for f in found if f[1] != "0"]
        assert sorted(f[0] for f in later) == ["0", "0", "1", "1"]
        assert {f[2] for f in later} == {"400"}  # nothing of the generation before is in the store


STAYS = """
import os, socket, struct, sys, threading, time
def say(*words):  # in one piece: workers share the output
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
sys.path.insert(0, sys.argv[1])
from crund import Client
notices = socket.socket(fileno=int(os.environ["CRUN_NOTICE_FD"]))
generation, rank, group = int(os.environ["CRUN_GENERATION"]), int(os.environ["RANK"]), os.environ["GROUP_RANK"]
port = int(os.environ["MASTER_PORT"])
client = Client(os.environ["MASTER_ADDR"], port)
while True:
    if generation == 0:
        client.set(f"rank {rank}", b"of generation 0")
    client.add(f"members of {generation}", 1)
    size = int(os.environ["WORLD_SIZE"])
    while client.add(f"members of {generation}", 0) < size:
        time.sleep(0.02)
    notices.send(struct.pack("<IIIii", 20, 4, generation, rank, 1))  # ready, and keeps the store
    time.sleep(0.5)
    say("MET", group, generation, size, os.getpid(), port, client.count(), client.get("rank 0").decode())
    while True:
        record = notices.recv(4096)
        if not record:
            sys.exit(1)
        kind, number = struct.unpack_from("<II", record, 4)
        if kind == 2:
            sys.exit(0)
        if kind == 3 and number > generation:
            break
    generation = number
    rank, size, group = struct.unpack_from("<III", record, 20)
    os.environ["WORLD_SIZE"] = str(size)
    assert struct.unpack_from("<i", record, 16)[0] == port, "the store is another one"
"""


def met(node):
    """(group rank, generation, world size, pid, port, number of keys, value of a key) of each worker that has met all others."""
    return re.findall(r"MET (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (.*)\n", node.text())


def test_the_node_of_rank_0_is_lost_and_remaining_workers_keep_their_keys(fabric, tmp_path, secret):
    worker = tmp_path / "worker.py"
    worker.write_text(STAYS)
    options = ["--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=stays", "--seal",
               "--restart-policy=replace", "--rdzv-conf=last_call_timeout=60,join_timeout=60", f"--secret-file={secret}"]
    with Crund(jobs.build_folder(), "--secret-file", str(secret), listen=(f"{fabric.address(0)}:0",),
               wrapper=fabric.prefix(0)) as crund, lib.Nodes(tmp_path) as nodes:
        def start(host):
            return nodes.crun(*options, f"--rdzv-endpoint={fabric.address(0)}:{crund.port}", worker, SUPPORT,
                              prefix=fabric.prefix(host), env={"PYTHON_EXEC": sys.executable})

        for host in (0, 1, 2):
            start(host)
        for node in nodes:
            node.wait_for_match(r"MET \d 0 3 .*\n")
        lost = [node for node in nodes if met(node)[0][0] == "0"]
        remaining = [node for node in nodes if met(node)[0][0] != "0"]
        assert len(lost) == 1
        lost[0].signal(signal.SIGKILL)
        for node in remaining:
            node.wait_for_match(r"MET \d+ [1-9]\d* 2 .*\n")
        new = start(nodes.index(lost[0]))
        new.wait_for_match(r"MET \d+ [1-9]\d* 3 .*\n")
        for node in remaining:
            node.wait_for_match(r"MET \d+ [1-9]\d* 3 .*\n")
            assert len({m[3:5] for m in met(node)}) == 1, "it stays in its process and at its store"
        for node in [*remaining, new]:
            # three of generation 0, and one for each generation
            assert met(node)[-1][6] == "of generation 0" and int(met(node)[-1][5]) >= 3 + 3, nodes.texts()
        for node in [*remaining, new]:
            node.signal(signal.SIGTERM)
        for node in [*remaining, new]:
            node.wait()


def start_with_crund(nodes, endpoint, secret, job, *more):
    return nodes.crun("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                      f"--rdzv-id={job}", "--seal", f"--secret-file={secret}", *more, env={"PYTHON_EXEC": sys.executable})


RESTARTED = HEAD + """size = int(os.environ["WORLD_SIZE"])
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.add("ready", 1)
    while client.add("ready", 0) < size:
        time.sleep(0.02)
    say("STORE", os.environ["CRUN_GENERATION"], client.add("ready", 0))
    while os.environ["CRUN_GENERATION"] == "0":
        client.add("ready", 0)
        time.sleep(0.05)
"""


def test_the_store_stays_where_it_is_when_the_session_goes_on_elsewhere(tmp_path, secret):
    """At another address of the crund that has the keys: the connection of the node's store is another one, and no request is lost."""
    worker, end = tmp_path / "worker.py", tmp_path / "end"
    worker.write_text(ADDS)
    with Crund(jobs.build_folder(), "--secret-file", str(secret)) as crund, lib.Nodes(tmp_path) as nodes, \
            fabrics.FaultProxy(("127.0.0.1", crund.port)) as first, fabrics.FaultProxy(("127.0.0.1", crund.port)) as second:
        start_with_crund(nodes, f"127.0.0.1:{first.port},127.0.0.1:{second.port}", secret, "two", worker, SUPPORT, end)
        start_with_crund(nodes, f"127.0.0.1:{crund.port}", secret, "two", worker, SUPPORT, end)
        for node in nodes:
            node.wait_for("STORE")
        first.server.close()
        first.pairs[0][0].shutdown(socket.SHUT_RDWR)  # the session; the next one is that of the store
        jobs.wait_for(lambda: len(second.pairs) >= 1, 30)  # the session again
        time.sleep(1)
        assert len(first.pairs) == 2 and len(second.pairs) == 1, "one connection of the store"
        end.touch()
        assert nodes.codes() == [0, 0], nodes.texts()
        assert not any("are lost" in text for text in nodes.texts()), nodes.texts()
        ends = [tuple(map(int, e)) for e in re.findall(r"ENDED (\d+) (\d+) (\d+)", "".join(nodes.texts()))]
        assert len({e[1:] for e in ends}) == 1 and sum(e[0] for e in ends) == ends[0][1], ends


def test_a_crund_that_was_started_again_has_no_keys(tmp_path, secret):
    """The workers notice it at once, and the next generation has new ones: none goes on with a part of them."""
    worker, state = tmp_path / "worker.py", tmp_path / "state"
    worker.write_text(RESTARTED)
    state.mkdir(mode=0o700)
    arguments = ("--secret-file", str(secret), "--state", str(state))
    with lib.Nodes(tmp_path) as nodes:
        port = lib.free_port()
        with Crund(jobs.build_folder(), *arguments, listen=(f"127.0.0.1:{port}",)) as crund:
            for _ in range(2):
                start_with_crund(nodes, f"127.0.0.1:{port}", secret, "again", "--max-restarts=1", worker, SUPPORT)
            for node in nodes:
                node.wait_for("STORE 0 2")
            crund.process.kill()
            crund.process.wait()
        with Crund(jobs.build_folder(), *arguments, listen=(f"127.0.0.1:{port}",)):
            assert nodes.codes() == [0, 0], nodes.texts()
            for node in nodes:
                assert "STORE 1 2" in node.text() and "the keys of this node's workers" in node.text(), nodes.texts()


FILLS = """
import os, sys, time
def say(*words):  # in one piece: workers share the output
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
sys.path.insert(0, sys.argv[1])
from crund import Client, Closed
client = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
n = 0
try:
    while n < int(sys.argv[3]):
        client.set(f"{os.environ['RANK']} {n}", b"x" * (1 << 20))
        client.add("count", 0)
        n += 1
    say("KEPT", n)
except (Closed, OSError):
    say("REFUSED AFTER", n)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


def test_memory_of_a_job_is_bounded_and_comes_back(tmp_path, secret):
    worker, ends = tmp_path / "worker.py", [tmp_path / "end0", tmp_path / "end1"]
    worker.write_text(FILLS)
    with Crund(jobs.build_folder(), "--secret-file", str(secret), "--max-job-bytes", "80M") as crund, \
            lib.Nodes(tmp_path) as nodes:
        endpoint = f"127.0.0.1:{crund.port}"
        before = crund.rss_kib() / 1024
        for _ in range(2):  # 100 MiB each
            start_with_crund(nodes, endpoint, secret, "large", worker, SUPPORT, ends[0], 100)
        for _ in range(2):  # 20 MiB each
            start_with_crund(nodes, endpoint, secret, "small", worker, SUPPORT, ends[1], 20)
        for node in nodes:
            node.wait_for_match(r"(KEPT|REFUSED AFTER) \d+\n")
        found = [re.search(r"(KEPT|REFUSED AFTER) (\d+)\n", node.text()).groups() for node in nodes]
        assert {f[0] for f in found[:2]} == {"REFUSED AFTER"} and sum(int(f[1]) for f in found[:2]) <= 80, found
        assert found[2:] == [("KEPT", "20")] * 2
        full = crund.rss_kib() / 1024
        assert 80 < full - before < 80 + 40 + 60, (before, full)
        ends[0].touch()
        assert [n.wait() for n in nodes[:2]] == [0, 0], nodes.texts()
        jobs.wait_for(lambda: crund.rss_kib() / 1024 < full - 50, 60, 0.1)
        ends[1].touch()
        assert nodes.codes() == [0, 0, 0, 0], nodes.texts()
        jobs.wait_for(lambda: crund.rss_kib() / 1024 < before + 40, 60, 0.1)


def test_a_job_that_crund_has_no_secret_for_keeps_no_keys(tmp_path, secret):
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o700)
    write_secret(folder / "mine", SECRET)
    with Crund(jobs.build_folder(), "--secrets", str(folder)) as crund, lib.Nodes(tmp_path) as nodes:
        for job in ("mine", "other"):
            start_with_crund(nodes, f"127.0.0.1:{crund.port}", secret, job, "--rdzv-conf=join_timeout=3,last_call_timeout=60",
                             "--no-python", "true")
        start_with_crund(nodes, f"127.0.0.1:{crund.port}", secret, "mine", "--rdzv-conf=join_timeout=3,last_call_timeout=60",
                         "--no-python", "true")
        assert [n.wait() for n in nodes] == [0, 1, 0], nodes.texts()


@pytest.mark.parametrize("mode, n_upstream", [("shared", 8), ("local", 1)])
def test_waits_of_a_node_for_one_key_are_one_request(tmp_path, secret, mode, n_upstream):
    folder = tmp_path / "nodes"
    folder.mkdir()
    with local_store.open_store(folder, f"--secret-file={secret}", f"--worker-store={mode}") as store:
        before = store.upstream("wait")
        clients = [Client(*store.address) for _ in range(8)]
        for client in clients:
            client.send(message("WAIT", ["key"]))
        jobs.wait_for(lambda: store.upstream("wait") >= before + n_upstream, 20)
        time.sleep(0.5)  # for requests that should not come
        with Client(*store.address) as setter:
            setter.set("key", b"x")
            for client in clients:
                assert client.read(1) == b"\0"
                client.close()
        assert store.upstream("wait") == before + n_upstream
