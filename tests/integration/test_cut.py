"""A cut between the hosts of two nodes that both reach the rendezvous: it is named, and one of them is left out."""

import contextlib
import re
import subprocess

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from crund import Crund
from jobs import wait_until
from strict import skip_if

CUT = "host2 (node 2) was lost: the network between it and host1 is cut, and the rendezvous reaches both"


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(4) as made:
        yield made


class Job:
    """Hosts 0 to 2 train with libcrw, crund is on host 3."""

    def __init__(self, fabric, tmp_path, data, nnodes, crund, nodes):
        self.fabric, self.data, self.nnodes, self.crund, self.nodes = fabric, data, nnodes, crund, nodes
        self.metrics = tmp_path / "metrics"

    def start(self, env=None, max_restarts=0):
        for host in range(3):
            self.nodes.crun(f"--nnodes={self.nnodes}", "--nproc-per-node=1", "--rdzv-backend=c10d",
                            f"--rdzv-endpoint={self.fabric.address(3)}:29400", "--rdzv-id=j", f"--rdzv-conf=last_call_timeout=5",
                            f"--max-restarts={max_restarts}", "--security=open", "--no-python", jobs.train(), "mnist",
                            "--data", self.data, "--epochs", "1000000", "--metrics", self.metrics,
                            prefix=self.fabric.prefix(host), env=env)

    def cut(self, *directions):
        """Packets from the first to the second host of each vanish."""
        for source, to in directions:
            self.fabric.drop(to, "input", f"ip saddr {self.fabric.address(source)}")

    def log_has(self, text, seconds=120):
        assert wait_until(lambda: text in self.crund.log(), seconds), f"{self.crund.log()}\n{self.nodes.texts()}\n{self.status()}"

    def trains(self):
        assert wait_until(lambda: self.metrics.exists() and self.metrics.stat().st_size > 0, 120), self.nodes.texts()

    def status(self):
        """What each node shows of the job, and all of its processes."""
        shown = subprocess.run([jobs.build_folder() / "launcher/crunctl", "--json", "status"], text=True, stdout=subprocess.PIPE,
                               timeout=30).stdout.splitlines()
        pids = [str(pid) for node in self.nodes for pid in (node.pid, *jobs.descendants(node.pid))]
        processes = subprocess.run(["ps", "-o", "pid,ppid,stat,wchan:30,etimes,args", "-p", ",".join(pids)], text=True,
                                   stdout=subprocess.PIPE).stdout
        return "\n".join([line for line in shown if re.search(r'"crun_pid":(\d+)', line)[1] in pids] + [processes])


@pytest.fixture
def job(fabric, tmp_path, small_data):
    with contextlib.ExitStack() as stack:
        def make(nnodes):
            crund = stack.enter_context(Crund(jobs.build_folder(), listen=(fabric.address(3) + ":29400",), wrapper=fabric.prefix(3)))
            return Job(fabric, tmp_path, small_data, nnodes, crund, stack.enter_context(lib.Nodes(tmp_path)))
        yield make
    for host in range(3):
        fabric.heal(host)


def test_one_of_two_hosts_without_a_path_is_left_out(job):
    """Packets between hosts 1 and 2 vanish while they train."""
    j = job("2:3")
    j.start()
    j.log_has("generation 0 runs: 3 nodes")
    j.trains() # ranks that do not meet yet have no connection that could fall silent
    j.cut((1, 2), (2, 1))
    j.log_has("generation 1 runs: 2 nodes")
    j.log_has(CUT)
    j.nodes[0].wait_for("left out: host2: its network is cut off from host1")
    assert re.search(r"restarts 0 of 0, membership changes 1", j.crund.log()), j.crund.log()


@pytest.mark.parametrize("directions", [((1, 2), (2, 1)), ((1, 2),)], ids=["both directions", "one direction"])
def test_a_cut_that_is_there_before_ranks_connect(job, directions):
    """The two have never reached each other."""
    j = job("2:3")
    j.cut(*directions)
    j.start(env={"CRW_TIMEOUT_MS": "12000"})
    j.log_has("generation 1 runs: 2 nodes")
    j.log_has(CUT)
    j.trains()
    assert re.search(r"restarts 0 of 0, membership changes 1", j.crund.log()), j.crund.log()


def test_new_connections_alone_are_dropped_in_one_direction(job):
    """As a firewall does that lets out what it does not let in: host 1 can connect to host 2, and not the other way."""
    j = job("2:3")
    j.fabric.drop(1, "input", f"ip saddr {j.fabric.address(2)} ct state new")
    j.start(env={"CRW_TIMEOUT_MS": "12000"})
    j.log_has("generation 1 runs: 2 nodes")
    j.log_has(CUT)
    j.trains()


def test_the_result_names_the_hosts_where_none_can_be_left_out(job):
    j = job("3")
    j.cut((1, 2), (2, 1))
    j.start(env={"CRW_TIMEOUT_MS": "12000"}, max_restarts=1)
    for node in j.nodes:
        assert node.wait(120) == 1
        assert re.search(r"hosts host[12] and host[12] cannot reach each other", node.text()), node.text()
    assert len(re.findall(r"hosts host[12] and host[12] cannot reach each other", j.crund.log())) >= 2, j.crund.log()


def test_a_cut_that_heals_while_ranks_connect_is_none(job):
    """Nor is it when a worker fails later."""
    j = job("2:3")
    j.cut((1, 2), (2, 1))
    j.start(max_restarts=1)
    j.log_has("generation 0 runs: 3 nodes")
    assert not wait_until(j.metrics.exists, 8) # an attempt takes 5 s
    j.fabric.heal(1)
    j.fabric.heal(2)
    j.trains()
    jobs.kill(jobs.workers_named(j.nodes[2].pid, "train").popitem()[1])
    j.log_has("generation 1 runs: 3 nodes")
    assert "cut" not in j.crund.log(), j.crund.log()
