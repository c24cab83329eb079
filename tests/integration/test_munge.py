"""A step of Slurm: nodes of a job without a secret agree on one by munge, without an option. Another user of the cluster gets
nothing by any request, recorded credential or server of its own, and no node goes on in the clear."""

import contextlib
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from job_secret import write_secret
from munge import NOBODY, Munged
from strict import skip_if

pytestmark = [pytest.mark.sanitize,
              pytest.mark.skipif(os.getuid() != 0, reason="munged and credentials of two users need root")]

NONCE, SECRET_SIZE = bytes(range(32)), 32
CREDENTIAL, REFUSED, OTHER_JOB, UNAVAILABLE = range(4)
PRINT_KEY = 'python3 -c "import os; print(\'KEY\', os.pread(int(os.environ[\'CRUN_KEY_FD\']), 64, 0).hex(), \'END\')"'


@pytest.fixture
def munged(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "CRUN_SECRET_FILE", "CRUN_SECRET_FD"):
        monkeypatch.delenv(name, raising=False)
    # Not below tmp_path: other users have to reach the socket, whose path has to be short.
    with tempfile.TemporaryDirectory(prefix="munge") as folder, Munged(folder) as m:
        yield m


def options(port, *more, conf="last_call_timeout=60,join_timeout=30"):
    return ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
            f"--rdzv-conf={conf}", *more]


def program(script):
    return ["--no-python", "sh", "-c", script]


def request_payload(nonce=NONCE, job=b"job"):
    return b"crun key request, version 1\0" + nonce + job


def frame(code, credential=b""):
    return b"\xc6crunkey1\n" + struct.pack("<BH", code, len(credential)) + credential


def receive_frame(s):
    """None: the connection ended without one."""
    got = b""
    while chunk := s.recv(65536):
        got += chunk
        if len(got) >= 13 and len(got) == 13 + struct.unpack_from("<H", got, 11)[0]:
            return got[10], got[13:]
    assert not got, got
    return None


def ask(port, credential):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        s.sendall(frame(CREDENTIAL, credential))
        return receive_frame(s)


@pytest.mark.parametrize("more", [["--security=require"], ["--seal"], []])
def test_nodes_agree(tmp_path, munged, more):
    port, keys = lib.free_port(), set()
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun(*options(port, "--max-restarts=1", *more), *program(f"{PRINT_KEY}; [ $CRUN_GENERATION = 1 -o $RANK = 0 ]"),
                       env=munged.environment())
        assert nodes.codes() == [0, 0], nodes.texts()
        for node in nodes:
            found = re.findall(r"KEY (\w{64}) END", node.text())
            assert found, nodes.texts()
            keys.update(found)
        assert len(keys) == 1, "one key for all ranks of all generations"
        assert "this job is open" not in nodes.texts()


def test_each_job_has_a_secret_of_its_own(tmp_path, munged):
    keys = set()
    for _ in range(2):
        port = lib.free_port()
        with lib.Nodes(tmp_path) as nodes:
            for _ in range(2):
                nodes.crun(*options(port), *program(PRINT_KEY), env=munged.environment())
            assert nodes.codes() == [0, 0], nodes.texts()
            keys.update(re.findall(r"KEY (\w{64}) END", nodes.texts()))
    assert len(keys) == 2


def test_many_nodes_agree_at_once(tmp_path, munged):
    port = lib.free_port()
    environment = {**munged.environment(), "SLURM_STEP_NODELIST": "n[1-8]"}
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(8):
            nodes.crun("--nnodes=8", *options(port)[1:], *program("true"), env=environment)
        assert nodes.codes() == [0] * 8, nodes.texts()


def test_a_secret_file_comes_first(tmp_path, munged):
    """So nodes with a secret need no munged."""
    munged.process.kill()
    write_secret(tmp_path / "secret")
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun(*options(port, f"--secret-file={tmp_path / 'secret'}"), *program("true"), env=munged.environment())
        assert nodes.codes() == [0, 0], nodes.texts()
        assert "munge" not in nodes.texts()


