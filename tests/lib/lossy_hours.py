#!/usr/bin/env python3
"""Is a node taken for dead that is well? Three hosts in network namespaces, a crund on the first, jobs on all of them, and
a network that loses packets.

    lossy_hours.py [MINUTES [PERCENT [DELAY_MS]]]        (default: 10 5 0)

There are many jobs, so that minutes are hours of sessions: each job has two sessions over the network. With a delay they
go through a relay on the first host that holds everything back for so long, each way. Exit code 1 for any node that was
lost.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import time

import fabric as fabrics
import jobs
import nodes as lib

LIB = pathlib.Path(__file__).resolve().parent
N_HOSTS, N_JOBS = 3, 10
DAEMON_PORT, RELAY_PORT = 29400, 29401


def start_relay(fabric, delay_ms):
    script = (f"import sys, time; sys.path.insert(0, {str(LIB)!r}); import fabric\n"
              f"relay = fabric.FaultProxy(({fabric.address(0)!r}, {DAEMON_PORT}), ({fabric.address(0)!r}, {RELAY_PORT}))\n"
              f"relay.delay = {delay_ms / 1000}\nprint('ready', flush=True)\ntime.sleep(1000000)\n")
    relay = subprocess.Popen([*fabric.prefix(0), sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    relay.stdout.readline()
    return relay


def start_job(fabric, nodes, job, port):
    return [nodes.crun(f"--nnodes={N_HOSTS}", "--rdzv-backend=c10d", f"--rdzv-id={job}", "--max-restarts=1000",
                       f"--rdzv-endpoint={fabric.address(0)}:{port}", "--rdzv-conf=is_host=0", "--no-python",
                       "sh", "-c", "echo GENERATION $CRUN_GENERATION; exec sleep 1000000", prefix=fabric.prefix(host))
            for host in range(N_HOSTS)]


def count(nodes, words):
    return sum(len(re.findall(words, node.text())) for node in nodes)


def suffer(fabric, folder, minutes, percent, delay_ms):
    with lib.Nodes(folder) as nodes:
        daemon = nodes.start([jobs.build_folder() / "rendezvous" / "crund", f"--listen={fabric.address(0)}:{DAEMON_PORT}"],
                             prefix=fabric.prefix(0))
        relay = start_relay(fabric, delay_ms) if delay_ms else None
        try:
            crowd = [node for job in range(N_JOBS)
                     for node in start_job(fabric, nodes, f"job{job}", RELAY_PORT if relay else DAEMON_PORT)]
            for node in crowd:
                node.wait_for("GENERATION 0")
            for host in range(N_HOSTS):
                fabric.lose(host, percent)
            time.sleep(minutes * 60)
        finally:
            if relay:
                relay.kill()
        return count([daemon], r"is over: .* was lost"), count(crowd, r"has gone silent|was lost \(")


def main():
    minutes, percent, delay_ms = (float(a) for a in (*sys.argv[1:], *"10 5 0".split()[len(sys.argv) - 1:]))
    if reason := fabrics.missing():
        sys.exit(f"lossy_hours.py: {reason}")
    with fabrics.Fabric(N_HOSTS) as fabric, tempfile.TemporaryDirectory() as folder:
        lost, cut_off = suffer(fabric, folder, minutes, round(percent), delay_ms)
    hours = minutes / 60 * N_JOBS * (N_HOSTS - 1)
    print(f"{percent:g} % loss, {delay_ms:g} ms each way: {hours:.1f} hours of sessions ({hours / (N_HOSTS - 1):.1f} of a job "
          f"on three hosts), {lost} nodes taken for dead, {cut_off} sessions dialled anew")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
