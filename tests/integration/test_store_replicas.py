"""crund --store-replicas=2: the crund that serves the keys of a sealed job is killed while its workers write, and none of them restarts.

Each worker checks what it reads, and notes each round of writes that was replied to. In the end the sums of all are compared with these
notes: a write that was acknowledged and is lost, or an addition that is executed twice, is found.
"""

import contextlib
import pathlib
import re
import signal
import sys
import time

import pytest

import jobs
import nodes as lib
from crund import Client, Crund
from etcd_crunds import open_place
from jobs import wait_until

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support" / "py"
N_NODES, N_LOCAL = 2, 2
SIZE = N_NODES * N_LOCAL

WORKER = """
import os, sys, time
folder, support = sys.argv[1:]
sys.path.insert(0, support)
from crund import Client, message
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
me = str(rank), os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["CRUN_GENERATION"]
def note(what, *more):
    with open(f"{folder}/events", "a") as f:
        f.write(" ".join((what, *me, *map(str, more))) + "\\n")
def check(found, expected, what):
    if found != expected:
        note("fault", what, f"{found!r}, not {expected!r}".replace(" ", "_"))
        sys.exit(9)
client = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=120)
def compare_set(key, expected, desired):
    client.send(message("COMPARE_SET", key, expected, desired))
    return client.read_vec()
note("start")
if rank == 0:
    with open(f"{folder}/port", "w") as f:
        f.write(os.environ["MASTER_PORT"])
n = 0
while not os.path.exists(f"{folder}/stop"):
    n += 1
    client.set(f"set{rank}", str(n))
    check(client.add(f"own{rank}", 1), n, "own")
    client.add("all", 1)
    check(compare_set(f"swap{rank}", str(n - 1) if n > 1 else "", str(n)), str(n).encode(), "swap")
    check(client.get(f"set{rank}"), str(n).encode(), "set")
    with open(f"{folder}/count.{rank}", "w") as f:
        f.write(str(n))
client.add("finished", 1)
while client.add("finished", 0) < size:
    time.sleep(0.02)
note("end", n, client.add("all", 0), client.get(f"set{rank}").decode())
"""


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("a secret of the tests, long enough")
    path.chmod(0o600)
    return path


# Nodes have to leave a crund that stands still before its successor takes them for lost.
QUICK = "node_timeout_ms=1000"


