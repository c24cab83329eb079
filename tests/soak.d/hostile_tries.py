"""Tries of a stranger at a job with a secret: from a host that is not of the job, and from another user of one of its hosts.

    hostile_tries.py [--tries N] [--limit MS] [MODE...]

For each mode (standalone, fenced, sealed) a job runs on hosts that are network namespaces; its sockets are printed, as `ss -ltn` has
them. Then each kind of try is made N times (10,000), at the worker store and, where it means something, at the rendezvous. `served` counts
those that got what they asked for: 0, but on a host of a fenced job, whose worker store serves all users of that host
(SECURITY.md). A ping of a client of the job is measured on another core meanwhile (p99 at most 20 ms), and the memory of the
crun that serves. (The mode "open" shows that the tries can succeed.) In the end the job's keys are as its workers left them, and it ends in its first generation.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

import fabric as fabrics
import jobs
import nodes as lib
from crund import VALIDATE, Client, message
from job_secret import write_secret
from session_agent import OPENING, Agent

SECRET = b"a secret of the tests, long enough"
JOB = "tried"
OTHER = 65534
AT_ONCE = 2000
ALERT, HANDSHAKE = 0x15, 0x16

WORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from crund import Client
rank = int(os.environ["RANK"])
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    client.set(f"rank{rank}", "here")
    os.write(1, f"STORE {os.environ['MASTER_ADDR']} {os.environ['MASTER_PORT']} {os.environ.get('CRUN_MASTER_HOST')}.\\n".encode())
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.2)
    intact = client.get("rank0") == b"here" and not client.check("hostile") and os.environ["CRUN_GENERATION"] == "0"
    os.write(1, b"INTACT\\n" if intact else b"CHANGED\\n")
"""


# ---- what is sent, and what an answer means


def old_hello():
    """The first flight of a client that knows no TLS above 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def captured_hello(purpose):
    """The first flight of a client that has the key, as it is on the wire."""
    import secret_search
    key = secret_search.derived_keys(SECRET, JOB)[purpose]
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = subprocess.Popen(["openssl", "s_client", "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-connect",
                                   f"127.0.0.1:{server.getsockname()[1]}", "-psk_identity", f"crun1:{purpose}:{JOB}", "-psk", key.hex()],
                                  stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        connection, _ = server.accept()
        with connection:
            got = connection.recv(65536)
        client.kill()
        client.wait()
    return got


def with_wrong_binder(hello):
    """As a client with another secret would send it: the proof is at the end."""
    return hello[:-1] + bytes([hello[-1] ^ 1])


# The parameters of the job: a node that names others is refused for that.
NODES = ["--nnodes=2:3", "--max-restarts=3", "--rdzv-conf=join_timeout=60,last_call_timeout=1,node_timeout_ms=60000,max_changes=10"]
PARAMS = {"min_nodes": 2, "max_nodes": 3, "last_call_ms": 1000}


def joins(**more):
    hello = {**Agent(0, job=JOB, **PARAMS).hello(), **more}
    hello["params"] = {**hello["params"], "lease_auto": 1}
    text = json.dumps(hello).encode()
    return VALIDATE + OPENING + struct.pack("<I", len(text)) + text


def any_answer(got):
    return bool(got)


def a_view(got):
    return b'"view"' in got and b'"refused"' not in got


def more_than_an_alert(got):
    return bool(got) and got[0] != ALERT


def a_session(got):
    """A replayed first flight is answered by the server's; nothing may follow that, as its Finished cannot be answered."""
    return bool(got) and got[0] not in (ALERT, HANDSHAKE)


# name: (bytes, what counts as served, whether the rendezvous is tried as well, seconds that an answer is waited for)
def kinds():
    hello = captured_hello("agent")
    return {
        "read": (VALIDATE + message("GET", "rank0"), any_answer, False, 8),
        "write": (VALIDATE + message("SET", "hostile", b"x") + message("PING", 1), any_answer, False, 8),
        "join": (joins(), a_view, True, 3),
        "steal a rank": (joins(group_rank=0, addr="127.0.0.66", host="host0"), a_view, True, 3),
        "replay": (hello, a_session, True, 1),
        "downgrade": (old_hello(), more_than_an_alert, True, 3),
        "wrong secret": (with_wrong_binder(hello), more_than_an_alert, True, 3),
        "half-open": (VALIDATE[:3], any_answer, True, 1),
        "flood": (b"", any_answer, True, 0),
        "slow reader": (VALIDATE + message("GET", "rank0") * 200, any_answer, False, 3),
        "huge request": (VALIDATE + b"\x01" + struct.pack("<Q", 5) + b"/huge" + b"\xff" * 8, any_answer, False, 3),
    }


