"""PyTorch DDP over gloo with crun_launch.worker on three hosts in network namespaces; a fourth has crund. Needs root.

Each round a host of the three is lost (its crun and all processes killed, or its cable pulled), and the others go on in place with two
ranks. Then it returns, and they grow to three in place. The host that serves the worker store and rank 0 is lost, too.

Measured: from the fault to the next step of the two; from the start of crun on the returning host to the next step of the three. Checked: the
other hosts' processes are the same at the end, no step is missing, and each sample of each epoch is used once.
"""

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
import nodes as lib_nodes
import torch_in_place as lib

N_HOSTS = 3
FAULTS = ("kill", "cable")


class Job:
    def __init__(self, fabric, folder, python, options, more=()):
        self.fabric, self.python, self.options, self.more = fabric, python, options, more
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
        self.hosts[host] = self.nodes.crun(
            "--nnodes=2:3", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={self.endpoint}",
            "--rdzv-conf=last_call_timeout=1,join_timeout=120,is_host=0", "--max-restarts=1000", "--replace-timeout=300",
            "--restart-policy=replace", *self.more, str(lib.SCRIPT), str(self.logs.folder), *map(str, self.options),
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
        return jobs.wait_for(lambda: self.logs.read().first_step_after(generation, world), timeout, 0.003)

    def texts(self):
        return "".join(node.text()[-1500:] for node in self.nodes)

    def lose(self, host, fault):
        """Milliseconds to the next step of the others."""
        generation = self.generation()
        at = time.monotonic()
        if fault == "cable":
            self.fabric.link(host, "down")
        else:
            self.kill_host(host)
        _, seen = self.wait_step(generation, N_HOSTS - 1)
        if fault == "cable":
            self.kill_host(host)
            self.fabric.link(host, "up")
            self.fabric.forget_neighbours()
        return 1000 * (seen - at)

    def bring_back(self, host):
        generation, at = self.generation(), time.monotonic()
        self.start(host)
        _, seen = self.wait_step(generation, N_HOSTS)
        return 1000 * (seen - at)


def rounds(python, faults, n_samples=60000, more=(), pause_ms=10, report=None):
    """faults: [(host, "kill" or "cable")]. [(fault, ms to shrink, ms to grow)]"""
    took = []
    options = ["--samples", n_samples, "--epochs", 1000, "--pause-ms", pause_ms]
    with fabrics.Fabric(N_HOSTS + 1, network=79) as fabric, tempfile.TemporaryDirectory() as folder:
        with Job(fabric, folder, python, options, more) as job:
            try:
                job.wait_step(-1, N_HOSTS)
                for host, fault in faults:
                    others = {h: job.worker(h) for h in range(N_HOSTS) if h != host}
                    shrunk = job.lose(host, fault)
                    grown = job.bring_back(host)
                    assert others == {h: job.worker(h) for h in others}, "a process of another host was replaced"
                    took.append((fault, shrunk, grown))
                    if report:
                        report(took)
                reached = job.generation()
                job.wait_step(reached - 1, N_HOSTS)
                job.logs.check_steps()
                n_epochs = job.logs.check_samples(n_samples)
            except AssertionError as e:
                raise AssertionError(f"{e}\n{job.texts()}") from None
    return took, n_epochs


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=50)
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

    def report(took):
        fault, shrunk, grown = took[-1]
        print(f"{len(took)}: {fault}: {shrunk:.0f} ms to the next step of two, {grown:.0f} ms from the start of crun to that of three",
              flush=True)

    took, n_epochs = rounds(python, [(draw.randrange(N_HOSTS), draw.choice(FAULTS)) for _ in range(a.rounds)], a.samples, a.crun,
                            report=report)
    for fault in FAULTS:
        shrunk = sorted(s for f, s, _ in took if f == fault)
        if shrunk:
            print(f"{fault}, {len(shrunk)} times: next step of the two others median {statistics.median(shrunk):.0f} ms, "
                  f"p99 {shrunk[min(len(shrunk) - 1, int(0.99 * len(shrunk)))]:.0f} ms")
    print(f"grown in place: median {statistics.median(g for *_, g in took):.0f} ms; {n_epochs} epochs, each sample used once")


if __name__ == "__main__":
    main()
