"""A static rendezvous of two nodes, each a real torchrun or a crun, with real gloo workers."""

import sys

import pytest

import nodes as lib

WORKER = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()} sum {t.item()}\\n".encode())  # one line, one write
dist.barrier()
"""


@pytest.mark.parametrize("launchers", ["crun crun", "crun torchrun", "torchrun crun"])
def test_two_nodes_of_different_size(build, torch_distributed, tmp_path, launchers):
    port = lib.free_port()
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    with lib.Nodes(tmp_path) as nodes:
        for rank, launcher in enumerate(launchers.split()):
            getattr(nodes, launcher)("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1",
                                     f"--master-port={port}", f"--nproc-per-node={2 - rank}", "--role=trainer",
                                     worker, env={"PYTHON_EXEC": sys.executable})
        assert nodes.codes(180) == [0, 0], nodes.texts()
        text = nodes[0].text() + nodes[1].text()
        assert all(f"rank {rank} of 3 sum 6.0" in text for rank in range(3)), nodes.texts()
