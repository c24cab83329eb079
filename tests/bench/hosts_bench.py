#!/usr/bin/env python3
"""Collectives of libcrw beside PyTorch's gloo and Open MPI: the same machine, the same run, in turn.

    hosts_bench.py [--places 2x1,2x2,4x2,4x4,8x4] [--sizes 4,1024,...] [--rounds 3] [--one-host ROUNDS] [--no-mpi]

A place is ranks x hosts: hosts are network namespaces on a switch, one host is this machine. Prints for each place, size and
collective the median time of all rounds and what gloo and Open MPI take in units of it. --one-host prints the ratio to gloo of
an all_reduce of 26 MB of two ranks of one host in each of so many rounds, its median and its smallest. Never fails a build.

Needs root for more than one host; installs Debian's openmpi-bin and libopenmpi-dev when they are missing."""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import collectives_bench
import fabric as fabrics
import jobs
from span_job import SpanJob

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ("allreduce", "reducescatter", "allgather", "broadcast")
PLACES = "2x1,2x2,4x2,4x4,8x4"
SIZES = "4,1024,32768,900904,26000000"
TIMEOUT_S = 900


def calls_for(n_bytes):
    """In a batch of gloo's and Open MPI's."""
    return 30 if n_bytes <= 4096 else 10 if n_bytes <= 65536 else 5 if n_bytes <= 1 << 20 else 1


