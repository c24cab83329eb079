"""`train` under one crun for each of two nodes: ranks of a node share memory, nodes speak over TCP."""

import re

import pytest

import jobs
from nodes import Nodes, free_port

ARGS = ("classifier", "--epochs", "3")


def start(nodes, *train_args, crun_args=()):
    endpoint = f"--rdzv-endpoint=localhost:{free_port()}"
    for _ in range(2):
        nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", endpoint, "--rdzv-id=train",
                   *crun_args,
                   "--no-python", jobs.train(), *train_args)


def learned(text):
    return re.findall(r"parameters ([0-9a-f]{8})", text)[-1]


@pytest.fixture(scope="module")
def undisturbed():
    p = jobs.run(jobs.train_job(4, *ARGS[1:], program=ARGS[0]))
    assert p.returncode == 0, p.stderr
    return learned(p.stdout)


def test_the_bits_of_one_node(tmp_path, undisturbed):
    with Nodes(tmp_path) as nodes:
        start(nodes, *ARGS)
        assert nodes.codes() == [0, 0], nodes.texts()
        assert learned("".join(node.text() for node in nodes)) == undisturbed


def test_a_kill_on_one_node_costs_no_bit(tmp_path, undisturbed):
    """Rank 3 kills itself in a step; all ranks of both nodes leave, come again and end as if nothing had been."""
    with Nodes(tmp_path) as nodes:
        start(nodes, *ARGS, "--snapshot-dir", tmp_path / "snapshots", "--snapshot-every", "10",
              "--fault", "rank=3,step=40,kind=kill", crun_args=("--max-restarts=1",))
        assert nodes.codes() == [0, 0], nodes.texts()
        text = "".join(node.text() for node in nodes)
    assert "rank 3 was killed by signal 9" in text or "rank 3 ended" in text, text[-3000:]
    assert "resumed from " in text  # the snapshot, or what crun holds in memory where that is newer
    assert learned(text) == undisturbed
