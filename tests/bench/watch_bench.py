"""What observing costs: CPU of crun and its threads beside 64 ranks, in per cent of a core, with everything on: --hang-timeout, beat(step)
and a line of output in each second, two --on-line rules, metrics scraped and crunctl status asked for each second. First while the ranks
work, then while they wait, from half of the time-out on, where their places are looked at. Exit code 1: more than the goal.

Usage: watch_bench.py [--ranks N] [--seconds N] [--timeout S]    --timeout: of --hang-timeout (120)
"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import jobs
from scrapes import scrape

GOAL_PERCENT = 0.5
WORK = """import sys, time
sys.path.insert(0, sys.argv[1])
from crun_launch.worker import beat
for step in range(int(sys.argv[2])):
    beat(step)
    print("step", step, flush=True)
    time.sleep(1)
time.sleep(10000)
"""
START_S = 20  # until all ranks work


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Job:
    def __init__(self, ranks, timeout, work_s, folder):
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        script = pathlib.Path(folder) / "job.py"
        script.write_text(WORK)
        self.output = pathlib.Path(folder) / "output"
        options = [f"--nproc-per-node={ranks}", f"--hang-timeout={timeout}", "--metrics-addr=127.0.0.1:0", f"--log-dir={folder}/logs",
                   f"--event-log={folder}/events", "--on-line=never printed=stop", "--on-line=Traceback=mark", "-t", "3", "--no-python"]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen([jobs.crun(), *options, sys.executable, str(script), str(jobs.ROOT / "python"), str(work_s)],
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output, env=self.environment)
        self.is_over, self.n_asked = threading.Event(), 0
        jobs.wait_for(lambda: re.search(rb"metrics on port (\d+)", self.output.read_bytes()), 60)
        self.port = int(re.search(rb"metrics on port (\d+)", self.output.read_bytes()).group(1))
        self.observer = threading.Thread(target=self._observe)
        self.observer.start()

    def _observe(self):
        crunctl = pathlib.Path(jobs.crun()).parent / "crunctl"
        while not self.is_over.wait(1):
            scrape(self.port)
            subprocess.run([crunctl, "--json", "status"], stdout=subprocess.DEVNULL, check=True, timeout=60, env=self.environment)
            self.n_asked += 1

    def measure(self, seconds):
        before, began, n = cpu_s(self.process.pid), time.monotonic(), self.n_asked
        time.sleep(seconds)
        passed = time.monotonic() - began
        return 100 * (cpu_s(self.process.pid) - before) / passed, (self.n_asked - n) / passed

    def end(self):
        self.is_over.set()
        self.observer.join()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--timeout", type=int, default=120)
    o = parser.parse_args()
    shares = []
    with tempfile.TemporaryDirectory(prefix="crun-") as folder:
        job = Job(o.ranks, o.timeout, START_S + o.seconds, folder)
        try:
            time.sleep(START_S)
            phases = [("that work", o.seconds), (f"that wait, from {o.timeout / 2:g} s on", o.timeout * 3 // 8)]
            for name, seconds in phases:
                percent, per_second = job.measure(seconds)
                shares.append(percent)
                print(f"{o.ranks} ranks {name}, {seconds} s: {percent:.2f} % of a core (goal: at most {GOAL_PERCENT:g}); "
                      f"scraped and asked {per_second:.1f} times a second", flush=True)
                if len(shares) == 1:
                    time.sleep(o.timeout / 2 + 5)
        finally:
            job.end()
    return 1 if max(shares) > GOAL_PERCENT else 0


if __name__ == "__main__":
    sys.exit(main())
