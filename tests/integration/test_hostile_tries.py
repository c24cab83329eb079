"""Tries of strangers at a job with a secret: the short form of the soak test hostile-tries."""

import re

import pytest

import fabric as fabrics
import jobs
import strict

REQUESTS = ("read", "write", "join")


def served(text, kind):
    """(from another host, of another user)"""
    return tuple(map(int, re.search(rf"^  {kind} +\d+ +(\d+) +(\d+)", text, re.M).groups()))


@pytest.mark.parametrize("mode", ["standalone", "fenced", "sealed"])
def test_strangers_are_not_served(mode):
    strict.skip_if(fabrics.missing())
    p = jobs.run_soak("hostile_tries.py", "--tries=20", "--limit=5000", mode)
    print(p.stdout)
    assert p.returncode == 0, p.stdout + p.stderr
    assert "listening on host 0:" in p.stdout
    assert all(served(p.stdout, kind)[0] == 0 for kind in REQUESTS)


def test_an_open_job_serves_them():
    """Otherwise the tries would prove nothing."""
    strict.skip_if(fabrics.missing())
    p = jobs.run_soak("hostile_tries.py", "--tries=8", "--limit=5000", "open")
    assert p.returncode == 1 and served(p.stdout, "read")[0] == served(p.stdout, "write")[0] == 8, p.stdout + p.stderr
    assert served(p.stdout, "join")[0] >= 1, p.stdout  # connections of one node take the place of each other
