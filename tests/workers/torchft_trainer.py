"""The network of torch_in_place.py under torchft, as one replica group of one process. Needs torchft, which is no part of the tests.

    torchft_trainer.py FOLDER NUMBER ADDRESS [--pause-ms N]

ADDRESS: of this host for the others. TORCHFT_LIGHTHOUSE names the lighthouse. Appends to FOLDER/NUMBER.PID a line for each committed step, as
torch_in_place.py does: ["done", step, 0, world size, monotonic].
"""

import argparse
import datetime
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import torch_in_place


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("number", type=int)
    p.add_argument("address")
    p.add_argument("--pause-ms", type=float, default=10)
    a = p.parse_args()
    socket.gethostname = lambda: a.address  # hosts in namespaces have one name; read while torchft is imported, too
    import torchft
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch_in_place.samples(1200)
    net = torch_in_place.network()
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    store = dist.TCPStore(a.address, 0, is_master=True, wait_for_workers=False)

    def load(state):
        net.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": sgd.state_dict()}, min_replica_size=2,
        replica_id=f"host{a.number}", store_addr=a.address, store_port=store.port, rank=0, world_size=1, hostname=a.address,
        timeout=datetime.timedelta(seconds=10))
    ddp, optimizer = torchft.DistributedDataParallel(manager, net), torchft.Optimizer(manager, sgd)
    with open(f"{a.folder}/{a.number}.{os.getpid()}", "a", buffering=1) as log:
        while True:
            x, y, _ = data[torch.randint(0, len(data), (10,))]
            before = manager.current_step()
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
            if manager.current_step() > before:
                log.write(json.dumps(["done", manager.current_step(), 0, manager.num_participants(), time.monotonic()]) + "\n")
            time.sleep(a.pause_ms / 1000)


if __name__ == "__main__":
    main()
