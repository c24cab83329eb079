"""crun_launch.worker: PyTorch workers that stay when a peer fails. What needs PyTorch 2.14 or later runs with the 2.15 of tests/tools/python
2.15.0, where that is installed."""

import difflib
import functools
import os
import random
import signal
import socket
import struct
import sys
import time

import pytest

import fabric as fabrics
import jobs
import strict
import torch_in_place
import torch_parts
import torch_replace
import torch_replace_nodes

EXAMPLES = jobs.ROOT / "python/examples"
sys.path.insert(0, str(jobs.ROOT / "python"))


@pytest.fixture(scope="module")
def python215():
    python, why = torch_in_place.python()
    strict.skip_if(why)
    return python


# ---- short forms of the soak tests

def test_killed_ranks_are_replaced_in_place(python215):
    """Rank 0 and another: other processes stay, no step is lost, parameters are those of the undisturbed run bit for bit."""
    options = ["--samples", 480, "--epochs", 2]
    want = torch_replace.undisturbed(python215, options, n_ranks=3)
    took, _ = torch_replace.one_job(python215, options, 480, [0, 2], want, random.Random(3), n_ranks=3)
    assert len(took) == 2


def test_killed_ranks_are_replaced_in_place_by_forked_ones(python215):
    """The same with --warm: no new process imports anything, so none takes seconds."""
    options, warm = ["--samples", 480, "--epochs", 2], ["--warm"]
    want = torch_replace.undisturbed(python215, options, n_ranks=3, launcher_options=warm)
    took, _ = torch_replace.one_job(python215, options, 480, [0, 1], want, random.Random(4), n_ranks=3, launcher_options=warm)
    assert len(took) == 2


def test_hosts_leave_and_return(python215):
    """The host of rank 0 and the store is lost: the two others go on, and grow again when it is back."""
    strict.skip_if(fabrics.missing())
    took, _ = torch_replace_nodes.rounds(python215, [(0, "kill")], 240)
    assert len(took) == 1


# ---- the ends of it

def run_example(name, python, folder, *options, env=None):
    return jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", "--max-restarts=1", *options, str(EXAMPLES / name),
                     str(folder / "snapshot")],
                    env={**os.environ, "PYTHONPATH": str(jobs.ROOT / "python"), "PYTHON_EXEC": python, "OMP_NUM_THREADS": "1",
                         **(env or {})})


def test_six_lines():
    texts = [(EXAMPLES / name).read_text().split('"""', 2)[2].splitlines() for name in ("ddp_snapshot.py", "ddp_in_place.py")]
    lines = difflib.ndiff(*[[line.strip() for line in text] for text in texts])
    assert sum(line.startswith("+ ") for line in lines) == 6


@pytest.mark.parametrize("name, option", [("ddp_snapshot.py", "--standalone"), ("ddp_in_place.py", "--restart-policy=replace")])
def test_examples(name, option, tmp_path):
    """With PyTorch 2.13: the last one reports that it is an ordinary script there."""
    p = run_example(name, sys.executable, tmp_path, option)
    assert p.returncode == 0, p.stderr
    assert "epoch 3/3" in p.stdout
    assert ("cannot change a process group in place (2.14 can); after a failure all workers are restarted" in p.stderr) == (
        name == "ddp_in_place.py"), p.stderr


def warm_example(name, python, folder, *options):
    """The second of two runs: all modules of the first one are there when its workers are forked."""
    for i in range(2):
        folder.joinpath("snapshot").unlink(missing_ok=True)
        p = run_example(name, python, folder, "--warm", f"--event-log={folder}/events{i}", *options,
                        env={"XDG_CACHE_HOME": str(folder)})
        assert p.returncode == 0, p.stderr
        assert "epoch 3/3" in p.stdout and "by exec" not in p.stderr
    warm, = [e for e in jobs.whole_lines(folder / "events1") if e["event"] == "warm"][:1]
    assert warm["modules"] > 1000 and warm["shared_memory_kib"] > 50000, warm
    assert "torch" not in p.stderr, p.stderr


