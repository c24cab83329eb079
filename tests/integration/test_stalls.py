"""A partial stall: some ranks wait, one does something else. crun names that rank and its activity within seconds, and nothing is touched."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import jobs
import nodes as lib

WORKER = jobs.build_folder() / "tests/workers/stall_job"

# What the rank does -> how the line ends.
KINDS = {
    "sleep": r"sleeps",
    "compute": r"computes (?:in \w+|\(no tool for its stack\))",
    "read": r"reads FOLDER/data at 0\.[5-9] MB/s|reads FOLDER/data at 1\.\d MB/s",
    "write": r"writes FOLDER/saved at [01]\.\d MB/s",
    "fifo": r"waits for input of FOLDER/fifo",
    "open": r"waits for input of a pipe",
    "pipe": r"cannot write to pipe:\[\d+\], which is full",
    "blocked": r"is blocked in the kernel \(state D\)(?: at \w+)?",
    "starve": r"waits for its process \d+ \(stall_job\)",
    "stop": r"is stopped by a signal",
    "skip": r"sleeps",
}
# And what the event log calls it, where that is not the kind and an "s".
NAMES = {"fifo": "no_input", "open": "no_input", "pipe": "full_pipe", "blocked": "blocked", "starve": "child", "stop": "stopped", "skip": "sleeps"}
NODES = 3
TOOLS = {name: shutil.which(name, path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}") for name in ("eu-stack", "gdb", "py-spy")}


class Job:
    """One or several nodes of one job; a rank of the middle stalls."""

    def __init__(self, folder, kind, n_nodes=1, ranks=3, step=30, step_ms=20, program=None, tool=""):
        self.kind, self.folder, self.n_ranks = kind, folder, n_nodes * ranks
        self.rank = self.n_ranks // 2
        folder.mkdir()
        (folder / "data").write_bytes(bytes(2 << 20))
        (folder / "tools").mkdir()
        for name, path in TOOLS.items():  # notes its arguments, then is the tool, or another
            (folder / "tools" / name).write_text(f'#!/bin/sh\necho "$@" >>$0.calls\nexec {tool or path} "$@"\n')
            (folder / "tools" / name).chmod(0o755 if path else 0o600)
        os.mkfifo(folder / "fifo")
        os.mkfifo(folder / "other_fifo")
        worker = ["--no-python", *program] if program else [WORKER, kind, str(self.rank), str(step), str(step_ms), folder]
        worker += ["-", "0", "chats"] if kind in ("read", "write") else []  # into the file that all ranks have as their output
        port = lib.free_port() if n_nodes > 1 else 0
        meet = ["--standalone"] if n_nodes == 1 else [
            f"--nnodes={n_nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=stall", "--security=open"]
        self.nodes = []
        for i in range(n_nodes):
            with open(folder / f"node{i}", "wb") as output:
                self.nodes.append(subprocess.Popen(
                    [jobs.crun(), *meet, f"--nproc-per-node={ranks}", f"--event-log={folder / f'events{i}'}", *worker],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{folder}/tools:{os.environ['PATH']}",
                         "CRUN_PYSPY": f"{folder}/tools/py-spy" if TOOLS["py-spy"] else "", "PYTHONPATH": str(jobs.ROOT / "python")}))

    def calls(self, tool):
        """Of a tool: its arguments each time."""
        path = self.folder / "tools" / f"{tool}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def text(self, node=0):
        return (self.folder / f"node{node}").read_text()

    def line(self, node=0):
        return re.search(r"crun: stall: (\d+) of (\d+) ranks have waited (\d+) s.*? for rank (\d+) on \S+ \(pid (\d+)\): (.*)", self.text(node))

    def wait_line(self, node=0):
        jobs.wait_for(lambda: self.line(node) or self.nodes[node].poll() is not None, 60)
        assert self.line(node), self.text(node)
        return self.line(node)

    def resume(self, pid):
        (self.folder / "go").touch()
        os.kill(pid, signal.SIGCONT)
        for name in ("fifo", "other_fifo"):
            with open(os.open(self.folder / name, os.O_RDWR | os.O_NONBLOCK), "wb") as fifo:
                fifo.write(b"x")
                fifo.flush()
                time.sleep(0.2)

    def events(self, name, node=0):
        lines = (self.folder / f"events{node}").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["event"] == name]

    def finish(self):
        for p in self.nodes:
            if p.poll() is None:
                p.kill()
            p.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finish()


def states(crun_pid):
    """State of each process below crun; of a traced one with its tracer."""
    found = {}
    for pid in jobs.descendants(crun_pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            found[pid] = re.search(r"State:\t(\w)", status)[1] + re.search(r"TracerPid:\t(\d+)", status)[1].lstrip("0")
    return found


@pytest.mark.parametrize("kinds", [("sleep", "compute", "read", "fifo"), ("open", "pipe", "blocked", "starve"), ("stop", "skip", "write")])
def test_the_awaited_rank_and_its_activity_are_named(tmp_path, kinds):
    """Several jobs at once. The wait counts from its first look, so the line is there about ten seconds after it began."""
    running = [Job(tmp_path / kind, kind) for kind in kinds]
    try:
        for job in running:
            waiting, n_ranks, seconds, rank, pid, activity = job.wait_line().groups()
            assert (int(waiting), int(n_ranks), int(rank)) == (2, 3, 1), job.text()
            assert 7 <= int(seconds) <= 20, job.text()
            assert re.match(KINDS[job.kind].replace("FOLDER", str(job.folder)), activity), job.text()
            stopped = {pid: state for pid, state in states(job.nodes[0].pid).items() if state not in ("R", "S", "D", "Z")}
            assert stopped == ({int(pid): "T"} if job.kind == "stop" else {}), job.text()
            paused = set(re.findall(r"\d+", "\n".join(job.calls("eu-stack") + [re.search(r"-p (\d+)", call)[0] for call in job.calls("gdb")])))
            assert len(paused) <= 2 and (pid not in paused or job.kind not in ("blocked", "stop")), paused
            jobs.wait_for(lambda: job.events("stall"), 10)
            assert job.events("stall")[0]["activity"] == NAMES.get(job.kind, job.kind + "s"), job.events("stall")
            assert job.events("stall")[0]["rank"] == 1 and " in all-reduce, collective 31 of all ranks for rank 1 " in job.text()
            job.resume(int(pid))
        for job in running:
            if job.kind == "skip":  # its last collective never comes
                continue
            assert job.nodes[0].wait(60) == 0, job.text()
            assert "crun: stall: the ranks go on" in job.text()
    finally:
        for job in running:
            job.finish()


@pytest.fixture
def runtime(monkeypatch):
    """Sockets have short paths, so not below tmp_path."""
    with tempfile.TemporaryDirectory(prefix="crun-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


def awaited_ranks():
    """As crunctl shows them: in a line for people, and as JSON."""
    crunctl = WORKER.parents[2] / "launcher/crunctl"
    line = subprocess.run([crunctl, "status"], capture_output=True, text=True, timeout=60, check=True).stdout
    answer = subprocess.run([crunctl, "--json", "status"], capture_output=True, text=True, timeout=60, check=True).stdout
    return ({int(n) for n in re.findall(r"^ +(\d+) .*  AWAITED$", line, re.MULTILINE)},
            {w["rank"] for job in map(json.loads, answer.splitlines()) for node in job["nodes"] for w in node["workers"] if w["awaited"]})


@pytest.mark.usefixtures("runtime")
def test_all_nodes_print_one_report(tmp_path):
    with Job(tmp_path / "read", "read", n_nodes=NODES, ranks=2) as job:
        for node in range(NODES):
            waiting, n_ranks, _, rank, pid, activity = job.wait_line(node).groups()
            assert (waiting, n_ranks, rank) == ("5", "6", "3") and activity.startswith(f"reads {job.folder}/data at "), job.text(node)
        assert awaited_ranks() == ({3}, {3})
        facts = [{key: e[key] for key in ("rank", "activity", "waiting", "waits_ms", "bytes_per_s")} for node in range(NODES) for e in job.events("stall", node)[:1]]
        assert len(facts) == NODES and facts[0] == facts[1] == facts[2]
        assert (facts[0]["activity"], facts[0]["waiting"]) == ("reads", 5) and 8000 <= facts[0]["waits_ms"] <= 20000 and 4e5 < facts[0]["bytes_per_s"] < 2e6
        assert re.search(r" MB/s, in \w", activity) or not (TOOLS["eu-stack"] or TOOLS["gdb"]), activity  # a rank of that node waits, too
        job.resume(int(pid))
        jobs.wait_for(lambda: "the ranks go on" in job.text() and awaited_ranks() == (set(), set()), 20)
        assert [p.wait(60) for p in job.nodes] == [0] * NODES
        assert all("crun: stall: the ranks go on" in job.text(node) for node in range(NODES))
        assert len({job.line(node).group(0) for node in range(NODES)}) == 1


PYTHON_JOB = """
import os, socket, sys, time
from crun_launch import worker

