#!/usr/bin/env python3
"""The same training step in PyTorch and in libcrw, one thread each, in turns; prints the ratio.

    python3 tests/bench/train_step_bench.py build/tests/bench/train_step_bench [seconds]

Both count processor time of one thread, so that neighbours on the machine matter little. PyTorch runs with
its default Adadelta (one tensor after the other), with foreach=True, and under DistributedDataParallel in a
world of one over gloo, which is what a rank of a DDP job computes before it waits for its peers.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
BATCH = 64


def mnist():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(1),
    )  # fmt: skip


def torch_speed(net, seconds, **options):
    x = torch.rand(BATCH, 1, 28, 28)
    target = torch.arange(BATCH) % 10
    optimizer = torch.optim.Adadelta(net.parameters(), lr=0.01, **options)

    def step():
        optimizer.zero_grad()
        F.nll_loss(net(x), target).backward()
        optimizer.step()

    step()
    best = 0.0
    for _ in range(5):
        n, start = 0, time.process_time()
        while (passed := time.process_time() - start) < seconds / 5:
            step()
            n += 1
        best = max(best, n * BATCH / passed)
    return best


def crw_speed(program, seconds):
    output = subprocess.run(
        [program, str(seconds)],
        check=True, capture_output=True, text=True, env={**os.environ, "CRW_BENCH_BRIEF": "1"},
    ).stdout  # fmt: skip
    return float(output)


def main():
    program = sys.argv[1]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    ddp = nn.parallel.DistributedDataParallel(mnist())
    rows = [
        ("PyTorch", torch_speed(mnist(), seconds)),
        ("PyTorch, foreach", torch_speed(mnist(), seconds, foreach=True)),
        ("PyTorch, DDP", torch_speed(ddp, seconds)),
    ]
    crw = crw_speed(program, seconds)
    dist.destroy_process_group()
    for name, speed in rows:
        print(f"{name:<18} {speed:8.0f} images/s   libcrw is {crw / speed:.1f} times as fast")
    print(f"{'libcrw':<18} {crw:8.0f} images/s")


if __name__ == "__main__":
    main()
