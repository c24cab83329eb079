"""PyTorch programs (tests/interop/scripts) in each mode of the worker store; tests/soak interop-modes has more of them."""

import os
import re
import sys

import pytest

pytest.importorskip("torch")
import job_store
import nodes as lib
import torch_rounds

SOAK = os.environ.get("CRUN_TESTS_SOAK")
ENVIRONMENT = {"PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "lo"}


def run(tmp_path, mode, *program):
    """The output of four ranks, on one node or two."""
    n_nodes = 1 if mode == "standalone" else 2
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(n_nodes):
            nodes.crun(*job_store.options(mode, tmp_path, port), f"--nproc-per-node={4 // n_nodes}", "--max-restarts=1",
                       *program, env=ENVIRONMENT)
        assert nodes.codes(300) == [0] * n_nodes, nodes.texts()
        return "".join(nodes.texts())


@pytest.mark.parametrize("mode", job_store.MODES)
def test_collectives(tmp_path, mode):
    assert run(tmp_path, mode, torch_rounds.SCRIPTS / "collectives.py").count("fine") == 4


@pytest.mark.skipif(not SOAK, reason="a part of tests/soak interop-modes")
@pytest.mark.parametrize("mode", job_store.MODES)
def test_training(tmp_path, mode):
    out = run(tmp_path, mode, torch_rounds.SCRIPTS / "fashion_mnist_ddp.py", "--limit", 3000)
    sums = re.findall(r"rank \d of 4 checksum (\S+)", out)
    assert len(sums) == 4 and len(set(sums)) == 1, out
