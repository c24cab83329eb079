#!/usr/bin/env python3
"""Cuts one of three hosts off, without a word, and measures how long the ranks train before all have left.

    cut_cable.py [ROUNDS]

No launcher is there to tell them; they go by the silence of their connections (ten seconds). Under crun the
rounds' heartbeats are sooner."""

import statistics
import sys
import time

import jobs
from span_job import Network, SpanJob


def cut_once(network):
    with SpanJob((1, 1, 1), [jobs.train(), "classifier", "--epochs", "100000"], network=network) as job:
        jobs.wait_for(lambda: "step" in job.processes[0].stdout.readline(), timeout=60)
        network.set_link(2, "down")
        cut = time.monotonic()
        codes = job.wait(100)
        took = time.monotonic() - cut
        network.set_link(2, "up")
        network.forget_neighbours()
    if any(code == 0 for code in codes):
        sys.exit(f"cut_cable.py: somebody thinks that all went well: {codes}")
    return took


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with Network(3) as network:
        times = [cut_once(network) for _ in range(rounds)]
    print(f"cable cut {rounds} times: all ranks left after {statistics.median(times):.1f} s (median), "
          f"{max(times):.1f} s (worst)")


if __name__ == "__main__":
    main()