def test_others_get_nothing(tmp_path, munged):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        first = nodes.crun(*options(port), *program("echo RAN"), env=munged.environment())
        jobs.wait_for(lambda: lib.can_connect(port), 60, 0.05)

        # another user, with the payload of the job
        assert ask(port, munged.make(request_payload(), user=NOBODY)) == (REFUSED, b"")
        # what Slurm and others make for the job's user
        assert ask(port, munged.make(b"")) == (REFUSED, b"")
        assert ask(port, munged.make(request_payload()[:-4])) == (REFUSED, b"")
        assert ask(port, b"MUNGE:AwQDAAA=:") == (REFUSED, b"")
        assert ask(port, munged.make(request_payload(job=b"job2"))) == (OTHER_JOB, b"")

        # the same request twice
        request = munged.make(request_payload())
        code, reply = ask(port, request)
        assert code == CREDENTIAL
        assert ask(port, request) == (REFUSED, b"")

        # what another user can do with a reply that it has recorded
        assert "Unauthorized" in munged.open(reply, NOBODY)
        payload = munged.open(reply)
        head = b"crun key reply, version 1\0" + NONCE
        assert payload.startswith(head) and payload.endswith(b"job") and len(payload) == len(head) + SECRET_SIZE + 3
        secret = payload[len(head):-3]
        assert len(set(secret)) > 8

        # another protocol, and a request that does not end
        with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            s.sendall(b"\xc6crunkey2\n\0\0\0")
            assert receive_frame(s) is None
        with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            s.sendall(frame(CREDENTIAL, b"x" * 100)[:-1])
            assert receive_frame(s) is None

        # and in the clear
        plain = nodes.crun(*options(port, "--security=open"), *program("true"))
        assert plain.wait() == 1 and "this job has a secret" in plain.text(), plain.text()

        assert first.process.poll() is None and "RAN" not in first.text()
        assert secret.hex() not in pathlib.Path(f"/proc/{first.pid}/environ").read_bytes().hex()
        nodes.crun(*options(port), *program("echo RAN"), env=munged.environment())
        assert [first.wait(), nodes[-1].wait()] == [0, 0], nodes.texts()


HOLD_REQUESTS = """
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection((sys.argv[1], 29400), timeout=60))
    held[-1].sendall(b"\\xc6crunkey1\\n\\0\\xff\\0half a request")
n = 0
for s in held:
    try:
        n += s.recv(1) != b""
    except ConnectionResetError:
        pass
print("UNANSWERED", len(held) - n)
"""

HOLD_CONNECTIONS = """
import socket, sys
held = [socket.create_connection((sys.argv[1], 29400), timeout=60) for _ in range(int(sys.argv[2]))]
print("HELD", flush=True)
sys.stdin.read()
"""

ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 29400), timeout=60) as s:
    s.sendall(bytes.fromhex(sys.argv[2]))
    print("CODE", s.recv(65536)[10])
"""


def test_no_address_takes_all_places(tmp_path, munged):
    skip_if(fabrics.missing())

    def on_host(host, code, *args):
        return subprocess.run([*fabric.prefix(host), sys.executable, "-c", code, fabric.address(0), *map(str, args)],
                              capture_output=True, text=True, timeout=120, check=True).stdout

    def code_of_request(host):
        return on_host(host, ASK, frame(CREDENTIAL, munged.make(request_payload(nonce=os.urandom(32)))).hex())

    with fabrics.Fabric(3) as fabric, lib.Nodes(tmp_path) as nodes:
        waits = [o.replace("127.0.0.1:0", f"{fabric.address(0)}:29400") for o in options(0)]
        nodes.crun(*waits, *program("true"), env=munged.environment(), prefix=fabric.prefix(0))
        jobs.wait_for(lambda: "29400" in subprocess.run([*fabric.prefix(0), "ss", "-Hltn"], capture_output=True, text=True).stdout)
        with subprocess.Popen([*fabric.prefix(2), sys.executable, "-c", HOLD_REQUESTS, fabric.address(0), "400"],
                              stdout=subprocess.PIPE, text=True) as flood:
            nodes[0].wait_for(f"{fabric.address(2)}:")
            nodes[0].wait_for("its address or user has 256 requests for the job's secret, the limit: closed")
            assert code_of_request(1) == f"CODE {CREDENTIAL}\n"
            assert flood.communicate(timeout=120)[0] == "UNANSWERED 400\n"
        # the descriptors of those that have ended are used by others, so that a count that was left stays
        with subprocess.Popen([*fabric.prefix(1), sys.executable, "-c", HOLD_CONNECTIONS, fabric.address(0), "400"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as others:
            assert others.stdout.readline() == "HELD\n"
            assert code_of_request(2) == f"CODE {CREDENTIAL}\n"
            others.communicate(timeout=60)
        assert code_of_request(2) == f"CODE {CREDENTIAL}\n"


ASK_OFTEN = """
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection((sys.argv[1], 29400), timeout=60))
    held[-1].sendall(b"\\xc6crunkey1\\n\\0\\4\\0what")
