"""Tools that print stacks are killed at random moments of their work: is a process left stopped?

Usage: tool_kills.py [--seed N] [KILLS [TOOL...]]    so many kills (200) of each tool (py-spy eu-stack gdb) for each kind of process:
one with 300 threads, and one with 64 children.
"""

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import jobs

TOOLS = ("py-spy", "eu-stack", "gdb")
KINDS = {
    "threads": "import threading, time\nfor _ in range(300):\n    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n"
               "print(flush=True)\ntime.sleep(1e6)\n",
    "children": "import os, time\npids = []\nfor _ in range(64):\n    pid = os.fork()\n    if not pid:\n        time.sleep(1e6)\n"
                "    pids.append(pid)\nprint(*pids, flush=True)\ntime.sleep(1e6)\n",
}


def find(tool):
    beside = pathlib.Path(sys.executable).parent / tool
    return str(beside) if beside.exists() else shutil.which(tool)


@contextlib.contextmanager
def examined(kind):
    """The processes of that kind, the parent first."""
    p = subprocess.Popen([sys.executable, "-c", KINDS[kind]], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield [p.pid, *map(int, p.stdout.readline().split())]
    finally:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        p.stdout.close()


def kill_tool(tool, kind, kills, seed):
    """(exit code, what tool_killer prints)"""
    with examined(kind) as pids:
        got = subprocess.run([jobs.build_folder() / "tests/workers/tool_killer", tool, find(tool), str(kills), str(seed), *map(str, pids)],
                             stdout=subprocess.PIPE, text=True)
    return got.returncode, got.stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("tools", nargs="*", default=TOOLS)
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    failed = 0
    for tool in args.tools:
        for kind in KINDS:
            code, text = kill_tool(tool, kind, args.kills, args.seed)
            print(f"{tool:8} {kind:8} {text}", flush=True)
            failed += code != 0
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