def slow_part():
    while not os.path.exists(sys.argv[1] + "/go"):
        time.sleep(0.3)

ends = socket.socketpair()
for step in range(40):
    worker.beat(step)
    time.sleep(0.05)
    if step == 30 and os.environ["RANK"] == "1":
        slow_part()
    while step == 30 and os.environ["RANK"] != "1" and not os.path.exists(sys.argv[1] + "/go"):
        ends[0].settimeout(3)
        try:
            ends[0].recv(1)
        except TimeoutError:
            pass
"""


@pytest.mark.skipif(not TOOLS["py-spy"], reason="needs py-spy")
def test_python_programs_are_not_paused(tmp_path):
    """Their stacks are read from the memory of the running process."""
    folder = tmp_path / "job"
    (tmp_path / "job.py").write_text(PYTHON_JOB)
    with Job(folder, "python", program=[sys.executable, tmp_path / "job.py", folder]) as job:
        pid = int(job.wait_line().group(5))
        assert job.line().group(4) == "1" and "slow_part" in job.line().group(6), job.text()
        found = states(job.nodes[0].pid)
        assert pid in found and set(found.values()) <= {"R", "S", "D", "Z"}, found
        assert any(str(pid) in call for call in job.calls("py-spy")) and all("--nonblocking" in call for call in job.calls("py-spy")), job.calls("py-spy")
        assert job.calls("eu-stack") == job.calls("gdb") == []
        job.resume(pid)
        assert job.nodes[0].wait(60) == 0, job.text()


def test_what_is_slow_but_moves_is_not_reported(tmp_path):
    """The others wait 4 s for one rank in each step, as in a pipeline."""
    with open(tmp_path / "output", "wb") as output:
        p = subprocess.Popen([jobs.crun(), "--standalone", "--nproc-per-node=3", WORKER.parent / "crw_hang", "1", "4000"],
                             stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        time.sleep(25)
        assert p.poll() is None and "stall" not in (tmp_path / "output").read_text()
    finally:
        p.kill()
        p.wait()


def test_a_slow_tool_costs_a_node_its_stack_and_not_its_ranks(tmp_path):
    """The node of the awaited rank has its ranks together seconds after the others."""
    with Job(tmp_path / "sleep", "sleep", n_nodes=NODES, ranks=2, tool="sh -c \"sleep 30\"") as job:
        waiting, n_ranks, seconds, rank, _, activity = job.wait_line().groups()
        assert (waiting, n_ranks, rank) == ("5", "6", "3") and activity.startswith("sleeps") and int(seconds) < 20, job.text()
        assert len(re.findall("crun: stall: ", job.text())) == 1, job.text()
