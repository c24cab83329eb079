"""Seeded hangs in gloo jobs of four ranks: how often crun names the rank that the others wait for first, and how long after
the time-out, for each kind. Needs root for the kind "disk", a file system whose reads never end.

Usage: hang_kinds.py [N] [KIND...]    N jobs of each kind (40); KIND: skip order loader sleep python c stop disk raised store
"""

import pathlib
import random
import sys
import tempfile

import hangs

RATE_MIN, LATE_MAX_S, TIMEOUT_S = 0.95, 5.0, 10


def run_kind(kind, n):
    late, n_right = [], 0
    for i in range(n):
        with tempfile.TemporaryDirectory(prefix="crun-hangs-") as folder:
            report = hangs.run_hang(kind, pathlib.Path(folder), TIMEOUT_S)
        n_right += report.culprit
        late.append(report.late_s)
        if not report.culprit:
            print(f"  {kind} {i}: another rank first: {report.groups}", flush=True)
    late.sort()
    print(f"{kind:7} culprit first {n_right}/{n}; seconds after the time-out: median {late[n // 2]:.1f}, longest {late[-1]:.1f}",
          flush=True)
    return n_right >= RATE_MIN * n and late[-1] <= LATE_MAX_S


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    random.seed(14)
    results = [run_kind(kind, n) for kind in sys.argv[2:] or hangs.KINDS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
