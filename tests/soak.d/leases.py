#!/usr/bin/env python3
"""Four nodes and a crund, each on a host of its own, under random faults: no two generations run at the same time.

    leases.py [--rounds N] [--lease SECONDS] [--etcd] [FAULT...]

Faults: kill (kill -9 of a crun, which is started again), stop (SIGSTOP of a crun, continued later), cut (the link of a host is
down for a while), both (cut, and a stop of another one), crund (kill -9 of crund, started again with its state). With --etcd three
hosts have a crund and a member of etcd each; etcd (kill -9 of a member, started again with its data) and control (the link of such a
host is down) are faults, too, and how many generations ended by a fault of these three is printed: none should. Each worker
writes when it runs, 50 times a second, by CLOCK_BOOTTIME, which all hosts of this machine share. Prints for each fault the time until all
ranks of the next generation run, and how many pairs of generations have overlapped, which has to be 0."""

import argparse
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

import fabric as fabrics
import jobs
from nodes import Node

N_NODES, PORT = 4, 29400
FAULTS = ("kill", "stop", "cut", "both", "crund")
CONTROL_FAULTS = ("crund", "etcd", "control")
NODE_TIMEOUT_MS = 1500  # for a machine that has other things to do, too
BEAT = r"""
import os, sys, time
name = "{folder}/beat.%s.%s.%d" % (os.environ["RANK"], os.environ["CRUN_GENERATION"], os.getpid())
with open(name, "a", buffering=1) as out:
    while True:
        print("%.6f" % time.clock_gettime(time.CLOCK_BOOTTIME), file=out)
        time.sleep(0.02)
"""


