#!/usr/bin/env python3
"""Healthy nodes that count as lost on a loaded machine, for several node timeouts at the same time.

A crund on loopback has a job for each node timeout (crun --rdzv-conf=node_timeout_ms), all of the same number of nodes with --workers
workers each, of which rank 0 fails after --pause seconds, so that all are started again. Beside them --load processes compute, take memory, write to a disk or start processes for the whole time. No node ends, none is stopped, no network is cut: each
loss in the log of crund is one of a healthy node. A lost node joins again, and its job goes on.

Usage: healthy_nodes.py [--minutes M] [--load N] [--nodes N] [--nice N] [--workers N] [--pause S] [--limit N]
                        [SECONDS...]
SECONDS: node timeouts, default 1 2 3. --nice: the nodes are that much behind the load.

Prints the losses for each node timeout, and in an hour at that rate. Exit code 1: the largest node timeout loses more than --limit nodes
in an hour, or a job does not run at the end.
"""

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import jobs
import nodes

# What a loaded machine does, in turn: computes, takes and returns memory, writes to a disk, starts processes.
BUSY = (
    "while True: pass",
    "while True: bytearray(64 << 20)",
    "import os, sys\nwith open(sys.argv[1], 'wb') as f:\n while True: f.seek(0); f.write(b'x' * (1 << 20)); f.flush(); os.fsync(f.fileno())",
    "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'import argparse'])",
)
LOSSES = re.compile(r"job '(\S+)': generation \d+ is over: .* was lost")


def name_of(seconds):
    return f"timeout-{seconds:g}"


@contextlib.contextmanager
def busy(n, folder):
    processes = [subprocess.Popen([sys.executable, "-c", BUSY[i % len(BUSY)], folder / f"busy.{i}"]) for i in range(n)]
    try:
        yield
    finally:
        for p in processes:
            p.kill()
            p.wait()


@contextlib.contextmanager
def running_crund(log):
    command = [jobs.build_folder() / "rendezvous/crund", "--listen=127.0.0.1:0"]
    with open(log, "wb") as err, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True) as crund:
        try:
            yield crund.stdout.readline().split()[-1].rpartition(":")[2]
        finally:
            crund.terminate()


def start_job(group, port, seconds, options):
    n = options.nodes
    for rank in range(n):
        group.crun(f"--nnodes=1:{n}", f"--node-rank={rank}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                   f"--rdzv-id={name_of(seconds)}", "--security=open",
                   f"--nproc-per-node={options.workers}", "--max-restarts=1000000", "--restart-pause=0",
                   f"--rdzv-conf=is_host=0,last_call_timeout=60,max_changes=1000000,node_timeout_ms={seconds * 1000:.0f}",
                   "--no-python", "sh", "-c", f"[ $RANK != 0 ] || {{ sleep {options.pause}; exit 1; }}; exec sleep 1000000", prefix=("nice", f"-n{options.nice}"))


def wait_until_all_run(log, timeouts, n):
    for seconds in timeouts:
        jobs.wait_for(lambda: re.search(rf"job '{name_of(seconds)}': generation \d+ runs: {n} nodes", log.read_text()), 300)  # noqa: B023


def count_losses(text, seconds):
    return sum(m[1] == name_of(seconds) for m in LOSSES.finditer(text))


def measure(options, folder):
    log = folder / "crund.log"
    with running_crund(log) as port, nodes.Nodes(folder) as group:
        for seconds in options.timeouts:
            start_job(group, port, seconds, options)
        wait_until_all_run(log, options.timeouts, options.nodes)
        before = len(log.read_text())
        with busy(options.load, folder):
            time.sleep(options.minutes * 60)
            text = log.read_text()[before:]
            load = os.getloadavg()[0]
        ended = [node for node in group if node.process.poll() is not None]
    print(f"{text.count(' runs: ')} generations", flush=True)
    return {seconds: count_losses(text, seconds) for seconds in options.timeouts}, load, ended


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--load", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pause", type=float, default=10)
    parser.add_argument("--limit", type=float, default=1)
    parser.add_argument("timeouts", nargs="*", type=float, default=[1, 2, 3])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lost, load, ended = measure(options, pathlib.Path(folder))
    per_hour = {seconds: n * 60 / options.minutes for seconds, n in lost.items()}
    print(f"{options.nodes} nodes for each node timeout, {options.load} busy processes on {os.cpu_count()} CPUs, load {load:.0f}, "
          f"{options.minutes:g} minutes")
    for seconds, n in lost.items():
        print(f"node timeout {seconds:g} s: {n} healthy nodes lost, {per_hour[seconds]:.0f} in an hour")
    return 1 if ended or per_hour[max(per_hour)] > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
