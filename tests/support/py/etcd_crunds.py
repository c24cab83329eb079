"""Three members of etcd and three crunds on loopback, for tests and benchmarks of crund --state=etcd://..."""

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request

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
        cluster = cluster or f"{name}=http://127.0.0.1:{peer}"
        self.command = ["etcd", "--name", name, "--data-dir", str(folder / name), "--logger", "zap",
                        "--listen-client-urls", f"http://127.0.0.1:{client}",
                        "--advertise-client-urls", f"http://127.0.0.1:{client}",
                        "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                        "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", cluster]
        self.out = open(folder / f"{name}.log", "ab")
        self.process = None

    def use_tls(self, certificates):
        """Clients need a certificate."""
        self.command = [word.replace("http://", "https://") if str(self.client) in word else word for word in self.command]
        self.command += ["--cert-file", f"{certificates}/node.pem", "--key-file", f"{certificates}/node.key",
                         "--trusted-ca-file", f"{certificates}/ca.pem", "--client-cert-auth"]

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

    def __init__(self, folder, job, *options, hosts=("127.0.0.1",) * 3, own_options=((), (), ())):
        self.folder, self.job, self.options = folder, job, options
        self.hosts, self.own_options = hosts, own_options  # of each crund
        clients, peers = ([lib.free_port() for _ in range(3)] for _ in range(2))
        cluster = ",".join(f"m{i}=http://127.0.0.1:{peers[i]}" for i in range(3))
        self.members = [Member(folder, f"m{i}", clients[i], peers[i], cluster) for i in range(3)]
        self.ports = [lib.free_port() for _ in range(3)]
        self.url = "etcd://" + ",".join(f"127.0.0.1:{p}" for p in clients) + "/tests"
        self.crunds = [None] * 3
        self.nodes = []
        (job / "worker.py").write_text(WORKER)

    def start_crund(self, i):
        self.crunds[i] = Crund(BUILD, "--state", self.url, *self.options, *self.own_options[i],
                               listen=(f"{self.hosts[i]}:{self.ports[i]}",))
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
def open_place(job, *options, **of_each):
    memory = pathlib.Path("/dev/shm")
    folder = pathlib.Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    p = Place(folder, job, *options, **of_each)
    try:
        p.start()
        yield p
    finally:
        p.close()
        shutil.rmtree(folder)
