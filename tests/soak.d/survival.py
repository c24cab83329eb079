#!/usr/bin/env python3
"""Three crunds with etcd and jobs of several nodes, each on a host of its own, under random faults: which of them cost a restart, and for how long
the rendezvous answers nothing.

    survival.py [--rounds N] [--seed S] [--jobs NAME,...] [FAULT...]
    survival.py --torchrun N

Hosts 0 to 2 have a crund and a member of etcd, the others (two, --workers N) a node of each job. The jobs: ddp (PyTorch, gloo), train, and store, whose
workers use the store of --worker-store=local, so that its keys are at a crund. They go on from round to round. A fault is an action and a place: kill (of a
host: its link goes down and all its processes are killed, which are started again later) or cut (the link of its host goes down for a while), and
etcd (the member that leads), leader (the crund that leads), follower (another one) or host (that of the ddp job's group rank 0).

The gap of a round is the longest time between two answers that a client got which asks every 20 ms to be admitted as an agent. A restart is a new
generation of a job. With the process that keeps the keys, the generation of the store job ends. Each worker looks at its start
whether workers of another generation run. What the store has acknowledged is checked for each generation (support/py/history.py).

Prints a table, and ends with 1 when a limit is exceeded: no overlap, no lost write, no restart by a fault of the control plane and one by a lost host; with
--limits the gap, too: 4 s in the median of killed leaders, 9 s for hosts of leaders that are cut off."""

import argparse
import collections
import ctypes
import itertools
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import fabric as fabrics
import history
import jobs
import nodes as lib
from crund import Client, Closed
from session_agent import Agent

N_CONTROL, PORT = 3, 29400
ACTIONS, PLACES = ("kill", "cut"), ("etcd", "leader", "follower", "host")
FAULTS = [f"{action}-{place}" for action in ACTIONS for place in PLACES]
JOBS = ("ddp", "train", "store")
WORKERS = jobs.ROOT / "tests/workers"
MEDIAN_GAP_S, LONGEST_GAP_S = 4.0, 9.0
SETTLE_S = 150  # a round that takes longer has failed
PROBE_PERIOD_S, PROBE_TIMEOUT_S = 0.02, 1.0


# ---- the client that measures the gap, in a process of its own


class Prober:
    """A thread for each crund. Followers are asked only when there was no answer a moment ago."""

    def __init__(self, addresses, out):
        self.out, self.answered_at, self.answered_by = out, 0, None
        for number, address in enumerate(addresses):
            threading.Thread(target=self.run, args=(number, address), daemon=True).start()

    def ask(self, number, address):
        with Agent(PORT, host=address, job=f"probe{number}", timeout=PROBE_TIMEOUT_S, min_nodes=2, max_nodes=2) as agent:
            if agent.join().view()["view"] not in ("wait", "start"):
                return False
            agent.say("left")
            return True

    def run(self, number, address):
        while True:
            began = time.monotonic()
            if self.answered_by in (None, number) or began - self.answered_at > 3 * PROBE_PERIOD_S:
                try:
                    if self.ask(number, address):
                        self.answered_at, self.answered_by = time.monotonic(), number
                        self.out.write(f"{self.answered_at:.6f} {number}\n")
                except (OSError, AssertionError, Closed):
                    pass  # no answer
            time.sleep(max(0.001, began + PROBE_PERIOD_S - time.monotonic()))


def run_prober(path, addresses):
    with open(path, "a", buffering=1) as out:
        Prober(addresses, out)
        signal.pause()


# ---- the place


def enter_network(space):
    """This process and what it starts from now on are in that network namespace."""
    with open(f"/var/run/netns/{space}") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns")