class Job:
    def __init__(self, place, secret, folder, conf=lib.PATIENT):
        self.place, self.folder = place, folder
        assert wait_until(lambda: "another crund is the backup" in place.crunds[place.leader()].log(), 60), place.logs()
        (folder / "worker.py").write_text(WORKER)
        endpoint = ",".join(f"127.0.0.1:{p}" for p in place.ports)
        for i in range(N_NODES):
            place.nodes.append(lib.Node(
                [jobs.crun(), f"--nnodes={N_NODES}", f"--nproc-per-node={N_LOCAL}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                 "--rdzv-id=j", f"--rdzv-conf={conf}", "--max-restarts=3", "--seal", f"--secret-file={secret}", folder / "worker.py", folder, SUPPORT],
                folder / f"node{i}.log", env={"PYTHON_EXEC": sys.executable}))
        place.wait_events("start", SIZE)

    def count(self, rank):
        path = self.folder / f"count.{rank}"
        return int(path.read_text() or 0) if path.exists() else 0

    def store_port(self):
        """Of the node's store of rank 0."""
        return int((self.folder / "port").read_text())

    def wait_for_writes(self, n=50, limit_s=120):
        """All workers have gone on."""
        goals = [self.count(r) + n for r in range(SIZE)]
        assert wait_until(lambda: all(self.count(r) >= goals[r] for r in range(SIZE)), limit_s), self.place.texts()

    def finish(self):
        """No worker was started again, and what they have written is there once."""
        self.place.finish()
        assert not self.place.events("fault"), self.place.events("fault")
        assert len(self.place.events("start")) == SIZE, (self.place.events("start"), self.place.texts())
        ends = self.place.events("end")
        assert len(ends) == SIZE
        rounds = {int(e[1]): int(e[4]) for e in ends}
        for e in ends:
            assert int(e[5]) == sum(rounds.values()), (ends, self.place.texts())
            assert int(e[6]) == rounds[int(e[1])]


def served_by(place, i):
    return "its keys are served by this crund" in place.crunds[i].log()


def backup_of(place):
    """The crund that has the keys, too."""
    assert wait_until(lambda: any("has the keys of job 'j', too" in c.log() for c in place.crunds), 60), place.logs()
    return next(i for i, c in enumerate(place.crunds) if "has the keys of job 'j', too" in c.log())


KEYS_LINE = re.compile(r"its keys are at another (crund), too|its keys are served by this crund|has the keys of jobs, too, is lost"
                       r"|does not confirm them")


def has_backup(place, i):
    """The keys that this crund serves are at another one, too."""
    lines = KEYS_LINE.findall(place.crunds[i].log())
    return bool(lines) and lines[-1] == "crund"


def wait_for_backup(place):
    """The crund that serves the keys, which are at another one, too."""
    assert wait_until(lambda: place.leader() is not None and has_backup(place, place.leader()), 60), place.logs()
    return place.leader()


def other(place, *not_these):
    return next(i for i in range(3) if i not in not_these)


def kill_serving(place, old):
    """The next one that leads serves the keys."""
    place.crunds[old].process.kill()
    assert wait_until(lambda: place.leader() not in (None, old), 60), place.logs()
    assert served_by(place, place.leader()), place.logs()


@contextlib.contextmanager
def standing_still(processes):
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def test_the_crund_that_serves_the_keys_is_killed(tmp_path, secret):
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        job.wait_for_writes()
        kill_serving(place, place.leader())
        job.wait_for_writes()
        job.finish()


def test_a_backup_that_hangs_during_a_copy_is_given_up(tmp_path, secret):
    """What fits into no socket's buffer is to be copied to a crund that does not read: the job goes on without it."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        leader = wait_for_backup(place)
        with Client("127.0.0.1", job.store_port(), timeout=60) as client:
            for i in range(30):
                client.set(f"large{i}", b"v" * 1000000)
        first = backup_of(place)
        with standing_still([place.crunds[other(place, leader, first)].process]):
            place.crunds[first].process.kill()
            job.wait_for_writes()
            assert wait_until(lambda: "does not confirm them" in place.crunds[leader].log(), 30), place.logs()
            job.wait_for_writes()
        wait_for_backup(place)
        job.finish()


def test_the_backup_is_killed(tmp_path, secret):
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        job.wait_for_writes()
        place.crunds[backup_of(place)].process.kill()
        assert wait_until(lambda: "the crund that has the keys of jobs, too, is lost" in place.crunds[place.leader()].log(), 60)
        job.wait_for_writes()
        job.finish()


def test_a_backup_that_stood_still_serves_nothing(tmp_path, secret):
    """Its copy is older than what the workers have been replied to: their generation restarts, with new keys."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        job.wait_for_writes()
        leader, backup = place.leader(), backup_of(place)
        with standing_still([place.crunds[backup].process]):
            job.wait_for_writes()  # it is given up, and the others go on
            place.crunds[other(place, leader, backup)].process.kill()
            place.crunds[leader].process.kill()
        assert wait_until(lambda: place.leader() == backup, 60), place.logs()
        assert not served_by(place, backup)
        place.wait_events("start", 2 * SIZE)
        assert {e[3] for e in place.events("start")} == {"0", "1"}


def test_a_leader_that_stood_still_serves_nothing(tmp_path, secret):
    """Its backup goes on, not the third crund, and what it replies to later changes nothing."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path, QUICK)
        job.wait_for_writes()
        leader, backup = place.leader(), backup_of(place)
        with standing_still([place.crunds[leader].process]):
            assert wait_until(lambda: place.says_it_leads(backup), 60), place.logs()
        assert wait_until(lambda: not place.says_it_leads(leader), 60), place.logs()
        job.wait_for_writes()
        job.finish()


def test_a_leader_that_stands_still_is_left(tmp_path, secret):
    """The workers go on with its backup while it is stopped: a stopped process breaks no connection."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path, QUICK)
        job.wait_for_writes()
        with standing_still([place.crunds[place.leader()].process]):
            time.sleep(0.5)  # what it has executed before is replied to
            job.wait_for_writes(limit_s=30)
        job.finish()


def test_each_crund_that_serves_the_keys_is_killed(tmp_path, secret):
    """Within one generation, as soon as another one has them, too; the dead one comes back."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        for _ in range(4):
            old = wait_for_backup(place)
            job.wait_for_writes(20)
            kill_serving(place, old)
            place.crunds[old].__exit__()
            place.start_crund(old)
        wait_for_backup(place)
        job.wait_for_writes()
        job.finish()


def test_a_crund_that_is_started_again_at_once_leaves_its_place_to_the_backup(tmp_path, secret):
    """No other one has seen that connections to it were refused, and the backup follows it until etcd answers: for longer than a copy is
    kept that is older than what a leader has sent."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        for is_etcd_late in (False, True):
            old = wait_for_backup(place)
            job.wait_for_writes(20)
            with standing_still([m.process for m in place.members] if is_etcd_late else []):
                with standing_still([place.crunds[i].process for i in range(3) if i != old]):
                    place.crunds[old].__exit__()
                    place.start_crund(old)
                time.sleep(5.6 if is_etcd_late else 0)
            assert wait_until(lambda: place.leader() not in (None, old), 60), place.logs()  # noqa: B023
            assert served_by(place, place.leader()), place.logs()
        job.wait_for_writes()
        job.finish()


def test_a_crund_with_an_outdated_copy_leaves_the_place_to_the_backup(tmp_path, secret):
    """It was the backup, has stood still, and has followed the leader again for a second when that one ends."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        leader = wait_for_backup(place)
        job.wait_for_writes(20)
        first = backup_of(place)
        with standing_still([place.crunds[first].process]):
            third = place.crunds[other(place, leader, first)]
            assert wait_until(lambda: "does not confirm them" in place.crunds[leader].log(), 30), place.logs()
            assert wait_until(lambda: "has the keys of job 'j', too" in third.log() and has_backup(place, leader), 30), place.logs()
        time.sleep(1)
        kill_serving(place, leader)
        job.wait_for_writes()
        job.finish()


def test_a_backup_that_is_lost_is_replaced(tmp_path, secret):
    """By a crund that was there before, and then by one that comes later; the one that serves the keys dies last."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2") as place:
        job = Job(place, secret, tmp_path)
        leader = wait_for_backup(place)
        first = backup_of(place)
        for n, i in enumerate((first, other(place, leader, first))):
            place.crunds[i].__exit__()
            lost = "the crund that has the keys of jobs, too, is lost"
            assert wait_until(lambda: place.crunds[leader].log().count(lost) > n, 60), place.logs()  # noqa: B023
            assert wait_for_backup(place) == leader
            place.start_crund(i)
            job.wait_for_writes(20)
        place.crunds[leader].process.kill()
        assert wait_until(lambda: place.leader() not in (None, leader), 60), place.logs()
        job.wait_for_writes()
        job.finish()


