"""crun beside the real torchrun, and unmodified PyTorch programs under crun."""

import json
import os
import pathlib
import re
import sys

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import jobs

PYTHON = {"PYTHON_EXEC": sys.executable}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

DUMP = """
import json, os, sys
out = os.environ.pop("DUMP")
json.dump({"environment": dict(os.environ), "arguments": sys.argv, "flags": sys.flags.unbuffered if hasattr(sys.flags, "unbuffered") else None,
           "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:3]},
          open(f"{out}.{os.environ['RANK']}", "w"))
"""


def dumps(launcher, folder, name, options, n_workers, environment):
    (folder / "dump.py").write_text(DUMP)
    p = jobs.run([*launcher, *options, str(folder / "dump.py"), "a", "$local_rank"], timeout=120,
                 env={**environment, "DUMP": str(folder / name)})
    assert p.returncode == 0, p.stderr
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(n_workers)]


# Differs from run to run, or is ours and documented in crun(1).
VARYING = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
OURS = {"CRUN_NOTICE_FD"}
# torchrun passes on its own interpreter's settings; MASTER_ADDR there is the host's name, here loopback.
ADDRESS = {"MASTER_ADDR"}


@pytest.mark.parametrize("options, n_workers", [
    (["--standalone", "--nproc-per-node=2"], 2),
    (["--nproc_per_node=1", "--role=trainer", "--max-restarts=3"], 1),
    (["--standalone", "--nproc-per-node=2", "--virtual-local-rank"], 2),
    (["--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=29731", "--rdzv-id=job7"], 2),
    (["--nproc-per-node=2", "--signals-to-handle=SIGTERM,SIGUSR2"], 2),
])
def test_environment_is_torchruns(tmp_path, options, n_workers):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ODD": "a=b", "PET_MONITOR_INTERVAL": "0.05"}
    theirs = dumps(TORCHRUN, tmp_path, "torchrun", options, n_workers, environment)
    ours = dumps([jobs.crun()], tmp_path, "crun", options, n_workers, {**environment, **PYTHON})
    for rank in range(n_workers):
        a, b = theirs[rank], ours[rank]
        assert a["arguments"] == b["arguments"]
        env_a, env_b = a["environment"], b["environment"]
        assert set(env_b) - OURS - set(PYTHON) == set(env_a)
        fixed_address = any("master-port" in option for option in options)
        for name in set(env_a) - VARYING - (set() if fixed_address else ADDRESS):
            assert env_a[name] == env_b[name], name
        if fixed_address:
            assert env_a["MASTER_PORT"] == env_b["MASTER_PORT"] and env_a["TORCHELASTIC_RUN_ID"] == env_b["TORCHELASTIC_RUN_ID"]
        shape = [re.sub(r"[^/]+/(?=attempt_)", "", path["TORCHELASTIC_ERROR_FILE"].split("torchelastic_")[1].split("/", 1)[1])
                 for path in (env_a, env_b)]
        assert shape[0] == shape[1] == f"attempt_0/{rank}/error.json"


DDP = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((4, 8), float(rank + step))).mean().backward()
    optimizer.step()
    if sys.argv[1] == "crash" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1 and step == 2:
        os._exit(3)
total = sum(p.double().sum() for p in model.parameters()).detach()
sums = [torch.zeros_like(total) for _ in range(world)]
dist.all_gather(sums, total)
assert all(s == total for s in sums)
print("done", rank, world, os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("mode, restarts, unshared", [("fine", 0, "0"), ("crash", 1, "0"), ("crash", 1, "1")])
def test_gloo_training(tmp_path, mode, restarts, unshared):
    """unshared: the first worker opens the store."""
    (tmp_path / "ddp.py").write_text(DDP)
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", "--max-restarts=1", str(tmp_path / "ddp.py"), mode],
                 timeout=180, env={**os.environ, **PYTHON, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": unshared})
    assert p.returncode == 0, p.stderr
    assert sorted(p.stdout.splitlines()) == [f"done {rank} 2 {restarts}" for rank in range(2)]
    assert p.stderr.count("will restart worker group") == restarts


SKEW = """
import os, time
import torch.distributed as dist

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 1 and rank == 1:
    time.sleep(float(os.environ["SKEW"]))  # the other rank meets whatever the first attempt left in the store
dist.init_process_group("gloo")
dist.barrier()
if attempt == 0:
    os._exit(1)
dist.destroy_process_group()
"""


def test_restart_with_skewed_ranks(tmp_path):
    """torchrun 2.13 keeps the store of the first attempt, and a rank that comes early reads stale addresses."""
    (tmp_path / "skew.py").write_text(SKEW)
    for _ in range(int(os.environ.get("CRUN_TEST_SKEW_ROUNDS", 2))):
        p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", "--max-restarts=1", str(tmp_path / "skew.py")],
                     timeout=180, env={**os.environ, **PYTHON, "SKEW": os.environ.get("CRUN_TEST_SKEW", "1")})
        assert p.returncode == 0, p.stderr
