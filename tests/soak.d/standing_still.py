"""Something that a job of three nodes needs stands still for a while, under load: the log disk of one node, the disk of
crund's state, the resolver of every node; or the GPU driver of every node hangs for ever. (tests/fakes/slow_disk.c,
slow_resolver.c, fake_nvml.c)

A log disk stands still while a generation runs, fails and is restarted: every node has to stay in the job, and the job
has to succeed with the one restart that was planned. The state disk does the same under crund. A resolver stands still from
before a restart of crund, after which every node dials it again, until the end of the job; a driver from the start of the job
on. SIGTERM has to end a job within its grace while its log disk or its resolver stands still, and nodes whose driver hangs.

Usage: standing_still.py [--seconds N] [--load N] [WHAT...]    WHAT: logs, state, resolver, driver, sigterm
"""

import argparse
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import jobs
import nodes

GRACE_S = 5
N_NODES = 3
CONF = "last_call_timeout=1,join_timeout=60"
# Fails in generation 0 as soon as the file "fail" is there, and ends with success in generation 1.
WORKER = """\
[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { echo again; exit 0; }
echo first; touch up.$RANK
while [ ! -e fail ]; do sleep 0.05; done
[ $RANK = 0 ] && { echo '{"message":"boom"}' >$TORCHELASTIC_ERROR_FILE; exit 3; }
sleep 100
"""


def slow_disk(folder, tmp):
    return jobs.preload("slow_disk", SLOW_DISK=folder, SLOW_DISK_HANGS=tmp / "hangs")


def slow_resolver(tmp):
    return jobs.preload("slow_resolver", SLOW_RESOLVER_HANGS=tmp / "hangs")


def hung_driver(tmp):
    library = tmp / "libnvidia-ml.so.1"
    if not library.exists():
        library.symlink_to(jobs.build_folder() / "tests/fakes/libfake_nvml.so")
    return jobs.preload("fake_nvml", LD_LIBRARY_PATH=tmp, FAKE_NVML="hung=1")


def start_nodes(group, tmp, endpoint, is_hosted=False, n_workers=1, env=lambda node: None):
    """is_hosted: by node 0, else by a crund."""
    for i in range(N_NODES):
        group.crun(f"--nnodes={N_NODES}", f"--node-rank={i}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=still",
                   f"--rdzv-conf={CONF},is_host={int(is_hosted and i == 0)}", f"--nproc-per-node={n_workers}", "--max-restarts=3",
                   f"--shutdown-timeout={GRACE_S}", "-t3", f"--log-dir={tmp}/logs{i}", f"--event-log={tmp}/events{i}", "--no-python",
                   "env", "-u", "LD_PRELOAD", "sh", "-c", f"cd {tmp}\n{WORKER}", env=env(i))


def wait_until_up(tmp):
    jobs.wait_for(lambda: all((tmp / f"up.{i}").exists() for i in range(N_NODES)), 120)


def start_hosted(group, tmp, slow):
    """A job with the log disk of that node slow."""
    start_nodes(group, tmp, f"127.0.0.1:{nodes.free_port()}", True, env=lambda i: slow_disk(tmp / f"logs{i}", tmp) if i == slow else None)
    wait_until_up(tmp)


@contextlib.contextmanager
def running_crund(tmp, port=0, env=()):
    crund = subprocess.Popen([jobs.build_folder() / "rendezvous/crund", "--listen", f"127.0.0.1:{port}", "--state", tmp / "state"],
                             stdout=subprocess.PIPE, stderr=open(tmp / "crund.err", "ab"), text=True, env={**os.environ, **dict(env)})
    try:
        crund.port = crund.stdout.readline().split()[-1].rpartition(":")[2]
        yield crund
    finally:
        crund.kill()
        crund.wait()


def generations(tmp):
    """What started, by node."""
    return [[e["generation"] for e in jobs.whole_lines(tmp / f"events{i}") if e["event"] == "start"] for i in range(N_NODES)]


def check(group, tmp, what, begin):
    codes = group.codes(120)
    found = generations(tmp)
    lost = re.findall(r"[^\n]* was lost[^\n]*", re.sub(r"the rendezvous at \S+ was lost", "", group.texts()))
    print(f"{what}: exit codes {codes}, generations {found}, {time.monotonic() - begin:.1f} s; lost: {lost}", flush=True)
    return codes == [0] * N_NODES and found == [[0, 1]] * N_NODES and not lost


def fail_while_it_hangs(tmp, seconds):
    (tmp / "hangs").touch()
    time.sleep(0.2)
    (tmp / "fail").touch()
    time.sleep(seconds)
    (tmp / "hangs").unlink()