def build_of_another_version(folder):
    """crund with another version of what replicas send."""
    path = folder / "rendezvous" / "crund"
    path.parent.mkdir(parents=True)
    program = (pathlib.Path(jobs.build_folder()) / "rendezvous" / "crund").read_bytes()
    assert b"crunrep2" in program
    path.write_bytes(program.replace(b"crunrep2", b"crunrep9"))
    path.chmod(0o755)
    return folder


def test_a_backup_of_another_version_is_refused_at_times(tmp_path, secret):
    """It goes on to follow, the pauses grow, and each of the two has one line about it."""
    with open_place(tmp_path, "--secret-file", str(secret), "--store-replicas", "2", "--debug") as place:
        leader = place.leader()
        i = other(place, leader)
        place.crunds[i].__exit__()
        assert wait_until(lambda: place.leader() == leader, 60), place.logs()
        place.crunds[i] = Crund(build_of_another_version(tmp_path / "other"), "--state", place.url, *place.options,
                                listen=(f"127.0.0.1:{place.ports[i]}",))
        n_before = place.crunds[leader].log().count(" opened by client ")
        place.crunds[i].__enter__()
        asked = "refuses this one as a backup of keys"
        assert wait_until(lambda: asked in place.crunds[i].log(), 60), place.logs()
        time.sleep(6)
        n_dials = place.crunds[leader].log().count(" opened by client ") - n_before
        assert 3 <= n_dials <= 12, place.logs()
        assert place.crunds[i].log().count(asked) == 1
        # Once more where the third crund has become the backup meanwhile.
        assert 1 <= place.crunds[leader].log().count("is a crund of another version") <= 2, place.logs()
        assert place.leader() == leader
