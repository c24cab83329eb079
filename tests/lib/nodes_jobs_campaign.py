#!/usr/bin/env python3
"""What nodes_campaign.py does, with real training: train or PyTorch DDP under crun, PyTorch DDP under torchrun.

    nodes_jobs_campaign.py train|torch|torchrun ROUNDS [FAULT...]

Per round: ms from the fault until the survivors' old workers are gone, and until the next generation runs: for train
until its processes are started, for PyTorch until every rank has done a step. A round that has not come that far after
60 s is given up and counted.
"""

import json
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time

import fabric as fabrics
import jobs
import nodes as lib
from nodes_campaign import N_HOSTS, VICTIM, percentile

LIB = pathlib.Path(__file__).resolve().parent
BOUND_S = 60
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
        script = [str(LIB / "torch_ddp_loop.py"), str(self.told)]
        conf = "last_call_timeout=1,join_timeout=60"
        prefix = self.fabric.prefix(host)
        if self.kind == "torchrun":
            conf += f",is_host={int(host == 0)}"
            return self.nodes.torchrun(*options, f"--rdzv-conf={conf}", *script, prefix=prefix, env=environment)
        if self.kind == "train":
            script = [jobs.train(), "toy", "--epochs", "1000000"]
        return self.nodes.crun(*options, f"--rdzv-conf={conf}", f"--event-log={self.folder}/events{host}", *script,
                               prefix=prefix, env=environment)

    def running(self, world, since_ns):
        """When the last rank of a world of that size began, if all have since then."""
        if self.kind == "train":
            times = self.ready_times(world, since_ns)
        else:
            times = {}
            for line in self.told.read_text().splitlines():
                _, rank, size, ns, _ = line.split()
                if int(ns) > since_ns and int(size) == world:
                    times[rank] = int(ns)
        return max(times.values()) if len(times) == world else None

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
    old = [pid for host in range(2) for pid in job.workers(host)]
    since = time.monotonic_ns()
    world, undo = inflict(job, name)
    gone = running = None
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline and running is None:
        if gone is None and all(map(is_gone, old)):
            gone = time.monotonic_ns()
        running = job.running(world, since)
        time.sleep(0.001 if gone is None else 0.005)
    undo()
    if running is None or gone is None:
        raise GivenUp
    if world < N_HOSTS:
        job.wait_running(N_HOSTS, since)
    return (gone - since) / 1e6, (running - since) / 1e6


def measure(fabric, kind, name, rounds):
    """A job lasts until it has to be given up; then another one is begun."""
    results, given_up = [], 0
    while len(results) + given_up < rounds:
        with tempfile.TemporaryDirectory() as folder, Job(fabric, kind, folder) as job:
            try:
                job.wait_running(N_HOSTS, 0)
                while len(results) + given_up < rounds:
                    time.sleep(0.3)
                    results.append(one_round(job, name))
            except GivenUp:
                given_up += 1
            for host in range(N_HOSTS):
                fabric.heal(host)
                fabric.link(host, "up")
    return results, given_up


def main():
    kind, rounds = sys.argv[1], int(sys.argv[2])
    print(f"{kind}: {'fault':22} {'rounds':>6} {'given up':>9}   ms until survivors' workers are gone   ms to the next generation",
          flush=True)
    with fabrics.Fabric(N_HOSTS) as fabric:
        for name in sys.argv[3:] or FAULTS:
            results, given_up = measure(fabric, kind, name, rounds)
            columns = [f"{statistics.median(c):10.1f} (p99 {percentile(c, 99):.1f})" if results else "         -"
                       for c in (zip(*results) if results else ([], []))]
            print(f"{kind}: {name:22} {rounds:6} {given_up:9}   {columns[0]:>30}   {columns[1]:>30}", flush=True)


if __name__ == "__main__":
    main()
