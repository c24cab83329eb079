#!/usr/bin/env python3
"""What a launch costs: crun against a bare posix_spawn loop, a restart after a crash, and both beside torchrun.

Prints medians of alternating runs; never fails a build. Usage: launch_bench.py [BUILD] [RUNS]
"""

import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WORKERS = 4


def timed(command, env=None):
    begin = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=env)
    return time.perf_counter() - begin


def peak_memory_kib(build, command):
    out = subprocess.run([f"{build}/tests/bench/spawn_loop", "-m", "1", *command], check=True, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
    return int(out.stdout)


def start_cost(build, runs):
    crun = [f"{build}/launcher/crun", "--standalone", f"--nproc-per-node={WORKERS}", "--no-python", "/bin/true"]
    loop = [f"{build}/tests/bench/spawn_loop", str(WORKERS), "/bin/true"]
    samples = {"crun": [], "loop": []}
    for _ in range(runs):
        samples["crun"].append(timed(crun))
        samples["loop"].append(timed(loop))
    ms = {name: 1000 * statistics.median(values) for name, values in samples.items()}
    print(f"{WORKERS} x /bin/true, {runs} runs: crun {ms['crun']:.2f} ms, posix_spawn loop {ms['loop']:.2f} ms, "
          f"ratio {ms['crun'] / ms['loop']:.2f}")
    print(f"peak memory: {peak_memory_kib(build, crun) / 1024:.1f} MiB")


# Each worker notes when it starts to run; rank 1 of the first generation notes when it dies.
RESTART_WORKER = """
if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
    if [ "$RANK" = 1 ]; then sleep 0.2; date +%s%N > "$MARKS/death"; kill -KILL $$; fi
    exec sleep 60
fi
date +%s%N > "$MARKS/start.$RANK"
"""


def torchrun_command():
    """torchrun of the Python that runs this; [] without PyTorch."""
    return [sys.executable, "-m", "torch.distributed.run"] if importlib.util.find_spec("torch") else []


def beside_torchrun(build, runs):
    options = ["--standalone", f"--nproc-per-node={WORKERS}", "--no-python", "/bin/true"]
    commands = {"crun": [f"{build}/launcher/crun", *options], "torchrun": [*torchrun_command(), *options]}
    samples = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            samples[name].append(timed(command))
    ms = {name: 1000 * statistics.median(values) for name, values in samples.items()}
    mib = {name: peak_memory_kib(build, command) / 1024 for name, command in commands.items()}
    print(f"{WORKERS} x /bin/true, {runs} runs: crun {ms['crun']:.1f} ms, torchrun {ms['torchrun']:.0f} ms, "
          f"ratio {ms['torchrun'] / ms['crun']:.0f}")
    print(f"peak memory: crun {mib['crun']:.1f} MiB, torchrun {mib['torchrun']:.0f} MiB, "
          f"ratio {mib['torchrun'] / mib['crun']:.0f}")
    medians = {name: statistics.median(restart_latencies(command[:-4], runs)) for name, command in commands.items()}
    print(f"crash to all {WORKERS} of the next generation running: crun {medians['crun']:.0f} ms, torchrun "
          f"{medians['torchrun']:.0f} ms, ratio {medians['torchrun'] / medians['crun']:.0f}")


def restart_latencies(launcher, runs):
    latencies = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as marks:
            folder = pathlib.Path(marks)
            (folder / "worker.sh").write_text(RESTART_WORKER)
            timed([*launcher, "--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=1",
                   "--no-python", "sh", f"{marks}/worker.sh"], env={**os.environ, "MARKS": marks})
            last = max(int((folder / f"start.{rank}").read_text()) for rank in range(WORKERS))
            latencies.append((last - int((folder / "death").read_text())) / 1e6)
    return latencies


def restart_cost(build, runs):
    latencies = restart_latencies([f"{build}/launcher/crun"], runs)
    print(f"crash of one worker to all {WORKERS} of the next generation running, {runs} runs: "
          f"median {statistics.median(latencies):.1f} ms, worst {max(latencies):.1f} ms (two shells' start included)")


def main():
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    start_cost(build, runs)
    restart_cost(build, max(5, runs // 10))
    if torchrun_command():
        beside_torchrun(build, max(3, runs // 20))


main()
