"""Trains a small network with FSDP2 (fully_shard). The twin of fsdp_memory.py, without memory: a failure costs all steps.

    crun --standalone --nproc-per-node=4 --max-restarts=3 python/examples/fsdp_plain.py
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def batch(step):
    """The points of this rank in a step, and whether they lie in a circle."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    points = torch.rand(64, 2, generator=generator) * 2 - 1
    return points, (points.norm(dim=1) < 0.7).long()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}/{STEPS}: loss {loss.item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