def test_example_warm(tmp_path):
    warm_example("ddp_snapshot.py", sys.executable, tmp_path)


@pytest.mark.parametrize("name, options", [("ddp_snapshot.py", []), ("ddp_in_place.py", ["--restart-policy=replace"])])
def test_example_warm_with_215(python215, tmp_path, name, options):
    warm_example(name, python215, tmp_path, *options)


def test_example_in_place(python215, tmp_path):
    p = run_example("ddp_in_place.py", python215, tmp_path, "--restart-policy=replace")
    assert p.returncode == 0, p.stderr
    assert "epoch 3/3" in p.stdout and "crun_launch" not in p.stderr, p.stderr


def test_nothing_outside_crun(tmp_path):
    p = jobs.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                  str(EXAMPLES / "ddp_in_place.py"), str(tmp_path / "snapshot")],
                 env={**os.environ, "PYTHONPATH": str(jobs.ROOT / "python"), "OMP_NUM_THREADS": "1"})
    assert p.returncode == 0, p.stderr
    assert "epoch 3/3" in p.stdout and "crun_launch" not in p.stderr, p.stderr


def test_nccl_without_a_gpu_is_refused(python215, tmp_path):
    script = tmp_path / "nccl.py"
    script.write_text("from crun_launch import worker\nworker.init_process_group('nccl')\n")
    p = jobs.run([jobs.crun(), "--standalone", "--restart-policy=replace", str(script)],
                 env={**os.environ, "PYTHONPATH": str(jobs.ROOT / "python"), "PYTHON_EXEC": python215, "CUDA_VISIBLE_DEVICES": ""})
    assert p.returncode == 1
    assert 'the backend "nccl" needs a CUDA device, and PyTorch finds none in this process; use "gloo"' in p.stderr, p.stderr


@pytest.mark.parametrize("how, code", [(signal.SIGTERM, 1), (signal.SIGUSR1, 0), ("limit", 0)])
def test_all_ranks_stop_at_one_step(python215, monkeypatch, how, code):
    """SIGUSR1 is what Slurm's --signal sends before a limit; without it the end of the job's time is known."""
    if how == "limit":
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 50))
    with torch_replace.Job(python215, ["--samples", 4000, "--epochs", 100], n_ranks=2) as job:
        if how != "limit":
            job.wait(lambda logs: logs.steps() >= 5)
            job.process.send_signal(how)
        assert job.process.wait(timeout=200) == code, job.errors.read_text()
        last = {rank: max(step for r, _, step, *_ in job.logs.read().done() if r == rank) for rank in (0, 1)}
        assert last[0] == last[1], last
        assert "SIGKILL" not in job.errors.read_text()


LIMIT = r"""
import sys, time
from crun_launch import worker

def within(seconds, wanted):
    end = time.monotonic() + seconds
    while time.monotonic() < end and worker._is_limit_near() != wanted:
        time.sleep(0.02)
    return worker._is_limit_near() == wanted

assert not within(1, True), "the end has moved, and the job stops before the old one"
open(sys.argv[1], "w").write(str(int(time.time()) + 40))
worker._limit().end = int(time.time()) + 30  # the later end is near as well, by now
assert within(10, True) == (sys.argv[2] == "0"), "rank 0 alone asks"
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_end_of_time_that_was_moved(tmp_path, rank):
    """scontrol update TimeLimit= after the start, of which the environment does not know."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\n[ \"$*\" = 'show job -o 7' ] || exit 1\n"
                                       f"echo JobId=7 StartTime=2001-01-01T00:00:00 EndTime=$(date -d @$(cat {tmp_path}/end) +%Y-%m-%dT%H:%M:%S) Deadline=N/A\n")
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "end").write_text(str(int(time.time()) + 3600))
    p = jobs.run([sys.executable, "-c", LIMIT if rank == "0" else LIMIT.replace("within(10", "within(1"), tmp_path / "end", rank],
                 env={**os.environ, "PYTHONPATH": str(jobs.ROOT / "python"), "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
                      "RANK": rank, "SLURM_JOB_END_TIME": str(int(time.time()) + 30)})
    assert p.returncode == 0, p.stderr


