"""The key of the job that workers inherit, and ranks of two hosts that prove it to each other."""

import json
import re
import sys

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from job_secret import write_secret
from strict import skip_if

SECRET = b"a secret of the tests, long enough"
SHOW = """
import errno, os
fd = os.environ.get("CRUN_KEY_FD")
key, changed = b"", None
if fd:
    key = os.pread(int(fd), 4096, 0)
    try:
        os.pwrite(int(fd), b"x", 0)
        changed = True
    except PermissionError:
        changed = False
    assert b"tests, long" not in key
os.write(1, f"KEY {os.environ['CRUN_GENERATION']} {key.hex() or 'none'} {changed}\\n".encode())  # in one piece
if os.environ["CRUN_GENERATION"] == "0":
    raise SystemExit(3)
"""
# A process between crun and rank, which starts the rank with another CRUN_KEY_FD.
BETWEEN = """
import fcntl, os, sys
how = sys.argv[1] if os.environ["GROUP_RANK"] == "1" else "given"
key = os.pread(int(os.environ["CRUN_KEY_FD"]), 4096, 0)
def lend(key, seals):
    fd = os.memfd_create("key", os.MFD_ALLOW_SEALING)
    os.write(fd, key)
    if seals:
        fcntl.fcntl(fd, 1033, seals)  # F_ADD_SEALS
    os.set_inheritable(fd, True)
    os.environ["CRUN_KEY_FD"] = str(fd)
if how == "none":
    del os.environ["CRUN_KEY_FD"]
elif how == "closed":
    os.environ["CRUN_KEY_FD"] = "99"
elif how == "empty":
    os.environ["CRUN_KEY_FD"] = ""
elif how == "wrong":
    lend(bytes([key[0] ^ 1]) + key[1:], 0xf)
elif how == "short":
    lend(key[:31], 0xf)
elif how == "long":
    lend(key + b"x", 0xf)
elif how == "unsealed":
    lend(key, 0)
elif how == "generation":
    os.environ["CRUN_GENERATION"] = "7"
elif how == "copy":
    lend(key, 0xf)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def secret(tmp_path):
    return write_secret(tmp_path / "secret", SECRET)


def start(nodes, endpoint, options, *command, prefixes=((), ())):
    for prefix in prefixes:
        nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=key", *options,
                   *command, prefix=prefix, env={"PYTHON_EXEC": sys.executable, "CRW_TIMEOUT_MS": "8000"})


@pytest.mark.parametrize("warm", [[], ["--warm"]], ids=["exec", "warm"])
def test_all_workers_of_all_generations_have_one_key(tmp_path, secret, warm):
    worker = tmp_path / "worker.py"
    worker.write_text(SHOW)
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, f"127.0.0.1:{lib.free_port()}", [f"--secret-file={secret}", "--nproc-per-node=2", "--max-restarts=1", *warm],
              worker)
        assert nodes.codes() == [0, 0], nodes.texts()
        found = re.findall(r"KEY (\d+) (\w+) (\w+)", "".join(nodes.texts()))
        assert {f[0] for f in found} == {"0", "1"} and sum(f[0] == "1" for f in found) == 4
        assert len({f[1] for f in found}) == 1 and len(found[0][1]) == 64
        assert {f[2] for f in found} == {"False"}
        assert SECRET.hex() not in found[0][1]


def test_a_job_without_a_secret_has_none(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(SHOW)
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, f"127.0.0.1:{lib.free_port()}", ["--security=open", "--max-restarts=1"], worker)
        assert nodes.codes() == [0, 0], nodes.texts()
        assert "KEY 1 none None" in nodes[0].text()


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(2) as made:
        yield made


CASES = [("--seal", how, how in ("given", "copy")) for how in (
    "given", "copy", "none", "wrong", "generation", "closed", "empty", "short", "long", "unsealed")]
# The way to the store makes no difference to the others.
CASES += [("--security=require", how, how == "given") for how in ("given", "none", "wrong")]


@pytest.mark.parametrize("mode, how, works", CASES)
def test_a_rank_that_does_not_prove_the_key_is_refused(fabric, tmp_path, secret, mode, how, works):
    between = tmp_path / "between.py"
    between.write_text(BETWEEN)
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, f"{fabric.address(0)}:29400", [mode, f"--secret-file={secret}"], between, how, jobs.collectives(),
              "allreduce", "shared", "4,307200", "3", prefixes=(fabric.prefix(0), fabric.prefix(1)))
        codes = nodes.codes()
        text = "".join(nodes.texts())
        lines = [json.loads(line) for line in re.findall(r'\{"collective.*\}', text)]
        if works:
            assert codes == [0, 0], text
            assert [line["checked"] for line in lines] == [0, 0] and lines[0]["ranks"] == 2
            return
        assert min(codes) > 0 and not lines, text
        if how in ("closed", "empty", "short", "long", "unsealed"):
            assert "which is no sealed file with the job's key" in text
            assert "cannot connect" not in text  # to a rank that has shared its address before it finds that out


def test_no_process_shows_the_key(tmp_path, secret):
    worker, end = tmp_path / "worker.py", tmp_path / "end"
    worker.write_text("""
import os, sys, time
os.write(1, f"KEY {os.pread(int(os.environ['CRUN_KEY_FD']), 4096, 0).hex()}\\n".encode())  # in one piece
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
""")
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, f"127.0.0.1:{lib.free_port()}", ["--seal", f"--secret-file={secret}"], worker, end)
        for node in nodes:
            node.wait_for("KEY")
        key = bytes.fromhex(re.search(r"KEY (\w+)", nodes[0].text())[1])
        for node in nodes:
            for pid in [node.pid, *jobs.descendants(node.pid)]:
                for name in ("environ", "cmdline"):
                    with open(f"/proc/{pid}/{name}", "rb") as file:
                        shown = file.read()
                    assert key not in shown and key.hex().encode() not in shown and SECRET not in shown, (pid, name)
        end.touch()
        assert nodes.codes() == [0, 0], nodes.texts()
