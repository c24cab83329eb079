#!/usr/bin/env python3
"""What nodes_campaign.py does, with real training: train or PyTorch DDP under crun, PyTorch DDP under torchrun.

    nodes_jobs_campaign.py [train|torch|torchrun [ROUNDS [FAULT...]]]

Without arguments: 50 rounds of each fault with train, 10 with PyTorch, 3 with torchrun. Per round, ms from the fault
    noticed    until the workers of the survivors have ended, so they have heard of it before
    started    until the processes of the next generation are there (crun's part of what follows; torchrun does not tell)
    running    until it has done training steps on every rank (PyTorch: one, and it has imported torch before that)
A round that has not come that far after 60 s is given up and counted. A false alarm is a node said to be lost to which
nothing was done.
"""

import json
import os
import pathlib
import re
import signal
import statistics
import sys
import tempfile
import time

import fabric as fabrics
import jobs
import nodes as lib
from nodes_campaign import N_HOSTS, VICTIM, percentile

BOUND_S = 60
ROUNDS = {"train": 50, "torch": 10, "torchrun": 3}
EPOCHS = "1000000"
FAULTS = ["kill -9 a worker", "kill -9 an agent", "link down", "SIGSTOP an agent", "5 % loss, worker dies",
          "one-way partition"]


class GivenUp(Exception):
    pass


class Job:
    def __init__(self, fabric, kind, folder):
        self.fabric, self.kind, self.folder = fabric, kind, pathlib.Path(folder)
        self.nodes = lib.Nodes(folder)
        self.told = self.folder / "told"
        self.told.touch()
        self.read = {}

    def __enter__(self):
        self.hosts = [self.start(host) for host in range(N_HOSTS)]
        return self

    def __exit__(self, *_):
        for pid in self.strays:
            jobs.kill(pid)
        self.nodes.__exit__()

    @property
    def strays(self):
        return [int(line.split()[4]) for line in self.told.read_text().splitlines()] if self.kind != "train" else []

    def start(self, host):
        address = self.fabric.address(0)
        options = ["--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=job", "--max-restarts=100",
                   f"--rdzv-endpoint={address}:29400", f"--local-addr={self.fabric.address(host)}"]
        environment = {"GLOO_SOCKET_IFNAME": "eth0", "PYTHON_EXEC": sys.executable}
        script = [str(jobs.ROOT / "tests/workers/torch_ddp_loop.py"), str(self.told)]
        conf = "last_call_timeout=1,join_timeout=60"
        prefix = self.fabric.prefix(host)
        if self.kind == "torchrun":
            conf += f",is_host={int(host == 0)}"
            return self.nodes.torchrun(*options, f"--rdzv-conf={conf}", *script, prefix=prefix, env=environment)
        if self.kind == "train":
            script = [jobs.train(), "toy", "--epochs", EPOCHS]
        return self.nodes.crun(*options, f"--rdzv-conf={conf}", f"--event-log={self.folder}/events{host}", *script,
                               prefix=prefix, env=environment)

    def started(self, world, since_ns):
        """When the last process of a generation of that size was there."""
        times = self.ready_times(world, since_ns)
        return max(times.values()) if len(times) == world else None

    def running(self, world, since_ns):
        """When the last rank of a world of that size had done a step, if all have since then."""
        if self.kind == "train":
            return self.trained(world, since_ns)
        times = {}
        for line in self.told.read_text().splitlines():
            _, rank, size, ns, _ = line.split()
            if int(ns) > since_ns and int(size) == world:
                times[rank] = int(ns)
        return max(times.values()) if len(times) == world else None

    def trained(self, world, since_ns):
        """Now, if rank 0 has printed an epoch of a world that began since then: each rank takes part in each step."""
        begun = f"toy: 1000 samples, {world} workers"
        for node in self.nodes:
            with open(node.out, errors="replace") as out:
                out.seek(self.read.get(node.out, 0))
                _, found, rest = out.read().rpartition(begun)
            if found and re.search(f"epoch \\d+/{EPOCHS}", rest) and self.started(world, since_ns):
                return time.monotonic_ns()
        return None

    def mark(self):
        """What was printed so far is of the past."""
        self.read = {node.out: node.out.stat().st_size for node in self.nodes}

    def lost(self):
        """{(generation, host)} that crun said to be lost, as the survivors of each tell it."""
        return {(int(m[2]), m[1]) for node in self.nodes
                for m in re.finditer(r"(host\d+) \(node \d+\) was lost.*goes on as generation (\d+)", node.text())}

    def ready_times(self, world, since_ns):
        times = {}
        for host in range(N_HOSTS):
            path = self.folder / f"events{host}"
            size = 0
            for line in path.read_text().splitlines() if path.exists() else []:
                event = json.loads(line)
                size = event.get("world_size", size)
                if event["event"] == "ready" and size == world and event["monotonic_ns"] > since_ns:
                    times[host] = event["monotonic_ns"]
        return times

    def wait_running(self, world, since_ns):
        deadline = time.monotonic() + BOUND_S
        while time.monotonic() < deadline:
            if at := self.running(world, since_ns):
                return at
            time.sleep(0.005)
        raise GivenUp

    def workers(self, host):
        return list(jobs.workers(self.hosts[host].pid).values())


