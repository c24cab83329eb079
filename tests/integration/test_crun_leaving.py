"""Told to stop while the network is down, to stop one node of several, and nodes that come and go in a hurry."""

import os
import pathlib
import random
import re
import signal
import time

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from strict import skip_if

LONG = os.environ.get("CRUN_TESTS_SOAK") == "1"  # tests/soak leaving
GONE_S = 20 if LONG else 28  # schedulers kill after 30, and the machine of a short test may be busy


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(2) as made:
        yield made


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


PARTINGS = [("serves", "2", True), ("is cut off", "2", True)]
if LONG:
    PARTINGS += [("serves", "1:2", True), ("is cut off", "1:2", True), ("is cut off", "2", False), ("serves", "2", False)]


@pytest.mark.parametrize("survivor, nnodes, at_once", PARTINGS)
def test_sigterm_after_the_partner_was_lost(fabric, tmp_path, survivor, nnodes, at_once):
    """The cable is pulled, then, at once or when that was noticed, one node is told to stop: it and all its processes
    are gone within 20 s, though the one it would ask may be out of reach."""
    told = 0 if survivor == "serves" else 1
    try:
        with lib.Nodes(tmp_path) as nodes:
            for host in range(2):
                nodes.crun(f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                           "--rdzv-id=job", f"--node-rank={host}", "--nproc-per-node=2", "--no-python", "sh", "-c",
                           "echo STARTED $CRUN_GENERATION; sleep 600 & exec sleep 600", prefix=fabric.prefix(host))
            for node in nodes:
                jobs.wait_for(lambda: node.text().count("STARTED 0") == 2, 60, 0.02)
            # The guardian, two workers, and what each of them starts after it has spoken.
            below = jobs.wait_for(lambda: len(found := jobs.descendants(nodes[told].pid)) >= 5 and found)
            fabric.link(1 - told, "down")
            if not at_once:
                nodes[told].wait_for("1/2 nodes" if survivor == "serves" else "has stopped replying")
            at = time.monotonic()
            nodes[told].signal(signal.SIGTERM)
            assert nodes[told].wait(60) == 1
            took = time.monotonic() - at
            print(f"{survivor}, --nnodes={nnodes}: gone {took:.2f} s after SIGTERM")
            assert not any(map(is_alive, below)), nodes.texts()
            assert took <= GONE_S, (took, nodes.texts())
    finally:
        fabric.link(1 - told, "up")


# ---------------------------------------------------------------- a scheduler wants one node back


