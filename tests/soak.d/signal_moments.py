"""Signals at random moments of a job, in all three ways in which nodes meet: alone, static and through a rendezvous.

Each round starts a job whose first generation fails, so that it has a start, a restart and an end, and sends one node one
signal: TERM, INT, HUP or QUIT, which end the job, or USR1, which is passed to the workers. The moment is drawn from
the time that an undisturbed job takes. Afterwards

  - crun has not crashed and does not hang,
  - its exit code is 0 or 1, or the signal itself where it came before main() (the signal then has its default action),
  - "stopped by SIG..." stands in its output where a signal that ends the job has ended it,
  - no process and no temporary file is left, of this node and of the others, which are stopped by SIGTERM if they wait.

Usage: signal_moments.py [--rounds N] [--at-once N] [--seed N] [--way WAY]     N rounds for each way and signal
"""

import argparse
import collections
import contextlib
import functools
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import jobs
import launches
import nodes
import turns

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
END_S = 20
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk that is busy for seconds keeps its folders
WORKER = """\
trap : USR1
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || [ $RANK = 1 ] || { sleep 0.05; exit 3; }
sleep 0.1
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 10
true
"""
STATIC_WORKER = "trap : USR1\nsleep 0.15\ntrue\n"
COMMON = ("--shutdown-timeout=3", "--restart-pause=0", "--no-python")


def node_options(way, rank, port):
    if way == "alone":
        return ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    if way == "static":
        return ["--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-conf=join_timeout=10"]
    return ["--nnodes=2", f"--node-rank={rank}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=moments",
            f"--rdzv-conf=is_host={int(rank == 0)},join_timeout=10", "--max-restarts=1"]


def start_node(way, rank, port, folder):
    return launches.start([*node_options(way, rank, port), *COMMON, "bash", "-c", STATIC_WORKER if way == "static" else WORKER],
                          {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
                          stderr=open(folder.parent / f"err{rank}", "wb"))


def start_job(way, folder):
    port = nodes.free_port()
    return [start_node(way, rank, port, folder) for rank in range(1 if way == "alone" else 2)]


def end_job(job):
    """Codes of all nodes; those that wait for a node that has left are stopped after a second. "hangs" where that fails."""
    codes = []
    for i, p in enumerate(job):
        try:
            codes.append(p.wait(END_S if i == 0 else 1))
        except subprocess.TimeoutExpired:
            p.terminate()
            try:
                codes.append(p.wait(END_S) if i else "hangs")
            except subprocess.TimeoutExpired:
                codes.append("hangs")
    return codes


@contextlib.contextmanager
def job_folder():
    with tempfile.TemporaryDirectory(dir=MEMORY) as tmp:
        os.mkdir(f"{tmp}/tmp")
        yield pathlib.Path(tmp, "tmp")


def duration(way):
    """How long an undisturbed job takes."""
    with job_folder() as folder:
        begin = time.monotonic()
        job = start_job(way, folder)
        codes = [p.wait(60) for p in job]
        assert codes == [0] * len(job), (way, codes, [(folder.parent / f"err{i}").read_text() for i in range(len(job))])
        return time.monotonic() - begin


def what_is_wrong(number, codes, text, left):
    wrong = [f"left: {left}"] * bool(left)
    code = codes[0]
    is_early = code == -number and "crun" not in text
    if code not in (0, 1) and not is_early:
        wrong.append(f"exit code {code}")
    if any(c not in (0, 1) for c in codes[1:]):
        wrong.append(f"exit codes of the others {codes[1:]}")
    if number == signal.SIGUSR1 and code != 0 and not is_early and "stopped by" in text:
        wrong.append("SIGUSR1 has ended the job")
    if number == signal.SIGUSR1 and code == 1 and "SIGUSR1" not in text:
        wrong.append("the job has failed, and not by a worker that had no handler yet")
    if number != signal.SIGUSR1 and code == 1 and f"stopped by {number.name}" not in text:
        wrong.append("the report does not name the signal")
    return wrong


def one_round(way, number, moment, victim):
    """(exit code of the node that got the signal, what was wrong, its messages)"""
    with job_folder() as folder:
        job = start_job(way, folder)
        victim %= len(job)
        time.sleep(moment)
        jobs.kill(job[victim].pid, number)
        codes = end_job([job[victim], *(p for p in job if p is not job[victim])])
        text = (folder.parent / f"err{victim}").read_text(errors="replace")
        # The stacks that SIGQUIT asks for stay, in a folder that the report names.
        left = [name for p in job for name in launches.wait_until_gone(p.tag, 5).values()]
        left += [name for name in os.listdir(folder) if number != signal.SIGQUIT or f"stacks: {folder}/{name}/" not in text]
        for p in job:
            launches.kill_all(p)
        return codes[0], what_is_wrong(number, codes, text, left), text


def play(ways, rounds, seed, turn, n_turns):
    """Every n_turns-th round."""
    nodes.share_ports(turn, n_turns)
    draw = random.Random(seed * n_turns + turn)
    for way in ways:
        whole = min(duration(way) for _ in range(2))
        for i in range(turn, rounds, n_turns):
            for number in SIGNALS:
                moment = draw.uniform(0, whole * 1.05) if draw.random() < 0.75 else draw.uniform(0, 0.03)  # a quarter at the start
                code, wrong, text = one_round(way, number, moment, draw.randrange(2))
                yield way, number.name, code, moment, wrong, text


def run(ways, rounds, seed, n_turns):
    codes, n_bad = collections.Counter(), 0
    for way, name, code, moment, wrong, text in turns.results_of(functools.partial(play, ways, rounds, seed), min(n_turns, rounds)):
        codes[way, name, code] += 1
        if wrong:
            n_bad += 1
            print(f"{way}, {name} after {1000 * moment:.1f} ms: {'; '.join(wrong)}\n{text[-1500:]}", flush=True)
    return codes, n_bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=2 * os.cpu_count(), help="jobs")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--way", action="append", choices=("alone", "static", "rounds"))
    args = parser.parse_args()
    for number in SIGNALS:  # crun leaves alone what it was started to ignore, as by nohup
        signal.signal(number, signal.SIG_DFL)
    print(f"seed {args.seed}", flush=True)
    begin = time.monotonic()
    codes, n_bad = run(args.way or ("alone", "static", "rounds"), args.rounds, args.seed, args.at_once)
    for (way, name, code), n in sorted(codes.items(), key=str):
        print(f"{way:7} {name:8} exit code {code}: {n}")
    print(f"{sum(codes.values())} signals in {time.monotonic() - begin:.0f} s: {n_bad} wrong")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
