"""What watching costs: CPU of crun and its threads beside 64 ranks that wait, with --hang-timeout=0 and 300, in per cent of a core.

Usage: watch_bench.py [--ranks N] [--seconds N] [--timeout S]    --timeout: instead of 300; the looks at stacks begin after half of it
"""

import argparse
import os
import signal
import subprocess
import sys
import time

import jobs


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(ranks, seconds, timeout):
    p = subprocess.Popen([jobs.crun(), f"--nproc-per-node={ranks}", f"--hang-timeout={timeout}", "--no-python", "sleep", "10000"],
                         stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        time.sleep(5)
        before, began = cpu_s(p.pid), time.monotonic()
        time.sleep(seconds)
        return 100 * (cpu_s(p.pid) - before) / (time.monotonic() - began)
    finally:
        p.send_signal(signal.SIGTERM)
        p.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--timeout", type=int, default=300)
    o = parser.parse_args()
    without, watched = measure(o.ranks, o.seconds, 0), measure(o.ranks, o.seconds, o.timeout)
    print(f"{o.ranks} ranks, {o.seconds} s: {without:.2f} % of a core without watching, {watched:.2f} % with (goal: 0.50)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
