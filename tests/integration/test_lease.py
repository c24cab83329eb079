"""--lease: workers of a node that may be taken for lost end by the node's own clock, before others start in their place."""

import os
import re
import signal
import time

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from crund import Crund

pytestmark = pytest.mark.sanitize

LEASE_S = 8

# Each worker writes when it runs: 50 times a second, with the generation.
BEAT = "while :; do echo $CRUN_GENERATION $(date +%s.%N) >> {folder}/beat.$RANK.$CRUN_GENERATION; sleep 0.02; done"


def start(nodes, folder, port, *more, nnodes="1:2", conf="", env=None):
    conf = "is_host=no,last_call_timeout=60" + (f",{conf}" if conf else "")
    return nodes.crun(f"--nnodes={nnodes}", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                      "--rdzv-id=job", f"--rdzv-conf={conf}", "--security=open", *more, "--no-python", "sh", "-c",
                      BEAT.format(folder=folder), env=env)


def beats(folder):
    """The first and last moment at which a worker of each generation has written."""
    spans = {}
    for path in folder.glob("beat.*"):
        for line in path.read_text().splitlines():
            if re.fullmatch(r"\d+ \d+\.\d+", line):
                generation, at = line.split()
                first, last = spans.get(int(generation), (float(at), float(at)))
                spans[int(generation)] = min(first, float(at)), max(last, float(at))
    return spans


def wait_for_generation(folder, generation, n=1, timeout=90):
    """Until n workers of it have written: a file is there before its first line."""
    jobs.wait_for(lambda: sum(path.stat().st_size > 0 for path in folder.glob(f"beat.*.{generation}")) == n, timeout, 0.02)


@pytest.mark.parametrize("policy", ["all", "replace"])
def test_workers_of_a_stopped_crun_end_before_others_start(tmp_path, policy):
    port = lib.free_port()
    with Crund(jobs.build_folder(), listen=(f"127.0.0.1:{port}",)) as crund, lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            start(nodes, tmp_path, port, f"--lease={LEASE_S}", f"--restart-policy={policy}")
        wait_for_generation(tmp_path, 0, 2)
        (worker,) = jobs.workers(nodes[1].pid).values()
        nodes[1].signal(signal.SIGSTOP)
        wait_for_generation(tmp_path, 1)
        assert jobs.wait_until(lambda: not os.path.exists(f"/proc/{worker}"), 5)  # its guardian reaps it
        spans = beats(tmp_path)
        assert spans[0][1] < spans[1][0], spans
        assert "1 lost that may have workers until the lease ends" in crund.log()
        nodes[1].signal(signal.SIGCONT)
        wait_for_generation(tmp_path, 2, 2)
        assert f"and its lease is {LEASE_S} s" in nodes[1].text()
        spans = beats(tmp_path)
        assert spans[1][1] < spans[2][0] + 0.5, spans


def test_a_lease_holds_when_more_workers_have_ended_than_a_stopped_crun_is_told_of(tmp_path):
    """The socket between guardian and crun takes about 190 reports; 50 workers run on."""
    stay, lease_s = 50, 4
    end = int(os.environ.get("CRUN_TEST_ENDED_WORKERS", "250"))
    script = (f"echo > {tmp_path}/$CRUN_GENERATION.$RANK; "
              f"[ $LOCAL_RANK -ge {stay} ] && exec sh -c 'read x' < {tmp_path}/gate$NODE; exec sleep 1000")
    port = lib.free_port()
    with Crund(jobs.build_folder(), listen=(f"127.0.0.1:{port}",)), lib.Nodes(tmp_path) as nodes:
        for i in range(2):
            os.mkfifo(tmp_path / f"gate{i}")
            nodes.crun("--nnodes=1:2", f"--nproc-per-node={stay + end if i else 1}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                       "--rdzv-id=job", "--rdzv-conf=is_host=no,last_call_timeout=60", "--security=open",
                       f"--lease={lease_s}", "--no-python", "sh", "-c", script, env={**os.environ, "NODE": str(i)})
        jobs.wait_for(lambda: sum(1 for _ in tmp_path.glob("0.*")) == stay + end + 1, 60, 0.05)
        workers = jobs.workers(nodes[1].pid).values()
        nodes[1].signal(signal.SIGSTOP)
        os.close(os.open(tmp_path / "gate1", os.O_RDWR))  # those that wait for it end
        assert jobs.wait_until(lambda: not any(os.path.exists(f"/proc/{p}") for p in workers), lease_s + 2)
        jobs.wait_for(lambda: any(tmp_path.glob("1.*")), 60)
        nodes[1].signal(signal.SIGCONT)
        jobs.wait_for(lambda: sum(1 for _ in tmp_path.glob("2.*")) == stay + end + 1, 60, 0.05)
        assert f"and its lease is {lease_s} s" in nodes[1].text()


