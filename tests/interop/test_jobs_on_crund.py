"""Real PyTorch jobs whose only store is crund."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import jobs
from crund import Crund
from jobs import wait_until

# The launching side does not import torch, so its threads cannot disturb the jobs.
PATIENCE_S = 300  # six processes import PyTorch at once, on a machine that may be busy with something else
QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize("extra", [{}, {"TORCH_DIST_INIT_BARRIER": "1"}], ids=["plain", "init-barrier"])
def test_four_gloo_ranks(build, torch_distributed, extra):
    with Crund(build) as crund:
        ranks = []
        for rank in range(4):
            env = dict(os.environ, **QUIET, **extra, RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(crund.port), TORCHELASTIC_USE_AGENT_STORE="True")
            ranks.append(subprocess.Popen([sys.executable, str(jobs.ROOT / "tests/workers/torch_collectives.py")], env=env,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        try:
            for rank, p in enumerate(ranks):
                out, _ = p.communicate(timeout=PATIENCE_S)
                assert p.returncode == 0 and f"rank {rank} done" in out, out[-3000:]
        finally:
            for p in ranks:
                p.kill()
                p.wait()
        assert crund.log() == ""


WORKER = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
print("ROUND", os.environ["TORCHELASTIC_RESTART_COUNT"], "RANK", dist.get_rank(), "OF", dist.get_world_size(),
      "SUM", int(t.item()), flush=True)
flag = sys.argv[1]
while not os.path.exists(flag):  # until the test says so, or a partner is gone
    dist.all_reduce(t.fill_(1))
    time.sleep(0.05)
dist.barrier()
"""


class Agent:
    """A torchrun agent with one worker, in a session of its own so that all of it can be killed."""

    def __init__(self, number, endpoint, folder, script, flag):
        self.out = folder / f"agent{number}.log"
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=3:3", "--nproc-per-node=1",
                   "--max-restarts=5", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
                   # A dead node is noticed after 6 s; torchrun takes a live one that had no CPU time for so long
                   # for dead as well.
                   f"--rdzv-conf=join_timeout={PATIENCE_S},last_call_timeout=1,keep_alive_interval=1,"
                   "keep_alive_max_attempt=6",
                   "--monitor-interval=0.1", "--local-addr=127.0.0.1", str(script), str(flag)]
        # A store of its own for every attempt: torchrun's shared one hands out the dead attempt's addresses.
        env = dict(os.environ, **QUIET, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with open(self.out, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env,
                                            start_new_session=True)

    def lines(self):
        return re.findall(r"ROUND (\d+) RANK (\d+) OF (\d+) SUM (\d+)", self.out.read_text(errors="replace"))

    def kill(self):
        """The node dies: the agent and its worker, which torchrun puts into a session of its own."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.process.kill()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        self.process.wait(PATIENCE_S)


def test_torchrun_agents_meet_and_replace_a_dead_one(build, torch_distributed, tmp_path):
    script, flag = tmp_path / "worker.py", tmp_path / "finish"
    script.write_text(WORKER)
    agents = []
    with Crund(build) as crund:
        endpoint = f"127.0.0.1:{crund.port}"
        try:
            agents = [Agent(i, endpoint, tmp_path, script, flag) for i in range(3)]
            logs = lambda: "\n".join(a.out.read_text(errors="replace")[-3000:] for a in agents) + crund.log()
            assert wait_until(lambda: all(a.lines() for a in agents), PATIENCE_S), logs()
            assert {line[1] for a in agents for line in a.lines()} == {"0", "1", "2"}
            assert all(line[2:] == ("3", "3") for a in agents for line in a.lines())

            victim = agents.pop()
            survivors = list(agents)
            before = [len(a.lines()) for a in survivors]
            victim.kill()
            agents.append(Agent(3, endpoint, tmp_path, script, flag))
            started = time.monotonic()
            assert wait_until(lambda: agents[-1].lines() and all(
                len(a.lines()) > n for a, n in zip(survivors, before)), PATIENCE_S), logs()
            print(f"replaced after {time.monotonic() - started:.1f} s")
            assert all(a.lines()[-1][2:] == ("3", "3") for a in agents)

            flag.touch()
            for a in agents:
                assert a.process.wait(PATIENCE_S) == 0, logs()
        finally:
            for a in agents:
                if a.process.poll() is None:
                    a.kill()
