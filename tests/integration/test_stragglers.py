"""Ranks that the others wait for again and again are marked in crunctl status, and none in a job whose ranks go on alike. A line names them."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import pytest

import hangs
import jobs

BEATS = """import os, sys, time
sys.path.insert(0, sys.argv[1])
from crun_launch.worker import beat
begin = float(sys.argv[2])
late = 2.1 if os.environ["RANK"] == "2" else 0  # of steps of 3 s: two looks in each step find the other ranks ahead
for step in range(100000):
    time.sleep(max(0, begin + 3 * step + late - time.monotonic()))
    beat(step)
"""
SLOW = jobs.build_folder() / "tests/workers/crw_hang"


@pytest.fixture
def runtime():
    """Sockets have short paths, so not below tmp_path."""
    with tempfile.TemporaryDirectory(prefix="crun-") as folder:
        yield pathlib.Path(folder)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Node:
    def __init__(self, runtime, name, *command, options=("--nproc-per-node=4",)):
        self.folder = runtime / name
        self.folder.mkdir(mode=0o700)
        self.port = free_port()
        with open(self.folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                [jobs.crun(), *options, f"--metrics-addr={self.port}", f"--event-log={self.folder / 'events'}", "--no-python", *map(str, command)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "XDG_RUNTIME_DIR": self.folder})

    def workers(self):
        crunctl = pathlib.Path(jobs.crun()).parent / "crunctl"
        answer = subprocess.run([crunctl, "--json", "status"], capture_output=True, text=True, timeout=60, check=True,
                                env={**os.environ, "XDG_RUNTIME_DIR": self.folder}).stdout
        return sorted((w for n in json.loads(answer)["nodes"] for w in n["workers"]), key=lambda w: w["rank"]) if answer else []

    def has_marked(self, *ranks):
        return [w["rank"] for w in self.workers() if w["straggler"]] == list(ranks)

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return {int(rank): float(value) for rank, value in re.findall(name + r'{rank="(\d+)"} (\S+)', answer.read().decode())}

    def text(self):
        return (self.folder / "output").read_text()

    def events(self, name):
        return [e for e in map(json.loads, (self.folder / "events").read_text().splitlines()) if e["event"] == name]


def test_marks_and_the_line(tmp_path, runtime):
    """By beats, by collectives of libcrw, and of a whole node, whose ranks do not wait for each other; beside a job of even ranks."""
    script = tmp_path / "job.py"
    script.write_text(BEATS)
    of_two = ("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=two", "--security=open", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    nodes = []
    try:
        nodes.append(beats := Node(runtime, "beats", sys.executable, script, jobs.ROOT / "python", time.monotonic() + 1))
        nodes.append(counts := Node(runtime, "counts", SLOW, 1, 300))
        nodes.append(even := Node(runtime, "even", SLOW, 0, 100, 3))
        nodes += (two := [Node(runtime, f"two{i}", SLOW, 2, 200, 3, options=of_two) for i in (0, 1)])
        jobs.wait_for(lambda: beats.has_marked(2), 60)
        jobs.wait_for(lambda: counts.has_marked(1), 60)
        jobs.wait_for(lambda: any(node.has_marked(2, 3) for node in two), 60)

        waits, awaited = ([w[name] for w in counts.workers()] for name in ("waits_percent", "awaited_percent"))
        assert waits[1] < 10 and awaited[1] > 80 and all(waits[i] > 90 and awaited[i] < 10 for i in (0, 2, 3)), (waits, awaited)
        ratios = counts.metric("crun_worker_waits_ratio")
        assert ratios[1] < 0.1 and all(ratios[i] > 0.9 for i in (0, 2, 3)), ratios
        assert counts.metric("crun_straggler") == {0: 0, 1: 1, 2: 0, 3: 0}

        jobs.wait_for(lambda: all(node.events("slow") for node in (counts, *two)), 90)
        line = r"crun: slow: the other ranks have waited for rank {} on \S+ \(\S+\){} for (?:[89]\d|100) % of the last minute\n"
        assert re.search(line.format(1, ""), counts.text()), counts.text()
        for node in two:
            assert re.search(line.format("[23]", " and 1 more"), node.text()), node.text()
            assert node.events("slow")[0]["rank"] in (2, 3)
        assert len(counts.events("slow")) == 1
        assert even.has_marked() and not even.events("slow") and "slow" not in even.text()
    finally:
        for node in nodes:
            hangs.end(node.process)
