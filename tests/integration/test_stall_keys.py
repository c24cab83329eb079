"""Ranks that wait for a key of the worker store: crun names the key and the rank in the name of the key, on one node and on two."""

import contextlib
import os
import re
import subprocess
import sys

import jobs
import nodes as lib

WORKER = jobs.ROOT / "tests/workers/store_keys.py"


@contextlib.contextmanager
def job(folder, n_nodes, ranks, *words):
    folder.mkdir()
    port = lib.free_port()
    meet = ["--standalone"] if n_nodes == 1 else [
        f"--nnodes={n_nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=keys", "--security=open"]
    running = []
    try:
        for i in range(n_nodes):
            with open(folder / str(i), "wb") as output:
                running.append(subprocess.Popen(
                    [jobs.crun(), *meet, f"--nproc-per-node={ranks}", sys.executable, WORKER, jobs.SUPPORT, *words],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        yield
    finally:
        for p in running:
            p.kill()
        for p in running:
            p.wait()


def line_of(path, within):
    jobs.wait_for(lambda: "stall:" in path.read_text(), within)
    return re.search(r"stall: (\d+) of (\d+) ranks have waited (\d+) s at key \"(.*?)\" of the worker store.* for rank (\d+) on \S+ \(pid \d+\): (\S+)",
                     path.read_text())


def test_the_key_and_the_rank_in_its_name(tmp_path):
    """Rank 1 sleeps like rank 3; the name of the key decides. One of two nodes has rank 3, the other one the store."""
    names = {"one": ("rank_3_ready", 1), "two": ("loaded/3", 2)}
    with contextlib.ExitStack() as jobs_of_test:
        for name, (key, n_nodes) in names.items():
            jobs_of_test.enter_context(job(tmp_path / name, n_nodes, 4 // n_nodes, key, "3", "1"))
        for path, key in [(tmp_path / name / str(node), key) for name, (key, n_nodes) in names.items() for node in range(n_nodes)]:
            line = line_of(path, 45)
            assert line, path.read_text()
            waiting, n_ranks, seconds, named, rank, activity = line.groups()
            assert (waiting, n_ranks, named, rank, activity[:5]) == ("2", "4", key, "3", "sleep"), line.group(0)
            assert 7 <= int(seconds) <= 15, line.group(0)
