"""One system call of crun or crund fails: a sample of `tests/soak syscalls`, drawn anew each time."""

import platform

import pytest

import jobs


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tests/fakes/failing_call.c reads the stack of x86-64")
def test_failing_calls():
    p = jobs.run_soak("syscall_failures.py", "--sample", "14", "--at-once", "1")
    print(p.stdout)
    assert p.returncode == 0, p.stdout + p.stderr