print("ASKED", flush=True)
sys.stdin.read()
"""


def test_four_addresses_take_no_place_of_others_while_munged_hangs(tmp_path, munged):
    """Each has the requests that an address may have. Those of a fifth one wait as well, and are not closed."""
    skip_if(fabrics.missing())
    with fabrics.Fabric(6) as fabric, lib.Nodes(tmp_path) as nodes, contextlib.ExitStack() as stack:
        waits = [o.replace("127.0.0.1:0", f"{fabric.address(0)}:29400") for o in options(0)]
        nodes.crun(*waits, *program("true"), env=munged.environment(), prefix=fabric.prefix(0))
        jobs.wait_for(lambda: "29400" in subprocess.run([*fabric.prefix(0), "ss", "-Hltn"], capture_output=True, text=True).stdout)
        munged.process.send_signal(signal.SIGSTOP)
        stack.callback(munged.process.send_signal, signal.SIGCONT)
        runs = []
        for host, n in ((1, 256), (2, 256), (3, 256), (4, 256), (5, 1)):
            runs.append(stack.enter_context(subprocess.Popen(
                [*fabric.prefix(host), sys.executable, "-c", ASK_OFTEN, fabric.address(0), str(n)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))
            assert runs[-1].stdout.readline() == "ASKED\n"
            if host == 1:
                asked_s = time.monotonic()
        established = subprocess.run([*fabric.prefix(5), "ss", "-Htn", "state", "established"], capture_output=True, text=True).stdout
        # the requests of the first address end 5 s after they came
        if time.monotonic() < asked_s + 4:
            assert "29400" in established, nodes.texts()
        for run in runs:
            run.communicate(timeout=60)


class FakeRendezvous:
    """Answers every request with what answer(credential) returns. It has a loopback address of its own, as a client that still
    looks for a server of another test may dial any port of 127.0.0.1."""

    def __init__(self, answer):
        self.answer, self.n_other, self.errors = answer, 0, []
        self.host = "127.%d.%d.%d" % tuple(random.SystemRandom().randrange(1, 255) for _ in range(3))
        self.listener = socket.create_server((self.host, 0))
        self.endpoint = "%s:%d" % self.listener.getsockname()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            threading.Thread(target=self.serve_one, args=(self.listener.accept()[0],), daemon=True).start()

    def serve_one(self, s):
        with s:
            try:
                got = s.recv(65536)
                if got[:1] != b"\xc6":
                    self.n_other += 1
                    return
                while len(got) < 13 or len(got) < 13 + struct.unpack_from("<H", got, 11)[0]:
                    more = s.recv(65536)
                    assert more, "the request ended early: %r" % got
                    got += more
                s.sendall(self.answer(got[13:]))
            except Exception as e:
                self.errors.append(repr(e))


@pytest.mark.parametrize("attack, words", [
    ("own credential", "another user of the cluster serves it"),
    ("reflected request", "its reply cannot be opened"),
    ("recorded reply", "one to another request"),
    ("refusal", "refuses the credential of this node"),
    ("garbage", "another kind of server"),
])
def test_no_node_joins_a_server_of_others(tmp_path, munged, attack, words):
    """The endpoint's port was taken by another user of the node."""
    secret = b"s" * SECRET_SIZE

    def answer(request):
        if attack == "own credential":
            # it cannot open the request, so it does not even know the nonce; let it know that
            nonce = munged.open(request)[len("crun key request, version 1") + 1:][:32]
            return frame(CREDENTIAL, munged.make(b"crun key reply, version 1\0" + nonce + secret + b"job", NOBODY, 0))
        if attack == "reflected request":
            assert "Unauthorized" in munged.open(request, NOBODY)
            munged.open(request)
            return frame(CREDENTIAL, request)
        if attack == "recorded reply":
            return frame(CREDENTIAL, munged.make(b"crun key reply, version 1\0" + NONCE + secret + b"job"))
        return frame(REFUSED) if attack == "refusal" else b"HTTP/1.1 400 Bad Request\r\n\r\n"

    fake = FakeRendezvous(answer)
    with lib.Nodes(tmp_path) as nodes:
        node = nodes.crun(*options(0, f"--rdzv-endpoint={fake.endpoint}", conf="is_host=no,join_timeout=4"), *program("echo RAN"),
                          env=munged.environment())
        assert node.wait() == 1, node.text()
        assert words in node.text() and "RAN" not in node.text(), (node.text(), fake.errors)
    assert fake.n_other == 0, "it must not go on without the secret"