class Place:
    """The hosts, what runs on them, and what it has written."""

    def __init__(self, network, folder, memory, options):
        self.network, self.folder, self.memory, self.options = network, pathlib.Path(folder), pathlib.Path(memory), options
        self.control = list(range(N_CONTROL))
        self.workers = list(range(N_CONTROL, N_CONTROL + options.workers))
        self.jobs = options.jobs.split(",")
        self.members, self.crunds, self.nodes, self.prober = {}, {}, {}, None
        self.counter = itertools.count()
        (self.folder / "secrets").mkdir()
        self.secret = self.folder / "secrets/store"  # of that job alone: the client that measures the gap has none
        self.secret.write_text("a secret of the tests, long enough")
        self.secret.chmod(0o600)
        for job in self.jobs:
            (self.folder / job).mkdir()

    # what is started

    def start(self, host, name, command):
        return lib.Node(command, self.folder / f"{name}.{host}.{next(self.counter)}.log", prefix=self.network.prefix(host),
                        env={"GLOO_SOCKET_IFNAME": "eth0", "PET_TIMESTAMPS": "yes", "PYTHONPATH": ""})

    def start_member(self, host):
        at = self.network.address(host)
        cluster = ",".join(f"m{h}=http://{self.network.address(h)}:2380" for h in self.control)
        self.members[host] = self.start(host, "etcd", [
            "etcd", "--name", f"m{host}", "--data-dir", self.memory / f"etcd{host}", "--logger", "zap", "--initial-cluster", cluster,
            "--pre-vote",  # the default since 3.5: a member that comes back makes no election
            "--listen-peer-urls", f"http://{at}:2380", "--initial-advertise-peer-urls", f"http://{at}:2380",
            "--listen-client-urls", f"http://{at}:2379", "--advertise-client-urls", f"http://{at}:2379"])

    def start_crund(self, host):
        state = "etcd://" + ",".join(f"{self.network.address(h)}:2379" for h in self.control) + "/survival"
        self.crunds[host] = self.start(host, "crund", [
            self.options.build / "rendezvous/crund", "--listen", f"{self.network.address(host)}:{PORT}", "--state", state,
            "--secrets", self.secret.parent])

    def program(self, job):
        if job == "ddp":
            return [sys.executable, WORKERS / "torch_ddp_steps.py", self.folder / job]
        if job == "store":
            return [sys.executable, WORKERS / "store_clients.py", jobs.SUPPORT, self.folder / job]
        return ["nice", "-n", "19", self.options.build / "worker-runtime/train", "toy", "--epochs", "1000000000",
                "--snapshot-dir", self.folder / job, "--save-every-epochs", "500"]

    def start_node(self, job, host):
        safety = ["--seal", f"--secret-file={self.secret}"] if job == "store" else ["--security=open"]
        self.nodes[job, host] = self.start(host, job, [
            self.options.build / "launcher/crun", f"--nnodes=1:{len(self.workers)}", "--nproc-per-node=1", "--rdzv-backend=c10d",
            "--rdzv-endpoint=" + ",".join(f"{self.network.address(h)}:{PORT}" for h in self.control), f"--rdzv-id={job}",
            f"--local-addr={self.network.address(host)}", f"--lease={self.options.lease:g}", "--max-restarts=100000",
            "--rdzv-conf=is_host=no,last_call_timeout=3,join_timeout=600,max_changes=1000000,"
            f"node_timeout_ms={self.options.node_timeout * 1000:.0f}",
            "--restart-pause=0", "--shutdown-timeout=2", *safety, "--no-python", sys.executable, "-S", WORKERS / "record_start.py",
            self.folder / f"{job}.starts", *self.program(job)])

    def start_all(self):
        for host in self.control:
            self.start_member(host)
            self.start_crund(host)
        command = [sys.executable, __file__, "--probe", self.folder / "probes", *(self.network.address(h) for h in self.control)]
        self.prober = lib.Node(command, self.folder / "prober.log")
        for job in self.jobs:
            for host in self.workers:
                self.start_node(job, host)

    def pids(self, host):
        return [int(pid) for pid in fabrics.sh(f"ip netns pids {self.network.space(host)}").stdout.split()]

    def kill_host(self, host):
        while pids := self.pids(host):
            for pid in pids:
                jobs.kill(pid)
            time.sleep(0.01)

    def finish(self):
        for host in self.control + self.workers:
            self.kill_host(host)
        for node in [*self.members.values(), *self.crunds.values(), *self.nodes.values(), *filter(None, [self.prober])]:
            node.finish()

    # what it has written

    def probes(self, since):
        """[(time, host)] of the answers, beginning with the last one before."""
        path = self.folder / "probes"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found = collections.deque()
        for line in reversed(lines):
            if line.endswith("\n"):
                at, number = line.split()
                found.appendleft((float(at), int(number)))
                if float(at) < since:
                    break
        return list(found)

    def leader(self):
        """The crund that has answered last, a moment ago."""
        found = self.probes(time.monotonic() - 1)
        return found[-1][1] if found and time.monotonic() - found[-1][0] < 1 else None

    def member_status(self, host):
        request = urllib.request.Request(f"http://{self.network.address(host)}:2379/v3/maintenance/status", b"{}")
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def member_reads(self, host):
        """It reads what its leader confirms: else it is not back yet, whatever its status is, as connections between members that were
        cut wait for TCP to send again. The next fault would leave etcd no majority."""
        request = urllib.request.Request(f"http://{self.network.address(host)}:2379/v3/kv/range", b'{"key": "AA=="}')
        try:
            with urllib.request.urlopen(request, timeout=0.5):
                return True
        except (OSError, ValueError):
            return False

    def etcd_leader(self):
        """None where the members do not agree or one is missing."""
        found = [self.member_status(host) for host in self.control]
        if None in found or len({s.get("leader") for s in found}) != 1:
            return None
        leads = [h for h, s in zip(self.control, found) if s.get("leader") == s["header"]["member_id"]]
        return leads[0] if leads else None

    def etcd_is_whole(self):
        """Each member has all that its leader had a moment ago."""
        leader = self.etcd_leader()
        status = None if leader is None else self.member_status(leader)
        if status is None or not all(self.member_reads(host) for host in self.control):
            return False
        return all(int((self.member_status(host) or {}).get("raftAppliedIndex", 0)) >= int(status["raftAppliedIndex"]) for host in self.control)

    def answers(self, host):
        try:
            with Client(self.network.address(host), PORT, timeout=1) as client:
                return client.ping()
        except (OSError, Closed):
            return False

    def starts(self, job):
        """[(generation, rank, world size, pid, time)]"""
        return [(int(g), int(r), int(n), int(pid), float(at)) for g, r, n, pid, at, _ in self.records(job, "start")]

    def overlaps(self, job):
        return self.records(job, "overlap")

    def records(self, job, kind):
        path = self.folder / f"{job}.starts"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(kind + " ") and line.endswith("\n")]

    def newest(self, job):
        """(generation, {rank: (pid, time)}, world size) of the one that started last."""
        found = self.starts(job)
        generation = max((s[0] for s in found), default=-1)
        ranks = {rank: (pid, at) for g, rank, _, pid, at in found if g == generation}
        return generation, ranks, next((s[2] for s in found if s[0] == generation), 0)

    def is_working(self, job, size):
        """The newest generation has that many workers, and each has done something a moment ago."""
        generation, ranks, world = self.newest(job)
        if world != size or len(ranks) != size or not all(os.path.exists(f"/proc/{pid}") for pid, _ in ranks.values()):
            return False
        since = max(max(at for _, at in ranks.values()) + 0.3, time.monotonic() - 2)
        since += time.time() - time.monotonic()
        if job == "train":
            return any(self.nodes[job, h].out.stat().st_mtime > since for h in self.workers)
        pattern = "step.{0}.{1}" if job == "ddp" else "history.{0}.{1}.*"
        return all(any(p.stat().st_mtime > since for p in (self.folder / job).glob(pattern.format(generation, rank)))
                   for rank in range(size))

    def keeper(self):
        """The host of the crund that has the keys of the store job: the one that formed its newest generation."""
        formed = {}
        for path in self.folder.glob("crund.*.log"):
            for found in re.finditer(r"job 'store': generation (\d+) runs", path.read_text(errors="replace")):
                formed[int(found[1])] = int(path.name.split(".")[1])
        return formed[max(formed)] if formed else None

    def host_of_rank_0(self, job):
        """By the process, which is below the crun of that host."""
        pid = self.newest(job)[1][0][0]
        return next((h for h in self.workers if pid in self.pids(h)), None)

    def answers_probes(self):
        """The client gets answers again: one whose last attempt met a cut waits for its own time-out, which is no gap of the next round."""
        return time.monotonic() - self.probes(time.monotonic() - 1)[-1][0] < 0.3

    def is_settled(self):
        return (self.leader() is not None and all(self.is_working(job, len(self.workers)) for job in self.jobs)
                and all(self.answers(h) for h in self.control) and self.etcd_is_whole()
                and self.answers_probes())

    def texts(self):
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2500:]}\n"
                       for path in sorted(self.folder.glob("*.log"), key=lambda p: p.stat().st_mtime)[-14:])


