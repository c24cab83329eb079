#!/usr/bin/env python3
"""SIGSTOP of one rank after the other, for longer than a host may be silent: nothing ends.

    hosts_stops.py [SECONDS]        (default: 15)

Two hosts of two ranks (nodes by number on 127.0.0.1) reduce 26 MB again and again; each rank is stopped once in the middle
of it and continued. Exit code 1 if a rank ends with an error."""

import os
import signal
import sys
import time

import jobs
from span_job import SpanJob

SIZES = (2, 2)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    command = [jobs.collectives(), "allreduce", "private", "26000000", "200"]
    began = time.monotonic()
    with SpanJob(SIZES, command) as job:
        for rank, p in enumerate(job.processes):
            time.sleep(1)
            os.kill(p.pid, signal.SIGSTOP)
            time.sleep(seconds)
            ended = [i for i, other in enumerate(job.processes) if other.poll() is not None]
            os.kill(p.pid, signal.SIGCONT)
            print(f"rank {rank} stopped for {seconds:g} s: ranks that ended meanwhile: {ended}", flush=True)
        codes = job.wait(600)
    print(f"exit codes {codes} after {time.monotonic() - began:.0f} s")
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