LOADS_SNAPSHOT = """
import os, signal, sys, time, torch
import torch.nn.functional as F
from crun_launch import worker
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

path = sys.argv[1]
worker.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.rand(96, 2))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

ddp = worker.Training(model, optimizer)
if os.path.exists(path):
    snapshot = torch.load(path)
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
for epoch in ddp.epochs(0, 2):
    for x, in ddp.batches(loader):
        if (os.environ["RANK"], os.environ["CRUN_GENERATION"], ddp.steps) == ("1", "0", 8):
            while not os.path.exists(path):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        with ddp.step():
            optimizer.zero_grad()
            F.mse_loss(ddp(x), x).backward()
            optimizer.step()
        if os.environ["RANK"] == "0" and ddp.steps == 4:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
            os.replace(path + ".new", path)
os.write(1, f"{ddp.steps} {[p.tolist() for p in model.parameters()]}\\n".encode())
"""


def test_replicas_that_differ_after_a_take_over(python215, tmp_path):
    """A snapshot that is loaded behind Training() replaces the state that the new process has just taken over."""
    (tmp_path / "script.py").write_text(LOADS_SNAPSHOT)
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--restart-policy=replace",
                  "--replace-timeout=100", str(tmp_path / "script.py"), str(tmp_path / "snapshot")],
                 env={**torch_in_place.environment(python215), "PYTHONPATH": str(jobs.ROOT / "python")}, timeout=200)
    assert p.returncode == 1, f"the ranks ended with {set(p.stdout.splitlines())}"
    assert ("ValueError: rank 1 has changed its model and optimizer since it took the state of the job over from rank 0: load a "
            "snapshot in front of Training(), not behind it") in p.stderr, p.stderr


def test_a_mistake_of_the_script_is_not_a_peer_s_failure(python215, tmp_path):
    """The error is that of the script, and it is there at once."""
    script = tmp_path / "mistake.py"
    script.write_text("import torch\nfrom crun_launch import worker\nworker.init_process_group('gloo')\n"
                      "m = torch.nn.Linear(2, 2)\nddp = worker.Training(m, torch.optim.SGD(m.parameters(), 0.1))\n"
                      "with ddp.step():\n    ddp(torch.ones(3, 3))\n")
    p = jobs.run([jobs.crun(), "--standalone", "--restart-policy=replace", str(script)],
                 env={**os.environ, "PYTHONPATH": str(jobs.ROOT / "python"), "PYTHON_EXEC": python215})
    assert p.returncode == 1
    assert "mat1 and mat2 shapes cannot be multiplied" in p.stderr and "PeerFailed" not in p.stderr, p.stderr


# ---- parts, in a process of their own: the module keeps one state for each process

@pytest.fixture(scope="module")
def run_part():
    with torch_parts.Parts() as parts:
        yield functools.partial(parts.run, PYTHONPATH=str(jobs.ROOT / "python"))


def test_notices(run_part):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(struct.pack("<IIIii", 20, 1, 7, 3, -9))
    ours.send(struct.pack("<IIIii7I", 304, 3, 8, 3, 29500, 1, 2, 0, 1, 1, 2, 4) + b"10.0.0.9".ljust(256, b"\0"))
    p = run_part("""
import select
from crun_launch import worker
seen = []
while len(seen) < 2:
    assert select.select([worker.notice_fileno()], [], [], 60)[0]
    seen.append(worker.read_notice())
assert worker.read_notice() is None
assert [tuple(n) for n in seen] == [(1, 7, 3, -9), (3, 8, 3, 29500)], seen
n = worker._notices()
assert n.failed_rank == 3
generation, place = n.next_place
assert generation == 8 and place == {
    "CRUN_GENERATION": "8", "MASTER_PORT": "29500", "MASTER_ADDR": "10.0.0.9", "RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "4"}, place
n.begin(8)
n.send(worker._READY, 1, worker._KEEPS_STORE)
""", theirs.fileno(), CRUN_NOTICE_FD=str(theirs.fileno()), CRUN_GENERATION="7")
    assert p.returncode == 0, p.stderr
    assert struct.unpack("<IIIii", ours.recv(100)) == (20, 4, 8, 1, 1)


