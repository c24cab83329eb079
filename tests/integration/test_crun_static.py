"""crun on several nodes with a static rendezvous: everybody knows its place, node 0 serves the store."""

import signal
import socket
import time

import pytest

import jobs
import nodes as lib

pytestmark = pytest.mark.sanitize

SHOW = ["--no-python", "sh", "-c",
        "echo RANK $RANK/$WORLD_SIZE LOCAL $LOCAL_RANK GROUP $GROUP_RANK/$GROUP_WORLD_SIZE "
        "ROLE $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE AT $MASTER_ADDR:$MASTER_PORT $1", "sh"]


def options(port, rank, n_nodes=2, **more):
    return [f"--nnodes={n_nodes}", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}",
            *(f"--{key.replace('_', '-')}={value}" for key, value in more.items())]


def shown(nodes):
    return sorted(line for n in nodes for line in n.text().splitlines() if line.startswith("RANK"))


def test_ranks_roles_and_different_sizes(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, 2, 3, nproc_per_node=1, role="reader"), *SHOW)
        nodes.crun(*options(port, 0, 3, nproc_per_node=2), *SHOW)
        nodes.crun(*options(port, 1, 3, nproc_per_node=1, role="reader"), *SHOW)
        assert nodes.codes() == [0, 0, 0], nodes.texts()
        at = f"AT 127.0.0.1:{port}"
        assert shown(nodes) == [
            f"RANK 0/4 LOCAL 0 GROUP 0/3 ROLE default 0/2 {at}", f"RANK 1/4 LOCAL 1 GROUP 0/3 ROLE default 1/2 {at}",
            f"RANK 2/4 LOCAL 0 GROUP 1/3 ROLE reader 0/2 {at}", f"RANK 3/4 LOCAL 0 GROUP 2/3 ROLE reader 1/2 {at}"]


def test_identical_nodes_exchange_nothing(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for rank in (0, 1):
            nodes.crun(*options(port, rank, nproc_per_node=2), *SHOW, env={"TORCH_ELASTIC_WORKER_IDENTICAL": "1"})
        assert nodes.codes() == [0, 0], nodes.texts()
        assert [line.split()[1] for line in shown(nodes)] == ["0/4", "1/4", "2/4", "3/4"]


def test_a_node_waits_for_the_slower_one(tmp_path):
    """Node 0's store stays until the workers of all nodes are done; what is waited for is said."""
    port = lib.free_port()
    slow = tmp_path / "slow"
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, 0), "--no-python", "true")
        nodes[0].wait_for("crun: 1/2 nodes")
        nodes.crun(*options(port, 1), "--no-python", "sh", "-c", f"echo begun; while [ ! -e {slow} ]; do sleep 0.05; done")
        nodes[1].wait_for("begun")
        time.sleep(0.3)
        assert nodes[0].process.poll() is None
        socket.create_connection(("127.0.0.1", port), 10).close()
        slow.touch()
        assert nodes.codes() == [0, 0], nodes.texts()


def test_two_nodes_of_one_rank_are_named(tmp_path):
    """Each of the two reports it, long before the timeout. A node whose rank is its own does not."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for rank in (0, 1, 1):
            nodes.crun(*options(port, rank, n_nodes=3), "--no-python", "true")
        for n in nodes[1:]:
            n.wait_for("another node of this job was started with --node-rank=1, too; each node needs one of its own, 0 to 2")
        assert "another node of this job" not in nodes[0].text()
        for n in nodes:
            n.signal(signal.SIGTERM)
        nodes.codes()


def test_taken_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other, lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(other.getsockname()[1], 0), "--no-python", "true")
        assert nodes.codes() == [1]
        assert "another program has it, choose another --master-port" in nodes[0].text()


def test_others_that_never_come_and_something_else_at_the_endpoint(tmp_path):
    """All at once, as each takes its time. A listener that never answers is named within 5 s; one that answers
    nonsense, at once."""
    lonely, absent = lib.free_port(), lib.free_port()
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.create_server(("127.0.0.1", 0)) as chatty, \
            lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(mute.getsockname()[1], 1), "--no-python", "true")
        nodes.crun(*options(chatty.getsockname()[1], 1), "--no-python", "true")
        nodes.crun(*options(lonely, 0, rdzv_conf="timeout=2"), "--no-python", "true")
        nodes.crun(*options(absent, 1, rdzv_conf="timeout=2"), "--no-python", "true")
        connection, _ = chatty.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes([255]) * 32)
        assert nodes.codes() == [1] * 4, nodes.texts()
        connection.close()
        for node, words in zip(nodes, (
                "it does not answer as a TCPStore does", "what answers there is no TCPStore",
                "timed out after 2 s waiting for the nodes of this job: 1 of 2 are there",
                f"node 0 could not be reached at 127.0.0.1 port {absent} for 2 s: connection refused")):
            assert words in node.text(), nodes.texts()


@pytest.mark.parametrize("when", ["joining", "running", "leaving"])
def test_told_to_stop(tmp_path, when):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, 0), "--no-python", "sh", "-c", "echo begun" + ("; sleep 600" if when == "running" else ""))
        if when == "joining":
            nodes[0].wait_for("1/2 nodes")
        else:
            nodes.crun(*options(port, 1), "--no-python", "sh", "-c", "echo begun; sleep 600")
            nodes[0].wait_for("begun")
            nodes[1].wait_for("begun")
        if when == "leaving":
            jobs.wait_for(lambda: not jobs.workers(nodes[0].pid))
        nodes[0].signal(signal.SIGTERM)
        assert nodes[0].wait(60) == 1, nodes.texts()


def test_a_restart_is_local(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, 0), "--no-python", "true")
        nodes.crun(*options(port, 1, max_restarts=1), "--no-python", "sh", "-c",
                   "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo again as $RANK")
        assert nodes.codes() == [0, 0], nodes.texts()
        assert "again as 1" in nodes[1].text()


def test_a_failure_ends_its_own_node(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, 0), "--no-python", "sh", "-c", "sleep 600")
        nodes.crun(*options(port, 1), "--no-python", "sh", "-c", "exit 7")
        assert nodes[1].wait(60) == 1
        assert "crun: rank 1 (local rank 0, pid " in nodes[1].text() and "exit code 7" in nodes[1].text()
        assert nodes[0].process.poll() is None


@pytest.mark.parametrize("args, sentence", [
    (["--nnodes=2", "--node-rank=2", "--master-port=1"], "the nodes of a job with --nnodes=2 are 0 to 1"),
    (["--nnodes=2", "--master-port=0"], "nodes that meet at a fixed address need a fixed port"),
    (["--nnodes=2", "--standalone"], "--standalone is for one node"),
    (["--nnodes=2", "--rdzv-endpoint=tcp://a:1"], "must be a dot-separated list of labels"),
    (["--nnodes=2", "--rdzv-conf=timeout=0", "--master-port=1"], "The timeout (0) must be positive."),
])
def test_refused(args, sentence):
    p = jobs.run([jobs.crun(), *args, "--no-python", "true"], timeout=30)
    assert p.returncode == 1 and sentence in p.stderr, p.stderr
