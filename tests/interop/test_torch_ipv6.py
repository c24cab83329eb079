"""Hosts that have IPv6 alone: real gloo workers meet at a numeric MASTER_ADDR of that kind."""

import sys

import pytest

import fabric as fabrics
import nodes as lib
from strict import skip_if
from test_static_nodes import WORKER

ETC = {"hosts": "::1 localhost\n", "nsswitch.conf": "hosts: files\n"}


@pytest.fixture
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(2) as made:
        for host in range(2):
            fabrics.sh(f"ip -n {made.space(host)} addr del {made.address(host)}/24 dev eth0")
        yield made


def test_gloo_on_hosts_without_ipv4(build, torch_distributed, tmp_path, fabric):
    etc = tmp_path / "etc"
    etc.mkdir()
    for name, text in ETC.items():
        (etc / name).write_text(text)
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER + 'import os\nprint("met at", os.environ["MASTER_ADDR"], flush=True)\n')
    with lib.Nodes(tmp_path) as nodes:
        for host in range(2):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=[{fabric.address6(0)}]:29400",
                       f"--node-rank={host}", worker, prefix=fabric.prefix_with_etc(host, etc),
                       env={"PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "eth0"})
        assert nodes.codes(180) == [0, 0], nodes.texts()
        text = nodes[0].text() + nodes[1].text()
        assert all(f"rank {rank} of 2 sum 3.0" in text for rank in range(2)), nodes.texts()
        assert text.count(f"met at {fabric.address6(0)}") == 2, nodes.texts()