# ---- the faults


Round = collections.namedtuple("Round", "fault gap restarts joins went_on lost overlaps")


class Campaign:
    def __init__(self, place, rng):
        self.place, self.rng = place, rng
        self.checked, self.n_operations, self.rounds, self.complaints = set(), 0, [], []

    def settle(self):
        if not jobs.wait_until(self.place.is_settled, SETTLE_S, 0.1):
            raise AssertionError(f"not all is well again after {SETTLE_S} s:\n" + self.place.texts())

    def choose(self, place):
        """The host."""
        if place == "host":
            return self.place.host_of_rank_0(self.place.jobs[0])
        if place == "etcd":
            return self.place.etcd_leader()
        leader = self.place.leader()
        return leader if place == "leader" else self.rng.choice([h for h in self.place.control if h != leader])

    def went_on(self, before):
        """Every job has a generation without the host."""
        return all(self.place.newest(job)[0] > before[job] for job in self.place.jobs)

    def inflict(self, action, place, host, before):
        """The time at which it is over, as far as the network and the processes go."""
        p, network, rng = self.place, self.place.network, self.rng
        if action == "cut" or place == "host":
            network.link(host, "down")
        if action == "kill" and place == "host":
            p.kill_host(host)
        elif action == "kill":
            process = (p.members if place == "etcd" else p.crunds)[host]
            for pid in [*jobs.descendants(process.pid), process.pid]:
                jobs.kill(pid)
            process.process.wait()
        if place == "host" and rng.random() < 0.7:
            jobs.wait_until(lambda: self.went_on(before), 60, 0.05)
        elif place == "host":
            time.sleep(rng.uniform(0.2, 1.2 * p.options.lease))
        elif action == "cut":
            time.sleep(rng.uniform(0.1, 2) if rng.random() < 0.2 else rng.uniform(5, 8))
        elif rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.3))  # as a service manager starts it again
        else:
            time.sleep(rng.uniform(0.3, 3))
        over = time.monotonic()
        if action == "cut" or place == "host":
            network.link(host, "up")
            network.forget_neighbours()
            fabrics.sh("ip neigh flush all", check=False)
        if action == "kill":
            self.start_again(place, host)
        return over

    def start_again(self, place, host):
        if place == "host":
            for job in self.place.jobs:
                self.place.nodes[job, host].process.wait()
                self.place.start_node(job, host)
        elif place == "etcd":
            self.place.start_member(host)
        else:
            self.place.start_crund(host)

    def check_histories(self, is_last=False):
        """Faults of the store in generations that have ended, and so in their key spaces."""
        faults, generations = [], {}
        if "store" not in self.place.jobs:
            return faults
        for path in (self.place.folder / "store").glob("history.*"):
            generations.setdefault(int(path.name.split(".")[1]), []).append(path)
        newest = self.place.newest("store")[0]
        for generation in sorted(generations):
            if generation in self.checked or (generation == newest and not is_last):
                continue
            self.checked.add(generation)
            operations = [o for path in generations[generation] for o in history.read(path)]
            self.n_operations += len(operations)
            found = history.check(operations)
            faults += found
            if not found:
                for path in generations[generation]:
                    path.unlink()
        return faults

    def gap(self, since):
        times = [at for at, _ in self.place.probes(since)] + [time.monotonic()]
        return max(b - a for a, b in itertools.pairwise(times))

    def one_round(self, fault):
        action, place = fault.split("-")
        before = {job: self.place.newest(job)[0] for job in self.place.jobs}
        n_overlaps = sum(len(self.place.overlaps(job)) for job in self.place.jobs)
        host, keeper, began = self.choose(place), self.place.keeper(), time.monotonic()
        over = self.inflict(action, place, host, before)
        self.settle()
        gap = self.gap(began)
        restarts, joins, went_on = {}, {}, []
        for job in self.place.jobs:
            first = {}
            for generation, *_, at in self.place.starts(job):
                if generation > before[job]:
                    first[generation] = min(at, first.get(generation, at))
            restarts[job] = sum(at < over or place != "host" for at in first.values())
            joins[job] = len(first) - restarts[job]
            went_on += [min(first.values()) - began] if first else []
        lost = self.check_histories()
        overlaps = sum(len(self.place.overlaps(job)) for job in self.place.jobs) - n_overlaps
        done = Round(fault, gap, restarts, joins, max(went_on, default=None), lost, overlaps)
        self.rounds.append(done)
        self.judge(done, action, place, host == keeper)
        return done

    def judge(self, done, action, place, is_keeper):
        for job, n in done.restarts.items():
            has_keys = job == "store" and action == "kill" and place in ("leader", "follower") and is_keeper
            if n > (1 if place == "host" or has_keys else 0):
                self.complain(f"{done.fault}: {n} restarts of {job}")
            if done.joins[job] > 2 - n:
                self.complain(f"{done.fault}: {done.joins[job]} generations of {job} after the host's return")
        if done.overlaps:
            self.complain(f"{done.fault}: workers of another generation ran at the start of {done.overlaps}")
        for fault in done.lost:
            self.complain(f"{done.fault}: {fault.what}: {fault.operation}")

    def complain(self, text):
        self.complaints.append(f"round {len(self.rounds)}: {text}")
        print(f"    {self.complaints[-1]}", flush=True)

    def run(self, faults, n_rounds, in_order):
        self.settle()
        began = time.monotonic()
        for number in range(n_rounds):
            time.sleep(self.rng.uniform(0, 0.5))
            fault = faults[number % len(faults)] if in_order else self.rng.choice(faults)
            done = self.one_round(fault)
            minutes = (time.monotonic() - began) / 60
            print(f"{number + 1:4} {fault:14} gap {done.gap:5.2f} s  restarts {' '.join(f'{j} {n}' for j, n in done.restarts.items())}"
                  f"  joins {sum(done.joins.values())}" + (f"  went on after {done.went_on:.1f} s" if done.went_on else "")
                  + f"  ({(number + 1) / minutes:.1f} rounds/min)", flush=True)

    def check_last_history(self):
        """When no client runs any more: files that are still written would be read at different times."""
        for fault in self.check_histories(is_last=True):
            self.complain(f"at the end: {fault.what}: {fault.operation}")

    def table(self):
        lines = [f"{'fault':15}{'rounds':>7}{'restarts':>9}{'median gap':>11}{'p90':>7}{'longest':>8}{'lost writes':>12}{'overlap':>8}{'went on':>9}"]
        for fault in FAULTS:
            of = [r for r in self.rounds if r.fault == fault]
            gaps, went_on = sorted(r.gap for r in of), [r.went_on for r in of if r.went_on and "host" in fault]
            if of:
                lines.append(f"{fault:15}{len(of):7}{sum(sum(r.restarts.values()) for r in of):9}{statistics.median(gaps):11.2f}"
                             f"{gaps[int(len(gaps) * 0.9)]:7.2f}{gaps[-1]:8.2f}{sum(len(r.lost) for r in of):12}"
                             f"{sum(r.overlaps for r in of):8}" + (f"{statistics.median(went_on):9.1f}" if went_on else f"{'-':>9}"))
        return "\n".join(lines)

    def check_limits(self):
        killed = [r.gap for r in self.rounds if r.fault == "kill-leader"]
        lost = [r.gap for r in self.rounds if r.fault == "cut-leader"]
        if killed and statistics.median(killed) > MEDIAN_GAP_S:
            self.complain(f"leader killed: gap {statistics.median(killed):.2f} s in the median")
        if lost and max(lost) > LONGEST_GAP_S:
            self.complain(f"leader's host cut off: gap {max(lost):.2f} s")


