#!/usr/bin/env python3
"""Collectives of libcrw beside PyTorch's gloo: same machine, same run, 2 ranks, in turn.

    collectives_bench.py [BUILD] [ROUNDS]

Each round runs `collectives` (collectives.c) under crun and a gloo job, one after the other. Every figure is that of its fastest
round, ours and gloo's alike: what a neighbour takes away comes in bursts. all_reduce has goals: 20 times gloo at 4
and 900,904 bytes, 12 times at 26 MB, and there at least 85 % of what two ranks copy at the same time. Prints
whether they are met; never fails a build.

The column "tcp" is two ranks that say they are on different hosts, so that all goes through TCP on loopback, as
with gloo: what the network code costs, not what a network does."""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

RANKS = 2
SIZES = (4, 900904, 26000000)
CALLS = {0: 50, 4: 50, 900904: 10, 26000000: 1}  # in a batch of gloo's
# hosts_bench.py starts gloo's ranks with other numbers
if "BENCH_SIZES" in os.environ:
    RANKS = int(os.environ["WORLD_SIZE"])
    SIZES = tuple(map(int, os.environ["BENCH_SIZES"].split(",")))
    CALLS = dict(zip(SIZES, map(int, os.environ["BENCH_CALLS"].split(","))))
BATCHES = 5
NAMES = tuple(os.environ.get("BENCH_NAMES", "allreduce,broadcast,allgather,gather,reduce,reducescatter,scatter,sendrecv,"
                             "barrier").split(","))
GOALS = {4: 20, 900904: 20, 26000000: 12}
COPY_GOAL = 0.85


def sizes_of(name):
    return (0,) if name == "barrier" else SIZES


# ------------------------------------------------------------------ a rank of the gloo job

def gloo_calls(torch, dist, n_bytes):
    """By the name in collectives.c, a function that makes one call for tensors of this size."""
    rank = dist.get_rank()
    whole = torch.zeros(max(1, n_bytes // 4))
    received = torch.zeros_like(whole)
    part = torch.zeros(max(1, n_bytes // 4 // RANKS))
    parts = [torch.zeros_like(part) for _ in range(RANKS)]

    def sendrecv():
        sent = dist.isend(whole, (rank + 1) % RANKS)
        dist.recv(received, (rank - 1) % RANKS)
        sent.wait()

    return {
        "allreduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "allgather": lambda: dist.all_gather(parts, part),
        "gather": lambda: dist.gather(part, parts if rank == 0 else None, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "reducescatter": lambda: dist.reduce_scatter(part, parts),
        "scatter": lambda: dist.scatter(part, parts if rank == 0 else None, 0),
        "sendrecv": sendrecv,
        "barrier": dist.barrier,
    }


def gloo_rank():
    import torch
    import torch.distributed as dist

    import torch_trainer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in NAMES:
        for n_bytes in sizes_of(name):
            call = gloo_calls(torch, dist, n_bytes)[name]
            batches = []
            for _ in range(BATCHES + 1):  # the first one does not count
                dist.barrier()
                began = time.perf_counter()
                for _ in range(CALLS[n_bytes]):
                    call()
                batches.append((time.perf_counter() - began) / CALLS[n_bytes] * 1e6)
            slowest = torch.tensor([statistics.median(batches[1:])])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if dist.get_rank() == 0:
                print(json.dumps({"collective": name, "bytes": n_bytes, "time_us": float(slowest)}), flush=True)
    torch_trainer.leave_together()


# ------------------------------------------------------------------ the jobs

def run_gloo():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    job = [subprocess.Popen([sys.executable, __file__, "--gloo-rank"], stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1",
                                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
           for rank in range(RANKS)]
    out = [p.communicate(timeout=300)[0] for p in job]
    if any(p.returncode for p in job):
        sys.exit("collectives_bench.py: the gloo job failed")
    return [json.loads(line) for line in out[0].splitlines()]


def run_crw(build, name, memory):
    p = subprocess.run([f"{build}/launcher/crun", "--standalone", f"--nproc-per-node={RANKS}",
                        f"{build}/tests/bench/collectives", name, memory, ",".join(map(str, sizes_of(name)))],
                       stdout=subprocess.PIPE, text=True, check=True, timeout=300,
                       env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [json.loads(line) for line in p.stdout.splitlines()]
    if any(line["checked"] for line in lines):
        sys.exit(f"collectives_bench.py: {name} gave wrong results")
    return lines


def run_hosts(build, name):
    os.environ["CRUN_BUILD"] = build
    from span_job import SpanJob

    command = [f"{build}/tests/bench/collectives", name, "shared", ",".join(map(str, sizes_of(name)))]
    with SpanJob((1,) * RANKS, command) as job:
        if any(job.wait(300)):
            sys.exit(f"collectives_bench.py: {name} over two hosts failed: {job.err}")
        lines = [json.loads(line) for line in job.out[0].splitlines()]
    if any(line["checked"] for line in lines):
        sys.exit(f"collectives_bench.py: {name} over two hosts gave wrong results")
    return lines


def measure(build, rounds):
    """(who, collective, bytes asked for) -> the times of all rounds"""
    times = {}
    for i in range(rounds):
        print(f"round {i + 1} of {rounds}", file=sys.stderr)
        for line in run_gloo():
            times.setdefault(("gloo", line["collective"], line["bytes"]), []).append(line["time_us"])
        for memory in ("shared", "private"):
            for name in NAMES + (("copy",) if memory == "shared" else ()):
                for n_bytes, line in zip(sizes_of(name), run_crw(build, name, memory)):
                    times.setdefault((memory, name, n_bytes), []).append(line["time_us"])
        for name in NAMES:
            for n_bytes, line in zip(sizes_of(name), run_hosts(build, name)):
                times.setdefault(("tcp", name, n_bytes), []).append(line["time_us"])
    return times


def main():
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    times = measure(build, rounds)
    best = {key: min(values) for key, values in times.items()}
    print(f"{RANKS} ranks, microseconds, fastest of {rounds} rounds; load {os.getloadavg()[0]:.1f} on "
          f"{len(os.sched_getaffinity(0))} cores")
    print(f"{'':14} {'bytes':>9} {'gloo':>10} {'shared':>10} {'ratio':>8} {'private':>10} {'ratio':>8} {'tcp':>10} {'ratio':>8}")
    for name in NAMES:
        for n_bytes in sizes_of(name):
            gloo, shared, private, tcp = (best[who, name, n_bytes] for who in ("gloo", "shared", "private", "tcp"))
            print(f"{name:14} {n_bytes:>9} {gloo:>10.1f} {shared:>10.2f} {gloo / shared:>7.1f}x {private:>10.2f} "
                  f"{gloo / private:>7.1f}x {tcp:>10.1f} {gloo / tcp:>7.1f}x")
    for n_bytes, goal in GOALS.items():
        ratio = best["gloo", "allreduce", n_bytes] / best["shared", "allreduce", n_bytes]
        print(f"all_reduce of {n_bytes} bytes: {ratio:.1f} times gloo, goal {goal}: "
              f"{'met' if ratio >= goal else 'not met'}")
    copy, reduced = best["shared", "copy", SIZES[-1]], best["shared", "allreduce", SIZES[-1]]
    print(f"all_reduce of {SIZES[-1]} bytes at {100 * copy / reduced:.0f} % of the bandwidth of copies "
          f"({copy:.0f} us), goal {100 * COPY_GOAL:.0f} %: {'met' if copy / reduced >= COPY_GOAL else 'not met'}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--gloo-rank"]:
        gloo_rank()
    else:
        main()
