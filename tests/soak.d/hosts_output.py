"""Output of many ranks through crun --hosts: how long the ranks stand in write(), and whether the gathered logs are whole.

Hosts are network namespaces with a real sshd, one rank on each. All ranks together write --rate MB/s of numbered lines for --seconds
and measure each write(). -r 3 gathers the lines below --log-dir/HOST/ at the front; afterwards each log must have every line of its
rank, in order. Prints the share of the time in write(), the part of it in which the rank waited for the processor (schedstat), the
front's processor time and memory. The limit of --limit percent holds for the time in write() without that wait.

Usage: hosts_output.py [--hosts N] [--rate MB/S] [--seconds S] [--limit PERCENT] [--plain-ssh]     needs root and openssh-server

--plain-ssh: the same writers started by ssh alone, their output in a file for each: what the network and sshd cost.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import jobs
import launches
import ssh_hosts

LINE = 1024
CHUNK = 16  # lines in one write()

WRITER = f"""
import json, os, sys, time
rate, seconds, rank, result = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3] or os.environ["RANK"], sys.argv[4]
filling = b" " + b"." * ({LINE} - 21) + b"\\n"
head = b"%3d " % int(rank)

def waited():
    return int(open("/proc/self/schedstat").read().split()[1]) / 1e9

number, in_write, in_queue, longest = 0, 0, 0, 0
begin = time.monotonic()
while (now := time.monotonic()) < begin + seconds:
    due = begin + number * {LINE} / rate
    if due > now:
        time.sleep(due - now)
    chunk = b"".join(head + b"%015d" % n + filling for n in range(number, number + {CHUNK}))
    queue, start = waited(), time.monotonic()
    left = memoryview(chunk)
    while left:
        left = left[os.write(1, left):]
    took, queue = time.monotonic() - start, waited() - queue
    in_write, in_queue, longest = in_write + took, in_queue + min(queue, took), max(longest, took)
    number += {CHUNK}
whole = time.monotonic() - begin
with open(result + "/" + rank, "w") as out:
    json.dump({{"lines": number, "whole": whole, "in_write": in_write, "in_queue": in_queue, "longest": longest}}, out)
"""


def wrong_in(path, rank, n_lines):
    """The first fault in the lines of a log, or None."""
    number = 0
    with open(path, "rb") as log:
        for line in log:
            if line[:19] != b"%3d %015d" % (rank, number) or len(line) != LINE:
                return f"{path}: line {number} is {line[:30]!r} of {len(line)} bytes"
            number += 1
    return None if number == n_lines else f"{path}: {number} lines of {n_lines}"


def run_crun(hosts, folder, writer):
    logs = folder / "logs"
    front = hosts.start(hosts.command("--nproc-per-node=1", "-r", "3", f"--log-dir={logs}", "--no-python", sys.executable, *writer("")),
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    used, memory = 0, 0
    while front.poll() is None:
        try:
            used = launches.cpu_seconds(front.pid)
            memory = max(memory, int(pathlib.Path(f"/proc/{front.pid}/status").read_text().split("VmHWM:")[1].split()[0]))
        except (OSError, IndexError):
            pass  # it has ended
        time.sleep(0.2)
    text = front.stdout.read()
    assert front.returncode == 0, text[-3000:]
    print(f"front: {used:.1f} s of processor time, at most {memory} KiB")
    found = {}
    for rank, name in enumerate(hosts.names()):
        [found[rank]] = (logs / name).rglob("stdout.log")
    return found


def run_ssh(hosts, folder, writer):
    paths = {rank: folder / f"out{rank}" for rank in range(hosts.n_hosts)}
    words = {rank: " ".join(f"'{word}'" for word in [sys.executable, *writer(str(rank))]) for rank in paths}
    started = [hosts.start(["ssh", "-T", "-oBatchMode=yes", name, words[rank]], stdout=open(paths[rank], "wb"))
               for rank, name in enumerate(hosts.names())]
    codes = [process.wait(600) for process in started]
    assert not any(codes), codes
    return paths


def measure(run, n_hosts, rate, seconds):
    """(share of the time in write(), without the wait for a processor, faults in the logs)"""
    with tempfile.TemporaryDirectory(prefix="crun-output-") as place:
        folder = pathlib.Path(place)
        (folder / "seen").mkdir()
        (folder / "writer.py").write_text(WRITER)
        with ssh_hosts.SshHosts(folder, n_hosts) as hosts:
            logs = run(hosts, folder, lambda rank: [str(folder / "writer.py"), str(rate * 1e6 / n_hosts), str(seconds), rank, str(folder / "seen")])
            left = hosts.wait_until_empty()
        seen = {rank: json.loads((folder / "seen" / str(rank)).read_text()) for rank in logs}
        wrong = [fault for rank, path in logs.items() if (fault := wrong_in(path, rank, seen[rank]["lines"]))]
        wrong += [f"left: {left}"] * bool(left)
    whole = sum(each["whole"] for each in seen.values())
    share, queue = (sum(each[name] for each in seen.values()) / whole for name in ("in_write", "in_queue"))
    written = sum(each["lines"] for each in seen.values()) * LINE / 1e6
    worst = max((each["in_write"] - each["in_queue"]) / each["whole"] for each in seen.values())
    print(f"{n_hosts} hosts, {written:.0f} MB in {whole / n_hosts:.1f} s: {written * n_hosts / whole:.1f} MB/s; in write() {100 * share:.2f} % of the time, "
          f"{100 * (share - queue):.2f} % without the wait for a processor (worst rank {100 * worst:.2f} %), "
          f"longest {1e3 * max(each['longest'] for each in seen.values()):.0f} ms")
    print(*wrong, sep="\n")
    return 100 * (share - queue), wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--rate", type=float, default=50, help="MB/s of all ranks together")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--limit", type=float, default=2, help="percent")
    parser.add_argument("--plain-ssh", action="store_true")
    args = parser.parse_args()
    if ssh_hosts.missing():
        print(ssh_hosts.missing())
        return 2
    share, wrong = measure(run_ssh if args.plain_ssh else run_crun, args.hosts, args.rate, args.seconds)
    return 1 if wrong or share > args.limit else 0


if __name__ == "__main__":
    sys.exit(main())
