"""A rank that the others wait for again and again is marked in crunctl status, and none in a job whose ranks go on alike."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import pytest

import hangs
import jobs

BEATS = """import os, sys, time
sys.path.insert(0, sys.argv[1])
from crun_launch.worker import beat
begin = float(sys.argv[2])
late = 1.2 if os.environ["RANK"] in sys.argv[3].split(",") else 0  # of steps of 3 s, so that a busy machine delays no other rank by an eighth of one
for step in range(100000):
    time.sleep(max(0, begin + 3 * step + late - time.monotonic()))
    beat(step)
"""


@pytest.fixture
def runtime():
    """Sockets have short paths, so not below tmp_path."""
    with tempfile.TemporaryDirectory(prefix="crun-") as folder:
        yield folder


def start(folder, runtime, *command, options=("--nproc-per-node=4",)):
    with open(folder / "output", "ab") as output:
        return subprocess.Popen([jobs.crun(), *options, "--no-python", *map(str, command)], stdin=subprocess.DEVNULL, stdout=output,
                                stderr=output, env={**os.environ, "XDG_RUNTIME_DIR": runtime})


def marked(runtime):
    crunctl = pathlib.Path(jobs.crun()).parent / "crunctl"
    answer = subprocess.run([crunctl, "--json", "status"], capture_output=True, text=True, timeout=60, check=True,
                            env={**os.environ, "XDG_RUNTIME_DIR": runtime}).stdout
    return sorted(w["rank"] for n in json.loads(answer)["nodes"] for w in n["workers"] if w["straggler"]) if answer else []


def test_by_the_steps_that_ranks_report(tmp_path, runtime):
    script = tmp_path / "job.py"
    script.write_text(BEATS)
    p = start(tmp_path, runtime, sys.executable, script, jobs.ROOT / "python", time.monotonic() + 1, "2")
    try:
        jobs.wait_for(lambda: marked(runtime) == [2], 120)
    finally:
        hangs.end(p)


def test_all_ranks_of_a_node(tmp_path, runtime):
    """On its own node none of them is late. The node that serves the rendezvous compares them with the other one's."""
    script = tmp_path / "job.py"
    script.write_text(BEATS)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        endpoint = f"--rdzv-endpoint=127.0.0.1:{s.getsockname()[1]}"
    options = ("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=two", endpoint)
    folders = [f"{runtime}/{node}" for node in (0, 1)]
    for folder in folders:
        os.mkdir(folder, 0o700)
    started = [start(tmp_path, folder, sys.executable, script, jobs.ROOT / "python", time.monotonic() + 1, "2,3", options=options) for folder in folders]
    try:
        jobs.wait_for(lambda: [2, 3] in map(marked, folders), 120)
    finally:
        for p in started:
            hangs.end(p)


def test_by_collectives_of_libcrw(tmp_path, runtime):
    p = start(tmp_path, runtime, jobs.build_folder() / "tests/workers/crw_hang", 1, 300)
    try:
        jobs.wait_for(lambda: marked(runtime) == [1], 120)
    finally:
        hangs.end(p)
