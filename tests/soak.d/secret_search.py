"""Where does the secret of a sealed job show? On two hosts (network namespaces) beside a crund with the same secret.

Looks for the secret, and for every key that is derived from it, as bytes, in hexadecimal and in base64, in: arguments and
environments of crund, crun, guardian, keeper and workers; the whole memory of the workers, which are ranks of libcrw that have proved the
job's key and encrypt; core files of all of these that root takes with gcore; log folders, the event log, the trace of
--debug, the history; what crunctl prints (status, JSON, stacks); the metrics. Prints a table; each hit is a failure.

--plant puts the secret into the environment of one crun: then it has to be found there and in its core, or the search is worth nothing.
"""

import argparse
import base64
import hashlib
import hmac
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile

import fabric as fabrics
import jobs
import nodes as lib
import scrapes
from job_secret import write_secret

JOB = "secrets-of-a-job"
PURPOSES = ("agent", "worker", "store", "relay", "admin")

WORKER = """
import ctypes, os, sys, time
sys.path.insert(0, sys.argv[1])
from crund import Client
rank = os.environ["RANK"]
crw = ctypes.CDLL(sys.argv[2])
crw.crw_error_message.restype = ctypes.c_char_p
env, group, value = ctypes.create_string_buffer(1 << 16), ctypes.c_void_p(), ctypes.create_string_buffer(1 << 20)
for result in (crw.crw_env_read(env), crw.crw_group_create(env, ctypes.byref(group)), crw.crw_broadcast(group, value, ctypes.c_size_t(1 << 20), 0)):
    assert result == 0, crw.crw_error_message()
client = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
client.set("rank" + rank, rank)
os.write(1, f"UP {rank}.\\n".encode())
os.write(2, (str(dict(os.environ)) + "\\n").encode())
while True:
    time.sleep(0.2)
"""


EARLY = "early secret of"


def derived_keys(secret, job=JOB):
    """As proto/key_openssl.c: HKDF with SHA-256."""
    extracted = hmac.digest(b"crun secret, version 1", secret, hashlib.sha256)
    keys = {purpose: hmac.digest(extracted, purpose.encode() + b"\0" + (b"" if purpose == "admin" else job.encode()) + b"\1", hashlib.sha256)
            for purpose in PURPOSES}
    early = {f"{EARLY} {purpose}": hmac.digest(bytes(32), key, hashlib.sha256) for purpose, key in keys.items()}
    return {**keys, **early, "extracted": extracted,
            "generation": hmac.digest(keys["worker"], b"libcrw between hosts, generation 0", hashlib.sha256)}


def is_needed(place, what):
    """A rank proves the key of its generation to others that connect later, and has it in memory for that; its core has not. OpenSSL
    has the early secret of TLS 1.3 as long as the connection lasts (SECURITY.md)."""
    is_of_openssl = place.startswith(("core of crun", "core of job-")) and what.startswith(EARLY)
    return is_of_openssl or (place.startswith("memory of") and what == "generation")


def forms(secret):
    """(what, bytes) of all that may show nowhere."""
    for name, raw in {"secret": secret, **derived_keys(secret)}.items():
        yield name, raw
        yield f"{name} in hexadecimal", raw.hex().encode()
        yield f"{name} in HEXADECIMAL", raw.hex().upper().encode()
        yield f"{name} in base64", base64.b64encode(raw).rstrip(b"=")
        yield f"{name} in URL base64", base64.urlsafe_b64encode(raw).rstrip(b"=")


def memory_of(pid):
    """What is mapped and can be read, but for devices."""
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end, mode = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups()
            if mode[0] != "r" or "/dev/" in line or line.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            memory.seek(int(begin, 16))
            try:
                yield memory.read(int(end, 16) - int(begin, 16))
            except OSError:
                pass  # a page behind the end of its file


def name_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