@pytest.mark.parametrize("security", ["prefer", "require"])
def test_a_rendezvous_without_munge_is_not_joined(tmp_path, munged, security):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        plain = nodes.crun(*options(port), *program("echo RAN"))
        plain.wait_for("this job is open")
        jobs.wait_for(lambda: lib.can_connect(port), 60, 0.05)
        node = nodes.crun(*options(port, f"--security={security}", conf="join_timeout=4,is_host=no"), *program("echo RAN"),
                          env=munged.environment())
        assert node.wait() == 1
        assert "takes part in no exchange by munge" in node.text() and "--security=open" in node.text(), node.text()
        assert "RAN" not in nodes.texts() and plain.process.poll() is None


def test_without_munged(tmp_path, munged):
    """It cannot be made so from outside the node, so this is no way to a job in the clear where the others have munge."""
    munged.process.kill()
    munged.process.wait()
    for left in munged.folder.glob("munge.socket*"):
        left.unlink()
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        refused = nodes.crun(*options(port, "--security=require"), *program("true"), env=munged.environment())
        assert refused.wait() == 1 and "there is no secret" in refused.text(), refused.text()
        for _ in range(2):
            nodes.crun(*options(port), *program("true"), env=munged.environment())
        assert [n.wait() for n in nodes[1:]] == [0, 0], nodes.texts()
        assert "this job is open" in nodes[1].text()


def test_munged_that_does_not_answer_makes_no_job_open(tmp_path, munged):
    """The socket is there, and nothing comes back: crun ends with an error in seconds, or at once by a signal."""
    munged.process.send_signal(signal.SIGSTOP)
    with lib.Nodes(tmp_path) as nodes:
        refused = nodes.crun(*options(lib.free_port()), *program("echo RAN"), env=munged.environment())
        stopped = nodes.crun(*options(lib.free_port()), *program("echo RAN"), env=munged.environment())
        stopped.wait_for("munge or the disk of sh does not answer")
        stopped.signal(signal.SIGTERM)
        assert stopped.wait(30) == 1 and "stopped by a signal" in stopped.text()
        assert refused.wait(60) == 1 and "munge, by which" in refused.text() and "--security=open" in refused.text()
        assert "RAN" not in nodes.texts()
    munged.process.send_signal(signal.SIGCONT)


def test_the_one_that_serves_answers_while_munged_hangs(tmp_path, munged):
    """Its loop does not wait: it goes on to serve others, and gives the secret when munged answers again."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port), *program("true"), env=munged.environment())
        jobs.wait_for(lambda: lib.can_connect(port), 60, 0.05)
        request = munged.make(request_payload())
        munged.process.send_signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as waits:
            waits.sendall(frame(CREDENTIAL, request))
            with socket.create_connection(("127.0.0.1", port), timeout=60) as s:  # a client of the store
                s.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + struct.pack("<I", 7))
                assert s.recv(4) == struct.pack("<I", 7)
            munged.process.send_signal(signal.SIGCONT)
            got = receive_frame(waits)
            assert got is None or got[0] in (CREDENTIAL, UNAVAILABLE), got
        nodes.crun(*options(port), *program("true"), env=munged.environment())
        assert nodes.codes() == [0, 0], nodes.texts()
