#!/usr/bin/env python3
"""Cuts the network of one of three hosts and measures the time until all ranks have ended.

    cut_cable.py [ROUNDS]

There is no launcher: the ranks detect that their connections are silent for ten seconds. Under crun the heartbeats
of the rendezvous detect it earlier."""

import statistics
import sys
import time

import fabric as fabrics
import jobs
from span_job import SpanJob


def cut_once(network):
    with SpanJob((1, 1, 1), [jobs.train(), "classifier", "--epochs", "100000"], network=network) as job:
        jobs.wait_for(lambda: "step" in job.processes[0].stdout.readline(), timeout=60)
        network.link(2, "down")
        cut = time.monotonic()
        codes = job.wait(100)
        took = time.monotonic() - cut
        network.link(2, "up")
        network.forget_neighbours()
    if any(code == 0 for code in codes):
        sys.exit(f"cut_cable.py: a rank ended with success: {codes}")
    return took


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    if reason := fabrics.missing():
        sys.exit(f"cut_cable.py: {reason}")
    with fabrics.Fabric(3) as network:
        times = [cut_once(network) for _ in range(rounds)]
    print(f"cable cut {rounds} times: all ranks left after {statistics.median(times):.1f} s (median), "
          f"{max(times):.1f} s (worst)")


if __name__ == "__main__":
    main()