def sizes_of(ranks, hosts):
    """How many ranks each host has."""
    return [ranks // hosts + (host < ranks % hosts) for host in range(hosts)]


def prefix_of(network, host):
    return network.prefix(host) if network else []


def parse(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


# ------------------------------------------------------------------ the three

def run_crw(ranks, hosts, network, sizes, names=NAMES):
    lines = []
    for name in names:
        command = [jobs.collectives(), name, "shared", ",".join(map(str, sizes))]
        if hosts == 1:
            out = subprocess.run([jobs.build_folder() / "launcher" / "crun", "--standalone", f"--nproc-per-node={ranks}",
                                  *command], stdout=subprocess.PIPE, text=True, check=True,
                                 timeout=TIMEOUT_S).stdout
        else:
            with SpanJob(sizes_of(ranks, hosts), command, network=network) as job:
                if any(job.wait(TIMEOUT_S)):
                    sys.exit(f"hosts_bench.py: {name} failed: {job.err}")
                out = job.out[0]
        lines += parse(out)
    if any(line["checked"] for line in lines):
        sys.exit("hosts_bench.py: wrong results")
    for line, size in zip(lines, sizes * len(names)):
        line["bytes"] = size  # what was asked for; collectives.c rounds up to whole parts
    return lines


def run_gloo(ranks, hosts, network, sizes, port, names=NAMES):
    master = network.address(0) if network else "127.0.0.1"
    job = []
    for host, n in enumerate(sizes_of(ranks, hosts)):
        for _ in range(n):
            env = {**os.environ, "RANK": str(len(job)), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
                   "MASTER_ADDR": master, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0" if network else "lo",
                   "BENCH_NAMES": ",".join(names), "BENCH_SIZES": ",".join(map(str, sizes)),
                   "BENCH_CALLS": ",".join(str(calls_for(size)) for size in sizes)}
            job.append(subprocess.Popen([*prefix_of(network, host), sys.executable, collectives_bench.__file__,
                                         "--gloo-rank"], stdout=subprocess.PIPE, text=True, env=env))
    out = [p.communicate(timeout=TIMEOUT_S)[0] for p in job]
    if any(p.returncode for p in job):
        sys.exit("hosts_bench.py: the gloo job failed")
    return parse(out[0])


def compile_mpi(folder):
    subprocess.run([f"{HERE}/../tools/install-packages", "openmpi-bin", "libopenmpi-dev"], check=True)
    program = f"{folder}/mpi_collectives"
    subprocess.run(["mpicc", "-O2", "-o", program, f"{HERE}/mpi_collectives.c"], check=True)
    return program


def write_agent(network, folder):
    """What Open MPI starts its daemons with, in the place of ssh: AGENT ADDRESS COMMAND..."""
    path = f"{folder}/agent"
    with open(path, "w", encoding="ascii") as f:
        f.write("#!/bin/sh\naddress=$1\nshift\ncase $address in\n")
        for host in range(network.n_hosts):
            f.write(f"{network.address(host)}) exec ip netns exec {network.space(host)} unshare --uts sh -c "
                    f"\"hostname {network.hostname(host)} && $*\" ;;\n")
        f.write("esac\necho \"unknown host $address\" >&2\nexit 1\n")
    os.chmod(path, 0o755)
    return path


def run_mpi(program, ranks, hosts, network, sizes, folder):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--mca", "mpi_yield_when_idle",
               "1", "--mca", "btl", "vader,tcp,self" if network else "vader,self", "--mca", "pml", "ob1"]
    if network:
        hosts_list = ",".join(f"{network.address(host)}:{n}" for host, n in enumerate(sizes_of(ranks, hosts)))
        command += ["--host", hosts_list, "--mca", "plm_rsh_agent", write_agent(network, folder), "--mca",
                    "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"]
    command += [program, ",".join(map(str, sizes)), ",".join(str(calls_for(size)) for size in sizes)]
    p = subprocess.run([*prefix_of(network, 0), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    if p.returncode:
        print(f"hosts_bench.py: Open MPI failed: {p.stderr.strip()[-1000:]}", file=sys.stderr)
    return parse(p.stdout)


# ------------------------------------------------------------------ the table

def measure(place, arguments, program, folder):
    """{(who, collective, bytes): times}"""
    ranks, hosts = map(int, place.split("x"))
    sizes, times = [int(size) for size in arguments.sizes.split(",")], {}
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(fabrics.Fabric(hosts)) if hosts > 1 else None
        for i in range(arguments.rounds):
            runs = [("crw", run_crw(ranks, hosts, network, sizes)),
                    ("gloo", run_gloo(ranks, hosts, network, sizes, 29700 + i))]
            if program:
                runs.append(("mpi", run_mpi(program, ranks, hosts, network, sizes, folder)))
            for who, lines in runs:
                for line in lines:
                    times.setdefault((who, line["collective"], line["bytes"]), []).append(line["time_us"])
    return times


def print_place(place, times, arguments):
    ranks, hosts = place.split("x")
    print(f"{ranks} ranks on {hosts} host{'s' if hosts != '1' else ''}; microseconds, median of {arguments.rounds}; load "
          f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    print(f"{'':14} {'bytes':>9} {'crw':>11} {'gloo':>11} {'ratio':>8} {'Open MPI':>11} {'ratio':>8}")
    for name in NAMES:
        for size in map(int, arguments.sizes.split(",")):
            crw, gloo, mpi = (statistics.median(times.get((who, name, size), [float("nan")]))
                              for who in ("crw", "gloo", "mpi"))
            print(f"{name:14} {size:>9} {crw:>11.1f} {gloo:>11.1f} {gloo / crw:>7.1f}x {mpi:>11.1f} {mpi / crw:>7.1f}x",
                  flush=True)


def one_host(rounds):
    ratios, size = [], 26000000
    for i in range(rounds):
        crw = run_crw(2, 1, None, [size], ("allreduce",))[0]["time_us"]
        gloo = run_gloo(2, 1, None, [size], 29800 + i, ("allreduce",))[0]["time_us"]
        ratios.append(gloo / crw)
        print(f"all_reduce of {size} bytes: {crw:.0f} us, gloo {gloo:.0f} us, {ratios[-1]:.1f}x", flush=True)
    print(f"median {statistics.median(ratios):.1f}x (goal 12), smallest {min(ratios):.1f}x (goal 9)")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--places", default=PLACES)
    p.add_argument("--sizes", default=SIZES)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--one-host", type=int, default=0)
    p.add_argument("--no-mpi", action="store_true")
    arguments = p.parse_args()
    if arguments.one_host:
        one_host(arguments.one_host)
        return
    with tempfile.TemporaryDirectory() as folder:
        program = None if arguments.no_mpi or not shutil.which("apt-get") else compile_mpi(folder)
        for place in arguments.places.split(","):
            if int(place.split("x")[1]) > 1 and (reason := fabrics.missing()):
                print(f"{place}: left out: {reason}")
                continue
            print_place(place, measure(place, arguments, program, folder), arguments)


if __name__ == "__main__":
    main()
