"""What a network between two nodes carries of the data of libcrw's ranks, and what ranks do when they do not agree."""

import subprocess
import sys
import time

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from strict import skip_if

SECRET = b"a secret of the tests, long enough"
LIBCRW = jobs.build_folder() / "worker-runtime" / "libcrw.so.0"
TEXT = b"a tensor that no other process may read. "
COUNT = 4 << 20

# Rank 0 broadcasts, and sends a message; the other one has to get them.
WORKER = """
import ctypes, sys
crw, text, count = ctypes.CDLL(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
crw.crw_error_message.restype = ctypes.c_char_p
env, group = ctypes.create_string_buffer(1 << 16), ctypes.c_void_p()
def check(result):
    if result:
        sys.exit(crw.crw_error_message().decode())
check(crw.crw_env_read(env))
check(crw.crw_group_create(env, ctypes.byref(group)))
rank = crw.crw_rank(group)
sent = (text * (count // len(text) + 1))[:count]
for pass_on in (lambda b: crw.crw_broadcast(group, b, ctypes.c_size_t(count), 0),
                lambda b: (crw.crw_recv if rank else crw.crw_send)(group, b, ctypes.c_size_t(count), 1 - rank)):
    array = ctypes.create_string_buffer(sent if rank == 0 else bytes(count), count)
    check(pass_on(array))
    assert array.raw == sent, "the data is not what was sent"
check(crw.crw_barrier(group))
crw.crw_group_destroy(group)
print(f"rank {rank} has it", flush=True)
"""

# All that passes the switch, from the begin of the capture to the end of standard input.
CAPTURE = """
import select, socket, sys
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
raw.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
raw.bind((sys.argv[1], 0))
print("capturing", flush=True)
with open(sys.argv[2], "wb") as file:
    while True:
        ready, _, _ = select.select([raw, sys.stdin], [], [])
        if raw in ready:
            file.write(raw.recv(1 << 17))
        elif ready:
            break
"""


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(2) as made:
        yield made


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


class Capture:
    """Of what passes the switch of a fabric."""

    def __init__(self, fabric, path):
        self.path = path
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", fabric.hub, sys.executable, "-c", CAPTURE, "p0", str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"capturing\n"

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0
        self.process.stdout.close()
        return self.path.read_bytes()


def start(nodes, fabric, secret, worker, options, environments):
    for host, environment in enumerate(environments):
        nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400", "--rdzv-id=encrypt",
                   f"--secret-file={secret}", *options, worker, LIBCRW, TEXT.decode(), COUNT, prefix=fabric.prefix(host),
                   env={"PYTHON_EXEC": sys.executable, "CRW_TIMEOUT_MS": "30000", **environment})


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


@pytest.mark.parametrize("options, environment, encrypted", [
    (["--seal"], {}, True), (["--security=require"], {"CRW_ENCRYPT": "1"}, True), (["--seal"], {"CRW_ENCRYPT": "0"}, False),
    (["--security=require"], {}, False)], ids=["seal", "require-1", "seal-0", "require"])
def test_the_network_carries_data_in_the_clear_only_where_it_may(fabric, tmp_path, secret, worker, options, environment, encrypted):
    capture = Capture(fabric, tmp_path / "captured")
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, fabric, secret, worker, options, [environment] * 2)
        codes = nodes.codes()
        text = "".join(nodes.texts())
    captured = capture.end()
    assert codes == [0, 0] and "rank 0 has it" in text and "rank 1 has it" in text, text
    assert len(captured) > COUNT  # half of it may have been lost to a busy machine
    assert (captured.count(TEXT) == 0) == encrypted, captured.count(TEXT)


@pytest.mark.parametrize("environments", [({"CRW_ENCRYPT": "1"}, {}), ({}, {"CRW_ENCRYPT": "1"})], ids=["first", "second"])
def test_nodes_that_differ_end_with_a_reason(fabric, tmp_path, secret, worker, environments):
    began = time.monotonic()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, fabric, secret, worker, ["--security=require"], environments)
        codes = nodes.codes()
        text = "".join(nodes.texts())
    assert min(codes) > 0 and "has it" not in text, text
    assert "CRW_ENCRYPT must have one value on all nodes" in text
    assert time.monotonic() - began < 25, text  # before the time-out of 30 s


def test_a_job_without_a_secret_does_not_encrypt_in_vain(fabric, tmp_path, secret, worker):
    with lib.Nodes(tmp_path) as nodes:
        for host in range(2):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400", "--rdzv-id=open",
                       "--security=open", worker, LIBCRW, TEXT.decode(), COUNT, prefix=fabric.prefix(host),
                       env={"PYTHON_EXEC": sys.executable, "CRW_ENCRYPT": "1"})
        codes = nodes.codes()
        text = "".join(nodes.texts())
    assert min(codes) > 0 and "has it" not in text, text
    assert "CRW_ENCRYPT is 1, and the job has no key" in text


@pytest.mark.parametrize("environment, runs", [({}, True), ({"CRW_ENCRYPT": "1"}, False)], ids=["of-crun", "of-the-user"])
def test_an_inner_job_is_not_sealed_by_the_outer_one(fabric, tmp_path, secret, worker, environment, runs):
    """Workers of a sealed job are nodes of a job without a secret. What the user has set is for both."""
    inner = tmp_path / "inner"
    inner.write_text(f"""#!/bin/sh
[ "$CRUN_SEAL" = 1 ] || exit 3
exec {jobs.crun()} --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={fabric.address(0)}:29500 --rdzv-id=inner --security=open --no-python \\
    sh -c 'env | grep -E "^(RANK|CRUN_SEAL)=" | sed s/^/inner:/ && exec "$0" "$@"' {sys.executable} {worker} {LIBCRW} '{TEXT.decode()}' {COUNT}
""")
    inner.chmod(0o755)
    with lib.Nodes(tmp_path) as nodes:
        for host in range(2):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400", "--rdzv-id=outer", "--seal",
                       f"--secret-file={secret}", "--no-python", inner, prefix=fabric.prefix(host),
                       env={"CRW_TIMEOUT_MS": "30000", **environment})
        codes = nodes.codes()
        text = "".join(nodes.texts())
    assert "inner:RANK=" in text and "inner:CRUN_SEAL" not in text
    assert (codes == [0, 0]) == runs and ("rank 1 has it" in text) == runs, text
    assert ("CRW_ENCRYPT is 1, and the job has no key" in text) != runs, text
