#!/usr/bin/env python3
"""Many hosts behind one front: each rank runs once, no agent waits for the front in vain, and nothing is left.

    hosts_crowd.py [HOSTS]        (default: 200)

The hosts are behind a fake ssh on this machine. Prints the seconds of the whole run. Exit code 1 after a fault."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import jobs

TIMEOUT_S = 300


def run(folder, n_hosts):
    (folder / "bin").mkdir()
    (folder / "bin/ssh").symlink_to(jobs.build_folder() / "tests/fakes/fake_ssh")
    command = [jobs.crun(), f"--hosts=h[1-{n_hosts}]", "--nproc-per-node=1", "--no-python", "sh", "-c", "echo $RANK; sleep 2"]
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "FAKE_SSH_HOMES": str(folder)}
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)


def left_over(folder):
    """Processes with a home below the folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"HOME={folder}/".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
        except OSError:
            pass  # it has ended
    return found


def main():
    n_hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory(prefix="crun-crowd-") as name:
        begin = time.monotonic()
        p = run(pathlib.Path(name), n_hosts)
        took_s = time.monotonic() - begin
        faults = [line for line in p.stderr.splitlines() if "trying again" in line or "closed" in line or "lost" in line]
        is_whole = sorted(map(int, p.stdout.split())) == list(range(n_hosts))
        is_empty = jobs.wait_until(lambda: not left_over(name), 30)
    print(f"{n_hosts} hosts: exit code {p.returncode} after {took_s:.1f} s, each rank once: {is_whole}, "
          f"lines of trouble: {len(faults)}, nothing left: {is_empty}")
    print("\n".join(faults[:5]))
    sys.exit(p.returncode != 0 or not is_whole or bool(faults) or not is_empty)


main()