def run_logs(tmp, seconds):
    """Node 0 fails: it reads its error file, reports, and makes the next folders, all on the disk that hangs."""
    begin = time.monotonic()
    with nodes.Nodes(tmp) as group:
        start_hosted(group, tmp, slow=0)
        fail_while_it_hangs(tmp, seconds)
        return check(group, tmp, "log disk", begin)


def run_state(tmp, seconds):
    begin = time.monotonic()
    with running_crund(tmp, env=slow_disk(tmp / "state", tmp)) as crund, nodes.Nodes(tmp) as group:
        start_nodes(group, tmp, f"127.0.0.1:{crund.port}")
        wait_until_up(tmp)
        fail_while_it_hangs(tmp, seconds)
        good = check(group, tmp, "state disk", begin)
        crund.terminate()
        return good and crund.wait(20) == 0


def run_resolver(tmp, seconds):
    """The nodes know the address of crund by its name, and have to reach it again while that cannot be resolved."""
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        crund = stack.enter_context(running_crund(tmp))
        group = stack.enter_context(nodes.Nodes(tmp))
        start_nodes(group, tmp, f"localhost:{crund.port}", env=lambda _: slow_resolver(tmp))
        wait_until_up(tmp)

        (tmp / "hangs").touch()
        crund.kill()
        crund.wait()
        stack.enter_context(running_crund(tmp, crund.port))
        time.sleep(seconds)
        (tmp / "fail").touch()
        return check(group, tmp, "resolver", begin)


def run_driver(tmp, _seconds):
    """Each node asks the driver for the number of its GPUs at its start, and goes on without an answer."""
    begin = time.monotonic()
    with nodes.Nodes(tmp) as group:
        start_nodes(group, tmp, f"127.0.0.1:{nodes.free_port()}", True, "auto", lambda _: hung_driver(tmp))
        wait_until_up(tmp)
        (tmp / "fail").touch()
        return check(group, tmp, "driver", begin)


# ---- SIGTERM

def terminate(group, what):
    begin = time.monotonic()
    for node in group:
        node.signal(signal.SIGTERM)
    codes = group.codes(60)
    took = time.monotonic() - begin
    print(f"SIGTERM, {what} hangs: exit codes {codes} after {took:.1f} s of a grace of {GRACE_S} s", flush=True)
    return all(code in (0, 1) for code in codes) and took < GRACE_S + 1


def terminate_with_logs(tmp, seconds):
    """The node should start again on a disk that hangs."""
    with nodes.Nodes(tmp) as group:
        start_hosted(group, tmp, slow=1)
        (tmp / "hangs").touch()
        (tmp / "fail").touch()
        time.sleep(min(seconds, 3))
        return terminate(group, "log disk")


def terminate_with_resolver(tmp, seconds):
    """crund has ended, and its name cannot be resolved."""
    with nodes.Nodes(tmp) as group:
        with running_crund(tmp) as crund:
            start_nodes(group, tmp, f"localhost:{crund.port}", env=lambda _: slow_resolver(tmp))
            wait_until_up(tmp)
            (tmp / "hangs").touch()
        time.sleep(min(seconds, 3))
        return terminate(group, "resolver")


def terminate_with_resolver_at_start(tmp, seconds):
    (tmp / "hangs").touch()
    with nodes.Nodes(tmp) as group:
        start_nodes(group, tmp, f"localhost:{nodes.free_port()}", env=lambda _: slow_resolver(tmp))
        time.sleep(min(seconds, 3))
        return terminate(group, "resolver (at the start)")


def terminate_with_driver(tmp, _seconds):
    with nodes.Nodes(tmp) as group:
        start_nodes(group, tmp, f"127.0.0.1:{nodes.free_port()}", True, "gpu", lambda _: hung_driver(tmp))
        for node in group:
            jobs.wait_for(lambda: jobs.children(node.pid))  # the one that asks the driver
        return terminate(group, "driver")


RUNS = {"logs": [run_logs], "state": [run_state], "resolver": [run_resolver], "driver": [run_driver],
        "sigterm": [terminate_with_logs, terminate_with_resolver, terminate_with_resolver_at_start, terminate_with_driver]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes that use a CPU each meanwhile")
    parser.add_argument("what", nargs="*", choices=[*RUNS, []])
    args = parser.parse_args()
    load = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(args.load)]
    bad = []
    try:
        for run in [run for what in args.what or RUNS for run in RUNS[what]]:
            with tempfile.TemporaryDirectory() as tmp:
                if not run(pathlib.Path(tmp), args.seconds):
                    bad.append(run.__name__)
    finally:
        for p in load:
            p.kill()
            p.wait()
    print(f"wrong: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
