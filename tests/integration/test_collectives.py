"""Every collective of libcrw under crun: tests/bench/collectives compares each element of the results."""

import json

import pytest

import jobs

COLLECTIVES = ("allreduce", "broadcast", "allgather", "gather", "reduce", "reducescatter", "scatter", "sendrecv",
               "pingpong", "barrier", "copy")


@pytest.mark.sanitize
@pytest.mark.parametrize("memory", ("shared", "private"))
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right(collective, memory):
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=3", jobs.collectives(), collective, memory,
                  "4,1000,307200", "3"], timeout=120)
    assert p.returncode == 0, p.stderr
    lines = [json.loads(line) for line in p.stdout.splitlines()]
    assert len(lines) == 3 and lines[2]["bytes"] == 307200
    for line in lines:
        assert (line["collective"], line["ranks"], line["checked"]) == (collective, 3, 0) and line["time_us"] > 0
