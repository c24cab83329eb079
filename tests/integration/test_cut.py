"""A cut between the hosts of two nodes that both reach the rendezvous: it is named, and one of them is left out."""

import re

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from crund import Crund
from jobs import wait_until
from strict import skip_if

CUT = "the network between it and host1 is cut, and the rendezvous reaches both"


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(4) as made:
        yield made


def test_one_of_two_hosts_without_a_path_is_left_out(fabric, tmp_path, small_data):
    """Hosts 0 to 2 train with libcrw, crund is on host 3. Packets between hosts 1 and 2 vanish."""
    metrics = tmp_path / "metrics"
    with Crund(jobs.build_folder(), listen=(fabric.address(3) + ":29400",), wrapper=fabric.prefix(3)) as crund, \
            lib.Nodes(tmp_path) as nodes:
        for host in range(3):
            nodes.crun("--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(3)}:29400",
                       "--rdzv-id=j", "--rdzv-conf=last_call_timeout=5", "--max-restarts=0", "--security=open", "--no-python",
                       jobs.train(), "mnist", "--data", small_data, "--epochs", "1000000", "--metrics", metrics,
                       prefix=fabric.prefix(host))
        assert wait_until(lambda: "generation 0 runs: 3 nodes" in crund.log(), 120), crund.log()
        # Ranks that do not meet yet have no connection that could fall silent.
        assert wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, 120), nodes.texts()
        fabric.drop(2, "input", f"ip saddr {fabric.address(1)}")
        fabric.drop(1, "input", f"ip saddr {fabric.address(2)}")
        assert wait_until(lambda: "generation 1 runs: 2 nodes" in crund.log(), 120), (crund.log(), nodes.texts())
        assert "host2 (node 2) was lost: " + CUT in crund.log(), crund.log()
        nodes[0].wait_for("left out: host2: its network is cut off from host1")
        assert re.search(r"restarts 0 of 0, membership changes 1", crund.log()), crund.log()
