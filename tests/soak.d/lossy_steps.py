#!/usr/bin/env python3
"""What a step of training over hosts takes when the network loses packets.

    lossy_steps.py [PERCENT [CALLS]]        (default: 5 200)

Hosts are network namespaces on a switch, with one rank each; of what arrives at each of them, so many percent are dropped. A
step is what `train mnist` sends in one: an all_reduce of 900,904 bytes and one of 4 bytes."""

import json
import sys

import fabric as fabrics
import jobs
from span_job import SpanJob

SIZES = (4, 900904)


def measure(network, n_hosts, calls):
    """By size, the mean time of an all_reduce in seconds."""
    command = [jobs.collectives(), "allreduce", "shared", ",".join(map(str, SIZES)), calls]
    with SpanJob((1,) * n_hosts, command, network=network) as job:
        if any(job.wait(1200)):
            sys.exit(f"lossy_steps.py: a rank failed: {job.err}")
        lines = [json.loads(line) for line in job.out[0].splitlines()]
    if any(line["checked"] for line in lines):
        sys.exit("lossy_steps.py: wrong results")
    return {line["bytes"]: line["mean_us"] / 1e6 for line in lines}


def main():
    percent, calls = float(sys.argv[1]) if len(sys.argv) > 1 else 5, int(sys.argv[2]) if len(sys.argv) > 2 else 200
    if reason := fabrics.missing():
        sys.exit(f"lossy_steps.py: {reason}")
    for n_hosts in (2, 3):
        with fabrics.Fabric(n_hosts) as network:
            for lost in (0, percent):
                for host in range(n_hosts):
                    if lost:
                        network.lose(host, f"{lost:g}")
                times = measure(network, n_hosts, calls)
                print(f"{n_hosts} hosts, {lost:g} % loss: " +
                      ", ".join(f"{size} bytes {times[size]:.4f} s" for size in SIZES) +
                      f"; a step {times[900904] + times[4]:.3f} s", flush=True)


if __name__ == "__main__":
    main()