# ---- torchrun beside


def run_torchrun(network, folder, rng, fault):
    """What becomes of torchrun with c10d on two hosts when the one with rank 0 and the store is lost; a line of text."""
    folder = pathlib.Path(folder)
    hosts, starts = (N_CONTROL, N_CONTROL + 1), folder / "starts"
    store = f"{network.address(hosts[0])}:29500"

    def start(host):
        return lib.Node([sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                         f"--rdzv-endpoint={store}", "--rdzv-id=job", f"--rdzv-conf=is_host={int(host == hosts[0])},last_call_timeout=3",
                         f"--local-addr={network.address(host)}", "--max-restarts=100", "--no-python", sys.executable, "-S",
                         WORKERS / "record_start.py", starts, sys.executable, WORKERS / "torch_ddp_steps.py", folder],
                        folder / f"torchrun{host}.{rng.random()}.log", prefix=network.prefix(host), env={"GLOO_SOCKET_IFNAME": "eth0"})

    def pids(host):
        return fabrics.sh(f"ip netns pids {network.space(host)}").stdout.split()

    def lines(kind):
        return [line.split() for line in starts.read_text().splitlines() if line.startswith(kind)] if starts.exists() else []

    nodes = {host: start(host) for host in hosts}
    try:
        jobs.wait_for(lambda: any(len(list(folder.glob(f"step.{g}.*"))) == 2 for g in range(5)), 120, 0.05)
        n_starts, began = len(lines("start")), time.monotonic()
        network.link(hosts[0], "down")
        if fault == "kill":
            for pid in pids(hosts[0]):
                jobs.kill(int(pid))
        away = rng.uniform(3, 20)
        jobs.wait_until(lambda: nodes[hosts[1]].process.poll() is not None, away, 0.05)
        network.link(hosts[0], "up")
        network.forget_neighbours()
        if fault == "kill":
            nodes["again"] = start(hosts[0])
        has_ended = jobs.wait_until(lambda: nodes[hosts[1]].process.poll() is not None, 60, 0.05)
        ended = f"ended with {nodes[hosts[1]].process.returncode} after {time.monotonic() - began:.0f} s" if has_ended else "still there after a minute"
        first = f"{hosts[0]} again after {away:.0f} s; "
        return (f"{fault} of the host of rank 0: host {first}the other torchrun: {ended}; workers started since: "
                f"{len(lines('start')) - n_starts}; at a start ran workers of another generation: {len(lines('overlap'))}")
    finally:
        for host in hosts:
            for pid in pids(host):
                jobs.kill(int(pid))
        for node in nodes.values():
            node.finish()


