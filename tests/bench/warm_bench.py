"""Start and restart of a PyTorch job: torchrun, crun, and crun --warm, beside each other.

Each rank imports torch, meets over gloo and does one DDP step. For each launcher and number of ranks: wall time from the
start of the launcher (or from the death of a rank) until all ranks have done their step, CPU seconds of everything, and how many
files the whole launch opens (--opens, with strace).

Usage: warm_bench.py [--rounds N] [--ranks N...] [--opens] [--torchrun PROGRAM] [--interpreter PYTHON]
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

import jobs

SCRIPT = """
import json, os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 10)).sum().backward()
optimizer.step()
dist.barrier()
memory = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
own = sum(int(memory[n].split()[0]) for n in ("Private_Clean", "Private_Dirty"))
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank()
os.write(1, (json.dumps({"step": time.time(), "attempt": attempt, "own_kib": own}) + "\\n").encode())
if attempt == "0" and len(sys.argv) > 1:
    dist.barrier()
    time.sleep(float(sys.argv[1]))
    if rank == 0:
        os.write(1, (json.dumps({"death": time.time()}) + "\\n").encode())
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
dist.destroy_process_group()
"""


def rows(args):
    crun = [jobs.crun()]
    result = [("torchrun", [args.torchrun, "--standalone"]), ("crun", crun), ("crun --warm", [*crun, "--warm"])]
    return [row for row in result if row[1][0]]


def run(command, n, script, restart, environment):
    """Wall seconds to the first step of all ranks, wall seconds of the restart, CPU seconds, KiB of one rank alone."""
    words = [*command, f"--nproc-per-node={n}", *(["--max-restarts=5"] if restart else []), script, *(["1"] if restart else [])]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    p = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if p.returncode:
        raise SystemExit(f"{words}: {p.stderr}")
    lines = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
    # torchrun may need several attempts: a rank of the second one can read an address of the first in the shared store.
    last = max(line["attempt"] for line in lines if "attempt" in line)
    steps = {a: [line["step"] for line in lines if line.get("attempt") == a] for a in ("0", last)}
    death = [line["death"] for line in lines if "death" in line]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first": max(steps["0"]) - begin, "restart": max(steps[last]) - death[0] if restart else None, "cpu": cpu,
            "own": max(line["own_kib"] for line in lines if "step" in line)}


def count_opens(command, n, script, environment):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["strace", "-f", "-qq", "-e", "trace=open,openat,execve", "-o", f"{folder}/trace", *command,
                        f"--nproc-per-node={n}", script], env=environment, check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return len(re.findall(r"\bopen(?:at)?\(", pathlib.Path(f"{folder}/trace").read_text()))


def describe(values):
    values = sorted(values)
    return f"{values[len(values) // 2]:8.3f} {values[min(len(values) - 1, int(len(values) * 0.99))]:8.3f}"


def import_time(interpreter):
    """One interpreter that imports what the script imports, and makes the step of one rank."""
    begin = time.time()
    subprocess.run([interpreter, "-c", "import torch, torch.distributed, torch._dynamo"], check=True)
    return time.time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--opens", action="store_true")
    parser.add_argument("--interpreter", default=sys.executable, help="of the ranks")
    parser.add_argument("--torchrun", default="", help="torchrun beside the interpreter, unless named")
    args = parser.parse_args()
    beside = pathlib.Path(args.interpreter).with_name("torchrun")
    args.torchrun = args.torchrun or (str(beside) if beside.exists() else "")
    with tempfile.TemporaryDirectory() as folder:
        script = f"{folder}/one_step.py"
        pathlib.Path(script).write_text(SCRIPT)
        environment = {**os.environ, "PYTHON_EXEC": args.interpreter, "XDG_CACHE_HOME": f"{folder}/cache",
                       "OMP_NUM_THREADS": "1", "CRUN_WARM": "0"}
        run([jobs.crun(), "--warm"], 2, script, False, environment)  # makes the list of modules
        print(f"one interpreter's import: {describe([import_time(args.interpreter) for _ in range(3)])} s (median, slowest)")
        print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs; {args.rounds} rounds; median and p99")
        print(f"{'launcher':<12} ranks   first step s      restart s      CPU s of a launch   own MiB of a rank")
        for n in args.ranks:
            for name, command in rows(args):
                first = [run(command, n, script, False, environment) for _ in range(args.rounds)]
                again = [run(command, n, script, True, environment) for _ in range(args.rounds)]
                print(f"{name:<12} {n:>5} {describe([r['first'] for r in first])} {describe([r['restart'] for r in again])}"
                      f" {describe([r['cpu'] for r in first])}  {max(r['own'] for r in first) / 1024:8.0f}", flush=True)
                if args.opens:
                    print(f"{'':<12} {'':>5} {count_opens(command, n, script, environment)} files opened", flush=True)
        print(f"load: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
