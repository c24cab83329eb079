"""PyTorch programs as people write them (tests/interop/scripts), started by crun, unmodified."""

import concurrent.futures
import os
import re
import sys

import pytest

pytest.importorskip("torch")
import jobs
import torch_rounds

ENVIRONMENT = {**os.environ, "PYTHON_EXEC": sys.executable}


def crun(*words):
    p = jobs.run([jobs.crun(), *map(str, words)], timeout=300, env=ENVIRONMENT)
    assert p.returncode == 0, p.stderr
    return p.stdout


def test_fashion_mnist_with_loader_processes():
    """Two ranks learn, each with a DataLoader that has a worker process of its own, and end with the same parameters."""
    out = crun("--nproc-per-node=2", "-t1", torch_rounds.SCRIPTS / "fashion_mnist_ddp.py", "--limit", 3000, "--loaders", 1)
    assert float(re.search(r"epoch 0 accuracy ([\d.]+)", out)[1]) > 0.4
    sums = re.findall(r"rank \d of 2 checksum (\S+)", out)
    assert len(sums) == 2 and sums[0] == sums[1]


@pytest.mark.parametrize("warm", ["0", "1"])
def test_collectives_by_env(monkeypatch, tmp_path, warm):
    """warm: forked workers; tests/soak warm-interop has all tests of this folder with them."""
    monkeypatch.setitem(ENVIRONMENT, "CRUN_WARM", warm)
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2 if warm == "1" else 1):  # the first run makes the list of modules
        collectives_by_env()


def collectives_by_env():
    assert crun("--standalone", "--nproc-per-node=3", torch_rounds.SCRIPTS / "collectives.py").count("fine") == 3


@pytest.mark.parametrize("unshared", ["0", "1"])
def test_crash_and_resume(monkeypatch, unshared):
    """tests/soak torch-resume does 100 of these. unshared: the first worker opens the store."""
    monkeypatch.setitem(torch_rounds.ENVIRONMENT, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", unshared)
    outcome, err = torch_rounds.resume_round([jobs.crun()])
    assert outcome == "recovered", err


def test_restart_with_skewed_ranks():
    """tests/soak restart-skew does 200 of these."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for outcome, err in pool.map(lambda _: torch_rounds.skew_round([jobs.crun()], 1), range(2)):
            assert outcome == "recovered", err
