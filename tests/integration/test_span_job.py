"""libcrw's ranks on several hosts, without a launcher: the same numbers as on one, and deaths that are heard."""

import json
import re
import shutil
import signal
import time

import pytest

import fabric as fabrics
import jobs
from span_job import SpanJob
from strict import skip_if


@pytest.fixture(scope="module")
def network():
    """Three hosts."""
    skip_if(fabrics.missing())
    with fabrics.Fabric(3) as made:
        yield made


def parameters(sizes, program, *args, network=None):
    """The checksum of what it learned."""
    with SpanJob(sizes, [jobs.train(), program, *args], network=network) as job:
        assert job.wait() == [0] * sum(sizes), job.err
        found = re.findall(r"parameters ([0-9a-f]{8})", job.out[0])
        assert found, job.out[0]
        return found[-1]


@pytest.mark.sanitize
def test_the_number_of_hosts_changes_no_bit_of_mnist(small_data):
    args = ("--data", small_data, "--epochs", "1", "--max-steps", "3", "--log-every", "1")
    seen = {sizes: parameters(sizes, "mnist", *args) for sizes in ((4,), (2, 2), (1, 2, 1))}
    assert len(set(seen.values())) == 1, seen


def test_three_hosts_that_share_no_address(small_data, network):
    args = ("--max-steps", "300")
    assert parameters((1, 2, 1), "classifier", *args, network=network) == parameters((4,), "classifier", *args)


@pytest.mark.parametrize("collective", ("allreduce", "allgather", "scatter", "sendrecv"))
def test_collectives_over_hosts(network, collective):
    with SpanJob((1, 2), [jobs.collectives(), collective, "shared", "4,307200", "3"], network=network) as job:
        assert job.wait() == [0, 0, 0], job.err
        lines = list(map(json.loads, job.out[0].splitlines()))
    assert [(line["ranks"], line["checked"]) for line in lines] == [(3, 0)] * 2


def say_steps(job):
    """Until rank 0 has trained."""
    jobs.wait_for(lambda: "step" in job.processes[0].stdout.readline(), timeout=60)


@pytest.mark.sanitize
@pytest.mark.parametrize("victim", (0, 1, 3))
def test_survivors_leave_at_once(victim):
    """Nobody tells them but the ranks themselves: there is no launcher, and the time-out is two minutes."""
    with SpanJob((2, 2), [jobs.train(), "classifier", "--epochs", "100000"]) as job:
        say_steps(job)
        job.processes[victim].kill()
        killed = time.monotonic()
        codes = job.wait(60)
        took = time.monotonic() - killed
    assert codes[victim] == -signal.SIGKILL
    survivors = [rank for rank in range(4) if rank != victim]
    # On a machine that stands still the news may be later than the end of a neighbour's connection.
    told = [f"rank {victim} ended" in job.err[rank] for rank in survivors]
    for rank, knows in zip(survivors, told):
        assert codes[rank] != 0 and (knows or "was lost, so this group" in job.err[rank]), (rank, codes, job.err[rank])
    assert any(told), job.err
    print(f"rank {victim} killed: all gone after {1000 * took:.1f} ms")


@pytest.mark.skipif(not shutil.which("nft"), reason="nft is not installed")
def test_a_cut_between_two_hosts_is_named(network):
    """Both still reach the third one. No rank has ended, so none is reported to have: the network is."""
    with SpanJob((1, 1, 1), [jobs.train(), "classifier", "--epochs", "100000"], network=network) as job:
        say_steps(job)
        network.drop(1, "input", f"ip saddr {network.address(2)}")
        network.drop(2, "input", f"ip saddr {network.address(1)}")
        try:
            codes = job.wait(60)
        finally:
            network.heal(1)
            network.heal(2)
    assert all(codes), (codes, job.err)
    assert any(re.search(r"the network to rank [12] is cut, or its host is down", err) for err in job.err), job.err
    assert not any(re.search(r"rank [12] ended, so", err) for err in job.err), job.err
