"""Jobs that are slow but move, at --hang-timeout=10: one rank writes a checkpoint, computes, compiles, loads data or only beats, in
steps of 25 s, while the others wait for it. No hang may be reported.

Usage: false_alarms.py [MINUTES] [KIND...]    minutes of each kind (24, so that all take two hours)
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import hangs
import jobs

KINDS = ("checkpoint", "compute", "compile", "data", "beat")
TIMEOUT_S = 10


def run_kind(kind, seconds, folder):
    p = subprocess.run([jobs.crun(), "--nproc-per-node=2", f"--hang-timeout={TIMEOUT_S}", f"--event-log={folder / 'events'}",
                        f"--log-dir={folder / 'logs'}", "--no-python", sys.executable, jobs.ROOT / "tests/workers/slow_job.py",
                        kind, str(seconds)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, check=False)
    alarms = [e["groups"] for e in hangs.read_events(folder / "events") if e["event"] == "hang"]
    print(f"{kind:10} {seconds:.0f} s: exit code {p.returncode}, {len(alarms)} false alarms {alarms or ''}", flush=True)
    return p.returncode == 0 and not alarms


def main():
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 24
    results = []
    for kind in sys.argv[2:] or KINDS:
        with tempfile.TemporaryDirectory(prefix="crun-slow-") as folder:
            results.append(run_kind(kind, minutes * 60, pathlib.Path(folder)))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
