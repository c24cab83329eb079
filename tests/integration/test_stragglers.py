"""A rank that the others wait for again and again is marked in crunctl status, and none in a job whose ranks go on alike."""

import json
import os
import pathlib
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
late = 1.2 if os.environ["RANK"] == "2" else 0  # of steps of 3 s, so that a busy machine delays no other rank by an eighth of one
for step in range(100000):
    time.sleep(max(0, begin + 3 * step + late - time.monotonic()))
    beat(step)
"""


@pytest.fixture
def runtime():
    """Sockets have short paths, so not below tmp_path."""
    with tempfile.TemporaryDirectory(prefix="crun-") as folder:
        yield folder


def start(folder, runtime, *command):
    with open(folder / "output", "wb") as output:
        return subprocess.Popen([jobs.crun(), "--nproc-per-node=4", "--no-python", *map(str, command)], stdin=subprocess.DEVNULL, stdout=output,
                                stderr=output, env={**os.environ, "XDG_RUNTIME_DIR": runtime})


def marked(runtime):
    crunctl = pathlib.Path(jobs.crun()).parent / "crunctl"
    answer = subprocess.run([crunctl, "--json", "status"], capture_output=True, text=True, timeout=60, check=True,
                            env={**os.environ, "XDG_RUNTIME_DIR": runtime}).stdout
    return [w["rank"] for w in json.loads(answer)["nodes"][0]["workers"] if w["straggler"]] if answer else []


def test_by_the_steps_that_ranks_report(tmp_path, runtime):
    script = tmp_path / "job.py"
    script.write_text(BEATS)
    p = start(tmp_path, runtime, sys.executable, script, jobs.ROOT / "python", time.monotonic() + 1)
    try:
        jobs.wait_for(lambda: marked(runtime) == [2], 120)
    finally:
        hangs.end(p)


def test_by_collectives_of_libcrw(tmp_path, runtime):
    p = start(tmp_path, runtime, jobs.build_folder() / "tests/workers/crw_hang", 1, 300)
    try:
        jobs.wait_for(lambda: marked(runtime) == [1], 120)
    finally:
        hangs.end(p)
