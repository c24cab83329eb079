"""Real workers of PyTorch that do not meet: crun names the rank that is missing and the key, or that the script looks for another store."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

import jobs
from strict import skip

HINT = re.compile(r"no worker has opened the worker store at 127\.0\.0\.1:(\d+): does the script set MASTER_ADDR or MASTER_PORT itself, or call "
                  r"mp\.spawn\? \(rank 0: .*init_process_group at wrong_port\.py:3; crun gave MASTER_ADDR=127\.0\.0\.1 and MASTER_PORT=\1\)")
SCRIPTS = {
    "sleeper": "import os, time, torch.distributed as dist\nif os.environ['RANK'] == '1':\n    time.sleep(1000)\ndist.init_process_group('gloo')\n",
    "wrong_port": "import os\nos.environ['MASTER_PORT'] = '1'\n__import__('torch').distributed.init_process_group('gloo')\n",
    "spawn": "import os, torch.distributed as dist, torch.multiprocessing as mp\ndef train(rank):\n    os.environ['MASTER_PORT'] = '1'\n"
             "    dist.init_process_group('gloo', rank=rank, world_size=2)\nif __name__ == '__main__':\n    mp.spawn(train, nprocs=1)\n",
    "no_torch": "import time\ndef init_process_group():\n    time.sleep(1000)\ninit_process_group()\n",
}


@contextlib.contextmanager
def job(folder, name, n_workers):
    script, path = folder / f"{name}.py", folder / name
    script.write_text(SCRIPTS[name])
    with open(path, "wb") as output:
        p = subprocess.Popen([jobs.crun(), "--standalone", f"--nproc-per-node={n_workers}", sys.executable, script], stdin=subprocess.DEVNULL,
                             stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield path
    finally:
        p.kill()
        p.wait()


@pytest.mark.usefixtures("build", "torch_distributed")
def test_ranks_that_do_not_meet(tmp_path):
    """A process of mp.spawn that does not meet has the hint, too. The store that is used and the script without PyTorch have no hint; the hint comes once, half a minute after the start."""
    if not shutil.which("py-spy", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]):
        skip("no py-spy")
    start = time.monotonic()
    with job(tmp_path, "sleeper", 2) as sleeper, job(tmp_path, "wrong_port", 1) as wrong_port, job(tmp_path, "no_torch", 1) as no_torch, \
            job(tmp_path, "spawn", 1) as spawn:
        jobs.wait_for(lambda: "no worker" in wrong_port.read_text(), 60)
        assert 28 < time.monotonic() - start, wrong_port.read_text()
        assert HINT.search(wrong_port.read_text()), wrong_port.read_text()
        jobs.wait_for(lambda: "stall:" in sleeper.read_text(), 30)
        assert re.search(r'stall: 1 of 2 ranks has waited \d+ s at key "default_pg/0//cpu//0/1" of the worker store, in init_process_group at '
                         r"sleeper\.py:4 for rank 1 on \S+ \(pid \d+\): sleeps", sleeper.read_text()), sleeper.read_text()
        jobs.wait_for(lambda: "no worker" in spawn.read_text(), 70)
        assert "does the script set MASTER_ADDR or MASTER_PORT itself, or call mp.spawn?" in spawn.read_text(), spawn.read_text()
        assert wrong_port.read_text().count("no worker") == 1
        assert "no worker" not in sleeper.read_text() + no_torch.read_text()
