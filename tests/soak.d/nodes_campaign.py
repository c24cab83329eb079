#!/usr/bin/env python3
"""Three hosts in network namespaces and what can happen to one of them: how long until the workers of the others are
warned, and until the next generation runs.

    nodes_campaign.py [ROUNDS] [FAULT...]

The third host is the victim; the rendezvous is a crund on the first. Workers are notice_watchers, which tell when they
are started, warned and stopped. Every round must end in a generation that the job should reach, with all ranks in it.
"""

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

ROOT = pathlib.Path(__file__).resolve().parents[2]
N_HOSTS = 3
VICTIM = 2
CONF = "last_call_timeout=1,join_timeout=60"
PATIENCE_S = 60


def lib_program(name):
    return str(jobs.build_folder() / "tests" / "workers" / name)


class Job:
    """crund on host 0 and a crun on each; what their workers tell."""

    def __init__(self, fabric, folder, nnodes="2:3", max_restarts=1000, worker=None, port=29400, node_timeout_ms=None,
                 daemon_options=()):
        self.endpoint = f"{fabric.address(0)}:{port}"
        self.fabric, self.folder = fabric, pathlib.Path(folder)
        self.nnodes, self.max_restarts = nnodes, max_restarts
        # A test gives a busy machine more time; what the soak test measures is the default.
        self.conf = CONF + (f",node_timeout_ms={node_timeout_ms}" if node_timeout_ms else "")
        self.told = self.folder / "told"
        self.told.touch()
        self.worker = worker or [lib_program("notice_watcher"), str(self.told)]
        self.nodes = lib.Nodes(folder)
        self.ready = self.folder / "ready"
        self.daemon, self.daemon_options = None, daemon_options

    def start_daemon(self):
        self.daemon = self.nodes.start([jobs.build_folder() / "rendezvous" / "crund", f"--listen={self.endpoint}", *self.daemon_options],
                                       prefix=self.fabric.prefix(0))

    def start_node(self, host):
        return self.nodes.crun(f"--nnodes={self.nnodes}", "--rdzv-backend=c10d", "--rdzv-id=job",
                               f"--rdzv-endpoint={self.endpoint}",
                               f"--rdzv-conf={self.conf},is_host=0", f"--max-restarts={self.max_restarts}",
                               f"--node-rank={host}", "--no-python", *self.worker,
                               prefix=self.fabric.prefix(host))

    def __enter__(self):
        self.start_daemon()
        self.hosts = [self.start_node(host) for host in range(N_HOSTS)]
        return self

    def __exit__(self, *_):
        self.nodes.__exit__()

    def lines(self):
        """[(what, generation, rank, detail, ns)]"""
        return [(what, *map(int, rest)) for what, *rest in map(str.split, self.told.read_text().splitlines())]

    def running(self, generation, world):
        """When the last rank of a generation began; None while some are missing."""
        times = {line[2]: line[4] for line in self.lines() if line[0] == "start" and line[1:4:2] == (generation, world)}
        return max(times.values()) if len(times) == world else None

    def newest(self):
        return max((line[1] for line in self.lines()), default=-1)

    def wait_running(self, world, after=-1):
        """(generation, ns of its last rank's start) of the next one that runs with that many ranks."""
        def found():
            for generation in range(after + 1, self.newest() + 1):
                if at := self.running(generation, world):
                    return generation, at
            return None
        try:
            return jobs.wait_for(found, PATIENCE_S, 0.002)
        except AssertionError:
            raise AssertionError(f"no generation of {world} after {after}\n{self.told.read_text()[-2000:]}\n"
                                 + self.nodes.texts()) from None

    def noticed(self, generation, ranks):
        """When the last of these ranks was warned."""
        times = [line[4] for line in self.lines() if line[0] == "notice" and line[1] == generation and line[2] in ranks]
        return max(times) if len(times) == len(ranks) else None

    def worker_of(self, host):
        return next(iter(jobs.workers(self.hosts[host].pid).values()))


def crun_of(node):
    """The prefix execs it, so it is the process that was started."""
    return node.pid


# ---------------------------------------------------------------- faults: do it, and undo it. Each returns the number
# of nodes in the generation that follows.


def kill_worker(job):
    jobs.kill(job.worker_of(VICTIM))
    return 3, lambda: None


def kill_agent(job):
    jobs.kill(crun_of(job.hosts[VICTIM]))

    def undo():
        job.hosts[VICTIM].wait()
        job.hosts[VICTIM] = job.start_node(VICTIM)
    return 2, undo


def link_down(job):
    job.fabric.link(VICTIM, "down")
    return 2, lambda: job.fabric.link(VICTIM, "up")


def stop_agent(job):
    os.kill(crun_of(job.hosts[VICTIM]), signal.SIGSTOP)
    return 2, lambda: os.kill(crun_of(job.hosts[VICTIM]), signal.SIGCONT)


def loss_5_percent(job):
    """No fault by itself: with it, a worker's death is told as ever, and nobody is lost."""
    for host in range(N_HOSTS):
        job.fabric.lose(host, 5)
    time.sleep(1.5)

    def undo():
        for host in range(N_HOSTS):
            job.fabric.heal(host)
    jobs.kill(job.worker_of(VICTIM))
    return 3, undo


def one_way(job):
    """The victim hears nothing any more, though what it sends arrives."""
    job.fabric.drop(VICTIM, "input")
    return 2, lambda: job.fabric.heal(VICTIM)


FAULTS = {"kill -9 a worker": kill_worker, "kill -9 an agent": kill_agent, "link down": link_down,
          "SIGSTOP an agent": stop_agent, "5 % loss, worker dies": loss_5_percent, "one-way partition": one_way}


def one_round(job, fault, generation):
    """(ms to the last survivor's notice, ms to the next generation), and the generation it ends in."""
    at = time.monotonic_ns()
    world, undo = fault(job)
    if fault is loss_5_percent:
        at = time.monotonic_ns()
    following, running = job.wait_running(world, generation)
    noticed = job.noticed(generation, [0, 1])
    undo()
    if world < N_HOSTS or fault is loss_5_percent:
        if world < N_HOSTS:
            following, _ = job.wait_running(N_HOSTS, following)
    assert noticed, "a survivor was not warned over its notice socket\n" + job.told.read_text()[-2000:]
    return (noticed - at) / 1e6, (running - at) / 1e6, following


def measure(fabric, name, rounds):
    notices, generations = [], []
    with tempfile.TemporaryDirectory() as folder, Job(fabric, folder) as job:
        generation, _ = job.wait_running(N_HOSTS)
        for _ in range(rounds):
            time.sleep(0.05)
            notice, running, generation = one_round(job, FAULTS[name], generation)
            notices.append(notice)
            generations.append(running)
    return notices, generations


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p / 100))]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    wanted = sys.argv[2:] or list(FAULTS)
    if reason := fabrics.missing():
        sys.exit(f"nodes_campaign.py: {reason}")
    print(f"{'fault':24} {'rounds':>6}   ms to the last survivor's notice    ms to the next generation running\n"
          f"{'':31}   {'median':>12} {'p99':>10}           {'median':>12} {'p99':>10}", flush=True)
    with fabrics.Fabric(N_HOSTS) as fabric:
        for name in wanted:
            notices, generations = measure(fabric, name, rounds)
            print(f"{name:24} {rounds:6}   {statistics.median(notices):12.1f} {percentile(notices, 99):10.1f}           "
                  f"{statistics.median(generations):12.1f} {percentile(generations, 99):10.1f}", flush=True)


if __name__ == "__main__":
    main()
