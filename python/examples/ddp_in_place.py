"""ddp_snapshot.py with six lines changed: when a worker fails, the others stay in their processes.

    PYTHONPATH=python crun --standalone --nproc-per-node=4 --max-restarts=3 --restart-policy=replace \\
        python/examples/ddp_in_place.py SNAPSHOT

With PyTorch 2.14 or later. With an older one it is an ordinary script.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from crun_launch import worker
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
    worker.init_process_group("gloo")
    points = torch.rand(2400, 2) * 2 - 1
    dataset = TensorDataset(points, (points.norm(dim=1) < 0.7).long())
    loader = DataLoader(dataset, 20, sampler=DistributedSampler(dataset))
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = load_snapshot(path, model, optimizer)
    ddp = worker.Training(model, optimizer)
    for epoch in ddp.epochs(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in ddp.batches(loader):
            with ddp.step():
                optimizer.zero_grad()
                F.cross_entropy(ddp(x), y).backward()
                optimizer.step()
        if dist.get_rank() == 0:
            save_snapshot(path, model, optimizer, epoch)
            right = (model(points).argmax(1) == dataset.tensors[1]).float().mean().item()
            print(f"epoch {epoch + 1}/{EPOCHS}: {100 * right:.1f} % right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