class Job:
    def __init__(self, network, folder, options):
        self.network, self.folder, self.options = network, pathlib.Path(folder), options
        self.control = range(N_NODES, N_NODES + (3 if options.etcd else 1))  # hosts
        self.nodes, self.crunds, self.members, self.n_started = {}, {}, {}, 0
        (self.folder / "beat.py").write_text(BEAT.replace("{folder}", str(folder)))

    def start(self, host, name, command):
        self.n_started += 1
        return Node(command, self.folder / f"{name}{host}.{self.n_started}.log", prefix=self.network.prefix(host))

    def start_member(self, host):
        at = self.network.address(host)
        cluster = ",".join(f"m{h}=http://{self.network.address(h)}:2380" for h in self.control)
        self.members[host] = self.start(host, "etcd", [
            "etcd", "--name", f"m{host}", "--data-dir", self.folder / f"etcd{host}", "--initial-cluster", cluster,
            "--listen-peer-urls", f"http://{at}:2380", "--initial-advertise-peer-urls", f"http://{at}:2380",
            "--listen-client-urls", f"http://{at}:2379", "--advertise-client-urls", f"http://{at}:2379"])

    def start_crund(self, host):
        state = self.folder / "state"
        if self.options.etcd:
            state = "etcd://" + ",".join(f"{self.network.address(h)}:2379" for h in self.control) + "/leases"
        self.crunds[host] = self.start(host, "crund", [jobs.build_folder() / "rendezvous/crund", "--listen",
                                                       f"{self.network.address(host)}:{PORT}", "--state", state])

    def start_node(self, host):
        command = [jobs.crun(), f"--nnodes=1:{N_NODES}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--security=open",
                   "--rdzv-endpoint=" + ",".join(f"{self.network.address(h)}:{PORT}" for h in self.control), "--rdzv-id=leases",
                   f"--rdzv-conf=is_host=no,last_call_timeout=5,node_timeout_ms={NODE_TIMEOUT_MS},max_changes=1000000",
                   f"--lease={self.options.lease}", "--max-restarts=100000", "--restart-pause=0", "--shutdown-timeout=2",
                   self.folder / "beat.py"]
        self.nodes[host] = self.start(host, "node", command)

    def finish(self):
        for node in [*self.nodes.values(), *self.crunds.values(), *self.members.values()]:
            node.signal(signal.SIGCONT)
            node.finish()

    def spans(self):
        """generation -> first and last moment at which a worker of it ran."""
        spans = {}
        for path in self.folder.glob("beat.*.*.*"):
            times = [float(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            generation = int(path.name.split(".")[2])
            if times:
                first, last = spans.get(generation, (times[0], times[-1]))
                spans[generation] = min(first, times[0]), max(last, times[-1])
        return spans

    def running(self):
        """Newest generation, and how many of its ranks have written in the last half second."""
        newest = max((int(p.name.split(".")[2]) for p in self.folder.glob("beat.*.*.*")), default=-1)
        limit = time.time() - 0.5
        return newest, sum(p.stat().st_mtime > limit for p in self.folder.glob(f"beat.*.{newest}.*"))

    def wait_for_all(self, above, timeout):
        jobs.wait_for(lambda: self.running()[0] > above and self.running()[1] == N_NODES, timeout, 0.05)


def inflict(job, fault, rng):
    """Returns what ends it."""
    host, other = rng.sample(range(N_NODES), 2)
    pause = rng.uniform(0.5, 2.5 * job.options.lease)
    if fault in CONTROL_FAULTS:
        at = rng.choice(job.control)
        if fault == "control":
            job.network.link(at, "down")
        else:
            processes, start = (job.crunds, job.start_crund) if fault == "crund" else (job.members, job.start_member)
            processes[at].signal(signal.SIGKILL)
            processes[at].process.wait()
        time.sleep(rng.choice([0.1, pause]))
        if fault == "control":
            job.network.link(at, "up")
            job.network.forget_neighbours()
        else:
            start(at)
        return
    if fault == "kill":
        job.nodes[host].signal(signal.SIGKILL)
        job.nodes[host].process.wait()
        time.sleep(pause / 2)
        job.start_node(host)
        return
    if fault in ("cut", "both"):
        job.network.link(host, "down")
    if fault in ("stop", "both"):
        job.nodes[other].signal(signal.SIGSTOP)
    time.sleep(pause)
    job.nodes[other].signal(signal.SIGCONT)
    if fault in ("cut", "both"):
        job.network.link(host, "up")
        job.network.forget_neighbours()


def overlaps(spans):
    order = sorted(spans)
    return [(a, b, spans[a][1] - spans[b][0]) for i, a in enumerate(order) for b in order[i + 1:] if spans[a][1] > spans[b][0]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lease", type=float, default=0, help="3 unless given, with --etcd 8")
    parser.add_argument("--etcd", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS, *CONTROL_FAULTS])
    options = parser.parse_args()
    if reason := fabrics.missing():
        sys.exit(f"leases.py: {reason}")
    options.lease = options.lease or (8 if options.etcd else 3)
    faults = options.faults or (sorted({*FAULTS, *CONTROL_FAULTS}) if options.etcd else FAULTS)
    rng, times, ended = random.Random(options.seed), {}, {}
    with fabrics.Fabric(N_NODES + (3 if options.etcd else 1)) as network, tempfile.TemporaryDirectory() as folder:
        job = Job(network, folder, options)
        try:
            for host in job.control:
                if options.etcd:
                    job.start_member(host)
                job.start_crund(host)
            for host in range(N_NODES):
                job.start_node(host)
            job.wait_for_all(-1, 120)
            for _ in range(options.rounds):
                fault, began, before = rng.choice(faults), time.monotonic(), job.running()[0]
                inflict(job, fault, rng)
                # A short pause ends no generation.
                jobs.wait_for(lambda: job.running()[0] >= before and job.running()[1] == N_NODES, 180, 0.05)  # noqa: B023
                times.setdefault(fault, []).append(time.monotonic() - began)
                ended[fault] = ended.get(fault, 0) + job.running()[0] - before
            found = overlaps(job.spans())
            n_generations = len(job.spans())
        finally:
            job.finish()
    for fault, values in sorted(times.items()):
        print(f"{fault}: {len(values)} times, all nodes together again after {statistics.median(values):.1f} s (median), "
              f"{max(values):.1f} s (worst), {ended[fault]} generations ended")
    print(f"seed {options.seed}, lease {options.lease:g} s, {n_generations} generations, "
          f"{len(found)} pairs of them ran at the same time")
    if found:
        sys.exit(f"leases.py: {found[:5]}")


if __name__ == "__main__":
    main()
