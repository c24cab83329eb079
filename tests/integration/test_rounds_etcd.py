"""crund --state=etcd://...: three members of etcd, three crunds, and jobs of two nodes that go on while these are killed."""

import base64
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
import urllib.error
import urllib.request

import pytest

import jobs
import nodes as lib
from crund import Crund
from jobs import wait_until

BUILD = jobs.build_folder()

# Each start and each end is a line; a worker ends when the file is there.
WORKER = """
import os, sys, time
folder = sys.argv[1]
me = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["CRUN_GENERATION"]
def note(what):
    with open(f"{folder}/events", "a") as f:
        f.write(" ".join((what, *me)) + "\\n")
note("start")
while not os.path.exists(f"{folder}/stop"):
    if me[0] == "1" and os.path.exists(f"{folder}/fail.{me[1]}"):
        note("fail")
        sys.exit(3)
    time.sleep(0.02)
note("end")
"""


class Member:
    """One member of etcd, on a file system in memory: each write is synced."""

    def __init__(self, folder, name, client, peer, cluster):
        self.client = client
        self.command = ["etcd", "--name", name, "--data-dir", str(folder / name), "--logger", "zap",
                        "--listen-client-urls", f"http://127.0.0.1:{client}",
                        "--advertise-client-urls", f"http://127.0.0.1:{client}",
                        "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                        "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", cluster]
        self.out = open(folder / f"{name}.log", "ab")
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.out, stderr=self.out, start_new_session=True)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)

    def ask(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.client}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def leads(self):
        try:
            status = self.ask("maintenance/status", {})
        except (OSError, urllib.error.URLError):
            return False
        return status.get("leader") == status["header"]["member_id"]


