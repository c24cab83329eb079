"""The worker store of a job on one node: other users of the machine are refused, its own user and root are not."""

import os
import signal
import socket
import sys

import pytest

import jobs
import nodes as lib
from crund import VALIDATE, Client, message
from strict import skip_if

pytestmark = pytest.mark.sanitize

OTHER = 65534  # any user that is neither root nor this one
WORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from crund import Client
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.set("key", "of the job")
    assert client.ping()
os.write(1, f"STORE {os.environ['MASTER_ADDR']} {os.environ['MASTER_PORT']}\\n".encode())  # in one piece
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


def as_user(uid, what):
    """Runs what() as that user in a process of its own; its result, a short text."""
    "name".encode("idna")  # connect() imports it, and the other user may not read Python's files
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = what()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


@pytest.fixture
def start(tmp_path):
    skip_if(None if os.geteuid() == 0 else "needs root, to become another user")
    (tmp_path / "worker.py").write_text(WORKER)
    with lib.Nodes(tmp_path) as nodes:
        def begin(*options):
            node = nodes.crun(*options, "--nproc-per-node=1", tmp_path / "worker.py", jobs.ROOT / "tests/support/py", tmp_path / "end",
                              env={"PYTHON_EXEC": sys.executable})
            address, port = node.wait_for_match(r"STORE (\S+) (\d+)\n").groups()
            return node, address, int(port)
        yield begin
        (tmp_path / "end").touch()
        assert nodes.codes() == [0], nodes.texts()


def ask(address, port):
    def what():
        with Client(address, port, timeout=10) as client:
            return f"{client.get('key')}"
    return what


@pytest.mark.parametrize("options", [["--standalone"], ["--nnodes=1", "--master-port=0"], ["--standalone", "--security=require"],
                                     ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1", "--rdzv-backend=c10d",
                                      "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]])
def test_other_users_are_refused(start, options):
    node, address, port = start(*options)
    assert "of the job" in as_user(0, ask(address, port))
    refused = as_user(OTHER, ask(address, port))
    assert refused.startswith("Closed"), refused
    node.wait_for(f"belongs to user {OTHER}: refused")


def test_a_client_that_is_closed_at_once_changes_nothing(start):
    """No process has it open when crun accepts it; older kernels name root as its owner then."""
    node, address, port = start("--standalone")

    def change():
        request = VALIDATE + message("SET", "key", "stolen")
        for _ in range(200):
            with socket.create_connection((address, port), timeout=10) as client:
                client.sendall(request)
        return "done"

    node.signal(signal.SIGSTOP)  # so that it accepts them when they are closed
    assert as_user(OTHER, change) == "done"
    node.signal(signal.SIGCONT)
    assert "of the job" in as_user(0, ask(address, port))


def test_open_jobs_serve_all_users(start):
    _, address, port = start("--standalone", "--security=open")
    assert "of the job" in as_user(OTHER, ask(address, port))