@pytest.mark.parametrize("who", range(3) if LONG else [1])
def test_sigterm_to_one_node_of_a_training_job(tmp_path, who):
    """The ranks of all nodes end after the same step, with one snapshot of it, and the job goes on from there."""
    port, snapshots = lib.free_port(), tmp_path / "snapshots"
    args = [jobs.train(), "classifier", "--epochs", "1000000", "--log-every", "0", "--snapshot-dir", snapshots,
            "--snapshot-every", "1000000", "--save-every-epochs", "1000000"]

    def start(nodes, *more):
        for rank in range(3):
            nodes.crun("--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       f"--node-rank={rank}", "--no-python", *args, *more)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    with lib.Nodes(first) as nodes:
        start(nodes)
        nodes[0].wait_for("epoch 3/")
        nodes[who].signal(signal.SIGTERM)
        assert nodes.codes() == [1, 1, 1], nodes.texts()
        assert all("start the job again to go on" in n.text() and "has failed" not in n.text() for n in nodes), nodes.texts()
        steps = re.findall(r"stopped on request after step (\d+)", nodes.texts())
    assert len(set(steps)) == 1, steps
    assert [f.name for f in snapshots.glob("snap*.safetensors")] == [f"snap-{int(steps[0]):012}.safetensors"]
    with lib.Nodes(second) as nodes:
        start(nodes, "--max-steps", int(steps[0]) + 3)
        assert nodes.codes() == [0, 0, 0], nodes.texts()
        assert re.search(rf"resumed from .*{steps[0]}", nodes.texts()), nodes.texts()


# ---------------------------------------------------------------- nodes that come and go, workers that fail

N_HASTY = 20 if LONG else 1
MAX_RESTARTS = 3


@pytest.mark.parametrize("round_", range(N_HASTY))
def test_nodes_in_a_hurry_do_not_stretch_the_budget(tmp_path, round_):
    """One of three nodes is killed or told to leave again and again and started anew at once, while workers of all three
    fail. Restarts are one number for the whole job: each failure one, no coming or going any, and none beyond the limit."""
    port = lib.free_port()
    chance = random.Random(round_)

    def start(nodes):
        return nodes.crun("--nnodes=2:3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                          "--rdzv-conf=last_call_timeout=1", f"--max-restarts={MAX_RESTARTS}",
                          "--no-python", "sh", "-c", "echo AT $CRUN_GENERATION $TORCHELASTIC_RESTART_COUNT $WORLD_SIZE; exec sleep 600")

    def runs(nodes, n, after, count):
        """The newest generation, once all of its n nodes have a worker in it and so many restarts were charged."""
        at = [[tuple(map(int, m)) for m in re.findall(r"^AT (\d+) (\d+) (\d+)$", node.text(), re.M)] for node in nodes]
        newest = max((line[-1][0] for line in at if line), default=-1)
        here = [line[-1] for line in at if line and line[-1][0] == newest]
        return newest > after and len(here) == n and all(line[2] == n for line in here) and here[0][1] >= count and here[0]

    def settle(nodes, after, expected):
        try:
            generation, count, _ = jobs.wait_for(lambda: runs(nodes, 3, after, expected), 60, 0.01)
        except AssertionError:
            raise AssertionError(f"no generation of all nodes after {after}, {expected} restarts\n{nodes.texts()}") from None
        assert count == expected, nodes.texts()
        return generation
    with lib.Nodes(tmp_path) as nodes:
        start(nodes)
        nodes[0].wait_for("1/3 nodes")
        start(nodes), start(nodes)
        generation = settle(nodes, -1, 0)
        for failures in range(1, MAX_RESTARTS + 2):
            for _ in range(chance.randrange(1, 3)):
                nodes[-1].signal(chance.choice([signal.SIGKILL, signal.SIGTERM]))
                start(nodes)  # at once
                generation = settle(nodes, generation, failures - 1)
            victim = chance.choice([nodes[0], nodes[1], nodes[-1]])
            # Waited for: one that is just executing another program shows no environment.
            jobs.kill(next(iter(jobs.wait_for(lambda: jobs.workers(victim.pid), 60).values())))
            if failures <= MAX_RESTARTS:
                generation = settle(nodes, generation, failures)
        for node in (nodes[0], nodes[1], nodes[-1]):
            assert node.wait(60) == 1
            assert "crun: the job has failed on all nodes: " in node.text(), nodes.texts()
            assert f"crun: all {MAX_RESTARTS} restarts are used" in node.text(), nodes.texts()
        assert max(int(n) for n in re.findall(r"^AT \d+ (\d+) ", nodes.texts(), re.M)) == MAX_RESTARTS


# ---------------------------------------------------------------- what a killed crun leaves


@pytest.mark.parametrize("tee", [False, True])
def test_killed_crun_leaves_no_empty_folders(tmp_path, tee):
    """The folder for logs and error files goes with it, unless there is something in it for people to read."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    script = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; echo HERE; exec sleep 600"
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun("--standalone", "--nproc-per-node=2", "--max-restarts=1", *(["--tee=3"] if tee else []), "--no-python", "sh", "-c",
                   script, env={"TMPDIR": str(temporary)})
        jobs.wait_for(lambda: nodes[0].text().count("HERE") == 2, 60, 0.01)
        assert len(list(temporary.iterdir())) == 1
        below = jobs.descendants(nodes[0].pid)
        nodes[0].signal(signal.SIGKILL)
        jobs.wait_for(lambda: not any(map(is_alive, below)), 60, 0.01)
        if tee:
            assert any(f.read_text() == "HERE\n" for f in temporary.rglob("stdout.log"))
        else:
            assert list(temporary.iterdir()) == []
