"""Start and restart of a PyTorch job: torchrun, crun, and crun --warm, beside each other.

Each rank imports torch, meets over gloo and does one DDP step. For each launcher and number of ranks: wall time from the
start of the launcher until all ranks have done their step, the same from the death of a rank in a restarted generation, CPU seconds of
one launch and of one restart (of everything), memory of a rank that it does not share, and how many files a launch opens
(--opens, with strace). With torch 2.15 and two CPUs all of it takes about seven minutes.

Usage: warm_bench.py [--warm-rounds N] [--cold-rounds N] [--ranks N...] [--opens] [--torchrun PROGRAM] [--interpreter PYTHON]
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
done = time.time()
dist.barrier()
memory = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
own = sum(int(memory[n].split()[0]) for n in ("Private_Clean", "Private_Dirty"))
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank()
os.write(1, (json.dumps({"step": done, "attempt": attempt, "own_kib": own}) + "\\n").encode())
if int(attempt) < int(sys.argv[1]):
    dist.barrier()
    time.sleep(0.5)
    if rank == 0:
        os.write(1, (json.dumps({"death": time.time(), "of": attempt}) + "\\n").encode())
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
del model, optimizer
dist.destroy_process_group()
"""


LIMIT_S = 60   # of a generation
HUNG_MAX = 2   # runs of a job


def rows(args):
    crun = [jobs.crun(), "--restart-pause=0"]
    result = [("torchrun", [args.torchrun, "--standalone"]), ("crun", crun), ("crun --warm", [*crun, "--warm"])]
    return [row for row in result if row[1][0]]


def output_of(words, environment, limit_s):
    """What a job prints; None when it hung or failed. torchrun's does when a rank reads what one of the attempt before has stored."""
    with subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as p:
        try:
            out, err = p.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            p.terminate()
            p.communicate()
            return None
    if p.returncode:
        print("\n".join(line[:200] for line in err.splitlines() if "Error" in line), file=sys.stderr, flush=True)
        return None
    return out


def run(command, n, script, restarts, environment):
    """Wall seconds to the first step of all ranks, those of each restart, CPU seconds of all, KiB of one rank alone. None: it did
    not get there, HUNG_MAX times."""
    words = [*command, f"--nproc-per-node={n}", f"--max-restarts={restarts + 5}", script, str(restarts)]
    for _ in range(HUNG_MAX):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        out = output_of(words, environment, LIMIT_S * (1 + restarts))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if out is not None:
            break
        print(f"{'':<12} {n:>5} hung or failed in a job of {restarts} restarts: {command[0]}", flush=True)
    else:
        return None
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    steps = {line["attempt"]: [] for line in lines if "step" in line}
    for line in lines:
        if "step" in line:
            steps[line["attempt"]].append(line["step"])
    whole = {int(attempt): max(times) for attempt, times in steps.items() if len(times) == n}
    # torchrun may need more than one attempt after a death: a rank can read an address of the attempt before in the shared store.
    again = [min(whole[a] for a in whole if a > int(line["of"])) - line["death"] for line in lines if "death" in line]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first": min(whole.items())[1] - begin, "again": again, "cpu": cpu,
            "own": max(line["own_kib"] for line in lines if "step" in line)}


def count_opens(command, n, script, environment):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=open,openat", "-o", f"{folder}/trace", *command,
                        f"--nproc-per-node={n}", script, "0"], env=environment, check=True, stdin=subprocess.DEVNULL,
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


def measure(name, command, n, args, script, environment):
    is_warm = name.endswith("--warm")
    rounds, restarts = (args.warm_rounds, 2 * args.warm_rounds) if is_warm else (args.cold_rounds, args.cold_rounds)
    launches = [run(command, n, script, 0, environment) for _ in range(rounds)]
    if None in launches:
        raise SystemExit(f"{name} with {n} ranks: a launch without a restart hung or failed {HUNG_MAX} times")
    with_restarts = run(command, n, script, restarts, environment)
    cpu = sorted(r["cpu"] for r in launches)[rounds // 2]
    first = launches
    again = f"{'never':>8} {'':>8}", f"{'':>9}"
    if with_restarts:
        first = [*launches, with_restarts]
        again = describe(with_restarts["again"]), f"{(with_restarts['cpu'] - cpu) / restarts:>9.2f}"
    print(f"{name:<12} {n:>5} {describe([r['first'] for r in first])} {again[0]} {cpu:>9.2f} {again[1]} "
          f"{max(r['own'] for r in launches) / 1024:10.0f}    {len(first)} launches, {restarts if with_restarts else 0} restarts, "
          f"load {os.getloadavg()[0]:.1f}", flush=True)
    if args.opens:
        print(f"{'':<12} {'':>5} {count_opens(command, n, script, environment)} files opened by a launch", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--warm-rounds", type=int, default=10)
    parser.add_argument("--cold-rounds", type=int, default=2)
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
        run([jobs.crun(), "--warm"], 2, script, 0, environment)  # makes the list of modules
        print(f"one interpreter's import: {describe([import_time(args.interpreter) for _ in range(3)])} s (median, slowest)")
        print(f"{os.cpu_count()} CPUs; median and p99 in seconds")
        print(f"{'':<18} {'first step':^17} {'restart':^17}  CPU s of a launch, of a restart;  own MiB of a rank")
        for n in args.ranks:
            for name, command in rows(args):
                measure(name, command, n, args, script, environment)


if __name__ == "__main__":
    main()
