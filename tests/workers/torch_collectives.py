"""One rank of a job that uses everything of a process group that touches the store: all collectives, sub-groups,
barriers and a step of DistributedDataParallel. Started by tests with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
in the environment; prints "rank R done" when every result was right."""

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def same(a, b):
    assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), (a, b)


def collectives(rank, world, group=None):
    me = torch.full((3,), float(rank))
    ranks = [float(r) for r in range(world)]

    t = me.clone()
    dist.all_reduce(t, group=group)
    same(t, torch.full((3,), sum(ranks)))

    t = me.clone()
    dist.broadcast(t, src=1, group=group)
    same(t, torch.full((3,), 1.0))

    t = me.clone()
    dist.reduce(t, dst=0, op=dist.ReduceOp.MAX, group=group)
    if rank == 0:
        same(t, torch.full((3,), ranks[-1]))

    out = [torch.empty(3) for _ in ranks]
    dist.all_gather(out, me, group=group)
    same(torch.stack(out)[:, 0], ranks)

    out = [torch.empty(3) for _ in ranks] if rank == 0 else None
    dist.gather(me, out, dst=0, group=group)
    if rank == 0:
        same(torch.stack(out)[:, 0], ranks)

    t = torch.empty(3)
    dist.scatter(t, [torch.full((3,), r * 10) for r in ranks] if rank == 0 else None, src=0, group=group)
    same(t, torch.full((3,), rank * 10.0))

    t = torch.empty(1)
    dist.reduce_scatter(t, [torch.tensor([r]) for r in ranks], group=group)
    same(t, torch.tensor([rank * float(world)]))

    t = torch.empty(world)
    dist.all_to_all_single(t, torch.tensor([rank * 10 + r for r in ranks]), group=group)
    same(t, torch.tensor([r * 10 + rank for r in ranks]))

    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": r} for r in range(world)]

    t = me.clone()
    if rank % 2 == 0:
        dist.send(t, rank + 1)
    else:
        dist.recv(t, rank - 1)
        same(t, torch.full((3,), rank - 1.0))
    dist.barrier(group=group)


def sub_groups(rank, world):
    halves = [dist.new_group(list(range(0, world, 2))), dist.new_group(list(range(1, world, 2)))]
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=halves[rank % 2])
    same(t, torch.tensor([float(sum(range(rank % 2, world, 2)))]))
    dist.barrier(group=halves[rank % 2])


def one_ddp_step(rank):
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    weights = [torch.empty_like(model.module.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.weight.detach())
    for w in weights:
        same(w, weights[0])


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    collectives(rank, world)
    sub_groups(rank, world)
    one_ddp_step(rank)
    dist.monitored_barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done", flush=True)


if __name__ == "__main__":
    sys.exit(main())