def look_at_processes(roots):
    """(place, bytes)"""
    for root in roots:
        workers = set(jobs.workers(root).values())
        for pid in [root, *jobs.descendants(root)]:
            try:
                name = name_of(pid)
                contents = {what: pathlib.Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ")}
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended, as what a look at a worker starts does
            yield from ((f"{what} of {name}", content) for what, content in contents.items())
            if pid in workers and name.startswith("python"):
                yield from ((f"memory of {name}", part) for part in memory_of(pid))


def has_ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def core_of(pid, folder):
    """As root takes it, whom nothing hinders: what gcore does, without the symbols. The kernel's own core files have less."""
    path = folder / f"core.{pid}"
    got = subprocess.run(["gdb", "--nx", "--batch", "-iex", "set auto-solib-add off", "-ex", f"attach {pid}", "-ex", f"gcore {path}", "-ex", "detach"],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if not path.exists():
        assert has_ended(pid), got.stdout + got.stderr
        return b""
    core = path.read_bytes()
    path.unlink()
    return core


def look_at_cores(roots, folder):
    """Of one process after the other, as all have to go on, and of one worker of a node."""
    if not shutil.which("gdb"):
        return
    for root in roots:
        others = set(list(jobs.workers(root).values())[1:])
        for pid in [root, *jobs.descendants(root)]:
            try:
                name = name_of(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # as above
            if pid in others:
                continue
            yield f"core of {name}", core_of(pid, folder)


def look_at_files(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "secret":
            yield f"file {path.relative_to(folder).parts[0]}", path.read_bytes()


def crunctl(environment, *args):
    p = subprocess.run([jobs.build_folder() / "launcher" / "crunctl", *args], env={**os.environ, **environment}, timeout=60,
                       capture_output=True)
    return p.stdout + p.stderr


def open_job(folder, fabric, secret_file, planted):
    """(nodes, environment of crunctl, ports of metrics)"""
    worker = folder / "worker.py"
    worker.write_text(WORKER)
    runtime = {"XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state")}
    (folder / "run").mkdir(mode=0o700)
    nodes = lib.Nodes(folder)
    nodes.__enter__()
    nodes.start([jobs.build_folder() / "rendezvous" / "crund", "--listen", f"{fabric.address(0)}:29400", "--secret-file", secret_file,
                 "--state", folder / "crund-state"], prefix=fabric.prefix(0))
    for host in (0, 1):
        nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                   "--rdzv-conf=node_timeout_ms=60000",  # gdb holds each process for a while, on a busy machine for seconds
                   f"--rdzv-id={JOB}", "--seal", f"--secret-file={secret_file}", "-t=3", f"--log-dir={folder}/logs{host}",
                   f"--event-log={folder}/events{host}", f"--debug={folder}/debug{host}", "--metrics-addr=127.0.0.1:29500", worker,
                   jobs.SUPPORT, jobs.build_folder() / "worker-runtime" / "libcrw.so.0", prefix=fabric.prefix(host), env={**runtime, "PYTHON_EXEC": sys.executable, **(planted if host else {})})
    for node in nodes[1:]:
        jobs.wait_for(lambda node=node: len(re.findall(r"UP \d\.", node.text())) == 2, timeout=120)
    return nodes, runtime


def collect(folder, fabric, nodes, runtime):
    yield from look_at_processes([node.pid for node in nodes])
    yield from look_at_cores([node.pid for node in nodes], folder)
    for args in (["status"], ["--json", "status"], ["stacks"], ["history"], ["--json", "history"]):
        yield "crunctl " + " ".join(args), crunctl(runtime, *args)
    for host in (0, 1):
        text = subprocess.run([*fabric.prefix(host), sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import scrapes; "
                               "print(scrapes.scrape(29500))", jobs.SUPPORT], capture_output=True, timeout=60)
        yield "metrics", text.stdout
    for node in nodes[1:]:
        node.signal(15)
    for node in nodes[1:]:
        node.wait()
    nodes[0].signal(15)
    yield "output of all", "".join(nodes.texts()).encode()
    yield from look_at_files(folder)


def run(plant=False):
    """({place: bytes looked through}, [(place, what)])"""
    secret = "a secret of the search ".replace(" ", "-").encode() + secrets.token_hex(16).encode()
    places, hits = {}, []
    with tempfile.TemporaryDirectory(prefix="crun-secrets-") as name, fabrics.Fabric(2) as fabric:
        folder = pathlib.Path(name)
        write_secret(folder / "secret", secret)
        nodes, runtime = open_job(folder, fabric, folder / "secret", {"PLANTED": secret.decode()} if plant else {})
        try:
            wanted = list(forms(secret))
            for place, content in collect(folder, fabric, nodes, runtime):
                places[place] = places.get(place, 0) + len(content)
                hits += [(place, what) for what, raw in wanted if raw in content and not is_needed(place, what)]
        finally:
            nodes.__exit__(None, None, None)
    return places, hits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", action="store_true")
    args = parser.parse_args()
    if fabrics.missing():
        print(fabrics.missing())
        return 2
    places, hits = run(args.plant)
    for place, n in places.items():
        print(f"{n:>12,} bytes  {place}")
    for place, what in sorted(set(hits)):
        print(f"found: {what}, in {place}")
    print(f"{sum(places.values()):,} bytes in {len(places)} places, {len(hits)} hits")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