# ---- the command


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--jobs", default=",".join(JOBS), help="ddp,train,store; the host of rank 0 is that of the first one")
    parser.add_argument("--workers", type=int, default=2, help="hosts with a node of each job")
    parser.add_argument("--lease", type=float, default=10)
    parser.add_argument("--node-timeout", type=float, default=3)
    parser.add_argument("--limits", action="store_true", help="the lengths of the gap are checked, too")
    parser.add_argument("--in-order", action="store_true", help="the faults as they are given, one after the other")
    parser.add_argument("--build", type=pathlib.Path, default=jobs.build_folder())
    parser.add_argument("--torchrun", type=int, help="that many rounds of torchrun in place of the campaign")
    parser.add_argument("--keep", action="store_true", help="the folder stays when something was wrong")
    parser.add_argument("--probe", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS])
    return parser.parse_args()


def run_campaign(options, rng):
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="crun-survival-")
    with fabrics.Fabric(N_CONTROL + options.workers) as network, tempfile.TemporaryDirectory(dir=memory) as etcd_folder:
        fabrics.sh(f"ip -n {network.hub} addr add 10.{network.network}.0.254/24 dev sw && ip -n {network.hub} link set lo up")
        enter_network(network.hub)
        place = Place(network, folder, etcd_folder, options)
        campaign = Campaign(place, rng)
        try:
            place.start_all()
            campaign.run(options.faults or FAULTS, options.rounds, options.in_order)
        except AssertionError as e:
            campaign.complain(str(e))
        finally:
            place.finish()
        campaign.check_last_history()
    if campaign.complaints and options.keep:
        print(f"left in {folder}")
    else:
        fabrics.sh(f"rm -rf {folder}")
    if options.limits:
        campaign.check_limits()
    print(f"\n{campaign.table()}\n")
    print(f"{len(campaign.rounds)} rounds, seed {options.seed}, {len(campaign.checked)} generations of the store with "
          f"{campaign.n_operations} operations, {len(campaign.complaints)} complaints")
    return len(campaign.complaints)


def run_all_torchrun(options, rng):
    with fabrics.Fabric(N_CONTROL + 2) as network:
        for number in range(options.torchrun):
            with tempfile.TemporaryDirectory() as folder:
                print(run_torchrun(network, folder, rng, ACTIONS[number % 2]), flush=True)


def main():
    options = parse()
    if options.probe:
        run_prober(options.probe[0], options.probe[1:])
    if reason := fabrics.missing():
        sys.exit(f"survival.py: {reason}")
    rng = random.Random(options.seed)
    print(f"survival.py: seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.torchrun is not None:
        run_all_torchrun(options, rng)
    elif run_campaign(options, rng):
        sys.exit(1)


if __name__ == "__main__":
    main()
