"""DistributedDataParallel over gloo on a tiny network, for ever; appends "step RANK WORLD NS PID" to the file named by
its argument when its first step is done."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
told = False
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if not told:
        with open(sys.argv[1], "a") as out:
            out.write(f"step {dist.get_rank()} {dist.get_world_size()} {time.monotonic_ns()} {os.getpid()}\n")
        told = True
    time.sleep(0.01)
