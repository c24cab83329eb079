"""PyTorch DDP over gloo with crun_launch.worker on three hosts in network namespaces; a fourth has crund. Needs root.

Each round a host of the three is lost (its crun and all processes killed, or its cable pulled), and the others go on in place with two
ranks. Then it returns, and they grow to three in place. The host that serves the worker store and rank 0 is lost, too.

Measured: from the fault to the next step of the two; from the start of crun on the returning host to the next step of the three. Checked: the
other hosts' processes are the same at the end, no step is missing, and each sample of each epoch is used once.
--torchrun N: the same faults under torchrun of the same PyTorch, at the same daemon, with its defaults.
--torchft PYTHON: and under torchft of that interpreter, with the defaults of its lighthouse: one replica group for each host.
"""

import argparse
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

import fabric as fabrics
import jobs
import nodes as lib_nodes
import torch_in_place as lib

N_HOSTS = 3
FAULTS = ("kill", "cable")
QUIET_S = 3  # in front of a fault: nodes that return more often than every four seconds are admitted ever more rarely


class Job:
    NAME = "torchrun"

    def __init__(self, fabric, folder, python, options, more=(), torchrun=False):
        self.fabric, self.python, self.options, self.more, self.torchrun = fabric, python, options, more, torchrun
        self.folder = pathlib.Path(folder)
        (self.folder / "logs").mkdir()
        self.logs = lib.Logs(self.folder / "logs")
        self.nodes = lib_nodes.Nodes(folder)
        self.hosts = {}

    def __enter__(self):
        endpoint = f"{self.fabric.address(N_HOSTS)}:29400"
        self.daemon = self.nodes.start([jobs.build_folder() / "rendezvous/crund", f"--listen={endpoint}"],
                                       prefix=self.fabric.prefix(N_HOSTS))
        self.endpoint = endpoint
        for host in range(N_HOSTS):
            self.start(host)
        return self

    def __exit__(self, *_):
        for host in list(self.hosts):
            self.kill_host(host)
        self.nodes.__exit__()

    def start(self, host):
        launcher = [self.python, "-m", "torch.distributed.run"] if self.torchrun else [jobs.crun()]
        own = [f"--local-addr={self.fabric.address(host)}"] if self.torchrun else [
            "--replace-timeout=300", "--restart-policy=replace", *self.more]
        plain = ["--plain"] if self.torchrun else []
        self.hosts[host] = self.nodes.start(
            [*launcher, "--nnodes=2:3", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={self.endpoint}",
             "--rdzv-conf=last_call_timeout=1,join_timeout=120,is_host=0", "--max-restarts=1000", *own, str(lib.SCRIPT),
             str(self.logs.folder), *map(str, self.options), *plain],
            prefix=self.fabric.prefix(host), env={**lib.environment(self.python), "GLOO_SOCKET_IFNAME": "eth0"})

    def worker(self, host):
        return next(iter(jobs.workers(self.hosts[host].pid).values()), None)

    def kill_host(self, host):
        """As a machine ends: nothing of it sends anything more than the kernel does for it."""
        node = self.hosts.pop(host)
        pids = [*jobs.descendants(node.pid), node.pid]
        for pid in pids:
            jobs.kill(pid, signal.SIGSTOP)
        for pid in pids:
            jobs.kill(pid)
        node.process.wait()

    def generation(self):
        return max((g for _, _, _, g, _, _ in self.logs.read().done()), default=-1)

    def wait_step(self, generation, world, timeout=200):
        """When a step of a later generation with that many ranks is done by all."""
        return jobs.wait_for(lambda: self.logs.read().first_step_after(generation, world), timeout, 0.003)[1]

    def wait_all(self, since, world, timeout=150):
        """The same for torchrun, which has no numbers of generations: when that many ranks have each done a step since then."""
        def seen():
            times = {}
            for rank, _, _, _, size, at in self.logs.read().done():
                if at > since and size == world:
                    times[rank] = min(at, times.get(rank, at))
            return max(times.values()) if len(times) == world else None
        return jobs.wait_for(seen, timeout, 0.003)

    def texts(self):
        return "".join(node.text()[-1500:] for node in self.nodes)

    def next_step(self, world):
        """To be called now; the result waits, and returns milliseconds from now."""
        generation, at = self.generation(), time.monotonic()
        return lambda: 1000 * ((self.wait_all(at, world) if self.torchrun else self.wait_step(generation, world)) - at)

    def lose(self, host, fault):
        """Milliseconds to the next step of the others."""
        took = self.next_step(N_HOSTS - 1)
        if fault == "cable":
            self.fabric.link(host, "down")
        else:
            self.kill_host(host)
        took = took()
        if fault == "cable":
            self.kill_host(host)
            self.fabric.link(host, "up")
            self.fabric.forget_neighbours()
        return took

    def bring_back(self, host):
        took = self.next_step(N_HOSTS)
        self.start(host)
        return took()


