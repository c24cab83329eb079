"""The training loop of `train` in PyTorch: DistributedDataParallel over gloo, same order, same arithmetic.

The peers torch_toy.py, torch_classifier.py and torch_mnist.py bring a network and samples; options and
metrics are those of `train`. Run under torchrun or crun:

    crun --standalone --nproc-per-node 2 tests/workers/torch_toy.py --epochs 2 --metrics out.jsonl

Rank 0 appends one JSON line per epoch, and with --log-every one per step, with the fields of `train --metrics`.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "adadelta": torch.optim.Adadelta}


def arguments(optimizer, lr, epochs, batch_size, log_every=0):
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=epochs)
    p.add_argument("--max-steps", type=int, default=0)
    p.add_argument("--batch-size", type=int, default=batch_size)
    p.add_argument("--accumulate", type=int, default=1)
    p.add_argument("--optimizer", choices=OPTIMIZERS, default=optimizer)
    p.add_argument("--lr", type=float, default=lr)
    p.add_argument("--lr-schedule", default="constant", help="constant, step:EVERY:GAMMA or cosine:EPOCHS")
    p.add_argument("--clip-norm", type=float, default=0)
    p.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--metrics")
    p.add_argument("--log-every", type=int, default=log_every)
    return p


def make_scheduler(optimizer, text):
    kind, *values = text.split(":")
    if kind == "step":
        return torch.optim.lr_scheduler.StepLR(optimizer, int(values[0]), float(values[1]))
    if kind == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(values[0]))
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)


def count_correct(model, x, y):
    model.eval()
    correct = 0
    with torch.no_grad():
        for i in range(0, len(x), 1000):
            correct += (model(x[i : i + 1000]).argmax(1) == y[i : i + 1000]).sum().item()
    model.train()
    return correct / len(x)


def mean_over_ranks(value):
    mean = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def accuracy_over_ranks(out, targets):
    """Gathers who was right, as the classifier does at every batch."""
    mine = out.argmax(1) == targets
    all_flags = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_flags, mine)
    flags = torch.cat(all_flags)
    return flags.sum().item() / flags.numel()


class Log:
    def __init__(self, path):
        self.file = open(path, "a") if path and dist.get_rank() == 0 else None

    def write(self, line):
        if self.file:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


class Trainer:
    def __init__(self, a, make_net, loss_of, samples_name="samples", gathers=False):
        """make_net is called after the seed is set; gathers: who was right is gathered at every batch."""
        torch.set_num_threads(1)
        torch.manual_seed(a.seed)
        self.a, self.loss_of, self.samples_name, self.gathers = a, loss_of, samples_name, gathers
        self.net = make_net()
        self.model = DistributedDataParallel(self.net)
        self.optimizer = OPTIMIZERS[a.optimizer](self.model.parameters(), lr=a.lr)
        self.scheduler = make_scheduler(self.optimizer, a.lr_schedule)
        self.log = Log(a.metrics)
        self.steps = 0

    def batch(self, x, y, n_batches, last):
        """Forward and backward of one batch of a step; returns its loss and accuracy."""
        rounding = torch.autocast("cpu", torch.bfloat16) if self.a.precision == "bf16" else contextlib.nullcontext()
        with contextlib.nullcontext() if last else self.model.no_sync():
            with rounding:
                out = self.model(x).float()
            loss = self.loss_of(out, y)
            (loss / n_batches if n_batches > 1 else loss).backward()
        return loss.item(), accuracy_over_ranks(out, y) if self.gathers else math.nan

    def step(self, x, y, batches):
        self.optimizer.zero_grad()
        done = [self.batch(x[b], y[b], len(batches), i == len(batches) - 1) for i, b in enumerate(batches)]
        if self.a.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.a.clip_norm)
        self.optimizer.step()
        self.steps += 1
        losses, accuracies = zip(*done)
        if self.a.log_every:
            loss, accuracy = mean_over_ranks(sum(losses) / len(losses)), sum(accuracies) / len(accuracies)
            if self.steps % self.a.log_every == 0 and dist.get_rank() == 0:
                print(f"step {self.steps}  loss {loss:.6f}  accuracy {100 * accuracy:.2f} %", flush=True)
                self.log.write({"step": self.steps, "step_loss": loss,
                                "step_accuracy": None if math.isnan(accuracy) else accuracy})
        return losses

    def epoch(self, x, y, order):
        a, losses = self.a, []
        batches = [order[i : i + a.batch_size] for i in range(0, len(order), a.batch_size)]
        for i in range(0, len(batches), a.accumulate):
            if a.max_steps and self.steps == a.max_steps:
                break
            losses += self.step(x, y, batches[i : i + a.accumulate])
        return losses

    def train(self, x, y, test=None):
        a, world = self.a, dist.get_world_size()
        if a.limit:
            x, y = x[: a.limit], y[: a.limit]
        sampler = DistributedSampler(range(len(x)), world, dist.get_rank(), shuffle=True, seed=a.seed)
        for epoch in range(a.epochs):
            sampler.set_epoch(epoch)
            order = torch.tensor(list(sampler))
            started, before = time.monotonic(), self.steps
            losses = self.epoch(x, y, order)
            seconds = time.monotonic() - started
            if a.max_steps and self.steps == a.max_steps:
                break
            loss = sum(losses) / len(losses)
            line = {
                "epoch": epoch + 1,
                "step": self.steps,
                "loss": loss,
                "loss_all": mean_over_ranks(loss),
                f"{self.samples_name}_per_s": len(order) * world / seconds,
                "steps_per_s": (self.steps - before) / seconds,
                "test_accuracy": count_correct(self.net, *test) if test and dist.get_rank() == 0 else None,
            }
            self.log.write(line)
            if dist.get_rank() == 0:
                print(json.dumps(line), flush=True)
            self.scheduler.step()


def leave_together():
    """Ends this process when all ranks are here, without taking the process group apart: now and then gloo's
    threads abort a rank on the way out, when everything is done and written."""
    store = dist.distributed_c10d._get_default_store()
    store.add("left", 1)
    try:
        while store.add("left", 0) < dist.get_world_size():
            time.sleep(0.002)
    except dist.DistError:
        pass  # rank 0 took the store with it, which it does when all are here
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def process_group():
    dist.init_process_group("gloo")
    yield
    leave_together()
