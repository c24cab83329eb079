"""A large job in which one rank reads slowly: 88 nodes of 8 ranks in network namespaces of this machine. The line, its latency, one report on
each node, memory. Then one node with 64 ranks: the processor time of crun, its side threads included, in 60 s (bound 0.5 % of a core).

Usage: stall_nodes.py [--nodes N] [--ranks N] [--one-node N] [--seconds S] [--seed S]    (88, 8, 64, 60); needs root
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

import hangs
import jobs
import nodes as lib
from fabric import Fabric, missing, sh

WORKER = jobs.build_folder() / "tests/workers/stall_job"
STEP, STEP_MS, START_S, LINE_S, CORE_SHARE = 3, 1000, 300, 60, 0.005
TICKS = os.sysconf("SC_CLK_TCK")


def start(folder, i, meet, ranks, worker, prefix=()):
    with open(folder / f"node{i}", "wb") as output:
        return subprocess.Popen([*prefix, jobs.crun(), *meet, f"--nproc-per-node={ranks}", f"--event-log={folder / f'events{i}'}",
                                 f"--log-dir={folder / f'logs{i}'}", "--shutdown-timeout=3", "--no-python", *map(str, worker)],
                                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **lib.QUIET})


def stamp(path):
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


def resident_kib(pids):
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError, TypeError):
            found += int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])
    return found


def workers_of(folder, n_nodes):
    return [pid for i in range(n_nodes) for e in hangs.read_events(folder / f"events{i}") if e["event"] == "ready" for pid in e["pids"]]


def stalls_on(folder, i):
    return [e for e in hangs.read_events(folder / f"events{i}") if e["event"] == "stall"]


def watch(folder, n_nodes, ranks, culprit, crun_pids):
    """Whether all nodes have one right report in time."""
    began = time.monotonic()
    if not jobs.wait_until(lambda: stamp(folder / "stalled") and (folder / f"began.{(culprit + 1) % (n_nodes * ranks)}").exists(), START_S, 0.2):
        print(f"the ranks did not reach step {STEP} in {START_S} s:\n{(folder / 'node0').read_text(errors='replace')[-2000:]}", flush=True)
        return False
    began_ns = max(stamp(folder / "stalled"), min(ns for path in folder.glob("began.*") if (ns := stamp(path))))
    print(f"{n_nodes * ranks} ranks on {n_nodes} nodes are at step {STEP} after {time.monotonic() - began:.0f} s", flush=True)
    jobs.wait_until(lambda: all(stalls_on(folder, i) for i in range(n_nodes)), LINE_S, 0.5)
    reports = [stalls_on(folder, i) for i in range(n_nodes)]
    first = next((e for found in reports for e in found), None)
    if not first:
        print("no line", flush=True)
        return False
    latencies = sorted((found[0]["monotonic_ns"] - began_ns) / 1e9 for found in reports if found)
    print("\n".join(first["groups"]), flush=True)
    n_one, n_right = sum(len(found) == 1 for found in reports), sum(bool(found) and found[0].get("rank") == culprit for found in reports)
    pids = workers_of(folder, n_nodes)
    print(f"rank {culprit}: named on {n_right} of {n_nodes} nodes, one report on {n_one}; {latencies[0]:.1f} s after the others began to wait, the last "
          f"node {latencies[-1]:.1f} s; memory: workers {resident_kib(pids) // 1024} MiB, crun {resident_kib(crun_pids) // 1024} MiB", flush=True)
    is_right = re.search(r"reads \S+/data at [01]\.\d MB/s", first["groups"][0])
    return n_one == n_right == n_nodes == len(latencies) and latencies[0] <= 10 and bool(is_right)


def introduce(fabric):
    """Fixed entries in the neighbour tables: the kernel keeps at most 1,024 others for all namespaces together."""
    for host in range(fabric.n_hosts):
        sh(f"ip -n {fabric.space(host)} link set eth0 address 02:00:00:00:00:{host:02x}")
    for host in range(fabric.n_hosts):
        lines = [f"neigh replace {fabric.address(other)} lladdr 02:00:00:00:00:{other:02x} dev eth0 nud permanent"
                 for other in range(fabric.n_hosts) if other != host]
        subprocess.run(["ip", "-n", fabric.space(host), "-batch", "-"], input="\n".join(lines), text=True, check=True)


def run_many(n_nodes, ranks, chance):
    reason = missing()
    if reason:
        print(reason, flush=True)
        return False
    culprit = chance.randrange(n_nodes * ranks)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crun-stall-", ignore_cleanup_errors=True)))
        (folder / "data").write_bytes(bytes(2 << 20))
        fabric = stack.enter_context(Fabric(n_nodes))
        introduce(fabric)
        meet = [f"--nnodes={n_nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400", "--rdzv-id=stall", "--security=open"]
        running = []
        try:
            for i in range(n_nodes):
                running.append(start(folder, i, meet, ranks, [WORKER, "read", culprit, STEP, STEP_MS, folder, "steps"], fabric.prefix(i)))
            return watch(folder, n_nodes, ranks, culprit, [p.pid for p in running])
        finally:
            (folder / "go").touch()
            for p in running:
                p.terminate()
            for p in running:
                hangs.end(p)


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run_one_node(ranks, seconds):
    with tempfile.TemporaryDirectory(prefix="crun-stall-", ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        p = start(folder, 0, ["--standalone"], ranks, [WORKER, "sleep", 0, 1000000, STEP_MS, folder, "steps"])
        try:
            jobs.wait_for(lambda: len(workers_of(folder, 1)) == ranks, START_S, 0.2)
            time.sleep(5)
            before = cpu_s(p.pid)
            time.sleep(seconds)
            share = (cpu_s(p.pid) - before) / seconds
        finally:
            hangs.end(p)
    print(f"crun with {ranks} ranks: {100 * share:.2f} % of a core in {seconds:.0f} s (bound {100 * CORE_SHARE:.1f})", flush=True)
    return share <= CORE_SHARE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=88)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--one-node", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    o = parser.parse_args()
    print(f"seed {o.seed}", flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    are_well = [run_many(o.nodes, o.ranks, random.Random(o.seed))] if o.nodes else []
    are_well += [run_one_node(o.one_node, o.seconds)] if o.one_node else []
    return 0 if all(are_well) else 1


if __name__ == "__main__":
    sys.exit(main())
