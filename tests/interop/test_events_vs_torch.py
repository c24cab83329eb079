"""--event-log-handler=console prints what torchrun prints, but for times, names of the machine and process ids."""

import json
import os
import subprocess
import sys

import pytest

import jobs

OWN = {"run_id": "a random id", "hostname": "the plain name, not the looked-up one", "worker_id": "a pid",
       "total_run_time": "a time", "duration_ms": "a time", "raw_error": "compared by whether there is one"}


def told(launcher, *args):
    p = subprocess.run([*launcher, "--event-log-handler=console", *args], stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = []
    for line in p.stderr.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        metadata = event["metadata"]
        inner = json.loads(metadata["metadata"])
        assert (inner.get("worker_pid", [None]) == [None]) == (metadata["raw_error"] is None)
        inner.pop("worker_pid", None)
        metadata["metadata"] = inner
        for name in OWN:
            metadata[name] = metadata[name] is None
        found.append(event)
    return p.returncode, found


@pytest.mark.parametrize("args", [
    ("--nproc-per-node=2", "--max-restarts=1", "--role=trainer", "--no-python", "sh", "-c",
     "exit $((1 - TORCHELASTIC_RESTART_COUNT))"),
    ("--no-python", "sh", "-c", "exit 3"),
])
def test_same_events(args):
    torchrun = (sys.executable, "-m", "torch.distributed.run")
    theirs, ours = told(torchrun, *args), told((jobs.crun(),), *args)
    assert len(theirs[1]) >= 5
    assert ours == theirs