# ---- the stranger: a process of its own


def try_batch(n, address, kind):
    """How many of n connections at once were served."""
    data, is_served, _, patience = kind
    chosen, deadline = selectors.DefaultSelector(), time.monotonic() + patience
    answers = {}
    for _ in range(n):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(address)
        answers[s] = [b"", False]
        chosen.register(s, selectors.EVENT_WRITE)
    left = n
    while left and time.monotonic() < deadline:
        for key, events in chosen.select(max(0, deadline - time.monotonic())):
            state = answers[key.fileobj]
            try:
                if not state[1]:
                    key.fileobj.send(data)
                    state[1] = True
                    chosen.modify(key.fileobj, selectors.EVENT_READ)
                    continue
                part = key.fileobj.recv(65536)
            except OSError:
                part = b""
            state[0] += part
            if not part or is_served(state[0]):
                chosen.unregister(key.fileobj)
                left -= 1
    for s in answers:
        s.close()
    return sum(is_served(got) for got, _ in answers.values())


def attack(arguments):
    """In the stranger's process: {kind: served}."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if arguments["uid"]:
        os.setgroups([])
        os.setresgid(*[arguments["uid"]] * 3)
        os.setresuid(*[arguments["uid"]] * 3)
    served = {}
    for name, kind in arguments["kinds"].items():
        targets = arguments["targets"] if kind[2] else arguments["targets"][:1]
        n, served[name] = -(-arguments["tries"] // len(targets)), 0
        for target in targets:
            for first in range(0, n, AT_ONCE):
                served[name] += try_batch(min(AT_ONCE, n - first), target, kind)
    return served


def attack_from(fabric, host, core, arguments):
    """Runs attack() there, with the bytes prepared here."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.sched_setaffinity(0, {core})
            "name".encode("idna")  # connect() imports it, and another user may not read Python's files
            fd = os.open(f"/run/netns/{fabric.space(host)}", os.O_RDONLY)
            import ctypes
            assert ctypes.CDLL(None).setns(fd, 0x40000000) == 0
            answer = json.dumps(attack(arguments))
        except BaseException as e:
            answer = json.dumps(f"{type(e).__name__}: {e}")
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(pid, 0)
    if isinstance(answer, str):
        raise AssertionError(answer)
    return answer


# ---- the job and its good client


PINGS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from crund import Client
took = []
with Client(sys.argv[2], int(sys.argv[3])) as client:
    client.ping()
    print("READY", flush=True)
    while not os.path.exists(sys.argv[4]):
        begin = time.perf_counter()
        assert client.ping()
        took.append(time.perf_counter() - begin)
        time.sleep(0.005)
took.sort()
print(*(f"{1e3 * took[min(len(took) - 1, int(len(took) * q))]:.3f}" for q in (0.5, 0.99, 1)), len(took))
"""


class Memory(threading.Thread):
    """The largest resident set of some processes, together; KiB."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.largest, self.ended = pids, 0, threading.Event()

    def now(self):
        return sum(int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) for pid in self.pids)

    def run(self):
        while not self.ended.wait(0.05):
            self.largest = max(self.largest, self.now())


OPTIONS = {"standalone": ["--standalone", "--security=require"], "fenced": ["--security=require"], "sealed": ["--seal"],
           "open": ["--security=open"]}
CLOSED = ["standalone", "fenced", "sealed"]


