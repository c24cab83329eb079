"""The soak tests of crund: tests/soak store-hostile, tests/soak store-crowd."""

import json
import os
import pathlib
import resource
import subprocess
import sys

from crund import Crund

BUILD = pathlib.Path(os.environ["CRUN_BUILD"])
FD_LIMIT = 250000
RESERVED_FDS = 100
# 100,000 connections have two ends here; the kernel counts both.
CROWD_LIMITS = {"/proc/sys/net/core/somaxconn": 65536, "/proc/sys/net/ipv4/tcp_max_syn_backlog": 65536}


def raise_fd_limit(n):
    """As far as we may; returns how many there are now."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(n, hard), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return limit
        except ValueError:
            continue  # only CAP_SYS_RESOURCE may raise the hard limit
    raise AssertionError("a limit cannot be set to itself")


def run(*command):
    p = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    if p.returncode != 0:
        sys.exit(f"{command[0]} failed with {p.returncode}")
    return json.loads(p.stdout)


def check(what, holds):
    print(f"  {'ok' if holds else 'NOT ok'}: {what}", flush=True)
    return holds


def hostile(n_frames, n_slow, n_deaf):
    good = True
    for mode, count in (("frames", n_frames), ("slow", n_slow), ("deaf", n_deaf)):
        with Crund(BUILD) as c:
            program = BUILD / "tests" / "workers" / "store_hostile"
            if mode == "frames":
                run(program, mode, c.port, c.pid, 20000)  # what the first ones touch stays allocated
            figures = run(program, mode, c.port, c.pid, count)
            print(f"{mode}: {figures}", flush=True)
            grown = figures["rss_largest_kib"] - figures["rss_before_kib"]
            left = figures["rss_after_kib"] - figures["rss_before_kib"]
            good &= check("every good operation was answered, and rightly", figures["good_operations"] > 0)
            if mode == "frames":
                good &= check(f"memory came back (to within {left} KiB)", left < 1024)
            else:
                good &= check(f"memory grew by {grown} KiB at most", grown < (256 << 10))
            good &= check("crund stops cleanly", c.stop() == 0)
    return good


def crowd(*counts):
    for path, value in CROWD_LIMITS.items():
        if int(pathlib.Path(path).read_text()) < value:
            try:
                pathlib.Path(path).write_text(str(value))
            except OSError as error:
                print(f"{path} stays as it is: {error}")
    good = True
    possible = raise_fd_limit(FD_LIMIT) - RESERVED_FDS
    for n in counts:
        figures = run(BUILD / "tests" / "bench" / "store_crowd", n)
        print(f"without sockets: {figures}", flush=True)
        good &= check(f"{n} simulated clients met in {figures['add_wait_set_s']} s, and in one BARRIER in "
                      f"{figures['barrier_s']} s, {figures['memory_kib'] / 1024:.1f} MiB", True)
        if n > possible:
            print(f"with sockets: {n} clients of one daemon need as many file descriptors; the hard limit (ulimit -Hn) is "
                  f"{possible + RESERVED_FDS} and cannot be raised here (CAP_SYS_RESOURCE): {possible} instead")
            n = possible
        with Crund(BUILD, "--max-connections", "200000") as c:
            figures = run(BUILD / "tests" / "bench" / "store_load", "--port", c.port, "--pid", c.pid, "--op", "connect",
                          "--connections", n)
            print(f"with sockets: {figures}", flush=True)
            good &= check(f"{n} clients connected in {figures['connect_s']} s", n > 10000 or figures["connect_s"] < 1)
            good &= check(f"and met in {figures['barrier_s']} s", n > 10000 or figures["barrier_s"] < 1)
            grown = figures["rss_idle_kib"] - figures["rss_before_kib"]
            good &= check(f"in {grown / n * 1024:.0f} bytes each, {figures['rss_idle_kib'] / 1024:.1f} MiB in all while idle",
                          grown < n and (n > 10000 or figures["rss_idle_kib"] < 30 << 10))
            good &= check("crund stops cleanly", c.stop(60) == 0)
    return good


CAMPAIGNS = {"hostile": hostile, "crowd": crowd}

if __name__ == "__main__":
    sys.exit(0 if CAMPAIGNS[sys.argv[1]](*map(int, sys.argv[2:])) else 1)
