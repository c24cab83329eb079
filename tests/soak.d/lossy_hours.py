#!/usr/bin/env python3
"""Is a node taken for dead that is well? Three hosts in network namespaces, a crund on the first, jobs on all of them, and
lines to the other two that lose packets and hold them back.

    lossy_hours.py [MINUTES [PERCENT [DELAY_MS]]]        (default: 10 5 200; the delay is that of a round trip)

There are many jobs, so that minutes are hours of sessions: each job has two sessions over the network. Exit code 1 if a
node was taken for dead.
"""

import contextlib
import re
import sys
import tempfile
import time

import fabric as fabrics
import jobs
import nodes as lib

N_HOSTS, N_JOBS = 3, 10
PORT = 29400


def start_job(fabric, nodes, job, endpoints):
    return [nodes.crun(f"--nnodes={N_HOSTS}", "--rdzv-backend=c10d", f"--rdzv-id={job}", "--max-restarts=1000",
                       f"--rdzv-endpoint={endpoint}:{PORT}", "--rdzv-conf=is_host=0", "--no-python",
                       "sh", "-c", "echo GENERATION $CRUN_GENERATION; exec sleep 1000000", prefix=fabric.prefix(host))
            for host, endpoint in enumerate(endpoints)]


def count(nodes, words):
    return sum(len(re.findall(words, node.text())) for node in nodes)


def suffer(fabric, folder, minutes, percent, delay_s):
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(fabrics.LongLine(fabric, 0, host, host, delay_s, 0)) for host in range(1, N_HOSTS)]
        nodes = stack.enter_context(lib.Nodes(folder))
        daemon = nodes.start([jobs.build_folder() / "rendezvous" / "crund", f"--listen=0.0.0.0:{PORT}"],
                             prefix=fabric.prefix(0))
        endpoints = [fabric.address(0), *(line.addresses[0] for line in lines)]
        crowd = [node for job in range(N_JOBS) for node in start_job(fabric, nodes, f"job{job}", endpoints)]
        for node in crowd:
            node.wait_for("GENERATION 0")
        for line in lines:
            line.percent = percent
        time.sleep(minutes * 60)
        return count([daemon], r"is over: .* was lost"), count(crowd, r"has stopped replying|was lost \(")


def main():
    minutes, percent, delay_ms = (float(a) for a in (*sys.argv[1:], *"10 5 200".split()[len(sys.argv) - 1:]))
    if reason := fabrics.missing() or fabrics.missing_lines():
        sys.exit(f"lossy_hours.py: {reason}")
    with fabrics.Fabric(N_HOSTS) as fabric, tempfile.TemporaryDirectory() as folder:
        lost, cut_off = suffer(fabric, folder, minutes, percent, delay_ms / 2000)
    hours = minutes / 60 * N_JOBS
    print(f"{percent:g} % loss, round trips of {delay_ms:g} ms: {hours:.1f} hours of a job on three hosts, {lost} nodes taken "
          f"for dead, {cut_off} sessions dialled anew")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
