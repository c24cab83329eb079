#!/usr/bin/env python3
"""What a launch on other hosts costs: crun --hosts beside `ssh HOST true` to all of them at once and beside mpirun, in turns.

    launch_hosts_bench.py [--hosts 3,16,64] [--runs 3] [--torch] [--fake N] [--no-mpi]

Hosts are network namespaces with a real sshd and a plain login shell, and all have crun. For each number of hosts the three start
/bin/true on each, and then a worker printing the moment of its start ("a first step"); prints seconds of each run, medians and
ratios. mpirun (Debian's Open MPI) starts its agents over the same ssh. --torch: PyTorch DDP on
three hosts, seconds from the command to the first step.
--fake N: N hosts behind a fake ssh: seconds until the last rank runs, and the processor time for each host: of all processes but the
fake ssh and its login shell, and of the front.

Needs root and openssh-server, openssh-client; installs openmpi-bin if it is missing. Never fails a build.
"""

import argparse
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import jobs
import launches
import ssh_hosts

TIMEOUT_S = 300
TRUE = "/bin/true"

# With a session for each ssh, as in crun: on a busy machine the kernel shares the processors among sessions (autogroups).
AT_ONCE = """
for host; do
    setsid ssh -T -oBatchMode=yes "$host" true </dev/null &
done
wait
"""

