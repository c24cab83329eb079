"""A gloo job in which one rank hangs in a way that is given: hang_job.py KIND RANK FOLDER. The rank that hangs writes the
time at which it begins to (monotonic, in ns) into FOLDER/began; all others wait for it in all_reduce.

CRUN_TESTS_DEBUG_PORT: each rank starts PyTorch's debug server, whose page is served at that port."""

import functools
import itertools
import os
import pathlib
import signal
import sys
import time
import types

import torch
import torch.distributed as dist
import torch.utils.data

KIND, CULPRIT, FOLDER = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
STEPS = 5


class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, i):
        if i >= 4:
            time.sleep(1e6)
        return torch.ones(1)


def python_loop():
    number = 0
    while True:
        number += 1
        number %= 7


def c_loop():
    sum(itertools.repeat(0))  # never returns to the interpreter, so it keeps the lock


def load():
    for _ in torch.utils.data.DataLoader(Stuck(), num_workers=1, batch_size=2):
        pass


def raise_and_leave():
    """The end of gloo waits for no peer, as that of NCCL may: this one does."""
    waits = types.SimpleNamespace(finalize=functools.partial(time.sleep, 1e6))
    dist.distributed_c10d._world.comms.append(waits)
    try:
        raise RuntimeError("the batch is bad")
    finally:
        dist.destroy_process_group()


def hang(store, groups, t):
    (FOLDER / "began").write_text(str(time.monotonic_ns()))
    if KIND == "skip":
        dist.barrier(group=groups[1])
    elif KIND == "order":
        dist.all_reduce(t, group=groups[1])
        dist.all_reduce(t)
    elif KIND == "raised":
        raise_and_leave()
    elif KIND == "store":
        store.get("a key that is never set")
    else:
        {"loader": load, "sleep": lambda: time.sleep(1e6), "python": python_loop, "c": c_loop,
         "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
         "disk": lambda: (FOLDER / "fuse" / "file").read_bytes()}[KIND]()


def start_debug_server(port):
    from torch.distributed import debug  # noqa: PLC0415 (its packages are not everywhere)
    debug.start_debug_server(port=port, start_method="fork", fetch_timeout=5.0)


def main():
    if "CRUN_TESTS_DEBUG_PORT" in os.environ:
        start_debug_server(int(os.environ["CRUN_TESTS_DEBUG_PORT"]))
    dist.init_process_group("gloo")
    groups = [None, dist.new_group()]
    store = dist.distributed_c10d._get_default_store()
    t = torch.ones(1000)
    for _ in range(STEPS):
        dist.all_reduce(t)
    if dist.get_rank() == CULPRIT:
        hang(store, groups, t)
    dist.all_reduce(t)
    dist.barrier(group=groups[1])


main()
