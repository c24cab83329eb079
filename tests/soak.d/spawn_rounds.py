"""Many generations of many workers: nothing hangs, leaks a descriptor, or signals a stranger.

    spawns:  generation after generation of workers, some of which crash, while harmless signals rain on crun. Each
             worker looks at its own descriptors: 0, 1, 2, the notice socket and the two memory files, nothing else.
    reuse:   the same in a process namespace with 400 process numbers and a storm of short-lived strangers
             beside it, so that numbers come round all the time. No stranger may ever end by a signal.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import jobs

# What ls has open: 0, 1, 2, the notice socket, a memory file, the socket for blocks, and the folder that it lists. (The shell's own are close-on-exec.)
WORKER = """#!/bin/sh
n=$(ls /proc/self/fd | wc -l)
[ $n = 7 ] || echo "rank $RANK has $n descriptors, expected 7" >> "$FOUND"
echo >> "$COUNT.$RANK"
[ "$RANK" = 0 ] && exit 1
sleep 60
"""


# SIGCONT takes back the stop by which LeakSanitizer, at the end of a process, waits for it: that never ends.
HARMLESS = (signal.SIGWINCH,) if "ASAN_OPTIONS" in os.environ else (signal.SIGWINCH, signal.SIGCONT)


def run_generations(n_workers, restarts, env, rain=True, timeout=900):
    """Returns (workers started, what was found wrong)."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        script = folder / "worker.sh"
        script.write_text(WORKER)
        script.chmod(0o755)
        env = dict(env, FOUND=str(folder / "found"), COUNT=str(folder / "count"))
        p = subprocess.Popen([jobs.crun(), "--standalone", f"--nproc-per-node={n_workers}",
                              f"--max-restarts={restarts}", "--restart-pause=0", str(script)], env=env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + timeout
        while p.poll() is None and time.monotonic() < deadline:
            for number in HARMLESS if rain else ():
                jobs.kill(p.pid, number)
            time.sleep(0.001)
        wrong = []
        if p.poll() is None:
            p.kill()
            wrong.append(f"crun did not end within {timeout} s")
        p.wait()
        if p.returncode != 1 and not wrong:
            wrong.append(f"crun ended with {p.returncode}, expected 1")
        if (folder / "found").exists():
            wrong += (folder / "found").read_text().splitlines()[:5]
        first = folder / "count.0"
        generations = first.stat().st_size if first.exists() else 0
        if generations != restarts + 1:
            wrong.append(f"{generations} generations, expected {restarts + 1}")
        return generations * n_workers, wrong


def storm(stop, ended_by_signal, started):
    while not stop.is_set():
        strangers = [subprocess.Popen(["/bin/true"]) for _ in range(8)]
        started[0] += len(strangers)
        ended_by_signal += [p.pid for p in strangers if p.wait() != 0]


def reuse(n_workers, restarts):
    """Runs inside the namespace."""
    pathlib.Path("/proc/sys/kernel/pid_max").write_text("400")
    stop, hit, started = threading.Event(), [], [0]
    thread = threading.Thread(target=storm, args=(stop, hit, started))
    thread.start()
    n, wrong = run_generations(n_workers, restarts, os.environ, rain=False)
    stop.set()
    thread.join()
    wrong += [f"stranger {pid} was signalled" for pid in hit[:5]]
    print(f"{n} workers beside {started[0]} strangers on 400 process numbers: {wrong or 'nothing wrong'}")
    return bool(wrong)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mode", choices=["spawns", "reuse", "reuse-inside"])
    p.add_argument("--workers", type=int, default=20)
    p.add_argument("--restarts", type=int, default=24)
    a = p.parse_args()
    if a.mode == "spawns":
        n, wrong = run_generations(a.workers, a.restarts, os.environ)
        print(f"{n} workers started: {wrong or 'nothing wrong'}")
        return bool(wrong)
    if a.mode == "reuse-inside":
        return reuse(a.workers, a.restarts)
    before = pathlib.Path("/proc/sys/kernel/pid_max").read_text()
    code = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", sys.executable, __file__, "reuse-inside",
                           f"--workers={a.workers}", f"--restarts={a.restarts}"]).returncode
    after = pathlib.Path("/proc/sys/kernel/pid_max").read_text()
    if after != before:  # an old kernel has one limit for all namespaces
        pathlib.Path("/proc/sys/kernel/pid_max").write_text(before)
        print("this kernel's pid_max is not the namespace's own; it was put back")
    return code


if __name__ == "__main__":
    sys.exit(main())
