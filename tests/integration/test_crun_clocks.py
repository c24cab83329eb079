"""Clocks of the nodes that do not agree, and jump: nothing that is decided depends on them."""

import datetime
import os
import re
import shutil
import signal
import subprocess

import pytest

import jobs
import nodes as lib

HOUR = 3600
CORES = ["rendezvous/librounds.a", "rendezvous/libstore.a", "launcher/liblauncher-core.a", "proto/libproto.a"]
CLOCKS = {"time", "clock_gettime", "gettimeofday", "uv_hrtime", "uv_now", "ftime", "clock", "timespec_get"}


def test_no_core_reads_a_clock():
    """Whatever decides is told the time; only then can it be the right clock everywhere."""
    for core in CORES:
        p = subprocess.run(["nm", "-u", jobs.build_folder() / core], capture_output=True, text=True)
        used = {line.split()[-1].split("@")[0] for line in p.stdout.splitlines() if " U " in line}
        assert p.returncode == 0 and used, (core, p.stderr)
        assert not used & CLOCKS, core


def test_nothing_waits_by_the_wall_clock():
    """Functions of libc that take a deadline of CLOCK_REALTIME: one that is set back holds them up."""
    by_wall_clock = {"pthread_timedjoin_np", "sem_timedwait", "pthread_mutex_timedlock", "pthread_rwlock_timedrdlock",
                     "pthread_rwlock_timedwrlock", "mtx_timedlock", "cnd_timedwait", "thrd_sleep", "mq_timedreceive", "mq_timedsend"}
    for program in ("launcher/crun", "launcher/crunctl", "rendezvous/crund", "worker-runtime/train"):
        p = subprocess.run(["nm", "-D", "--undefined-only", jobs.build_folder() / program], capture_output=True, text=True)
        used = {line.split()[-1].split("@")[0] for line in p.stdout.splitlines()}
        assert p.returncode == 0 and used and not used & by_wall_clock, (program, used & by_wall_clock, p.stderr)


class Skew:
    """A wall clock for one node that is wrong by .set(seconds)."""

    def __init__(self, folder, number):
        self.file = folder / f"skew{number}"
        self.set(0)

    def set(self, seconds):
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self.file)

    def env(self):
        return jobs.preload("skewed_clock", CRUN_TEST_SKEW_FILE=self.file)


def can_shift_monotonic():
    return os.geteuid() == 0 and shutil.which("unshare") and subprocess.run(
        ["unshare", "--time", "--monotonic", "5", "true"], capture_output=True).returncode == 0


SHIFTED = ["unshare", "--time", "--boottime", "100000", "--monotonic", "100000", "--fork", "--kill-child"]
SCRIPT = "echo GENERATION $CRUN_GENERATION RANK $RANK; [ $CRUN_GENERATION = 2 ] || exec sleep 600"


def running(nodes, generation, ranks):
    return all(any(f"GENERATION {generation} RANK {rank}\n" in n.text() for n in nodes) for rank in range(ranks))


def shown_time(path):
    first = jobs.wait_for(lambda: jobs.whole_lines(path))[0]
    return datetime.datetime.fromisoformat(first["time"][:19]).timestamp()


def test_wall_clocks_that_are_hours_apart_and_jump(tmp_path):
    """The node with the rendezvous is an hour behind, another an hour ahead, and all of them jump by two hours while the
    job runs: nobody is lost, a failure is one restart, a killed node is noticed, and the job ends well."""
    port = lib.free_port()
    skews = [Skew(tmp_path, i) for i in range(3)]
    for skew, seconds in zip(skews, (-HOUR, HOUR, 0)):
        skew.set(seconds)
    with lib.Nodes(tmp_path) as nodes:
        for i, skew in enumerate(skews):
            nodes.crun("--nnodes=2:3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       f"--node-rank={i}", "--rdzv-conf=last_call_timeout=60", "--max-restarts=1", f"--event-log={tmp_path}/events{i}",
                       "--no-python", "sh", "-c", SCRIPT, env=skew.env())
            if i == 0:
                nodes[0].wait_for("1/3 nodes")  # this one serves
        jobs.wait_for(lambda: running(nodes, 0, 3), 60, 0.02)
        apart = shown_time(tmp_path / "events1") - shown_time(tmp_path / "events0")
        assert abs(apart - 2 * HOUR) < 300, apart  # else the clocks were right, and nothing is shown
        for skew, seconds in zip(skews, (HOUR, -HOUR, -10 * 365 * 24 * HOUR)):
            skew.set(seconds)
        # Waited for: one that is just executing another program shows no environment.
        jobs.kill(jobs.wait_for(lambda: jobs.workers(nodes[1].pid).get(1), 60))
        jobs.wait_for(lambda: running(nodes, 1, 3), 60, 0.02)
        for skew, seconds in zip(skews, (-HOUR, HOUR, 10 * 365 * 24 * HOUR)):
            skew.set(seconds)
        nodes[2].signal(signal.SIGKILL)
        nodes[2].wait()
        jobs.wait_for(lambda: running(nodes, 2, 2), 60, 0.02)
        assert [n.wait(60) for n in nodes[:2]] == [0, 0], nodes.texts()
        text = nodes[0].text()
        assert text.count("goes on as generation") == 2 and "(1/1 restarts used)" in text, text
        assert re.search(r"generation 1 with 3 nodes \(1/1", text) and re.search(r"generation 2 with 2 nodes \(1/1", text), text


@pytest.mark.skipif(not can_shift_monotonic(), reason="no time namespaces here")
def test_monotonic_clocks_of_other_machines(tmp_path):
    """Each machine counts from its own start. Times are told as ages, so the first failure is the first one."""
    port = lib.free_port()
    script = f"echo GENERATION $CRUN_GENERATION RANK $RANK; [ $RANK = 0 ] && exec sleep 600; echo > {tmp_path}/ready$RANK; " \
             f"until [ -e {tmp_path}/ready1 -a -e {tmp_path}/ready2 ]; do sleep 0.02; done; " \
             "[ $RANK = 1 ] && exec sleep 600; exit 7"
    with lib.Nodes(tmp_path) as nodes:
        for i in range(3):
            nodes.crun("--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       f"--node-rank={i}", "--no-python", "sh", "-c", script, prefix=SHIFTED if i == 1 else ())
            if i == 0:
                nodes[0].wait_for("1/3 nodes")
        assert nodes.codes() == [1, 1, 1], nodes.texts()
        assert all("rank 2 (local rank 0)" in n.text() and "failed with exit code 7" in n.text() for n in nodes), nodes.texts()
        assert "was lost" not in nodes.texts()
