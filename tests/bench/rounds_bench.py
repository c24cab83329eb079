#!/usr/bin/env python3
"""Rounds with many agents on one daemon: real sockets, simulated agents (rounds_load), two cores.

    rounds_bench.py [--build DIR] [--agents N,N,...] [--rounds R] [--state] [--secret] [--peer N]

The daemon has one core and all agents together have another. For each number of agents: the time from the first
connection until everybody has its rank; from a worker's failure until the last agent has read the notice, and until
everybody has its rank in the next generation; bytes for each agent; memory and CPU time of the daemon. With --peer N
(0: not; default 64 where PyTorch is installed), N agents of PyTorch's c10d rendezvous on PyTorch's own store follow.
Prints figures; fails only when something cannot be measured at all.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import threading
import time

from crund import Crund
from job_secret import write_secret

ROOT = pathlib.Path(__file__).resolve().parents[2]

SERVER_CORE, LOAD_CORE = 0, 1
# Agents: everybody has its rank (s), everybody knows of a failure (ms).
GOALS = {1000: (0.5, 10), 10000: (5.0, None)}
TLS_GOALS = {1000: (0.4, 10)}


def pin(core):
    """To a core, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, {cores[core % len(cores)]})


def peak_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return 0


def measure(build, n, rounds, state, secret=False):
    with tempfile.TemporaryDirectory() as folder:
        options = ["--state", folder] if state else []
        with_secret = []
        if secret:
            file = pathlib.Path(folder) / ".secret"
            write_secret(file, secrets.token_hex(32))
            with_secret = ["--secret-file", str(file)]
            options += with_secret
        with Crund(build, *options, preexec_fn=pin(SERVER_CORE)) as c:
            idle = c.rss_kib()
            p = subprocess.run(
                [pathlib.Path(build) / "tests" / "bench" / "rounds_load", "--port", str(c.port), "--agents", str(n),
                 "--rounds", str(rounds), "--daemon", str(c.pid), *with_secret],
                capture_output=True, text=True, preexec_fn=pin(LOAD_CORE))
            if p.returncode != 0:
                sys.exit(f"rounds_load: {p.stderr}{c.log()}")
            figures = json.loads(p.stdout)
            figures["kib_each"] = (peak_kib(c.pid) - idle) / n
            figures["cpu_us_each"] = c.cpu_s() * 1e6 / n / (rounds + 1)
    return figures


def show(f, goals):
    n, notice, place = f["agents"], f["notice_ms"], f["next_place_ms"]
    goal_s, goal_ms = goals.get(n, (None, None))
    print(f"{n} agents")
    print(f"  everybody has its rank after     {f['join_ms'] / 1000:8.3f} s" + (f"   (goal {goal_s} s)" if goal_s else ""))
    handshakes = f["join_handshake_cpu_ms"]
    print(f"    CPU time until then: crund {f['join_daemon_cpu_ms']:.0f} ms, all agents {f['join_own_cpu_ms']:.0f} ms"
          + (f", {handshakes:.0f} ms of it in their side of the handshakes" if handshakes else ""))
    for what, times, goal in (("failure to the last notice", notice, goal_ms), ("failure to the next rank", place, None)):
        print(f"  {what:<31}  {times['median']:8.2f} ms  (p99 {times['p99']:.2f}, max {times['max']:.2f}"
              + (f"; goal {goal} ms)" if goal else ")"))
    print(f"  bytes for each agent                {f['join_bytes_to'] + f['join_bytes_from']:5.0f} to join, "
          f"{f['round_bytes_to'] + f['round_bytes_from']:.0f} for a round")
    print(f"  the daemon for each agent           {f['kib_each']:5.1f} KiB at most, {f['cpu_us_each']:.0f} us for a round")
    if f["lost"]:
        print(f"  connections lost: {f['lost']}, dialed again: {f['redials']}")
    sys.stdout.flush()


def torch_rendezvous(n):
    """Seconds until n agents of PyTorch's rendezvous, threads of this process, have their rank."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    handlers = []
    for _ in range(n):
        store = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        backend = C10dRendezvousBackend(store, "bench")
        handlers.append(DynamicRendezvousHandler.from_backend("bench", store, backend, n, n))
    begin = time.monotonic()
    threads = [threading.Thread(target=h.next_rendezvous) for h in handlers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("CRUN_BUILD", ROOT / "build"))
    parser.add_argument("--agents", default="100,1000,10000")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--state", action="store_true", help="with a state directory")
    parser.add_argument("--secret", action="store_true", help="with a secret: TLS sessions")
    parser.add_argument("--peer", type=int, default=64 if importlib.util.find_spec("torch") else 0)
    args = parser.parse_args()
    for n in map(int, args.agents.split(",")):
        goals = TLS_GOALS if args.secret else GOALS
        show(measure(args.build, n, args.rounds, args.state, args.secret), goals)
    if args.peer > 0:
        ours = measure(args.build, args.peer, 1, args.state)["join_ms"] / 1000
        theirs = torch_rendezvous(args.peer)
        print(f"{args.peer} agents: crund {ours:.3f} s, PyTorch's c10d rendezvous {theirs:.3f} s: "
              f"{theirs / ours:.0f} times as long")


if __name__ == "__main__":
    main()