def listeners(fabric, host):
    text = subprocess.run(["ip", "netns", "exec", fabric.space(host), "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[3] for line in text.splitlines())


def run_mode(mode, fabric, folder, tries, limit_ms, core):
    """Prints a table; returns the sentences on what is wrong."""
    wrong = []
    write_secret(folder / "secret", SECRET)
    (folder / "worker.py").write_text(WORKER)
    hosts = [0] if mode == "standalone" else [0, 1]
    with lib.Nodes(folder) as nodes:
        for host in hosts:
            several = [] if mode == "standalone" else [*NODES, "--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:29400",
                                                       f"--rdzv-id={JOB}", *([] if mode == "open" else [f"--secret-file={folder}/secret"])]
            nodes.crun(*OPTIONS[mode], *several, folder / "worker.py", jobs.SUPPORT, folder / "end",
                       prefix=["taskset", "-c", "0", *fabric.prefix(host)], env={"PYTHON_EXEC": sys.executable})
        found = [node.wait_for_match(r"STORE (\S+) (\d+) (\S+)\.\n", timeout=120).groups() for node in nodes]
        print(f"{mode}:")
        for host in hosts:
            print(f"  listening on host {host}: {' '.join(listeners(fabric, host))}")
        server = next((host for host in hosts if fabric.address(host) in (found[0][0], found[0][2])), 0)
        outside = (fabric.address(server), int(found[server][1]))
        local = ("127.0.0.1" if mode in ("standalone", "sealed") else fabric.address(server), int(found[server][1]))
        rendezvous = [(fabric.address(0), 29400)] if mode != "standalone" else []
        good = subprocess.Popen(["taskset", "-c", "0", "ip", "netns", "exec", fabric.space(server), sys.executable, "-c", PINGS,
                                 jobs.SUPPORT, *map(str, local), folder / "pinged"], stdout=subprocess.PIPE, text=True)
        assert good.stdout.readline() == "READY\n"
        memory = Memory([node.pid for node in nodes])
        before = memory.now()
        memory.start()
        prepared = kinds()
        print(f"  {'':14}{'tries':>8}{'another host':>14}{'another user':>14}   served")
        far = attack_from(fabric, 2, core, {"uid": 0, "tries": tries, "targets": [outside, *rendezvous], "kinds": prepared})
        near = attack_from(fabric, server, core, {"uid": OTHER, "tries": tries, "targets": [local, *rendezvous], "kinds": prepared})
        is_open_to_users = mode == "fenced"
        for kind in prepared:
            print(f"  {kind:14}{tries:>8}{far[kind]:>14}{near[kind]:>14}{'   (serves users of its hosts)' if is_open_to_users and near[kind] else ''}")
            if far[kind] or (near[kind] and not is_open_to_users):
                wrong.append(f"{mode}, {kind}: served {far[kind]} from another host, {near[kind]} of another user")
        (folder / "pinged").touch()
        p50, p99, longest, n = good.communicate(timeout=60)[0].split()
        memory.ended.set()
        time.sleep(2)
        after = memory.now()
        print(f"  good client: ping p50 {p50} ms, p99 {p99} ms, longest {longest} ms of {n}")
        print(f"  memory of crun: {before} KiB before, {memory.largest} at most, {after} after")
        if float(p99) > limit_ms:
            wrong.append(f"{mode}: p99 of the good client is {p99} ms, above {limit_ms}")
        if memory.largest - before > (256 << 10) or after - before > (32 << 10):
            wrong.append(f"{mode}: memory {before} KiB before, {memory.largest} at most, {after} after")
        (folder / "end").touch()
        codes = nodes.codes()
        text = "".join(nodes.texts())
        changed_by_users = is_open_to_users and near["write"]
        if any(codes) or ("CHANGED" in text and not changed_by_users):
            wrong.append(f"{mode}: exit codes {codes}: {text[-2000:]}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=10000)
    parser.add_argument("--limit", type=float, default=20, help="milliseconds")
    parser.add_argument("modes", nargs="*", help=f"{', '.join(OPTIONS)}; open serves, which shows that the tries can succeed")
    args = parser.parse_args()
    if fabrics.missing():
        print(fabrics.missing())
        return 2
    core = max(os.sched_getaffinity(0))
    wrong = []
    with fabrics.Fabric(3) as fabric:
        for mode in args.modes or CLOSED:
            with tempfile.TemporaryDirectory(prefix="crun-tries-") as folder:
                wrong += run_mode(mode, fabric, pathlib.Path(folder), args.tries, args.limit, core)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
