"""What crun_launch.checkpoint.Memory costs an FSDP2 job on the CPU: 4 ranks on gloo, 151 MB of state in all.

Prints for each rank, in ms: how long save() and the wait in front of optimizer.step() stop the loop; the first save(), which plans; the copy of
the block beside a memcpy of as many bytes to the same memory; the checksum; and a step with and without Memory. crun's side is a fake.

Usage: memory_bench.py [--steps N] [--width N] [--ranks N]
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import zlib

import fake_blocks
import forked_ranks


class Clock:
    """Times of the calls of a function, in ms, and CPU times of the calling thread, which other processes change less."""

    def __init__(self, function):
        self.function, self.times, self.cpu = function, [], []

    def __call__(self, *args, **kwargs):
        begin, cpu = time.monotonic(), time.thread_time()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.times.append(1000 * (time.monotonic() - begin))
            self.cpu.append(1000 * (time.thread_time() - cpu))


def build(width):
    import torch
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)) for _ in range(6)]
    model = torch.nn.Sequential(*blocks)
    for block in model:
        fully_shard(block[0])
        fully_shard(block[2])
    return fully_shard(model), torch.optim


def train(model, optimizer, width, steps):
    import torch
    times = []
    for _ in steps:
        begin = time.monotonic()
        model(torch.randn(64, width)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(1000 * (time.monotonic() - begin))
    return times


def main(n, width, out):
    """A rank."""
    import torch
    import torch.distributed as dist
    from crun_launch import checkpoint
    n, width = int(n), int(width)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.environ['JOB_STORE']}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    model, optim = build(width)
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    without = train(model, optimizer, width, range(n))
    memory = checkpoint.Memory({"model": model, "optim": optimizer})
    memory.save, memory._wait_for_copy = Clock(memory.save), Clock(memory._wait_for_copy)
    copy = Clock(checkpoint._Layout.copy)
    checkpoint._Layout.copy = lambda *args: copy(*args)
    checkpoint.zlib = type("zlib", (), {"crc32": Clock(zlib.crc32)})
    with_memory = train(model, optimizer, width, memory.steps(n))
    size = memory.plan.end
    source, target = bytearray(b"x" * size), ctypes.addressof(ctypes.c_char.from_buffer(memory.blocks.view[checkpoint._BLOCKS_AT:]))
    memcpy = Clock(lambda: ctypes.memmove(target, (ctypes.c_char * size).from_buffer(source), size))
    view, sources = memory.blocks.view[checkpoint._BLOCKS_AT:], memory._sources()
    again = Clock(lambda: memory.plan.copy(view, target, *sources))
    memory.wait()
    dist.barrier()
    if dist.get_rank() == 0:
        for _ in range(30):
            memcpy()
            again()
    dist.barrier()
    stalls = [a + b for a, b in zip(memory.save.times[1:-1], memory._wait_for_copy.times[2:])]
    result = {"size": size, "first": memory.save.times[0], "save": memory.save.times[1:], "wait": memory._wait_for_copy.times[2:], "stall": stalls,
              "copy": copy.times[2:], "crc": checkpoint.zlib.crc32.times[2:], "memcpy": memcpy.cpu[2:], "again": again.cpu[2:], "save_cpu": memory.save.cpu[1:], "copy_cpu": copy.cpu[2:],
              "crc_cpu": checkpoint.zlib.crc32.cpu[2:],
              "without": without[3:], "with": with_memory[3:], "left_out": memory.n_left_out}
    pathlib.Path(out, os.environ["RANK"]).write_text(json.dumps(result))
    dist.destroy_process_group()


def report(results):
    for rank, r in enumerate(results):
        def of(name):
            return f"{statistics.median(r[name]):.1f} (least {min(r[name]):.1f}, most {max(r[name]):.1f})"

        print(f"rank {rank}: {r['size'] / 1e6:.1f} MB; stall {of('stall')}: save() {of('save')}, in front of optimizer.step() {of('wait')}; "
              f"first save() {r['first']:.0f}; step {of('without')} without, {of('with')} with Memory; copy {of('copy')}, "
              f"checksum {of('crc')}; {r['left_out']} steps left out\n"
              f"    CPU time: save() {of('save_cpu')}, copy {of('copy_cpu')}, checksum {of('crc_cpu')}")
    alone = results[0]
    ratio = min(alone["again"]) / min(alone["memcpy"])
    print(f"one rank alone, CPU time: copy {min(alone['again']):.2f} ms, memcpy {min(alone['memcpy']):.2f} ms, ratio {ratio:.2f} of the least, "
          f"{statistics.median(alone['again']) / statistics.median(alone['memcpy']):.2f} of the medians; "
          f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs")


def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    fake = fake_blocks.FakeCrun(args.ranks)
    with tempfile.TemporaryDirectory() as out, forked_ranks.Ranks(job=__file__) as ranks:
        ranks.start(fake.fds())
        codes = ranks.generation(fake, args.ranks, [args.steps, args.width, out])
        if any(codes):
            sys.exit(f"the ranks have ended with {codes}")
        report([json.loads(pathlib.Path(out, str(r)).read_text()) for r in range(args.ranks)])


if __name__ == "__main__":
    run()