TORCH = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1024, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.randn(32, 1024)).square().mean().backward()
optimizer.step()
print(f"STEP {os.environ['RANK']} {time.time():.3f}", flush=True)
dist.destroy_process_group()
"""


def started_at():
    return str(jobs.build_folder() / "tests/bench/started_at")


def crun(hosts, *command):
    return hosts.command("--nproc-per-node=1", "--no-python", *command)


def mpirun(hosts, *command):
    agent = hosts.folder / "bin/ssh_session"
    agent.write_text(f'#!/bin/sh\nexec setsid -w {hosts.folder}/bin/ssh "$@"\n')
    agent.chmod(0o755)
    return ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", str(agent), "--mca", "plm_rsh_no_tree_spawn", "1",
            "--mca", "btl_base_warn_component_unused", "0", "--host", ",".join(f"{name}:1" for name in hosts.names()),
            "-np", str(hosts.n_hosts), *command]


def ssh(hosts, *_):
    return ["sh", "-c", AT_ONCE, "sh", *hosts.names()]


def timed(hosts, command):
    """(seconds, standard output)"""
    begin = time.time()
    p = hosts.run(command, timeout=TIMEOUT_S, cwd="/")
    took = time.time() - begin
    assert p.returncode == 0, f"{command[0]}: exit code {p.returncode}: {p.stdout[-1000:]}{p.stderr[-3000:]}"
    return took, p.stdout, begin


def last_start(text, begin, n_hosts, word="START"):
    """Seconds from the command to the start of the last rank."""
    times = [float(at) for at in re.findall(rf"{word} \S+ ([\d.]+)", text)]
    assert len(times) == n_hosts, text[-2000:]
    return max(times) - begin


def print_table(title, samples):
    medians = {name: statistics.median(values) for name, values in samples.items()}
    print(f"{title}: " + "; ".join(f"{name} {medians[name]:.2f} s ({', '.join(f'{v:.2f}' for v in values)})" for name, values in samples.items()))
    print("    crun takes " + ", ".join(f"{medians['crun'] / medians[name]:.2f} times {name}" for name in medians if name != "crun"), flush=True)


def beside_others(hosts, runs, with_mpi):
    starters = {"ssh at once": ssh, **({"mpirun": mpirun} if with_mpi else {}), "crun": crun}
    whole, first = {name: [] for name in starters}, {name: [] for name in starters if name != "ssh at once"}
    for name in starters:  # first use of files and hosts
        timed(hosts, starters[name](hosts, TRUE))
    for _ in range(runs):
        for name, starter in starters.items():
            whole[name].append(timed(hosts, starter(hosts, TRUE))[0])
        for name in first:
            _, text, begin = timed(hosts, starters[name](hosts, started_at()))
            first[name].append(last_start(text, begin, hosts.n_hosts))
    print_table(f"{hosts.n_hosts} hosts, {TRUE}", whole)
    print_table(f"{hosts.n_hosts} hosts, until the last rank runs", first)


def torch_first_step(folder, runs):
    script = folder / "ddp.py"
    script.write_text(TORCH)
    with ssh_hosts.SshHosts(folder, 3) as hosts:
        command = hosts.command("--nproc-per-node=1", str(script))
        took = []
        for _ in range(runs):
            begin = time.time()
            p = hosts.run(command, timeout=TIMEOUT_S, environment={"PYTHON_EXEC": sys.executable, "TORCH_CPP_LOG_LEVEL": "ERROR"})
            assert p.returncode == 0, p.stdout + p.stderr
            took.append(last_start(p.stdout, begin, 3, "STEP"))
    print(f"PyTorch DDP on 3 hosts: {' '.join(['crun', *command[1:-1], 'ddp.py'])}")
    print(f"    the first step ends {statistics.median(took):.2f} s after the command ({', '.join(f'{v:.2f}' for v in took)})", flush=True)


def children_ms():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (used.ru_utime + used.ru_stime)


def run_behind_fake_ssh(folder, command):
    """(seconds until the last rank, processor milliseconds of all processes, and of the front)"""
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "FAKE_SSH_HOMES": str(folder)}
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        before, begin, own_s = children_ms(), time.time(), 0
        front = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        while front.poll() is None and time.time() < begin + TIMEOUT_S:
            try:
                own_s = launches.cpu_seconds(front.pid)
            except (OSError, IndexError):
                pass  # it has ended
            time.sleep(0.05)
        assert front.poll() == 0, (folder / "out").read_text()[-1000:] + (folder / "err").read_text()[-3000:]
    return begin, children_ms() - before, 1e3 * own_s


def behind_fake_ssh(folder, n_hosts, runs, hold_s):
    """Ranks stay until all ranks run, as in a job. The processor time of the fake ssh and its shells alone is subtracted."""
    (folder / "bin").mkdir()
    (folder / "bin/ssh").symlink_to(jobs.build_folder() / "tests/fakes/fake_ssh")
    names = [f"h{i}" for i in range(1, n_hosts + 1)]
    last, own, front = [], [], []
    for _ in range(runs):
        _, alone_ms, _ = run_behind_fake_ssh(folder, ["sh", "-c", AT_ONCE, "sh", *names])
        begin, all_ms, front_ms = run_behind_fake_ssh(
            folder, [jobs.crun(), f"--hosts=h[1-{n_hosts}]", "--nproc-per-node=1", "--no-python", started_at(), str(hold_s)])
        last.append(last_start((folder / "out").read_text(), begin, n_hosts))
        own.append((all_ms - alone_ms) / n_hosts)
        front.append(front_ms / n_hosts)
    def shown(values):
        return f"{statistics.median(values):.2f} ({', '.join(f'{v:.2f}' for v in values)})"
    print(f"{n_hosts} hosts behind a fake ssh: the last rank runs after {shown(last)} s; processor milliseconds for each host: "
          f"crun and the worker {shown(own)}, the front alone {shown(front)}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", default="3,16,64", help="numbers of hosts; empty: none")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--fake", type=int, default=0, metavar="N")
    parser.add_argument("--hold", type=float, default=3, help="seconds that a rank behind the fake ssh runs")
    parser.add_argument("--no-mpi", action="store_true")
    args = parser.parse_args()
    if ssh_hosts.missing():
        return print(ssh_hosts.missing())
    if not args.no_mpi and not shutil.which("mpirun"):
        subprocess.run([jobs.ROOT / "tests/tools/install-packages", "openmpi-bin"], check=True)
    for n_hosts in map(int, filter(None, args.hosts.split(","))):
        with tempfile.TemporaryDirectory(prefix="crun-launch-") as folder, ssh_hosts.SshHosts(folder, n_hosts) as hosts:
            beside_others(hosts, args.runs, not args.no_mpi)
    with tempfile.TemporaryDirectory(prefix="crun-launch-") as folder:
        if args.torch:
            torch_first_step(pathlib.Path(folder), args.runs)
    with tempfile.TemporaryDirectory(prefix="crun-launch-") as folder:
        if args.fake:
            behind_fake_ssh(pathlib.Path(folder), args.fake, args.runs, args.hold)
    return None


main()
