#!/usr/bin/env python3
"""What a redraw of crunctl top costs with many ranks: from the whole answer of a simulated crun to the end of the picture on an
80 x 24 terminal. Usage: top_bench.py [--ranks 1000] [--redraws 20]
"""

import argparse
import fcntl
import json
import os
import pathlib
import pty
import select
import signal
import socket
import statistics
import struct
import tempfile
import termios
import threading
import time

import jobs

RANKS_OF_A_NODE = 8
PICTURE = b"\x1b[H"
END = b"n: nodes\x1b[0m"


def status(n_ranks, look):
    def worker(rank):
        return {"rank": rank, "local_rank": rank % RANKS_OF_A_NODE, "pid": 100000 + rank, "state": "running",
                "hang": rank == 7, "straggler": rank % 100 == 3, "waits_percent": 40, "last_step": 4000 + 12 * look - (rank % 3), "started": 1000,
                "last_line": f"epoch 3 step {4000 + look}: loss 0.{rank:04d}"}
    nodes = [{"host": f"node{n}", "group_rank": n, "workers": [worker(rank) for rank in range(
        n * RANKS_OF_A_NODE, min((n + 1) * RANKS_OF_A_NODE, n_ranks))]} for n in range((n_ranks + RANKS_OF_A_NODE - 1) // RANKS_OF_A_NODE)]
    return json.dumps({"version": 1, "job": "train-7", "program": "train.py", "state": "running", "crun_pid": 4711, "generation": 2,
                       "restarts": 1, "max_restarts": 3, "n_nodes": len(nodes), "started": 1000, "nodes": nodes}).encode()


def serve(path, n_ranks, answered):
    """A crun: answers each look, and notes when its answer was sent."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)

    def run():
        for look in range(1000000):
            client, _ = listener.accept()
            with client:
                client.recv(64)
                client.sendall(status(n_ranks, look))
                answered.append(time.perf_counter())
    threading.Thread(target=run, daemon=True).start()


def measure(path, n_ranks, redraws):
    answered, drawn, seen = [], [], b""
    serve(path, n_ranks, answered)
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        program = str(jobs.build_folder() / "launcher" / "crunctl")
        os.execv(program, [program, "--socket", path, "top"])
    while len(drawn) < redraws:
        if not select.select([terminal], [], [], 60)[0]:
            raise SystemExit(f"top_bench: no picture came: {seen[-300:]!r}")
        seen += os.read(terminal, 65536)
        if END in seen:
            drawn.append(time.perf_counter() - answered[-1])
            size = len(seen)
            seen = seen[seen.rindex(END) + len(END):]
    os.kill(pid, signal.SIGTERM)
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    cpu_ms = 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    os.close(terminal)
    os.waitpid(pid, 0)
    return drawn, size, cpu_ms


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--redraws", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="top-bench.") as folder:
        drawn, size, cpu_ms = measure(str(pathlib.Path(folder, "job.sock")), args.ranks, args.redraws)
    ms = sorted(1000 * s for s in drawn)
    print(f"{args.ranks} ranks, {len(ms)} redraws of 80 x 24 from a whole answer: median {statistics.median(ms):.1f} ms, longest {ms[-1]:.1f} ms "
          f"(at most 50), {size} bytes a picture, {cpu_ms / (len(ms) + 1):.1f} ms of CPU a look")


if __name__ == "__main__":
    main()
