"""An etcd that renews the lease of crund and refuses what crund saves, for longer than the join timeout: the job waits, and goes on when
etcd accepts again."""

import base64
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest

import jobs
import nodes as lib
from crund import Crund
from etcd_crunds import BUILD, WORKER, Member
from job_secret import write_secret
from jobs import wait_until
from session_agent import Agent

JOIN_TIMEOUT_S = 1
REFUSED_S = 8  # longer than a generation takes to end without an answer of its nodes, and the join timeout


class Etcd(Member):
    """Asks as root where authentication is on."""

    token = None

    def ask(self, path, body):
        headers = {"Authorization": self.token} if self.token else {}
        url = f"http://127.0.0.1:{self.client}/v3/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=5) as answer:
            return json.load(answer)

    def log_in(self):
        self.token = None
        self.token = self.ask("auth/authenticate", {"name": "root", "password": "r"})["token"]


def text(value):
    return base64.b64encode(value).decode()


class Full:
    """Another client fills the quota."""

    options = ("--quota-backend-bytes=2000000",)
    login = None
    what = "database space exceeded"

    def __init__(self, etcd):
        self.etcd = etcd

    def refuse(self):
        with pytest.raises(urllib.error.HTTPError):
            for i in range(100):
                self.etcd.ask("kv/put", {"key": text(b"/other/%d" % i), "value": text(b"x" * 200000)})

    def accept(self):
        revision = self.etcd.ask("kv/deleterange", {"key": text(b"/other/"), "range_end": text(b"/other0")})["header"]["revision"]
        self.etcd.ask("kv/compaction", {"revision": revision, "physical": True})
        self.etcd.ask("maintenance/defragment", {})
        for alarm in self.etcd.ask("maintenance/alarm", {"action": "GET"}).get("alarms", []):
            self.etcd.ask("maintenance/alarm", {"action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": "NOSPACE"})


class Revoked:
    """The role of crund's user loses its permission."""

    options = ()
    login = "c:c"
    what = "permission denied"
    keys = {"key": text(b"/x/"), "range_end": text(b"/x0")}

    def __init__(self, etcd):
        self.etcd = etcd
        for path, body in (("user/add", {"name": "root", "password": "r"}), ("role/add", {"name": "root"}),
                           ("user/grant", {"user": "root", "role": "root"}), ("user/add", {"name": "c", "password": "c"}),
                           ("role/add", {"name": "c"}), ("user/grant", {"user": "c", "role": "c"}), ("enable", {})):
            etcd.ask(f"auth/{path}", body)
            if path == "role/add" and body["name"] == "c":
                self.accept()
        etcd.log_in()

    def refuse(self):
        self.etcd.ask("auth/role/revoke", {"role": "c", **self.keys})

    def accept(self):
        self.etcd.ask("auth/role/grant", {"name": "c", "perm": {"permType": "READWRITE", **self.keys}})


class Changed(Revoked):
    """Another user is added, so that all tokens are of an older revision. Nothing has to be undone."""

    what = None

    def refuse(self):
        self.etcd.log_in()
        self.etcd.ask("auth/user/add", {"name": "other", "password": "o"})


def jwt(folder):
    """Tokens that name the revision of users and roles."""
    key, public = folder / "jwt.key", folder / "jwt.pub"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
    return f"--auth-token=jwt,pub-key={public},priv-key={key},sign-method=RS256,ttl=10m"


@pytest.fixture
def memory_folder():
    memory = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield pathlib.Path(folder)


@pytest.mark.parametrize("kind", (Full, Revoked, Changed))
def test_a_job_waits_until_etcd_accepts(memory_folder, tmp_path, kind):
    etcd = Etcd(memory_folder, "m", lib.free_port(), lib.free_port(), None)
    etcd.command += [*kind.options, *([jwt(tmp_path)] if kind is Changed else [])]
    etcd.start()
    both = []
    try:
        assert wait_until(etcd.leads, 60)
        trouble = kind(etcd)
        options = []
        if kind.login:
            write_secret(tmp_path / "login", kind.login)
            options = [f"--etcd-login={tmp_path / 'login'}"]
        (tmp_path / "worker.py").write_text(WORKER)
        with Crund(BUILD, "--state", f"etcd://127.0.0.1:{etcd.client}/x", *options, listen=("127.0.0.1:0",)) as crund, contextlib.ExitStack() as stack:
            both += [lib.Node(
                [jobs.crun(), "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{crund.port}",
                 "--rdzv-id=j", f"--rdzv-conf=join_timeout={JOIN_TIMEOUT_S}", "--max-restarts=3", "--security=open",
                 tmp_path / "worker.py", tmp_path], tmp_path / f"node{i}.log") for i in range(2)]
            events = lambda what: sum(line.startswith(what + " ") for line in (tmp_path / "events").read_text().splitlines())
            logs = lambda: crund.log() + "".join(n.text() for n in both)
            assert wait_until(lambda: (tmp_path / "events").exists() and events("start") == 2, 60), logs()
            trouble.refuse()
            stack.enter_context(Agent(crund.port, job="another")).join()  # its save is refused, and all that follows waits behind it
            if trouble.what:
                assert wait_until(lambda: trouble.what in crund.log(), 60), logs()
            (tmp_path / "fail.0").touch()
            assert wait_until(lambda: events("fail") == 1, 60), logs()
            if trouble.what:
                time.sleep(REFUSED_S)
                assert events("start") == 2 and "leads no more" not in crund.log(), logs()
                trouble.accept()
            assert wait_until(lambda: events("start") == 4, 60), logs()
            (tmp_path / "stop").touch()
            assert [n.wait(60) for n in both] == [0, 0], logs()
    finally:
        for n in both:
            n.signal(signal.SIGKILL)
            n.wait()
        etcd.kill()
        etcd.out.close()
