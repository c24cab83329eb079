"""Trains a small network with DistributedDataParallel, and keeps a snapshot of each epoch.

    crun --standalone --nproc-per-node=4 --max-restarts=3 python/examples/ddp_snapshot.py SNAPSHOT

An ordinary script: torchrun starts it, too. After a failure all workers are started again and go on from the snapshot.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 3


def load_snapshot(path, model, optimizer):
    """The epoch to begin with."""
    if not os.path.exists(path):
        return 0
    snapshot = torch.load(path, weights_only=True)
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    return snapshot["epoch"] + 1


def save_snapshot(path, model, optimizer, epoch):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path + ".new")
    os.replace(path + ".new", path)


def main():
    path = sys.argv[1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    points = torch.rand(2400, 2) * 2 - 1
    dataset = TensorDataset(points, (points.norm(dim=1) < 0.7).long())
    loader = DataLoader(dataset, 20, sampler=DistributedSampler(dataset))
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = load_snapshot(path, model, optimizer)
    ddp = DistributedDataParallel(model)
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            save_snapshot(path, model, optimizer, epoch)
            right = (model(points).argmax(1) == dataset.tensors[1]).float().mean().item()
            print(f"epoch {epoch + 1}/{EPOCHS}: {100 * right:.1f} % right", flush=True)
    del ddp  # in front of the group, as its reducer would end the group with the interpreter's lock held: PyTorch can block there
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
