#!/usr/bin/env python3
"""Would UCX or libfabric under libcrw's connections be faster on TCP? Two network namespaces on a switch, one run:

    transports_bench.py [ROUNDS]

Half a round trip of 4 bytes, and 26 MB in one direction again and again: with libcrw (collectives pingpong, and broadcast between
two hosts, which streams over the same sockets and ends with an agreement), UCX (ucx_perftest, tag matching, UCX_TLS=tcp) and
libfabric (fi_pingpong, provider tcp). Medians of the rounds that gave a result. Never fails a build. Needs root; installs
Debian's ucx-utils and libfabric-bin when they are missing."""

import json
import os
import re
import statistics
import subprocess
import sys
import time

import fabric as fabrics
import jobs
from span_job import SpanJob

HERE = os.path.dirname(os.path.abspath(__file__))
LARGE = 26000000


def run_crw(network, name, size):
    command = [jobs.collectives(), name, "shared", size]
    with SpanJob((1, 1), command, network=network) as job:
        if any(job.wait(300)):
            sys.exit(f"transports_bench.py: {name} failed: {job.err}")
        return json.loads(job.out[0])["time_us"]


def run_pair(network, command, env=None):
    """The same program on both hosts, the second one with the address of the first; what the second one writes."""
    env = {**os.environ, **(env or {})}
    server = subprocess.Popen([*network.prefix(0), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    time.sleep(1)
    program, *rest = command
    client = [*network.prefix(1), program, network.address(0), *rest]
    if program == "fi_pingpong":
        client = [*network.prefix(1), *command, network.address(0)]
    out = subprocess.run(client, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=300,
                         check=False).stdout
    server.kill()
    server.wait()
    return out


def no_result(program, out):
    """On a busy machine a program may end before it has counted anything."""
    print(f"transports_bench.py: {program} gave no result: {out.strip()[-500:]}", file=sys.stderr)
    return None


def run_ucx(network, test, size, n):
    out = run_pair(network, ["ucx_perftest", "-t", test, "-s", str(size), "-n", str(n), "-f"],
                   {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"})
    # iterations; latency: percentile, average, overall; bandwidth: average, overall; rate: average, overall
    rows = [[float(x) for x in re.findall(r"(?<=\s)[\d.]+(?=\s|$)", line)] for line in out.splitlines()]
    overall = [row[3] for row in rows if len(row) == 8 and row[3] > 0]  # microseconds of one
    return overall[-1] if overall else no_result("ucx_perftest", out)


def run_libfabric(network, size, n):
    out = run_pair(network, ["fi_pingpong", "-p", "tcp", "-e", "msg", "-I", str(n), "-S", str(size)])
    rows = [line.split() for line in out.splitlines() if re.match(r"\s*\d+[kmg]?\s+\d", line)]
    # bytes, sent, acknowledged, total, time, MB/s, us for a transfer
    times = [float(row[6]) for row in rows if len(row) > 6 and float(row[6]) > 0]
    return times[-1] if times else no_result("fi_pingpong", out)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    if reason := fabrics.missing():
        sys.exit(f"transports_bench.py: {reason}")
    subprocess.run([f"{HERE}/../tools/install-packages", "ucx-utils", "libfabric-bin"], check=True)
    times = {}
    with fabrics.Fabric(2) as network:
        for _ in range(rounds):
            for who, small, large in (
                    ("libcrw", lambda: run_crw(network, "pingpong", 4) / 2, lambda: run_crw(network, "broadcast", LARGE)),
                    ("UCX", lambda: run_ucx(network, "tag_lat", 4, 5000), lambda: run_ucx(network, "tag_bw", LARGE, 50)),
                    ("libfabric", lambda: run_libfabric(network, 4, 5000), lambda: run_libfabric(network, LARGE, 25))):
                times.setdefault(who, []).append((small(), large()))
    print(f"over TCP between two network namespaces; medians of {rounds} rounds; load {os.getloadavg()[0]:.1f} on "
          f"{len(os.sched_getaffinity(0))} cores")
    for who, values in times.items():
        small, large = (statistics.median([v[i] for v in values if v[i]] or [float("nan")]) for i in (0, 1))
        print(f"{who:10} 4 bytes, one way: {small:8.1f} us    26 MB: {large:9.0f} us, {LARGE / large / 1e3:6.2f} GB/s")


if __name__ == "__main__":
    main()
