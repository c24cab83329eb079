#!/usr/bin/env python3
"""Scrapes crund and crun every second while clients use crund's store and a worker of crun writes. Their memory after the first tenth
of the time and at the end must not differ by more than a mebibyte. Usage: metrics_scrape.py [SECONDS]
"""

import re
import shutil
import subprocess
import sys
import time

import jobs
import launches
from crund import Crund
from scrapes import OPEN_METRICS, rss_kib, samples, scrape, value

GROWTH_MAX_KIB = 1024


def port_of(stream):
    return next(int(m.group(1)) for line in stream if (m := re.search(r"metrics on port (\d+)", line)))


def check_text(port):
    text = scrape(port)[2]
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True, timeout=60)
    return samples(text)


def use_store(client, turn):
    for i in range(200):
        client.set(b"/key%d" % (i % 50), b"x" * (turn % 100))
    client.add(b"/count", 1)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600
    job = launches.start(["--metrics-addr=0", "-t", "3", "--no-python", "sh", "-c", "while :; do echo a line; sleep 0.05; done"],
                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    with Crund(jobs.build_folder(), "--metrics-addr=0") as crund, crund.client() as client:
        programs = {"crund": (crund.pid, port_of(crund.process.stdout)), "crun": (job.pid, port_of(job.stderr))}
        first, begin, turn, slowest = {}, time.monotonic(), 0, 0.0
        while time.monotonic() < begin + seconds:
            use_store(client, turn)
            for _, port in programs.values():
                at = time.monotonic()
                samples(scrape(port, accept=OPEN_METRICS if turn % 2 else None)[2])
                slowest = max(slowest, time.monotonic() - at)
            if not first and time.monotonic() > begin + seconds / 10:
                first = {name: rss_kib(pid) for name, (pid, _) in programs.items()}
            turn += 1
            time.sleep(max(0, begin + turn - time.monotonic()))
        grown = {name: rss_kib(pid) - first[name] for name, (pid, _) in programs.items()}
        n_operations = value(check_text(programs["crund"][1]), "crun_store_operations_total", op="set")
        check_text(programs["crun"][1])
    job.terminate()
    job.communicate(timeout=60)
    print(f"{turn} scrapes of each in {seconds:g} s, slowest {1000 * slowest:.0f} ms, {n_operations:.0f} requests of the store; "
          + ", ".join(f"{name}: {first[name]} KiB and {kib:+d} KiB" for name, kib in grown.items()))
    if max(grown.values()) > GROWTH_MAX_KIB or n_operations != 200 * turn:
        raise SystemExit("metrics_scrape: memory has grown, or requests were not counted")


if __name__ == "__main__":
    main()
