"""A training job on the CPU with one of several parallelisms, and its state in crun's memory. One rank kills itself between two steps.

    memory_job.py KIND STEPS OUT [how=memory|writer|none] [kill=RANK:STEP[,RANK:STEP]] [width=N] [folder=PATH] [reference=1]

Each rank writes OUT/RANK: a line "GENERATION STEP LOSS" for each step, and "end GENERATION DIGEST" for parameters and moments.
reference: behind that the undisturbed run without crun_launch, with "reference" instead of the generation."""

import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from crun_launch.checkpoint import Memory, StorageReader, StorageWriter


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(0.1)
        self.register_buffer("n_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.n_calls += 1
        return x + self.drop(self.down(torch.relu(self.up(x))))


def build(kind, width):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Block(width) for _ in range(2)])
    half = dist.get_world_size() // 2
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = None
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, half), mesh_dim_names=("replicas", "shards"))
    if kind == "tp":
        both = init_device_mesh("cpu", (half, 2), mesh_dim_names=("data", "tensor"))
        mesh = both["data"]
        for block in model:
            parallelize_module(block, both["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for block in model:
        fully_shard(block, mesh=mesh) if mesh else fully_shard(block)
    return fully_shard(model, mesh=mesh) if mesh else fully_shard(model)


def digest(model, optimizer):
    h = hashlib.sha256()
    for p in model.parameters():
        for t in (p, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"], optimizer.state[p]["step"]):
            t = t.full_tensor() if isinstance(t, DTensor) else t
            h.update(t.detach().contiguous().view(torch.uint8).numpy().tobytes() if t.dim() else repr(t.item()).encode())
    for name, b in model.named_buffers():
        h.update(f"{name} {b.item()}".encode())
    return h.hexdigest()


class Saved:
    """The same by dcp.save and dcp.load with a model's and an optimizer's state dict."""

    def __init__(self, model, optimizer, folder):
        self.model, self.optimizer, self.folder = model, optimizer, folder

    def _state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, f"random.{dist.get_rank()}": torch.get_rng_state()}

    def steps(self, n):
        reader, step = StorageReader(self.folder), 0
        if reader.step is not None:
            step, state = reader.step, self._state()
            dcp.load(state, storage_reader=reader)
            set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            torch.set_rng_state(state[f"random.{dist.get_rank()}"])
        while step < n:
            yield step
            step += 1
            dcp.save(self._state(), storage_writer=StorageWriter(self.folder))


def train(kind, width, steps, n, generation, file, kills=()):
    """steps: function of model and optimizer that returns the numbers of the steps."""
    model = build(kind, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank = dist.get_rank()
    torch.manual_seed(100 + rank // (2 if kind == "tp" else 1))     # ranks of tensor parallelism have the same data
    for step in steps(model, optimizer):
        if (rank, step) in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(torch.randn(8, width)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(generation, step, loss.item().hex(), file=file, flush=True)
    print("end", generation, digest(model, optimizer), file=file)
    dist.barrier()


def main(kind, n, out, **options):
    n, width = int(n), int(options.get("width", 16))
    how, folder = options.get("how", "memory"), options.get("folder")
    torch.set_num_threads(1)
    store = os.environ.get("JOB_STORE")
    dist.init_process_group("gloo", **({"init_method": f"file://{store}", "rank": int(os.environ["RANK"]),
                                        "world_size": int(os.environ["WORLD_SIZE"])} if store else {}))
    generation = int(os.environ.get("CRUN_GENERATION", 0))
    kills = [tuple(map(int, k.split(":"))) for k in options["kill"].split(",")] if "kill" in options and generation == 0 else []

    def steps(model, optimizer):
        if how == "memory":
            return Memory({"model": model, "optim": optimizer}, folder=folder).steps(n)
        return Saved(model, optimizer, folder).steps(n) if how == "writer" else range(n)

    with open(os.path.join(out, str(dist.get_rank())), "a") as file:
        train(kind, width, steps, n, generation, file, kills)
        if "reference" in options:
            train(kind, width, lambda model, optimizer: range(n), n, "reference", file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*[a for a in sys.argv[1:] if "=" not in a], **dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a))
