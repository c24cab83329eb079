"""--max-restarts-without-progress."""

import os
import sys

import jobs
import nodes as lib

# argv: a folder for what the worker has to remember; the step that each of its generations reaches, the last one ever after; "-" is none.
WORKER = """
import os, struct, sys, time
name = sys.argv[1] + "/runs" + os.environ["RANK"]
runs = os.path.exists(name) and len(open(name).read()) or 0
open(name, "a").write("x")
steps = sys.argv[2].split(",")
step = steps[min(runs, len(steps) - 1)]
if step != "-":
    os.pwrite(int(os.environ["CRUN_STATE_FD"]), b"CRUNBEAT" + struct.pack("<QQ", int(step), time.monotonic_ns()), 0)
if os.environ["RANK"] != "0":
    time.sleep(100)
sys.exit(3)
"""


def crun(tmp_path, steps, *args, **environment):
    p = jobs.run([jobs.crun(), "--standalone", "--restart-pause=0", "--max-restarts=6", "--no-requeue-code=77", *args, "--no-python",
                  sys.executable, "-c", WORKER, tmp_path, steps], timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    return p, len((tmp_path / "runs0").read_text())


def test_no_step_at_all(tmp_path):
    p, runs = crun(tmp_path, "-", "--max-restarts-without-progress=2")
    assert (p.returncode, runs) == (77, 3), p.stderr
    assert "the last 2 restarts have reached no step (--max-restarts-without-progress=2); the job has failed" in p.stderr
    assert "restarts are used" not in p.stderr


def test_steps_bring_it_further(tmp_path):
    p, runs = crun(tmp_path, "5,6,6,9,9", "--max-restarts-without-progress=2", "--nproc-per-node=2")
    assert (p.returncode, runs) == (77, 6), p.stderr
    assert "the last 2 restarts have not got beyond step 9" in p.stderr


def test_progress_within_the_restarts(tmp_path):
    p, runs = crun(tmp_path, "1,2,3,4,5,6,7", "--max-restarts-without-progress=1")
    assert (p.returncode, runs) == (1, 7), p.stderr
    assert "all 6 restarts are used" in p.stderr


def test_without_the_option(tmp_path):
    p, runs = crun(tmp_path, "-")
    assert (p.returncode, runs) == (1, 7), p.stderr


def test_two_nodes(tmp_path):
    """The node of the rank that fails decides, and all nodes print why."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       "--max-restarts=6", "--restart-pause=0", "--shutdown-timeout=5",
                       "--max-restarts-without-progress=1", "--no-python", sys.executable, "-c", WORKER, tmp_path, "4,5,5")
        assert nodes.codes() == [1, 1], nodes.texts()
        assert all("the last restart has not got beyond step 5" in node.text() for node in nodes), nodes.texts()
    assert len((tmp_path / "runs0").read_text()) == 3


def test_a_number_that_is_wrong():
    p = jobs.run([jobs.crun(), "--standalone", "--max-restarts-without-progress=0", "--no-python", "true"])
    jobs.assert_one_sentence(p, 1, "a number of restarts from 1 on")
