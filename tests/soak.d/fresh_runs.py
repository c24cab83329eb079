"""tests/run from fresh clones, again and again, one of them under a CPU quota.

    fresh_runs.py [--runs N] [--quota CORES] [--at-once N] [--step STEP]... [--keep DIR]

Each run clones the newest commit into a folder of its own and runs tests/run there, as somebody does who has just got the
sources, but with warnings as errors, as .ci/run does. The first run has a quota of CORES (0.8; 0: none has one), so that what
depends on a quick machine shows itself. Prints for each run how long it took and what failed or ran again; --keep has the logs of
all runs afterwards. Ends with 1 when a test has failed or run again.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time

import cgroups

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 3 * 3600


def run(number, options, folder, turns):
    """A line about the run, and whether it was clean."""
    turn = turns.get()  # its share of the ports
    try:
        return run_in_turn(number, options, folder, turn)
    finally:
        turns.put(turn)


def run_in_turn(number, options, folder, turn):
    clone, log = folder / f"clone{number}", folder / f"run{number}.log"
    subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(clone)], check=True)
    quota = options.quota if number == 0 else 0
    began = time.monotonic()
    with contextlib.ExitStack() as stack, open(log, "wb") as out:
        group = stack.enter_context(cgroups.cpu(quota)) if quota else None
        command = [str(clone / "tests" / "run"), *options.step]
        if group:  # a shell moves itself, so that nothing of the run is outside
            command = ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(group), *command]
        process = subprocess.Popen(
            command,
            env=os.environ | {"CRUN_TESTS_WERROR": "1", "CRUN_TESTS_PORTS": f"{turn}/{options.at_once}"},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            out.write(b"\nit has run for too long\n")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return describe(number, quota, time.monotonic() - began, log.read_text(errors="replace"))


def describe(number, quota, seconds, text):
    closing = re.findall(r"^(\d+) passed, (\d+) failed$", text, re.M)
    again = re.findall(r"^(\d+) re-runs(?:: (.*))?$", text, re.M)
    name = f"run {number + 1}" + (f" ({quota:g} cores)" if quota else "")
    if not closing or not again:
        return f"{name}: {seconds:.0f} s, no closing lines; the end of its output:\n{text[-2000:]}", False
    failed = list(dict.fromkeys(re.findall(r"^FAILED (\S.*)$", text, re.M)))
    lines = [f"{name}: {seconds:.0f} s, {closing[-1][0]} passed, {closing[-1][1]} failed, {again[-1][0]} re-runs"]
    lines += [f"    failed: {what}" for what in failed] + ([f"    again: {again[-1][1]}"] if again[-1][1] else [])
    return "\n".join(lines), closing[-1][1] == "0" and again[-1][0] == "0"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--quota", type=float, default=0.8, help="cores of the first run; 0: as many as there are")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--step", action="append", default=[], help="a step of tests/run; without, all")
    parser.add_argument("--keep", type=pathlib.Path, help="where the logs go")
    options = parser.parse_args()
    n_clean, turns = 0, queue.SimpleQueue()
    for turn in range(options.at_once):
        turns.put(turn)
    with tempfile.TemporaryDirectory(prefix="fresh-runs-") as folder, \
            concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        os.chmod(folder, 0o755)  # programs are started as other users, too
        for done in concurrent.futures.as_completed(pool.submit(run, n, options, pathlib.Path(folder), turns)
                                                   for n in range(options.runs)):
            text, is_clean = done.result()
            n_clean += is_clean
            print(text, flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                for log in pathlib.Path(folder).glob("run*.log"):
                    (options.keep / log.name).write_bytes(log.read_bytes())
    print(f"{n_clean} of {options.runs} runs without a failure and without a re-run")
    return 0 if n_clean == options.runs else 1


if __name__ == "__main__":
    sys.exit(main())