def is_gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def inflict(job, name):
    """(ranks of the world that follows, how to undo it)"""
    fabric = job.fabric
    agent = job.hosts[VICTIM].pid
    if name == "kill -9 a worker":
        jobs.kill(job.workers(VICTIM)[0])
        return 3, lambda: None
    if name == "kill -9 an agent":
        jobs.kill(agent)

        def again():
            job.hosts[VICTIM].wait()
            job.hosts[VICTIM] = job.start(VICTIM)
        return 2, again
    if name == "link down":
        fabric.link(VICTIM, "down")
        return 2, lambda: fabric.link(VICTIM, "up")
    if name == "SIGSTOP an agent":
        os.kill(agent, signal.SIGSTOP)
        return 2, lambda: os.kill(agent, signal.SIGCONT)
    if name == "one-way partition":
        fabric.drop(VICTIM, "input")
        return 2, lambda: fabric.heal(VICTIM)
    for host in range(N_HOSTS):
        fabric.lose(host, 5)
    jobs.kill(job.workers(VICTIM)[0])
    return 3, lambda: [fabric.heal(host) for host in range(N_HOSTS)]


def one_round(job, name):
    """(noticed, started or None, running) in ms"""
    old = [pid for host in range(2) for pid in job.workers(host)]
    job.mark()
    since = time.monotonic_ns()
    world, undo = inflict(job, name)
    gone = running = None
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline and running is None:
        if gone is None and all(map(is_gone, old)):
            gone = time.monotonic_ns()
        if gone is not None:
            running = job.running(world, since)
        time.sleep(0.001 if gone is None else 0.005)
    started = job.started(world, since) if job.kind != "torchrun" else None
    undo()
    if running is None or gone is None:
        raise GivenUp
    if world < N_HOSTS:
        job.wait_running(N_HOSTS, since)
    return [(at - since) / 1e6 if at else None for at in (gone, started, running)]


def false_alarms(job, name):
    worker = "worker" in name
    return sum(worker or host != f"host{VICTIM}" for _, host in job.lost())


def measure(fabric, kind, name, rounds):
    """A job lasts until it has to be given up; then another one is begun. (results, given up, false alarms)"""
    results, given_up, alarms = [], 0, 0
    while len(results) + given_up < rounds:
        with tempfile.TemporaryDirectory() as folder, Job(fabric, kind, folder) as job:
            try:
                job.wait_running(N_HOSTS, 0)
                while len(results) + given_up < rounds:
                    time.sleep(0.3)
                    results.append(one_round(job, name))
            except GivenUp:
                given_up += 1
                if kind != "torchrun":
                    print(job.nodes.texts(), file=sys.stderr)
            alarms += false_alarms(job, name) if kind != "torchrun" else 0
            for host in range(N_HOSTS):
                fabric.heal(host)
                fabric.link(host, "up")
    return results, given_up, alarms


HEAD = (f"{'program':9}{'fault':22}{'rounds':>7}{'given up':>9}{'false alarms':>13}"
        + "".join(f"{what + ' ms':>12}{'p99':>9}" for what in ("noticed", "started", "running")))


def show(column):
    return f"{statistics.median(column):12.1f}{percentile(column, 99):9.1f}" if column and None not in column else f"{'-':>12}{'-':>9}"


def row(kind, name, rounds, results, given_up, alarms):
    columns = list(zip(*results)) or [(), (), ()]
    return (f"{kind:9}{name:22}{rounds:7}{given_up:9}{alarms if kind != 'torchrun' else '-':>13}"
            + "".join(map(show, columns)))


def main():
    kinds = sys.argv[1:2] or list(ROUNDS)
    if reason := fabrics.missing():
        sys.exit(f"nodes_jobs_campaign.py: {reason}")
    rows, alarms = [HEAD], 0
    print(HEAD, flush=True)
    with fabrics.Fabric(N_HOSTS) as fabric:
        for kind in kinds:
            rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS[kind]
            for name in sys.argv[3:] or FAULTS:
                measured = measure(fabric, kind, name, rounds)
                alarms += measured[2]
                rows.append(row(kind, name, rounds, *measured))
                print(rows[-1], flush=True)
    if len(rows) > 2:
        print("", *rows, sep="\n")
    sys.exit(alarms > 0)


if __name__ == "__main__":
    main()