class Place:
    """Three members and three crunds."""

    def __init__(self, folder, job, *options):
        self.folder, self.job, self.options = folder, job, options
        clients, peers = ([lib.free_port() for _ in range(3)] for _ in range(2))
        cluster = ",".join(f"m{i}=http://127.0.0.1:{peers[i]}" for i in range(3))
        self.members = [Member(folder, f"m{i}", clients[i], peers[i], cluster) for i in range(3)]
        self.ports = [lib.free_port() for _ in range(3)]
        self.url = "etcd://" + ",".join(f"127.0.0.1:{p}" for p in clients) + "/tests"
        self.crunds = [None] * 3
        self.nodes = []
        (job / "worker.py").write_text(WORKER)

    def start_crund(self, i):
        self.crunds[i] = Crund(BUILD, "--state", self.url, *self.options, listen=(f"127.0.0.1:{self.ports[i]}",))
        self.crunds[i].__enter__()

    def start(self):
        for m in self.members:
            m.start()
        assert wait_until(lambda: any(m.leads() for m in self.members), 120)
        for i in range(3):
            self.start_crund(i)
        assert wait_until(lambda: self.leader() is not None, 60), self.logs()

    def close(self):
        for n in self.nodes:
            n.signal(signal.SIGKILL)
            n.wait()
        for c in self.crunds:
            if c:
                c.__exit__()
        for m in self.members:
            m.kill()
            m.out.close()

    def logs(self):
        return "\n----\n".join(c.log() for c in self.crunds if c)

    def leader(self):
        """The crund that the key in etcd names, if it runs."""
        for m in self.members:
            try:
                keys = m.ask("kv/range", {"key": "L3Rlc3RzL2xlYWRlcg=="}).get("kvs", [])  # /tests/leader
            except (OSError, urllib.error.URLError):
                continue
            if not keys:
                return None
            port = int(base64.b64decode(keys[0]["value"]).rsplit(b":", 1)[1])
            i = self.ports.index(port)
            alive = self.crunds[i] and self.crunds[i].process.poll() is None
            return i if alive and self.says_it_leads(i) else None
        return None

    def says_it_leads(self, i):
        said = re.findall(r"crund: leads(?:, with term| no more)", self.crunds[i].log())
        return bool(said) and said[-1].endswith("term")

    def run_job(self, endpoint, *options):
        for i in range(2):
            self.nodes.append(lib.Node(
                [jobs.crun(), "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                 "--rdzv-id=j", "--max-restarts=3", "--security=open", *options, self.job / "worker.py", self.job],
                self.job / f"node{i}.log"))
        self.wait_events("start", 2)

    def events(self, what):
        path = self.job / "events"
        return [line.split() for line in path.read_text().splitlines() if line.startswith(what + " ")] if path.exists() else []

    def wait_events(self, what, n, timeout=120):
        assert wait_until(lambda: len(self.events(what)) >= n, timeout), (self.events(what), self.texts())
        assert len(self.events(what)) == n

    def texts(self):
        return self.logs() + "".join(n.text() for n in self.nodes)

    def fail_once(self, restart):
        """A worker fails by itself: the job has to be able to restart now."""
        n = len(self.events("start"))
        (self.job / f"fail.{restart}").touch()
        self.wait_events("start", n + 2)

    def finish(self):
        (self.job / "stop").touch()
        for n in self.nodes:
            assert n.wait(120) == 0, self.texts()


@contextlib.contextmanager
def open_place(job, *options):
    memory = pathlib.Path("/dev/shm")
    folder = pathlib.Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    p = Place(folder, job, *options)
    try:
        p.start()
        yield p
    finally:
        p.close()
        shutil.rmtree(folder)


@pytest.fixture
def place(tmp_path):
    with open_place(tmp_path) as p:
        yield p


def test_followers_send_nodes_to_the_leader(place):
    follower = next(i for i in range(3) if i != place.leader())
    place.run_job(f"127.0.0.1:{place.ports[follower]}")
    assert "generation 0 runs: 2 nodes" in place.crunds[place.leader()].log()
    place.finish()
    assert [e[2] for e in place.events("start")] == ["0", "0"]


def test_killed_leaders_cost_no_restart(place):
    dead = lib.free_port()
    place.run_job(",".join(f"127.0.0.1:{port}" for port in [dead, *place.ports]))
    place.fail_once(0)
    for turn in range(1, 3):
        old = place.leader()
        place.crunds[old].process.kill()
        assert wait_until(lambda: place.leader() not in (None, old), 60), place.logs()
        place.fail_once(turn)  # the charges so far are known
        place.start_crund(old)
    place.finish()
    assert [e[2] for e in place.events("start")] == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_a_name_that_is_not_known_keeps_no_other_waiting(place):
    place.run_job(f"no-such-host.invalid:1,127.0.0.1:{place.ports[0]}")
    place.finish()


def test_a_killed_follower_and_a_killed_member_cost_nothing(place):
    leader = place.leader()
    place.run_job(f"127.0.0.1:{place.ports[leader]}")
    follower = next(i for i in range(3) if i != leader)
    place.crunds[follower].process.kill()
    next(m for m in place.members if m.leads()).kill()
    place.fail_once(0)  # saved with two members
    place.finish()
    assert [e[2] for e in place.events("start")] == ["0", "0", "1", "1"]


def test_without_a_majority_workers_go_on(place):
    place.run_job(f"127.0.0.1:{place.ports[0]}")
    for m in place.members[:2]:
        m.kill()
    (place.job / "fail.0").touch()
    place.wait_events("fail", 1)
    time.sleep(5)  # longer than the lease: nothing is decided in this time
    assert len(place.events("start")) == 2, place.texts()
    assert all(n.process.poll() is None for n in place.nodes), place.texts()
    for m in place.members[:2]:
        m.start()
    place.wait_events("start", 4)
    place.finish()


COUNTS = """
import os, sys, time
folder, support = sys.argv[1:]
sys.path.insert(0, support)
from crund import Client
me = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["CRUN_GENERATION"]
def note(what):
    with open(f"{folder}/events", "a") as f:
        f.write(" ".join((what, *me)) + "\\n")
client = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
note("start")
while not os.path.exists(f"{folder}/stop"):
    client.add("count of " + me[0], 1)
    if os.path.exists(f"{folder}/look") and not os.path.exists(f"{folder}/looked." + me[0]):
        open(f"{folder}/looked." + me[0], "w").close()
        note("counts")
    time.sleep(0.02)
note("end")
"""


def test_a_leader_that_is_deposed_keeps_the_keys_of_its_nodes(tmp_path):
    """--seal: the store of a job is in the crund that has formed its generation. Without etcd that one leads no more."""
    secret, support = tmp_path / "secret", pathlib.Path(__file__).resolve().parents[1] / "support" / "py"
    secret.write_text("a secret of the tests, long enough")
    secret.chmod(0o600)
    with open_place(tmp_path, "--secret-file", str(secret)) as place:
        leader = place.leader()
        (tmp_path / "worker.py").write_text(COUNTS)
        for i in range(2):
            place.nodes.append(lib.Node(
                [jobs.crun(), "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{place.ports[leader]}",
                 "--rdzv-id=j", "--max-restarts=3", "--seal", f"--secret-file={secret}", tmp_path / "worker.py", tmp_path, support],
                tmp_path / f"node{i}.log", env={"PYTHON_EXEC": sys.executable}))
        place.wait_events("start", 2)
        for m in place.members:
            m.kill()
        assert wait_until(lambda: not place.says_it_leads(leader), 60), place.logs()
        (tmp_path / "look").touch()
        place.wait_events("counts", 2)  # requests are replied to
        for m in place.members:
            m.start()
        assert wait_until(lambda: place.leader() is not None, 120), place.logs()
        place.finish()
        assert [e[2] for e in place.events("start")] == ["0", "0"], place.texts()


def test_a_restarted_crund_leads_again_at_once(place):
    """Alone, at the address where it has led: the lease of the process before is not waited for."""
    leader = place.leader()
    for i in range(3):
        place.crunds[i].process.kill()
        place.crunds[i].process.wait(60)
    place.start_crund(leader)
    assert wait_until(lambda: place.says_it_leads(leader), 60), place.logs()


def test_etcd_that_is_not_there(tmp_path):
    port = lib.free_port()
    with Crund(BUILD, "--state", f"etcd://127.0.0.1:{port}/x", listen=("127.0.0.1:0",)) as crund:
        assert wait_until(lambda: "nothing is decided until it answers" in crund.log(), 60)
        assert crund.stop() == 0
