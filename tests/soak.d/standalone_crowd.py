"""Many `crun --standalone` at once: all start, all can use their store, no two share a port."""

import argparse
import collections
import subprocess
import sys
import tempfile
import time

import jobs

PATIENCE_S = 300

# Talks to the store of its own launch: the first reply proves that it is alive and speaks the protocol.
WORKER = r'''
import os, socket, struct, sys, time
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=60)
key, value = b"/" + os.environ["RANK"].encode(), os.environ["TORCHELASTIC_RUN_ID"].encode()
vec = lambda b: struct.pack("<Q", len(b)) + b
s.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))                       # VALIDATE
s.sendall(b"\1" + vec(key) + vec(value))                               # SET
s.sendall(b"\3" + vec(key))                                             # GET
size = struct.unpack("<Q", s.recv(8, socket.MSG_WAITALL))[0]
assert s.recv(size, socket.MSG_WAITALL) == value
# Nobody ends before all are there: then no port can be given a second time.
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while len(os.listdir(sys.argv[1])) < int(sys.argv[2]):
    time.sleep(0.1)
sys.stdout.write(os.environ["MASTER_PORT"] + " " + os.environ["RANK"] + "\n")  # whole also where nothing is buffered
'''


def run(launches):
    """(launches that failed, port -> launches that had it)"""
    failed, ports = [], collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [jobs.crun(), "--standalone", "--nproc-per-node=2", "--no-python", sys.executable, "-c", WORKER, folder,
                   str(2 * launches)]
        crowd = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for _ in range(launches)]
        deadline = time.monotonic() + PATIENCE_S
        for crun in crowd:
            try:
                out, err = crun.communicate(timeout=max(1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:  # one that failed leaves all others waiting
                crun.terminate()
                out, err = crun.communicate(timeout=PATIENCE_S)
            lines = [line.split() for line in out.splitlines()]
            if crun.returncode != 0 or sorted(rank for _, rank in lines) != ["0", "1"]:
                failed.append((crun.returncode, err))
            ports.update({port for port, _ in lines})
    return failed, ports


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--launches", type=int, default=200)
    args = parser.parse_args()
    failed, ports = run(args.launches)
    shared = {port: n for port, n in ports.items() if n > 1}
    for code, err in failed[:5]:
        print(f"exit code {code}: {err[-500:]}")
    print(f"{args.launches} launches at once: {len(failed)} failed, {len(ports)} ports, {len(shared)} shared")
    return 1 if failed or shared or len(ports) != args.launches else 0


if __name__ == "__main__":
    sys.exit(main())
