"""A gloo job that is slow but moves, as jobs of people are: slow_moves.py PLAN SECONDS SEED FOLDER.

uneven: steps of 1 to 20 times BASE_S on each rank; now and then rank 0 saves for 30 s, or validates alone between two barriers.
pipeline: each rank waits for micro-batches of the rank before it; now and then a rank saves for 30 s.
compile: even steps; now and then a rank waits 60 s for a process cc1plus.

Each rank writes a line "BEGIN END WHAT" (monotonic, in seconds) for each piece of work into FOLDER/work.RANK, END 0 at its beginning.
"""

import datetime
import os
import pathlib
import random
import subprocess
import sys
import time

import torch
import torch.distributed as dist

PLAN, END, FOLDER = sys.argv[1], time.monotonic() + float(sys.argv[2]), pathlib.Path(sys.argv[4])
RANK = int(os.environ["RANK"])
COMMON, OWN = random.Random(sys.argv[3]), random.Random(f"{sys.argv[3]} {RANK}")  # the first draws the same on all ranks
BASE_S, SAVE_S, COMPILE_S, MICRO_BATCHES = 0.3, 30, 60, 4
WORK = open(FOLDER / f"work.{RANK}", "w", buffering=1)

# A compiler by its name that uses a tenth of a core.
COMPILER = 'end=$(($(date +%s) + $1)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.1; done'


class Piece:
    def __init__(self, what):
        self.what, self.began = what, time.monotonic()

    def __enter__(self):
        WORK.write(f"{self.began} 0 {self.what}\n")

    def __exit__(self, *_):
        WORK.write(f"{self.began} {time.monotonic()} {self.what}\n")


def compute(seconds):
    """One part in five of a core."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        until = min(end, time.monotonic() + 0.02)
        while time.monotonic() < until:
            pass
        time.sleep(max(0, min(0.08, end - time.monotonic())))


def save():
    with Piece("saves"), open(FOLDER / f"saved.{RANK}", "wb", buffering=0) as f:
        end, block = time.monotonic() + SAVE_S, bytes(4 << 20)
        while time.monotonic() < end:
            os.pwrite(f.fileno(), block, 0)
            time.sleep(0.1)


def compile_code():
    with Piece("compiles"):
        compiler = FOLDER / f"cc1plus-{RANK}/cc1plus"
        compiler.parent.mkdir(exist_ok=True)
        if not compiler.exists():
            compiler.symlink_to("/bin/sh")
        subprocess.run([compiler, "-c", COMPILER, "cc1plus", str(COMPILE_S)], check=True)


def alone(rank, act):
    """Between two barriers."""
    dist.barrier()
    if rank == RANK:
        act()
    dist.barrier()


def validate():
    with Piece("validates"):
        compute(VALIDATE_S)


VALIDATE_S = COMMON.uniform(15, 30)


def step_unevenly(t, i):
    with Piece("steps"):
        compute(BASE_S * OWN.randint(1, 20))
    dist.all_reduce(t)
    if i % 40 == 30:
        alone(0, save)
    if i % 60 == 50:
        alone(0, validate)


def step_in_pipeline(t, i):
    last = dist.get_world_size() - 1
    for _ in range(MICRO_BATCHES):
        if RANK > 0:
            dist.recv(t, RANK - 1)
        with Piece("steps"):
            compute(OWN.uniform(0.5, 1.5))
        if RANK < last:
            dist.send(t, RANK + 1)
    dist.all_reduce(t)
    if i % 30 == 20:
        alone(i // 30 % (last + 1), save)


def step_with_compiler(t, i):
    with Piece("steps"):
        compute(OWN.uniform(0.5, 0.7))
    dist.all_reduce(t)
    if i % 150 == 0:
        alone(COMMON.randrange(dist.get_world_size()), compile_code)


STEPS = {"uneven": step_unevenly, "pipeline": step_in_pipeline, "compile": step_with_compiler}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
    goes_on, i, t = torch.ones(1), 0, torch.ones(100)
    while goes_on.item():
        STEPS[PLAN](t, i)
        i += 1
        goes_on = torch.tensor([float(time.monotonic() < END)]) if RANK == 0 else torch.zeros(1)
        dist.all_reduce(goes_on)
    if RANK == 0:
        print(f"{i} steps", flush=True)


main()
