"""What name look-ups cost a store: crund and PyTorch's libuv server with the same clients, once with every
name answered from the hosts file and once with a resolver that loses half of its queries.

    store_resolver.py CLIENTS [hosts|lossy]... [--only-crund]

Each setting is a network and a mount namespace of its own, with its own /etc/hosts, /etc/resolv.conf and
/etc/nsswitch.conf, and a resolver on its loopback that counts what it is asked. Needs root, or user namespaces.
"""

import argparse
import contextlib
import ctypes
import fcntl
import json
import mmap
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

import hosts_ns
from crund import Crund

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", ROOT / "build"))
LOAD = BUILD / "tests" / "bench" / "store_load"
TORCH_SERVER = [sys.executable, str(ROOT / "tests" / "interop" / "torch_server.py"), "0", "libuv"]

RESOLVER = "127.0.0.53"
LOOKUP_SYSCALLS = "trace=connect,sendto,sendmsg,sendmmsg,openat,open"
LOOKUP_TRACES = re.compile(r"resolv\.conf|/etc/hosts|nsswitch|gai\.conf|libnss|htons\(53\)")
# With the losing resolver each lost query holds PyTorch's server up for the resolver's time-out, which is one
# second here and five where nothing is set. Attempts are many because it asks no more once all of one were lost.
ATTEMPTS = 5
N_TORCH_LOSSY = 20
N_TORCH_HOSTS = 8000

SETTINGS = {
    "hosts": {"what": "names answered from the hosts file",
              "hosts": hosts_ns.HOSTS.format(name="here"), "lost": 0.0},
    "lossy": {"what": "a resolver that loses half of its queries (time-out 1 s)",
              "hosts": "127.0.0.1 localhost\n", "lost": 0.5},
}

CLONE_NEWNET = 0x40000000


def bring_loopback_up():
    SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def replace_file(path, text, folder):
    copy = pathlib.Path(folder) / path.replace("/", "_")
    copy.write_text(text)
    copy.chmod(0o644)
    hosts_ns._call(hosts_ns._libc.mount, os.fsencode(copy), os.fsencode(path), None, hosts_ns.MS_BIND, None)


def enter(setting, folder):
    hosts_ns._unshare()
    hosts_ns._call(hosts_ns._libc.unshare, CLONE_NEWNET)
    hosts_ns._call(hosts_ns._libc.mount, b"none", b"/", None, hosts_ns.MS_REC | hosts_ns.MS_PRIVATE, None)
    bring_loopback_up()
    replace_file("/etc/hosts", setting["hosts"], folder)
    replace_file("/etc/resolv.conf", f"nameserver {RESOLVER}\noptions timeout:1 attempts:{ATTEMPTS}\n", folder)
    replace_file("/etc/nsswitch.conf", "hosts: files dns\n", folder)
    with contextlib.suppress(OSError):  # only a larger queue of connections
        pathlib.Path("/proc/sys/net/core/somaxconn").write_text("65536")


def resolve(s, lost, count):
    """Answers "no such name", or nothing."""
    chance = random.Random(1)
    while True:
        query, address = s.recvfrom(1500)
        count[:8] = struct.pack("<Q", struct.unpack("<Q", count[:8])[0] + 1)
        if chance.random() >= lost:
            s.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:], address)


@contextlib.contextmanager
def resolver(lost):
    """Gives a function that tells how many queries there were so far."""
    count = mmap.mmap(-1, 8)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((RESOLVER, 53))
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # dies with its parent
        resolve(s, lost, count)
    s.close()
    try:
        yield lambda: struct.unpack("<Q", count[:8])[0]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def load(port, pid, n):
    p = subprocess.run([LOAD, "--port", str(port), "--pid", str(pid), "--op", "connect", "--connections", str(n),
                        "--per-address", "20000"], capture_output=True, text=True, timeout=900)
    if p.returncode != 0:
        raise RuntimeError(f"{n} clients: {p.stderr.strip()}")
    return json.loads(p.stdout)


def show(name, what, n, figures, look_ups):
    print(f"{name:>8}: {n} clients connected and validated in {figures['connect_s']:.3f} s, then one barrier in "
          f"{figures['barrier_s']:.3f} s; {look_ups} [{what}]", flush=True)


def measure_crund(setting, n, queries, folder):
    """Once by itself, for the time, and once under strace, for what it asks. Returns the look-ups."""
    before = queries()
    with Crund(BUILD) as c:
        figures = load(c.port, c.pid, n)
        assert c.stop() == 0
    trace = pathlib.Path(folder) / "trace"
    with Crund(BUILD, wrapper=("strace", "-f", "--seccomp-bpf", "-o", str(trace), "-e", LOOKUP_SYSCALLS)) as c:
        load(c.port, 0, n)
        daemon = int(pathlib.Path(f"/proc/{c.pid}/task/{c.pid}/children").read_text().split()[0])
        os.kill(daemon, signal.SIGTERM)
        assert c.process.wait(60) == 0
    lines = [line for line in trace.read_text().splitlines() if LOOKUP_TRACES.search(line)]
    n_queries = queries() - before
    show("crund", setting["what"], n, figures,
         f"{len(lines)} look-ups in strace, {n_queries} queries at the resolver")
    for line in lines[:5]:
        print(f"         {line}")
    return len(lines) + n_queries


def measure_torch(setting, n, queries):
    before = queries()
    p = subprocess.Popen(TORCH_SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         text=True)
    try:
        port = int(p.stdout.readline())
        before = queries()  # its own client's at the start do not count
        figures = load(port, p.pid, n)
        show("PyTorch", setting["what"], n, figures, f"{queries() - before} queries at the resolver")
    finally:
        p.kill()
        p.wait()


def inside(name, n, only_crund):
    setting = SETTINGS[name]
    with tempfile.TemporaryDirectory() as folder:
        enter(setting, folder)
        with resolver(setting["lost"]) as queries:
            look_ups = measure_crund(setting, n, queries, folder)
            if not only_crund:
                measure_torch(setting, min(n, N_TORCH_LOSSY if setting["lost"] else N_TORCH_HOSTS), queries)
    return look_ups == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", type=int)
    parser.add_argument("settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--only-crund", action="store_true")
    options = parser.parse_args()
    good = True
    for name in options.settings:
        pid = os.fork()  # a process for each: namespaces are not left again
        if pid == 0:
            try:
                os._exit(0 if inside(name, options.clients, options.only_crund) else 1)
            except BaseException as error:
                print(f"store_resolver: {error}", file=sys.stderr, flush=True)
                os._exit(2)
        good &= os.waitpid(pid, 0)[1] == 0
    print(f"  {'ok' if good else 'NOT ok'}: crund looks up no name", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