def rounds(python, faults, n_samples=60000, more=(), pause_ms=10, report=None):
    """faults: [(host, "kill" or "cable")]. [(fault, ms to shrink, ms to grow, survivors that gloo kept in a collective)]"""
    took = []
    options = ["--samples", n_samples, "--epochs", 1000, "--pause-ms", pause_ms]
    with fabrics.Fabric(N_HOSTS + 1, network=79) as fabric, tempfile.TemporaryDirectory() as folder:
        with Job(fabric, folder, python, options, more) as job:
            try:
                job.wait_step(-1, N_HOSTS)
                for host, fault in faults:
                    time.sleep(QUIET_S)
                    others = {h: job.worker(h) for h in range(N_HOSTS) if h != host}
                    kept = {h: lib.kept_by_gloo(job.hosts[h].text()) for h in others}
                    shrunk = job.lose(host, fault)
                    grown = job.bring_back(host)
                    kept = {h for h in others if lib.kept_by_gloo(job.hosts[h].text()) > kept[h]}
                    assert all(h in kept or job.worker(h) == pid for h, pid in others.items()), "a process of another host was replaced"
                    took.append((fault, shrunk, grown, len(kept)))
                    if report:
                        report(took)
                reached = job.generation()
                job.wait_step(reached - 1, N_HOSTS)
                job.logs.check_steps()
                n_epochs = job.logs.check_samples(n_samples)
            except AssertionError as e:
                raise AssertionError(f"{e}\n{job.texts()}") from None
    return took, n_epochs


class TorchftJob(Job):
    NAME = "torchft"

    def __enter__(self):
        self.endpoint = f"{self.fabric.address(N_HOSTS)}:29510"
        lighthouse = pathlib.Path(self.python).with_name("torchft_lighthouse")
        self.daemon = self.nodes.start([lighthouse, "--bind", self.endpoint, "--min_replicas=2"], prefix=self.fabric.prefix(N_HOSTS))
        for host in range(N_HOSTS):
            self.start(host)
        return self

    def start(self, host):
        script = lib.SCRIPT.with_name("torchft_trainer.py")
        self.hosts[host] = self.nodes.start(
            [self.python, script, self.logs.folder, host, self.fabric.address(host)], prefix=self.fabric.prefix(host),
            env={**lib.environment(self.python), "GLOO_SOCKET_IFNAME": "eth0", "TORCHFT_LIGHTHOUSE": f"http://{self.endpoint}"})


def their_rounds(kind, python, faults, report):
    """Those of a peer, torchrun or torchft: a job for each fault, as some do not go on after one."""
    took = []
    for host, fault in faults:
        with fabrics.Fabric(N_HOSTS + 1, network=79) as fabric, tempfile.TemporaryDirectory() as folder:
            with kind(fabric, folder, python, ["--samples", 60000, "--epochs", 1000], torchrun=True) as job:
                when = "the start of three hosts"
                try:
                    job.wait_all(0, N_HOSTS)
                    when = f"{fault} of host {host}"
                    shrunk = job.lose(host, fault)
                    when = f"the return of host {host}"
                    took.append((fault, shrunk, job.bring_back(host), 0))
                    report(took)
                except AssertionError as e:
                    print(f"{kind.NAME}: no step of all after {when}: {e}", flush=True)
                    reasons = [line for line in job.texts().splitlines() if "Error" in line]
                    print("    " + "\n    ".join(reasons[-2:]), flush=True)
    return took


def describe(values):
    values = sorted(values)
    return f"median {statistics.median(values):.0f} ms, p99 {values[min(len(values) - 1, int(0.99 * len(values)))]:.0f} ms"


def report(took):
    fault, shrunk, grown, kept = took[-1]
    print(f"{len(took)}: {fault}: {shrunk:.0f} ms to the next step of two, {grown:.0f} ms from the start on the returning host to that "
          f"of three; {kept} survivors kept by gloo; load {os.getloadavg()[0]:.1f}", flush=True)


def summary(name, took):
    for fault in FAULTS:
        shrunk = [s for f, s, *_ in took if f == fault]
        if shrunk:
            print(f"{name}: {fault}, {len(shrunk)} times: next step of the two others {describe(shrunk)}")
    if took:
        print(f"{name}: next step of three, from the start on the returning host: {describe([g for _, _, g, _ in took])}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("rounds", type=int, nargs="?", default=50)
    p.add_argument("--torchrun", type=int, default=4)
    p.add_argument("--torchft", metavar="PYTHON", help="as many rounds as of torchrun")
    p.add_argument("--samples", type=int, default=1200)
    p.add_argument("--crun", action="append", default=[], help="one more option of crun, such as --warm")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    a = p.parse_args()
    python, why = lib.python()
    why = why or fabrics.missing()
    if why:
        sys.exit(why)
    draw = random.Random(a.seed)
    print(f"seed {a.seed}", flush=True)
    faults = [(draw.randrange(N_HOSTS), draw.choice(FAULTS)) for _ in range(max(a.rounds, a.torchrun))]
    if a.rounds:
        took, n_epochs = rounds(python, faults[:a.rounds], a.samples, a.crun, report=report)
        summary("crun", took)
        print(f"{n_epochs} epochs, each sample used once; processes of the other hosts unchanged but for "
              f"{sum(kept for *_, kept in took)} that gloo kept in a collective", flush=True)
    for name, kind, interpreter in ("torchrun", Job, python), ("torchft", TorchftJob, a.torchft):
        if interpreter and a.torchrun:
            summary(name, their_rounds(kind, interpreter, faults[:a.torchrun], report))


if __name__ == "__main__":
    main()
