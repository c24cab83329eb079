"""init_process_group("gloo") by env://, then each collective once, and once more in a subgroup."""

import sys

import torch
import torch.distributed as dist


def use_once(group, members):
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value, group=group)
    assert value.item() == sum(rank + 1 for rank in members)
    gathered = [None] * len(members)
    dist.all_gather_object(gathered, {"rank": dist.get_rank()}, group=group)
    assert [entry["rank"] for entry in gathered] == members
    word = [f"from {members[0]}" if dist.get_rank() == members[0] else None]
    dist.broadcast_object_list(word, src=members[0], group=group)
    assert word == [f"from {members[0]}"]
    dist.barrier(group=group)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    everybody = list(range(dist.get_world_size()))
    odd = everybody[1::2] or everybody
    use_once(None, everybody)
    group = dist.new_group(odd)
    if dist.get_rank() in odd:
        use_once(group, odd)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write("fine\n")


if __name__ == "__main__":
    main()
