"""Blocks of state in crun's memory: all ranks continue from the newest step of which every rank's block is whole."""

import os
import signal
import sys

import pytest

import jobs
import nodes as lib

pytestmark = [pytest.mark.sanitize]

WORKER = jobs.ROOT / "tests/workers/block_worker.py"
N_STEPS = 60


def notes(tmp_path, n_ranks):
    """For each generation the step from which its ranks continued, which is the same for all."""
    found = [dict(map(int, line.split()) for line in (tmp_path / f"rank{rank}").read_text().splitlines()) for rank in range(n_ranks)]
    generations = set().union(*found)
    assert all(len({steps.get(g) for steps in found}) == 1 for g in generations), found
    return [found[0][g] for g in sorted(generations)]


def run(tmp_path, *wrong, n=3, options=(), **environment):
    p = jobs.run([jobs.crun(), "--standalone", f"--nproc-per-node={n}", "--max-restarts=2", "--restart-pause=0", *options, "--no-python",
                  sys.executable, WORKER, str(tmp_path), str(N_STEPS), *map(str, wrong)], timeout=120,
                 env={**os.environ, **environment})
    assert p.returncode == 0, p.stdout + p.stderr
    return notes(tmp_path, n)


@pytest.mark.parametrize("step", [0, 1, 2, 37])
def test_killed_rank(tmp_path, step):
    first, again = run(tmp_path, "kill", 1, step)
    assert first == -1 and again in (step - 1, step)


def test_damaged_block_is_not_offered(tmp_path):
    """The newest block of a rank is damaged while it ends: its neighbour's step before is taken by all."""
    first, again = run(tmp_path, "damage", 0, 30, n=1)
    assert (first, again) == (-1, 29)


def test_rejected_step(tmp_path):
    first, again = run(tmp_path, "reject", 0, 30, n=1)
    assert (first, again) == (-1, -1)  # both slots have rejected steps


def test_two_nodes(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       "--max-restarts=2", "--restart-pause=0", "--no-python", sys.executable, WORKER, tmp_path, N_STEPS, "kill", 2, 31)
        assert nodes.codes() == [0, 0], nodes.texts()
    first, again = notes(tmp_path, 4)
    assert first == -1 and again in (30, 31)


def snapshot(folder, step, n_ranks):
    """A complete snapshot of a step has the files of all ranks as they were."""
    found = {p.name: p.read_bytes() for p in (folder / f"step-{step}").iterdir()}
    assert found.pop(".metadata") == b"%d" % step
    assert found == {f"__{rank}_0.distcp": bytes([rank + 1, step % 256]) * 50_000 for rank in range(n_ranks)}


@pytest.mark.parametrize("every", [0, 7])
def test_folder(tmp_path, every):
    """The last step is written at the end of the job, and every so many steps before."""
    folder = tmp_path / "saves"
    run(tmp_path, "kill", 1, 31, BLOCK_FOLDER=str(folder), BLOCK_EVERY=str(every))
    names = sorted(p.name for p in folder.iterdir())
    assert names[-1] == f"step-{N_STEPS - 1}" and len(names) == (2 if every else 1), names
    snapshot(folder, N_STEPS - 1, 3)
    if every:
        snapshot(folder, int(names[0][5:]), 3)


def test_rejected_steps_are_not_written_at_the_end(tmp_path):
    p = jobs.run([jobs.crun(), "--standalone", "--no-python", sys.executable, WORKER, str(tmp_path), str(N_STEPS), "reject", "0", "30"],
                 timeout=120, env={**os.environ, "BLOCK_FOLDER": str(tmp_path / "saves"), "BLOCK_EVERY": "0"})
    assert p.returncode == 1 and not (tmp_path / "saves").exists(), p.stderr


def test_folder_of_two_nodes_that_are_stopped(tmp_path):
    folder, port = tmp_path / "saves", lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       "--no-python", sys.executable, WORKER, tmp_path, N_STEPS,
                       env={"BLOCK_FOLDER": str(folder), "BLOCK_EVERY": "0", "BLOCK_SLEEP": "1"})
        jobs.wait_for(lambda: nodes.texts().count("sleeps") == 4, 60, 0.05)
        for node in nodes:
            node.signal(signal.SIGTERM)
        nodes.codes()
    assert f"step-{N_STEPS - 1}" in [p.name for p in folder.iterdir()], list(folder.iterdir())
    snapshot(folder, N_STEPS - 1, 4)


def test_a_folder_that_cannot_be_written(tmp_path):
    """Training goes on; a line names the folder and the reason at the first failure, and again at the end."""
    (tmp_path / "file").write_text("")
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", "--no-python", sys.executable, WORKER, str(tmp_path), str(N_STEPS)],
                 timeout=120, env={**os.environ, "BLOCK_FOLDER": str(tmp_path / "file/x"), "BLOCK_EVERY": "5"})
    assert p.returncode == 0 and p.stderr.count("is not written to") == 2, p.stderr
    assert f"is not written to {tmp_path}/file/x: Not a directory" in p.stderr


def test_a_greedy_worker_is_refused_by_name(tmp_path):
    script = f"""
import sys; sys.path.insert(0, {str(jobs.SUPPORT)!r})
import block_client as blocks, errno, os
c = blocks.Client(10)
a = c.ask(blocks.SIZE, n_bytes=1 << 50)
print(errno.errorcode[a.status], a.arg)
size = os.fstat(c.file).st_size
c.make_table()
try:
    os.ftruncate(c.file, 0)
except PermissionError:
    print("sealed", size)
"""
    p = jobs.run([jobs.crun(), "--standalone", "--no-python", sys.executable, "-c", script], timeout=60)
    first, second = p.stdout.splitlines()
    assert first.split()[0] == "ENOMEM" and 0 < int(first.split()[1]) < 1 << 30, p.stdout + p.stderr
    assert second == "sealed 0"


def test_foreign_records_end_a_channel_alone(tmp_path):
    """Bytes that are no record, a local rank that does not exist, another type of socket: crun goes on and serves the next one."""
    script = f"""
import sys; sys.path.insert(0, {str(jobs.SUPPORT)!r})
import block_client as blocks, os, random, socket
door = socket.socket(fileno=os.dup(int(os.environ["CRUN_BLOCKS_FD"])))
for i in range(200):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM if i % 3 else socket.SOCK_SEQPACKET)
    data = random.randbytes(random.randrange(1, 200)) if i % 2 else blocks.Client.record(None, blocks.HELLO, arg=random.choice([0, 99]))
    socket.send_fds(door, [data], [b.fileno()] if i % 5 else [])
c = blocks.Client(10)
c.socket.sendall(b"x" * 64)
c.socket.settimeout(20)
assert c.socket.recv(100) == b"", "crun closes the channel"
c = blocks.Client(10)
c.make_table()
print("served", c.n_slots)
"""
    p = jobs.run([jobs.crun(), "--standalone", "--no-python", sys.executable, "-c", script], timeout=60)
    assert p.stdout.splitlines() == ["served 2"], p.stdout + p.stderr
