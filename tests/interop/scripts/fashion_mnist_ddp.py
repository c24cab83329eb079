"""A training as PyTorch users write it: DistributedDataParallel on Fashion-MNIST over gloo, one process per rank.

    torchrun --nproc-per-node=2 fashion_mnist_ddp.py --epochs 1 --limit 6000

Knows nothing of its launcher but the environment. Rank 0 prints the test accuracy at the end of each epoch, and
every rank a checksum of its parameters at the end.
"""

import argparse
import gzip
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 14 * 14, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))


def read(folder, name, header, limit):
    with gzip.open(os.path.join(folder, name)) as f:
        return np.frombuffer(f.read(), np.uint8, offset=header)[: limit]


def load(folder, part, limit):
    images = read(folder, f"{part}-images-idx3-ubyte.gz", 16, limit * 784).reshape(-1, 1, 28, 28)
    labels = read(folder, f"{part}-labels-idx1-ubyte.gz", 8, limit)
    return TensorDataset(torch.from_numpy(images.astype(np.float32) / 255), torch.from_numpy(labels.astype(np.int64)))


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=500))
    model.train()
    return right / len(data)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--limit", type=int, default=60000)
    p.add_argument("--loaders", type=int, default=0)
    p.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = p.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train, test = load(args.data, "train", args.limit), load(args.data, "t10k", max(500, args.limit // 6))
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch_size, sampler=sampler, num_workers=args.loaders)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy(model.module, test):.4f}", flush=True)
        dist.barrier()
    print(f"rank {rank} of {dist.get_world_size()} checksum {sum(p.double().sum() for p in model.parameters()):.12f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