# What a group needs of PyTorch to meet, so that each moment of it can be chosen.
MEETING = """
import time
from crun_launch import worker
n = worker._notices()
ours = socket.socket(fileno=int(os.environ["OURS"]))
group = worker._Group("gloo", {}, n)
group._open = lambda: None
group._exchange = lambda key, text: [text, text]
worker.dist._get_reconfigure_handle = lambda: "handle"
events = []

class Work:
    def wait(self):
        events.append("connected")

def notify(*record, then=lambda: True):
    ours.send(record[0] if isinstance(record[0], bytes) else struct.pack("<IIIii", 20, *record))
    until = time.monotonic() + 60
    while not then() and time.monotonic() < until:
        time.sleep(0.001)
    assert then()

def next_generation(number, then=lambda: n.next_place):
    notify(struct.pack("<IIIii7I", 304, 3, number, 0, 29500, 0, 2, 0, 1, 0, 2, 1) + b"127.0.0.1".ljust(256, b"\\0"), then=then)

def refused(call, text):
    try:
        call()
    except worker.PeerFailed as e:
        assert text in str(e), e
        return e
    raise AssertionError("no PeerFailed")

worker.dist._reconfigure = lambda *a, **k: Work()
"""


@pytest.fixture
def run_meeting(run_part):
    def run(text, code=0, **env):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            p = run_part("import os, socket, struct\n" + MEETING + text, ours.fileno(), theirs.fileno(), OURS=str(ours.fileno()),
                         CRUN_NOTICE_FD=str(theirs.fileno()), CRUN_GENERATION="3", RANK="0", WORLD_SIZE="2",
                         MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", **env)
        assert p.returncode == code, p.stderr
        return p

    return run


def test_a_failure_while_the_group_connects(run_meeting):
    """The notice comes before there are connections that it could end: the rank must not go on to a collective."""
    run_meeting("""
group.meet()
class Late(Work):
    def wait(self):
        notify(1, 3, 1, -9, then=lambda: n.failed_rank is not None)
worker.dist._reconfigure = lambda *a, **k: Late()
refused(group.meet, "another worker failed")
next_generation(4)
group.next_generation()
worker.dist._reconfigure = lambda *a, **k: Work()
group.meet()
assert events == ["connected", "connected"] and not group.is_cut
""")


def test_a_failure_in_a_generation_that_this_rank_is_not_in_yet(run_meeting):
    run_meeting("""
next_generation(4)
notify(1, 4, 1, -9, then=lambda: n.failed_ahead)
group.next_generation()
assert n.failed_rank == 1 and n.generation == 4
refused(group.check, "another worker failed")
next_generation(5)
group.next_generation()
assert n.failed_rank is None
group.check()
""")


def test_a_cut_that_fails_does_not_end_the_notices(run_meeting):
    run_meeting("""
def fail(place):
    raise RuntimeError("no group")
n.cut = fail
next_generation(4)
group.next_generation()
assert n.generation == 4
""")


def test_a_rank_that_never_comes(run_meeting):
    run_meeting("""
class Store:
    set = lambda self, key, value: None
    check = lambda self, keys: keys[0].endswith("/0")
    get = lambda self, key: b"{}"
del group._exchange
group.store = Store()
worker._MEETING_S = 0.2
e = refused(lambda: group._exchange("member", "{}"), "rank 1 has not come to the meeting of generation 3 within 0 s")
assert e.rank == 1
""")


def test_the_store_of_a_silent_host(run_meeting):
    """Its connection is ended when the next generation has another store, and stays while that one has the same."""
    run_meeting("""
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
connection = socket.create_connection(("127.0.0.1", port))
group.store_address = ("127.0.0.1", port)
group.store_peers = worker._peers_of_port(port)
os.environ["MASTER_PORT"] = str(port)
connection.settimeout(0.2)
notify(1, 3, 1, -9, then=lambda: n.failed_rank is not None)
try:
    connection.recv(1)
    raise AssertionError("it was ended")
except TimeoutError:
    pass
connection.settimeout(60)
next_generation(4)
assert connection.recv(1) == b""
""")


def test_a_cut_lasts_until_all_have_met(run_meeting):
    """This rank reads the end of a connection at once. The other end can write until all ranks have met, though this rank has closed it: an
    error there would keep that rank in gloo for ever."""
    run_meeting("""
listening = socket.create_server(("127.0.0.1", 0))
group.ports = {listening.getsockname()[1]}
connection = socket.create_connection(listening.getsockname())
peer = listening.accept()[0]
unrelated = socket.create_server(("127.0.0.1", 0))
other = socket.create_connection(unrelated.getsockname())
notify(1, 3, 1, -9, then=lambda: n.failed_rank is not None)
connection.settimeout(60)
assert connection.recv(1) == b""
connection.close()
for _ in range(3):
    peer.send(b"a part of a sum")
    time.sleep(0.01)
other.settimeout(0.05)
try:
    raise AssertionError(f"an unrelated connection was ended: {other.recv(1)}")
except TimeoutError:
    pass
next_generation(4)
group.next_generation()
n_open = len(os.listdir("/proc/self/fd"))
group.meet()
assert group.cut_connections == [] and len(os.listdir("/proc/self/fd")) < n_open
try:
    for _ in range(1000):
        peer.send(b"x")
    raise AssertionError("the connection has not ended")
except (BrokenPipeError, ConnectionResetError):
    pass
""")


@pytest.mark.parametrize("what, code", [("soon", 0), ("peer", 0), ("other", 0), ("never", 75)])
def test_a_revoke_in_progress(run_meeting, what, code):
    """nccl2 takes ncclInProgress of ncclCommRevoke for a failure: the rank tries again, unless a peer fails meanwhile, and is
    replaced when NCCL does not come to an end. Another error stays what it is."""
    p = run_meeting("""
import threading
what, tries = os.environ["WHAT"], []
def reconfigure(uuid, handles, timeout):
    tries.append((uuid, handles))
    if what == "other":
        raise RuntimeError("NCCL Abort failed: unhandled system error")
    if what == "peer":
        notify(1, 3, 1, -9, then=lambda: n.failed_rank is not None)
    if what != "soon" or len(tries) < 3:
        raise RuntimeError("NCCL Revoke failed: NCCL operation in progress")
    return Work()
worker.dist._reconfigure = reconfigure
worker._REVOKE_S = 0.3
if what == "peer":
    refused(group.meet, "another worker failed while the group was formed")
elif what == "other":
    try:
        group.meet()
    except RuntimeError as e:
        assert "unhandled system error" in str(e) and not isinstance(e, worker.PeerFailed)
    threading.Timer(0.5, lambda: notify(1, 3, 1, -9)).start()
    assert group.is_peer_failure(RuntimeError("NCCL Revoke failed: NCCL operation in progress"))  # of a collective
else:
    group.meet()
    assert events == ["connected"] and not group.is_cut
assert tries == [(4, ["handle", "handle"])] * (3 if what == "soon" else 1), tries
""", code=code, WHAT=what)
    assert ("rank 0: NCCL still revokes the communicator of the generation before, 0 s after all ranks met" in p.stderr) == (code == 75), p.stderr


@pytest.mark.parametrize("what, code", [("blocked", 75), ("computing", 0), ("elsewhere", 0), ("left", 0)])
def test_a_collective_that_nothing_completes(run_meeting, what, code, tmp_path):
    """The process ends when its thread stays blocked in a collective after the cut, and for no other reason."""
    (tmp_path / "collective.py").write_text("def call(f, *args):\n    return f(*args)\n")
    p = run_meeting("""
import sys, threading
sys.path.insert(0, os.environ["FOLDER"])
import collective
worker._COLLECTIVE_FOLDERS, worker._STUCK_S = (os.environ["FOLDER"],), 0.5
lock = threading.Lock()
lock.acquire()
notify(1, 3, 1, -9, then=lambda: n.failed_rank is not None)
if os.environ["WHAT"] == "blocked":
    collective.call(lock.acquire)
elif os.environ["WHAT"] == "computing":
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        collective.call(sum, range(10000))
elif os.environ["WHAT"] == "elsewhere":
    lock.acquire(timeout=1.5)
else:
    threading.Timer(0.2, lock.release).start()
    collective.call(lock.acquire)
    next_generation(4)
    group.next_generation()
    group.meet()
    collective.call(lock.acquire, True, 1.5)
    assert not group.is_cut
""", code=code, FOLDER=str(tmp_path), WHAT=what)
    assert ("rank 0: gloo keeps this process in a collective" in p.stderr) == (code == 75), p.stderr


def test_memory(run_part):
    """Progress where crun reads it; random generators by step."""
    fd = os.memfd_create("state")
    p = run_part("""
import os, random, torch
from crun_launch import worker
worker.beat(41)
memory = worker._memory()
states = []
for step in (40, 41):
    torch.rand(3), random.gauss(0, 1)
    memory.keep(step, worker._pack(worker._random_state()))
    states.append((torch.rand(2).tolist(), random.random()))
assert memory.kept(39) is None
for step, wanted in zip((40, 41), states):
    worker._set_random_state(worker._unpack(memory.kept(step)))
    assert (torch.rand(2).tolist(), random.random()) == wanted
""", fd, CRUN_STATE_FD=str(fd))
    assert p.returncode == 0, p.stderr
    magic, step, at = struct.unpack("<8sQQ", os.pread(fd, 24, 0))
    assert (magic, step) == (b"CRUNBEAT", 41) and 0 < at < time.monotonic_ns()


def test_nothing_without_crun(run_part):
    p = run_part("from crun_launch import worker\nworker.beat(1)\n"
                 "assert worker.notice_fileno() == -1 and worker.read_notice() is None and not worker.stop_requested()\n"
                 "import signal; assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL",
                 CRUN_NOTICE_FD="", CRUN_STATE_FD="")
    assert p.returncode == 0, p.stderr


def test_state_as_text_and_tensors(run_part):
    p = run_part("""
import collections, json, torch
from crun_launch import worker
state = {"a": [1, 0.1, float("inf"), None, True, "x"], 3: (torch.arange(3), {"b": torch.tensor(1.5)}), "c": collections.Counter([5, 5]),
         "e": torch.empty(0, 2), "f": [torch.tensor([True, False])]}
tensors = []
tree = json.loads(json.dumps(worker._encode(state, "state", tensors)))
assert [(str(d), list(s)) for d, s in worker._shapes(tree)] == [
    ("torch.int64", [3]), ("torch.float32", []), ("torch.float32", [0, 2]), ("torch.bool", [2])]
back = worker._decode(tree, iter(tensors))
assert back["a"] == state["a"] and isinstance(back[3], tuple) and back[3][0] is tensors[0] and back["c"] == state["c"]
assert type(back["c"]) is collections.Counter
try:
    worker._encode({"x": {"y": object()}}, "state", [])
except TypeError as e:
    assert "state['x']['y'] is a object" in str(e), e
else:
    raise AssertionError("an object was taken")
""")
    assert p.returncode == 0, p.stderr


def test_a_digest_of_the_state(run_part):
    """Each part by itself, and the same for the same state in another order or of another type of number."""
    p = run_part("""
import torch
from crun_launch import worker
def training():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    t = worker.Training(model, optimizer, scheduler=scheduler)
    with t.step():
        model(torch.ones(4, 3) * torch.arange(4).reshape(4, 1)).square().sum().backward()
        optimizer.step()
    return t
want, t = training()._digest(), training()
t.module[1].running_mean += 1
assert t._digest() == want
def differs(change, *names):
    t = training()
    with torch.no_grad():
        change(t)
    assert [name for name, text in t._digest().items() if text != want[name]] == list(names), names
differs(lambda t: t.module[0].bias[1].add_(1e-6), "model")
differs(lambda t: t.optimizer.param_groups[0].update(lr=0.05), "optimizer")
differs(lambda t: t.optimizer.state[t.module[0].bias]["exp_avg"].mul_(2), "optimizer")
differs(lambda t: t.parts["scheduler"].__dict__.update(last_epoch=5), "scheduler")
differs(lambda t: setattr(t, "position", 4), "progress")
for a, b in (({"a": 1, "b": [torch.zeros(2)]}, {"b": (torch.zeros(2),), "a": 1}), ({1: None}, {1: None})):
    assert worker._outline(a) == worker._outline(b)
import numpy
assert worker._outline(numpy.float64(0.1)) == worker._outline(0.1)
import enum
class Mode(str, enum.Enum):
    MIN = "min"
class Level(enum.IntEnum):
    LOW = 1
assert worker._outline({Mode.MIN: [Mode.MIN, Level.LOW, True]}) == worker._outline({"min": ["min", 1, True]})
assert worker._outline(torch.tensor([1j]).conj()) == worker._outline(torch.tensor([complex(0, -1)]))
assert worker._outline(torch.zeros(2).to_sparse()) == worker._outline(torch.zeros(2).to_sparse())
for dtype in torch.bool, torch.bfloat16, torch.complex128, torch.int8:
    assert worker._outline(torch.ones(3).to(dtype)[1:]) != worker._outline(torch.zeros(2).to(dtype)), dtype
assert worker._outline(torch.tensor(1.0)) != worker._outline(torch.tensor(2.0))
""")
    assert p.returncode == 0, p.stderr


def test_samples_over_changing_worlds(run_part):
    """Whatever the sizes of the world and the position: each sample once, and as many batches on all ranks."""
    p = run_part("""
import random, torch
from crun_launch import worker
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
draw = random.Random(5)
place = [1, 0]
worker.dist.get_world_size = lambda: place[0]
worker.dist.get_rank = lambda: place[1]
for _ in range(300):
    n, batch = draw.randrange(1, 90), draw.randrange(1, 8)
    loader = DataLoader(torch.arange(n), batch, sampler=DistributedSampler(range(n), 1, 0, seed=3))
    position, used = 0, []
    while position < n:
        place[0] = draw.randrange(1, 6)
        own = []
        for place[1] in range(place[0]):
            own.append([(b.tolist(), k) for b, k in worker._Samples(loader, 2, position).batches()])
        assert len({len(batches) for batches in own}) == 1, (n, batch, position, place)
        for step in range(min(draw.randrange(1, 4), len(own[0]))):
            together = [x for batches in own for x in batches[step][0]]
            taken, = {batches[step][1] for batches in own}
            assert all(batches[step][0] for batches in own) and len(set(together)) >= taken
            used += together
            repeats = len(together) - taken
            assert repeats < place[0] and (not repeats or position + taken == n)
            position += taken
    assert set(used) == set(range(n)) and len(used) == n + repeats, (n, batch)
""")
    assert p.returncode == 0, p.stderr


SAMPLES = """
import inspect, os, torch
from crun_launch import worker
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

def batches(loader, epoch, position=0):
    return list(worker._Samples(loader, epoch, position).batches())

def set_world(size, rank):
    worker.dist.get_world_size, worker.dist.get_rank = lambda: size, lambda: rank
"""


def test_samples_are_those_of_a_plain_loader(run_part):
    """Order, sizes and number of batches, whichever of the two drops what is left over."""
    p = run_part(SAMPLES + """
import itertools
for n, size, batch, shuffle, drop_sample, drop_batch, as_batches in itertools.product(
        (3, 47, 48, 50), (1, 2, 5), (8,), *4 * [(False, True)]):
    for rank in range(size):
        set_world(size, rank)
        data = torch.arange(n)
        sampler = DistributedSampler(data, size, rank, shuffle=shuffle, seed=3, drop_last=drop_sample)
        loader = DataLoader(data, batch_sampler=BatchSampler(sampler, batch, drop_batch)) if as_batches else DataLoader(
            data, batch, sampler=sampler, drop_last=drop_batch)
        for epoch in 0, 1:
            sampler.set_epoch(epoch)
            want = [b.tolist() for b in loader]
            assert [b.tolist() for b, _ in batches(loader, epoch)] == want and len(want) == len(loader), (
                n, size, rank, batch, shuffle, drop_sample, drop_batch, as_batches)
""")
    assert p.returncode == 0, p.stderr


def test_a_loader_keeps_its_arguments(run_part):
    """All that this PyTorch has: a new one fails here until it has a value."""
    p = run_part(SAMPLES + """
set_world(1, 0)
collate, begin, generator = lambda b: b, lambda i: None, torch.Generator().manual_seed(7)
values = {"dataset": list(range(24)), "batch_size": 4, "sampler": None, "num_workers": 2, "collate_fn": collate, "pin_memory": True,
          "drop_last": True, "timeout": 60, "worker_init_fn": begin, "multiprocessing_context": "fork", "generator": generator,
          "prefetch_factor": 3, "persistent_workers": True, "pin_memory_device": "x", "in_order": False}
values["sampler"] = DistributedSampler(values["dataset"], 1, 0)
names = set(inspect.signature(DataLoader.__init__).parameters) - {"self"}
assert names == {*values, "shuffle", "batch_sampler"}, names ^ set(values)
loader = DataLoader(**values)
worker.torch.utils.data.DataLoader.__iter__ = lambda self: iter([])
batches(loader, 0)
inner = worker._inner_loaders[loader]
for name in names - {"shuffle", "sampler", "batch_sampler", "drop_last"}:
    assert getattr(inner, name) == getattr(loader, name), name
assert inner.generator is generator
""")
    assert p.returncode == 0, p.stderr


def test_processes_of_a_loader_may_be_persistent(run_part):
    p = run_part(SAMPLES + """
class Data(torch.utils.data.Dataset):
    __len__ = lambda self: 16
    __getitem__ = lambda self, i: (i, os.getpid())
set_world(1, 0)
for persistent in False, True:
    loader = DataLoader(Data(), 4, sampler=DistributedSampler(Data(), 1, 0), num_workers=1, persistent_workers=persistent)
    seen = [batches(loader, epoch, position) for epoch, position in ((0, 0), (0, 8), (1, 0))]
    assert [len(b) for b in seen] == [4, 2, 4]
    assert len({pid.item() for b in seen for (_, pids), _ in b for pid in pids}) == (1 if persistent else 3)
    part = worker._Samples(loader, 2, 0).batches()
    first = next(part)[0][0].tolist()  # the group changes: the others are left
    assert [b[0].tolist() for b, _ in batches(loader, 2)][0] == first
""")
    assert p.returncode == 0, p.stderr


def test_samples_of_another_kind_are_refused(run_part):
    p = run_part(SAMPLES + """
class Own(DistributedSampler):
    def __iter__(self):
        return iter([0, 1])
data = torch.arange(8)
for how in {"sampler": Own(data, 1, 0)}, {"sampler": None}, {"batch_size": None}, {"batch_size": 1, "batch_sampler": [[1, 2]]}:
    try:
        worker._Samples(DataLoader(data, **how), 0, 0)
    except ValueError as e:
        assert "needs a DataLoader with sampler=DistributedSampler" in str(e), e
    else:
        raise AssertionError(how)
""")
    assert p.returncode == 0, p.stderr