@pytest.mark.parametrize("output", [[], ["-t1"]], ids=["inherited", "captured"])
def test_the_lease_is_named_where_the_end_of_the_workers_is_known_before_it_is_over(tmp_path, output):
    """A crun that was stopped while it computed sees what its guardian has reported before it looks at its timers."""
    port, lease_s = lib.free_port(), 2
    deaf = {**os.environ, **jobs.preload("deaf_epoll")}
    with Crund(jobs.build_folder(), listen=(f"127.0.0.1:{port}",)), lib.Nodes(tmp_path) as nodes:
        for env in None, deaf:
            start(nodes, tmp_path, port, f"--lease={lease_s}", *output, env=env)
        wait_for_generation(tmp_path, 0, 2)
        (worker,) = jobs.workers(nodes[1].pid).values()
        nodes[1].signal(signal.SIGSTOP)
        assert jobs.wait_until(lambda: not os.path.exists(f"/proc/{worker}"), 60)
        time.sleep(0.3)  # its guardian reports it
        nodes[1].signal(signal.SIGCONT)
        jobs.wait_for(lambda: f"and its lease is {lease_s} s" in nodes[1].text(), 60)


def test_a_killed_crun_is_not_waited_for(tmp_path):
    """Its guardian reports the end of the last process."""
    port = lib.free_port()
    with Crund(jobs.build_folder(), listen=(f"127.0.0.1:{port}",)), lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            start(nodes, tmp_path, port, "--lease=600")
        wait_for_generation(tmp_path, 0, 2)
        nodes[1].signal(signal.SIGKILL)
        wait_for_generation(tmp_path, 1)


def test_a_node_that_leaves_is_not_waited_for_after_its_workers(tmp_path):
    port = lib.free_port()
    with Crund(jobs.build_folder(), listen=(f"127.0.0.1:{port}",)), lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            start(nodes, tmp_path, port, "--lease=600")
        wait_for_generation(tmp_path, 0, 2)
        nodes[1].signal(signal.SIGINT)
        wait_for_generation(tmp_path, 1)
        assert nodes[1].wait() == 1
        assert "left: it was stopped by SIGINT" in nodes[0].text()


def test_a_job_outlives_a_rendezvous_that_is_away_for_longer_than_its_lease(tmp_path):
    """The workers end, and start again when it is back."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        with Crund(jobs.build_folder(), "--state", str(tmp_path / "state"), listen=(f"127.0.0.1:{port}",)):
            for _ in range(2):
                start(nodes, tmp_path, port, f"--lease={LEASE_S}")
            wait_for_generation(tmp_path, 0, 2)
            workers = [jobs.workers(n.pid).values() for n in nodes]
        began = time.time()
        for pids in workers:
            assert jobs.wait_until(lambda: not any(os.path.exists(f"/proc/{p}") for p in pids), 60)  # noqa: B023
        assert beats(tmp_path)[0][1] - began < LEASE_S + 0.5
        with Crund(jobs.build_folder(), "--state", str(tmp_path / "state"), listen=(f"127.0.0.1:{port}",)):
            wait_for_generation(tmp_path, 1, 2)


def test_without_a_lease_cutoff_ms_is_how_long_a_lost_rendezvous_is_redialled(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        with Crund(jobs.build_folder(), listen=(f"127.0.0.1:{port}",)):
            for _ in range(2):
                start(nodes, tmp_path, port, conf="cutoff_ms=1500")
            wait_for_generation(tmp_path, 0, 2)
        assert nodes.codes() == [1, 1]
        assert "was lost and could not be reached again for 1 s" in nodes[0].text()


@pytest.mark.skipif(fabrics.missing() is not None, reason=str(fabrics.missing()))
def test_random_faults(tmp_path):
    """The short form of tests/soak leases."""
    p = jobs.run_soak("leases.py", "--rounds=2", "both", "kill", timeout=400)
    assert p.returncode == 0, p.stdout + p.stderr
    assert "0 pairs of them ran at the same time" in p.stdout


@pytest.mark.parametrize("options, words", [
    (["--lease=0.5"], ["--lease=0.5", "at least 1 s"]),
    (["--lease=-1"], ["--lease", "1 to"]),
    (["--lease=2", "--rdzv-conf=node_timeout_ms=3000"], ["--lease=2", "node_timeout_ms"]),
    (["--rdzv-conf=cutoff_ms=0"], ["cutoff_ms=0", "between 1 and"]),
])
def test_refused(options, words):
    p = jobs.run([jobs.crun(), "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", *options, "true"])
    jobs.assert_one_sentence(p, 1, *words)
