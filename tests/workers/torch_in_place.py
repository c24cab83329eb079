"""A PyTorch trainer whose ranks stay in their processes (crun_launch.worker), with a log for tests.

    torch_in_place.py FOLDER [--samples N] [--batch-size N] [--epochs N] [--pause-ms N] [--plain] [--device cuda]
                      [--kill RANK:STEP]

Images are those of Fashion-MNIST where Debian's package is installed, else random ones. Each process appends JSON lines to
FOLDER/RANK.PID:
    ["try", step, generation, epoch, [samples]]        in front of a step
    ["done", step, generation, world size, monotonic]  behind it, where the process group did not change in it
    ["end", step, checksum of the parameters, sum of their absolute values]
--kill: this rank of the first generation kills itself in front of that step, once the others have begun it.
--plain: without the module, for torchrun: all ranks begin at step 0 again after a failure.
"""

import argparse
import contextlib
import faulthandler
import hashlib
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import torch_mnist
from crun_launch import worker


class Plain(DistributedDataParallel):
    """The same loop without anything in place."""
    steps = n_regroups = 0

    def epochs(self, first, last):
        return range(first, last)

    def batches(self, loader):
        return loader

    @contextlib.contextmanager
    def step(self):
        yield
        self.steps += 1


def samples(n):
    numbers = torch.arange(n)
    if os.path.exists(torch_mnist.FASHION_MNIST):
        images = torch_mnist.read_idx(torch_mnist.FASHION_MNIST, "t10k-images-idx3-ubyte")[:n]
        labels = torch_mnist.read_idx(torch_mnist.FASHION_MNIST, "t10k-labels-idx1-ubyte")[:n]
        return TensorDataset(torch_mnist.images_as_input(images), torch.from_numpy(labels.astype("int64")), numbers)
    return TensorDataset(torch.randn(n, 1, 28, 28), torch.randint(0, 10, (n,)), numbers)


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Flatten(),
        torch.nn.Linear(1152, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def checksum(model):
    return hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--samples", type=int, default=4000)
    p.add_argument("--batch-size", type=int, default=10)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--pause-ms", type=float, default=10)
    p.add_argument("--plain", action="store_true")
    p.add_argument("--device", default="cpu")
    p.add_argument("--kill", default="-1:-1", metavar="RANK:STEP")
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if a.device == "cuda":  # else cuDNN's gradients may be summed in any order, and runs would differ without a fault
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)
    faulthandler.register(signal.SIGUSR2)  # for a look at a job that does not go on
    kill_rank, kill_step = map(int, a.kill.split(":"))
    (dist if a.plain else worker).init_process_group("nccl" if a.device == "cuda" else "gloo")
    dataset = samples(a.samples)
    model = network().to(a.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.95)
    ddp = Plain(model) if a.plain else worker.Training(model, optimizer, scheduler=scheduler)
    loader = DataLoader(dataset, a.batch_size, sampler=DistributedSampler(dataset))
    with open(f"{a.folder}/{os.environ['RANK']}.{os.getpid()}", "a", buffering=1) as log:
        def note(*what):
            log.write(json.dumps(what) + "\n")

        for epoch in ddp.epochs(0, a.epochs):
            for x, y, numbers in ddp.batches(loader):
                note("try", ddp.steps + 1, int(os.environ.get("CRUN_GENERATION", 0)), epoch, numbers.tolist())
                before = ddp.n_regroups
                if (dist.get_rank(), ddp.steps + 1, os.environ.get("CRUN_GENERATION")) == (kill_rank, kill_step, "0"):
                    time.sleep(0.2)
                    os.kill(os.getpid(), signal.SIGKILL)
                with ddp.step():
                    optimizer.zero_grad()
                    F.cross_entropy(ddp(x.to(a.device)), y.to(a.device)).backward()
                    optimizer.step()
                    scheduler.step()
                if ddp.n_regroups == before:
                    note("done", ddp.steps, int(os.environ.get("CRUN_GENERATION", 0)), dist.get_world_size(), time.monotonic())
                if worker.stop_requested():
                    return
                time.sleep(a.pause_ms / 1000)
        note("end", ddp.steps, checksum(model), sum(q.abs().double().sum().item() for q in model.parameters()))
    del ddp  # in front of the group: see the examples
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
