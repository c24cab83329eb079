#!/usr/bin/env python3
"""Groups over hosts of very different size, and of many ranks, come to be every time.

    hosts_starts.py [STARTS]        (default: 50 of each shape)

The hosts are nodes by number on 127.0.0.1. Each start is a whole job: all ranks meet, reduce, and leave. A start whose
ranks do not all end with 0 is a failed one. Exit code 1 if there is one."""

import sys
import time

import jobs
from span_job import SpanJob

SHAPES = ((1, 150), (64, 64, 64))


def start_once(sizes):
    command = [jobs.collectives(), "allreduce", "shared", "4096", "1"]
    with SpanJob(sizes, command) as job:
        failed = [rank for rank, code in enumerate(job.wait(600)) if code != 0]
        if failed:
            print(f"ranks {failed}: {job.err[failed[0]].strip()}", flush=True)
    return not failed


def main():
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    all_failed = 0
    for sizes in SHAPES:
        began = time.monotonic()
        n_failed = 0
        for i in range(starts):
            n_failed += not start_once(sizes)
            if i % 10 == 9:
                print(f"  {i + 1} starts, {n_failed} failed, {time.monotonic() - began:.0f} s", flush=True)
        print(f"hosts of {sizes} ranks: {starts} starts, {n_failed} failed, "
              f"{(time.monotonic() - began) / starts:.1f} s each", flush=True)
        all_failed += n_failed
    sys.exit(all_failed > 0)


if __name__ == "__main__":
    main()
