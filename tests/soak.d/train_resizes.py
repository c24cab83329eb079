"""Random histories of one training: workers, crun or both killed, stopped by SIGTERM, or left alone; each time
continued with another number of workers, other batches and other snapshots. At the end every sample of every
epoch must have been committed exactly once, but for the pads that make the last samples of an epoch equally many
for all ranks: fewer than there are ranks in any launch.

Who counts is the network (tests/support/c/counter/count_samples.c): its weights, as they are in the snapshots at the ends of
the epochs, read here from the file's bytes."""

import argparse
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time

import jobs

N_SAMPLES, EPOCHS, WORLDS = 211, 3, (1, 2, 3, 4)
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def read_snapshot(path):
    """(metadata, weights, bias)"""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + n])
    numbers = {}
    for name in ("model.net.weight", "model.net.bias"):
        begin, end = header[name]["data_offsets"]
        numbers[name] = struct.unpack(f"<{(end - begin) // 4}f", raw[8 + n + begin : 8 + n + end])
    return header["__metadata__"], numbers["model.net.weight"], numbers["model.net.bias"][0]


def check(folder, largest_world):
    """None, or what is wrong; and how many pads there were in all."""
    ends, first = {}, None
    for path in sorted(folder.glob("snap-*")):
        meta, weights, bias = read_snapshot(path)
        first = first or [w + round(-w) for w in weights]  # the weights begin within 1/sqrt(211) of 0
        for w, began in zip(weights, first):
            if abs(w + round(-w) - began) > 1e-3:
                return f"{path.name}: a weight of {w} is no count", 0
        if meta["consumed"] == "0":
            ends[int(meta["epoch"])] = [round(-w) for w in weights], round(-bias)
    if sorted(ends) != list(range(1, EPOCHS + 1)):
        return f"snapshots at the ends of the epochs {sorted(ends)}", 0
    before, total_before, all_pads = [0] * N_SAMPLES, 0, 0
    for epoch in range(1, EPOCHS + 1):
        counts, total = ends[epoch]
        used = [c - b for c, b in zip(counts, before)]
        pads = sum(used) - N_SAMPLES
        if min(used) < 1 or pads >= largest_world or total - total_before != sum(used):
            wrong = {i: n for i, n in enumerate(used) if n != 1}
            return f"epoch {epoch}: samples used otherwise than once: {wrong}", 0
        before, total_before, all_pads = counts, total, all_pads + pads
    return None, all_pads


def job(folder, draw, more=(), env=ENV):
    w = draw.choice(WORLDS)
    crun_args = [f"--max-restarts={draw.randrange(3)}"]
    command = [jobs.crun(), "--standalone", f"--nproc-per-node={w}", *crun_args,
               str(jobs.build_folder() / "tests/support/c/counter/count-samples"), "toy", "--epochs", str(EPOCHS),
               "--batch-size", str(draw.randint(1, 9)), "--prefetch", str(draw.randrange(3)),
               "--snapshot-dir", str(folder), "--snapshot-every", str(draw.randrange(6)), "--keep", "100000", *more]
    return w, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, env=env)


def disturb(p, draw):
    """One of the things that happen to jobs. Says what it did."""
    time.sleep(draw.uniform(0, 0.25))
    kind = draw.choice(("worker", "worker", "crun", "term", "both"))
    if kind in ("worker", "both"):
        running = jobs.workers(p.pid)
        if running:
            jobs.kill(draw.choice(list(running.values())))
    if kind == "both":
        time.sleep(draw.uniform(0, 0.02))
    if kind in ("crun", "both") and p.poll() is None:
        p.send_signal(signal.SIGKILL)
    if kind == "term" and p.poll() is None:
        p.send_signal(signal.SIGTERM)
    return kind


def wait(p):
    """A killed crun's workers end with it, a moment later: they hold the pipe."""
    return p.communicate(timeout=120)[1]


def history(folder, draw, env=ENV):
    """Returns (what is wrong or None, pads, launches, their story)."""
    story, worlds = [], []
    for _ in range(draw.randint(1, 5)):
        more = ()
        if draw.random() < 0.25:  # killed by itself, in the middle of a step
            more = ("--fault", f"rank=0,step={draw.randint(1, 60)},kind={draw.choice(('kill', 'exit', 'nan'))}")
        w, p = job(folder, draw, more, env)
        kind = "fault" if more else disturb(p, draw)
        wait(p)
        story.append(f"{w} ranks, {kind}")
        worlds.append(w)
    w, p = job(folder, draw, (), env)
    err = wait(p)
    story.append(f"{w} ranks to the end")
    if p.returncode != 0:
        return f"the last launch failed: {err}", 0, len(story), story
    wrong, pads = check(folder, max(*worlds, w))
    return wrong, pads, len(story), story


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--histories", type=int, default=100)
    p.add_argument("--seed", type=int, default=None, help="of the draws; printed")
    p.add_argument("--wrong", action="store_true", help="take one sample for another: must be found")
    a = p.parse_args()
    seed = a.seed if a.seed is not None else random.SystemRandom().randrange(1 << 31)
    env = {**ENV, "COUNT_PAUSE_US": "1500", **({"COUNT_WRONG": "1"} if a.wrong else {})}
    print(f"seed {seed}", flush=True)
    launches = pads = 0
    started = time.monotonic()
    for i in range(a.histories):
        with tempfile.TemporaryDirectory() as folder:
            wrong, n_pads, n_launches, story = history(pathlib.Path(folder) / "s", random.Random(seed + i), env)
        if wrong:
            print(f"history {i + 1} (--seed {seed + i}): {'; '.join(story)}: {wrong}")
            return 1
        launches += n_launches
        pads += n_pads
    print(f"{a.histories} histories, {launches} launches with 1 to 4 ranks: each of {N_SAMPLES} samples committed once in "
          f"each of {EPOCHS} epochs, {pads} pads in {a.histories * EPOCHS} epochs; {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
