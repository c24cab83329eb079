"""gloo's process group over two hosts, whose ranks meet in the stores of a sealed job."""

import re
import sys

import pytest

import fabric as fabrics
import nodes as lib
from job_secret import write_secret
from strict import skip_if

WORKER = """
import os
def say(*words):  # in one piece: workers share the output
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((1000,), float(rank + 1))
dist.all_reduce(x)
seen = [None] * size
dist.all_gather_object(seen, (rank, os.environ["GROUP_RANK"]))
half = dist.new_group([0, size - 1])
y = torch.full((3,), float(rank))
if rank in (0, size - 1):
    dist.broadcast(y, size - 1, group=half)
dist.barrier()
say("GLOO", rank, os.environ["MASTER_ADDR"], x.unique().tolist(), y.tolist(), len({host for _, host in seen}))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(2) as made:
        yield made


@pytest.mark.parametrize("mode", ["--seal", "--worker-store=local"])
def test_gloo_over_two_hosts(fabric, tmp_path, mode):
    secret, worker = tmp_path / "secret", tmp_path / "worker.py"
    write_secret(secret)
    worker.write_text(WORKER)
    with lib.Nodes(tmp_path) as nodes:
        for host in (0, 1):
            nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                       "--rdzv-id=gloo", mode, f"--secret-file={secret}", worker, prefix=fabric.prefix(host),
                       env={"PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "eth0"})
        assert nodes.codes(180) == [0, 0], nodes.texts()
        found = re.findall(r"GLOO (\d) (\S+) \[(\S+)\] (\[.*?\]) (\d)", "".join(nodes.texts()))
        assert sorted(f[0] for f in found) == ["0", "1", "2", "3"], nodes.texts()
        assert {f[1:3] for f in found} == {("127.0.0.1", "10.0")}
        assert {f[4] for f in found} == {"2"}
        assert [f[3] for f in sorted(found)] == ["[3.0, 3.0, 3.0]", "[1.0, 1.0, 1.0]", "[2.0, 2.0, 2.0]", "[3.0, 3.0, 3.0]"]
