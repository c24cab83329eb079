"""Something that a job of three nodes needs stands still for a while, under load: the log disk of one node, or the disk of
crund's state; or a GPU driver hangs for ever. (tests/fakes/slow_disk.c, hung_nvml.c)

The log disk stands still while a generation runs, fails and is restarted: every node has to stay in the job, and the job
has to succeed with the one restart that was planned. The state disk does the same under crund. SIGTERM sent to a
job whose log disk stands still has to end it within its grace, as one sent to a crun whose driver hangs.

Usage: standing_still.py [--seconds N] [--load N] [WHAT...]    WHAT: logs, state, driver, signal
"""

import argparse
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
CONF = "last_call_timeout=1,join_timeout=60"
# Fails in generation 0 as soon as the file "fail" is there, and ends with success in generation 1.
WORKER = """\
[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { echo again; exit 0; }
echo first; touch up.$RANK
while [ ! -e fail ]; do sleep 0.05; done
[ $RANK = 0 ] && { echo '{"message":"boom"}' >$TORCHELASTIC_ERROR_FILE; exit 3; }
sleep 100
"""


def preload(name, **environment):
    return {"LD_PRELOAD": str(jobs.build_folder() / f"tests/fakes/lib{name}.so"), **{k: str(v) for k, v in environment.items()}}


def disk(folder, tmp):
    return preload("slow_disk", SLOW_DISK=folder, SLOW_DISK_HANGS=tmp / "hangs")


def start_job(group, tmp, port, slow=None, is_host=True):
    for i in range(3):
        group.crun("--nnodes=3", f"--node-rank={i}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=still",
                   f"--rdzv-conf={CONF},is_host={int(is_host and i == 0)}", "--max-restarts=3", f"--shutdown-timeout={GRACE_S}",
                   "-t3", f"--log-dir={tmp}/logs{i}", f"--event-log={tmp}/events{i}", "--no-python", "env", "-u", "LD_PRELOAD",
                   "sh", "-c", f"cd {tmp}\n{WORKER}", env=disk(tmp / f"logs{i}", tmp) if slow == i else None)
    jobs.wait_for(lambda: all((tmp / f"up.{i}").exists() for i in range(3)), 60)


def generations(tmp):
    """What started, by node."""
    return [[e["generation"] for e in jobs.whole_lines(tmp / f"events{i}") if e["event"] == "start"] for i in range(3)]


def check(group, tmp, what, begin):
    codes = group.codes(120)
    found = generations(tmp)
    lost = re.findall(r"[^\n]* was lost[^\n]*", group.texts())
    print(f"{what}: exit codes {codes}, generations {found}, {time.monotonic() - begin:.1f} s; lost: {lost}", flush=True)
    return codes == [0, 0, 0] and found == [[0, 1]] * 3 and not lost


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
        start_job(group, tmp, nodes.free_port(), slow=0)
        fail_while_it_hangs(tmp, seconds)
        return check(group, tmp, "log disk", begin)


def run_state(tmp, seconds):
    begin = time.monotonic()
    crund = subprocess.Popen([jobs.build_folder() / "rendezvous/crund", "--listen", "127.0.0.1:0", "--state", tmp / "state"],
                             stdout=subprocess.PIPE, stderr=open(tmp / "crund.err", "wb"), text=True,
                             env={**os.environ, **disk(tmp / "state", tmp)})
    try:
        port = crund.stdout.readline().split()[-1].rpartition(":")[2]
        with nodes.Nodes(tmp) as group:
            start_job(group, tmp, port, is_host=False)
            fail_while_it_hangs(tmp, seconds)
            good = check(group, tmp, "state disk", begin)
        crund.terminate()
        return good and crund.wait(20) == 0
    finally:
        crund.kill()
        crund.wait()


def run_signal(tmp, seconds):
    """SIGTERM to the node whose log disk hangs while it should start again."""
    with nodes.Nodes(tmp) as group:
        start_job(group, tmp, nodes.free_port(), slow=1)
        (tmp / "hangs").touch()
        (tmp / "fail").touch()
        time.sleep(min(seconds, 3))
        begin = time.monotonic()
        for node in group:
            node.signal(signal.SIGTERM)
        codes = group.codes(60)
        took = time.monotonic() - begin
        print(f"SIGTERM with a log disk that hangs: exit codes {codes} after {took:.1f} s of a grace of {GRACE_S} s", flush=True)
        return all(code in (0, 1) for code in codes) and took < GRACE_S + 1


def run_driver(tmp, _seconds):
    """Each node asks the driver for the number of its GPUs at its start."""
    library = jobs.build_folder() / "tests/fakes"
    os.symlink(library / "libhung_nvml.so", tmp / "libnvidia-ml.so.1")
    begin = time.monotonic()
    with nodes.Nodes(tmp) as group:
        group.crun("--standalone", "--nproc-per-node=gpu", "--no-python", "true", env=preload("hung_nvml", LD_LIBRARY_PATH=tmp))
        time.sleep(1)
        group[0].signal(signal.SIGTERM)
        codes = group.codes(60)
        took = time.monotonic() - begin - 1
        print(f"driver that hangs: exit codes {codes}, {took:.1f} s after SIGTERM", flush=True)
        return took < GRACE_S and codes[0] in (1, -signal.SIGTERM)


RUNS = {"logs": run_logs, "state": run_state, "signal": run_signal, "driver": run_driver}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes that use a CPU each meanwhile")
    parser.add_argument("what", nargs="*", choices=[*RUNS, []])
    args = parser.parse_args()
    load = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(args.load)]
    bad = []
    try:
        for what in args.what or RUNS:
            with tempfile.TemporaryDirectory() as tmp:
                if not RUNS[what](pathlib.Path(tmp), args.seconds):
                    bad.append(what)
    finally:
        for p in load:
            p.kill()
            p.wait()
    print(f"wrong: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
