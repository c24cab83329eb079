"""DistributedDataParallel over gloo on a tiny network, for ever, 20 steps a second; each step sets the time of the file
FOLDER/step.GENERATION.RANK.

    torch_ddp_steps.py FOLDER
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
generation = os.environ.get("CRUN_GENERATION", os.environ["TORCHELASTIC_RESTART_COUNT"])
done = pathlib.Path(sys.argv[1]) / f"step.{generation}.{dist.get_rank()}"
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    done.touch()
    time.sleep(0.05)
