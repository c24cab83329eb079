"""Snapshot and resume, as in PyTorch's tutorials on fault-tolerant training; one rank crashes once in the middle.

    torchrun --nproc-per-node=2 --max-restarts=3 resume.py FOLDER [STEPS] [CRASH_AT]

Rank 0 saves a snapshot after every second step. The last rank crashes in the step CRASH_AT, but only when FOLDER has
no mark that it did so before. At the end rank 0 writes the parameters, and how often it was started, to FOLDER/end.json.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, folder):
        self.folder, self.snapshot = folder, os.path.join(folder, "snapshot.pt")
        torch.manual_seed(0)
        self.model = torch.nn.Linear(16, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.step = 0
        if os.path.exists(self.snapshot):
            self.load()
        self.ddp = DDP(self.model)

    def load(self):
        saved = torch.load(self.snapshot)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]

    def save(self):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step},
                   self.snapshot + ".new")
        os.replace(self.snapshot + ".new", self.snapshot)

    def crash_once(self):
        mark = os.path.join(self.folder, "crashed")
        if dist.get_rank() == dist.get_world_size() - 1 and not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(1)

    def train(self, n_steps, crash_at):
        while self.step < n_steps:
            generator = torch.Generator().manual_seed(self.step * dist.get_world_size() + dist.get_rank())
            x = torch.randn(8, 16, generator=generator)
            self.optimizer.zero_grad()
            (self.ddp(x) - x.sum(1, keepdim=True)).square().mean().backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 2 == 0 and dist.get_rank() == 0:
                self.save()
            if self.step == crash_at:
                self.crash_once()


def main():
    folder, n_steps, crash_at = sys.argv[1], *(int(word) for word in (sys.argv[2:4] + ["20", "9"])[:2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(folder)
    begun_at = trainer.step
    trainer.train(n_steps, crash_at)
    dist.barrier()
    if dist.get_rank() == 0:
        with open(os.path.join(folder, "end.json"), "w") as f:
            json.dump({"weights": trainer.model.weight.flatten().tolist(), "begun at": begun_at,
                       "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}, f)
    # In front of the group: where a reducer has the group last, its destructor holds the interpreter's lock while it waits for a thread of
    # gloo that needs that lock (PyTorch 2.13).
    del trainer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
